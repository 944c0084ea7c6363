"""TensorStore's OCDBT: a tree of many small files, kept in a few large ones."""

import numpy as np
import tensorstore

from t5x_lite import errors
from t5x_lite import storage

MANIFEST = 'manifest.ocdbt'


class Store:
  """As folders.Folder, of the names in such a tree.

  Attributes:
    where: the folder.
    sizes: {name: bytes}, what all of the tree's files have together: the share
      of one name is not told.
  """

  def __init__(self, folder):
    """Lists it.

    Args:
      folder: folders.Folder, in which no file is a link.

    Raises:
      CheckpointError: its files are damaged.
    """
    self.where = folder.where
    self._store, names = self._wait(self._open)
    total = sum(folder.sizes.values())
    self.sizes = {name.decode(errors='replace'): total for name in names}

  def _open(self):
    name = f'{storage.absolute(self.where)}/'
    if storage.is_local(name):
      base = {'driver': 'file', 'path': name}
    else:
      bucket, path = name.removeprefix('gs://').split('/', 1)
      base = {'driver': 'gcs', 'bucket': bucket, 'path': path}
    spec = {'driver': 'ocdbt', 'base': base, 'assume_config': False}
    store = tensorstore.KvStore.open(spec).result()
    return store, store.list().result()

  def _wait(self, run, name=MANIFEST):
    try:
      return run()
    except (ValueError, KeyError, OSError, RuntimeError) as e:
      raise errors.CheckpointError(
        'cannot read from a checkpoint',
        where=self.where / name,
        got=ascii(str(e).split(' [')[0])[1:-1],
        fix='copy the whole checkpoint again',
      ) from None

  def read(self, name, most=None):
    """The bytes of a name, as an array; see folders.Folder."""
    found = self._wait(lambda: self._store.read(name).result(), name)
    if found.state != 'value' or (most and len(found.value) > most):
      raise errors.CheckpointError(
        'value is missing or too large', where=self.where / name
      )
    return np.frombuffer(found.value, np.uint8)
