"""Text to token ids and back, and the vocabulary of bytes.

Sentinel i stands for the i-th masked span and reads `<extra_id_i>`. Text that
happens to say so is text; only `encode(..., sentinels=True)` takes it for the
sentinel.
"""

import abc
import hashlib
import itertools
import re

import numpy as np

from t5x_lite import errors

SENTINEL = re.compile(r'<extra_id_(\d+)>')


def find(name, ids, role):
  """The id of what Data.special_tokens names.

  Args:
    name: the token.
    ids: {token: id} of the vocabulary.
    role: 'eos', say.

  Raises:
    errors.ConfigError: there is no such token.
  """
  if name not in ids:
    raise errors.ConfigError(
      f'the vocabulary has no such token for {role!r}',
      where='Data.special_tokens',
      got=repr(name),
      choices=[token for token in ids if not token.isalnum()],
    )
  return ids[name]


def split(flat, rows):
  """An array in parts that are as long as the rows."""
  ends = itertools.accumulate(map(len, rows), initial=0)
  return [flat[start:end] for start, end in itertools.pairwise(ends)]


def to_arrays(rows):
  """Lists of ids as int32 arrays; all at once is faster than each by itself."""
  ids = itertools.chain.from_iterable(rows)
  return split(np.fromiter(ids, np.int32, sum(map(len, rows))), rows)


class Vocabulary(abc.ABC):
  """What a vocabulary knows; ids are those of the model's embedding.

  Attributes:
    size: ids are in [0, size).
    pad_id: fills what segment ids hide.
    start_id: what a decoder reads first: the padding, unless said otherwise.
    eos_id: ends inputs and targets; -1 where the vocabulary has none.
    unk_id: stands for what can't be said otherwise; -1 where all can be said.
    bos_id: begins texts, in systems that ask for it; -1 where there is none.
    sentinel_ids: int32, sentinels in the order of the spans they stand for.
    fingerprint: sha256 of all that ids depend on, in hexadecimal.
  """

  def __init__(
    self,
    *,
    size,
    pad_id,
    eos_id,
    unk_id,
    bos_id,
    sentinel_ids,
    fingerprint,
    start_id=None,
  ):
    self.size, self.pad_id, self.eos_id = size, pad_id, eos_id
    self.start_id = pad_id if start_id is None else start_id
    self.unk_id, self.bos_id, self.fingerprint = unk_id, bos_id, fingerprint
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
    return self._encoded(lambda texts: self._encode_marked(*texts), [text])

  def encode_batch(self, texts):
    """Token ids of each text, int32 [L]; sentinels are plain text."""
    return self._encoded(self._encode_batch, texts)

  def _encoded(self, encode, texts):
    try:
      return encode(texts)
    except (UnicodeError, TypeError, RuntimeError):
      for text in texts:
        if half := re.search('[\ud800-\udfff]', text):
          raise errors.DataError(
            'half of a surrogate pair is no text',
            where=f'character {half.start()}',
            got=ascii(half[0]),
          ) from None
      raise

  @abc.abstractmethod
  def _encode_batch(self, texts):
    """As `encode_batch`."""

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
      bos_id=-1,
      sentinel_ids=size - 1 - np.arange(extra_ids or self._UNUSED),
      fingerprint=hashlib.sha256(f'bytes {extra_ids}'.encode()).hexdigest(),
    )

  def _encode_batch(self, texts):
    parts = [text.encode() for text in texts]
    flat = np.frombuffer(b''.join(parts), np.uint8).astype(np.int32)
    flat += self._OFFSET
    return split(flat, parts)

  def _encode_marked(self, text):
    parts = SENTINEL.split(text)  # text, number, text, ..., text
    parts[0::2] = self._encode_batch(parts[0::2])
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
