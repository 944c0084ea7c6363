"""Marian's vocabulary as one SentencePiece model.

Marian cuts text by source.spm or target.spm, and has the ids of the pieces in
vocab.json. Where both cut alike, and each piece has an id, one model says the
same: theirs, with its pieces in the order of the ids.
"""

from t5x_lite import errors
from t5x_lite.data import sentencepieces

FILES = 'source.spm', 'target.spm', 'vocab.json'
_ROLES = {'unk': '<unk>', 'eos': '</s>', 'pad': '<pad>', 'bos': '<s>'}
_SETTINGS = 'normalizer_spec', 'denormalizer_spec'


def merge(source, target, vocab, where):
  """The ModelProto that gives Marian's ids.

  Args:
    source: ModelProto of source.spm.
    target: of target.spm.
    vocab: {piece: id}, of vocab.json.
    where: their folder, for errors.

  Raises:
    errors.DataError: there is none; it says why.
  """
  pieces = {x.piece: x for x in source.pieces}
  silent = {x.piece for x in source.pieces if x.type == sentencepieces.CONTROL}
  missing = sorted(pieces.keys() - vocab.keys() - silent)
  codes = sorted(x for x in vocab if x.startswith('>>') and x.endswith('<<'))
  why = None
  if _cuts(source) != _cuts(target):
    why = 'source.spm and target.spm cut text in two ways'
  elif missing:
    why = f'{len(missing)} pieces without an id, such as {missing[0]!r}'
  elif {*map(repr, vocab.values())} != {*map(repr, range(len(vocab)))}:
    why = f'ids of vocab.json are not 0 to {len(vocab) - 1}'
  elif codes:
    why = f'codes of languages before a text, such as {codes[0]!r}'
  elif lacked := [x for x in ('<unk>', '</s>', '<pad>') if x not in vocab]:
    why = f'no {lacked[0]} in vocab.json'
  if why:
    raise errors.DataError(
      "Marian's vocabulary cannot be one of ours",
      where=where,
      got=ascii(why)[1:-1],
      expected='one way to cut text, and an id for each piece',
      fix='--vocabulary=FILE or bytes, for training of your own; or feed ids',
    )
  merged = type(source)()
  merged.CopyFrom(source)
  del merged.pieces[:]
  for name, _ in sorted(vocab.items(), key=lambda item: item[1]):
    own = pieces.get(name)
    if own is None:
      merged.pieces.add(piece=name, type=sentencepieces.CONTROL)
    else:
      merged.pieces.append(own)
  own = merged.trainer_spec
  for role, name in _ROLES.items():
    setattr(own, f'{role}_piece', name)
    setattr(own, f'{role}_id', vocab.get(name, -1))
  own.vocab_size = len(vocab)
  return merged


def _cuts(model):
  """All that tells how a model cuts and joins text."""
  return (
    model.trainer_spec.model_type,
    sorted((x.piece, x.score, x.type) for x in model.pieces),
    *(getattr(model, name).SerializeToString() for name in _SETTINGS),
  )
