"""BERT's and GPT-2's kinds of vocabulary made from a corpus: tokenizer.json."""

import collections
import itertools
import json

import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import normalizers
from tokenizers import pre_tokenizers
from tokenizers import trainers

from t5x_lite import errors
from t5x_lite import storage
from t5x_lite.data import tokenizer_files
from t5x_lite.data import tokenizer_json

_BERT = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
_GPT = ['<|endoftext|>']
_ALPHABET = 1000  # characters of a WordPiece vocabulary, as BERT's trainer has


def _byte_bpe(sentences, size):
  """GPT-2's: bytes, and pairs of what is there merged again and again."""
  tokenizer = tokenizers.Tokenizer(models.BPE())
  split = pre_tokenizers.ByteLevel(add_prefix_space=False)
  tokenizer.pre_tokenizer, tokenizer.decoder = split, decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=size,
    special_tokens=_GPT,
    initial_alphabet=sorted(split.alphabet()),
    show_progress=False,
  )
  tokenizer.train_from_iterator(sentences, trainer, len(sentences))
  return json.loads(tokenizer.to_str())


def _wordpiece(sentences, size, lowercase):
  """BERT's: words, and parts of words of which all but the first say ##."""
  tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token='[UNK]'))
  tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  tokenizer.decoder = decoders.WordPiece()
  words = collections.Counter()
  for sentence in sentences:
    text = tokenizer.normalizer.normalize_str(sentence)
    split = tokenizer.pre_tokenizer.pre_tokenize_str(text)
    words.update(word for word, _ in split)
  counts = collections.Counter()
  for word, count in words.items():
    for character in word:
      counts[character] += count
  common = sorted(counts, key=lambda x: (-counts[x], x))[:_ALPHABET]
  kept = set(common)
  words = {x: words[x] for x in sorted(words) if kept.issuperset(x)}
  pieces = set().union(*words)
  pieces |= {f'##{character}' for word in words for character in word[1:]}
  # The trainer would number these by chance, and with them all the others.
  given = [*_BERT, *sorted(pieces)]
  if len(given) > size:
    return {'least': len(given)}
  trainer = trainers.WordPieceTrainer(
    vocab_size=size, special_tokens=given, show_progress=False
  )
  repeated = itertools.chain(
    *itertools.starmap(itertools.repeat, words.items())
  )
  tokenizer.train_from_iterator(repeated, trainer)
  found = json.loads(tokenizer.to_str())
  found['added_tokens'] = found['added_tokens'][: len(_BERT)]
  return found


def train(sentences, size, path, *, kind, extra_ids, lowercase):
  """Trains a vocabulary and writes it to `path`, a tokenizer.json.

  The same sentences give the same file. Special tokens have the first ids;
  the last `extra_ids` are the sentinels, the very last being `<extra_id_0>`.

  Args:
    sentences: list of str.
    size: ids altogether, sentinels included.
    path: where the file goes.
    kind: 'byte_bpe' or 'wordpiece'.
    extra_ids: how many sentinels.
    lowercase: of WordPiece, whether it takes all letters for small ones and
      leaves accents out.

  Returns:
    The Vocabulary.

  Raises:
    errors.DataError: the text does not support the size; names one that fits.
  """
  if kind == 'byte_bpe':
    least, most = len(_GPT) + 256, None
    found = _byte_bpe(sentences, max(size - extra_ids, least))
  else:
    found = _wordpiece(sentences, size - extra_ids, lowercase)
    least = found.get('least', 0)
  if size - extra_ids < least:
    raise errors.DataError(
      'vocabulary size is too small',
      got=size,
      expected=f'{least + extra_ids} or more: {extra_ids} sentinels, and the '
      'special tokens and single characters, take ids',
    )
  most = len(found['model']['vocab'])
  if most < size - extra_ids:
    raise errors.DataError(
      'the text does not support this vocabulary size',
      got=size,
      expected=f'{most + extra_ids} or less',
      fix=f'a size of {most + extra_ids}, or more text',
    )
  tokenizer_json.add_sentinels(found, size - extra_ids, extra_ids)
  storage.make_folder(storage.path(path).parent)
  text = json.dumps(found, ensure_ascii=False, indent=1)
  storage.write_bytes(path, text.encode())
  return tokenizer_files.read(storage.path(path), extra_ids)
