"""Batches as a pure function of the run and the data position.

The position is the number of rows consumed. What a row holds is told by `rows`
for one corpus or task, and for mixtures by `mixing`.
"""

import hashlib
import json

import numpy as np

from t5x_lite import corruptions
from t5x_lite import errors
from t5x_lite import specs
from t5x_lite.data import mixing
from t5x_lite.data import mixtures
from t5x_lite.data import order
from t5x_lite.data import rows


def check(run, vocabulary):
  """Refuses a run that this vocabulary can't serve.

  Args:
    run: specs.Run.
    vocabulary: the vocabulary.

  Raises:
    errors.ConfigError: names the numbers and what to change.
  """
  if vocabulary.size > run.model.vocab_size:
    raise errors.ConfigError(
      f'vocabulary has {vocabulary.size} ids > Transformer.vocab_size '
      f'{run.model.vocab_size}',
      where=run.data.vocabulary,
      fix=f'--gin.Transformer.vocab_size={-(-vocabulary.size // 128) * 128}',
    )
  name, model = type(run.objective).__name__, run.model
  if not model.decoder_layers:
    raise errors.ConfigError(
      f'{name} says its targets, and an encoder alone says nothing',
      got='Transformer.decoder_layers 0',
      fix='--gin.Transformer.decoder_layers=N',
    )
  corruption = corruptions.OBJECTIVES[type(run.objective)]
  corruption.check(run.objective, run.data.lengths, vocabulary)
  if model.encoder_layers and 'inputs' not in feature_lengths(run):
    raise errors.ConfigError(
      f'{name} has no inputs, and so nothing for an encoder to read',
      got=f'Transformer.encoder_layers {model.encoder_layers}',
      fix='take PrefixLM, or --gin.Transformer.encoder_layers=0',
    )
  if hasattr(corruption, 'check_model'):
    corruption.check_model(run.objective, model)
  elif model.classes:
    raise errors.ConfigError(
      f'{name} has no classes, and Transformer.classes is set',
      got=model.classes,
      fix='take Classification, or --gin.Transformer.classes=0',
    )
  _check_kind(run, name, vocabulary)
  if isinstance(model.position, specs.Learned):
    for stack, width in widths(run).items():
      if width > model.position.length:
        raise errors.ConfigError(
          f'a row of the {stack} is longer than Learned.length',
          got=f'{width} tokens, Learned.length {model.position.length}',
          fix=f'--gin.Learned.length={width}, or shorter Data.lengths',
        )


def _check_kind(run, name, vocabulary):
  """Refuses data of another kind than the objective's."""
  pairs, data = type(run.objective) in corruptions.PAIRS, run.data
  named = isinstance(data.mixture, str)
  if not pairs and (data.task is not None or named):
    raise errors.ConfigError(
      f'{name} learns from text, and a '
      f'{"mixture of tasks" if named else "task"} has inputs and targets',
      where='Data.mixture' if named else 'Data.task',
      got=data.mixture if named else data.task,
      fix='--gin.Run.objective=@Supervised(), or Data.corpus',
    )
  isolated = isinstance(data.documents, specs.Isolated)
  if pairs and isolated:
    raise errors.ConfigError(
      f'Data.documents is of text, and {name} learns from pairs',
      got='Isolated',
      fix='delete it: pairs are never joined',
    )
  if isolated:
    _check_pieces(run, name, vocabulary)
  if data.pack and not (pairs or isolated):
    raise errors.ConfigError(
      'Data.pack has nothing to pack: text without Isolated documents fills '
      'its rows',
      fix='--gin.Data.documents=@Isolated(), or --gin.Data.pack=False',
    )
  if data.stream:
    _check_stream(run, isolated)
  if data.pack and isinstance(run.objective, specs.Classification):
    raise errors.ConfigError(
      'Data.pack is on, and Classification has one label a row',
      fix='--gin.Data.pack=False, or Supervised',
    )


def _check_pieces(run, name, vocabulary):
  """Refuses rows that long documents can't be cut to without too short rests.

  A last piece that is too short takes from the one before it.
  """
  corruption = corruptions.OBJECTIVES[type(run.objective)]
  length = corruption.raw_length(run.objective, run.data.lengths, vocabulary)
  least = 2 * corruption.MIN_LENGTH - 1
  if length < least:
    raise errors.ConfigError(
      f'Data.lengths are too short for pieces of documents that {name} can use',
      got=f'{run.data.lengths}: {length} tokens of text',
      expected=f'{least} tokens of text or more',
      fix='longer Data.lengths, or leave out Data.documents=@Isolated()',
    )


