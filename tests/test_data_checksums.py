"""Large files are read once for their checksum, and again when they change."""

import os
import time

import pytest

from t5x_lite import storage
from t5x_lite.data import checksums


@pytest.fixture
def reads(monkeypatch):
  """What is read, with every file a large one."""
  found, real = [], storage.checksum
  monkeypatch.setattr(checksums, '_LARGE', 0)
  monkeypatch.setattr(
    storage, 'checksum', lambda name: (found.append(name), real(name))[1]
  )
  return found


def aged(file, text):
  file.write_text(text)
  while time.time() - os.stat(file).st_ctime < 0.06:
    time.sleep(0.01)
  return str(file)


def test_an_untouched_file_is_read_once(tmp_path, reads, monkeypatch):
  monkeypatch.setattr(checksums, '_SETTLED', 0.05)
  name = aged(tmp_path / 'a', 'one')
  first = checksums.of(name)
  assert checksums.of(name) == first == storage.checksum(name)
  assert reads == [name, name]  # by `of`, and just now


def test_a_change_is_seen_though_size_and_time_are_the_same(
  tmp_path, reads, monkeypatch
):
  monkeypatch.setattr(checksums, '_SETTLED', 0.05)
  file = tmp_path / 'a'
  first = checksums.of(aged(file, 'one'))
  before = os.stat(file)
  file.write_text('two')
  os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
  assert checksums.of(str(file)) != first
  assert len(reads) == 2


def test_what_may_still_be_written_is_not_kept(tmp_path, reads):
  file = tmp_path / 'a'
  file.write_text('one')
  checksums.of(str(file))
  checksums.of(str(file))
  assert len(reads) == 2


@pytest.mark.parametrize('text', ['', '[]', '{"state": 1}', '{"a'])
def test_a_broken_note_is_made_again(tmp_path, reads, monkeypatch, text):
  monkeypatch.setattr(checksums, '_SETTLED', 0.05)
  monkeypatch.setenv('T5X_LITE_CACHE', str(tmp_path / 'cache'))
  name = aged(tmp_path / 'a', 'one')
  first = checksums.of(name)
  [note] = (tmp_path / 'cache' / 'checksums').iterdir()
  note.write_text(text)
  assert checksums.of(name) == first
  assert checksums.of(name) == first
  assert len(reads) == 2
