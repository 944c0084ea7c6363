import errno
import os

import pytest

from t5x_lite import errors
from t5x_lite import storage


def names(folder):
  return sorted(os.listdir(folder))


def test_paths(monkeypatch, tmp_path):
  monkeypatch.setenv('HOME', str(tmp_path))
  assert str(storage.path('~/runs')) == str(tmp_path / 'runs')
  assert str(storage.path('gs://bucket/a') / 'b') == 'gs://bucket/a/b'
  assert storage.is_local(tmp_path) and not storage.is_local('gs://bucket/a')


def test_cache_follows_the_environment(monkeypatch, tmp_path):
  monkeypatch.setenv('T5X_LITE_CACHE', '/a')
  assert str(storage.cache_dir()) == '/a'
  monkeypatch.delenv('T5X_LITE_CACHE')
  monkeypatch.setenv('XDG_CACHE_HOME', '/b')
  assert str(storage.cache_dir()) == '/b/t5x_lite'
  monkeypatch.delenv('XDG_CACHE_HOME')
  monkeypatch.setenv('HOME', str(tmp_path))
  assert str(storage.cache_dir()) == str(tmp_path / '.cache' / 't5x_lite')


@pytest.mark.parametrize('mode', [0o770, 0o707, 0o777])
def test_a_cache_that_others_can_write_is_refused(tmp_path, mode):
  folder = tmp_path / 'cache'
  assert storage.make_private(folder) == storage.path(folder)
  folder.chmod(mode)
  with pytest.raises(errors.StorageError, match='open to other users'):
    storage.make_private(folder)


def test_a_file_in_the_way_of_a_folder_is_named(tmp_path):
  (tmp_path / 'file').write_text('x')
  for folder in ('file', 'file/below'):
    with pytest.raises(errors.StorageError, match='cannot write folder.*file'):
      storage.make_folder(tmp_path / folder)


def test_a_full_disk_is_told_with_the_file(tmp_path):
  (tmp_path / 'full').symlink_to('/dev/full')
  full = tmp_path / 'full'
  refused = pytest.raises(errors.StorageError, match='cannot write at .*full')
  with refused, storage.lock(full):
    pass
  with refused, storage.writing(full):
    full.write_text('x')


def test_write_text_replaces_the_whole_file(tmp_path):
  storage.write_text(tmp_path / 'a', 'first, and longer')
  storage.write_text(tmp_path / 'a', 'zweiter: ä')
  assert (tmp_path / 'a').read_text(encoding='utf-8') == 'zweiter: ä'
  assert names(tmp_path) == ['a']


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
  tmp_path, monkeypatch
):
  storage.write_text(tmp_path / 'a', 'old')

  def full(_):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(os, 'fsync', full)
  with pytest.raises(errors.StorageError, match='cannot write.*No space left'):
    storage.write_text(tmp_path / 'a', 'new')
  assert (tmp_path / 'a').read_text() == 'old'
  assert names(tmp_path) == ['a']


@pytest.mark.parametrize('name', ['missing/a', 'file/a'])
def test_a_write_to_nowhere_is_one_message(tmp_path, name):
  (tmp_path / 'file').write_text('x')
  with pytest.raises(errors.StorageError, match=name):
    storage.write_text(tmp_path / name, 'text')
  with pytest.raises(errors.StorageError, match=name):
    storage.Appender(tmp_path / name).add('text')


def test_what_is_appended_is_on_the_disk_at_once(tmp_path):
  for text in ('one\n', 'two\n'):
    file = storage.Appender(tmp_path / 'a')
    file.add(text)
    assert (tmp_path / 'a').read_text().endswith(text)
  assert (tmp_path / 'a').read_text() == 'one\ntwo\n'


def test_a_published_folder_appears_whole(tmp_path):
  (tmp_path / 'out').mkdir()  # an empty folder may be in the way
  with storage.publish(tmp_path / 'out') as scratch:
    (scratch / 'below').mkdir()
    (scratch / 'below' / 'a').write_text('x')
    assert names(tmp_path / 'out') == []
  assert (tmp_path / 'out' / 'below' / 'a').read_text() == 'x'
  assert names(tmp_path) == ['out']


@pytest.mark.parametrize('error', [ValueError, KeyboardInterrupt])
def test_a_broken_off_publication_leaves_nothing(tmp_path, error):
  with pytest.raises(error), storage.publish(tmp_path / 'out') as scratch:
    (scratch / 'a').write_text('x')
    raise error
  assert names(tmp_path) == []


def test_a_publication_does_not_replace_what_another_published(tmp_path):
  with (
    pytest.raises(errors.StorageError, match='cannot publish.*not empty'),
    storage.publish(tmp_path / 'out') as scratch,
  ):
    (scratch / 'a').write_text('mine')
    (tmp_path / 'out').mkdir()
    (tmp_path / 'out' / 'a').write_text('theirs')
  assert (tmp_path / 'out' / 'a').read_text() == 'theirs'
  assert names(tmp_path) == ['out']


def test_a_lock_keeps_others_out_until_it_is_let_go(tmp_path):
  held_by = f'process {os.getpid()} on'
  with (
    storage.lock(tmp_path / 'lock'),
    pytest.raises(errors.StorageError, match=held_by),
    storage.lock(tmp_path / 'lock'),
  ):
    pass
  with storage.lock(tmp_path / 'lock'):
    pass


@pytest.mark.parametrize('code', [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_tensorstore_183_a_file_system_without_locks(
  tmp_path, monkeypatch, code
):
  """Is named, and not taken for one where another process trains."""

  def none(*_):
    raise OSError(code, os.strerror(code))

  monkeypatch.setattr(storage.fcntl, 'flock', none)
  with (
    pytest.raises(errors.StorageError, match='takes no locks') as e,
    storage.lock(tmp_path / 'lock'),
  ):
    pass
  assert os.strerror(code) in str(e.value) and 'another process' not in str(e)


def test_what_is_no_file_is_not_replaced(tmp_path):
  pipe, link, file = (tmp_path / name for name in ('pipe', 'link', 'file'))
  os.mkfifo(pipe)
  with pytest.raises(errors.StorageError, match='what is no file'):
    storage.write_bytes(pipe, b'a')
  with (
    pytest.raises(errors.StorageError, match='what is no file'),
    storage.replacing(pipe, tmp_path),
  ):
    pass
  assert pipe.is_fifo()
  link.symlink_to(file)
  storage.write_bytes(link, b'b')
  assert link.is_symlink() and file.read_bytes() == b'b'
