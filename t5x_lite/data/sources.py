"""What sources of text share, and TensorFlow datasets through SeqIO.

TensorFlow, which SeqIO reads with, is imported when a dataset or a task is
first read; text, JSON lines, Parquet and TFRecords do without (files).
"""

import contextlib
import dataclasses
import functools
import json
import os
import re
import sys

from t5x_lite import errors
from t5x_lite import storage
from t5x_lite.data import partition

_TFDS_DIR = 'TFDS_DATA_DIR'  # where datasets lie
_LINES = 512  # that TensorFlow hands over at once
_BAD_SHARE = 1e-3  # of lines that are not UTF-8; more of them stop a reading
_BAD_EARLY = 100_000  # lines after which that share is first looked at


@dataclasses.dataclass
class Report:
  """What reading a corpus met."""

  documents: int = 0
  blank: int = 0  # documents without text, dropped
  cut: int = 0  # places where a document that is too long for one was cut
  lines: int = 0
  bad_lines: int = 0  # lines that are not UTF-8, bad bytes become U+FFFD
  bad_place: tuple | None = None  # of the first: its Place, and the byte
  bytes: int = 0  # of text
  taken: int = 0  # bytes of files as they are stored, for the progress

  def read(self, lines, size):
    """Counts lines."""
    early = self.lines // _BAD_EARLY
    self.lines += lines
    self.bytes += size
    if self.lines // _BAD_EARLY > early:
      self.check()

  def decode(self, line, place):
    """A line as text, its bad bytes replaced and told."""
    try:
      return line.decode()
    except UnicodeDecodeError as e:
      self.bad(place, e.start + 1)
      return line.decode(errors='replace')

  def bad(self, place, byte):
    """Counts a line that is not UTF-8."""
    self.bad_lines += 1
    self.bad_place = self.bad_place or (*place, byte)

  @property
  def first_bad(self):
    """`file:line:byte` of the first line that is not UTF-8, or None."""
    if self.bad_place is None:
      return None
    *place, byte = self.bad_place
    return f'{Place(*place)}:{byte}'

  def add(self, other):
    """Counts what another report has, which comes behind this one."""
    for field in dataclasses.fields(self):
      name = field.name
      mine, theirs = getattr(self, name), getattr(other, name)
      whole = mine or theirs if name == 'bad_place' else mine + theirs
      setattr(self, name, whole)

  def check(self):
    """Stops where too many lines are not UTF-8."""
    if self.bad_lines > _BAD_SHARE * self.lines:
      raise errors.DataError(
        'corpus is not UTF-8',
        where=self.first_bad,
        got=f'{self.bad_lines:,} bad lines of {self.lines:,}',
        expected=f'at most {_BAD_SHARE:.1%}',
        fix='convert it, as by `iconv -f latin1 -t utf-8`',
      )


@dataclasses.dataclass
class Place:
  """Where a line stands; reads `file:line`.

  What comes before the part that is read is counted only for a message.
  """

  name: str
  start: int  # byte that its part of the file starts at
  number: int  # of the line in that part, from 1

  def __iter__(self):
    return iter((self.name, self.start, self.number))

  def __str__(self):
    number, left = self.number, self.start
    if left:
      with open(self.name, 'rb') as f:
        while block := f.read(min(left, 1 << 22)):
          number += block.count(b'\n')
          left -= len(block)
    return f'{self.name}:{number}'


@contextlib.contextmanager
def _no_stderr():
  """Silences what native libraries print while they load."""
  sys.stderr.flush()
  kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
  try:
    os.dup2(null, 2)
    yield
  finally:
    os.dup2(kept, 2)
    os.close(kept)
    os.close(null)


@functools.cache
def libraries():
  """SeqIO and TensorFlow, quiet and kept off the accelerators."""
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  with _no_stderr():
    import seqio
    import tensorflow as tf

    for kind in ('GPU', 'TPU'):
      tf.config.set_visible_devices([], kind)
  return seqio, tf


def shards(source, split):
  """[((split, number, count), bytes), ...] of the shards of a SeqIO source.

  Bytes are those of a file that is a shard, else 0.
  """
  try:
    names = [str(name) for name in source.list_shards(split)]
  except Exception:  # sources raise what they like; reading tells what it is
    names = [split]

  def size(name):
    with contextlib.suppress(OSError, errors.UserError):
      return storage.path(name).stat().length
    return 0

  return [((split, n, len(names)), size(x)) for n, x in enumerate(names)]


def shard_info(number, count):
  """What SeqIO reads one shard by; None: all there is."""
  seqio, _ = libraries()
  return seqio.ShardInfo(index=number, num_shards=count) if count > 1 else None


# -- TensorFlow datasets ------------------------------------------------------


