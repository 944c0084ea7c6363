"""Documents from text files and TensorFlow datasets, through SeqIO sources.

TensorFlow, which SeqIO reads with, is imported when documents are first read;
telling whether a corpus changed does without.
"""

import contextlib
import dataclasses
import functools
import glob
import json
import os
import re
import sys

from t5x_lite import errors
from t5x_lite import storage

JSON = re.compile(r'\.(jsonl|json|ndjson)(\.gz)?$')
_LINES = 512  # that TensorFlow hands over at once
_BAD_SHARE = 1e-3  # of lines that are not UTF-8; more of them stop a reading
_BAD_EARLY = 100_000  # lines after which that share is first looked at


@dataclasses.dataclass
class Report:
  """What reading a corpus met."""

  documents: int = 0
  blank: int = 0  # documents without text, dropped
  lines: int = 0
  bad_lines: int = 0  # lines that are not UTF-8, bad bytes become U+FFFD
  first_bad: str | None = None  # file:line:byte
  bytes: int = 0

  def read(self, size):
    """Counts a line."""
    self.lines += 1
    self.bytes += size
    if self.lines % _BAD_EARLY == 0:
      self.check()

  def bad(self, place):
    """Counts a line that is not UTF-8."""
    self.bad_lines += 1
    self.first_bad = self.first_bad or place

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


def _iterate(dataset, place):
  """The elements of a tf.data.Dataset, with its errors as ours."""
  _, tf = libraries()
  try:
    yield from dataset.as_numpy_iterator()
  except tf.errors.OpError as e:
    raise errors.DataError(
      'cannot read the corpus to its end',
      where=place,
      got=str(e).splitlines()[0][:200],
    ) from e


def _decode(line, place, report):
  """A line of text; `place` is a function that says where it stands."""
  report.read(len(line) + 1)
  try:
    return line.decode()
  except UnicodeDecodeError as e:
    report.bad(f'{place()}:{e.start + 1}')
    return line.decode(errors='replace')


# -- text files ---------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Files:
  """Text and JSON-lines files, of one split.

  A line ends at LF or CR LF. A byte order mark at the start of a file is left
  out; all other characters are kept.
  """

  name: str
  paths: tuple[str, ...]
  document: str  # 'line', 'paragraph' or 'file', of text; JSON goes by line
  field: str  # of a JSON line, holds the text

  splits = ('train',)

  def identity(self):
    """What the documents depend on, as JSON: size and CRC-32C of each file.

    It is the same for a copy elsewhere. Object stores know it without reading.
    """
    root = os.path.dirname(os.path.commonprefix(self.paths))
    return {
      'files': [
        [os.path.relpath(path, root), *storage.checksum(path)]
        for path in self.paths
      ],
      'document': self.document,
      'field': self.field if any(map(JSON.search, self.paths)) else None,
    }

  def num_bytes(self):
    """Bytes to read, or None where they can't be told."""
    if any(path.endswith('.gz') for path in self.paths):
      return None
    return sum(storage.path(path).stat().length for path in self.paths)

  def source(self):
    """A SeqIO source of runs of lines: file, number of the first, text."""
    seqio, tf = libraries()

    def read(file):
      is_gzip = tf.strings.regex_full_match(file, r'.*\.gz')
      lines = tf.data.TextLineDataset(file, tf.where(is_gzip, 'GZIP', ''))
      return (
        lines.batch(_LINES)
        .enumerate()
        .map(lambda i, x: {'file': file, 'line': i * _LINES + 1, 'text': x})
      )

    return seqio.FileDataSource(
      read,
      {'train': [glob.escape(path) for path in self.paths]},
      cycle_length=1,
      block_length=1,
    )

  def _runs(self, split):
    """Runs of lines; an object is copied to this machine while it is read.

    TensorFlow would read it by a client of its own, past the seam to storage,
    which checks that what came is what is stored.
    """
    if all(map(storage.is_local, self.paths)):
      runs = self.source().get_dataset(split, shuffle=False)
      yield from _iterate(runs, ', '.join(self.paths[:3]))
      return
    for path in self.paths:
      with storage.as_local(path) as file:
        copy = dataclasses.replace(self, paths=(file,))
        runs = copy.source().get_dataset(split, shuffle=False)
        for run in _iterate(runs, path):
          yield run | {'file': path.encode()}

  def documents(self, split, report):
    """The texts of a split, in order, with blank ones left out.

    Args:
      split: one of `splits`.
      report: a Report that is added to.

    Yields:
      str.
    """
    current, kept = None, []
    for file, place, text in self._lines(split, report):
      if file != current:
        yield from _joined(kept)
        current, kept = file, []
        is_json = JSON.search(file)
      if is_json:
        if text.strip():
          record = _json_record(text, place, self.field)
          text = _json_text(record, place, self.field, report)
      elif self.document == 'file':
        kept.append(text)
        continue
      elif self.document == 'paragraph':
        if text.strip():
          kept.append(text)
        else:
          yield from _joined(kept)
          kept = []
        continue
      if text.strip():
        yield text
      else:
        report.blank += 1
    yield from _joined(kept)

  def records(self, split, fields, report):
    """The texts in some fields of each JSON line, tuples of str, in order.

    Args:
      split: one of `splits`.
      fields: their names.
      report: a Report that is added to.
    """
    for _, place, text in self._lines(split, report):
      if text.strip():
        record = _json_record(text, place, '": "...", "'.join(fields))
        yield tuple(_json_text(record, place, x, report) for x in fields)
      else:
        report.blank += 1

  def _lines(self, split, report):
    """(file, function that says where, text) of each line."""
    for run in self._runs(split):
      file = run['file'].decode()
      for number, line in enumerate(run['text'], int(run['line'])):

        def place(file=file, number=number):
          return f'{file}:{number}'

        if number == 1 and line.startswith((b'\xff\xfe', b'\xfe\xff')):
          raise errors.DataError(
            'text is UTF-16',
            where=file,
            expected='UTF-8',
            fix='convert it: iconv -f UTF-16 -t UTF-8',
          )
        text = _decode(line, place, report)
        yield file, place, text.removeprefix('\ufeff') if number == 1 else text


