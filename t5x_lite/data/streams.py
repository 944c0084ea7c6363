"""Data that are taken as they come: nothing is stored, nothing shuffled.

It is for what can't be stored, as it is too large or has no end. What a Stream
offers looks like a store whose split for training is endless: pass after pass
of the source. It can be read forwards alone; what lies before is read again.
"""

import collections
import hashlib
import itertools
import json
import os

import numpy as np

from t5x_lite import corruptions
from t5x_lite import errors
from t5x_lite.data import corpora
from t5x_lite.data import pairs
from t5x_lite.data import sources

_BATCH = 1 << 16  # characters, or tokens of a task, that are encoded at once
ENDLESS = 1 << 62  # pairs, or tokens
PROMISE = (
  'read as a stream: in the order of its source, which is not shuffled; a run '
  'that goes on reads again what it has consumed, and is exact only if the '
  'source gives the same each time'
)


def _tokens(run, vocabulary, split):
  """Token arrays of the documents, or of inputs and targets in turn: a pass."""
  corpus = pairs.origin(run, vocabulary) or corpora.Texts(run.data)
  report = sources.Report()
  own = len(corpus.splits) > 1  # has held out what it wants to
  limit = 0 if own else int(run.data.held_out * 2**64)

  def wanted():
    for part in corpus.parts():
      if not own or part.split == split:
        for item in corpus.examples(part, report):
          held = limit and corpora.hash64(corpus.key(item)) < limit
          if own or held == (split == 'validation'):
            yield item

  items = wanted()
  while first := list(itertools.islice(items, 1)):
    batch, size = first, 0
    for item in items:
      batch.append(item)
      size += len(item) if isinstance(item, str) else sum(map(len, item))
      if size > _BATCH:
        break
    yield from corpus.encode(batch, vocabulary)
  report.check()


def _endless(run, vocabulary):
  """As `_tokens`, of what is trained on, pass after pass."""
  while True:
    empty = True
    for tokens in _tokens(run, vocabulary, 'train'):
      empty = False
      yield tokens
    if empty:
      raise errors.DataError(
        "split 'train' has no example", where=run.data.corpus or run.data.task
      )


class _Window:
  """What was read last of a sequence that can be read forwards alone."""

  def __init__(self, begin):
    self._begin = begin  # makes an iterator of the whole
    self._source, self._held, self._first = begin(), collections.deque(), 0

  def read(self, index_B):
    """The elements of these numbers; those before the least are let go."""
    least, most = int(min(index_B)), int(max(index_B))
    if least < self._first:
      self._source, self._first = self._begin(), 0
      self._held.clear()
    while self._first < least and self._held:
      self._held.popleft()
      self._first += 1
    ahead = least - self._first
    if ahead:  # nothing is held
      next(itertools.islice(self._source, ahead - 1, None))
      self._first = least
    missing = most + 1 - self._first - len(self._held)
    self._held.extend(itertools.islice(self._source, max(missing, 0)))
    return [self._held[int(n) - self._first] for n in index_B]


class _Tokens:
  """Chunks of tokens, at multiples of their length."""

  num_documents = 0

  def __init__(self, chunks, num_tokens, length):
    self._chunks, self.num_tokens, self._length = chunks, num_tokens, length

  def rows(self, starts_B, length):
    """As of store.Tokens, where starts are multiples of the length."""
    index_B = np.asarray(starts_B) // self._length
    out_BL = np.zeros((len(index_B), length), np.int32)
    for row, chunk in zip(out_BL, self._chunks(index_B), strict=True):
      row[: len(chunk)] = chunk
    return out_BL


class _Pairs:
  """Inputs and targets, each by its number."""

  def __init__(self, read, num_pairs):
    self._read, self.num_pairs = read, num_pairs

  def pairs(self, index_B, widths, least):
    """As of store.Pairs; they are never packed, and never narrower."""
    del least
    found, rows = [], self._read(np.asarray(index_B))
    for side, width in enumerate(widths):
      out_BL = np.zeros((len(rows), width), np.int32)
      length_B = np.array([min(len(row[side]), width) for row in rows])
      for out, row, length in zip(out_BL, rows, length_B, strict=True):
        out[:length] = row[side][:length]
        if len(row[side]) > width:
          out[-1] = row[side][-1]
      found += [out_BL, length_B.astype(np.int32)]
    return found


class Stream:
  """What looks like a store of a run's data.

  Attributes:
    fingerprint: of the names and sizes of what is read.
  """

  def __init__(self, run, vocabulary):
    """Finds the source; reads nothing."""
    self._run, self._vocabulary = run, vocabulary
    self._learns_pairs = pairs.learns(run)
    if not self._learns_pairs:
      module = corruptions.OBJECTIVES[type(run.objective)]
      self._length = module.raw_length(
        run.objective, run.data.lengths, vocabulary
      )
      self._least = module.MIN_LENGTH
      self._end = np.array(
        [vocabulary.eos_id] * module.ENDS_DOCUMENTS, np.int32
      )
    corpus = pairs.origin(run, vocabulary) or corpora.Texts(run.data)
    self._holds_out = 'validation' in corpus.splits or run.data.held_out > 0
    # Names and sizes of files: to read them all is what a stream is to spare.
    told = [
      [part.bytes]
      + [
        [os.path.basename(x) if isinstance(x, str) else x for x in piece]
        for piece in part.pieces
      ]
      for part in corpus.parts()
    ]
    told = json.dumps(['stream', corpus.name, vocabulary.fingerprint, told])
    self.fingerprint = hashlib.sha256(told.encode()).hexdigest()

  def has(self, split):
    """Whether there are documents of this split."""
    return split == 'train' or self._holds_out

  def content(self):
    """Nothing: what comes is not known before."""
    return ''

  def split(self, name):
    """The endless training split; of another, what is measured, in memory."""
    if name == 'train':
      window = _Window(
        lambda: self._examples(_endless(self._run, self._vocabulary))
      )
      return self._made(window.read, ENDLESS)
    where = self._run.data.corpus or self._run.data.task
    if not self.has(name):
      raise errors.DataError(
        'stream has no such split', where=where, got=name, expected='train'
      )
    examples = self._examples(self.documents(name))
    kept = list(itertools.islice(examples, self._run.evaluation.examples))
    if not kept:
      raise errors.DataError(f"split '{name}' has no example", where=where)
    count = len(kept) if self._learns_pairs else sum(map(len, kept))
    return self._made(lambda index_B: [kept[int(n)] for n in index_B], count)

  def _made(self, read, count):
    """A split of what is read by number: so many pairs, or tokens."""
    if self._learns_pairs:
      return _Pairs(read, count)
    return _Tokens(read, count, self._length)

  def _examples(self, tokens):
    """(inputs, targets) of arrays that are these in turn, or chunks of text."""
    if self._learns_pairs:
      return zip(tokens, tokens, strict=False)
    return self._chunks(tokens)

  def documents(self, name):
    """Tokens of each document of a split, or of inputs and targets in turn.

    As they come, once.
    """
    return _tokens(self._run, self._vocabulary, name)

  def _chunks(self, tokens):
    """So many tokens in a row, across documents, as make one example."""
    end, length = self._end, self._length
    held = np.empty(0, np.int32)
    for document in tokens:
      held = np.concatenate([held, document, end], dtype=np.int32)
      whole = len(held) // length * length
      yield from held[:whole].reshape(-1, length)
      held = held[whole:]
    if len(held) >= self._least:
      yield held
