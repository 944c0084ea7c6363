"""What `Data.corpus` names, and its documents, some of them held out."""

import contextlib
import glob
import hashlib
import os
import pathlib
import re
import stat

from t5x_lite import errors
from t5x_lite import specs
from t5x_lite import storage
from t5x_lite.data import builtin
from t5x_lite.data import files as reading
from t5x_lite.data import formats
from t5x_lite.data import sources

_TFDS = 'tfds:'
_LOOK = 1 << 20  # bytes that are looked at to tell lines from paragraphs


def registered():
  """The corpora of `tasks/`: a dict of name to specs.Data -> source."""
  return builtin.package('corpora').CORPORA


def find(data):
  """The corpus that specs.Data names.

  Args:
    data: specs.Data.

  Returns:
    files.Files or sources.Tfds.

  Raises:
    errors.DataError: it is missing, empty or not made of files.
  """
  if data.corpus == specs.IMPORTED:
    raise errors.DataError(
      'weights were imported: the text that they learned from is not here',
      where='Data.corpus',
      fix='evaluate --tasks=NAMES; or train with --corpus=FILES and the recipe '
      'that is in the workdir',
    )
  if data.corpus in registered():
    return registered()[data.corpus](data)
  if data.corpus.startswith(_TFDS):
    return sources.tfds(data.corpus.removeprefix(_TFDS), data.field)
  name = re.sub(r'\W+', '-', pathlib.Path(data.corpus).stem, flags=re.ASCII)
  return files(name.strip('-').lower() or 'corpus', _expand(data.corpus), data)


def looks_like(name):
  """Whether a name is of a corpus: registered, a path or a glob."""
  return (
    name in registered()
    or '/' in name
    or glob.has_magic(name)
    or storage.path(name).exists()
    or name.startswith(_TFDS)
    or formats.kind(name) != 'text'
  )


def local_names(data):
  """The paths and globs on this machine that a specs.Data reads from."""
  if isinstance(data.mixture, specs.Mixture):
    names = [name for name in data.mixture.parts if looks_like(name)]
  else:
    names = [data.corpus] if data.corpus else []
  return [
    name
    for name in names
    if name not in registered()
    and not name.startswith(_TFDS)
    and storage.is_local(name)
  ]


def files(name, paths, data):
  """A corpus of files, looked at where Data leaves their documents open."""
  paths = tuple(sorted(map(str, paths)))
  sizes = [_file_size(path) for path in paths]
  if not sum(sizes):
    raise errors.DataError(
      'corpus is empty',
      where=', '.join(paths[:3]),
      got=f'0 bytes in {len(paths)} file{"s" * (len(paths) > 1)}',
    )
  plain = [path for path in paths if formats.kind(path) == 'text']
  if not plain and data.document in ('paragraph', 'file'):
    raise errors.DataError(
      'JSON lines and other records are documents already',
      where='Data.document',
      got=data.document,
      expected="'line' or None",
    )
  document = data.document or _look(plain)
  return reading.Files(name, paths, document, data.field)


def _expand(corpus):
  """The files that a path or glob stands for."""
  path = storage.path(corpus)
  if path.is_dir():
    inside = sorted(p.name for p in path.iterdir())
    raise errors.DataError(
      'corpus is a folder',
      where=path,
      got=', '.join(inside[:3]) + ', ...' * (len(inside) > 3) or 'nothing',
      expected='files',
      fix=f'say which: --gin.Data.corpus={path}/*.txt',
    )
  if path.exists():
    return [path]
  if glob.has_magic(corpus):
    if storage.is_local(corpus):
      found = glob.glob(os.path.expanduser(corpus), recursive=True)
    else:
      bucket, _, pattern = corpus.partition('://')[2].partition('/')
      scheme = corpus.partition('://')[0]
      found = storage.path(f'{scheme}://{bucket}').glob(pattern)
    if found := {str(p) for p in found if not storage.path(p).is_dir()}:
      return found
    raise errors.DataError(
      'no file matches the corpus', where='Data.corpus', got=corpus
    )
  near = list(registered())
  with contextlib.suppress(OSError):
    near += [os.path.join(path.parent, p.name) for p in path.parent.iterdir()]
  raise errors.DataError(
    'no such corpus',
    where='Data.corpus',
    got=corpus,
    expected=f'{", ".join(registered())}, tfds:NAME, or the path or glob of '
    'files of text, JSON lines, Parquet or TFRecords',
    choices=near,
  )


