"""The vocabulary of a Hugging Face folder, as one of ours.

Which files a folder has, and what their ids mean, hangs on its tokenizer's
class: a SentencePiece model's ids are those of the embedding for T5 and LLaMA,
and others for XLM-R, which has them only in its tokenizer.json.
"""

import contextlib
import json
from typing import NamedTuple

from t5x_lite import errors
from t5x_lite import storage
from t5x_lite.data import sentencepieces
from t5x_lite.data import tokenizer_files
from t5x_lite.data import vocabularies
from t5x_lite.data import vocabulary_files
from t5x_lite.interop import files
from t5x_lite.interop import folders
from t5x_lite.interop import marian_vocabulary
from t5x_lite.interop import merge_tables
from t5x_lite.interop import tokenizers

_LARGEST = 1 << 28  # bytes of a file
_MODELS = 'spiece.model', 'tokenizer.model'
_FILES = (
  *('tokenizer_config.json', 'special_tokens_map.json', 'config.json'),
  *('generation_config.json', 'added_tokens.json', 'tokenizer.json'),
  *('vocab.json', 'merges.txt'),
  *('source.spm', 'target.spm'),
  *_MODELS,
)
# Tokenizers whose ids are those of their SentencePiece model.
_SENTENCEPIECE = 'T5', 'MT5', 'Llama', 'CodeLlama', 'Gemma', 'PreTrained'
# The tokenizer of a model whose files do not name it.
_OF_MODEL = {
  **dict.fromkeys(('t5', 'mt5', 'umt5', 'longt5'), 'T5'),
  **dict.fromkeys(('gpt2', 'gpt_neo', 'gptj'), 'GPT2'),
  **dict.fromkeys(('llama', 'mistral'), 'Llama'),
  **{'openai-gpt': 'OpenAIGPT', 'marian': 'Marian', 'bart': 'Bart'},
  **{'roberta': 'Roberta', 'gemma': 'Gemma'},
}
_SAVE = (
  "save it with tokenizer.json, by transformers' AutoTokenizer."
  'from_pretrained(...).save_pretrained(...), or give another vocabulary'
)


class Found(NamedTuple):
  """The vocabulary of a folder.

  Attributes:
    name: of it in a workdir, or 'bytes'.
    extra_ids: for Data.extra_ids.
    special_tokens: for Data.special_tokens, or None.
    notes: sentences that a user should read.
    starts: whether theirs puts a token before a prompt.
    vocabulary: the Vocabulary itself.
    files: {name in a workdir: bytes} of what it is read from.
  """

  name: str
  extra_ids: int
  special_tokens: dict | None
  notes: list
  vocabulary: vocabularies.Vocabulary | None
  files: dict
  starts: bool = False


@contextlib.contextmanager
def _of_data():
  """What is wrong with a file is wrong with data here, not with weights."""
  try:
    yield
  except errors.CheckpointError as e:
    raise errors.DataError(
      e.what, where=e.where, got=e.got, expected=e.expected, fix=e.fix
    ) from None


class _Folder:
  """The files of a folder, and what they say of its tokenizer."""

  def __init__(self, folder):
    self.where, self._objects = folder, {}
    with _of_data():
      there = set(folders.names(folder))
      self.files = {
        name: files.inside(folder, name, folder).whole(_LARGEST).tobytes()
        for name in _FILES
        if name in there
      }
    self.config = self.object('config.json')
    self.settings = self.object('special_tokens_map.json') | self.object(
      'tokenizer_config.json'
    )
    said = self.settings.get('tokenizer_class') or self.config.get(
      'tokenizer_class'
    )
    said = str(said or _OF_MODEL.get(str(self.config.get('model_type')), ''))
    self.kind = said.removesuffix('Fast').removesuffix('Tokenizer')

  def object(self, name):
    """What a file of JSON holds; {} if it is not there."""
    if name not in self._objects:
      with _of_data():
        data = self.files.get(name, b'{}')
        self._objects[name] = files.parse_json(data, self.where / name)
    return self._objects[name]

  def token(self, role):
    """The name of a special token by the tokenizer's own files, or None."""
    found = self.settings.get(f'{role}_token')
    found = found.get('content') if isinstance(found, dict) else found
    return found if isinstance(found, str) else None

  def ids(self):
    """{role: id} by the model's own files, which tell `generate` its end."""
    said = self.config | self.object('generation_config.json')
    found = {}
    for role in ('pad', 'eos', 'bos', 'decoder_start'):
      id_ = said.get(f'{role}_token_id')
      id_ = id_[0] if isinstance(id_, list) and id_ else id_
      if type(id_) is int:
        found[role] = id_
    return found

  def roles(self, names):
    """{role: name} of the special tokens of a vocabulary.

    What the model says goes before what the tokenizer says.
    """
    found = {role: self.token(role) for role in ('pad', 'eos', 'bos')}
    for role, id_ in self.ids().items():
      if role in found and 0 <= id_ < len(names) and names[id_]:
        found[role] = names[id_]
    return {role: name for role, name in found.items() if name in names}

  def starts(self):
    """Whether the tokenizer puts a token before a text."""
    said = self.settings.get('add_bos_token')
    if isinstance(said, bool):
      return said
    if 'tokenizer.json' not in self.files:
      return self.kind in ('Llama', 'CodeLlama', 'Gemma')
    last = self.object('tokenizer.json').get('post_processor') or {}
    parts = last.get('processors') or [last]
    return any(
      'SpecialToken' in (part.get('single') or [{}])[0] for part in parts
    )


