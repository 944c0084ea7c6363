"""Tokenises a corpus into a store, once."""

import contextlib
import functools
import hashlib
import json
import os
import time

import numpy as np

from t5x_lite import errors
from t5x_lite import processes
from t5x_lite import storage
from t5x_lite.data import arrays
from t5x_lite.data import copies
from t5x_lite.data import corpora
from t5x_lite.data import sources
from t5x_lite.data import store

_BATCH = 1 << 22  # characters that are tokenised at once
_ABANDONED = 86400  # seconds after which an unfinished store is deleted


class _SplitWriter:
  """Appends documents, or pairs, to one split."""

  def __init__(self, folder, vocabulary, encode, starts):
    folder.mkdir()
    self._vocabulary, self._encode, self._name = vocabulary, encode, starts
    self._tokens = arrays.ArrayWriter(
      folder, 'tokens', '<u2' if vocabulary.size <= 1 << 16 else '<u4'
    )
    self._starts = arrays.ArrayWriter(folder, starts, '<i8')
    self.length = self.unknown = 0

  def append(self, items):
    rows = self._encode(items)
    tokens = np.concatenate(rows)
    if tokens.size and (
      tokens.min() < 0 or tokens.max() >= self._vocabulary.size
    ):
      raise errors.DataError(
        'tokenizer gave an id that the vocabulary does not have',
        got=f'{tokens.min()} to {tokens.max()}',
        expected=f'0 to {self._vocabulary.size - 1}',
      )
    ends = np.cumsum([len(row) for row in rows])
    starts = self.length + np.concatenate([[0], ends[:-1]])
    self._tokens.append(tokens)
    self._starts.append(starts)
    self.length += len(tokens)
    self.unknown += int((tokens == self._vocabulary.unk_id).sum())

  def close(self):
    return {
      'arrays': {
        'tokens': self._tokens.close(),
        self._name: self._starts.close(),
      },
      'unknown': self.unknown,
    }


def write(folder, items, vocabulary, manifest, progress=None, encode=None):
  """Writes a store into an existing empty folder, its manifest last.

  Args:
    folder: a local folder.
    items: iterable of (split, text), or of (split, pair).
    vocabulary: the vocabulary.
    manifest: function of no arguments, called at the end: the rest of the
      manifest.
    progress: called now and then with the number of tokens so far.
    encode: of pairs, from some to rows of tokens, inputs and targets in turn.

  Raises:
    errors.DataError: the tokenizer gave an unknown id, or what `items` raises.
  """
  folder = storage.path(folder)
  starts = 'documents' if encode is None else 'pairs'
  encode = encode or vocabulary.encode_batch
  writers, waiting, size = {}, {}, 0

  def flush():
    for split, batch in waiting.items():
      if split not in writers:
        writers[split] = _SplitWriter(
          folder / split, vocabulary, encode, starts
        )
      writers[split].append(batch)
    waiting.clear()
    if progress:
      progress(sum(writer.length for writer in writers.values()))

  for split, item in items:
    waiting.setdefault(split, []).append(item)
    size += len(item) if isinstance(item, str) else sum(map(len, item))
    if size >= _BATCH:
      flush()
      size = 0
  flush()
  splits = {split: writer.close() for split, writer in writers.items()}
  whole = {'format': store.FORMAT, 'splits': splits} | manifest()
  storage.write_text(
    folder / 'manifest.json', json.dumps(whole, indent=1, ensure_ascii=False)
  )


def _fingerprint(identity, vocabulary, held_out):
  """A digest of everything that the tokens of a store depend on."""
  parts = {
    'format': store.FORMAT,
    'corpus': identity,
    'vocabulary': vocabulary.fingerprint,
    'held_out': float(held_out),
  }
  return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def open_or_build(data, vocabulary, progress=None, origin=None):
  """The store of a corpus, made if there is none yet.

  It lies in `Data.store`, else in the user's cache, under a name that contains
  its fingerprint: a changed corpus or vocabulary is another store. ArrayRecord
  reads local files only: of a store in a bucket, the cache has a copy.

  Args:
    data: specs.Data.
    vocabulary: the vocabulary.
    progress: called while a store is made, with the tokens so far and the share
      of the corpus that is read, or None where its size is not known.
    origin: of pairs, as of `pairs.origin`; None: the corpus is text.

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
  manifest = folder / 'manifest.json'
  if remote is not None or not manifest.exists():
    locks = storage.make_folder(storage.cache_dir() / 'locks')
    # Processes of one run on one machine: the first makes it.
    with storage.lock(locks / name, wait=True):
      if remote is not None:
        copies.fetch(remote, folder)
      if not manifest.exists():
        _build(
          folder, data, vocabulary, corpus, identity, fingerprint, progress
        )
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


def _sweep(folder):
  """Deletes what builders of a store left that were killed long ago."""
  if not folder.parent.exists():
    return
  for old in folder.parent.glob(f'.{folder.name}.*'):
    with contextlib.suppress(OSError):
      if os.path.getmtime(old) < time.time() - _ABANDONED:
        old.rmtree()


def _build(folder, data, vocabulary, corpus, identity, fingerprint, progress):
  report, size = sources.Report(), corpus.num_bytes()

  def show(tokens):
    progress(tokens, min(report.bytes / size, 1.0) if size else None)

  def manifest():
    if corpus.identity() != identity:
      raise errors.DataError(
        'corpus changed while it was read', where=data.corpus or data.task
      )
    return {
      'fingerprint': fingerprint,
      'corpus': {'name': corpus.name} | identity,
      'vocabulary': {
        'fingerprint': vocabulary.fingerprint,
        'size': vocabulary.size,
      },
      'held_out': data.held_out,
      'read': vars(report),
    }

  _sweep(folder)
  try:
    with storage.publish(folder) as scratch:
      write(
        scratch,
        corpus.examples(report),
        vocabulary,
        manifest,
        show if progress else None,
        corpus.encode
        and functools.partial(corpus.encode, vocabulary=vocabulary),
      )
  except (OSError, errors.StorageError) as e:
    # Somebody else may have been faster with the same.
    with contextlib.suppress(errors.DataError):
      store.Store(folder)
      return
    raise errors.StorageError(
      'cannot write the tokenised corpus',
      where=folder,
      got=getattr(e, 'got', e),
      fix='free some space, delete that folder, or choose another by '
      '--gin.Data.store=...',
    ) from e
