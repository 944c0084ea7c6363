"""Which part of a mixture each place of the stream is of, and where in it.

Places come in blocks. Each block holds every part a whole number of times, in
an order of its own, so that any place is found without counting all before it:
the place in its part is what earlier blocks hold of it, and what stands before
it in the block. Example n of a part is always the n-th that is seen of it,
whatever else is in the mixture.
"""

import functools

import numpy as np

from t5x_lite import errors
from t5x_lite.data import order

_LEAST, _MOST = 1 << 10, 1 << 20  # places of a block
_EXACT = 0.01  # of a rate; blocks grow until all are within it


def quotas(shares, size):
  """How often a block of `size` places holds each part; the sum is `size`.

  By largest remainder.
  """
  exact = np.asarray(shares, np.float64) * size
  counts = np.floor(exact).astype(np.int64)
  short = size - counts.sum()
  first = np.argsort(counts - exact, kind='stable')[:short]
  counts[first] += 1
  return counts


class Schedule:
  """The stream of a mixture.

  Attributes:
    shares: of the examples, that the parts were to have, [P].
    counts: of the places of a block, what the parts have, [P].
    size: places of a block.
  """

  def __init__(self, names, rates, seed):
    """Makes the stream.

    Args:
      names: of the parts.
      rates: of the parts, relative to each other.
      seed: of the order in a block.

    Raises:
      errors.ConfigError: a part is so rare that a block has no place for it.
    """
    rates = np.asarray(rates, np.float64) / np.max(rates)
    least = np.finfo(np.float64).tiny  # a share that is not 0
    self.shares = np.maximum(rates / rates.sum(), least)
    self._seed, self.size = seed, _LEAST
    while self.size < _MOST and self._error() > _EXACT:
      self.size *= 2
    self.counts = quotas(self.shares, self.size)
    for name, share, count in zip(names, self.shares, self.counts, strict=True):
      if not count:
        raise errors.ConfigError(
          'part of the mixture is too rare',
          where=name,
          got=f'{share:.2g} of the examples',
          expected=f'{1 / self.size:.1g} or more',
          fix='raise its rate, or leave it out',
        )
    self._block = functools.lru_cache(maxsize=2)(self._block)

  def _error(self):
    counts = quotas(self.shares, self.size)
    return np.abs(counts / (self.shares * self.size) - 1).max()

  def _block(self, block):
    """(part of each place, how many of that part are before it), [size]."""
    slot_S = order.permutation(
      self.size, f'{self._seed} mixture', block, np.arange(self.size)
    )
    part_S = np.searchsorted(np.cumsum(self.counts), slot_S, side='right')
    before_S = np.empty(self.size, np.int64)
    for part, count in enumerate(self.counts):
      before_S[part_S == part] = np.arange(count)
    return part_S.astype(np.int32), before_S

  def at(self, places_B):
    """(part of each place, which of that part's examples), each [B]."""
    block_B, offset_B = np.divmod(places_B, self.size)
    part_B = np.empty(len(places_B), np.int32)
    number_B = np.empty(len(places_B), np.int64)
    for block in np.unique(block_B):
      here_B = block_B == block
      part_S, before_S = self._block(int(block))
      offset = offset_B[here_B]
      part_B[here_B] = part_S[offset]
      number_B[here_B] = before_S[offset] + block * self.counts[part_S[offset]]
    return part_B, number_B
