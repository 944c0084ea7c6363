"""Hugging Face's tokenizer.json: BPE, WordPiece, Unigram or whole words.

Ids are those that `transformers` gives with `add_special_tokens=False` and
`split_special_tokens=True`: no [CLS] or [SEP] is added, nothing is cut or
filled up, whatever the file asks for, and text that reads `[SEP]` is text.
"""

import functools
import hashlib
import json
import re

import numpy as np
import tokenizers

from t5x_lite import errors
from t5x_lite.data import vocabularies

# What ids depend on.
_PARTS = ('normalizer', 'pre_tokenizer', 'model', 'added_tokens')
# Special tokens whose names alone say what they are.
NAMES = {
  'pad': ('<pad>', '[PAD]', '<|pad|>', '<|padding|>'),
  'eos': ('</s>', '<eos>', '[SEP]', '<|endoftext|>', '<|end_of_text|>'),
  'bos': ('<s>', '<bos>', '[CLS]', '<|startoftext|>', '<|begin_of_text|>'),
}
# Longer texts are cut, where cutting is the same as not cutting.
_LONGEST = 1 << 20
_AT_ONCE = 8  # parts of a text
_BETWEEN_WORDS = re.compile('(?<=[A-Za-z]) (?=[A-Za-z])')
_BY_CHARACTER = {
  *('BertNormalizer', 'NFC', 'NFD', 'NFKC', 'NFKD', 'Lowercase'),
  *('StripAccents', 'Nmt', 'Precompiled', 'Prepend'),
}
_AT_SPACES = 'BertPreTokenizer', 'Whitespace', 'WhitespaceSplit', 'Metaspace'
_RARE = '𐎀', 'ꙮ', '𓂀'  # letters that no vocabulary spells but by bytes


