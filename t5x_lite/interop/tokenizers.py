"""Our vocabularies as files that Hugging Face's AutoTokenizer loads.

Ids are ours for every text but what reads like a special token: theirs takes
`<extra_id_0>` in a text for the sentinel, as ours does with `sentinels=True`,
and `</s>` for the end of the text, which ours never does.
"""

import json
import random
from typing import NamedTuple

import tokenizers

from t5x_lite import storage
from t5x_lite.data import sentencepieces
from t5x_lite.data import tokenizer_json
from t5x_lite.data import vocabularies
from t5x_lite.data import vocabulary_conversion
from t5x_lite.interop import sentencepiece_json

_CHECKED = 1000  # texts, and as many with a sentinel
_ROLES = 'pad', 'eos', 'unk', 'bos'


def _bytes(vocabulary):
  """The content of a tokenizer.json of bytes."""
  shown = bytes_as_letters()
  names = {i: vocabulary.piece(i) for i in range(3)}
  names |= {
    int(id_): f'<extra_id_{i}>' for i, id_ in enumerate(vocabulary.sentinel_ids)
  }
  vocab = {letter: 3 + byte for byte, letter in enumerate(shown)}
  vocab = {letter: id_ for letter, id_ in vocab.items() if id_ not in names} | {
    name: id_ for id_, name in names.items()
  }
  split = {'type': 'ByteLevel', 'add_prefix_space': False, 'use_regex': False}
  return {
    'version': '1.0',
    'added_tokens': [
      tokenizer_json.special(names[id_], id_) for id_ in sorted(names)
    ],
    'normalizer': None,
    'pre_tokenizer': split | {'trim_offsets': True},
    'decoder': split | {'trim_offsets': True},
    'model': {'type': 'BPE', 'vocab': vocab, 'merges': []},
  }


def extra_ids_of_bytes(content):
  """Of how many extra ids is a tokenizer.json that `write` made of bytes?

  Args:
    content: of any tokenizer.json.

  Returns:
    An int, or None: it is another one.
  """
  model = content.get('model')
  vocab = model.get('vocab') if isinstance(model, dict) else None
  if not isinstance(vocab, dict) or model.get('merges') != []:
    return None
  extra_ids = max(len(vocab) - 259, 0)
  if vocab == _bytes(vocabularies.Bytes(extra_ids))['model']['vocab']:
    return extra_ids
  return None


def bytes_as_letters():
  """The 256 letters by which GPT-2 writes bytes, in the order of the bytes."""
  seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
  others = iter(range(256, 512))
  return [chr(i if i in seen else next(others)) for i in range(256)]


def _start_only(part):
  """A normalizer or pre-tokenizer that adds its space to a text's start alone.

  Returns:
    The part; and whether it is one of those that are found in whole texts.
  """
  if part is None:
    return None, False
  part, whole = dict(part), False
  if part.get('type') == 'Prepend':
    part = {
      'type': 'Replace',
      'pattern': {'Regex': rf'\A(?!\z|{sentencepiece_json.SENTINEL})'},
      'content': part['prepend'],
    }
    whole = True
  elif part.get('type') == 'Metaspace':
    always = part.pop('add_prefix_space', True)
    if part.get('prepend_scheme', 'always') == 'always' and always:
      part['prepend_scheme'] = 'first'
  for name in ('normalizers', 'pretokenizers'):
    if name in part:
      found = [_start_only(member) for member in part[name]]
      part[name] = [member for member, _ in found]
      whole = whole or any(seen for _, seen in found)
  return part, whole


def _continued(content):
  """A tokenizer.json whose text goes on behind a sentinel, as ours does."""
  content = dict(content)
  content['normalizer'], whole = _start_only(content.get('normalizer'))
  content['pre_tokenizer'], _ = _start_only(content.get('pre_tokenizer'))
  if whole:  # spaces are no longer spaces when sentinels are looked for
    steps = [sentencepiece_json.STRIP, content['normalizer']]
    content['normalizer'] = {'type': 'Sequence', 'normalizers': steps}
  content['added_tokens'] = [
    token | {'lstrip': not whole, 'rstrip': False, 'normalized': whole}
    if vocabularies.SENTINEL.fullmatch(token['content'])
    else token
    for token in content['added_tokens']
  ]
  return content