def _joined(lines):
  """One document of lines, or none."""
  text = '\n'.join(lines)
  if text.strip():
    yield text


def _json_record(line, place, field):
  """One JSON line, an object."""
  try:
    record = json.loads(line)
  except (ValueError, RecursionError) as e:
    raise errors.DataError(
      'not a line of JSON', where=place(), got=f'{line[:60]!r} ({e})'
    ) from e
  if not isinstance(record, dict):
    raise errors.DataError(
      'JSON line is not an object',
      where=place(),
      got=type(record).__name__,
      expected=f'{{"{field}": "..."}}',
    )
  return record


def _json_text(record, place, field, report):
  """The text in one field of a JSON line."""
  if not isinstance(text := record.get(field), str):
    names = ', '.join(map(repr, list(record)[:9])) or 'none'
    raise errors.DataError(
      f'JSON line has no text in field {field!r}',
      where=place(),
      got=f'{type(text).__name__} in it'
      if field in record
      else f'fields {names}',
      expected='a string',
      fix='name the field that holds the text: --gin.Data.field=..., or, of '
      'pairs, --gin.Data.pair=INPUTS,TARGETS',
    )
  try:
    text.encode()
  except UnicodeEncodeError as e:  # half of a surrogate pair, as in "\ud800"
    report.bad(f'{place()}:{e.start + 1}')
    text = re.sub('[\ud800-\udfff]', '\ufffd', text)
  return text


# -- TensorFlow datasets ------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Tfds:
  """A TensorFlow dataset of texts, with a validation split of its own."""

  name: str
  dataset: str  # with its version, which never changes: 'c4/en:3.1.0'
  field: str
  train: str = 'train'  # what the splits are called there
  validation: str = 'validation'

  splits = ('train', 'validation')

  def identity(self):
    """What the documents depend on, as JSON."""
    return {
      'tfds': self.dataset,
      'field': self.field,
      'splits': [self.train, self.validation],
    }

  def num_bytes(self):
    """None: it can't be told without reading."""

  def source(self):
    """The SeqIO source."""
    seqio, _ = libraries()
    splits = {'train': self.train, 'validation': self.validation}
    return seqio.TfdsDataSource(self.dataset, splits=splits, read_only=True)

  def documents(self, split, report):
    """As Files.documents."""
    try:
      examples = self.source().get_dataset(split, shuffle=False)
    except Exception as e:  # builders raise whatever they like
      raise errors.DataError(
        'dataset is not ready on this machine',
        where=self.dataset,
        got=(str(e).splitlines() or [type(e).__name__])[0][:160],
        fix=f'`tfds build {self.dataset}`; set TFDS_DATA_DIR if it lies '
        'elsewhere',
      ) from e
    if self.field not in examples.element_spec:
      raise errors.DataError(
        'dataset has no such field',
        where=self.dataset,
        got=self.field,
        choices=examples.element_spec,
        fix='name the field that holds the text: --gin.Data.field=...',
      )
    texts = examples.map(lambda example: example[self.field]).batch(_LINES)
    first = report.lines
    for run in _iterate(texts, self.dataset):
      for line in run:
        text = _decode(
          line,
          lambda: f'{self.dataset} {split}:{report.lines - first}',
          report,
        )
        if text.strip():
          yield text
        else:
          report.blank += 1
