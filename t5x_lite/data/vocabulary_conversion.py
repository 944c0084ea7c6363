"""Vocabularies of others with what ours need, and SentencePiece's BPE as JSON.

A vocabulary is converted only if all text keeps its ids.
"""

import random

from t5x_lite import errors
from t5x_lite import storage
from t5x_lite.data import sentencepieces
from t5x_lite.data import tokenizer_files
from t5x_lite.data import tokenizer_json
from t5x_lite.data import vocabularies

_CHECKED = 4000  # texts that must have the same ids in both
_PIECE = sentencepieces.PIECE


def complete(model, extra_ids):
  """Adds to a SentencePiece model what it lacks: EOS, padding, sentinels.

  Args:
    model: sentencepiece_model_pb2.ModelProto, which is changed.
    extra_ids: how many sentinels, if it has none.

  Returns:
    The pieces that were added, by their ids.
  """
  size, said = len(model.pieces), model.trainer_spec
  ids = {piece.piece: i for i, piece in enumerate(model.pieces)}
  for role in ('eos', 'pad'):
    name = getattr(said, f'{role}_piece')
    if name in ids:
      model.pieces[ids[name]].type = _PIECE.CONTROL
      setattr(said, f'{role}_id', ids[name])
    else:
      setattr(said, f'{role}_id', len(model.pieces))
      model.pieces.add(piece=name, score=0.0, type=_PIECE.CONTROL)
  if '<extra_id_0>' not in ids:
    sentencepieces.add_sentinels(model, extra_ids)
  said.vocab_size = len(model.pieces)
  return [piece.piece for piece in model.pieces[size:]]


def _refused(path, reason):
  return errors.DataError(
    'no tokenizer.json gives the ids of this SentencePiece model',
    where=path,
    got=reason,
    expected='BPE of text as it is',
    fix='use the .model itself: it needs no conversion',
  )


def _reason(model):
  """Why a model can't be said by merges, or None."""
  normalizer, trainer = model.normalizer_spec, model.trainer_spec
  kinds = {
    piece.type
    for piece in model.pieces
    if not vocabularies.SENTINEL.fullmatch(piece.piece)
  }
  for fault, reason in (
    (trainer.model_type != trainer.BPE, 'a model that is not BPE'),
    (normalizer.precompiled_charsmap, f'normalization {normalizer.name!r}'),
    (normalizer.remove_extra_whitespaces, 'double spaces that become one'),
    (not normalizer.escape_whitespaces, 'spaces that stay spaces'),
    (trainer.treat_whitespace_as_suffix, 'spaces at the ends of words'),
    (_PIECE.USER_DEFINED in kinds, 'pieces of its user'),
    (_PIECE.UNUSED in kinds, 'unused pieces'),
  ):
    if fault:
      return reason
  return None


def merges(model):
  """Pairs of pieces in the order in which SentencePiece joins them.

  Args:
    model: sentencepiece_model_pb2.ModelProto of BPE.
  """
  normal = {
    piece.piece: (-piece.score, i)
    for i, piece in enumerate(model.pieces)
    if piece.type == _PIECE.NORMAL
  }
  pairs = [
    (normal[piece], normal[piece[:at]], normal[piece[at:]], piece, at)
    for piece in normal
    for at in range(1, len(piece))
    if piece[:at] in normal and piece[at:] in normal
  ]
  return [[piece[:at], piece[at:]] for *_, piece, at in sorted(pairs)]


