"""A file made in parts: whoever is stopped loses the part under way."""

import hashlib
import json
import shutil

from t5x_lite import errors
from t5x_lite import storage


class Parts:
  """The parts of a file, made by one process or by several at once.

  `FILE.parts/` has the plan, which names all that the content depends on, and
  each part, whole or absent. Whoever finds all of them there joins them into
  FILE, writes the plan to `FILE.done` and removes the folder. That several do
  so at once does no harm: they write the same bytes.
  """

  def __init__(self, file, plan, count):
    """Names the parts; touches nothing.

    Args:
      file: the path of the file.
      plan: what its content depends on, a flat dict of plain JSON.
      count: how many parts it has.
    """
    self._file, self._plan, self._count = storage.path(file), plan, count
    self._done = storage.path(f'{file}.done')
    self.folder = storage.path(f'{file}.parts')
    self._note = self.folder / 'plan.json'
    digest = hashlib.sha256(_dump(plan)).hexdigest()
    # So that parts of different plans are never joined, whatever was killed.
    self._suffix = f'{digest[:12]}.part'

  def begin(self):
    """Notes the plan.

    Raises:
      ConfigError: the folder has parts of another plan.
      StorageError: it can't be written.
    """
    storage.make_folder(self.folder)
    names = self._names()
    begun = any(name.endswith('.part') for name in names)
    if not (begun and self._note.name in names):
      storage.write_bytes(self._note, _dump(self._plan))
    found = _load(self._note) or {}
    differ = [
      f'{name}: {found.get(name)} -> {self._plan.get(name)}'
      for name in self._plan | found
      if found.get(name) != self._plan.get(name)
    ]
    if differ:
      raise errors.ConfigError(
        'unfinished results of another command are here',
        where=self.folder,
        got='; '.join(differ),
        expected='the same command, to go on with them',
        fix='undo the change, delete the folder to start over, or choose'
        ' another --output',
      )

  def is_done(self):
    """Whether the file is there, as it was joined from parts of this plan."""
    noted = _load(self._done) or {}
    if {**noted, 'sha256': None} != {**self._plan, 'sha256': None}:
      return False
    try:
      return noted['sha256'] == _digest(self._file)
    except FileNotFoundError:
      return False

  def _names(self):
    try:
      return {entry.name for entry in self.folder.iterdir()}
    except FileNotFoundError:
      return set()

  def _part(self, number):
    return self.folder / f'{number:08}.{self._suffix}'

  def missing(self):
    """The numbers of the parts that are not there, in order."""
    there = self._names()
    return [n for n in range(self._count) if self._part(n).name not in there]

  def write(self, number, content):
    """Writes a part, whole."""
    storage.write_bytes(self._part(number), content)

  def join(self):
    """Joins the parts once all are there; returns how many are not."""
    missing = self.missing()
    if self.is_done():  # asked in this order: another may be removing them
      self._remove()
      return 0
    if missing:
      return len(missing)
    try:
      with storage.replacing(self._file, self.folder) as f:
        for number in range(self._count):
          with self._part(number).open('rb') as part:
            shutil.copyfileobj(part, f)
      noted = self._plan | {'sha256': _digest(self._file)}
      with storage.replacing(self._done, self.folder) as f:
        f.write(_dump(noted))
    except (FileNotFoundError, errors.StorageError):
      if not self.is_done():  # else another process was faster
        raise
      return 0
    self._remove()
    return 0

  def _remove(self):
    """Removes the folder, unless it is of another plan by now."""
    while self.folder.exists() and _load(self._note) in (self._plan, None):
      try:
        self.folder.rmtree(missing_ok=True)
      except FileNotFoundError:
        continue  # another process removes it too


def _digest(file):
  with file.open('rb') as f:
    return hashlib.file_digest(f, 'sha256').hexdigest()


def _dump(plan):
  return f'{json.dumps(plan, indent=2)}\n'.encode()


def _load(file):
  """A plan that was written, or None."""
  try:
    return json.loads(file.read_bytes())
  except (FileNotFoundError, ValueError):
    return None
