"""What tensors there are, and how those of two sources differ."""

import collections
import math
from typing import NamedTuple

import numpy as np

from t5x_lite import show

_BLOCK = 1 << 20  # numbers that are float64 at a time


class Row(NamedTuple):
  """One tensor; the last five are None if its numbers were not asked for.

  The four before the last are None, too, if no number is finite.
  """

  name: str
  dtype: str
  shape: tuple
  count: int
  least: float | None = None
  most: float | None = None
  mean: float | None = None
  rms: float | None = None
  not_finite: int | None = None


class Difference(NamedTuple):
  """One tensor that is not the same in two sources.

  Attributes:
    name: of the tensor.
    what: 'missing', 'shape', 'dtype' or 'values': the first of these that
      differs.
    first: 'float32[2, 3]' or '-' if it is not there; `second` likewise.
    largest: |a - b| at its most, where both have a shape; else None. Not a
      number where only one of a and b is.
    relative: the same by the largest finite |a| or |b|.
  """

  name: str
  what: str
  first: str
  second: str
  largest: float | None = None
  relative: float | None = None


# -- one source ---------------------------------------------------------------


def table(tensors, values=False):
  """Yields a Row for each of {name: Tensor}.

  Args:
    tensors: read one at a time, and only with `values`.
    values: whether figures of their numbers are wanted.
  """
  for name, tensor in tensors.items():
    figures = _figures(tensor.read()) if values else ()
    yield Row(
      name, str(tensor.dtype), tuple(tensor.shape), tensor.count, *figures
    )


def totals(tensors):
  """{dtype: (tensors, numbers, bytes)} of {name: Tensor}, the most first."""
  found = collections.defaultdict(lambda: [0, 0, 0])
  for tensor in tensors.values():
    total = found[str(tensor.dtype)]
    for n, more in enumerate((1, tensor.count, tensor.size)):
      total[n] += more
  ordered = sorted(found.items(), key=lambda item: -item[1][2])
  return {dtype: tuple(total) for dtype, total in ordered}


def _blocks(array):
  """An array's numbers in order, a few at a time, in float64."""
  flat = array.reshape(-1)
  if flat.dtype.kind == 'c':
    flat = flat.view(flat.real.dtype)
  for start in range(0, len(flat), _BLOCK):
    yield flat[start : start + _BLOCK].astype(np.float64)


def _figures(array):
  """(least, most, mean, root mean square, how many are not finite)."""
  least, most, added, squares, finite, bad = np.inf, -np.inf, 0.0, 0.0, 0, 0
  for block in _blocks(array):
    good = block[np.isfinite(block)]
    bad += len(block) - len(good)
    if len(good):
      least, most = min(least, good.min()), max(most, good.max())
      finite += len(good)
      with np.errstate(over='ignore'):  # of squares of float64
        added, squares = added + good.sum(), squares + np.square(good).sum()
  if not finite:
    return None, None, None, None, bad
  rms = math.sqrt(squares / finite)
  return float(least), float(most), float(added / finite), rms, bad


# -- two ----------------------------------------------------------------------


def diff(first, second):
  """Yields a Difference, or None for equal ones, for each name in either.

  Tensors are equal if their bytes are: 0 and -0 are not.

  Args:
    first: {name: Tensor}; one at a time of each is read.
    second: another.
  """
  for name in dict.fromkeys([*first, *second]):
    a, b = first.get(name), second.get(name)
    said = name, _describe(a), _describe(b)
    if a is None or b is None:
      yield _difference('missing', *said)
    elif tuple(a.shape) != tuple(b.shape):
      yield _difference('shape', *said)
    else:
      x, y = a.read(), b.read()
      if a.dtype != b.dtype:
        yield _difference('dtype', *said, *_distance(x, y))
      elif _same_bytes(x, y):
        yield None
      else:
        yield _difference('values', *said, *_distance(x, y))


def _difference(what, name, first, second, *distance):
  return Difference(name, what, first, second, *distance)


def _describe(tensor):
  if tensor is None:
    return '-'
  return f'{tensor.dtype}{list(tensor.shape)}'


def _same_bytes(x, y):
  x, y = (z.reshape(-1).view(np.uint8) for z in (x, y))
  return all(
    np.array_equal(x[start : start + 8 * _BLOCK], y[start : start + 8 * _BLOCK])
    for start in range(0, len(x), 8 * _BLOCK)
  )


def _distance(x, y):
  """(the largest |a - b|, the same by the largest finite |a| or |b|)."""
  largest = scale = 0.0
  if (x.dtype.kind == 'c') != (y.dtype.kind == 'c'):
    return None, None
  for a, b in zip(_blocks(x), _blocks(y), strict=True):
    with np.errstate(invalid='ignore', over='ignore'):
      apart = np.abs(a - b)
    apart[(a == b) | (np.isnan(a) & np.isnan(b))] = 0
    largest = np.maximum(largest, apart.max())  # not a number stays
    for block in (a, b):
      good = np.abs(block[np.isfinite(block)])
      scale = max(scale, good.max(initial=0))
  return float(largest), float(largest / scale) if scale else None


# -- as text ------------------------------------------------------------------


def lines(tensors, values=False):
  """The table and the totals of {name: Tensor} as text."""
  head = ['tensor', 'dtype', 'shape', 'numbers']
  if values:
    head += ['least', 'most', 'mean', 'rms', 'not finite']
  rows = [
    [row.name, row.dtype, _shape(row.shape), *map(_number, row[3 : len(head)])]
    for row in table(tensors, values)
  ]
  return '\n'.join(
    [
      show.lines([head, *rows], right=len(head) - 3),
      '',
      *(
        f'{dtype}: {count:,} tensor{"s" * (count != 1)}, {numbers:,} numbers, '
        f'{size:,} bytes'
        for dtype, (count, numbers, size) in totals(tensors).items()
      ),
    ]
  )


def diff_lines(first, second):
  """(how many differ, the differences of two {name: Tensor} as text)."""
  found = list(diff(first, second))
  rows = [
    [row.name, row.what, row.first, row.second, *map(_number, row[4:])]
    for row in found
    if row
  ]
  text = f'{len(found) - len(rows)} of {len(found)} tensors are equal'
  if rows:
    head = ['tensor', 'differs in', 'first', 'second', 'at most', 'relative']
    text = f'{show.lines([head, *rows], right=2)}\n\n{text}'
  return len(rows), text


def _shape(shape):
  return ' x '.join(map(str, shape)) or 'scalar'


def _number(n):
  if n is None:
    return '-'
  return f'{n:,}' if isinstance(n, int) else f'{n:.5g}'
