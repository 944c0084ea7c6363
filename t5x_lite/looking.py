"""Figures of data: lengths, copies, how full rows are, and rates of a mixture.

A sample is looked at, in blocks that are evenly spread, so that neither time
nor memory grows with the data.
"""

import hashlib
import itertools

import numpy as np

from t5x_lite import data
from t5x_lite import errors
from t5x_lite import storage

_BLOCK = 128  # documents or pairs that are looked at in a row
_COMPARED = (
  1 << 16
)  # tokens of a document that are compared, besides its length
_ROWS = 64  # that are made at once
_PLACES = 1 << 23  # of rows that padding is measured on, at most
_BARS = 16  # of a histogram, at most


def sample(count, wanted):
  """[first, last) of blocks of a sample of `count` things; none overlap."""
  wanted = min(wanted, count)
  blocks = -(-wanted // _BLOCK)
  for block in range(blocks):
    begin, end = (n * wanted // blocks for n in (block, block + 1))
    first = begin + block * (count - wanted) // blocks
    yield first, first + end - begin


def histogram(length_N):
  """{'starts': where each bar begins, 'counts'}; the last is open above.

  Bars are equally wide, a whole number of tokens, so that one in a hundred at
  most is beyond them.
  """
  most = max(int(np.quantile(length_N, 0.99)), 1)
  width = next(
    step * 10**power
    for power in itertools.count()
    for step in (1, 2, 5)
    if most // (step * 10**power) + 2 <= _BARS
  )
  bars = min(int(length_N.max()) // width, most // width + 1) + 1
  bar_N = np.minimum(length_N // width, bars - 1)
  return {
    'starts': [n * width for n in range(bars)],
    'counts': np.bincount(bar_N, minlength=bars).tolist(),
  }


def _lengths(length_N, limit):
  """What is told of lengths; `limit` is the most that an example takes."""
  found = {
    'shortest': int(length_N.min()),
    'mean': float(length_N.mean()),
    'longest': int(length_N.max()),
    'histogram': histogram(length_N),
  }
  if limit is not None:
    longer = float((length_N > limit).mean())
    found |= {'limit': int(limit), 'longer': longer}
  return found


def _stored(split, wanted):
  """Yields (lengths, tokens) of the sides of each of a sample of a split."""
  pairs = hasattr(split, 'num_pairs')
  count = split.num_pairs if pairs else split.num_documents
  for first, last in sample(count, wanted):
    if pairs:
      bounds_NS = split.bounds(np.arange(first, last))
    else:
      bounds_NS = np.stack(split.bounds(first, last), axis=1)
    for bounds in bounds_NS:
      lengths = np.diff(bounds).tolist()
      yield (
        lengths,
        [
          split.rows([start], min(length, _COMPARED))[0]
          for start, length in zip(bounds[:-1], lengths, strict=True)
        ],
      )


def _streamed(tokens, sides, wanted):
  """As `_stored`, of the first that come."""
  while wanted and (found := list(itertools.islice(tokens, sides))):
    yield [len(x) for x in found], [x[:_COMPARED] for x in found]
    wanted -= 1


def _look(found, sides, limits, unknown_id):
  """Figures of documents, or of pairs."""
  lengths, seen, unknown, compared = [], {}, 0, 0
  for each, tokens in found:
    lengths.append(each)
    parts = [
      hashlib.blake2b(x.tobytes(), digest_size=16).digest() + length.to_bytes(8)
      for x, length in zip(tokens, each, strict=True)
    ]
    if len(sides) > 1:
      seen.setdefault('pairs', set()).add(b''.join(parts))
    seen.setdefault(sides[0], set()).add(parts[0])
    unknown += sum(int((x == unknown_id).sum()) for x in tokens)
    compared += sum(map(len, tokens))
  lengths_NS = np.array(lengths, np.int64).reshape(-1, len(sides))
  looked = len(lengths_NS)
  return {
    'looked_at': looked,
    'tokens': int(lengths_NS.sum()),
    'unknown': unknown / max(compared, 1),
    'copies': {name: 1 - len(x) / looked for name, x in seen.items()},
    'lengths': {
      side: _lengths(length_N, limits.get(side))
      for side, length_N in zip(sides, lengths_NS.T, strict=True)
      if looked
    },
  }


def of_split(store, split, wanted, limits=(), vocabulary=None):
  """Figures of a split of one store.

  Args:
    store: data.Store or data.Stream.
    split: its name.
    wanted: documents or pairs that are looked at, at most.
    limits: {side: most tokens of it that an example takes}.
    vocabulary: of a stream.

  Returns:
    A dict for JSON; shares are in [0, 1].
  """
  limits = dict(limits)
  if isinstance(store, data.Stream):
    sides = list(limits)
    found = _streamed(iter(store.documents(split)), len(sides), wanted)
    kind = 'pairs' if len(sides) > 1 else 'documents'
    return {'kind': kind, 'count': None} | _look(
      found, sides, limits, vocabulary.unk_id
    )
  tokens = store.split(split)
  pairs = hasattr(tokens, 'num_pairs')
  sides = ['inputs', 'targets'] if pairs else ['documents']
  return {
    'kind': 'pairs' if pairs else 'documents',
    'count': tokens.num_pairs if pairs else tokens.num_documents,
    **_look(_stored(tokens, wanted), sides, limits, None),
    'tokens': tokens.num_tokens,
    'unknown': tokens.unknown / max(tokens.num_tokens, 1),
    'store': str(store.folder),
    'read': {
      name: store.manifest['read'][name]
      for name in ('blank', 'bad_lines', 'first_bad', 'cut')
    },
  }


def _filled(batches, widths, position, wanted):
  """What rows hold, by the part that they are of.

  Returns:
    {'rows', 'examples', each stack: its tokens, 'fuller': share of the places
    of the fuller stack, summed}, each [P].
  """
  parts = len(batches.parts)
  most = max(_PLACES // sum(widths.values()), _ROWS)
  count = min(wanted, batches.num_rows, most)
  found = {
    name: np.zeros(parts) for name in ('rows', 'examples', 'fuller', *widths)
  }
  for first in range(0, count, _ROWS):
    at, size = position + first, min(_ROWS, count - first)
    part_B, batch = batches.sources(at, size), batches.at(at, size)
    examples_B, fuller_B = np.zeros((2, size))
    for stack, width in widths.items():
      segments_BL = batch[f'{stack}_segment_ids']
      real_B = (segments_BL > 0).sum(1)
      examples_B = np.maximum(examples_B, segments_BL.max(1))
      fuller_B = np.maximum(fuller_B, real_B / width)
      np.add.at(found[stack], part_B, real_B)
    np.add.at(found['rows'], part_B, 1)
    np.add.at(found['examples'], part_B, examples_B)
    np.add.at(found['fuller'], part_B, fuller_B)
  return found


def _rows(widths, found):
  """What is told of rows; a share of padding is 1 - tokens / places."""
  rows = int(found['rows'])
  if not rows:
    return {'rows': 0}
  return {
    'rows': rows,
    'examples_per_row': float(found['examples'] / rows),
    'padding': {
      stack: float(1 - found[stack] / (rows * width))
      for stack, width in widths.items()
    },
    'padding_of_fuller_stack': float(1 - found['fuller'] / rows),
  }


def of_batches(batches, widths, position, wanted):
  """Figures of rows and of rates.

  Args:
    batches: data.Batches.
    widths: {stack: places of a row}.
    position: rows consumed before the first that is looked at.
    wanted: rows that are looked at, at most.

  Returns:
    ({part: figures}, figures of all of them together).
  """
  found = _filled(batches, widths, position, wanted)
  parts = {}
  for n, (name, rates) in enumerate(batches.shares().items()):
    here = {key: x_P[n] for key, x_P in found.items()}
    drawn = float(here['examples'] / found['examples'].sum())
    parts[name] = {
      'rows': _rows(widths, here),
      'rate': dict(
        zip(('wanted', 'schedule', 'drawn'), (*rates, drawn), strict=True)
      ),
    }
  return parts, _rows(widths, {key: x_P.sum() for key, x_P in found.items()})


def of_run(run, stores, batches, vocabulary, split, position, wanted):
  """Figures of a split of a run's data; see `of_split` and `of_batches`."""
  parts = {
    name: of_split(stores[name], split, wanted, part.limits, vocabulary)
    for name, part in batches.parts.items()
  }
  found, rows = of_batches(batches, data.widths(run), position, wanted)
  return {
    'split': split,
    'parts': {name: parts[name] | found[name] for name in parts},
    'rows': rows,
    'notes': list(batches.notes()),
  }


def of_store(store, split, wanted):
  """Figures of a store by itself, whatever it is for; as `of_run`."""
  name = store.manifest['corpus']['name']
  return {
    'split': split,
    'parts': {name: of_split(store, split, wanted)},
    'notes': store.notes(),
  }


def open_store(folder):
  """The data.Store in a folder, or in the one that a glob matches.

  Raises:
    errors.DataError: there is none, or several.
  """
  if not storage.is_local(folder):
    raise errors.ConfigError(
      'a store in a bucket is looked at in a copy',
      where='--store',
      got=folder,
      fix='give the recipe that it was made by, and --gin.Data.store',
    )
  path = storage.path(folder)
  found = [path] if path.exists() else sorted(path.parent.glob(path.name))
  found = [str(x) for x in found if (x / data.MANIFEST).is_file()]
  if len(found) == 1:
    return data.Store(found[0])
  near = path if path.is_dir() else path.parent
  near = found or sorted(str(x.parent) for x in near.glob(f'*/{data.MANIFEST}'))
  raise errors.DataError(
    'several tokenised corpora' if found else 'no tokenised corpus',
    where='--store',
    got=folder,
    expected=' or '.join(near[:3]) or f'a folder with {data.MANIFEST}',
    choices=near,
  )


def stored_examples(store, split, position, count):
  """[{side: tokens}] of the documents or pairs from a position on.

  Raises:
    errors.DataError: there are fewer.
  """
  tokens = store.split(split)
  pairs = hasattr(tokens, 'num_pairs')
  there = tokens.num_pairs if pairs else tokens.num_documents
  if position >= there:
    raise errors.DataError(
      f'{split} has no example of this number',
      where='--position',
      got=position,
      expected=f'0 to {there - 1}',
    )
  found = []
  for n in range(position, min(position + count, there)):
    if pairs:
      [bounds] = tokens.bounds([n])
    else:
      bounds = np.concatenate(tokens.bounds(n, n + 1))
    names = ('inputs', 'targets') if pairs else ('document',)
    found.append(
      {
        name: tokens.rows([start], min(int(end - start), _COMPARED))[0]
        for name, start, end in zip(names, bounds, bounds[1:], strict=False)
      }
    )
  return found