class TokenizerJson(vocabularies.Vocabulary):
  """A tokenizer.json, and sentinels at the end where it has none."""

  def __init__(self, tokenizer, extra_ids, roles, where):
    """Makes the vocabulary of a file.

    Args:
      tokenizer: the content of tokenizer.json.
      extra_ids: sentinels to add where it has none, the last id being
        `<extra_id_0>`.
      roles: function of {token: id} and the names of special tokens: the ids
        of 'pad', 'eos' and 'bos', -1 for none; and of 'start', if it is said.
      where: names it in messages.

    Raises:
      errors.DataError: it is none that can be used; or what `roles` raises.
    """
    added = tokenizer.get('added_tokens') or []
    controls = [x['content'] for x in added if x.get('special')]
    pieces = tokenizer['model']['vocab']
    pieces = [x[0] for x in pieces] if isinstance(pieces, list) else pieces
    known = {*pieces, *(x['content'] for x in added)}
    sentinels = []
    while (name := f'<extra_id_{len(sentinels)}>') in known:
      sentinels.append(name)
    named = [x for names in NAMES.values() for x in names if x in known]
    # Under names that no text has, no text is taken for one.
    hidden = {
      name: f'\ufdd0 {i} \ufdd0'
      for i, name in enumerate(dict.fromkeys([*controls, *sentinels, *named]))
    }
    self._parts = _hide(tokenizer, hidden)
    self._plain = load(self._parts, where)
    self._plain.encode_special_tokens = True
    shown = {value: name for name, value in hidden.items()}
    ids = {
      shown.get(name, name): id_
      for name, id_ in self._plain.get_vocab(with_added_tokens=True).items()
    }
    for token in added:
      if ids[token['content']] != token.get('id'):
        raise wrong(
          where,
          f'{token["content"]!r} is {token.get("id")}',
          f'the id {ids[token["content"]]}, by the order of the file',
        )
    size = max(ids.values()) + 1
    if size > 2 * len(ids) + 1024:
      raise wrong(where, f'{len(ids)} ids up to {size - 1}', 'few gaps')
    found = roles(ids, controls or named)
    self._given = size, len(sentinels)
    if not sentinels:
      sentinels = [f'<extra_id_{i}>' for i in range(extra_ids)]
      ids |= {
        name: size + extra_ids - 1 - i for i, name in enumerate(sentinels)
      }
      size += extra_ids
    model = tokenizer['model']
    unk_id = model.get('unk_id')  # of Unigram
    if unk_id is None:
      unk_id = ids.get(model.get('unk_token'), -1)
    self._names = [''] * size
    for name, id_ in ids.items():
      self._names[id_] = name
    self._silent = {ids[name] for name in controls} | {*found.values()}
    self._silent -= {unk_id, *(ids[name] for name in sentinels)}
    decided = [found, unk_id, [ids[name] for name in sentinels]]
    super().__init__(
      size=size,
      pad_id=found['pad'],
      eos_id=found['eos'],
      unk_id=unk_id,
      bos_id=found['bos'],
      sentinel_ids=decided[-1],
      start_id=found.get('start'),
      fingerprint=_digest([[self._parts[x] for x in _PARTS], decided]),
    )
    self._where, self._tokenizer = where, tokenizer
    self._can_cut = _by_words(self._parts) and len(controls) == len(added)
    self._check()

  def _check(self):
    for letter in _RARE:
      if not len(self.encode_batch([letter])[0]):
        raise errors.DataError(
          'tokenizer would leave out characters that it does not know',
          where=self._where,
          got=f'nothing for {letter}',
          expected='an unk_token in its model, byte_fallback, or bytes',
        )

  def files(self, with_sentinels=False):
    """What makes this vocabulary again: {name of a file: bytes}.

    Args:
      with_sentinels: whether those that were added become part of the files.
    """
    tokenizer, (size, given) = dict(self._tokenizer), self._given
    if with_sentinels and not given:
      add_sentinels(tokenizer, size, self.sentinels)
    tokens = {
      f'{role}_token': self._names[id_]
      for role, id_ in (
        ('pad', self.pad_id),
        ('eos', self.eos_id),
        ('bos', self.bos_id),
        ('unk', self.unk_id),
      )
      if id_ >= 0
    }
    return {
      'tokenizer.json': json.dumps(
        tokenizer, ensure_ascii=False, indent=1
      ).encode(),
      'special_tokens_map.json': json.dumps(tokens, indent=1).encode(),
    }

  @functools.cached_property
  def _inner(self):
    """Takes text for what goes on, where the other takes it for the start."""
    parts = self._parts | {
      name: _continuing(self._parts.get(name))
      for name in ('normalizer', 'pre_tokenizer')
    }
    found = load(parts, self._where)
    found.encode_special_tokens = True
    return found

  def _ids(self, tokenizer, texts):
    try:
      found = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    except TypeError:  # half of a surrogate pair
      raise
    except BaseException as e:
      raise _failed(e, 'tokenizer fails on a text', self._where) from None
    return vocabularies.to_arrays([encoding.ids for encoding in found])

  def _cut(self, text):
    """A long text in parts that begin with a space, but for the first."""
    at = 0
    while self._can_cut and (
      found := _BETWEEN_WORDS.search(text, at + _LONGEST)
    ):
      yield text[at : found.start()]
      at = found.start()
    yield text[at:]

  def _encode_batch(self, texts):
    if max(map(len, texts), default=0) <= _LONGEST:
      return self._ids(self._plain, texts)
    rows = []
    for text in texts:
      first, *rest = self._cut(text)
      found = self._ids(self._plain, [first])
      for i in range(0, len(rest), _AT_ONCE):
        found += self._ids(self._inner, rest[i : i + _AT_ONCE])
      rows.append(np.concatenate(found))
    return rows

  def _encode_marked(self, text):
    # A space before a sentinel would become a piece of its own, which never
    # stands there in training.
    first, *rest = vocabularies.SENTINEL.split(text)  # text, number, text, ...
    texts = [first, *rest[1::2]]
    texts[:-1] = [x.rstrip() for x in texts[:-1]]
    rows = [*self._ids(self._plain, texts[:1])]
    for number, ids in zip(
      rest[0::2], self._ids(self._inner, texts[1:]), strict=True
    ):
      rows += [self.sentinel_ids[[int(number)]], ids]
    return np.concatenate(rows)

  def decode(self, ids):
    names = [
      self._names[int(id_)] for id_ in ids if int(id_) not in self._silent
    ]
    if self._plain.decoder is None:
      return ' '.join(names)
    return self._plain.decoder.decode(names)

  def piece(self, id_):
    piece = self._names[int(id_)]
    return piece if piece.isprintable() else ascii(piece)[1:-1]