def _candidates(vocabulary):
  """Contents of a tokenizer.json, the one that may be exact first."""
  if isinstance(vocabulary, vocabularies.Bytes):
    return [_bytes(vocabulary)]
  if isinstance(vocabulary, sentencepieces.SentencePiece):
    if sentencepiece_json.reason(vocabulary.model):
      return []
    return [sentencepiece_json.content(vocabulary.model)]
  files = vocabulary.files(with_sentinels=True)
  content = json.loads(files['tokenizer.json'])
  if 'dropout' in content['model']:
    content['model']['dropout'] = None
  return [_continued(content), content]


def _roles(vocabulary, added):
  """{'pad_token': its name, ...} of the special tokens that are such."""
  found = {}
  for role in _ROLES:
    id_ = getattr(vocabulary, f'{role}_id')
    if id_ in added and added[id_]['special']:
      found[f'{role}_token'] = added[id_]['content']
  return found


def _around(start, end):
  """The post-processor that puts tokens before and behind a text.

  Args:
    start: (name, id) or None.
    end: the same.
  """
  text = lambda name: {'Sequence': {'id': name, 'type_id': 0}}
  special = lambda token: [{'SpecialToken': {'id': token[0], 'type_id': 0}}]
  before, behind = (special(x) if x else [] for x in (start, end))
  given = [token for token in (start, end) if token]
  return given and {
    'type': 'TemplateProcessing',
    'single': [*before, text('A'), *behind],
    'pair': [*before, text('A'), *behind, text('B'), *behind],
    'special_tokens': {
      name: {'id': name, 'ids': [id_], 'tokens': [name]} for name, id_ in given
    },
  }


def _whole(content, vocabulary, ends_with_eos, starts):
  """(content, its roles), complete."""
  added = {token['id']: token for token in content['added_tokens']}
  model = content['model']['vocab']
  known = {*(x[0] for x in model)} if isinstance(model, list) else {*model}
  names = {name for names in tokenizer_json.NAMES.values() for name in names}
  for role in _ROLES:  # T5's has </s> among its pieces alone
    id_ = getattr(vocabulary, f'{role}_id')
    name = vocabulary.piece(id_) if id_ >= 0 else None
    if id_ not in added and name in known & (names | {'<unk>', '[UNK]'}):
      added[id_] = tokenizer_json.special(name, id_)
  roles = _roles(vocabulary, added)
  end = start = None
  if ends_with_eos and 'eos_token' in roles:
    end = roles['eos_token'], vocabulary.eos_id
  if starts and vocabulary.start_id in added:
    start = added[vocabulary.start_id]['content'], vocabulary.start_id
  return content | {
    'truncation': None,
    'padding': None,
    'added_tokens': [added[id_] for id_ in sorted(added)],
    'post_processor': _around(start, end) or None,
  }, roles


def _texts(content):
  """Texts of the pieces of a tokenizer.json, and some with a sentinel."""
  special = {token['content'] for token in content['added_tokens']}
  pieces = content['model']['vocab']
  pieces = [x[0] for x in pieces] if isinstance(pieces, list) else [*pieces]
  back = dict(zip(bytes_as_letters(), map(chr, range(256)), strict=True))
  if content['model'].get('continuing_subword_prefix'):
    back = {}
  said = lambda piece: ''.join(back.get(x, x) for x in piece)
  pieces = [
    said(piece.replace('▁', ' ').removeprefix('##'))
    for piece in pieces
    if piece not in special
  ]
  plain = list(vocabulary_conversion.texts_of(pieces, _CHECKED))
  names = sorted(x for x in special if vocabularies.SENTINEL.fullmatch(x))
  draw, marked = random.Random(0), []
  for text in plain if names else ():
    at = draw.randrange(len(text) + 1)
    between = draw.choice(('', ' ')).join(draw.choices(names, k=2))
    marked.append(text[:at] + between + text[at:])
  return plain, marked


class _Found(NamedTuple):
  """Texts with other ids; of these `ties` have the same in another order."""

  plain: list
  marked: list
  ties: int


def _compared(content, vocabulary):
  """The texts for which a tokenizer.json gives other ids, as _Found."""
  theirs = tokenizers.Tokenizer.from_str(json.dumps(content))
  found, ties = ([], []), 0
  for texts, sentinels in zip(_texts(content), (False, True), strict=True):
    given = theirs.encode_batch_fast(texts, add_special_tokens=False)
    for text, other in zip(texts, given, strict=True):
      ids = vocabulary.encode(text, sentinels).tolist()
      if sorted(ids) != sorted(other.ids):
        found[sentinels].append(text)
      ties += ids != other.ids and sorted(ids) == sorted(other.ids)
  return _Found(*found, ties)