def _byt5(given, extra_ids):
  """ByT5 has no files: its ids are bytes plus three."""
  if 'tokenizer.json' in given.files:
    return None
  return Found(
    'bytes',
    extra_ids,
    None,
    [
      'ids of text are those of ByT5Tokenizer; sentinels are 258 downward, as '
      'ByT5 was trained with (arXiv:2105.13626), where ByT5Tokenizer numbers '
      'its <extra_id_0> from 259 upward: name sentinels by id there'
    ],
    vocabularies.Bytes(extra_ids),
    {},
  )


def _names(model, extra_ids):
  """The tokens of a SentencePiece model and its sentinels, by their ids."""
  names = [piece.piece for piece in model.pieces]
  if '<extra_id_0>' not in names:
    names += [f'<extra_id_{i}>' for i in reversed(range(extra_ids))]
  return names


def _sentencepiece(given, extra_ids, special_tokens):
  """Found, of a SentencePiece model whose ids are the embedding's; or None."""
  file = next((name for name in _MODELS if name in given.files), None)
  if file is None or given.kind not in _SENTENCEPIECE:
    return None
  said = given.settings.get('extra_ids', 100 * (given.kind == 'T5'))
  if type(said) is not int or not 0 <= said <= 100_000:
    raise errors.DataError(
      'wrong number of sentinels',
      where=given.where / 'tokenizer_config.json',
      got=f'extra_ids = {said!r}',
    )
  try:
    model = sentencepieces.read(given.where / file)
  except errors.DataError:
    if 'tokenizer.json' in given.files:
      return None
    raise
  names, notes = _names(model, said), []
  if 'tokenizer.json' in given.files:
    content = given.object('tokenizer.json')
    if merge_tables.names(content) != names:
      return None
    notes.append(f'{file} is read, and not the tokenizer.json beside it')
  own, count = model.trainer_spec, said if extra_ids is None else extra_ids
  special_tokens = {
    role: name
    for role, name in given.roles(names).items()
    if names.index(name) != getattr(own, f'{role}_id')
  } | (special_tokens or {})
  return _with_start(
    given,
    lambda tokens: sentencepieces.SentencePiece(model, count, tokens),
    Found(
      vocabulary_files.MODEL,
      count,
      special_tokens or None,
      notes,
      None,
      {vocabulary_files.MODEL: given.files[file]},
    ),
  )


def _marian(given, extra_ids, special_tokens):
  """Found, of two SentencePiece models that are one, and a table of ids."""
  names = marian_vocabulary.FILES
  if not given.files.keys() >= {*names}:
    return None
  source, target = (sentencepieces.read(given.where / x) for x in names[:2])
  model = marian_vocabulary.merge(
    source, target, given.object(names[2]), given.where
  )
  file, count = vocabulary_files.MODEL, extra_ids or 0
  return _with_start(
    given,
    lambda tokens: sentencepieces.SentencePiece(model, count, tokens),
    Found(
      file,
      count,
      special_tokens,
      ['the vocabulary is source.spm, which target.spm is too, by vocab.json'],
      None,
      {file: model.SerializeToString(deterministic=True)},
    ),
  )


