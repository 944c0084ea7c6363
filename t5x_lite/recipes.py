"""The installed recipes: where they are, and what their headers say."""

import os
import pathlib
import re
import typing

from t5x_lite import errors
from t5x_lite import storage

_LIMIT = 2**20  # bytes; what is larger is no recipe


def _root():
  """The folder of recipes: in an installed package, or beside it."""
  package = pathlib.Path(__file__).resolve().parent
  inside = package / 'gin'
  return inside if inside.is_dir() else package.parent / 'gin'


def is_installed(path):
  """Whether a recipe came with the program."""
  return pathlib.Path(path).resolve().is_relative_to(_root())


def find(name, folder, where=None):
  """The recipe file of a name: in a folder, else among the installed ones."""
  name = os.path.expanduser(name)
  files = [name] if name.endswith('.gin') else [name, f'{name}.gin']
  try:
    tries = [storage.path(file) for file in files]
  except errors.ConfigError as e:
    raise e.at(where) from None
  if storage.is_local(name):
    tries = [base / file for base in (folder, _root()) for file in files]
  # pathlib, unlike epath, does not take a device or a pipe for a file.
  tries = [pathlib.Path(t) if storage.is_local(t) else t for t in tries]
  try:
    for path in tries:
      if path.is_file():
        return path
    folders = [path for path in tries if path.is_dir()]
  except OSError as e:
    raise errors.ConfigError(
      'no such recipe', where=where, got=repr(name), expected=e.strerror
    ) from None
  if folders:
    inside = [n for n in names() if n.startswith(name.strip('/') + '/')]
    raise errors.ConfigError(
      'a recipe is a file, not a folder',
      where=where,
      got=repr(str(folders[0])),
      fix='name a recipe in it' + (f', such as {inside[0]}' if inside else ''),
    )
  raise errors.ConfigError(
    'no such recipe',
    where=where,
    got=repr(name),
    expected='a file; searched ' + ', '.join(map(str, tries)),
    choices=names(),
    fix='see all by `t5x_lite recipes`',
  )


def read(path):
  """The text of a recipe."""
  try:
    with path.open('rb') as f:
      content = f.read(_LIMIT + 1)
    if len(content) > _LIMIT:
      raise errors.ConfigError(
        'recipe is too large', where=path, expected=f'{_LIMIT} bytes at most'
      )
    return content.decode('utf-8-sig')
  except OSError as e:
    raise errors.ConfigError(
      'cannot read recipe', where=path, got=e.strerror or str(e)
    ) from None
  except UnicodeDecodeError as e:
    line = e.object[: e.start].count(b'\n') + 1
    raise errors.ConfigError(
      'recipe is not UTF-8 text',
      where=f'{path}:{line}',
      got=f'byte {e.object[e.start]:#04x}',
    ) from None


class Recipe(typing.NamedTuple):
  """What the header of a recipe says."""

  name: str
  system: str
  family: str
  paper: str
  parameters: int
  summary: str


_HEADER = re.compile(
  r'(?P<system>[^,]+), (?P<paper>arXiv:\d{4}\.\d{5}(?: and \d{4}\.\d{5})*'
  r'|\w+ et al\. \d{4})\. '
  r'(?P<parameters>\d{1,3}(?:,\d{3})*) parameters\. '
  r'(?P<summary>(?P<family>Encoder-decoder|Decoder|Prefix LM|Encoder): .+\.)'
)


def names():
  """The names of the installed recipes, such as t5/1_1_base."""
  root = _root()
  return sorted(
    path.relative_to(root).as_posix().removesuffix('.gin')
    for path in root.rglob('*.gin')
  )


def info(name):
  """What the first comment of an installed recipe says, as a Recipe."""
  path = find(f'{name}.gin', _root())
  comment = re.match(r'(?:#.*\n)*', read(path))[0]
  text = ' '.join(line.lstrip('# ') for line in comment.splitlines())
  found = _HEADER.fullmatch(text)
  if not found:
    raise errors.ConfigError(
      'malformed header of a recipe',
      where=f'{path}:1',
      got=repr(text),
      expected='# System, PAPER. N parameters. Family: a sentence.',
    )
  return Recipe(
    name=name,
    system=found['system'],
    family=found['family'][0].lower() + found['family'][1:],
    paper=found['paper'],
    parameters=int(found['parameters'].replace(',', '')),
    summary=found['summary'],
  )


def table():
  """All installed recipes, by system and size."""
  infos = [info(name) for name in names()]
  return sorted(
    infos, key=lambda r: (r.system.rpartition(' ')[0], r.parameters)
  )