def _check_stream(run, isolated):
  """Refuses what takes an index of all examples."""
  data = run.data
  needs = {
    type(run.objective).__name__: isinstance(
      run.objective, specs.Classification
    ),
    'Data.pack': data.pack,
    'Data.documents=@Isolated()': isolated,
    'Mixture.parts without rates': isinstance(data.mixture, specs.Mixture)
    and None in data.mixture.parts.values(),
  }
  for name, needed in needs.items():
    if needed:
      raise errors.ConfigError(
        f'{name} needs to know all examples, and Data.stream reads them as '
        'they come',
        fix='--gin.Data.stream=False, or leave it out',
      )


def feature_lengths(run):
  """Tokens of each feature of an example, a dict."""
  corruption = corruptions.OBJECTIVES[type(run.objective)]
  return corruption.feature_lengths(run.objective, run.data.lengths)


def widths(run):
  """Places in a row of each stack, a dict: `encoder` if any, and `decoder`.

  A decoder alone reads inputs and targets in one row, as long as both can be.
  """
  if run.model.encoder_layers:
    lengths = feature_lengths(run)
    return {'encoder': lengths['inputs'], 'decoder': lengths['targets']}
  corruption = corruptions.OBJECTIVES[type(run.objective)]
  return {'decoder': corruption.joint_length(run.objective, run.data.lengths)}


def _check_distinct(stores):
  """Refuses parts of a mixture that are the same data by two names."""
  seen = {}
  for name, store in stores.items():
    if (other := seen.setdefault(store.fingerprint, name)) != name:
      raise errors.ConfigError(
        'two parts of the mixture are the same',
        got=f'{other} and {name}',
        fix='leave one out, and give the other a higher rate',
      )


