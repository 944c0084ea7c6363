"""`digests.json`: the size and SHA-256 of each file of an export."""

import hashlib
import json
import os

import numpy as np

from t5x_lite import errors
from t5x_lite import storage
from t5x_lite.interop import files

NAME = 'digests.json'
_BLOCK = 1 << 22


def write(folder, digests):
  """Adds files to the list of a folder, or begins it.

  Args:
    folder: local or remote.
    digests: {name in the folder: (SHA-256 in hexadecimal, bytes)}.
  """
  found = _read(folder)['files'] if listed(folder) else {}
  found |= {
    name: {'sha256': digest, 'size': size}
    for name, (digest, size) in digests.items()
  }
  text = json.dumps({'files': found}, indent=2) + '\n'
  storage.write_text(storage.path(folder) / NAME, text)


def write_rest(folder):
  """Adds what a local folder holds and the list does not."""
  folder = storage.path(folder)
  there = _read(folder)['files'] if listed(folder) else {}
  rest = {}
  for root, _, names in os.walk(folder):
    for name in sorted(names):
      name = os.path.relpath(os.path.join(root, name), folder)
      if name not in there and name != NAME:
        rest[name] = _digest(files.inside(folder, name, folder))
  write(folder, rest)


def listed(folder):
  """Whether there is such a list in a folder."""
  return (storage.path(folder) / NAME).exists()


def check(folder):
  """Raises a CheckpointError unless each file that is listed is as written.

  It reads them all, once, at 0.5 to 1.5 GB/s where the processor has
  instructions for SHA-256. Without a list there is nothing to check.
  """
  folder = storage.path(folder)
  if not listed(folder):
    return
  for name, wanted in _read(folder)['files'].items():
    file = files.inside(folder, name, folder / NAME)
    found = (None, file.size)  # a wrong size needs no reading
    if file.size == wanted['size']:
      found = _digest(file)
    if found != (wanted['sha256'], wanted['size']):
      raise errors.CheckpointError(
        'file is damaged',
        where=file.where,
        got=f'{file.size} bytes' + (f' of SHA-256 {found[0]}' * bool(found[0])),
        expected=f'{wanted["size"]} bytes of SHA-256 {wanted["sha256"]}',
        fix=f'get it again; delete {NAME} if you changed it yourself',
      )


def _digest(file):
  digest = hashlib.sha256()
  for start in range(0, file.size, _BLOCK):
    count = min(_BLOCK, file.size - start)
    digest.update(file.array(start, np.dtype(np.uint8), (count,)))
  return digest.hexdigest(), file.size


def _read(folder):
  found = files.read_json(folder, NAME)
  entries = found.get('files')
  if not isinstance(entries, dict) or not all(
    isinstance(entry, dict)
    and isinstance(entry.get('sha256'), str)
    and type(entry.get('size')) is int
    for entry in entries.values()
  ):
    raise errors.CheckpointError(
      'not a list of digests',
      where=folder / NAME,
      expected='{"files": {name: {"sha256": ..., "size": ...}}}',
    )
  return found
