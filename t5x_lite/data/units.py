"""The examples of one store: what they are, how long, and their rows.

Each kind offers:
  count: how many there are;
  limits: {side: most tokens of it that an example takes}, where the sides are
    'inputs' and 'targets', or of text 'documents';
  digest: of what tells them apart besides the store and the run;
  sizes(first, last): most tokens of inputs, of targets, and of both that each
    of some examples takes, whatever is drawn: int [J, 3];
  rows(draw, index_J, least): inputs, their lengths, targets, their lengths of
    some examples, no wider than they need to be where `least` is set;
  batch(rows, width): the batch contract, a row for each example;
  notes(): sentences that a user should know.
"""

import numpy as np

from t5x_lite import corruptions
from t5x_lite import errors
from t5x_lite import record
from t5x_lite import specs
from t5x_lite.corruptions import features
from t5x_lite.data import ending
from t5x_lite.data import index

_READ = 1 << 16  # documents or pairs that are read at once


class _Text:
  """Examples of text."""

  digest = ''

  def __init__(self, run, store, vocabulary, split):
    self._run, self._vocabulary = run, vocabulary
    self._corruption = corruptions.OBJECTIVES[type(run.objective)]
    self._lengths = self._corruption.feature_lengths(
      run.objective, run.data.lengths
    )
    self._raw = self._corruption.raw_length(
      run.objective, run.data.lengths, vocabulary
    )
    self.limits = {'documents': self._raw}
    self._tokens = store.split(split)
    if self._corruption.ENDS_DOCUMENTS and not run.data.stream:
      self._tokens = ending.Ended(self._tokens, vocabulary.eos_id)

  def _check(self, split):
    if not self.count:
      raise errors.DataError(
        f"split '{split}' has no example",
        where=self._run.data.corpus,
        got=f'{self._tokens.num_tokens} tokens in '
        f'{self._tokens.num_documents} documents',
        expected=f'{self._corruption.MIN_LENGTH} tokens or more',
      )

  def rows(self, draw, index_J, least=False):
    start_J, length_J = self._places(index_J)
    lengths, raw = self._lengths, self._raw
    if least:
      raw = length_J.max()
      most = self._sizes(length_J).max(0)
      lengths = dict(zip(('inputs', 'targets'), most.tolist(), strict=False))
      lengths = {name: lengths[name] for name in self._lengths}
    return self._corruption.examples(
      self._run.objective,
      self._tokens.rows(start_J, raw),
      length_J,
      draw,
      self._vocabulary,
      lengths,
    )

  def _sizes(self, length_J):
    return self._corruption.sizes(
      self._run.objective, length_J, self._vocabulary
    )

  def sizes(self, first, last):
    return self._sizes(self._places(np.arange(first, last))[1])

  def batch(self, rows, width):
    start_id = self._vocabulary.start_id
    return features.of_stack(self._run.model, rows, start_id, width)

  def notes(self):
    return []


class Chunks(_Text):
  """So many tokens in a row, across documents, as the objective fills its row.

  What is left at the end is an example too, a shorter one, if the objective can
  make one of it (span corruption needs two tokens).
  """

  def __init__(self, run, store, vocabulary, split):
    """Takes a store.Store and one of its splits."""
    super().__init__(run, store, vocabulary, split)
    whole, rest = divmod(self._tokens.num_tokens, self._raw)
    self.count = whole + (rest >= self._corruption.MIN_LENGTH)
    self._check(split)

  def _places(self, index_J):
    start_J = index_J * self._raw
    return start_J, np.minimum(self._raw, self._tokens.num_tokens - start_J)


