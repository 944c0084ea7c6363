"""Text to token ids and back: bytes, or a SentencePiece model.

Sentinel i stands for the i-th masked span and reads `<extra_id_i>`. Text that
happens to say so is text; only `encode(..., sentinels=True)` takes it for the
sentinel.
"""

import abc
import contextlib
import hashlib
import os
import re

from google.protobuf import message
import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as model_pb2

from t5x_lite import errors
from t5x_lite import storage

SENTINEL = re.compile(r'<extra_id_(\d+)>')
_LONGEST = 1 << 20  # characters that SentencePiece is given at once
_PIECE = model_pb2.ModelProto.SentencePiece


class Vocabulary(abc.ABC):
  """What a vocabulary knows; ids are those of the model's embedding.

  Attributes:
    size: ids are in [0, size).
    pad_id: fills what segment ids hide, and is what a decoder reads first.
    eos_id: ends inputs and targets; -1 where the vocabulary has none.
    unk_id: stands for what can't be said otherwise.
    sentinel_ids: int32, sentinels in the order of the spans they stand for.
    fingerprint: sha256 of all that ids depend on, in hexadecimal.
  """

  def __init__(self, size, pad_id, eos_id, unk_id, sentinel_ids, fingerprint):
    self.size, self.pad_id, self.eos_id = size, pad_id, eos_id
    self.unk_id, self.fingerprint = unk_id, fingerprint
    self.sentinel_ids = np.asarray(sentinel_ids, np.int32)
    self._number = {int(id_): i for i, id_ in enumerate(self.sentinel_ids)}
    self._is_sentinel = np.zeros(size, bool)
    self._is_sentinel[self.sentinel_ids] = True

  @property
  def sentinels(self):
    """How many sentinels there are."""
    return len(self.sentinel_ids)

  def sentinel(self, i):
    """The id of sentinel `i`, an int or an array."""
    return self.sentinel_ids[i]

  def is_sentinel(self, ids):
    """Which of the ids, an int or an array, are sentinels."""
    return self._is_sentinel[ids]

  def encode(self, text, sentinels=False):
    """Token ids of a text, int32 [L], without EOS.

    Args:
      text: any str.
      sentinels: whether `<extra_id_0>` in the text means the sentinel.
    """
    if not sentinels:
      return self.encode_batch([text])[0]
    for number in SENTINEL.findall(text):
      if int(number) >= self.sentinels:
        raise errors.DataError(
          'no such sentinel in the vocabulary',
          got=f'<extra_id_{number}>',
          expected=f'<extra_id_0> to <extra_id_{self.sentinels - 1}>'
          if self.sentinels
          else 'none: the vocabulary has no sentinels',
        )
    return self._encode_marked(text)

  @abc.abstractmethod
  def encode_batch(self, texts):
    """Token ids of each text, int32 [L]; sentinels are plain text."""

  @abc.abstractmethod
  def _encode_marked(self, text):
    """Token ids of a text whose `<extra_id_0>` and such are sentinels."""

  @abc.abstractmethod
  def decode(self, ids):
    """The text of token ids; pad, EOS and other controls say nothing."""

  @abc.abstractmethod
  def piece(self, id_):
    """One token as a person may read it, on any terminal."""


class Bytes(Vocabulary):
  """UTF-8 bytes plus three: pad 0, EOS 1, unknown 2 (ByT5, arXiv:2105.13626).

  Without extra ids the sentinels are, as in ByT5, the last bytes, downward.
  Only the eleven that UTF-8 never uses are taken, so text can't collide.
  """

  _OFFSET = 3
  _UNUSED = 11  # 0xF5 to 0xFF

  def __init__(self, extra_ids):
    size = self._OFFSET + 256 + extra_ids
    super().__init__(
      size=size,
      pad_id=0,
      eos_id=1,
      unk_id=2,
      sentinel_ids=size - 1 - np.arange(extra_ids or self._UNUSED),
      fingerprint=hashlib.sha256(f'bytes {extra_ids}'.encode()).hexdigest(),
    )

  def encode_batch(self, texts):
    return [
      np.frombuffer(text.encode(), np.uint8).astype(np.int32) + self._OFFSET
      for text in texts
    ]

  def _encode_marked(self, text):
    parts = SENTINEL.split(text)  # text, number, text, ..., text
    parts[0::2] = self.encode_batch(parts[0::2])
    parts[1::2] = [self.sentinel_ids[[int(i)]] for i in parts[1::2]]
    return np.concatenate(parts)

  def decode(self, ids):
    text, run = [], bytearray()
    for id_ in map(int, ids):
      if id_ in self._number:
        text += [
          run.decode(errors='replace'),
          f'<extra_id_{self._number[id_]}>',
        ]
        run = bytearray()
      elif id_ >= self._OFFSET:
        run.append(id_ - self._OFFSET)
    return ''.join([*text, run.decode(errors='replace')])

  def piece(self, id_):
    if id_ in self._number:
      return f'<extra_id_{self._number[id_]}>'
    if id_ < self._OFFSET:
      return ('<pad>', '</s>', '<unk>')[id_]
    byte = id_ - self._OFFSET
    return chr(byte) if 32 <= byte < 127 else f'<0x{byte:02X}>'


