"""Stores in a bucket, and their copies in the user's cache."""

import re

from t5x_lite import errors
from t5x_lite import storage
from t5x_lite.data import store

_MANIFEST = store.MANIFEST  # written last: a store without it is not there


def fetch(remote, folder):
  """Copies a store from a bucket, if it is there and no copy is here yet.

  Args:
    remote: the store in the bucket.
    folder: the copy; each of its files is checked by its sha256.

  Raises:
    DataError: a file is not as it was written.
  """
  if (folder / _MANIFEST).exists() or not (remote / _MANIFEST).exists():
    return
  with storage.publish(folder) as scratch:
    try:
      for name in storage.checksums(remote):
        if not re.fullmatch(r'(\w[\w.-]*/)?\w[\w.-]*', name):
          raise errors.DataError('odd name of an object', got=repr(name))
        storage.make_folder((scratch / name).parent)
        storage.download(remote / name, scratch / name)
      store.Store(scratch).verify()
    except errors.DataError as e:
      raise errors.DataError(
        'tokenised corpus is damaged',
        where=remote,
        got=e.got,
        expected=e.expected,
        fix='delete it; it is made again from the corpus',
      ) from e


def keep(folder, remote):
  """Copies a store to a bucket, its manifest last, if it is not there yet."""
  if not (remote / _MANIFEST).exists():
    for name in sorted(storage.checksums(folder), key=_MANIFEST.__eq__):
      storage.upload(folder / name, remote / name)