def _as_json(model):
  """(content of a tokenizer.json, its special tokens) of a BPE model."""
  pieces = [piece.piece for piece in model.pieces]
  trainer = model.trainer_spec
  first = {'type': 'Prepend', 'prepend': '▁'}
  spaces = {'type': 'Replace', 'pattern': {'String': ' '}, 'content': '▁'}
  plain = {'type': 'Replace', 'pattern': {'String': '▁'}, 'content': ' '}
  prefix = model.normalizer_spec.add_dummy_prefix
  strip = {'type': 'Strip', 'content': ' ', 'start': 1, 'stop': 0}
  special = (_PIECE.CONTROL, _PIECE.UNKNOWN, _PIECE.USER_DEFINED)
  content = {
    'version': '1.0',
    'truncation': None,
    'padding': None,
    'added_tokens': [
      tokenizer_json.special(piece.piece, i)
      for i, piece in enumerate(model.pieces)
      if piece.type in special
    ],
    'normalizer': {
      'type': 'Sequence',
      'normalizers': [*([first] if prefix else []), spaces],
    },
    'pre_tokenizer': None,
    'post_processor': None,
    'decoder': {
      'type': 'Sequence',
      'decoders': [
        plain,
        {'type': 'ByteFallback'},
        {'type': 'Fuse'},
        *([strip] if prefix else []),
      ],
    },
    'model': {
      'type': 'BPE',
      'dropout': None,
      'unk_token': trainer.unk_piece,
      'continuing_subword_prefix': None,
      'end_of_word_suffix': None,
      'fuse_unk': True,
      'byte_fallback': trainer.byte_fallback,
      'ignore_merges': False,
      'vocab': {piece: i for i, piece in enumerate(pieces)},
      'merges': merges(model),
    },
  }
  roles = {'eos_token': trainer.eos_piece, 'pad_token': trainer.pad_piece}
  if trainer.bos_piece in pieces:
    roles['bos_token'] = trainer.bos_piece
  return content, roles


def texts_of(pieces, count):
  """Texts in which pieces meet in ways that they do in no corpus, too.

  Args:
    pieces: list of str, as they read in a text.
    count: how many texts.
  """
  draw = random.Random(0)
  pieces = [*pieces, ' ', '\n', '\0', '天', '\U0001f680', '\ufeff', '▁']
  pieces += ['e\u0301', 'e\u0323\u0302', '\r\n', 'ﬁ', '\u202eא', '~１']
  for _ in range(count):
    yield ''.join(draw.choices(pieces, k=draw.randrange(1, 30)))


def convert(path, output, extra_ids):
  """Writes a vocabulary with EOS, padding and sentinels.

  Args:
    path: a SentencePiece .model, or a tokenizer.json or its folder.
    output: where it goes: a .model; or a tokenizer.json, or its folder.
    extra_ids: how many sentinels, if it has none.

  Returns:
    Sentences that say what was added.

  Raises:
    errors.DataError: the file is broken, or text would have other ids.
  """
  if path.is_dir() or path.suffix == '.json':
    if output.suffix == '.model':
      raise errors.DataError(
        'no SentencePiece model gives the ids of a tokenizer.json',
        where=path,
        got='pieces in the order of merges, or of words',
        expected='--output of a tokenizer.json',
        fix='use the tokenizer.json itself: it needs no conversion',
      )
    made = tokenizer_files.read(path, extra_ids)
    _write(made.files(with_sentinels=True), output)
    return [f'{made.size:,} pieces, {made.sentinels} of them sentinels']
  model = sentencepieces.read(path)
  added = complete(model, extra_ids)
  told = f'{len(added)} pieces added'
  if added:
    told += ': ' + (
      ', '.join(added) if len(added) < 4 else f'{added[0]} to {added[-1]}'
    )
  if output.suffix == '.model':
    storage.make_folder(output.parent)
    storage.write_bytes(output, model.SerializeToString(deterministic=True))
    return [told]
  if reason := _reason(model):
    raise _refused(path, reason)
  content, roles = _as_json(model)
  made = tokenizer_files.make(content, [roles], 0, None, output)
  ours = sentencepieces.SentencePiece(model, 0)
  pieces = [piece.piece.replace('▁', ' ') for piece in model.pieces]
  texts = list(texts_of(pieces, _CHECKED))
  for text, one, other in zip(
    texts, ours.encode_batch(texts), made.encode_batch(texts), strict=True
  ):
    if one.tolist() != other.tolist():
      raise _refused(path, f'other ids of {text!r}')
  _write(made.files(), output)
  return [told, f'the same ids as before, in {_CHECKED:,} texts of its pieces']


def _write(files, output):
  folder, name = output, 'tokenizer.json'
  if output.suffix == '.json':
    folder, name = output.parent, output.name
  storage.make_folder(folder)
  content = files.pop('tokenizer.json')
  storage.write_bytes(folder / name, content)
  for beside, settings in files.items() if name == 'tokenizer.json' else ():
    storage.write_bytes(folder / beside, settings)
