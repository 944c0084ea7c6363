"""A folder that appears whole or not at all, and removes what failed before."""

import contextlib
import fcntl
import json
import os
import pathlib
import re
import shutil
import tempfile

from t5x_lite import errors
from t5x_lite import storage
from t5x_lite.interop import files

_UNFINISHED = 'unfinished.json'  # lists what an upload under way may have left


@contextlib.contextmanager
def publish(folder, last='config.json'):
  """A local scratch folder that becomes `folder` when the block ends well.

  A local one is renamed, so it is there whole or not at all. To a remote one
  the files are uploaded at the end (so there has to be room for them in the
  local temporary folder), `last` as the last of them: without it nobody takes
  the folder for a model. What killed runs left is removed.

  Args:
    folder: a path that is not there yet, or an empty folder.
    last: the file that tells that a remote folder is complete.

  Raises:
    StorageError: there is something at this path; or it can't be written.
  """
  folder = storage.path(folder)
  if storage.is_local(folder):
    folder = storage.absolute(folder)
    _check_free(folder)
    _remove_leftovers(folder)
    with contextlib.ExitStack() as after, storage.publish(folder) as scratch:
      after.callback(os.close, _hold(scratch))
      yield scratch
    return
  found = _remove_unfinished(folder, last)
  if found:
    raise _taken(folder, found)
  with tempfile.TemporaryDirectory() as scratch:
    yield storage.path(scratch)
    _upload(pathlib.Path(scratch), folder, last)


def _taken(folder, found):
  return errors.StorageError(
    'there is something already',
    where=folder,
    got=', '.join(sorted(found)[:3]) + ', ...' * (len(found) > 3),
    expected='a new or an empty folder',
    fix='delete it, or choose another folder',
  )


# -- local --------------------------------------------------------------------


def _check_free(folder):
  if os.path.islink(folder) or (os.path.exists(folder) and not folder.is_dir()):
    raise _taken(folder, ['a link or a file'])
  if folder.is_dir() and (found := os.listdir(folder)):
    raise _taken(folder, found)


def _hold(folder):
  """Tells other processes that a scratch folder is in use, while we live."""
  descriptor = os.open(folder, os.O_RDONLY)
  with contextlib.suppress(OSError):  # then nobody else can lock it either
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  return descriptor


def _remove_leftovers(folder):
  """Removes scratch folders for `folder` of processes that are no more."""
  pattern = re.compile(rf'\.{re.escape(folder.name)}\.[0-9a-f]{{32}}')
  if not folder.parent.is_dir():
    return
  for name in os.listdir(folder.parent):
    scratch = folder.parent / name
    if not pattern.fullmatch(name):
      continue
    with contextlib.suppress(OSError):  # in use; or a link, which stays
      descriptor = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY)
      try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(scratch)
      finally:
        os.close(descriptor)


# -- remote -------------------------------------------------------------------


def _upload(scratch, folder, last):
  names = sorted(
    os.path.relpath(os.path.join(root, name), scratch)
    for root, _, found in os.walk(scratch)
    for name in found
  )
  names.sort(key=lambda name: name == last)
  note = folder / _UNFINISHED
  storage.write_text(note, json.dumps({'files': names}))
  for name in names:
    storage.upload(scratch / name, folder / name)
  note.unlink()


def _remove_unfinished(folder, last):
  """Removes what a killed upload left; returns what is there besides."""
  names = set(storage.checksums(folder))
  if _UNFINISHED in names and last not in names:
    listed = files.read_json(folder, _UNFINISHED).get('files')
    ours = names & set(listed if isinstance(listed, list) else ())
    # The list itself last: this may be killed, too.
    for name in [*sorted(ours), _UNFINISHED]:
      (folder / name).unlink()
    names -= ours | {_UNFINISHED}
  return names
