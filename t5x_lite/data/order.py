"""A different order for each epoch, without a list of it.

A Feistel network whose halves need not be equal permutes the numbers of as
many bits as n has; one that lands outside [0, n) is sent through again until it
lands inside (cycle walking, Black and Rogaway 2002). Any place of any epoch is
found at once, in memory that does not grow with n.
"""

import functools

import numpy as np

from t5x_lite.corruptions import random_bits

_ROUNDS = 12
_LEAST_BITS = 6  # on fewer, so few rounds do not reach every order alike
_WINDOW = 1 << 10  # places that are found at once, as the next ones are wanted


def _mix(x, key):
  """Scrambles 64-bit words; only the upper half is well mixed."""
  x = (x ^ key) * np.uint64(0x9E3779B97F4A7C15)
  x = (x ^ (x >> 32)) * np.uint64(0xD6E8FEB86659FD93)
  return (x ^ (x >> 29)) * np.uint64(0xA0761D6478BD642F)


def _feistel(x_B, keys_BR, low_bits, high_bits):
  low_B, high_B = x_B & ((1 << low_bits) - 1), x_B >> low_bits
  for r in range(0, _ROUNDS, 2):
    high_B = high_B ^ (_mix(low_B, keys_BR[:, r]) >> (64 - high_bits))
    low_B = low_B ^ (_mix(high_B, keys_BR[:, r + 1]) >> (64 - low_bits))
  return high_B << low_bits | low_B


def permutation(n, seed, epoch, index):
  """Which of `n` things stands at each place of an epoch's order.

  Args:
    n: how many things, up to 2^62.
    seed: any integer; each gives orders of its own.
    epoch: int or int [B].
    index: int [B], places in [0, n).

  Returns:
    int64 [B].
  """
  index_B = np.asarray(index, np.int64)
  if n == 1 or not index_B.size:
    return np.zeros_like(index_B)
  epoch_B = np.broadcast_to(np.asarray(epoch), index_B.shape)
  if (epoch_B != epoch_B[0]).any():
    return _permuted(n, seed, epoch_B, index_B)
  first, last = index_B.min() // _WINDOW, index_B.max() // _WINDOW
  if last - first > 1:
    return _permuted(n, seed, epoch_B[:1], index_B)
  windows = [
    _window(n, seed, int(epoch_B[0]), number)
    for number in range(int(first), int(last) + 1)
  ]
  return np.concatenate(windows)[index_B - first * _WINDOW]


@functools.lru_cache(maxsize=256)  # of 8 KiB; every part of a mixture has some
def _window(n, seed, epoch, number):
  """The permutation of some places in a row."""
  places = np.arange(number * _WINDOW, min((number + 1) * _WINDOW, n))
  return _permuted(n, seed, np.array([epoch]), places)


def _permuted(n, seed, epoch_B, index_B):
  """The permutation; one epoch may stand for all."""
  words_BR2 = random_bits.bits(
    seed, 'order', epoch_B, np.zeros(len(epoch_B), np.int64), 2 * _ROUNDS
  ).reshape(-1, _ROUNDS, 2)
  keys_BR = words_BR2[..., 0].astype(np.uint64) << 32 | words_BR2[..., 1]
  bits = max((n - 1).bit_length(), _LEAST_BITS)
  low_bits, high_bits = bits - bits // 2, bits // 2
  x_B = _feistel(index_B.astype(np.uint64), keys_BR, low_bits, high_bits)
  while (outside_B := x_B >= n).any():
    x_B[outside_B] = _feistel(
      x_B[outside_B],
      keys_BR if len(keys_BR) == 1 else keys_BR[outside_B],
      low_bits,
      high_bits,
    )
  return x_B.astype(np.int64)
