"""Checksums of files, those of large ones kept while the file is untouched."""

import contextlib
import hashlib
import json
import os
import time

from t5x_lite import errors
from t5x_lite import storage

_LARGE = 1 << 26  # bytes, from which on reading it again takes a while
_SETTLED = 2.0  # seconds after which another change has another time


def _state(name):
  found = os.stat(name)
  # No program can set back the time of the last change of an inode.
  return [
    found.st_size,
    found.st_ino,
    found.st_dev,
    found.st_mtime_ns,
    found.st_ctime_ns,
  ]


def of(name):
  """(bytes, CRC-32C) of a file; see `storage.checksum`."""
  if not storage.is_local(name) or os.path.getsize(name) < _LARGE:
    return storage.checksum(name)
  key = hashlib.sha256(os.path.realpath(name).encode()).hexdigest()[:32]
  kept = storage.cache_dir() / 'checksums' / f'{key}.json'
  before, now = _state(name), time.time()
  with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
    found = json.loads(kept.read_text())
    if found['state'] == before:
      size, digest = found['checksum']
      return size, digest
  checksum = storage.checksum(name)
  if before == _state(name) and now - before[-1] / 1e9 > _SETTLED:
    # It only saves time: a cache that can't be written is no error.
    with contextlib.suppress(OSError, errors.StorageError):
      storage.make_folder(kept.parent)
      storage.write_text(
        kept, json.dumps({'state': before, 'checksum': checksum})
      )
  return checksum