def special(content, id_):
  """The entry of a special token among a tokenizer's `added_tokens`."""
  flags = dict.fromkeys(
    ('single_word', 'lstrip', 'rstrip', 'normalized'), False
  )
  return {'id': id_, 'content': content, 'special': True} | flags


def add_sentinels(tokenizer, size, count):
  """Appends `<extra_id_{count-1}>` ... `<extra_id_0>` behind `size` ids."""
  tokenizer['added_tokens'] = [
    *(tokenizer['added_tokens'] or []),
    *(special(f'<extra_id_{count - 1 - i}>', size + i) for i in range(count)),
  ]


def _digest(parts):
  text = json.dumps(parts, sort_keys=True, ensure_ascii=False)
  return hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()


def _hide(tokenizer, hidden):
  """What ids depend on, with other names for some tokens."""
  name = lambda token: hidden.get(token, token)
  model = dict(tokenizer['model'])
  if isinstance(model['vocab'], list):
    model['vocab'] = [[name(x), *rest] for x, *rest in model['vocab']]
  else:
    model['vocab'] = {name(x): id_ for x, id_ in model['vocab'].items()}
  if 'merges' in model:
    prefix = model.get('continuing_subword_prefix') or ''
    # What a merge makes of text is text, and no special token.
    model['merges'] = [
      [a, b]
      for a, b in (
        x.split(' ') if isinstance(x, str) else x for x in model['merges']
      )
      if not {a, b, a + b.removeprefix(prefix)} & hidden.keys()
    ]
    model['dropout'] = None  # ids are a function of the text
  if 'unk_token' in model:
    model['unk_token'] = name(model['unk_token'])
  added = [
    x | {'content': name(x['content'])} for x in tokenizer['added_tokens'] or []
  ]
  parts = {part: tokenizer.get(part) for part in _PARTS}
  return (
    parts
    | {'model': model, 'added_tokens': added}
    | {'decoder': tokenizer.get('decoder')}
  )


def _members(part):
  """The parts of a normalizer or pre-tokenizer, one after the other."""
  if part is None:
    return []
  for name in ('normalizers', 'pretokenizers'):
    if name in part:
      return [member for inner in part[name] for member in _members(inner)]
  return [part]


def _by_words(parts):
  """Whether words between spaces have the same ids wherever they stand."""
  normalizers = _members(parts['normalizer'])
  first = (_members(parts['pre_tokenizer']) or [{}])[0]
  spaces = {'type': 'Replace', 'pattern': {'Regex': ' {2,}'}}
  return all(
    x.get('type') in _BY_CHARACTER or x.items() >= spaces.items()
    for x in normalizers
  ) and (
    first.get('type') in _AT_SPACES
    and first.get('split', True)
    or first.get('type') == 'ByteLevel'
    and first.get('use_regex', True)
  )


def _continuing(part):
  """A normalizer or pre-tokenizer without what it does to a start of text."""
  if part is None or part.get('type') == 'Prepend':
    return None
  part = dict(part)
  if part.get('type') == 'Metaspace':
    part.pop('add_prefix_space', None)
    part['prepend_scheme'] = 'never'
  elif part.get('type') == 'ByteLevel':
    part['add_prefix_space'] = False
  for name in ('normalizers', 'pretokenizers'):
    if name in part:
      members = map(_continuing, part[name])
      part[name] = [member for member in members if member is not None]
  return part


def _failed(error, what, where):
  """The error for one that the tokenizers library raised.

  Raises:
    BaseException: this one, if it is of somebody else, Ctrl-C say.
  """
  # Rust's panics are no Exceptions.
  if not isinstance(error, Exception) and 'Panic' not in type(error).__name__:
    raise error
  return errors.DataError(
    what,
    where=where,
    got=f'{error} (tokenizers {tokenizers.__version__})',
  )


def load(parts, where):
  """A tokenizers.Tokenizer of some parts of a tokenizer.json."""
  whole = {'version': '1.0'} | parts
  try:
    return tokenizers.Tokenizer.from_str(json.dumps(whole))
  except BaseException as e:
    raise _failed(e, 'cannot use this tokenizer.json', where) from None


def wrong(where, got, expected):
  """The error for a file that is no such vocabulary."""
  return errors.DataError(
    'vocabulary is not a tokenizer.json that can be used',
    where=where,
    got=got,
    expected=expected,
    fix='copy it again, or train one with `t5x_lite vocab`',
  )
