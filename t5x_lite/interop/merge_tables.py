"""vocab.json and merges.txt, as GPT-2 and GPT have them, as tokenizer.json."""

from t5x_lite import errors
from t5x_lite.data import tokenizer_json

_ENDS = {  # special tokens that the class knows, where no file names any
  'GPT2': ('<|endoftext|>',),
  'CodeGen': ('<|endoftext|>',),
  'Bart': ('<s>', '</s>', '<pad>', '<unk>', '<mask>'),
  'Roberta': ('<s>', '</s>', '<pad>', '<unk>', '<mask>'),
  'OpenAIGPT': ('<unk>',),
}
KINDS = tuple(_ENDS)
_MOST = 1 << 24


def names(content):
  """The names of all ids of a tokenizer.json, '' where there is none."""
  model = content.get('model')
  pieces = model.get('vocab') if isinstance(model, dict) else None
  try:
    if isinstance(pieces, list):
      ids = {i: piece[0] for i, piece in enumerate(pieces)}
    else:
      ids = {id_: piece for piece, id_ in pieces.items()}
    ids |= {x['id']: x['content'] for x in content.get('added_tokens') or []}
    size = max(ids, default=-1) + 1
    return [ids.get(i, '') for i in range(size if size < _MOST else 0)]
  except (AttributeError, KeyError, TypeError, IndexError):
    return []  # whoever loads it says what is wrong


def _pairs(data, where):
  try:
    lines = data.decode().split('\n')
  except UnicodeDecodeError as e:
    raise errors.DataError(
      'merges are no UTF-8 text', where=where, got=e
    ) from None
  if lines[0].startswith('#version'):
    lines[0] = ''
  found = []
  for number, line in enumerate(lines, 1):
    pair = line.rstrip('\r').split(' ')
    if pair == ['']:
      continue
    if len(pair) != 2:
      raise errors.DataError(
        'a merge is two pieces',
        where=f'{where}:{number}',
        got=ascii(line[:80]),
      )
    found.append(pair)
  return found


def _parts(kind, prefix_space):
  """What is done to text before and after the merges."""
  if kind == 'OpenAIGPT':
    normalizer = {
      'type': 'BertNormalizer',
      'clean_text': True,
      'handle_chinese_chars': True,
      'strip_accents': None,
      'lowercase': True,
    }
    return {
      'normalizer': normalizer,
      'pre_tokenizer': {'type': 'BertPreTokenizer'},
      'decoder': {'type': 'BPEDecoder', 'suffix': '</w>'},
    }
  split = {'type': 'ByteLevel', 'trim_offsets': True, 'use_regex': True}
  return {
    'normalizer': None,
    'pre_tokenizer': split | {'add_prefix_space': prefix_space},
    'decoder': split | {'add_prefix_space': True},
  }


def content(kind, vocab, merges, added, settings, where):
  """The content of a tokenizer.json.

  Args:
    kind: one of KINDS, the tokenizer's class.
    vocab: {piece: id}, of vocab.json.
    merges: bytes of merges.txt.
    added: {token: id}, of added_tokens.json, or {}.
    settings: of tokenizer_config.json and special_tokens_map.json.
    where: their folder.

  Raises:
    errors.DataError: they are none.
  """
  for name, table in (('vocab.json', vocab), ('added_tokens.json', added)):
    if not all(isinstance(id_, int) for id_ in table.values()):
      raise errors.DataError('a piece has no id', where=where / name)
  said = [
    value.get('content') if isinstance(value, dict) else value
    for name, value in settings.items()
    if name.endswith('_token')
  ]
  special = {x for x in (*said, *_ENDS[kind]) if isinstance(x, str)}
  ids = {x: vocab[x] for x in special if x in vocab} | added
  gpt = kind == 'OpenAIGPT'
  return {
    'version': '1.0',
    'truncation': None,
    'padding': None,
    'added_tokens': [
      tokenizer_json.special(name, id_)
      for name, id_ in sorted(ids.items(), key=lambda item: item[1])
    ],
    **_parts(kind, bool(settings.get('add_prefix_space', False))),
    'post_processor': None,
    'model': {
      'type': 'BPE',
      'dropout': None,
      'unk_token': '<unk>' if gpt else None,
      'continuing_subword_prefix': None if gpt else '',
      'end_of_word_suffix': '</w>' if gpt else '',
      'fuse_unk': False,
      'byte_fallback': False,
      'ignore_merges': False,
      'vocab': vocab,
      'merges': _pairs(merges, where / 'merges.txt'),
    },
  }