class SentencePiece(Vocabulary):
  """A SentencePiece model, and sentinels at the end where it has none."""

  def __init__(self, model, extra_ids):
    """Makes the vocabulary of a model.

    Args:
      model: sentencepiece_model_pb2.ModelProto.
      extra_ids: sentinels to add where the model has none, the last id being
        `<extra_id_0>`, as in SeqIO.
    """
    model = _copy(model)
    ids = {piece.piece: i for i, piece in enumerate(model.pieces)}
    if '<extra_id_0>' not in ids:
      add_sentinels(model, extra_ids)
      ids = {piece.piece: i for i, piece in enumerate(model.pieces)}
    sentinel_ids = []
    while (name := f'<extra_id_{len(sentinel_ids)}>') in ids:
      sentinel_ids.append(ids[name])
    self._marked = self._processor(model, sentinel_ids, _PIECE.USER_DEFINED)
    self._plain = self._processor(model, sentinel_ids, _PIECE.CONTROL)
    unk_id = self._plain.unk_id()
    own = [self._plain.pad_id(), self._plain.bos_id(), unk_id]
    super().__init__(
      size=self._plain.get_piece_size(),
      pad_id=next(id_ for id_ in own if id_ >= 0),
      eos_id=self._plain.eos_id(),
      unk_id=unk_id,
      sentinel_ids=sentinel_ids,
      fingerprint=hashlib.sha256(_serialize(model)).hexdigest(),
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

  def encode_batch(self, texts):
    short = iter(self._plain.encode([t for t in texts if len(t) <= _LONGEST]))
    return [
      self._encode_long(text)
      if len(text) > _LONGEST
      else np.array(next(short), np.int32)
      for text in texts
    ]

  def _encode_marked(self, text):
    # A space before a sentinel would become a piece of its own, which never
    # stands there in training.
    text = re.sub(rf'\s+(?={SENTINEL.pattern})', '', text)
    ids = self._marked.encode(text)
    if SENTINEL.match(text.lstrip()) and not self.is_sentinel(ids[0]):
      ids = ids[1:]
    return np.array(ids, np.int32)

  def decode(self, ids):
    return self._marked.decode([int(id_) for id_ in ids])

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
      piece=f'<extra_id_{i}>', score=0.0, type=_PIECE.USER_DEFINED
    )
  model.trainer_spec.vocab_size = len(model.pieces)


def _read_model(name):
  path = storage.path(name)
  try:
    data = path.read_bytes()
  except IsADirectoryError as e:
    raise errors.DataError(
      'vocabulary is a folder', where=path, expected='a SentencePiece .model'
    ) from e
  except FileNotFoundError as e:
    near = []
    with contextlib.suppress(OSError):  # no such bucket, say
      near += [str(p) for p in path.parent.glob('*.model')]
    raise errors.DataError(
      'no such vocabulary',
      where='Data.vocabulary',
      got=name,
      expected="'bytes' or the path of a SentencePiece .model",
      choices=['bytes', *near],
      fix='train one with `t5x_lite vocab`',
    ) from e
  except OSError as e:
    raise errors.DataError(
      'cannot read the vocabulary', where=path, got=e.strerror or e
    ) from e
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


def load(data):
  """The vocabulary that specs.Data asks for.

  Args:
    data: specs.Data; `vocabulary` and `extra_ids` count.

  Returns:
    A Vocabulary.

  Raises:
    errors.DataError: the model is missing, broken or not one.
  """
  if data.vocabulary == 'bytes':
    return Bytes(data.extra_ids)
  return SentencePiece(_read_model(os.fspath(data.vocabulary)), data.extra_ids)
