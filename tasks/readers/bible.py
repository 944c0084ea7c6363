"""Verses of SWORD modules, by their own reader: a book is unpacked once."""

import re
import struct
import zlib

from t5x_lite import errors
from t5x_lite.tasks import readers

KJV = 'engKJV2006eb', 'kjv'  # a module, and how its verses are counted
WEB = 'engWEB2015eb', 'nrsva'
SPANISH = 'spaRV1909eb', 'kjv'
_NOTE = re.compile(r'<(note|title)\b[^>]*>.*?</\1>', re.S)


def translations(texts):
  """Verses of the World English Bible, and of Reina-Valera of 1909."""
  ours, theirs = verses(texts, *WEB), verses(texts, *SPANISH)
  for place, text in ours.items():
    if theirs.get(place):
      yield readers.Row(_chapter(place), text, theirs[place])


def paraphrases(texts):
  """A verse of 1769 and one of today, the same or its neighbour.

  A verse is in one example; a throw of its name decides in which. Verses that
  are equal in both are left out.
  """
  old, new = verses(texts, *KJV), verses(texts, *WEB)
  for place, text in old.items():
    book, chapter, verse = place
    name = f'{book} {chapter}:{verse}'
    throw = readers.share(f'paraphrase {name}', 4)
    step = (0, 0, 1, -1)[throw]
    other = new.get((book, chapter, verse + step)) or new.get(
      (book, chapter, verse - step), ''
    )
    if not text or not other or readers.folded(text) == readers.folded(other):
      continue
    label = 'not_equivalent' if step else 'equivalent'
    inputs = f'sentence1: {text} sentence2: {other}'
    yield readers.Row(_chapter(place), inputs, label)


def _chapter(place):
  return f'{place[0]} {place[1]}'


def verses(texts, module, counting):
  """{(book, chapter, verse): text} of a module, in their order.

  A module has a file of books that are compressed (bzz), their places (bzs) and
  the places of verses in them (bzv): block, start, length. A testament begins
  with two headings, a book and a chapter with one each.

  Args:
    texts: zipfile.ZipFile of modules.
    module: the folder of one.
    counting: how it counts verses, a name of pysword.canons.
  """
  found = {}
  for testament in ('ot', 'nt'):
    data = [texts.read(f'{module}/{testament}.bz{x}') for x in 'zsv']
    blocks = [
      zlib.decompress(data[0][start : start + size])
      for start, size, _ in struct.iter_unpack('<III', data[1])
      if size
    ]
    places = list(struct.iter_unpack('<IIH', data[2]))
    index = 2
    for _, book, _, lengths in _canons()[counting][testament]:
      index += 1
      for chapter, length in enumerate(lengths, 1):
        index += 1
        for verse in range(1, length + 1):
          if index < len(places) and places[index][2]:
            block, start, size = places[index]
            raw = blocks[block][start : start + size]
            found[book, chapter, verse] = _text(raw.decode(errors='replace'))
          index += 1
  return found


def _text(raw):
  """A verse without markup; tags are blanks, or words would be glued."""
  text = re.sub(r'<[^>]*>|\u00b6', ' ', _NOTE.sub(' ', raw))  # no pilcrows
  text = re.sub(r'\s+([,.;:!?)\]’”])', r'\1', text)
  return readers.plain(re.sub(r'([(\[“‘¿¡])\s+', r'\1', text))


def _canons():
  try:
    from pysword import canons
  except ImportError as e:
    raise errors.DataError(
      'pysword is not installed, which knows the books of Bibles',
      fix="pip install 't5x_lite[tasks]'",
    ) from e
  return canons.canons
