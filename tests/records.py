"""Files of records, and a TensorFlow dataset, as tests make them."""

from etils import epath
import numpy as np
import pyarrow
from pyarrow import parquet
import tensorflow as tf
import tensorflow_datasets as tfds


def example(**features):
  def feature(value):
    if isinstance(value, int):
      return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
    values = value if isinstance(value, list) else [value]
    values = [x if isinstance(x, bytes) else x.encode() for x in values]
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))

  found = {name: feature(value) for name, value in features.items()}
  return tf.train.Example(
    features=tf.train.Features(feature=found)
  ).SerializeToString()


def tfrecord(path, records, compression=''):
  with tf.io.TFRecordWriter(str(path), compression) as writer:
    for record in records:
      writer.write(record)
  return path


def table(path, columns, **options):
  parquet.write_table(pyarrow.table(columns), path, **options)
  return path


def zstd(data):
  data = data.encode() if isinstance(data, str) else data
  return pyarrow.compress(data, codec='zstd', asbytes=True)


class Leaflets(tfds.core.GeneratorBasedBuilder):
  """A dataset made here, in several files."""

  VERSION = tfds.core.Version('1.2.0')
  code_path = epath.Path(__file__)  # to find it, it needs one more package
  pkg_dir_path = code_path.parent

  def _info(self):
    features = {'text': tfds.features.Text(), 'n': np.int64}
    return tfds.core.DatasetInfo(
      builder=self, features=tfds.features.FeaturesDict(features)
    )

  def _split_generators(self, dl_manager):
    return {
      'train': self._generate_examples(0, 60),
      'validation': self._generate_examples(60, 9),
    }

  def _generate_examples(self, first, count):
    for n in range(first, first + count):
      yield n, {'text': f'leaflet {n} ' * 9, 'n': n}