def _faults(found):
  return len(found.plain), len(found.marked)


def _notes(content, found):
  """Sentences that say how far ids of both are the same."""
  if content is None:
    return [
      'no tokenizer.json gives the ids of this SentencePiece model, so that '
      'AutoTokenizer makes one of spiece.model that may give others: use '
      'SentencePiece itself for our ids'
    ]
  told = 'all' if not found.plain else f'{_CHECKED - len(found.plain):,}'
  notes = [
    f'tokenizer.json gives our ids for {told} of {_CHECKED:,} texts made of '
    'its pieces; text that reads like a special token it takes for that token'
  ]
  if found.plain:
    notes.append(f'it gives others for {ascii(found.plain[0][:60])}')
  if len(found.marked) > _CHECKED // 50:
    text = ascii(found.marked[0][:60])
    notes.append(f'around sentinels in a text it gives others, as for {text}')
  if found.ties:
    notes.append(
      'of two ways to say a text that score the same, as -- and - for ---, it '
      f'may take the other one, as for {found.ties} of {2 * _CHECKED:,} texts'
    )
  return notes


def _base_model(vocabulary):
  """A SentencePiece model as T5's users have it: without added sentinels."""
  model = type(vocabulary.model)()
  model.CopyFrom(vocabulary.model)
  if vocabulary.added:
    del model.pieces[-vocabulary.added :]
    model.trainer_spec.vocab_size = len(model.pieces)
  return model.SerializeToString(deterministic=True)


def write(
  folder, vocabulary, *, ends_with_eos, starts=False, model_max_length=None
):
  """Writes what `AutoTokenizer.from_pretrained(folder)` needs.

  Args:
    folder: where to; it is there.
    vocabulary: one of ours.
    ends_with_eos: whether EOS is put behind each text, as a model with an
      encoder was trained; for a prompt that a decoder continues it is not, and
      shorter prompts are filled up on the left.
    starts: whether the start token is put before each text, as a decoder that
      was trained here reads it before a prompt.
    model_max_length: tokens that the model takes, where it has a limit.

  Returns:
    Sentences about what is not the same as here, or that all is.

  Raises:
    errors.StorageError: it can't be written.
  """
  content, roles, best = None, {}, None
  for candidate in _candidates(vocabulary):
    whole, named = _whole(candidate, vocabulary, ends_with_eos, starts)
    found = _compared(whole, vocabulary)
    if content is None or _faults(found) < _faults(best):
      content, roles, best = whole, named, found
    if _faults(best) == (0, 0):
      break
  notes = _notes(content, best)
  files, class_ = {}, 'PreTrainedTokenizerFast'
  config = {}
  if isinstance(vocabulary, sentencepieces.SentencePiece):
    files['spiece.model'] = _base_model(vocabulary)
    if content is None:
      roles = {
        f'{role}_token': vocabulary.model.pieces[id_].piece
        for role in _ROLES
        if (id_ := getattr(vocabulary, f'{role}_id')) >= 0
      }
    config = {'extra_ids': vocabulary.added}
    if ends_with_eos and roles.keys() >= {'pad_token', 'eos_token'}:
      # Its class for `use_fast=False` reads spiece.model; as `legacy` it gives
      # SentencePiece's own ids.
      class_ = 'T5Tokenizer'
      config['legacy'] = True
  sentinels = [f'<extra_id_{i}>' for i in range(vocabulary.sentinels)]
  if content is not None:
    text = json.dumps(content, ensure_ascii=False, indent=1)
    files['tokenizer.json'] = text.encode()
  files['tokenizer_config.json'] = json.dumps(
    roles
    | {
      'tokenizer_class': class_,
      'additional_special_tokens': sentinels,
      'clean_up_tokenization_spaces': False,
      'model_input_names': ['input_ids', 'attention_mask'],
      'padding_side': 'right' if ends_with_eos else 'left',
    }
    | ({'model_max_length': model_max_length} if model_max_length else {})
    | config
    | _prefix_space(content),
    indent=1,
  ).encode()
  files['special_tokens_map.json'] = json.dumps(
    roles | {'additional_special_tokens': sentinels}, indent=1
  ).encode()
  for name, data in files.items():
    storage.write_bytes(folder / name, data)
  return notes


def _prefix_space(content):
  """What transformers would else set to False in a tokenizer.json."""
  part = (content or {}).get('pre_tokenizer') or {}
  if 'add_prefix_space' not in part:
    return {}
  return {'add_prefix_space': part['add_prefix_space']}
