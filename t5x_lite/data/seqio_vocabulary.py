"""A vocabulary on both sides of SeqIO: ours as SeqIO's, and theirs as ours."""

import functools

import numpy as np

from t5x_lite import errors
from t5x_lite.data import sources

_PROBE = 'A<extra_id_0> b\u00e9e<extra_id_1> 42'
_SENTINELS = 2  # that are in it


def check(task, vocabulary):
  """Refuses a task that this model can't read or say."""
  for name in ('inputs', 'targets'):
    feature = task.output_features.get(name)
    if feature is None:
      raise errors.ConfigError(
        f'task has no {name}',
        where=task.name,
        got=f'features {", ".join(task.output_features)}',
        expected='inputs and targets',
      )
    if feature.rank != 1 or not feature.dtype.is_integer:
      raise errors.ConfigError(
        f'{name} of a task are not token ids',
        where=task.name,
        got=f'{feature.dtype.name} of rank {feature.rank}',
        expected='int32 of rank 1',
      )
    # SeqIO's bytes have no name for a sentinel: it is text to them.
    plain, marked = (
      vocabulary.encode(_PROBE, sentinels).tolist()
      for sentinels in (False, vocabulary.sentinels >= _SENTINELS)
    )
    theirs = _their_ids(feature.vocabulary)
    found = feature.vocabulary.vocab_size, feature.vocabulary.eos_id
    wanted = vocabulary.size, vocabulary.eos_id
    if found != wanted or theirs not in (plain, marked):
      raise errors.ConfigError(
        'vocabulary of a task is not that of the run',
        where=f'{name} of {task.name}',
        got='{} ids, end {}, and {} for a probe'.format(*found, theirs),
        expected='{} ids, end {}, and {}'.format(*wanted, marked),
        fix='give the task the vocabulary of Data.vocabulary, with as many '
        'extra ids',
      )


def _their_ids(vocabulary):
  try:
    return [int(id_) for id_ in vocabulary.encode(_PROBE)]
  except (TypeError, ValueError):
    return None  # it passes on what it is given


def wrapped(vocabulary):
  """A vocabularies.Vocabulary as a seqio.Vocabulary: the same ids both ways."""
  return _wrapper()(vocabulary)


@functools.cache
def _wrapper():
  seqio, tf = sources.libraries()

  class Wrapped(seqio.Vocabulary):
    """Ids are those of a vocabularies.Vocabulary; sentinels are plain text."""

    def __init__(self, vocabulary):
      super().__init__(extra_ids=vocabulary.sentinels)
      self._own = vocabulary

    bos_id = property(lambda self: None)
    eos_id = property(lambda self: self._own.eos_id)
    pad_id = property(lambda self: self._own.pad_id)
    unk_id = property(lambda self: self._own.unk_id)
    _base_vocab_size = property(lambda self: self._own.size - self.extra_ids)

    def __eq__(self, other):
      return (
        isinstance(other, Wrapped)
        and self._own.fingerprint == other._own.fingerprint
      )

    __hash__ = None

    def _encode(self, text):
      return self._own.encode(text).tolist()

    def _encode_tf(self, text):
      def encode(text):
        text = text if isinstance(text, bytes) else text.item()
        return self._own.encode(text.decode()).astype(np.int32)

      ids = tf.numpy_function(encode, [text], tf.int32, stateful=False)
      ids.set_shape([None])
      return ids

    def decode(self, ids):
      # SeqIO's takes sentinels for unknown.
      ids = np.asarray(ids).tolist()
      if self.eos_id in ids:
        ids = ids[: ids.index(self.eos_id)]
      return self._decode(ids)

    def _decode(self, ids):
      return self._own.decode(ids)

    def decode_tf(self, ids):
      return self._decode_tf(ids)

    def _decode_tf(self, ids):
      decode = lambda ids: self.decode(ids).encode()
      text = tf.numpy_function(decode, [ids], tf.string, stateful=False)
      text.set_shape([])
      return text

  return Wrapped
