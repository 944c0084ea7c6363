"""Bins: which examples share a row.

A row has room for so many tokens of each kind: of inputs and of targets, or of
both together. Bins are filled by best-fit decreasing, some ten thousand
examples at a time, the largest first: each goes where it leaves least room.
"""

import numpy as np

WINDOW = 1 << 16  # examples that are packed at once
_GOOD = 0.95  # share of the bins that could not be fewer


def pack(sizes_JC, room_C):
  """Bins of a window of examples.

  Args:
    sizes_JC: tokens of each kind that each example takes, none above the room.
    room_C: tokens of each kind in a row; one or two kinds.

  Returns:
    int [J], the bin of each example; bins are numbered from 0.
  """
  sizes_JC, room_C = np.asarray(sizes_JC), np.asarray(room_C)
  if len(room_C) == 1:  # a second kind that takes no room
    sizes_JC = np.pad(sizes_JC, ((0, 0), (0, 1)))
    room_C = np.append(room_C, 1)
  # The kind that fills most of the rows goes first.
  kinds = np.argsort(-(sizes_JC.sum(0) / room_C), kind='stable')
  sizes_JC, room_C = sizes_JC[:, kinds], room_C[kinds]
  # The largest first; equal ones stay in order. Where both kinds are scarce,
  # what comes last is alike then, and any order is better.
  largest_J = np.argsort(-(sizes_JC / room_C).max(1), kind='stable')
  sizes, room = sizes_JC.tolist(), room_C.tolist()
  found = _fill(sizes, room, largest_J.tolist())
  least = np.ceil((sizes_JC.sum(0) / room_C).max())  # that bins could be
  if least < _GOOD * (found.max() + 1):
    other = _fill(sizes, room, range(len(sizes)))
    found = min(found, other, key=np.max)
  return found


def _fill(sizes, room, order):
  """Best fit: of the bins with room for both kinds, the one with least left.

  Least of the first kind, and then of the second. Open bins lie by what is left
  in them: those that are left (a, b) in open_[a][b], and a bit for each a and
  b that has any.
  """
  open_ = [{} for _ in range(room[0] + 1)]
  some, some_of = 0, [0] * (room[0] + 1)
  least_first, least_second = (min(kind) for kind in zip(*sizes, strict=True))
  bin_J, bins = np.empty(len(order), np.int64), 0
  for j in order:
    first, second = sizes[j]
    a, b, found = room[0], room[1], bins
    rest = some >> first
    at = first
    while rest:
      step = (rest & -rest).bit_length() - 1
      at += step
      if fits := some_of[at] >> second:
        a, b = at, second + (fits & -fits).bit_length() - 1
        found = open_[a][b].pop()
        if not open_[a][b]:
          some_of[a] &= ~(1 << b)
          if not some_of[a]:
            some &= ~(1 << a)
        break
      rest >>= step + 1
      at += 1
    if found == bins:
      bins += 1
    a, b = a - first, b - second
    bin_J[j] = found
    if a < least_first or b < least_second:
      continue  # nothing will fit in any more
    open_[a].setdefault(b, []).append(found)
    some_of[a] |= 1 << b
    some |= 1 << a
  return bin_J
