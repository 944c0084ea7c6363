"""A SentencePiece model as Hugging Face's tokenizer.json.

The library `tokenizers` has the same models, but its own ways with spaces and
with Unicode. What its converter of T5 leaves different is mended here:

- Its `Precompiled` loses accents that are letters of their own; see
  unicode_tables.
- `Strip` takes line ends, too; SentencePiece only spaces.
- `Metaspace` adds no `▁` before a text that begins with a space or a `▁`, and
  one after each sentinel, where training has none.
- Unigram takes `<0x41>` in a text for the byte.

What stays different: since SentencePiece adds in float32, of two ways that
score the same, `---` as `--` and `-` say, another one may be taken.
"""

from t5x_lite.data import sentencepieces
from t5x_lite.data import tokenizer_json
from t5x_lite.data import vocabularies
from t5x_lite.data import vocabulary_conversion
from t5x_lite.interop import unicode_tables

_PIECE = sentencepieces.PIECE
SENTINEL = vocabularies.SENTINEL.pattern.replace('(', '').replace(')', '')


def _replace(pattern, content):
  return {'type': 'Replace', 'pattern': {'Regex': pattern}, 'content': content}


# A space before a sentinel would become a piece of its own.
STRIP = _replace(rf'[\s\x1c-\x1f]+(?={SENTINEL})', '')


def reason(model):
  """Why no tokenizer.json can say a model, or None."""
  normalizer, trainer = model.normalizer_spec, model.trainer_spec
  for fault, text in (
    (
      trainer.model_type not in (trainer.BPE, trainer.UNIGRAM),
      'a model that is neither Unigram nor BPE',
    ),
    (not normalizer.escape_whitespaces, 'spaces that stay spaces'),
    (trainer.treat_whitespace_as_suffix, 'spaces at the ends of words'),
  ):
    if fault:
      return text
  return None


def _normalizer(spec):
  steps = [STRIP]
  if spec.precompiled_charsmap:
    steps += unicode_tables.normalizers(spec.precompiled_charsmap)
  if spec.remove_extra_whitespaces:
    steps += [
      _replace(' {2,}', ' '),
      _replace(r'\A ', ''),
      _replace(r'[ ▁]+\z', ''),
    ]
  if spec.add_dummy_prefix:
    steps.append(_replace(rf'\A(?!\z|{SENTINEL})', '▁'))
  steps.append(_replace(' ', '▁'))
  return {'type': 'Sequence', 'normalizers': steps}


def _pre_tokenizer(model):
  """Cuts words apart, where no piece spans two, as is quicker."""
  steps = []
  if model.trainer_spec.byte_fallback:
    # Else Unigram, whose pieces of bytes have such names, would take it so.
    steps.append(('<(?=0x[0-9A-F]{2}>)', 'MergedWithPrevious'))
  if all('▁' not in piece.piece[1:] for piece in model.pieces):
    steps.append(('▁', 'MergedWithNext'))
  cuts = [
    {'type': 'Split', 'pattern': {'Regex': pattern}, 'behavior': behavior}
    | {'invert': False}
    for pattern, behavior in steps
  ]
  return {'type': 'Sequence', 'pretokenizers': cuts} if cuts else None


def _decoder(spec):
  steps = [
    {'type': 'Replace', 'pattern': {'String': '▁'}, 'content': ' '},
    {'type': 'ByteFallback'},
    {'type': 'Fuse'},
  ]
  if spec.add_dummy_prefix or spec.remove_extra_whitespaces:
    most = 1 << 20 if spec.remove_extra_whitespaces else 1
    steps.append({'type': 'Strip', 'content': ' ', 'start': most, 'stop': 0})
  return {'type': 'Sequence', 'decoders': steps}


def _model(model):
  trainer = model.trainer_spec
  fallback = {'byte_fallback': trainer.byte_fallback}
  if trainer.model_type == trainer.UNIGRAM:
    return fallback | {
      'type': 'Unigram',
      'unk_id': trainer.unk_id,
      'vocab': [[piece.piece, piece.score] for piece in model.pieces],
    }
  return fallback | {
    'type': 'BPE',
    'dropout': None,
    'unk_token': trainer.unk_piece,
    'continuing_subword_prefix': None,
    'end_of_word_suffix': None,
    'fuse_unk': True,
    'ignore_merges': False,
    'vocab': {piece.piece: i for i, piece in enumerate(model.pieces)},
    'merges': vocabulary_conversion.merges(model),
  }


def _added(piece, id_):
  said = tokenizer_json.special(piece.piece, id_)
  if vocabularies.SENTINEL.fullmatch(piece.piece):
    # Found only once the whole text is normalized, so that what is done to
    # the start of a text isn't done behind a sentinel.
    said['normalized'] = True
  elif piece.type == _PIECE.USER_DEFINED:
    said['special'] = False
  return said


def content(model):
  """The content of a tokenizer.json of a model; see `reason`.

  Args:
    model: sentencepiece_model_pb2.ModelProto, with its sentinels.
  """
  special = (_PIECE.CONTROL, _PIECE.UNKNOWN, _PIECE.USER_DEFINED)
  return {
    'version': '1.0',
    'truncation': None,
    'padding': None,
    'added_tokens': [
      _added(piece, i)
      for i, piece in enumerate(model.pieces)
      if piece.type in special
    ],
    'normalizer': _normalizer(model.normalizer_spec),
    'pre_tokenizer': _pre_tokenizer(model),
    'post_processor': None,
    'decoder': _decoder(model.normalizer_spec),
    'model': _model(model),
  }
