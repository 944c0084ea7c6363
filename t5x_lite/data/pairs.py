"""Inputs and targets: where pairs come from, and how they become tokens.

A pair is of JSON lines, or of a SeqIO task, which tokenises it by its own
preprocessors. Both are tokenised once; what a task draws at random is drawn
once, too.
"""

import functools
import hashlib
import inspect
import pathlib

import numpy as np

from t5x_lite import corruptions
from t5x_lite import errors
from t5x_lite.data import builtin
from t5x_lite.data import checksums
from t5x_lite.data import corpora
from t5x_lite.data import partition
from t5x_lite.data import seqio_vocabulary
from t5x_lite.data import sources
from t5x_lite.data import tasks

DELIMITER = 1  # the sentinel between the parts of inputs


class Lines:
  """Pairs of JSON lines, or of other records.

  Attributes:
    name: of the corpus.
    splits: 'train', and 'validation' if it has one of its own.
    starts: the array of the store that says where each side begins.
    portable: whether another process finds it, too.
  """

  starts, portable = 'pairs', True

  def __init__(self, data):
    """Finds what specs.Data names; see `corpora.find`."""
    corpus = corpora.find(data)
    if not corpus.has_fields:
      raise errors.DataError(
        'corpus has no pairs of inputs and targets',
        where='Data.corpus',
        got=data.corpus,
        expected='JSON lines (.jsonl), Parquet or TFRecords, a dataset, or '
        'Data.task in its place',
      )
    self.name, self.splits = corpus.name, corpus.splits
    self._data, self._corpus = data, corpus
    self.parts = corpus.parts

  def identity(self):
    """What the pairs depend on, as JSON."""
    found = self._corpus.identity()
    del found['field']
    return found | {
      'pair': list(self._data.pair),
      'prefix': self._data.prefix,
    }

  def examples(self, part, report):
    """The tuple of texts of each pair of a part."""
    records = self._corpus.records(part, self._data.pair, report)
    return (texts for _, texts in records)

  def key(self, texts):
    """Pairs of equal inputs are on the same side."""
    return '\0'.join(texts[:-1])

  def check(self, report, splits):
    """As of corpora.Texts."""
    check(self._data, report, splits)

  def encode(self, pairs, vocabulary):
    """Tokens of inputs and targets in turn, each with EOS.

    A delimiter stands between the parts of inputs.
    """
    sides = len(self._data.pair)
    texts = [
      (self._data.prefix if n == 0 else '') + text
      for pair in pairs
      for n, text in enumerate(pair)
    ]
    found = vocabulary.encode_batch(texts)
    ends = []  # what stands behind each text
    for n in range(sides):
      inner = n < sides - 2
      id_ = vocabulary.sentinel(DELIMITER) if inner else vocabulary.eos_id
      ends.append(np.array([id_], np.int32))
    rows = []
    for at in range(0, len(found), sides):
      pieces = [
        x
        for n in range(sides)
        for x in (found[at + n].astype(np.int32), ends[n])
      ]
      rows += [np.concatenate(pieces[:-2]), np.concatenate(pieces[-2:])]
    return rows


