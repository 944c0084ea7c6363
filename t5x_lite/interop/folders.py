"""A folder that others made: what is in it is listed once, and no link."""

import os

from t5x_lite import errors
from t5x_lite import objects
from t5x_lite import storage
from t5x_lite.interop import files


def names(folder):
  """What is directly in a folder; nothing where it is not there."""
  folder = storage.path(folder)
  if not storage.is_local(folder):
    with objects.failures('cannot read', folder):
      return [x.name for x in folder.iterdir()] if folder.is_dir() else []
  try:
    return os.listdir(folder)
  except (FileNotFoundError, NotADirectoryError):
    return []
  except OSError as e:
    raise _unreadable(folder, e) from None


def _unreadable(folder, e):
  return errors.CheckpointError(
    'cannot read folder', where=folder, got=e.strerror
  )


class Folder:
  """All the files under a folder, local or remote.

  Attributes:
    where: the folder.
    sizes: {name relative to it: bytes}.
  """

  def __init__(self, name):
    """Lists it; reads nothing.

    Raises:
      CheckpointError: it is not there, or there is a link or a device in it.
    """
    self.where = storage.path(name)
    if storage.is_local(self.where):
      try:
        self.sizes = dict(self._local(os.fspath(self.where), ''))
      except OSError as e:
        raise _unreadable(self.where, e) from None
    else:
      with objects.failures('cannot read', self.where):
        found = objects.checksums(self.where)
      self.sizes = {name: size for name, (size, _) in found.items()}

  def _local(self, folder, prefix):
    todo = [(folder, prefix)]
    while todo:
      folder, prefix = todo.pop()
      with os.scandir(folder) as entries:
        for entry in entries:
          name = prefix + entry.name
          if entry.is_dir(follow_symlinks=False):
            todo.append((entry.path, f'{name}/'))
          elif entry.is_file(follow_symlinks=False):
            yield name, entry.stat(follow_symlinks=False).st_size
          else:
            raise self._no_file(name, entry.is_symlink())

  def _no_file(self, name, is_link):
    return errors.CheckpointError(
      'not a file',
      where=f'{self.where}/{ascii(name)[1:-1]}',
      got='a link' if is_link else 'a device, a pipe or a socket',
      expected='files and folders alone',
      fix='put the file itself there',
    )

  def read(self, name, most=None):
    """The bytes of a file, as an array.

    Args:
      name: relative to the folder.
      most: how many there may be; default: as many as there were.

    Raises:
      CheckpointError: it is not there, or larger.
    """
    if name not in self.sizes:
      raise errors.CheckpointError('file is missing', where=self.where / name)
    return files.File(self.where / name, self.where).whole(most)
