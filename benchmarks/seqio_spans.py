"""SeqIO's span corruption as a contender of `data.py`.

The task is T5's: tokens of documents, joined by 128 and cut anew, masked
(`t5.data.preprocessors.span_corruption`), EOS, the converter for an encoder and
a decoder, batches. Where the package `t5` is missing, a short version of its
algorithm stands in. `seqio_spans.py FOLDER cached|text SIZE` needs neither
t5x_lite nor JAX.
"""

import functools
import json
import os
import pathlib
import sys

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import seqio
import tensorflow as tf
import turns

try:
  from t5.data import preprocessors as t5
except ImportError:
  t5 = None

_LENGTHS = {'inputs': 512, 'targets': 114}
_TEXT = 568  # tokens that become so many
_JOINED = 128  # documents


def _parts(total, parts, seed):
  """A random composition of a number, by a shuffle."""
  begins = tf.cast(tf.range(total - 1) < parts - 1, tf.int32)
  begins = tf.random.experimental.stateless_shuffle(begins, seed)
  part = tf.cumsum(tf.pad(begins, [[1, 0]]))
  return tf.math.segment_sum(tf.ones_like(part), part)


def _mask(length, seeds):
  """Masked tokens of one text, bool [length]: 0.15 of them, in runs of 3."""
  noise = tf.cast(tf.round(tf.cast(length, tf.float32) * 0.15), tf.int32)
  noise = tf.clip_by_value(noise, 1, length - 1)
  runs = tf.cast(tf.round(tf.cast(noise, tf.float32) / 3.0), tf.int32)
  runs = tf.maximum(runs, 1)
  both = [_parts(length - noise, runs, seeds[0]), _parts(noise, runs, seeds[1])]
  ends = tf.cumsum(tf.reshape(tf.stack(both, axis=1), [-1]))[:-1]
  flips = tf.math.unsorted_segment_sum(tf.ones_like(ends), ends, length)
  return tf.cumsum(flips) % 2 == 1


def _without(tokens, mask, first_sentinel):
  """Tokens with a sentinel for each masked run."""
  begins = mask & ~tf.pad(mask[:-1], [[1, 0]])
  sentinels = first_sentinel + 1 - tf.cumsum(tf.cast(begins, tf.int32))
  return tf.boolean_mask(tf.where(begins, sentinels, tokens), begins | ~mask)


def _span_corruption(dataset, sequence_length, output_features):
  """Its stand-in."""
  del sequence_length  # always _LENGTHS
  first_sentinel = output_features['targets'].vocabulary.vocab_size - 1

  def cut(x):
    tokens = tf.boolean_mask(x['targets'], x['targets'] > 0)
    whole = tf.size(tokens) // _TEXT * _TEXT
    return tf.data.Dataset.from_tensor_slices(
      tf.reshape(tokens[:whole], [-1, _TEXT])
    )

  @seqio.map_over_dataset(num_seeds=2)
  def corrupt(tokens, seeds):
    mask = _mask(_TEXT, seeds)
    return {
      'inputs': _without(tokens, mask, first_sentinel),
      'targets': _without(tokens, ~mask, first_sentinel),
    }

  dataset = dataset.map(lambda x: {'targets': x['targets']})
  return corrupt(dataset.padded_batch(_JOINED).flat_map(cut))


def _register(folder, name):
  """Adds the task; its text has a document a line."""
  vocabulary = seqio.SentencePieceVocabulary(
    str(folder / 'vocabulary.model'), extra_ids=0
  )
  feature = seqio.Feature(vocabulary, add_eos=True)
  seqio.TaskRegistry.add(
    name,
    source=seqio.TextLineDataSource({'train': str(folder / 'documents.txt')}),
    preprocessors=[
      lambda lines: lines.map(lambda line: {'targets': line}),
      seqio.preprocessors.tokenize,
      seqio.CacheDatasetPlaceholder(),
      t5.span_corruption if t5 else _span_corruption,
      seqio.preprocessors.append_eos_after_trim,
    ],
    output_features={'inputs': feature, 'targets': feature},
  )
  return vocabulary


def _cache(folder, name, vocabulary):
  """Writes what `seqio_cache_tasks` would."""
  out = folder / 'seqio' / name
  seqio.add_global_cache_dirs([str(out.parent)])
  if (out / 'COMPLETED').exists():
    return
  out.mkdir(parents=True, exist_ok=True)
  count = 0
  with (
    open(folder / 'documents.txt', encoding='utf-8') as lines,
    tf.io.TFRecordWriter(f'{out}/train.tfrecord-00000-of-00001') as writer,
  ):
    for line in lines:
      count += 1
      ids = tf.train.Int64List(value=vocabulary.encode(line))
      feature = {'targets': tf.train.Feature(int64_list=ids)}
      example = tf.train.Example(features=tf.train.Features(feature=feature))
      writer.write(example.SerializeToString())
  feature = {'targets': {'dtype': 'int32', 'shape': [None]}}
  info = {'num_shards': 1, 'features': feature, 'seqio_version': '0.0.20'}
  (out / 'info.train.json').write_text(json.dumps(info))
  (out / 'stats.train.json').write_text(json.dumps({'examples': count}))
  (out / 'COMPLETED').touch()


def main(folder, kind, size):
  folder, name = pathlib.Path(folder), 'spans'
  tf.config.threading.set_intra_op_parallelism_threads(1)
  vocabulary = _register(folder, name)
  if kind == 'cached':
    _cache(folder, name, vocabulary)
  dataset = seqio.get_dataset(
    name,
    _LENGTHS,
    seqio.EncDecFeatureConverter(pack=False),
    dataset_split='train',
    use_cached=kind == 'cached',
    shuffle=True,
    num_epochs=None,
    batch_size=int(size),
    verbose=False,
    seed=0,
  )
  turns.serve_batches(
    dataset.as_numpy_iterator(),
    functools.partial(turns.text_tokens, vocabulary.vocab_size - 100),
    'preprocessors of t5' if t5 else 'a short version of those of t5',
  )


if __name__ == '__main__':
  main(*sys.argv[1:])
