"""The table by which SentencePiece normalizes text, as steps of `tokenizers`.

SentencePiece puts, at each place of a text, the longest sequence that its table
knows in other words, or else lets the letter be. The `Precompiled` normalizer
of `tokenizers` reads the same table, but takes the shortest that it knows of a
letter and its accents, and drops the others. So here sequences are told apart
by a regular expression, a mark is put behind each, NFKC composes them, and
`Precompiled` sees letters one by one.

What stays different: a few letters (of Unicode 17, say) that the table knows
and NFKC of `tokenizers` doesn't yet, before an accent; and U+FDD1 and U+FDD2,
which are no characters.
"""

import base64
import functools
import re
import struct
import sys
import unicodedata

import numpy as np

_MARK = '\ufdd1'  # no character, and in no table
_ASIDE = '\ufdd2'
_LONGEST = 64  # bytes of a sequence


def table(compiled):
  """{sequence: what it becomes} of a precompiled_charsmap.

  It is a double-array trie of bytes (https://github.com/s-yata/darts-clone),
  whose leaves say where in the strings behind it a text begins.

  Args:
    compiled: bytes.

  Raises:
    ValueError: it is none.
  """
  try:
    (size,) = struct.unpack_from('<I', compiled)
    units = np.frombuffer(compiled, '<u4', size // 4, 4)
    texts, found = compiled[4 + size :], {}
    places, keys = np.zeros(1, np.int64), [b'']
    for _ in range(_LONGEST):
      unit = units[places].astype(np.int64)
      bases = places ^ (unit >> 10 << ((unit & 1 << 9) >> 6))
      for i in np.flatnonzero(unit >> 8 & 1):
        start = int(units[bases[i]]) & 0x7FFFFFFF
        text = texts[start : texts.index(b'\0', start)]
        found[keys[i].decode()] = text.decode()
      next_places, next_keys = [], []
      for byte in range(1, 256):
        children = bases ^ byte
        inside = np.minimum(children, len(units) - 1)
        there = (units[inside] & 0x800000FF == byte) & (inside == children)
        next_places.append(children[there])
        next_keys += [keys[i] + bytes([byte]) for i in np.flatnonzero(there)]
      places, keys = np.concatenate(next_places), next_keys
      if not keys:
        return found
  except (struct.error, IndexError, ValueError) as e:
    raise ValueError(f'no table of a normalizer: {e}') from None
  raise ValueError('no table of a normalizer: a sequence without end')


def _class(characters):
  """A regular expression of one of some characters."""
  points, parts = sorted(map(ord, characters)), []
  for point in points:
    if parts and parts[-1][1] == point - 1:
      parts[-1][1] = point
    else:
      parts.append([point, point])
  said = ''.join(
    re.escape(chr(a)) + (f'-{re.escape(chr(b))}' if b > a else '')
    for a, b in parts
  )
  return said if len(points) == 1 else f'[{said}]'


def _longest(sequences):
  """A regular expression of the longest of some sequences."""
  rest = {}
  for sequence in sequences:
    if sequence:
      rest.setdefault(sequence[0], set()).add(sequence[1:])
  firsts = {}
  for first, tails in rest.items():
    firsts.setdefault(frozenset(tails), []).append(first)
  parts = [
    _class(first) + (_longest(tails) if tails != {''} else '')
    for tails, first in firsts.items()
  ]
  said = parts[0] if len(parts) == 1 else f'(?:{"|".join(parts)})'
  return f'(?:{said})?' if '' in sequences else said


def _replace(kind, pattern, content):
  return {'type': 'Replace', 'pattern': {kind: pattern}, 'content': content}


@functools.lru_cache(1)  # nearly all models have the same
def normalizers(compiled):
  """The steps, as tokenizer.json says them.

  Args:
    compiled: precompiled_charsmap of a SentencePiece model, not empty.

  Raises:
    ValueError: it is none.
  """
  found = table(compiled)
  steps, kept = [], []
  sequences = [x for x in found if len(x) > 1]
  if sequences:
    second = _class({x[1] for x in sequences})
    steps.append(
      _replace(
        'Regex',
        rf'(?m)(?>.(?!{second})|{_longest(sequences)}|.)\K',
        _MARK,
      )
    )
    # What NFKC would change and the table leaves.
    said = lambda text: ''.join(found.get(x, x) for x in text)
    for point in range(sys.maxunicode + 1):
      one = chr(point)
      full = unicodedata.normalize('NFKC', one)
      if full != one and said(full) != found.get(one, one):
        kept.append((one, _ASIDE * (len(kept) + 1)))
    steps += [_replace('String', one, aside) for one, aside in kept]
    steps.append({'type': 'NFKC'})
  text = base64.b64encode(compiled).decode()
  steps.append({'type': 'Precompiled', 'precompiled_charsmap': text})
  if sequences:
    steps.append(_replace('String', _MARK, ''))
    steps += [_replace('String', aside, one) for one, aside in reversed(kept)]
  return steps
