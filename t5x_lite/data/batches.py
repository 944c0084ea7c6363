"""Batches as a pure function of the run and the data position.

Example n of the endless stream of a split of N examples is in epoch n // N, and
is there the permutation(n % N)-th of the split. Its corruption depends on the
seed, the epoch and which example it is, on nothing else.
"""

import abc
import hashlib

import numpy as np

from t5x_lite import corruptions
from t5x_lite import errors
from t5x_lite import specs
from t5x_lite.corruptions import features
from t5x_lite.corruptions import random_bits
from t5x_lite.data import ending
from t5x_lite.data import order

_EVALUATION_SEED = 0  # the same for all runs, so that they can be compared


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
  pairs = type(run.objective) in corruptions.PAIRS
  if run.data.task is not None and not pairs:
    raise errors.ConfigError(
      f'{name} learns from text, and a task has inputs and targets',
      where='Data.task',
      got=run.data.task,
      fix='--gin.Run.objective=@Supervised(), or Data.corpus',
    )
  if isinstance(model.position, specs.Learned):
    for stack, width in widths(run).items():
      if width > model.position.length:
        raise errors.ConfigError(
          f'a row of the {stack} is longer than Learned.length',
          got=f'{width} tokens, Learned.length {model.position.length}',
          fix=f'--gin.Learned.length={width}, or shorter Data.lengths',
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


class Examples(abc.ABC):
  """The examples of one split, in endless epochs.

  Attributes:
    num_examples: examples in an epoch.
    fingerprint: of the data and the vocabulary.
  """

  def __init__(self, num_examples, fingerprint, seed):
    self.num_examples, self.fingerprint = num_examples, fingerprint
    self._seed = seed

  @abc.abstractmethod
  def _examples(self, seed, epoch_B, index_B):
    """Some examples, as the batch contract."""

  def at(self, position, size, rows=None):
    """The `size` examples from `position` on: the batch contract, as a dict.

    Args:
      position: examples consumed before.
      size: examples in the batch.
      rows: of the batch, those to make; None for all.
    """
    places_B = position + (np.arange(size) if rows is None else rows)
    epoch_B, place_B = np.divmod(places_B, self.num_examples)
    index_B = order.permutation(self.num_examples, self._seed, epoch_B, place_B)
    return self._examples(self._seed, epoch_B, index_B)

  def evaluation(self, size, limit=None, rows=None):
    """Batches of each example once, in order, corrupted always alike.

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
    for first in range(0, count, size):
      place_B = np.minimum(first + rows, count - 1)
      index_B = place_B * self.num_examples // count
      batch = self._examples(_EVALUATION_SEED, np.zeros_like(index_B), index_B)
      for x in batch.values():
        x[first + rows >= count] = 0
      yield batch

  def notes(self):
    """Sentences on the examples that a user should know."""
    return []


class Batches(Examples):
  """Examples of text.

  An example is so many tokens of the split in a row, across documents, as the
  objective fills its lengths with; language models read EOS behind each
  document. What is left at the end is an example too, a shorter one, if the
  objective can make one of it (span corruption needs two tokens).
  """

  def __init__(self, run, store, vocabulary, split):
    """Makes the batches of a split.

    Args:
      run: specs.Run.
      store: the Store of its corpus.
      vocabulary: the vocabulary.
      split: 'train' or 'validation'.

    Raises:
      errors.ConfigError: as `check`.
      errors.DataError: the split is missing or makes no example.
    """
    check(run, vocabulary)
    self._run, self._lengths = run, feature_lengths(run)
    self._width, self._vocabulary = widths(run)['decoder'], vocabulary
    self._corruption = corruptions.OBJECTIVES[type(run.objective)]
    self._raw = self._corruption.raw_length(
      run.objective, run.data.lengths, vocabulary
    )
    self._tokens = store.split(split)
    if self._corruption.ENDS_DOCUMENTS:
      self._tokens = ending.Ended(self._tokens, vocabulary.eos_id)
    whole, rest = divmod(self._tokens.num_tokens, self._raw)
    super().__init__(
      whole + (rest >= self._corruption.MIN_LENGTH), store.fingerprint, run.seed
    )
    if not self.num_examples:
      raise errors.DataError(
        f"split '{split}' has no example",
        where=run.data.corpus,
        got=f'{self._tokens.num_tokens} tokens in '
        f'{self._tokens.num_documents} documents',
        expected=f'{self._corruption.MIN_LENGTH} tokens or more',
      )

  def _examples(self, seed, epoch_B, index_B):
    start_B = index_B * self._raw
    lengths_B = np.minimum(self._raw, self._tokens.num_tokens - start_B)
    rows = self._corruption.examples(
      self._run.objective,
      self._tokens.rows(start_B, self._raw),
      lengths_B,
      random_bits.Draw(seed, 'corruption', epoch_B, index_B),
      self._vocabulary,
      self._lengths,
    )
    start_id = self._vocabulary.pad_id
    return features.of_stack(self._run.model, rows, start_id, self._width)


class Pairs(Examples):
  """Examples of inputs and targets, one of each pair."""

  def __init__(self, run, store, vocabulary, split):
    """As of Batches."""
    check(run, vocabulary)
    self._run, self._vocabulary = run, vocabulary
    self._width = widths(run)['decoder']
    self._corruption = corruptions.OBJECTIVES[type(run.objective)]
    self._read = self._corruption.pair_widths(
      run.objective, run.data.lengths, vocabulary
    )
    self._pairs = store.split(split)
    where = f'{split} of {run.data.corpus or run.data.task}'
    self._corruption.check_pairs(run.objective, self._pairs, vocabulary, where)
    # What a task's own Python gives may change while its files do not.
    digest = f'{store.fingerprint} {store.content()}'.encode()
    super().__init__(
      self._pairs.num_pairs, hashlib.sha256(digest).hexdigest(), run.seed
    )

  def _examples(self, seed, epoch_B, index_B):
    del seed, epoch_B  # nothing is drawn
    rows = self._pairs.pairs(index_B, self._read)
    return self._corruption.batch(
      self._run.objective, self._run.model, rows, self._vocabulary, self._width
    )

  def notes(self):
    """How many pairs are longer than there is room."""
    longer = self._pairs.lengths() > self._read
    for name, width, count in zip(
      ('inputs', 'targets'), self._read, longer.sum(0)
    ):
      if count:
        yield (
          f'{name} of {count:,} of {self.num_examples:,} pairs are cut to '
          f'{width} tokens; Data.lengths sets it'
        )


def examples(run, store, vocabulary, split):
  """The Batches or the Pairs of a run; see there."""
  kind = Pairs if type(run.objective) in corruptions.PAIRS else Batches
  return kind(run, store, vocabulary, split)


def prefetch(batches, position, size, rows=None):
  """(position, batch) from a position on, without end, made ahead of need.

  Args:
    batches: Batches.
    position: examples consumed before.
    size: examples in a batch.
    rows: of each batch, those to make; None for all.
  """

  def read(i):
    start = position + int(i) * size
    return start, batches.at(start, size, rows)

  import grain  # brings JAX, which those who make a store do without

  stream = grain.MapDataset.range(np.iinfo(np.int64).max // size).map(read)
  options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)
  return iter(stream.to_iter_dataset(options))
