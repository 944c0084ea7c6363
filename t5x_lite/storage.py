"""The one seam to storage: every path may be local or `gs://`.

Nothing else in the project assumes rename, append or fsync.
"""

import contextlib
import fcntl
import os
import platform
import shutil
import tempfile
import uuid

from etils import epath

from t5x_lite import errors


def path(name):
  """`name` as a path object, local (with ~ expanded) or remote."""
  name = os.path.expanduser(os.fspath(name))
  try:
    if b'\0' in name.encode():
      raise ValueError
  except ValueError:
    raise errors.ConfigError(
      'path is not UTF-8 text', got=ascii(name), fix='rename it'
    ) from None
  return epath.Path(name)


def absolute(name):
  """As `path`, from the root of its file system, as Orbax wants it."""
  return path(os.path.abspath(path(name)) if is_local(name) else name)


def is_local(name):
  return '://' not in os.fspath(name)


def cache_dir():
  """Where stores and compiled programs are kept between runs."""
  root = os.environ.get('T5X_LITE_CACHE')
  if not root:
    root = os.path.join(
      os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache'),
      't5x_lite',
    )
  return path(root)


def make_private(folder):
  """Makes a local folder that only its owner can write, or refuses it.

  Compiled programs are code: a cache that others can write is refused.
  """
  folder = path(folder)
  make_folder(folder.parent)
  with contextlib.suppress(OSError):
    os.mkdir(folder, 0o700)  # a umask of 002 would make it the group's too
  make_folder(folder)
  found = os.stat(folder)
  if found.st_uid != os.getuid() or found.st_mode & 0o022:
    raise errors.StorageError(
      'folder is open to other users',
      where=folder,
      expected='to be owned by you and writable by nobody else',
      fix=f'chmod go-w {folder}, or choose another by T5X_LITE_CACHE',
    )
  return folder


def make_folder(folder):
  """Makes a folder and its parents, and checks that it can be written."""
  folder = path(folder)
  try:
    folder.mkdir(parents=True, exist_ok=True)
    if is_local(folder) and not os.access(folder, os.W_OK | os.X_OK):
      raise PermissionError('not writable')
  except OSError as e:
    raise errors.StorageError(
      'cannot write folder',
      where=folder,
      got=e.strerror or str(e),
      fix='choose another folder, or change its permissions',
    ) from e
  return folder


@contextlib.contextmanager
def lock(file, wait=False):
  """Keeps other processes of this machine out meanwhile, by a local file.

  The kernel lets go when the process ends, however it ends.

  Args:
    file: made if it is not there.
    wait: until it is free; else a StorageError says who holds it.
  """
  if not is_local(file):
    yield
    return
  with open(path(file), 'a+', encoding='utf-8') as f:
    try:
      fcntl.flock(f, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as e:
      f.seek(0)
      raise errors.StorageError(
        'another process trains here',
        where=path(file).parent,
        got=f.read().strip() or None,
        fix='wait for it, stop it, or choose another --workdir',
      ) from e
    f.truncate(0)
    f.write(f'process {os.getpid()} on {platform.node()}\n')
    f.flush()
    yield


def _sync(name):
  descriptor = os.open(name, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def sync(folder):
  """Returns once a local folder, and all that is in it, is on the disk."""
  if is_local(folder):
    for root, _, files in os.walk(folder):
      for name in files:
        _sync(os.path.join(root, name))
      _sync(root)


def append_text(name, text):
  """Adds to the end of a file; what is added outlives the process.

  An object store has no append: there the whole object is written again.
  """
  name = path(name)
  if not is_local(name):
    write_text(name, (name.read_text() if name.exists() else '') + text)
    return
  try:
    with open(name, 'a', encoding='utf-8') as f:
      f.write(text)
  except OSError as e:
    raise errors.StorageError('cannot write', where=name, got=e) from e


def write_bytes(name, data):
  """Writes a whole file so that a reader sees the old or the new one."""
  name = path(name)
  if not is_local(name):
    name.write_bytes(data)  # an object store publishes whole objects
    return
  new = name.parent / f'.{name.name}.{uuid.uuid4().hex}'
  try:
    with open(new, 'wb') as f:
      f.write(data)
      f.flush()
      os.fsync(f.fileno())
    os.replace(new, name)
    _sync(name.parent)
  except OSError as e:
    with contextlib.suppress(OSError):
      new.unlink()
    raise errors.StorageError('cannot write', where=name, got=e) from e


def write_text(name, text):
  """Writes a whole UTF-8 file, as `write_bytes` does."""
  write_bytes(name, text.encode())


@contextlib.contextmanager
def replacing(name, folder):
  """An open binary file that becomes `name`, whole, when the block ends well.

  For what is too large for memory; see `write_bytes`.

  Args:
    name: the file.
    folder: holds it until then; on the same disk where that is local.
  """
  name = path(name)
  with tempfile.TemporaryDirectory(
    dir=folder if is_local(folder) else None, ignore_cleanup_errors=True
  ) as scratch:
    new = os.path.join(scratch, 'new')
    with open(new, 'wb') as f:
      yield f
      f.flush()
      os.fsync(f.fileno())
    try:
      if is_local(name):
        os.replace(new, name)
        _sync(name.parent)
      else:
        with open(new, 'rb') as f, name.open('wb') as out:
          shutil.copyfileobj(f, out)
    except OSError as e:
      raise errors.StorageError('cannot write', where=name, got=e) from e


@contextlib.contextmanager
def publish(folder):
  """A scratch folder that becomes `folder`, whole, when the block ends well.

  Local folders are synced and renamed. On an object store the files are
  written in place; readers wait for the file that the caller writes last.
  """
  folder = path(folder)
  if not is_local(folder):
    folder.mkdir(parents=True, exist_ok=True)
    yield folder
    return
  make_folder(folder.parent)
  scratch = folder.parent / f'.{folder.name}.{uuid.uuid4().hex}'
  scratch.mkdir()
  try:
    yield scratch
    try:
      sync(scratch)
      with contextlib.suppress(FileNotFoundError):
        if not any(folder.iterdir()):
          folder.rmdir()
      os.rename(scratch, folder)
      _sync(folder.parent)
    except OSError as e:
      raise errors.StorageError('cannot publish', where=folder, got=e) from e
  except BaseException:
    scratch.rmtree(missing_ok=True)
    raise
