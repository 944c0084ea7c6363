"""Reads tokenizer.json, and what the files beside it say of it."""

import functools
import json

from t5x_lite import errors
from t5x_lite.data import tokenizer_json
from t5x_lite.data import vocabularies

FILES = ('tokenizer.json', 'special_tokens_map.json', 'tokenizer_config.json')
_LARGEST = 1 << 28  # bytes; Gemma's 256,000 pieces take 34 MB
_MODELS = {'BPE': dict, 'Unigram': list, 'WordPiece': dict, 'WordLevel': dict}
# The fields of special_tokens_map.json and tokenizer_config.json.
_FIELDS = {
  'pad': ('pad_token',),
  'eos': ('eos_token', 'sep_token'),
  'bos': ('bos_token', 'cls_token'),
}


def _parse(file):
  """A JSON file as a dict; DataError if it is none."""
  size = file.stat().length
  if size > _LARGEST:
    raise tokenizer_json.wrong(file, f'{size:,} bytes', f'{_LARGEST:,} or less')
  content = file.read_bytes()
  try:
    found = json.loads(content.decode('utf-8-sig'))
  except (ValueError, RecursionError) as e:
    raise tokenizer_json.wrong(
      file, f'{len(content):,} bytes; {e}', 'whole JSON'
    ) from None
  if not isinstance(found, dict):
    raise tokenizer_json.wrong(file, type(found).__name__, 'a JSON object')
  return found


def checked(tokenizer, file):
  """The content of a tokenizer.json, its outline being right."""
  model = tokenizer.get('model')
  if not isinstance(model, dict):
    found = ', '.join([*tokenizer][:5]) or 'nothing'
    raise tokenizer_json.wrong(
      file, f'an object of {found}', "one with a 'model'"
    )
  kind = model.get('type') or (  # the oldest files do not say
    'BPE'
    if 'merges' in model
    else 'Unigram'
    if 'unk_id' in model
    else 'WordPiece'
  )
  if str(kind) not in _MODELS:
    raise tokenizer_json.wrong(
      file, f'a model of type {kind!r}', ', '.join(_MODELS)
    )
  needed = {'vocab': _MODELS[kind]} | (
    {'merges': list} if kind == 'BPE' else {}
  )
  for name, type_ in needed.items():
    if not isinstance(model.get(name), type_):
      raise tokenizer_json.wrong(
        file, f'a {kind} model without {name}', f'its {name}'
      )
  if not model['vocab']:
    raise tokenizer_json.wrong(file, 'an empty vocabulary', 'some pieces')
  tokenizer_json.load(tokenizer, file)  # the library judges all the rest
  added = tokenizer.get('added_tokens') or []
  return tokenizer | {'added_tokens': added, 'model': model | {'type': kind}}


def _content(value):
  """The text of a special token, which may be an object with its settings."""
  return value.get('content') if isinstance(value, dict) else value


def _roles(settings, special_tokens, where, ids, special):
  """{'pad', 'eos', 'bos': id or -1}, from all that says something of them."""
  found = {}
  for role in _FIELDS:
    if name := (special_tokens or {}).get(role):
      found[role] = vocabularies.find(name, ids, role)
      continue
    said = [
      _content(file[field])
      for field in _FIELDS[role]
      for file in settings
      if file.get(field)
    ]
    said = said[:1] or [x for x in special if x in tokenizer_json.NAMES[role]]
    found[role] = -1
    if len(said) == 1:
      if said[0] not in ids:
        raise tokenizer_json.wrong(
          where, f'{said[0]!r} as its {role} token', 'one of its tokens'
        )
      found[role] = ids[said[0]]
  if name := (special_tokens or {}).get('start'):
    found['start'] = vocabularies.find(name, ids, 'start')
  if found['eos'] < 0:
    listed = ', '.join(map(repr, special)) or 'none'
    first = special[0] if special else '...'
    raise errors.ConfigError(
      'tokenizer.json does not say which token ends a text',
      where=where,
      got=f'these special tokens: {listed}',
      fix=f'name it, as Data.special_tokens = { ({"eos": first})!r}, or to '
      f'`import` as --special_token=eos={first}',
    )
  if found['pad'] < 0:  # GPT-2 has neither
    found['pad'] = found['eos'] if found['bos'] < 0 else found['bos']
  return found


def make(tokenizer, settings, extra_ids, special_tokens, where):
  """The TokenizerJson of the content of its files; arguments as of `read`."""
  roles = functools.partial(_roles, settings, special_tokens, where)
  try:
    return tokenizer_json.TokenizerJson(tokenizer, extra_ids, roles, where)
  except (AttributeError, KeyError, TypeError, ValueError) as e:
    raise tokenizer_json.wrong(where, repr(e), 'its usual form') from e


def read(path, extra_ids, special_tokens=None):
  """The vocabulary of a tokenizer.json.

  What its folder's special_tokens_map.json and tokenizer_config.json say of
  special tokens counts too.

  Args:
    path: the file, or its folder.
    extra_ids: sentinels to add where it has none.
    special_tokens: names of 'pad', 'eos' and 'bos' that go before all else.

  Returns:
    A TokenizerJson.

  Raises:
    errors.DataError: the file is broken or of another kind.
    errors.ConfigError: it does not say what ends a text.
    OSError: it can't be read; FileNotFoundError if it isn't there.
  """
  folder = path if path.is_dir() else path.parent
  file = folder / FILES[0] if path.is_dir() else path
  if path.is_dir() and not file.exists():
    raise errors.DataError(
      'vocabulary is a folder without a tokenizer.json',
      where=path,
      got=', '.join(sorted(x.name for x in path.iterdir())[:8]) or 'nothing',
      expected='one, or the path of a .model file',
    )
  tokenizer = checked(_parse(file), file)
  beside = file.name == FILES[0]
  settings = [
    _parse(folder / name)
    for name in FILES[1:]
    if beside and (folder / name).exists()
  ]
  return make(tokenizer, settings, extra_ids, special_tokens, file)
