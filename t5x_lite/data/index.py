"""What is worked out of a store once, and kept in a folder of it."""

import contextlib
import hashlib
import json
import os
import time

from t5x_lite import errors
from t5x_lite import storage
from t5x_lite.data import arrays

_FORMAT = 2
_ABANDONED = 86400  # seconds after which what nobody goes on with is deleted


class Index:
  """Arrays and counts that belong to a store.

  Attributes:
    arrays: {name: arrays.Array}.
    counts: {name: int}.
    digest: of all of it.
  """

  def __init__(self, folder):
    """Opens one that was made; a DataError names what is damaged."""
    file = folder / 'manifest.json'
    try:
      text = file.read_text()
      manifest = json.loads(text)
      if _seal(manifest) != manifest.pop('sha256'):
        raise ValueError('manifest is not as it was written')
      self.counts = manifest['counts']
      self.arrays = {
        name: arrays.Array(folder, entry)
        for name, entry in manifest['arrays'].items()
      }
    except (OSError, ValueError, KeyError, TypeError) as e:
      raise arrays.broken(file, repr(e)[:120], 'a manifest', folder) from e
    self.digest = hashlib.sha256(text.encode()).hexdigest()


class Writer:
  """Makes an Index: arrays that grow, and counts."""

  def __init__(self, folder):
    self._folder, self._writers, self.counts = folder, {}, {}

  def append(self, name, values, dtype='<i8'):
    """Adds numbers to an array, which this may be the first of."""
    if name not in self._writers:
      self._writers[name] = arrays.ArrayWriter(self._folder, name, dtype)
    self._writers[name].append(values)

  def close(self):
    """Writes the manifest, last."""
    manifest = {
      'arrays': {name: x.close() for name, x in self._writers.items()},
      'counts': self.counts,
    }
    sealed = manifest | {'sha256': _seal(manifest)}
    storage.write_text(self._folder / 'manifest.json', json.dumps(sealed))


def _seal(manifest):
  """A digest of a manifest, which it carries itself."""
  parts = [manifest['arrays'], manifest['counts']]
  return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def open_or_make(store, name, settings, make):
  """The Index of a name and settings, made if there is none yet.

  Args:
    store: store.Store.
    name: what it is.
    settings: JSON of all that it depends on besides the store.
    make: called with a Writer.
  """
  text = json.dumps([_FORMAT, settings], sort_keys=True)
  key = hashlib.sha256(text.encode()).hexdigest()[:16]
  folder = store.folder / f'{name}-{key}'
  if not (folder / 'manifest.json').exists():
    locks = storage.make_folder(storage.cache_dir() / 'locks')
    # Processes of one run on one machine: the first makes it.
    with storage.lock(locks / f'{store.folder.name}-{name}-{key}', wait=True):
      if not (folder / 'manifest.json').exists():
        _sweep(folder)
        try:
          with storage.publish(folder) as scratch:
            writer = Writer(scratch)
            make(writer)
            writer.close()
        except (OSError, errors.StorageError) as e:
          # Another machine may have been faster with the same.
          with contextlib.suppress(errors.DataError):
            return Index(folder)
          raise errors.StorageError(
            'cannot write beside the tokenised corpus',
            where=folder,
            got=getattr(e, 'got', e),
            fix='free some space, delete that folder, or choose another by '
            '--gin.Data.store=...',
          ) from e
  return Index(folder)


def _sweep(folder):
  """Deletes what makers of an index left that were killed long ago."""
  for old in folder.parent.glob(f'.{folder.name}.*'):
    with contextlib.suppress(OSError):
      if os.path.getmtime(old) < time.time() - _ABANDONED:
        old.rmtree()
