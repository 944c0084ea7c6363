"""Reviews with a judgement: of food, in English, and of books, in Chinese."""

import bz2
import lzma
import zlib

from t5x_lite import errors
from t5x_lite.tasks import readers

_SPLITS = {'testing_data': 'test', 'training_data': None}


def english(texts):
  """Rows of R's package modeldata, its test split as it is.

  Of its training split a part is held out by product.
  """
  for name, split in _SPLITS.items():
    table = _table(texts, name)
    columns = (table[x].astype(str) for x in ('product', 'review', 'score'))
    for product, review, score in zip(*columns):
      side = split or _held_out(product)
      text = readers.plain(review.replace('<br />', ' '))
      yield readers.Row(product, text, score, {}, side)


def _held_out(product):
  # There is a test split already: what would be in ours is validated on, too.
  found = readers.split_of(product)
  return 'train' if found == 'train' else 'validation'


def chinese(texts):
  """Rows of two files, a review on each line; a review is a document."""
  for name, label in (('pos.txt', 'positive'), ('neg.txt', 'negative')):
    for line in texts.read(name).decode(errors='replace').splitlines():
      text = readers.plain(line)
      yield readers.Row(readers.folded(text), text, label)


def _table(texts, name):
  """A data frame of R's lazy-load database, Rdata.rdx and Rdata.rdb."""
  start, size = map(int, _places(texts)[name])
  # A big-endian length, and a letter where it is not zlib's.
  data = texts.read('Rdata.rdb')[start + 4 : start + size]
  if data[:1] == b'2':
    data = bz2.decompress(data[1:])
  elif data[:1] == b'Z':
    filters = [{'id': lzma.FILTER_LZMA2, 'preset': 6}]
    data = lzma.decompress(data[1:], lzma.FORMAT_RAW, filters=filters)
  else:
    data = zlib.decompress(data)
  return _convert(data)


def _places(texts):
  """{name: (start, size)} of what is in the database."""
  index = zlib.decompress(texts.read('Rdata.rdx'), wbits=47)
  return _convert(index)['variables']


def _convert(data):
  """An object of R as pandas and NumPy have it."""
  try:
    import rdata
  except ImportError as e:
    raise errors.DataError(
      "rdata is not installed, which reads R's files",
      fix="pip install 't5x_lite[tasks]'",
    ) from e
  classes = dict(rdata.conversion.DEFAULT_CLASS_MAP)
  classes['tbl_df'] = classes['data.frame']
  parsed = rdata.parser.parse_data(data, extension='.rds')
  return rdata.conversion.convert(parsed, classes)