def _file_size(path):
  """The size of a file that can be read; pipes and devices can't."""
  try:
    if not storage.is_local(path):
      return storage.path(path).stat().length
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
      raise OSError(0, 'not a regular file')
    with open(path, 'rb'):
      return found.st_size
  except OSError as e:
    raise errors.DataError(
      'cannot read corpus file', where=path, got=e.strerror or e
    ) from e


def _look(paths):
  """'paragraph' where a blank line parts the first text, else 'line'."""
  for path in paths:
    # Of an object this is the beginning alone: it is copied when it is read.
    with formats.opened(path, path) as (reader, _):
      head = reader.read(_LOOK)
    formats.check_text(head, path)
    if text := head.strip():
      lines = text.split(b'\n')
      return 'line' if all(map(bytes.strip, lines)) else 'paragraph'
  return 'line'


# -- held-out documents -------------------------------------------------------


def hash64(text):
  """What decides on which side a text is, in [0, 2**64)."""
  digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
  return int.from_bytes(digest, 'big')


def hold_out(texts, share, key=str):
  """(split, text) of each text; texts of equal keys are on the same side.

  A text is held out if its hash is below that share of all hashes. Should none
  be, the one of the lowest hash is: it waits until a lower one comes along.
  """
  limit = int(share * 2**64)
  lowest, waiting = 2**64 if limit else 0, []
  for text in texts:
    hashed = hash64(key(text))
    if hashed == lowest and waiting:
      waiting.append(text)
    elif hashed < max(limit, lowest):
      yield from (('train', one) for one in waiting)
      if hashed < limit:
        lowest, waiting = 0, []  # enough are held out
        yield 'validation', text
      else:
        lowest, waiting = hashed, [text]
    else:
      yield 'train', text
  yield from (('validation', one) for one in waiting)


class Texts:
  """The documents of a corpus, for `building`; `pairs.Lines` is of pairs.

  Attributes:
    name: of the corpus.
    splits: 'train', and 'validation' if it has one of its own.
    starts: the array of the store that says where each begins.
    portable: whether another process finds it, too.
  """

  starts, portable = 'documents', True

  def __init__(self, data):
    """Finds what specs.Data names; see `find`."""
    self._corpus, self._held_out = find(data), data.held_out
    self.name, self.splits = self._corpus.name, self._corpus.splits
    self.identity, self.parts = self._corpus.identity, self._corpus.parts

  def examples(self, part, report):
    """The documents of a part of the corpus."""
    return self._corpus.texts(part, report)

  def key(self, text):
    """Texts of equal keys are on the same side, trained on or held out."""
    return text

  def encode(self, texts, vocabulary):
    """Tokens of each."""
    return vocabulary.encode_batch(texts)

  def check(self, report, splits):
    """Refuses to leave nothing to train on, or none of its own held out.

    Args:
      report: a sources.Report of all that was read.
      splits: names of those that have a document.
    """
    report.check()
    if not report.documents:
      raise errors.DataError(
        'corpus has no text',
        where=self._corpus.place,
        got=f'{report.lines} lines',
      )
    for split in self.splits:
      if split not in splits and self.splits != ('train',):
        raise errors.DataError(
          f'split {split!r} has no text', where=self._corpus.place
        )
    if 'train' not in splits:
      raise errors.DataError(
        'nothing is left to train on, as a document is held out',
        where=self._corpus.place,
        got='one document, or copies of it',
        fix='part the text more finely, by --gin.Data.document=line or '
        'paragraph, or hold nothing out, by --gin.Data.held_out=0',
      )


def every(corpus, held_out, report=None):
  """(split, example) of all that a corpus has, part by part.

  Args:
    corpus: Texts, or another of its kind.
    held_out: the share to hold out, where it has no split of its own for that.
    report: a sources.Report to add to.

  Raises:
    errors.DataError: what is read is broken, or too little.
  """
  report = sources.Report() if report is None else report
  splits = set()

  def counted(split):
    for part in corpus.parts():
      if part.split == split:
        for example in corpus.examples(part, report):
          report.documents += 1
          yield example

  for split in corpus.splits:
    found = counted(split)
    if len(corpus.splits) > 1:
      found = ((split, example) for example in found)
    else:
      found = hold_out(found, held_out, corpus.key)
    for side, example in found:
      splits.add(side)
      yield side, example
  corpus.check(report, splits)


def documents(data, report=None):
  """(split, text) of each document of the corpus that specs.Data names."""
  return every(Texts(data), data.held_out, report)
