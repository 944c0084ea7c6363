"""A vocabulary made from a corpus, and how well it says other texts."""

import heapq
import io
import random
import re
from typing import NamedTuple

import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as model_pb2

from t5x_lite import errors
from t5x_lite import storage
from t5x_lite.data import sentencepieces
from t5x_lite.data import tokenizer_training

JSON_KINDS = ('byte_bpe', 'wordpiece')
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


def _sentencepiece(
  sentences, size, path, *, kind, extra_ids, byte_fallback, character_coverage
):
  least = 3 + 256 * byte_fallback + 1
  if size - extra_ids < least:
    raise errors.DataError(
      'vocabulary size is too small',
      got=size,
      expected=f'{least + extra_ids} or more: {extra_ids} sentinels'
      + (', 256 bytes' if byte_fallback else '')
      + ' and 3 controls take ids',
    )
  writer = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(sentences),
      model_writer=writer,
      vocab_size=size - extra_ids,
      model_type=kind,
      byte_fallback=byte_fallback,
      character_coverage=character_coverage,
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


def train(
  texts,
  size,
  path,
  *,
  kind='unigram',
  extra_ids=100,
  max_sentences=1_000_000,
  seed=0,
  byte_fallback=True,
  character_coverage=0.9995,
  lowercase=False,
):
  """Trains a vocabulary and writes it to `path`.

  The ids of a SentencePiece model are pad 0, EOS 1, unknown 2, then pieces; of
  a tokenizer.json, its special tokens, then pieces. The last `extra_ids` are
  the sentinels, the very last being `<extra_id_0>`. The same texts give the
  same file.

  Args:
    texts: iterable of str.
    size: ids altogether, sentinels included.
    path: where the file goes.
    kind: 'unigram' or 'bpe', of SentencePiece; 'byte_bpe', as GPT-2's, or
      'wordpiece', as BERT's, in a tokenizer.json.
    extra_ids: how many sentinels.
    max_sentences: train on a sample of at most so many lines.
    seed: of that sample.
    byte_fallback: of SentencePiece, whether bytes stand for characters without
      a piece, which takes 256 ids; else these are unknown.
    character_coverage: of SentencePiece, the share of the characters of the
      text that have pieces.
    lowercase: of WordPiece, whether all letters are small and without accents.

  Returns:
    The Vocabulary.

  Raises:
    errors.DataError: the text does not support the size; names one that fits.
  """
  sentences = _sample(_sentences(texts), max_sentences, seed)
  if not sentences:
    raise errors.DataError('no text to train a vocabulary on', where=path)
  common = dict(kind=kind, extra_ids=extra_ids)
  if kind in JSON_KINDS:
    return tokenizer_training.train(
      sentences, size, path, lowercase=lowercase, **common
    )
  return _sentencepiece(
    sentences,
    size,
    path,
    byte_fallback=byte_fallback,
    character_coverage=character_coverage,
    **common,
  )


class Quality(NamedTuple):
  """How well a vocabulary says some texts.

  Attributes:
    bytes_per_token: of UTF-8; more is better.
    unknown: the share of the tokens that are unknown.
  """

  bytes_per_token: float
  unknown: float


def quality(vocabulary, texts):
  """The Quality of a vocabulary on texts, of which one at least says much."""
  tokens = np.concatenate(vocabulary.encode_batch(texts))
  size = sum(len(text.encode()) for text in texts)
  unknown = tokens == vocabulary.unk_id
  return Quality(size / max(len(tokens), 1), float(unknown.mean()))
