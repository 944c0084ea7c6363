"""A corpus in parts, each read at one go, by whatever process is free.

They are the same list each time, in the order of the corpus, so that a store
made of them is the same whoever made which.
"""

import dataclasses

_SMALLEST, _LARGEST = 1 << 24, 1 << 30  # bytes of a part
_COUNT = 256  # parts of a corpus, as far as these allow


@dataclasses.dataclass(frozen=True)
class Part:
  """A share of a split.

  Attributes:
    split: its name.
    pieces: what is read one after the other. Of files (path, start, end), in
      bytes of text or row groups of Parquet; end None: to the end of the file.
      Of a SeqIO source (split, shard, count of shards).
    bytes: that they take, about; 0 where that is not known.
  """

  split: str
  pieces: tuple
  bytes: int


def size(total):
  """Bytes of a part of a corpus of so many bytes."""
  return min(max(total // _COUNT, _SMALLEST), _LARGEST)


def group(splits):
  """Parts of pieces, in their order.

  Args:
    splits: {name: list of (piece, bytes)}.

  Returns:
    A list of Part.
  """
  listed = [x for pieces in splits.values() for x in pieces]
  wanted, found = size(sum(count for _, count in listed)), []
  for split, pieces in splits.items():
    held, taken = [], 0
    for piece, count in pieces:
      held.append(piece)
      taken += count
      if taken >= 0.75 * wanted:
        found.append(Part(split, _joined(held), taken))
        held, taken = [], 0
    if held:
      found.append(Part(split, _joined(held), taken))
  return found


def _joined(pieces):
  """Pieces with those that meet made one."""
  joined = []
  for name, start, end in pieces:
    if joined and joined[-1][0] == name and joined[-1][2] == start:
      joined[-1] = name, joined[-1][1], end
    else:
      joined.append((name, start, end))
  return tuple(joined)