class Pieces(_Text):
  """Documents, those cut in pieces that do not fit in a row.

  All pieces but the last of a document are full, unless it would be too short
  to make an example of: then the one before it is shorter. Documents that are
  too short by themselves are left out, and counted.
  """

  def __init__(self, run, store, vocabulary, split):
    """Takes a store.Store and one of its splits."""
    super().__init__(run, store, vocabulary, split)
    settings = {
      'split': split,
      'length': self._raw,
      'least': self._corruption.MIN_LENGTH,
      'ends': self._corruption.ENDS_DOCUMENTS,
    }
    self._index = index.open_or_make(
      store, 'pieces', settings, lambda writer: self._cut(store, split, writer)
    )
    self.digest = self._index.digest
    self.count = self._index.counts['pieces']
    self._check(split)

  def _cut(self, store, split, writer):
    tokens, least = store.split(split), self._corruption.MIN_LENGTH
    more = int(self._corruption.ENDS_DOCUMENTS)
    pieces = short = 0
    for first in range(0, tokens.num_documents, _READ):
      last = min(first + _READ, tokens.num_documents)
      start_D, end_D = tokens.bounds(first, last)
      # In the text with an end behind each document.
      start_D = start_D + more * np.arange(first, last)
      length_D = end_D + more * np.arange(first + 1, last + 1) - start_D
      short += int((length_D < least).sum())
      count_D = -(-length_D // self._raw) * (length_D >= least)
      ends = np.cumsum(count_D)
      number_J = np.arange(ends[-1]) - np.repeat(ends - count_D, count_D)
      start_J = np.repeat(start_D, count_D) + number_J * self._raw
      last_J = number_J == np.repeat(count_D, count_D) - 1
      rest_J = np.repeat(length_D, count_D) - number_J * self._raw
      lack_J = np.where(last_J, np.maximum(least - rest_J, 0), 0)
      start_J -= lack_J
      length_J = np.minimum(rest_J + lack_J, self._raw)
      length_J[:-1] -= lack_J[1:]
      writer.append('starts', start_J)
      writer.append('lengths', length_J, '<u4')
      pieces += len(start_J)
    writer.counts = {'pieces': pieces, 'short': short}

  def _places(self, index_J):
    arrays = self._index.arrays
    return (
      arrays['starts'].read(index_J, 1)[:, 0],
      arrays['lengths'].read(index_J, 1)[:, 0].astype(np.int64),
    )

  def sizes(self, first, last):
    [length_J] = self._index.arrays['lengths'].read([first], last - first)
    return self._sizes(length_J.astype(np.int64))

  def notes(self):
    if short := self._index.counts['short']:
      yield (
        f'{short:,} documents of fewer than {self._corruption.MIN_LENGTH} '
        'tokens make no example and are left out'
      )


class Pairs:
  """Inputs and targets, as they are; longer ones are cut, and counted."""

  def __init__(self, run, store, vocabulary, split):
    """Takes a store.Store and one of its splits."""
    self._run, self._vocabulary = run, vocabulary
    self._corruption = corruptions.OBJECTIVES[type(run.objective)]
    self._widths = self._corruption.pair_widths(
      run.objective, run.data.lengths, vocabulary
    )
    self.limits = dict(zip(('inputs', 'targets'), self._widths, strict=True))
    self._pairs = store.split(split)
    self.count = self._pairs.num_pairs
    # What a task's own Python gives may change while its files do not.
    self.digest = store.content()
    self._counts = {'inputs': 0, 'targets': 0}
    if run.data.stream:
      return
    where = f'{split} of {run.data.corpus or run.data.task}'
    settings = {
      'split': split,
      'content': self.digest,
      'objective': record.record(run.objective),
      'widths': self._widths,
      'vocabulary': vocabulary.fingerprint,
    }
    self._counts = index.open_or_make(
      store, 'pairs', settings, lambda writer: self._look(writer, where)
    ).counts

  def _look(self, writer, where):
    """Checks all pairs, once, and counts those that are cut."""
    self._corruption.check_pairs(
      self._run.objective, self._pairs, self._vocabulary, where
    )
    cut_2 = np.zeros(2, int)
    for first in range(0, self.count, _READ):
      last = min(first + _READ, self.count)
      cut_2 += (self._pairs.lengths(first, last) > self._widths).sum(0)
    writer.counts = dict(zip(('inputs', 'targets'), cut_2.tolist()))

  def sizes(self, first, last):
    size_J2 = np.minimum(self._pairs.lengths(first, last), self._widths)
    return np.column_stack([size_J2, size_J2.sum(1)])

  def rows(self, draw, index_J, least=False):
    del draw
    return self._pairs.pairs(index_J, self._widths, least)

  def batch(self, rows, width):
    return self._corruption.batch(
      self._run.objective, self._run.model, rows, self._vocabulary, width
    )

  def notes(self):
    for name, width in zip(('inputs', 'targets'), self._widths):
      if count := self._counts[name]:
        yield (
          f'{name} of {count:,} of {self.count:,} pairs are cut to {width} '
          'tokens; Data.lengths sets it'
        )


def of(run, store, vocabulary, split):
  """The examples of a run's split of a store."""
  if type(run.objective) in corruptions.PAIRS:
    return Pairs(run, store, vocabulary, split)
  kind = {specs.Concat: Chunks, specs.Isolated: Pieces}
  return kind[type(run.data.documents)](run, store, vocabulary, split)
