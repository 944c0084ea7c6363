"""A file in parts: whoever stops, whenever, the file is whole or absent."""

import json
import os
import shutil

import pytest

from t5x_lite import errors
from t5x_lite import parts

PLAN = {'step': 4, 'input': 'abc', 'length': 8}
CONTENTS = [b'one\n', b'', b'two\nthree\n', b'four']


class Killed(BaseException):
  """What stands for SIGKILL: nothing catches it."""


@pytest.fixture
def work(tmp_path):
  return parts.Parts(tmp_path / 'out', PLAN, len(CONTENTS))


def go_on(work):
  work.begin()
  for number in work.missing():
    work.write(number, CONTENTS[number])
  return work.join()


def assert_whole(folder):
  assert (folder / 'out').read_bytes() == b''.join(CONTENTS)
  assert sorted(f.name for f in folder.iterdir()) == ['out', 'out.done']


def test_parts_become_the_file(work, tmp_path):
  work.begin()
  assert work.missing() == [0, 1, 2, 3]
  for number in (2, 0, 3):
    work.write(number, CONTENTS[number])
    assert work.join() > 0 and not (tmp_path / 'out').exists()
  assert work.missing() == [1] and not work.is_done()
  work.write(1, CONTENTS[1])
  assert work.join() == 0 and work.is_done()
  assert_whole(tmp_path)


def test_no_parts_are_an_empty_file(tmp_path):
  work = parts.Parts(tmp_path / 'out', PLAN, 0)
  work.begin()
  assert work.join() == 0
  assert (tmp_path / 'out').read_bytes() == b''


def test_killed_at_every_touch_of_the_disk(work, tmp_path, monkeypatch):
  """Whatever was written, the next start ends with the same file."""
  left = None

  def touching(call):
    def touch(*args, **kwargs):
      nonlocal left
      if left == 0:
        raise Killed
      left -= 1
      return call(*args, **kwargs)

    return touch

  for name in ('replace', 'rename', 'unlink', 'rmdir', 'mkdir', 'fsync'):
    monkeypatch.setattr(f'os.{name}', touching(getattr(os, name)))
  monkeypatch.setattr('shutil.copyfileobj', touching(shutil.copyfileobj))
  kills = 0
  for moment in range(200):
    for file in ('out', 'out.done'):
      (tmp_path / file).write_bytes(b'older')
    left = moment
    try:
      assert go_on(work) == 0
      break
    except Killed:
      kills += 1
    left = 10_000
    content = (tmp_path / 'out').read_bytes()
    assert content in (b'older', b''.join(CONTENTS))
    assert go_on(work) == 0
    assert_whole(tmp_path)
  assert 20 < kills < 199
  assert_whole(tmp_path)


def test_another_plan_is_refused_and_told(work, tmp_path):
  work.begin()
  work.write(0, b'x')
  other = parts.Parts(tmp_path / 'out', PLAN | {'step': 8, 'new': 1}, 4)
  with pytest.raises(errors.ConfigError) as e:
    other.begin()
  for word in ('step: 4 -> 8', 'new: None -> 1', 'out.parts', 'delete'):
    assert word in str(e.value)
  assert 'length' not in str(e.value)
  assert other.missing() == [0, 1, 2, 3]  # those there are not its own
  assert work.missing() == [1, 2, 3]


def test_another_plan_may_follow_one_without_parts(work, tmp_path):
  """As when the first batch was too large for the memory."""
  work.begin()
  assert go_on(parts.Parts(tmp_path / 'out', PLAN | {'size': 1}, 4)) == 0
  assert_whole(tmp_path)


def test_a_plan_that_is_damaged_is_refused(work):
  work.begin()
  work.write(0, b'x')
  (work.folder / 'plan.json').write_text('{"st')
  with pytest.raises(errors.ConfigError, match='delete the folder'):
    work.begin()


def test_done_is_of_the_plan_and_of_the_file(work, tmp_path):
  go_on(work)
  assert work.is_done()
  assert not parts.Parts(tmp_path / 'out', PLAN | {'step': 5}, 4).is_done()
  content = (tmp_path / 'out').read_bytes()
  for other in (content[:-1], b'O' + content[1:]):
    (tmp_path / 'out').write_bytes(other)
    assert not work.is_done()
  (tmp_path / 'out').unlink()
  assert not work.is_done()
  assert go_on(work) == 0
  assert_whole(tmp_path)
  assert json.loads((tmp_path / 'out.done').read_text())['step'] == 4


def test_two_that_join_at_once(work, tmp_path, monkeypatch):
  """The one joins and removes all between two reads of the other."""
  other = parts.Parts(tmp_path / 'out', PLAN, len(CONTENTS))
  for moment in range(6):
    for file in tmp_path.iterdir():
      file.unlink()
    work.begin()
    for number, content in enumerate(CONTENTS):
      work.write(number, content)
    calls, part = 0, parts.Parts._part

    def racing(self, number, moment=moment, part=part):
      nonlocal calls
      if self is work:
        calls += 1
        # Four calls list the parts, the others read them.
        if calls == moment + 4:
          assert other.join() == 0
      return part(self, number)

    monkeypatch.setattr(parts.Parts, '_part', racing)
    assert work.join() == 0
    monkeypatch.undo()
    assert_whole(tmp_path)


def test_a_folder_that_cannot_be_written(tmp_path):
  (tmp_path / 'out.parts').write_text('a file')
  with pytest.raises(errors.StorageError, match='cannot write folder'):
    parts.Parts(tmp_path / 'out', PLAN, 1).begin()
