"""The one seam to storage: every path may be local or `gs://`.

Nothing else in the project assumes rename, append or fsync. What is written to
`gs://` is a whole object or nothing, and what may pass is tried again.
"""

import contextlib
import fcntl
import os
import platform
import tempfile
import time
import uuid

from etils import epath
import google_crc32c

from t5x_lite import errors
from t5x_lite import objects


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
  if not is_local(name):
    objects.filesystem()
  return epath.Path(name)


def absolute(name):
  """As `path`, from the root of its file system, as Orbax wants it."""
  return path(os.path.abspath(path(name)) if is_local(name) else name)


def is_local(name):
  """Whether a path is local; if not, it is of a bucket."""
  name = os.fspath(name)
  if '://' in name and not name.startswith('gs://'):
    raise errors.ConfigError(
      'no such kind of storage',
      got=name,
      expected='a local path, or gs://BUCKET/...',
    )
  return '://' not in name


def cache_dir():
  """Where stores and compiled programs are kept between runs."""
  root = os.environ.get('T5X_LITE_CACHE')
  if not root:
    root = os.path.join(
      os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache'),
      't5x_lite',
    )
  return path(root)


def make_private(folder, variable='T5X_LITE_CACHE'):
  """Makes a local folder that only its owner can write, or refuses it.

  Compiled programs are code: a cache that others can write is refused. The
  variable of the environment is the one by which it may be another.
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
      fix=f'chmod go-w {folder}, or choose another by {variable}',
    )
  return folder


def make_folder(folder, keep=False):
  """Makes a folder and its parents, and checks that it can be written.

  An object store has no folders: the first object tells, or with `keep` one
  that stays, so that the folder is there when it is empty.
  """
  folder = path(folder)
  if not is_local(folder):
    if keep:
      write_bytes(folder / '.keep', b'')
    return folder
  try:
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
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
  """Keeps other processes out meanwhile, by a file.

  By a local one, those of this machine: the kernel lets go when the process
  ends, however it ends. See `objects.lock` for `gs://`.

  Args:
    file: made if it is not there.
    wait: until it is free, of a local file; else a StorageError says who holds
      it.
  """
  if not is_local(file):
    with objects.lock(path(file)):
      yield
    return
  with open(path(file), 'a+', encoding='utf-8') as f:
    try:
      fcntl.flock(f, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as e:
      if not isinstance(e, BlockingIOError):
        raise errors.StorageError(
          'cannot lock a file: its file system takes no locks',
          where=path(file),
          got=e.strerror,
          fix='mount it with them (Lustre: -o flock), or choose another folder',
        ) from e
      f.seek(0)
      raise errors.StorageError(
        'another process trains here',
        where=path(file).parent,
        got=f.read().strip() or None,
        fix='wait for it, stop it, or choose another --workdir',
      ) from e
    with writing(file):
      f.truncate(0)
      # Not by `f`, which would try again what failed as it is closed.
      os.write(
        f.fileno(), f'process {os.getpid()} on {platform.node()}\n'.encode()
      )
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


class Appender:
  """Adds to the end of a file; a context manager.

  What is added to a local file outlives the process at once. An object store
  has no append: there the whole object is written again, now and then, so that
  this takes no more than a twentieth of the time, and by `flush`.
  """

  _SECONDS = 20.0  # between such writes, at least

  def __init__(self, name):
    self._name = path(name)
    self._remote = not is_local(name)
    self._due = time.monotonic() + self._SECONDS
    self._text = (
      self._name.read_text() if self._remote and self._name.exists() else ''
    )
    self._written = len(self._text)

  def __enter__(self):
    return self

  def __exit__(self, kind, *_):
    self.flush()

  def add(self, text):
    """Adds to the end."""
    if self._remote:
      self._text += text
      if time.monotonic() >= self._due:
        self.flush()
      return
    with writing(self._name), open(self._name, 'a', encoding='utf-8') as f:
      f.write(text)

  def flush(self):
    """Returns once all that was added is stored."""
    if len(self._text) > self._written:
      begun = time.monotonic()
      write_text(self._name, self._text)
      self._written, ended = len(self._text), time.monotonic()
      self._due = ended + max(self._SECONDS, 20 * (ended - begun))


def _target(name):
  """The local file behind a name's links, in whose place a new one may come.

  Raises:
    StorageError: it is a device, a pipe or a folder. To put a file in the
      place of `/dev/null` would be the end of many programs.
  """
  real = os.path.realpath(name)
  # To etils a device is a file, too.
  if os.path.exists(real) and not os.path.isfile(real):
    raise errors.StorageError(
      'cannot write', where=name, got='what is no file', expected='a file'
    )
  return path(real)


@contextlib.contextmanager
def writing(name, what='cannot write'):
  """Around what writes a local file or folder: an OSError names it."""
  try:
    yield
  except OSError as e:
    raise errors.StorageError(what, where=name, got=e.strerror or e) from e


def write_bytes(name, data):
  """Writes a whole file so that a reader sees the old or the new one."""
  name = path(name)
  if not is_local(name):
    objects.write(name, data)
    return
  name = _target(name)
  new = name.parent / f'.{name.name}.{uuid.uuid4().hex}'
  with writing(name):
    try:
      with open(new, 'wb') as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
      os.replace(new, name)
      _sync(name.parent)
    except OSError:
      with contextlib.suppress(OSError):
        new.unlink()
      raise


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
  name = _target(name) if is_local(name) else path(name)
  with tempfile.TemporaryDirectory(
    dir=folder if is_local(folder) else None, ignore_cleanup_errors=True
  ) as scratch:
    new = os.path.join(scratch, 'new')
    with open(new, 'wb') as f:
      yield f
      f.flush()
      os.fsync(f.fileno())
    with writing(name):
      if is_local(name):
        os.replace(new, name)
        _sync(name.parent)
      else:
        upload(new, name)


@contextlib.contextmanager
def publish(folder):
  """A scratch folder that becomes `folder`, whole, when the block ends well.

  Args:
    folder: a local folder; synced and renamed.
  """
  folder = path(folder)
  make_folder(folder.parent)
  scratch = folder.parent / f'.{folder.name}.{uuid.uuid4().hex}'
  scratch.mkdir()
  try:
    yield scratch
    with writing(folder, 'cannot publish'):
      sync(scratch)
      with contextlib.suppress(FileNotFoundError):
        if not any(folder.iterdir()):
          folder.rmdir()
      os.rename(scratch, folder)
      _sync(folder.parent)
  except BaseException:
    scratch.rmtree(missing_ok=True)
    raise


# -- between the two kinds ----------------------------------------------------


def checksums(folder):
  """{name in the folder: (bytes, CRC-32C)} of all files under it.

  Of objects it is what the store tells, without reading them.
  """
  folder = path(folder)
  if not is_local(folder):
    return objects.checksums(folder)
  found = {}
  for root, _, files in os.walk(folder):
    for name in files:
      file = os.path.join(root, name)
      found[os.path.relpath(file, folder)] = _checksum(file)
  return found


def checksum(name):
  """(bytes, CRC-32C) of one file; see `checksums`."""
  return _checksum(name) if is_local(name) else objects.checksum(path(name))


def _checksum(file):
  size, digest = 0, google_crc32c.Checksum()
  with open(file, 'rb') as f:
    while block := f.read(1 << 20):
      size += len(block)
      digest.update(block)
  return size, int.from_bytes(digest.digest(), 'big')


def download(name, file):
  """Copies an object to a local file, whole, or raises a StorageError."""
  with objects.failures('cannot read', name):
    wanted = objects.checksum(name)
    objects.filesystem().get_file(str(name), str(file))
  if (found := _checksum(file)) != wanted:
    raise errors.StorageError(
      'object came as other bytes than are stored',
      where=name,
      got='{} bytes of CRC-32C {:08x}'.format(*found),
      expected='{} bytes of CRC-32C {:08x}'.format(*wanted),
      fix='try again',
    )


def upload(file, name):
  """Copies a local file to an object, whole, or raises a StorageError."""
  with objects.failures('cannot write', name):
    objects.filesystem().put_file(str(file), str(name))
    if objects.checksum(name) != _checksum(file):
      raise OSError('other bytes arrived than were sent')


def copy_tree(folder, to):
  """Copies each file of a local folder into another folder, local or remote."""
  for root, _, files in os.walk(folder):
    below = os.path.relpath(root, folder)
    for name in files:
      file = os.path.join(root, name)
      target = path(to) / below / name
      if is_local(to):
        make_folder(target.parent)
        write_bytes(target, path(file).read_bytes())
      else:
        upload(file, target)


@contextlib.contextmanager
def as_local(name):
  """A local file of the same content, for who can read no other, meanwhile."""
  if is_local(name):
    yield os.fspath(name)
    return
  folder = make_folder(cache_dir())
  with tempfile.TemporaryDirectory(dir=folder, prefix='copy.') as scratch:
    file = os.path.join(scratch, os.path.basename(os.fspath(name)))
    download(path(name), file)
    yield file
