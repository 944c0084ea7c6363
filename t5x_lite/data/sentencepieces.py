"""SentencePiece models, and sentinels at the end of those that have none."""

import hashlib
import re

from google.protobuf import message
import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as model_pb2

from t5x_lite import errors
from t5x_lite.data import vocabularies

_LONGEST = 1 << 20  # characters that SentencePiece is given at once
PIECE = model_pb2.ModelProto.SentencePiece
CONTROL = PIECE.CONTROL


class SentencePiece(vocabularies.Vocabulary):
  """A SentencePiece model, and sentinels at the end where it has none.

  Attributes:
    model: sentencepiece_model_pb2.ModelProto, with the sentinels.
    added: how many of these it did not have itself.
  """

  def __init__(self, model, extra_ids, special_tokens=None):
    """Makes the vocabulary of a model.

    Args:
      model: sentencepiece_model_pb2.ModelProto.
      extra_ids: sentinels to add where the model has none, the last id being
        `<extra_id_0>`, as in SeqIO.
      special_tokens: pieces that are its 'pad', 'eos', 'bos' or 'start'; None
        for what the model itself says.
    """
    model = _copy(model)
    ids = {piece.piece: i for i, piece in enumerate(model.pieces)}
    self.model, self.added = model, 0
    if '<extra_id_0>' not in ids:
      self.added = extra_ids
      add_sentinels(model, extra_ids)
      ids = {piece.piece: i for i, piece in enumerate(model.pieces)}
    sentinel_ids = []
    while (name := f'<extra_id_{len(sentinel_ids)}>') in ids:
      sentinel_ids.append(ids[name])
    self._marked = self._processor(model, sentinel_ids, PIECE.USER_DEFINED)
    self._plain = self._processor(model, sentinel_ids, PIECE.CONTROL)
    unk_id = self._plain.unk_id()
    said = {
      role: vocabularies.find(name, ids, role)
      for role, name in (special_tokens or {}).items()
    }
    bos_id = said.get('bos', self._plain.bos_id())
    own = [said.get('pad', self._plain.pad_id()), bos_id, unk_id]
    pad_id = next(id_ for id_ in own if id_ >= 0)
    eos_id = said.get('eos', self._plain.eos_id())
    # What says nothing; for SentencePiece only controls do.
    self._silent = {*said.values()}
    super().__init__(
      size=self._plain.get_piece_size(),
      pad_id=pad_id,
      eos_id=eos_id,
      unk_id=unk_id,
      bos_id=bos_id,
      sentinel_ids=sentinel_ids,
      start_id=said.get('start'),
      fingerprint=hashlib.sha256(
        _serialize(model)
        + (repr(sorted(said.items())).encode() if said else b'')
      ).hexdigest(),
    )
    # Only with both is cutting at a space the same as not cutting.
    normalizer = model.normalizer_spec
    self._can_cut = (
      normalizer.add_dummy_prefix and normalizer.remove_extra_whitespaces
    )

  @staticmethod
  def _processor(model, sentinel_ids, kind):
    model = _copy(model)
    for id_ in sentinel_ids:
      model.pieces[id_].type = kind
    return sentencepiece.SentencePieceProcessor(model_proto=_serialize(model))

  def _cut(self, text):
    """A long text in parts, without the space between two parts."""
    at = 0
    while self._can_cut and len(text) - at > _LONGEST:
      end = text.rfind(' ', at, at + _LONGEST)
      if end < 0:
        break
      yield text[at:end]
      at = end + 1
    yield text[at:]

  def _encode_long(self, text):
    parts = (self._plain.encode(part) for part in self._cut(text))
    return np.concatenate([np.array(part, np.int32) for part in parts])

  def _encode_batch(self, texts):
    short = [text for text in texts if len(text) <= _LONGEST]
    rows = iter(vocabularies.to_arrays(self._plain.encode(short)))
    return [
      self._encode_long(text) if len(text) > _LONGEST else next(rows)
      for text in texts
    ]

  def _encode_marked(self, text):
    # A space before a sentinel would become a piece of its own, which never
    # stands there in training.
    text = re.sub(rf'\s+(?={vocabularies.SENTINEL.pattern})', '', text)
    ids = self._marked.encode(text)
    if vocabularies.SENTINEL.match(text.lstrip()) and not self.is_sentinel(
      ids[0]
    ):
      ids = ids[1:]
    return np.array(ids, np.int32)

  def decode(self, ids):
    ids = [int(id_) for id_ in ids]
    return self._marked.decode([i for i in ids if i not in self._silent])

  def piece(self, id_):
    piece = self._plain.id_to_piece(int(id_))
    return piece if piece.isprintable() else ascii(piece)[1:-1]


def _copy(model):
  copy = model_pb2.ModelProto()
  copy.CopyFrom(model)
  return copy


def _serialize(model):
  return model.SerializeToString(deterministic=True)


def add_sentinels(model, count):
  """Appends `<extra_id_{count-1}>` ... `<extra_id_0>` to a model."""
  for i in reversed(range(count)):
    model.pieces.add(
      piece=f'<extra_id_{i}>', score=0.0, type=PIECE.USER_DEFINED
    )
  model.trainer_spec.vocab_size = len(model.pieces)


def read(path):
  """The sentencepiece_model_pb2.ModelProto of a .model file.

  Raises:
    errors.DataError: it is none.
    OSError: it can't be read.
  """
  data = path.read_bytes()
  model = model_pb2.ModelProto()
  try:
    model.ParseFromString(data)
    # A model cut between two fields still parses; its last field is this one.
    if not model.HasField('normalizer_spec'):
      raise ValueError('no normalizer')
    sentencepiece.SentencePieceProcessor(model_proto=data)
  except (message.DecodeError, RuntimeError, ValueError) as e:
    raise errors.DataError(
      'vocabulary is not a SentencePiece model',
      where=path,
      got=f'{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()[:8]}',
      expected='a whole .model file',
      fix='copy it again, or train one with `t5x_lite vocab`',
    ) from e
  return model