class Task:
  """Pairs of a SeqIO task, tokenised by its own preprocessors.

  Attributes:
    name: of the task.
    splits: 'train', and 'validation' if the task has it.
    starts: as of Lines.
  """

  starts = 'pairs'

  def __init__(self, data, vocabulary):
    """Finds the task that specs.Data names; reads no example."""
    task = tasks.find(data.task, 'Data.task', vocabulary)
    if not hasattr(task, 'source'):
      raise errors.ConfigError(
        'Data.task is a mixture',
        got=data.task,
        expected='a task',
      )
    seqio_vocabulary.check(task, vocabulary)
    there = tasks.splits(task)
    if 'train' not in there:
      raise errors.ConfigError(
        'task has no such split',
        where=data.task,
        got='train',
        expected=f'one of {", ".join(there)}',
      )
    self.name, self._task, self._data = task.name, task, data
    self._vocabulary = vocabulary
    self.splits = tuple(x for x in ('train', 'validation') if x in there)
    self._lengths = {x: data.lengths[x] for x in ('inputs', 'targets')}

  def identity(self):
    """What the pairs depend on, as JSON, as far as it can be told.

    The files of its source, and the Python files of its functions.
    """
    if definition := builtin.definition(self._task):
      return {
        'task': self.name,
        'source': definition.identity(),
        'preprocessors': _told(definition.read),
      }
    source = self._task.source
    try:
      shards = [
        [split, *map(str, source.list_shards(split))] for split in self.splits
      ]
    except Exception as e:  # sources raise what they like
      raise tasks.unreadable(self._task, e) from e
    return {
      'task': self.name,
      'source': [type(source).__name__, _told(vars(source).get('_dataset_fn'))],
      'shards': [[_file(x) for x in names] for names in shards],
      'preprocessors': [_told(x) for x in self._task.preprocessors],
      'lengths': self._lengths,
    }

  def parts(self):
    """The shards of its source, as a list of partition.Part."""
    if self._task.requires_caching:  # its shards are not those of the source
      found = {split: [((split, 0, 1), 0)] for split in self.splits}
    else:
      source = self._task.source
      found = {split: sources.shards(source, split) for split in self.splits}
    return partition.group(found)

  def examples(self, part, report):
    """(inputs, targets) of each pair of a part, as token ids."""
    for split, number, count in part.pieces:
      for example in tasks.read(
        self._task, split, self._lengths, shard=(number, count)
      ):
        report.lines += 1
        yield example['inputs'], example['targets']

  def key(self, pair):
    """As of Lines."""
    return pair[0].astype('<i4').tobytes().hex()

  def encode(self, pairs, vocabulary):
    """As of Lines; the task has said what ends them."""
    del vocabulary
    return [side for pair in pairs for side in pair]

  def check(self, report, splits):
    """As of corpora.Texts."""
    check(self._data, report, splits)

  @property
  def portable(self):
    """Whether another process finds it, too."""
    return bool(tasks.imported or builtin.definition(self._task))

  def __reduce__(self):
    # Another process finds the task anew, by the modules that register it.
    return _task, (tuple(tasks.imported), self._data, self._vocabulary)


def _task(modules, data, vocabulary):
  tasks.import_modules(modules, lambda _: None)
  return Task(data, vocabulary)


def check(data, report, splits):
  """As of corpora.Texts, of pairs."""
  report.check()
  if 'train' not in splits:
    raise errors.DataError(
      'no pair to train on',
      where=data.corpus or data.task,
      got=f'{report.documents} pairs, all of the same inputs and held out'
      if report.documents
      else 'none',
      fix='hold nothing out, by --gin.Data.held_out=0'
      if report.documents
      else None,
    )


def _file(name):
  """A shard with its size and checksum, if it is a file."""
  try:
    return [pathlib.PurePath(name).name, *checksums.of(name)]
  except (OSError, errors.UserError):
    return name


def _told(value):
  """A function of a user's own as JSON, the same until its file changes."""
  if isinstance(value, functools.partial):
    return [_told(value.func), _told(value.args), _told(value.keywords)]
  if isinstance(value, (list, tuple)):
    return [_told(x) for x in value]
  if isinstance(value, dict):
    return {str(name): _told(x) for name, x in value.items()}
  if value is None or isinstance(value, (bool, int, float, str)):
    return value
  named = value if hasattr(value, '__qualname__') else type(value)
  module = inspect.getmodule(named)
  file = getattr(module, '__file__', None)
  digest = file and hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest()
  return [getattr(module, '__name__', None), named.__qualname__, digest]


def learns(run):
  """Whether a specs.Run learns from pairs."""
  return type(run.objective) in corruptions.PAIRS


def origin(run, vocabulary):
  """Where the pairs of a run come from, or None where it learns from text."""
  if not learns(run):
    return None
  if run.data.task is not None:
    return Task(run.data, vocabulary)
  return Lines(run.data)


def texts(run, wanted='train'):
  """The inputs and targets of a split of a run, to make a vocabulary of."""
  if run.data.task is not None:
    raise errors.ConfigError(
      'a task has its vocabulary already: one is trained on Data.corpus',
      where='Data.task',
      got=run.data.task,
    )
  for split, pair in corpora.every(Lines(run.data), run.data.held_out):
    if split == wanted:
      yield from pair
