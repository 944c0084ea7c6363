"""A SentencePiece vocabulary made from a corpus."""

import heapq
import io
import random
import re

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as model_pb2

from t5x_lite import errors
from t5x_lite import storage
from t5x_lite.data import sentencepieces

_LONGEST_BYTES = 4000  # SentencePiece silently leaves out sentences over 4192
_THREADS = 4  # sums of floats, and so the pieces, hang on their number


def _sentences(texts):
  """Lines of the texts, cut at spaces where they are too long."""
  for text in texts:
    for line in text.splitlines():
      while len(line.encode()) > _LONGEST_BYTES:
        limit = _LONGEST_BYTES // 4  # characters, of at most four bytes
        end = line.rfind(' ', 1, limit)
        end = end if end > 0 else limit
        yield line[:end]
        line = line[end:]
      if line.strip():
        yield line


def _sample(items, count, seed):
  """A uniform sample of at most `count` of the items, in their order."""
  draw = random.Random(seed).random
  keyed = ((draw(), i, item) for i, item in enumerate(items))
  kept = heapq.nsmallest(count, keyed)
  return [item for _, _, item in sorted(kept, key=lambda entry: entry[1])]


def train_sentencepiece(
  texts,
  size,
  path,
  *,
  kind='unigram',
  byte_fallback=True,
  extra_ids=100,
  max_sentences=1_000_000,
  seed=0,
):
  """Trains a vocabulary and writes it to `path`.

  The ids are pad 0, EOS 1, unknown 2, then pieces; the last `extra_ids` are the
  sentinels, the very last being `<extra_id_0>`. The same texts give the same
  file.

  Args:
    texts: iterable of str.
    size: ids altogether, sentinels included.
    path: where the .model goes.
    kind: 'unigram' or 'bpe'.
    byte_fallback: whether bytes stand for characters without a piece, which
      takes 256 ids; else these are unknown.
    extra_ids: how many sentinels.
    max_sentences: train on a sample of at most so many lines.
    seed: of that sample.

  Returns:
    The Vocabulary.

  Raises:
    errors.DataError: the text does not support the size; names one that fits.
  """
  least = 3 + 256 * byte_fallback + 1
  if size - extra_ids < least:
    raise errors.DataError(
      'vocabulary size is too small',
      got=size,
      expected=f'{least + extra_ids} or more: {extra_ids} sentinels'
      + (', 256 bytes' if byte_fallback else '')
      + ' and 3 controls take ids',
    )
  sentences = _sample(_sentences(texts), max_sentences, seed)
  if not sentences:
    raise errors.DataError('no text to train a vocabulary on', where=path)
  writer = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(sentences),
      model_writer=writer,
      vocab_size=size - extra_ids,
      model_type=kind,
      byte_fallback=byte_fallback,
      pad_id=0,
      eos_id=1,
      unk_id=2,
      bos_id=-1,
      num_threads=_THREADS,
      minloglevel=3,
    )
  except RuntimeError as e:
    most = re.search(r'too high .*value <= (\d+)', str(e))
    least = re.search(r'smaller than required_chars\. \d+ vs (\d+)', str(e))
    if not most and not least:
      raise errors.DataError(
        'cannot train a vocabulary on this text', where=path, got=e
      ) from e
    fits = int((most or least)[1]) + extra_ids
    raise errors.DataError(
      'the text does not support this vocabulary size',
      got=size,
      expected=f'{fits} or {"less" if most else "more"}',
      fix=f'a size of {fits}' + (', or more text' if most else ''),
    ) from e
  model = model_pb2.ModelProto.FromString(writer.getvalue())
  sentencepieces.add_sentinels(model, extra_ids)
  storage.make_folder(storage.path(path).parent)
  storage.write_bytes(path, model.SerializeToString(deterministic=True))
  return sentencepieces.SentencePiece(model, extra_ids)
