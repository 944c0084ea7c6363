"""Tokenised corpora on disk, read at any place.

A store is a folder that is complete or absent:

  manifest.json                             written last; all else hangs on it
  <split>/<array>.arrayrecord-00000-of-00001    shards of blocks of numbers

An array is a sequence of little-endian numbers in records of 4,096; only the
last record of a shard may be shorter. A shard may say what to add to its
numbers: each part of a corpus counts its places from 0. `tokens` holds the
documents of a split end to end with nothing between them, as T5 reads them (EOS
comes with the corruption); `documents` holds where each of them starts. Of
pairs, `tokens` holds inputs and targets in turn, each with its EOS, and `pairs`
where each of these starts. Reading needs no TensorFlow.
"""

import hashlib
import json

import numpy as np

from t5x_lite import errors
from t5x_lite import storage
from t5x_lite.data import arrays

FORMAT = 2
MANIFEST = 'manifest.json'


class _Split:
  """The tokens of one split.

  Attributes:
    num_tokens: how many.
    unknown: how many of them are the unknown piece.
  """

  def __init__(self, folder, entry):
    self.arrays = {
      name: arrays.Array(folder, array)
      for name, array in entry['arrays'].items()
    }
    self.num_tokens = len(self.arrays['tokens'])
    self.unknown = entry['unknown']

  def rows(self, starts_B, length):
    """Stretches of tokens, int32 [B, length], zero past the end."""
    return self.arrays['tokens'].read(starts_B, length).astype(np.int32)


class Tokens(_Split):
  """Documents, one behind the other.

  Attributes:
    num_documents: how many.
  """

  def __init__(self, folder, entry):
    super().__init__(folder, entry)
    self.num_documents = len(self.arrays['documents'])

  def bounds(self, first, last):
    """Where documents in [first, last) start and end, int64 [N] each."""
    [places] = self.arrays['documents'].read([first], last + 1 - first)
    if last == self.num_documents:
      places[-1] = self.num_tokens
    return places[:-1], places[1:]

  def document(self, i):
    """The tokens of document `i`, int32 [L]."""
    [start], [end] = self.bounds(i, i + 1)
    return self.rows([start], int(end - start))[0]


class Pairs(_Split):
  """Inputs and targets.

  Attributes:
    num_pairs: how many.
  """

  def __init__(self, folder, entry):
    super().__init__(folder, entry)
    self.num_pairs = len(self.arrays['pairs']) // 2

  def bounds(self, index_B):
    """Where inputs start, targets start and targets end, int64 [B, 3]."""
    index_B = np.asarray(index_B)
    bounds_B3 = self.arrays['pairs'].read(2 * index_B, 3)
    bounds_B3[index_B == self.num_pairs - 1, 2] = self.num_tokens
    return bounds_B3

  def lengths(self, first, last):
    """Tokens of inputs and of targets of the pairs in [first, last), [N, 2]."""
    [starts] = self.arrays['pairs'].read([2 * first], 2 * (last - first) + 1)
    if last == self.num_pairs:
      starts[-1] = self.num_tokens
    return np.diff(starts).reshape(-1, 2)

  def pairs(self, index_B, widths, least=False):
    """Inputs and targets; longer ones lose what is before their last token.

    That is EOS, as T5's `append_eos_after_trim` keeps it.

    Args:
      index_B: which pairs.
      widths: tokens of inputs and targets, at most.
      least: whether rows are only as wide as the longest of these needs.

    Returns:
      inputs int32 [B, widths[0]], their lengths [B], targets int32
      [B, widths[1]], their lengths [B].
    """
    bounds_B3, found = self.bounds(index_B), []
    if least:
      longest = np.maximum(np.diff(bounds_B3).max(0), 1)
      widths = np.minimum(longest, widths).tolist()
    for side, width in enumerate(widths):
      start_B, end_B = bounds_B3[:, side], bounds_B3[:, side + 1]
      length_B = np.minimum(end_B - start_B, width)
      rows_BL = self.rows(start_B, width)
      rows_BL[np.arange(width) >= length_B[:, None]] = 0
      cut_B = end_B - start_B > width
      rows_BL[cut_B, -1] = self.rows(end_B[cut_B] - 1, 1)[:, 0]
      found += [rows_BL, length_B.astype(np.int32)]
    return found


class Store:
  """A tokenised corpus.

  Attributes:
    folder: where it lies.
    manifest: its manifest, a dict.
    fingerprint: of all that its tokens depend on.
  """

  def __init__(self, folder):
    """Opens a store; a DataError names what is damaged."""
    self.folder = storage.path(folder)
    file = self.folder / MANIFEST
    try:
      self.manifest = json.loads(file.read_text())
      found = self.manifest['format']
      if found != FORMAT:
        raise errors.DataError(
          'tokenised corpus is of another format',
          where=self.folder,
          got=found,
          expected=FORMAT,
          fix=f'delete {self.folder}; it is made again from the corpus',
        )
      self.fingerprint = self.manifest['fingerprint']
      self._splits = {}
      for name, entry in self.manifest['splits'].items():
        arrays.check_name(name)
        kind = Pairs if 'pairs' in entry['arrays'] else Tokens
        self._splits[name] = kind(self.folder / name, entry)
    except (OSError, ValueError, KeyError, TypeError) as e:
      raise arrays.broken(file, repr(e)[:120], 'a manifest', self.folder) from e

  def has(self, split):
    """Whether there are documents of this split."""
    return split in self._splits

  def split(self, name):
    """The Tokens of a split."""
    if name not in self._splits:
      raise errors.DataError(
        'corpus has no such split',
        where=self.folder,
        got=name,
        expected=' or '.join(self._splits),
        fix='hold documents out by --gin.Data.held_out=0.05'
        if name == 'validation'
        else None,
      )
    return self._splits[name]

  def verify(self):
    """Compares every file with the digest of when it was written."""
    for tokens in self._splits.values():
      for array in tokens.arrays.values():
        array.verify()

  def content(self):
    """A digest of all the tokens, by those of their files."""
    digests = sorted(
      shard['sha256']
      for entry in self.manifest['splits'].values()
      for array in entry['arrays'].values()
      for shard in array['shards']
    )
    return hashlib.sha256(''.join(digests).encode()).hexdigest()

  def notes(self):
    """Sentences on what reading the corpus met that a user should know."""
    read = self.manifest['read']
    found = []
    if read['bad_lines']:
      found.append(
        f'{read["bad_lines"]:,} lines are not UTF-8, their bad bytes were '
        f'replaced; the first at {read["first_bad"]}'
      )
    if read['blank']:
      found.append(f'{read["blank"]:,} blank documents were left out')
    if read['cut']:
      found.append(
        f'{read["cut"]:,} documents begin in the middle: what is longer than '
        '16 MiB is stored as several'
      )
    tokens = sum(split.num_tokens for split in self._splits.values())
    unknown = sum(split.unknown for split in self._splits.values())
    if unknown > 0.05 * tokens:
      found.append(
        f'{unknown / tokens:.0%} of the tokens are unknown to the vocabulary'
      )
    return found
