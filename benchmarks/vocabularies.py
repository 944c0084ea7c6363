"""Tokens per CPU second of each kind of vocabulary and of the library under it.

Trains them on Python's documentation, then encodes that in turns, ours and the
library's own loop, on one core. Prints tokens/s of ours, of the library, and
the median of the ratios of turns.

  python benchmarks/vocabularies.py --size=4000 --turns=9
"""

import argparse
import os
import pathlib
import pydoc_data.topics
import statistics
import tempfile
import time

import sentencepiece
import tokenizers

from t5x_lite import data
from t5x_lite import specs
from t5x_lite.data import vocabulary_training

TEXTS = [
  paragraph
  for topic in pydoc_data.topics.topics.values()
  for paragraph in topic.split('\n\n')
]


def bare(path):
  """The library's own way from texts to lists of ids."""
  if path == 'bytes':
    return lambda texts: [list(text.encode()) for text in texts]
  if path.endswith('.model'):
    return sentencepiece.SentencePieceProcessor(model_file=path).encode
  made = tokenizers.Tokenizer.from_file(path)
  return lambda texts: [
    found.ids
    for found in made.encode_batch_fast(texts, add_special_tokens=False)
  ]


def seconds(encode):
  start = time.process_time()
  tokens = sum(map(len, encode(TEXTS)))
  return time.process_time() - start, tokens


def measure(name, path, turns):
  spec = specs.Data(corpus='none', lengths={'inputs': 9}, vocabulary=path)
  ours, theirs = data.load_vocabulary(spec).encode_batch, bare(path)
  seconds(ours), seconds(theirs)  # caches fill
  found = []
  for turn in range(turns):
    pair = (ours, theirs) if turn % 2 else (theirs, ours)
    times = {encode: seconds(encode) for encode in pair}
    (a, tokens), (b, other) = times[ours], times[theirs]
    assert tokens == other
    found.append((tokens / a, tokens / b, b / a))
  rates = [statistics.median(x) for x in zip(*found, strict=True)]
  print(
    f'| {name} | {rates[0] / 1e6:.2f}M | {rates[1] / 1e6:.2f}M '
    f'| {rates[2]:.2f} |',
    flush=True,
  )


def main():
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--size', type=int, default=4000)
  parser.add_argument('--turns', type=int, default=9)
  options = parser.parse_args()
  if hasattr(os, 'sched_setaffinity'):
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
  print('| | tokens/s | of the library | ratio |\n|---|---|---|---|')
  measure('bytes', 'bytes', options.turns)
  with tempfile.TemporaryDirectory() as folder:
    for kind in ('unigram', 'bpe', 'byte_bpe', 'wordpiece'):
      suffix = '.json' if kind in vocabulary_training.JSON_KINDS else '.model'
      path = str(pathlib.Path(folder) / (kind + suffix))
      vocabulary_training.train(TEXTS, options.size, path, kind=kind)
      measure(kind, path, options.turns)


if __name__ == '__main__':
  main()