class Batches:
  """The batches of a split: of one corpus or task, or of a mixture of them.

  Attributes:
    parts: {name: rows.Rows}.
    num_rows: rows of an epoch, of all parts.
    num_examples: examples of an epoch, of all parts.
    fingerprint: of the data and the vocabulary.
  """

  def __init__(self, run, stores, vocabulary, split):
    """Makes the batches of a split.

    Args:
      run: specs.Run.
      stores: {name: store.Store} of `mixtures.parts`.
      vocabulary: the vocabulary.
      split: 'train' or 'validation'; parts without it are left out.

    Raises:
      errors.ConfigError: as `check`.
      errors.DataError: the split is missing or makes no example.
    """
    check(run, vocabulary)
    self._width, self._seed = widths(run), run.seed
    parts = mixtures.parts(run, vocabulary)
    _check_distinct(stores)
    if len(parts) > 1 and split != 'train':
      there = {name: x for name, x in parts.items() if stores[name].has(split)}
      parts = there or parts  # none: the first says so
    self.parts = {
      name: rows.Rows(
        part,
        stores[name],
        vocabulary,
        split,
        self._width,
        f'{run.seed} {name}' if run.data.mixture else run.seed,
      )
      for name, part in parts.items()
    }
    all_ = list(self.parts.values())
    self.num_rows = sum(part.count for part in all_)
    self.num_examples = sum(part.examples for part in all_)
    self.fingerprint = _fingerprint(self.parts, stores)
    self._schedule = None
    if len(all_) > 1 and split == 'train':
      rates = mixtures.rates(
        run,
        {name: part.examples for name, part in self.parts.items()},
        vocabulary,
      )
      # A row of a part holds so many examples: rates are of examples.
      self._schedule = mixing.Schedule(
        list(parts),
        [
          rates[name] * (part.count / part.examples)
          for name, part in self.parts.items()
        ],
        run.seed,
      )

  def at(self, position, size, rows=None):
    """The `size` rows from `position` on: the batch contract, as a dict.

    Args:
      position: rows consumed before.
      size: rows in the batch.
      rows: of the batch, those to make; None for all.
    """
    places_B = position + (np.arange(size) if rows is None else rows)
    part_B, number_B = self._turns(places_B)
    return _merged(
      (part_B == n, part.at(number_B[part_B == n]))
      for n, part in enumerate(self.parts.values())
      if (part_B == n).any()
    )

  def sources(self, position, size):
    """Which of the parts, by number, each of these rows is of, int [size]."""
    return self._turns(position + np.arange(size))[0]

  def _turns(self, places_B):
    """(part of each place, which of that part's rows), each [B]."""
    if self._schedule is not None:
      return self._schedule.at(places_B)
    if len(self.parts) == 1:
      return np.zeros(len(places_B), np.int32), places_B
    # What is not trained on has no rates: every row once an epoch.
    epoch_B, place_B = np.divmod(places_B, self.num_rows)
    index_B = order.permutation(
      self.num_rows, f'{self._seed} mixture', epoch_B, place_B
    )
    count_P = np.array([part.count for part in self.parts.values()])
    end_P = np.cumsum(count_P)
    part_B = np.searchsorted(end_P, index_B, side='right')
    return part_B, index_B - (end_P - count_P)[part_B] + epoch_B * count_P[
      part_B
    ]

  def evaluation(self, size, limit=None, rows=None):
    """Batches of each example once, one a row, in order, drawn always alike.

    Args:
      size: examples in a batch; the last is filled up with rows whose segment
        ids and loss weights are 0.
      limit: at most so many examples, evenly spread over the split.
      rows: of each batch, those to make; None for all.

    Yields:
      The batch contract, as a dict.
    """
    count = min(limit or self.num_examples, self.num_examples)
    rows = np.arange(size) if rows is None else rows
    ends = np.cumsum([part.examples for part in self.parts.values()])
    for first in range(0, count, size):
      place_B = np.minimum(first + rows, count - 1)
      index_B = place_B * self.num_examples // count
      part_B = np.searchsorted(ends, index_B, side='right')
      batch = _merged(
        (
          part_B == n,
          part.evaluation(index_B[part_B == n] - end + part.examples),
        )
        for n, (part, end) in enumerate(zip(self.parts.values(), ends))
        if (part_B == n).any()
      )
      for x in batch.values():
        x[first + rows >= count] = 0
      yield batch

  def shares(self):
    """{part: (share of the examples that was asked for, that it has)}."""
    if self._schedule is None:
      return {
        name: (part.examples / self.num_examples,) * 2
        for name, part in self.parts.items()
      }
    each = [part.examples / part.count for part in self.parts.values()]
    found = []
    for rows_of in (self._schedule.shares, self._schedule.counts):
      examples = rows_of * each
      found.append((examples / examples.sum()).tolist())
    return dict(zip(self.parts, zip(*found, strict=True), strict=True))

  def notes(self):
    """Sentences on the examples that a user should know."""
    for name, part in self.parts.items():
      start = f'{name}: ' if len(self.parts) > 1 else ''
      yield from (start + note for note in part.notes())


def _merged(found):
  """One batch of several, each in its places: (bool [B], batch) of each."""
  whole = None
  for here_B, batch in found:
    if here_B.all():
      return batch
    if whole is None:
      whole = {
        name: np.empty((len(here_B), *x.shape[1:]), x.dtype)
        for name, x in batch.items()
      }
    for name, x in batch.items():
      whole[name][here_B] = x
  return whole


def _fingerprint(parts, stores):
  """A digest of the data: of each part its name, its store and its rows."""
  if len(parts) == 1:
    [(name, part)] = parts.items()
    text = stores[name].fingerprint
    if not part.digest:
      return text
    return hashlib.sha256(f'{text} {part.digest}'.encode()).hexdigest()
  text = [
    [name, stores[name].fingerprint, part.digest]
    for name, part in parts.items()
  ]
  return hashlib.sha256(json.dumps(text).encode()).hexdigest()


def prefetch(batches, position, size, rows=None):
  """(position, batch) from a position on, without end, made ahead of need.

  Args:
    batches: Batches.
    position: rows consumed before.
    size: rows in a batch.
    rows: of each batch, those to make; None for all.
  """

  def read(i):
    start = position + int(i) * size
    return start, batches.at(start, size, rows)

  import grain  # brings JAX, which those who make a store do without

  stream = grain.MapDataset.range(np.iinfo(np.int64).max // size).map(read)
  options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)
  return iter(stream.to_iter_dataset(options))
