"""Random bits as a pure function of what they are for: Philox4x32-10.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011. Written out,
because NumPy's samplers may change between versions, and because one call
draws for each example of a batch from a stream of its own.
"""

import dataclasses
import hashlib

import numpy as np

_ROUNDS = 10
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_LOW = 0xFFFFFFFF


def philox(counter, key):
  """Four uint32 arrays from four arrays of counter words and two key words."""
  a, b, c, d = (np.asarray(word, np.uint64) for word in counter)
  for i in range(_ROUNDS):
    left, right = ((key[j] + i * _WEYL[j]) & _LOW for j in (0, 1))
    p, q = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
    a, b = (q >> 32) ^ b ^ left, q & _LOW
    c, d = (p >> 32) ^ d ^ right, p & _LOW
  return [word.astype(np.uint32) for word in (a, b, c, d)]


def bits(seed, stream, epoch, index, n):
  """The first `n` words of the bit stream of each example.

  Args:
    seed: any integer.
    stream: a word that says what the bits are for; streams are independent.
    epoch: int or int [B], below 2^32.
    index: int [B], which example.
    n: how many words.

  Returns:
    uint32 [B, n].
  """
  digest = hashlib.sha256(f'{seed} {stream}'.encode()).digest()
  key = [int.from_bytes(digest[i : i + 4], 'little') for i in (0, 4)]
  index_B = np.asarray(index, np.uint64)
  epoch_B = np.broadcast_to(np.asarray(epoch, np.uint64), index_B.shape)
  blocks = -(-n // 4)
  counter = (
    np.arange(blocks)[None, :],
    (index_B & _LOW)[:, None],
    (index_B >> 32)[:, None],
    epoch_B[:, None],
  )
  words_BK4 = np.stack(philox(counter, key), axis=-1)
  return words_BK4.reshape(len(index_B), 4 * blocks)[:, :n]


@dataclasses.dataclass(frozen=True)
class Draw:
  """Random words of each example of a batch: draw(n) is uint32 [B, n]."""

  seed: int
  stream: str
  epoch_B: np.ndarray
  index_B: np.ndarray

  def __call__(self, n):
    return bits(self.seed, self.stream, self.epoch_B, self.index_B, n)

  def rows(self, rows, purpose):
    """Those of some rows for another purpose, independent of these."""
    epoch_B, index_B = self.epoch_B[rows], self.index_B[rows]
    return Draw(self.seed, f'{self.stream} {purpose}', epoch_B, index_B)


def uniform(words_B2, below):
  """Whole numbers in [0, below) of two words each, all equally likely.

  Up to one part in 2^64 / below.
  """
  words_B2 = words_B2.astype(np.uint64)
  word_B = words_B2[:, 0] << np.uint64(32) | words_B2[:, 1]
  return (word_B % np.asarray(below).astype(np.uint64)).astype(np.int64)