def tfds(name, field):
  """The TensorFlow dataset `name`, `name/config` or either with `:version`.

  Its splits, and the version where none is named, are read off the folder that
  it lies in; TensorFlow is asked only if there is none.
  """
  root = os.environ.get(_TFDS_DIR, '~/tensorflow_datasets')
  dataset, _, version = name.partition(':')
  folder, splits = os.path.join(os.path.expanduser(root), dataset), None
  with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
    version = version or _newest(os.listdir(folder))
    with open(os.path.join(folder, version, 'dataset_info.json')) as f:
      splits = [split['name'] for split in json.load(f)['splits']]
  if splits is None:
    version, splits = _ask(name)
  if 'train' not in splits:
    raise errors.DataError(
      'dataset has no such split',
      where=f'tfds:{name}',
      got='train',
      expected=f'one of {", ".join(splits)}',
    )
  return Tfds(
    re.sub(r'\W+', '-', dataset),
    f'{dataset}:{version}',
    field,
    validation='validation' if 'validation' in splits else None,
  )


def _newest(names):
  versions = [x for x in names if re.fullmatch(r'\d+\.\d+\.\d+', x)]
  return max(versions, key=lambda x: [int(n) for n in x.split('.')])


def _ask(name):
  """(version, splits) of a dataset, from its builder."""
  libraries()
  import tensorflow_datasets

  try:
    builder = tensorflow_datasets.builder(
      name, data_dir=os.environ.get(_TFDS_DIR)
    )
    if not builder.info.splits:
      raise FileNotFoundError('no split is here')
    return str(builder.version), list(builder.info.splits)
  except Exception as e:  # builders raise whatever they like
    raise _not_ready(name, e) from e


def _not_ready(name, error):
  lines = str(error).splitlines() or [type(error).__name__]
  return errors.DataError(
    'dataset is not ready on this machine',
    where=name,
    got=lines[0][:160],
    fix=f'`tfds build {name}`; set TFDS_DATA_DIR if it lies elsewhere',
  )


@dataclasses.dataclass(frozen=True)
class Tfds:
  """A TensorFlow dataset of texts."""

  name: str
  dataset: str  # with its version, which never changes: 'c4/en:3.1.0'
  field: str
  train: str = 'train'  # what the splits are called there
  validation: str | None = 'validation'

  has_fields = True  # it may be of pairs

  @property
  def splits(self):
    return 'train', *(('validation',) if self.validation else ())

  @property
  def place(self):
    """What messages call it."""
    return self.dataset

  def identity(self):
    """What the documents depend on, as JSON."""
    return {
      'tfds': self.dataset,
      'field': self.field,
      'splits': [self.train, self.validation],
    }

  def source(self):
    """The SeqIO source."""
    seqio, _ = libraries()
    splits = {'train': self.train, 'validation': self.validation}
    splits = {name: theirs for name, theirs in splits.items() if theirs}
    return seqio.TfdsDataSource(
      self.dataset,
      tfds_data_dir=os.environ.get(_TFDS_DIR),
      splits=splits,
      read_only=True,
    )

  def parts(self):
    """Its shards, as a list of partition.Part."""
    try:
      source = self.source()
      found = {split: shards(source, split) for split in self.splits}
    except Exception as e:  # builders raise whatever they like
      raise _not_ready(self.dataset, e) from e
    return partition.group(found)

  def texts(self, part, report):
    """The texts of a part, with blank ones left out, as of Files."""
    for _, (text,) in self.records(part, (self.field,), report):
      if text.strip():
        yield text
      else:
        report.blank += 1

  def records(self, part, fields, report):
    """(place, the texts in some fields) of each example, as of Files."""
    _, tf = libraries()
    for split, number, count in part.pieces:
      try:
        examples = self.source().get_dataset(
          split, shuffle=False, shard_info=shard_info(number, count)
        )
      except Exception as e:  # builders raise whatever they like
        raise _not_ready(self.dataset, e) from e
      for field in fields:
        if field not in examples.element_spec:
          raise errors.DataError(
            'dataset has no such field',
            where=self.dataset,
            got=field,
            choices=examples.element_spec,
            fix='name the field that holds the text: --gin.Data.field=...',
          )
        if examples.element_spec[field].dtype != tf.string:
          raise errors.DataError(
            'field of a dataset is no text',
            where=f'{self.dataset}, {field}',
            got=examples.element_spec[field].dtype.name,
          )
      rows = examples.map(lambda x: tuple(x[name] for name in fields)).batch(
        _LINES
      )
      name = f'{self.dataset} {split}' + f' shard {number}' * (count > 1)
      at = 0
      try:
        for run in rows.as_numpy_iterator():
          report.read(len(run[0]), sum(len(x) for side in run for x in side))
          for row in zip(*run):
            at += 1
            place = Place(name, 0, at)
            yield place, tuple(report.decode(x, place) for x in row)
      except tf.errors.OpError as e:
        raise errors.DataError(
          'cannot read the corpus to its end',
          where=f'{name}:{at + 1}',
          got=str(e).splitlines()[0][:200],
        ) from e
