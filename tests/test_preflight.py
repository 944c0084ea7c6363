"""What must hold of all processes before the first step, and who is named."""

import errno
import os
import re
import shutil
import subprocess
import sys
import threading

import jax
import pytest

from t5x_lite import errors
from t5x_lite import preflight
from t5x_lite import processes
from t5x_lite import storage
from tests import runs
from tests import test_processes

ROOT = os.getcwd()


# -- in threads that take themselves for processes ----------------------------


@pytest.fixture
def ranks(monkeypatch):
  """Runs a function of the index in so many ranks: what each raised."""
  me = threading.local()

  def run(count, function):
    barrier, values, said = threading.Barrier(count, timeout=10), {}, {}

    def first(make):
      if me.index == 0:
        try:
          said['value'], said['error'] = make(), None
        except errors.UserError as e:
          said['error'] = e
      barrier.wait()
      value, error = said.get('value'), said['error']
      barrier.wait()
      if error:
        raise error
      return value

    def agree(value, check):
      values[me.index] = value
      barrier.wait()
      first(lambda: check([values[n] for n in range(count)]))

    monkeypatch.setattr(processes, 'first', first)
    monkeypatch.setattr(processes, 'agree', agree)
    monkeypatch.setattr(processes, 'count', lambda: count)
    monkeypatch.setattr(processes, 'index', lambda: me.index)
    found = [None] * count

    def work(index):
      me.index = index
      try:
        function(index)
      except errors.UserError as e:
        found[index] = e

    threads = [threading.Thread(target=work, args=[n]) for n in range(count)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    return found

  run.me = me
  return run


def said_by_all(found, cls):
  """The one message that all ranks raised."""
  assert {type(e) for e in found} == {cls}
  [text] = {str(e) for e in found}
  return text


@pytest.fixture
def devices(ranks, monkeypatch):
  """Checks ranks of these devices, and of these indices to JAX."""

  def check(counts, expected=None, indices=None, count=None):
    me, indices = ranks.me, indices or range(len(counts))
    total = len(counts)
    monkeypatch.setattr(jax, 'process_index', lambda: indices[me.index])
    monkeypatch.setattr(jax, 'process_count', lambda: count or total)
    monkeypatch.setattr(jax, 'local_device_count', lambda: counts[me.index])
    return ranks(total, lambda _: preflight.check_devices(expected))

  return check


@pytest.mark.parametrize('counts, expected', [([4, 4], 8), ([4, 3], None)])
def test_the_devices_that_a_run_must_have(devices, counts, expected):
  assert devices(counts, expected) == [None, None]


@pytest.mark.parametrize(
  'counts, expected, said',
  [
    ([4, 4, 4, 3], 16, 'too few devices; got 15 (process 3: 3, the others: 4)'),
    ([4, 4], 16, 'too few devices; got 8 (4 each), expected 16, as --device'),
    ([4, 4, 4], 8, 'too many devices; got 12 (4 each), expected 8'),
    ([4] * 9 + [0] * 7, 64, '36 (7 processes (9, 10, 11, 12, ...): 0, the oth'),
  ],
)
def test_processes_that_lack_devices_are_named(devices, counts, expected, said):
  assert said in said_by_all(devices(counts, expected), errors.DeviceError)


def test_processes_that_jax_counts_otherwise_are_named(devices):
  assert devices([1, 1, 1], None, [0, 2, 1]) == [None] * 3
  text = said_by_all(devices([1, 1, 1], None, [0, 1, 1]), errors.DeviceError)
  assert 'got process 1 is process 1 of 3 to JAX, expected each of 3' in text
  text = said_by_all(devices([1, 1], count=4), errors.DeviceError)
  assert 'got process 0 is process 0 of 4 to JAX, expected each of 2' in text


def test_one_process_has_a_number_of_devices_too(command):
  options = 'evaluate', '--workdir=no_such', '--device_count=9'
  assert 'got 8, expected 9' in command(*options, code=6)


def test_a_workdir_that_all_can_write_is_left_as_it_was(ranks, tmp_path):
  folder = tmp_path / 'new' / 'run'
  assert ranks(3, lambda _: preflight.check_workdir(folder)) == [None] * 3
  assert list(tmp_path.rglob('*')) == [tmp_path / 'new', tmp_path / 'new/run']


def test_orbax_999_a_workdir_that_is_not_shared_is_refused(ranks, tmp_path):
  """orbax#999: a save by several hosts to folders of their own."""
  folders = [tmp_path / name for name in ('a', 'a', 'b', 'a')]
  found = ranks(4, lambda n: preflight.check_workdir(folders[n]))
  text = said_by_all(found, errors.StorageError)
  assert 'got process 2 with a folder of that name of its own' in text
  assert 'gs://' in text
  assert not [p for p in tmp_path.rglob('*') if p.is_file()]


@pytest.mark.parametrize('blind, hidden', [(1, '-0'), (0, '-1')])
def test_who_does_not_see_process_0_or_is_not_seen_is_named(
  ranks, tmp_path, monkeypatch, blind, hidden
):
  """As where a cache on the way hides what others wrote."""
  real = storage.path

  def path(name):
    hides = getattr(ranks.me, 'index', 0) == blind and str(name) == str(
      tmp_path
    )
    return Stale(name) if hides else real(name)

  class Stale(type(tmp_path)):
    def __truediv__(self, name):
      return super().__truediv__('no' if name.endswith(hidden) else name)

  monkeypatch.setattr(storage, 'path', path)
  found = ranks(2, lambda _: preflight.check_workdir(tmp_path))
  assert 'got process 1 with' in said_by_all(found, errors.StorageError)


@pytest.mark.parametrize('number', [errno.EACCES, errno.EROFS, errno.ENOSPC])
@pytest.mark.parametrize('who', [[0], [2], [1, 2]])
def test_processes_that_cannot_write_are_named(
  ranks, tmp_path, monkeypatch, number, who
):
  write = storage.write_bytes

  def fail(name, data):
    if ranks.me.index in who:
      raise errors.StorageError('x', where=name, got=os.strerror(number))
    write(name, data)

  monkeypatch.setattr(storage, 'write_bytes', fail)
  found = ranks(3, lambda _: preflight.check_workdir(tmp_path))
  text = said_by_all(found, errors.StorageError)
  names = {1: f'process {who[0]}', 2: '2 processes (1, 2)'}[len(who)]
  assert f'got {os.strerror(number)} in {names}; fix' in text
  assert not list(tmp_path.iterdir())


def test_one_process_leaves_nothing_either(tmp_path):
  preflight.check_workdir(tmp_path / 'run')
  assert list(tmp_path.rglob('*')) == [tmp_path / 'run']
  (tmp_path / 'file').touch()
  with pytest.raises(errors.StorageError, match='cannot write folder'):
    preflight.check_workdir(tmp_path / 'file' / 'run')


def test_training_begins_by_these_checks(command, monkeypatch, tmp_path):
  """Before a word of the corpus is read."""

  def refuse(workdir):
    raise errors.StorageError('not this one', where=workdir)

  monkeypatch.setattr(preflight, 'check_workdir', refuse)
  options = '--corpus=no_such.txt', f'--workdir={tmp_path}'
  assert f'not this one at {tmp_path}' in command('train', *options, code=7)


# -- in processes -------------------------------------------------------------


TRAIN = (
  *('-m', 't5x_lite', 'train', '--corpus=no_such.txt'),
  *('--gin.Run.batch_size=12', '--initialization_timeout=60'),
)
# The same checks without what else a command loads.
LIGHT = """
import sys
from t5x_lite import errors, preflight, processes
workdir, address, count, index = (s.split('=')[1] for s in sys.argv[1:])
processes.join(processes.Place(address, int(count), int(index)), {})
try:
  preflight.check_devices()
  preflight.check_workdir(workdir)
except errors.UserError as e:
  processes.fail(e, str(e))
"""


def refused(count, *arguments, of=(), started=None, program=TRAIN):
  """Trains in processes that are to end by themselves, and alike.

  Args:
    count: of the processes.
    *arguments: of all of them.
    of: {index: (its current folder, its environment)} where it differs.
    started: the indices of those that come; None: all.
    program: what they run.

  Returns:
    (their exit code, the line that process 0 printed; the others print none).
  """
  address, running = test_processes.free_address(), {}
  for index in range(count) if started is None else started:
    folder, own = dict(of).get(index, (ROOT, {}))
    place = {
      'coordinator_address': address,
      'process_count': count,
      'process_index': index,
    }
    running[index] = subprocess.Popen(
      [sys.executable, *program, *arguments]
      + [f'--{k}={v}' for k, v in place.items()],
      cwd=folder,
      env=os.environ | {'JAX_NUM_CPU_DEVICES': '2'} | own,
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
  try:
    found = {n: runs.finish(process) for n, process in running.items()}
  finally:
    for process in running.values():
      process.kill()
      process.wait()
  codes = {code for code, _ in found.values()}
  assert len(codes) == 1, found
  assert not any(output for n, (_, output) in found.items() if n), found
  assert found[0][1].count('\n') == 1
  return codes.pop(), found[0][1]


@pytest.fixture
def folders(tmp_path):
  """Two folders to be started in."""
  for name in ('a', 'b'):
    (tmp_path / name).mkdir()
  return tmp_path / 'a', tmp_path / 'b'


@pytest.mark.parametrize(
  'program',
  [
    pytest.param(('-c', LIGHT), id='light'),
    pytest.param(TRAIN, id='train', marks=pytest.mark.parallel),
  ],
)
def test_two_machines_with_a_workdir_of_the_same_name(folders, program):
  """Each writes where no other looks."""
  places = dict(enumerate((folder, {}) for folder in folders))
  code, said = refused(2, '--workdir=runs/mine', of=places, program=program)
  assert code == 7
  assert 'got process 1 with a folder of that name of its own' in said
  for folder in folders:  # nothing was begun, and nothing is left
    assert not [p for p in folder.rglob('*') if p.is_file()]


@pytest.mark.parallel
def test_a_workdir_that_one_of_three_cannot_write(folders):
  (folders[1] / 'runs').touch()
  places = {0: (folders[0], {}), 1: (folders[0], {}), 2: (folders[1], {})}
  code, said = refused(3, '--workdir=runs/mine', of=places)
  assert code == 7 and re.search('got .+ in process 2; fix', said)


@pytest.mark.parallel
def test_one_device_too_few(tmp_path):
  places = {2: (ROOT, {'JAX_NUM_CPU_DEVICES': '1'})}
  options = f'--workdir={tmp_path}/run', '--device_count=6'
  code, said = refused(3, *options, of=places)
  assert code == 6
  assert 'got 5 (process 2: 1, the others: 2), expected 6' in said
  # Where no number was given, the recipe's mesh has one.
  options = f'--workdir={tmp_path}/run', '--gin.Mesh.tensor=2'
  code, said = refused(3, *options, of=places)
  assert code == 2
  assert 'fix: --gin.Mesh.tensor=1, or --gin.Mesh.tensor=5' in said


@pytest.mark.parallel
def test_one_process_with_another_version(tmp_path):
  other = tmp_path / 'flax-0.0.1.dist-info'
  other.mkdir()
  (other / 'METADATA').write_text('Name: flax\nVersion: 0.0.1\n')
  places = {1: (ROOT, {'PYTHONPATH': str(tmp_path)})}
  code, said = refused(3, f'--workdir={tmp_path}/run', of=places)
  assert code == 6
  assert 'in the version of flax; got 0.0.1 in process 1, expected 0.12' in said


@pytest.mark.parallel
def test_one_process_with_other_code(tmp_path):
  for folder in ('t5x_lite', 'gin'):
    shutil.copytree(f'{ROOT}/{folder}', tmp_path / folder)
  with open(tmp_path / 't5x_lite/train.py', 'a', encoding='utf-8') as f:
    f.write('# mended')
  code, said = refused(3, f'--workdir={tmp_path}/run', of={2: (tmp_path, {})})
  assert code == 6
  assert 'differ in the code of t5x_lite/train.py; got' in said


@pytest.mark.parallel
def test_one_process_that_never_comes(tmp_path):
  options = f'--workdir={tmp_path}/run', '--initialization_timeout=4'
  code, said = refused(3, *options, started=(0, 2))
  assert code == 6
  assert '1 of 3 processes did not call in within 4 s' in said
  assert 'no word of process 1' in said