def _json(given, extra_ids, special_tokens):
  """Found, of a tokenizer.json, or of a table of merges made one; or None."""
  there = {
    name: given.files[name]
    for name in tokenizer_files.FILES
    if name in given.files
  }
  notes = []
  if 'tokenizer.json' in there:
    content = given.object('tokenizer.json')
    count = tokenizers.extra_ids_of_bytes(content)
    if count is not None:
      count = count if extra_ids is None else extra_ids
      made = vocabularies.Bytes(count)
      return Found('bytes', count, None, notes, made, {})
  elif given.kind in merge_tables.KINDS and given.files.keys() >= {
    'vocab.json',
    'merges.txt',
  }:
    content = merge_tables.content(
      given.kind,
      given.object('vocab.json'),
      given.files['merges.txt'],
      given.object('added_tokens.json'),
      given.settings,
      given.where,
    )
    there['tokenizer.json'] = json.dumps(content, ensure_ascii=False).encode()
    notes.append('tokenizer.json is made of vocab.json and merges.txt')
  else:
    return None
  roles = given.roles(merge_tables.names(content))
  own = {
    role: name for role, name in roles.items() if name != given.token(role)
  }
  if given.kind == 'GPT2' and not given.token('eos'):
    own.setdefault('eos', '<|endoftext|>')
  special_tokens = own | (special_tokens or {})
  where = given.where / 'tokenizer.json'
  content = tokenizer_files.checked(content, where)
  beside = [given.object(name) for name in there if name != 'tokenizer.json']
  folder, count = vocabulary_files.FOLDER, extra_ids or 0
  return _with_start(
    given,
    lambda tokens: tokenizer_files.make(content, beside, count, tokens, where),
    Found(
      folder,
      count,
      special_tokens or None,
      notes,
      None,
      {f'{folder}/{name}': data for name, data in there.items()},
    ),
  )


def _with_start(given, make, found):
  """Found, with the vocabulary that `make` gives for special tokens.

  It is made anew where the model starts with another token than the padding:
  which it is, and whether it is another, the vocabulary tells.
  """
  loaded = make(found.special_tokens)
  start = given.ids().get('decoder_start', loaded.bos_id)
  if not -1 <= start < loaded.size:
    raise errors.DataError(
      'the vocabulary has no such id',
      where=given.where,
      got=f'decoder_start_token_id {start}',
      expected=f'one of 0 to {loaded.size - 1}',
    )
  tokens = found.special_tokens or {}
  if start not in (-1, loaded.start_id) and 'start' not in tokens:
    tokens = tokens | {'start': loaded.piece(start)}
    loaded = make(tokens)
  return found._replace(special_tokens=tokens or None, vocabulary=loaded)


def find(folder, *, extra_ids=None, special_tokens=None):
  """The vocabulary of a folder; writes nothing.

  Args:
    folder: of a Hugging Face model.
    extra_ids: for Data.extra_ids; None for what the folder says.
    special_tokens: for Data.special_tokens, where the user gave some; what the
      folder says of others counts.

  Returns:
    A Found.

  Raises:
    errors.DataError: a file is broken, hostile or missing.
    errors.ConfigError: nothing says which token ends a text.
  """
  given = _Folder(storage.path(folder))
  found = None
  if given.kind == 'ByT5':
    found = _byt5(given, extra_ids or 0)
  elif given.kind == 'Marian':
    found = _marian(given, extra_ids, special_tokens)
  found = (
    found
    or _sentencepiece(given, extra_ids, special_tokens)
    or _json(given, extra_ids, special_tokens)
  )
  if found is None:
    raise errors.DataError(
      'folder has no vocabulary that can be read',
      where=given.where,
      got=f'{given.kind or "no"} tokenizer class, and '
      + (', '.join(sorted(given.files)) or 'no files'),
      expected='a tokenizer.json; or, of some classes, a SentencePiece .model, '
      'or vocab.json and merges.txt',
      fix=_SAVE,
    )
  if special_tokens and not found.files:
    raise errors.ConfigError(
      'the vocabulary of bytes has its own special tokens',
      where=given.where,
      got=special_tokens,
      fix='leave out --special_token',
    )
  return found._replace(starts=given.starts())
