"""Tokenises a corpus into a store, once.

Each part of the corpus is made by whatever process is free, and kept in a
hidden folder beside the store; at the end they are put together. So a store is
the same however many made it, and one that was killed goes on.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import time
import typing

from t5x_lite import errors
from t5x_lite import processes
from t5x_lite import storage
from t5x_lite.data import copies
from t5x_lite.data import corpora
from t5x_lite.data import making
from t5x_lite.data import sources
from t5x_lite.data import store
from t5x_lite.data import workers

_ABANDONED = 86400  # seconds after which what nobody goes on with is deleted
_UNFINISHED = 3600  # the same, of a part
_SMALL = 1 << 25  # bytes of a corpus that is sooner made in one process
_HELD = '-held'  # parts made again, to hold out what has the lowest hash


class Progress(typing.NamedTuple):
  """How far the making of a store is.

  Attributes:
    tokens: made since the start, or found there.
    share: of the corpus that is done, or None where its size is not known.
    parts: that are done.
    count: of them in all.
    seconds: that are left, or None where that can't be told.
  """

  tokens: int
  share: float | None
  parts: int
  count: int
  seconds: float | None

  def __str__(self):
    told = f'{self.tokens:,} tokens'
    if self.share is not None:
      told += f', {self.share:.0%}'
    if self.count > 1:
      told += f', {self.parts} of {self.count} parts'
    if self.seconds is not None:
      minutes, seconds = divmod(round(self.seconds), 60)
      hours, minutes = divmod(minutes, 60)
      left = f'{hours}:{minutes:02}' if hours else f'{minutes}'
      told += f', {left}:{seconds:02} left'
    return told


class _Meter:
  """Adds up what is told of parts."""

  def __init__(self, parts, say):
    self._sizes, self._say = [part.bytes for part in parts], say
    self._tokens, self._taken = {}, {}
    self._done, self._started, self._first = set(), time.monotonic(), None

  def found(self, number, tokens):
    """Counts a part that was made before."""
    self._tokens[number], self._taken[number] = tokens, self._sizes[number]
    self._done.add(number)

  def told(self, number, tokens, taken, done):
    total = sum(self._sizes)
    if self._first is None:
      self._first = sum(self._taken.values())
    self._tokens[number] = tokens
    self._taken[number] = min(taken, self._sizes[number])
    if done:
      self._done.add(number)
    if self._say is None:
      return
    taken = sum(self._taken.values())
    share, left = (taken / total if total else None), None
    if taken > self._first:
      spent = time.monotonic() - self._started
      left = spent * (total - taken) / (taken - self._first)
    self._say(
      Progress(
        sum(self._tokens.values()),
        share,
        len(self._done),
        len(self._sizes),
        left,
      )
    )


def write(folder, items, vocabulary, manifest):
  """Writes a store of texts into an existing empty folder, its manifest last.

  Args:
    folder: a local folder.
    items: iterable of (split, text).
    vocabulary: the vocabulary.
    manifest: function of no arguments, called at the end: the rest of the
      manifest.
  """
  folder = storage.path(folder)
  splits = making.write(
    folder, items, vocabulary, vocabulary.encode_batch, 'documents'
  )
  _write_manifest(folder, splits, manifest())


def _write_manifest(folder, splits, rest):
  whole = {'format': store.FORMAT, 'splits': splits} | rest
  storage.write_text(
    folder / store.MANIFEST, json.dumps(whole, indent=1, ensure_ascii=False)
  )


def _fingerprint(identity, vocabulary, held_out):
  """A digest of everything that the tokens of a store depend on."""
  found = {
    'format': store.FORMAT,
    'corpus': identity,
    'vocabulary': vocabulary.fingerprint,
    'held_out': float(held_out),
  }
  return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def open_or_build(
  data, vocabulary, progress=None, origin=None, count=None, runner=None
):
  """The store of a corpus, made if there is none yet.

  It lies in `Data.store`, else in the user's cache, under a name that contains
  its fingerprint: a changed corpus or vocabulary is another store. ArrayRecord
  reads local files only: of a store in a bucket, the cache has a copy.

  Args:
    data: specs.Data.
    vocabulary: the vocabulary.
    progress: called while a store is made, with a Progress.
    origin: of pairs, as of `pairs.origin`; None: the corpus is text.
    count: processes that make it; None: as many as cores are of use.
    runner: function that makes parts, as `workers.here`, in place of these.

  Returns:
    A Store.

  Raises:
    errors.DataError: the corpus is missing or broken, or the store damaged.
  """
  corpus = origin or corpora.Texts(data)
  identity = corpus.identity()
  held_out = 0.0 if 'validation' in corpus.splits else data.held_out
  fingerprint = _fingerprint(identity, vocabulary, held_out)
  root = data.store or storage.cache_dir() / 'stores'
  name = f'{corpus.name}-{fingerprint[:16]}'
  folder, remote = storage.path(root) / name, None
  if not storage.is_local(root):
    folder, remote = storage.cache_dir() / 'stores' / name, folder
  manifest = folder / store.MANIFEST
  if remote is not None or not manifest.exists():
    locks = storage.make_folder(storage.cache_dir() / 'locks')
    # Processes of one run on one machine: the first makes it.
    with storage.lock(locks / name, wait=True):
      if remote is not None:
        copies.fetch(remote, folder)
      if not manifest.exists():
        build = _Build(
          folder, data, vocabulary, corpus, identity, fingerprint, held_out
        )
        build(progress, count, runner)
      if remote is not None and processes.is_first():
        copies.keep(folder, remote)
  found = store.Store(folder)
  if found.fingerprint != fingerprint:
    raise errors.DataError(
      'tokenised corpus is of other text or another vocabulary',
      where=folder,
      got=f'fingerprint {found.fingerprint[:16]}',
      expected=fingerprint[:16],
      fix=f'delete {folder}; it is made again from the corpus',
    )
  return found


class _Build:
  """The making of one store."""

  def __init__(
    self, folder, data, vocabulary, corpus, identity, fingerprint, held_out
  ):
    self._folder, self._data, self._vocabulary = folder, data, vocabulary
    self._corpus, self._identity = corpus, identity
    self._fingerprint, self._held_out = fingerprint, held_out

  def __call__(self, progress, count, runner):
    """As `open_or_build` says."""
    try:
      self._make(progress, count, runner)
    except (OSError, errors.StorageError) as e:
      # Somebody else may have been faster with the same.
      with contextlib.suppress(errors.DataError):
        store.Store(self._folder)
        return
      raise errors.StorageError(
        'cannot write the tokenised corpus',
        where=self._folder,
        got=getattr(e, 'got', None) or getattr(e, 'strerror', None) or e,
        fix='free some space, delete that folder, or choose another by '
        '--gin.Data.store=...',
      ) from e

  def _make(self, progress, count, runner):
    parts = self._corpus.parts()
    plan = hashlib.sha256(repr(parts).encode()).hexdigest()
    folder = self._folder.parent / f'.{self._folder.name}.parts-{plan[:8]}'
    _sweep(self._folder, folder)
    storage.make_folder(folder)
    job = making.Job(
      self._corpus,
      self._vocabulary,
      str(folder),
      int(self._held_out * 2**64)
      if 'validation' not in self._corpus.splits
      else None,
    )
    run = runner or self._runner(parts, count)
    try:
      self._put_together(job, run, parts, progress)
    except errors.DataError:
      folder.rmtree(missing_ok=True)  # of no use once the corpus is mended
      raise
    except (OSError, errors.StorageError):
      with contextlib.suppress(OSError):  # what is done stays, to go on from
        folder.rmdir()
      raise
    folder.rmtree(missing_ok=True)

  def _put_together(self, job, run, parts, progress):
    """Makes all parts, and a store of them."""
    numbers = range(len(parts))
    results = self._results(job, run, parts, numbers, progress)
    if job.limit and not any(
      'validation' in result['splits'] for result in results.values()
    ):
      # As no hash is below the limit, what has the lowest is held out.
      lowest = min((x['lowest'] for x in results.values()), default=0)
      again = [n for n in numbers if results[n]['lowest'] == lowest]
      job = dataclasses.replace(job, limit=lowest + 1, tag=_HELD)
      results |= self._results(job, workers.here, parts, again, None)
    self._merge([results[number] for number in numbers])

  def _runner(self, parts, count):
    """How to make parts, by default."""
    if count is None:
      big = sum(part.bytes for part in parts) > _SMALL
      count = workers.cores() if big else 1
    count = min(count, len(parts))
    return workers.several(count) if count > 1 else workers.here

  def _results(self, job, run, parts, numbers, progress):
    """{number: result} of parts, made where they are not."""
    meter, found, todo = _Meter(parts, progress), {}, []
    for number in numbers:
      if job.is_done(number):
        found[number] = self._with_place(job, number)
        meter.found(number, _tokens(found[number]))
      else:
        todo.append((number, parts[number]))
    if todo:
      run(job, todo, meter.told)
    for number, _ in todo:
      found[number] = self._with_place(job, number)
    return found

  @staticmethod
  def _with_place(job, number):
    return job.result(number) | {'folder': job.place(number)}

  def _merge(self, results):
    """Puts the parts together, and publishes the store."""
    report = sources.Report()
    for result in results:
      report.add(sources.Report(**result['report']))
    splits = sorted({split for x in results for split in x['splits']})
    self._corpus.check(report, set(splits))
    if self._corpus.identity() != self._identity:
      raise errors.DataError(
        'corpus changed while it was read',
        where=self._data.corpus or self._data.task,
      )
    rest = {
      'fingerprint': self._fingerprint,
      'corpus': {'name': self._corpus.name} | self._identity,
      'vocabulary': {
        'fingerprint': self._vocabulary.fingerprint,
        'size': self._vocabulary.size,
      },
      'held_out': self._data.held_out,
      'read': {
        'documents': report.documents,
        'blank': report.blank,
        'cut': report.cut,
        'lines': report.lines,
        'bad_lines': report.bad_lines,
        'first_bad': report.first_bad,
        'bytes': report.bytes,
      },
    }
    with storage.publish(self._folder) as scratch:
      made = {split: _join(scratch, split, results) for split in splits}
      _write_manifest(scratch, made, rest)


def _tokens(result):
  return sum(x['arrays']['tokens']['length'] for x in result['splits'].values())


def _join(folder, split, results):
  """Puts the shards of all parts of a split into a folder.

  They are linked, so that a making that is killed here has all it needs to go
  on; where there are no links they are copied.

  Returns:
    Its part of the manifest.
  """
  (folder / split).mkdir()
  having = [x for x in results if split in x['splits']]
  entries = [x['splits'][split] for x in having]
  joined = {}
  for name in entries[0]['arrays']:
    shards, tokens = [], 0
    count = sum(len(entry['arrays'][name]['shards']) for entry in entries)
    for result, entry in zip(having, entries, strict=True):
      for shard in entry['arrays'][name]['shards']:
        file = f'{name}.arrayrecord-{len(shards):05d}-of-{count:05d}'
        _link(result['folder'] / split / shard['file'], folder / split / file)
        shards.append(shard | {'file': file})
        if name != 'tokens' and tokens:
          shards[-1]['add'] = tokens
      tokens += entry['arrays']['tokens']['length']
    whole = entries[0]['arrays'][name]
    length = sum(shard['length'] for shard in shards)
    joined[name] = whole | {'length': length, 'shards': shards}
  return {
    'arrays': joined,
    'unknown': sum(entry['unknown'] for entry in entries),
  }


def _link(file, to):
  try:
    os.link(file, to)
  except FileNotFoundError:
    raise
  except OSError:
    shutil.copyfile(file, to)


def _sweep(folder, ours):
  """Deletes what makers of a store left that were killed long ago.

  Args:
    folder: the store.
    ours: folder of its parts, to go on with.
  """
  for pattern, where, age in (
    (f'.{folder.name}.*', folder.parent, _ABANDONED),
    ('.part-*', ours, _UNFINISHED),
  ):
    for old in where.glob(pattern) if where.exists() else ():
      with contextlib.suppress(OSError):
        if old != ours and os.path.getmtime(old) < time.time() - age:
          old.rmtree()
