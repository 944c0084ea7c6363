"""Rows of one part of the data, and which examples stand in them."""

import numpy as np

from t5x_lite import record
from t5x_lite.corruptions import features
from t5x_lite.corruptions import random_bits
from t5x_lite.data import arrays as stored
from t5x_lite.data import index
from t5x_lite.data import order
from t5x_lite.data import packing
from t5x_lite.data import streams
from t5x_lite.data import units

_EVALUATION_SEED = 0  # the same for all runs, so that they can be compared
_ORDER_SEED = 0  # of what is packed together; the same for all runs, too


class Rows:
  """The rows of a split of a store, in endless epochs.

  Row n of the stream is in epoch n // N, and is there the permutation(n % N)-th
  of N. What is drawn for an example depends on the seed, the epoch and which
  example it is, on nothing else.

  Attributes:
    count: rows of an epoch.
    examples: examples of an epoch.
    limits: {side: most tokens of it in an example}, as of `units`.
    digest: of what is in each row besides the store and the run.
  """

  def __init__(self, run, store, vocabulary, split, widths, seed):
    """Takes a split of a store.

    Args:
      run: specs.Run, of this part.
      store: store.Store.
      vocabulary: the vocabulary.
      split: 'train' or 'validation'.
      widths: tokens of a row of each stack.
      seed: of order and draws.
    """
    self._units = units.of(run, store, vocabulary, split)
    self._widths, self._seed = widths, seed
    self._run, self._bins = run, None
    self.count = self.examples = self._units.count
    self.limits = self._units.limits
    self.digest = self._units.digest
    if run.data.pack and split == 'train':
      settings = {
        'split': split,
        'objective': record.record(run.objective),
        'documents': record.record(run.data.documents),
        'lengths': run.data.lengths,
        'widths': widths,
        'vocabulary': vocabulary.fingerprint,
        'examples': self._units.digest,
      }
      self._bins = index.open_or_make(store, 'bins', settings, self._pack)
      self.count = self._bins.counts['bins']
      self.digest = self._bins.digest

  def _pack(self, writer):
    """Bins of some blocks of examples at a time, which lie far apart."""
    sides = list(self._widths)
    kinds = [0, 1] if sides == ['encoder', 'decoder'] else [2]
    room_C = [self._widths[side] for side in sides]
    block = min(stored.BLOCK, packing.WINDOW)
    blocks = -(-self._units.count // block)
    some = packing.WINDOW // block
    filled_C, members, bins = np.zeros(len(kinds), int), 0, 0
    for first in range(0, blocks, some):
      places = np.arange(first, min(first + some, blocks))
      starts = order.permutation(blocks, _ORDER_SEED, 0, places) * block
      bounds = [(x, min(x + block, self._units.count)) for x in starts.tolist()]
      index_J = np.concatenate([np.arange(*bound) for bound in bounds])
      sizes_J3 = np.concatenate([self._units.sizes(*bound) for bound in bounds])
      sizes_JC = sizes_J3[:, kinds]
      bin_J = packing.pack(sizes_JC, room_C)
      counts = np.bincount(bin_J)
      writer.append('members', index_J[np.argsort(bin_J, kind='stable')])
      writer.append('starts', members + np.cumsum(counts) - counts)
      filled_C += sizes_JC.sum(0)
      members += len(index_J)
      bins += len(counts)
    writer.counts = {'bins': bins} | dict(
      zip(sides, filled_C.tolist(), strict=True)
    )

  def at(self, number_B):
    """The rows in these places of the stream: the batch contract."""
    epoch_B, place_B = np.divmod(number_B, self.count)
    if self._run.data.stream:
      return self._single(self._seed, epoch_B, place_B)
    index_B = order.permutation(self.count, self._seed, epoch_B, place_B)
    if self._bins is None:
      return self._single(self._seed, epoch_B, index_B)
    member_J, row_J = self._members(index_B)
    draw = random_bits.Draw(self._seed, 'corruption', epoch_B[row_J], member_J)
    rows = self._units.rows(draw, member_J, least=True)
    batch = self._units.batch(rows, None)
    return features.pack(batch, row_J, self._widths)

  def _members(self, index_B):
    """(which examples are in these rows, and in which of them), [J] each."""
    start_B2 = self._bins.arrays['starts'].read(index_B, 2)
    start_B2[index_B == self.count - 1, 1] = self.examples
    count_B = np.diff(start_B2)[:, 0]
    member_BN = self._bins.arrays['members'].read(
      start_B2[:, 0], int(count_B.max())
    )
    row_J = np.repeat(np.arange(len(index_B)), count_B)
    return member_BN[np.arange(member_BN.shape[1]) < count_B[:, None]], row_J

  def _single(self, seed, epoch_B, index_B):
    draw = random_bits.Draw(seed, 'corruption', epoch_B, index_B)
    rows = self._units.rows(draw, index_B)
    return self._units.batch(rows, self._widths['decoder'])

  def evaluation(self, index_B):
    """Some examples, one a row, whose draws are the same for all runs."""
    return self._single(_EVALUATION_SEED, np.zeros_like(index_B), index_B)

  def fill(self):
    """{stack: share of the places that hold a token} of packed rows, or {}."""
    if self._bins is None:
      return {}
    return {
      side: self._bins.counts[side] / (self.count * width)
      for side, width in self._widths.items()
    }

  def notes(self):
    yield from self._units.notes()
    if self._run.data.stream:
      yield streams.PROMISE
    if fill := self.fill():
      shares = ', '.join(f'{side} {x:.1%}' for side, x in fill.items())
      yield (
        f'{self.examples:,} examples are packed in {self.count:,} rows, which '
        f'they fill to {shares} at most'
      )
