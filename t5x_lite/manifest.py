"""Checksums of a folder's files, in a `manifest.json` beside them."""

import json

import google_crc32c

from t5x_lite import errors
from t5x_lite import storage

_NAME = 'manifest.json'


def write(folder, parts):
  """Lists the files of some sub-folders, once they are all on the disk."""
  storage.sync(folder)
  files = _fingerprints(folder, parts)
  storage.write_text(
    folder / _NAME, json.dumps({'files': files, 'seal': _seal(files)})
  )


def check(folder, parts, fix):
  """Raises a CheckpointError unless some sub-folders are as they were written.

  Args:
    folder: the folder that holds the manifest.
    parts: names of the sub-folders.
    fix: what the error advises.
  """
  written = {
    name: fingerprint
    for name, fingerprint in _read(folder, fix).items()
    if name.split('/')[0] in parts
  }
  found = _fingerprints(folder, parts)
  for name in sorted(written.keys() | found.keys()):
    if found.get(name) != written.get(name):
      raise errors.CheckpointError(
        'file is damaged',
        where=folder / name,
        got=_describe(found.get(name)),
        expected=_describe(written.get(name)),
        fix=fix,
      )


def fingerprint(folder, fix):
  """The checksum of the list, and so of all the files."""
  return _seal(_read(folder, fix))


def _fingerprints(folder, parts):
  """Bytes and CRC-32C of each file under some sub-folders."""
  return {
    f'{part}/{name}': list(fingerprint)
    for part in parts
    for name, fingerprint in storage.checksums(folder / part).items()
  }


def _describe(fingerprint):
  if fingerprint is None:
    return 'no file'
  return '{} bytes of CRC-32C {:08x}'.format(*fingerprint)


def _seal(files):
  """The checksum of the list itself."""
  return google_crc32c.value(json.dumps(files, sort_keys=True).encode())


def _read(folder, fix):
  file = folder / _NAME
  try:
    manifest = json.loads(file.read_bytes())
    if manifest['seal'] == _seal(manifest['files']):
      return manifest['files']
    got = 'a list that its own checksum denies'
  except FileNotFoundError:
    got = 'no file'
  except (ValueError, LookupError, TypeError):
    got = 'no such list'
  raise errors.CheckpointError(
    'file is damaged', where=file, got=got, expected='a manifest', fix=fix
  )
