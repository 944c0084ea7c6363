"""Files that others made: read in parts, and only from where they may be.

The rules for them all are here and, for folders of which no link is followed,
in `folders`: regular files alone, in the folder that names them, of a size that
is known before they are read, and as JSON objects that say nothing twice.
"""

import json
import os
import stat

import numpy as np

from t5x_lite import errors
from t5x_lite import objects
from t5x_lite import storage

_JSON = 100_000_000  # bytes of a file of JSON, unless said otherwise


class File:
  """A regular file or an object, of which any range of bytes can be read.

  Attributes:
    where: its name, for messages.
    size: bytes.
  """

  def __init__(self, name, root=None):
    """Looks at it, and opens nothing that is no regular file.

    Args:
      name: the path of the file. What a user names may be a link.
      root: the folder that it has to be in, if another file named it; see
        `inside`.

    Raises:
      CheckpointError: it is not there, is no file, or is somewhere else.
    """
    self.where = storage.path(name)
    self._local = storage.is_local(self.where)
    if not self._local:
      self.size = _object_size(self.where)
      return
    self._real = os.path.realpath(self.where)
    if root is not None and not _is_inside(self._real, root):
      raise errors.CheckpointError(
        'file is a link out of its folder',
        where=self.where,
        got=self._real,
        expected=f'a file in {os.path.realpath(root)}',
        fix='put the file itself there',
      )
    try:
      self._seen = os.stat(self._real)
    except OSError as e:
      raise errors.CheckpointError(
        'cannot read file', where=self.where, got=e.strerror
      ) from None
    if not stat.S_ISREG(self._seen.st_mode):
      raise errors.CheckpointError(
        'not a file',
        where=self.where,
        got='a folder'
        if stat.S_ISDIR(self._seen.st_mode)
        else 'a device, a pipe or a socket',
      )
    self.size = self._seen.st_size

  def read(self, start, count):
    """Bytes [start, start + count), all of which must be there."""
    return self.array(start, np.dtype(np.uint8), (count,)).tobytes()

  def whole(self, most=None):
    """All its bytes, as an array.

    Args:
      most: how many there may be; default: as many as there were.
    """
    if most is not None and self.size > most:
      raise errors.CheckpointError(
        'file is too large',
        where=self.where,
        got=f'{self.size:,} bytes',
        expected=f'{most:,} or fewer',
      )
    return self.array(0, np.dtype(np.uint8), (self.size,))

  def array(self, start, dtype, shape):
    """An array of the bytes from `start` on."""
    if not self._local:
      array = np.empty(shape, dtype)
      if array.nbytes:
        data = objects.read(self.where, start, start + array.nbytes)
        if len(data) != array.nbytes:
          raise self._changed()
        array = np.frombuffer(data, dtype).reshape(shape)
      return array
    try:
      # A pipe put in its place meanwhile must not be waited for.
      found = os.open(
        self._real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
      )
      with open(found, 'rb', buffering=0) as f:
        now = os.fstat(found)
        if not os.path.samestat(now, self._seen) or now.st_size != self.size:
          raise self._changed()
        array = np.empty(shape, dtype)
        left = memoryview(array.reshape(-1).view(np.uint8))
        f.seek(start)
        while left and (count := f.readinto(left)):
          left = left[count:]
    except OSError as e:
      raise errors.CheckpointError(
        'cannot read file', where=self.where, got=e.strerror
      ) from None
    if left:
      raise self._changed()
    return array

  def _changed(self):
    return errors.CheckpointError(
      'file changed while it was read', where=self.where, fix='run again'
    )


def _object_size(name):
  try:
    with objects.failures('cannot read', name):
      return objects.checksum(name)[0]
  except errors.StorageError as e:
    if isinstance(e.__cause__, FileNotFoundError):
      raise errors.CheckpointError('no such object', where=name) from None
    raise


def _is_inside(real, root):
  """Whether a real path is in a folder, or in the `blobs` that belong to it.

  In the cache of huggingface_hub a model is the folder `snapshots/<commit>`,
  of links to `../../blobs/<digest>`: no other way out of a folder is taken.
  """
  root = os.path.realpath(root)
  roots = [root]
  above, name = os.path.split(os.path.dirname(root))
  if name == 'snapshots':
    roots.append(os.path.join(above, 'blobs'))
  return any(os.path.commonpath([real, folder]) == folder for folder in roots)


def inside(folder, name, listed):
  """The File of a name that another file gave.

  Args:
    folder: where it has to be.
    name: relative to it.
    listed: the file that names it, for messages.
  """
  parts = name.split('/') if isinstance(name, str) else ['']
  if (
    not all(parts)
    or {'.', '..'} & set(parts)
    or '\\' in name
    or not name.isprintable()
  ):
    raise errors.CheckpointError(
      'file names another that is not in its folder',
      where=listed,
      got=ascii(name),
      expected='a name relative to the folder, without `..`',
    )
  return File(storage.path(folder) / name, folder)


def read_json(folder, name, most=_JSON):
  """The JSON object of a file in a folder.

  Raises:
    CheckpointError: it is not there, larger than `most` bytes, or no such file.
  """
  file = inside(folder, name, folder)
  return parse_json(file.whole(most), file.where)


def parse_json(data, where):
  """A JSON object from bytes of UTF-8 that name no key twice.

  Raises:
    CheckpointError: it is anything else.
  """
  try:
    found = json.loads(
      bytes(data).decode('utf-8-sig'),  # as Windows writes it
      object_pairs_hook=_once,
      parse_int=_whole,
    )
    if isinstance(found, dict):
      return found
    got = f'a JSON {type(found).__name__}'
  except (ValueError, RecursionError) as e:
    got = str(e)
  raise errors.CheckpointError(
    'not a JSON object of text in UTF-8', where=where, got=ascii(got)[1:-1]
  )


def _once(pairs):
  found = {}
  for name, value in pairs:
    if name in found:
      raise ValueError(f'the key {name!r} twice')
    found[name] = value
  return found


def _whole(text):
  if text == '-0':
    raise ValueError(text)  # as the library of safetensors has it: no count
  return int(text)
