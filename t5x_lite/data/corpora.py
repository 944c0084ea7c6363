"""What `Data.corpus` names, and its documents, some of them held out."""

import contextlib
import glob
import gzip
import hashlib
import os
import pathlib
import re
import stat

from t5x_lite import errors
from t5x_lite import storage
from t5x_lite.data import builtin
from t5x_lite.data import sources

_LOOK = 1 << 20  # bytes that are looked at to tell lines from paragraphs


def registered():
  """The corpora of `tasks/`: a dict of name to specs.Data -> source."""
  return builtin.package('corpora').CORPORA


def find(data):
  """The corpus that specs.Data names.

  Args:
    data: specs.Data.

  Returns:
    sources.Files or sources.Tfds.

  Raises:
    errors.DataError: it is missing, empty or not made of files.
  """
  if data.corpus in registered():
    return registered()[data.corpus](data)
  name = re.sub(r'\W+', '-', pathlib.Path(data.corpus).stem, flags=re.ASCII)
  return files(name.strip('-').lower() or 'corpus', _expand(data.corpus), data)


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
  plain = [path for path in paths if not sources.JSON.search(path)]
  if len(plain) < len(paths) and data.document in ('paragraph', 'file'):
    raise errors.DataError(
      'JSON lines are documents already',
      where='Data.document',
      got=data.document,
      expected="'line' or None",
    )
  document = data.document or _look(plain)
  return sources.Files(name, paths, document, data.field)


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
    expected=f'{", ".join(registered())}, or the path or glob of text or '
    'JSON-lines files',
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
    try:
      with storage.path(path).open('rb') as f:
        text = gzip.GzipFile(fileobj=f) if path.endswith('.gz') else f
        head = text.read(_LOOK)
    except (OSError, EOFError) as e:
      raise errors.DataError(
        'cannot read corpus file', where=path, got=e
      ) from e
    if b'\r' in head and b'\n' not in head:
      raise errors.DataError(
        'lines end with CR alone',
        where=path,
        expected='LF or CR LF',
        fix=f"tr '\\r' '\\n' < {path} > new.txt",
      )
    if text := head.strip():
      lines = text.split(b'\n')
      return 'line' if all(map(bytes.strip, lines)) else 'paragraph'
  return 'line'


# -- held-out documents -------------------------------------------------------


def _hash64(text):
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
    hashed = _hash64(key(text))
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


def documents(data, report=None):
  """(split, text) of each document of a corpus, in a fixed order.

  Args:
    data: specs.Data.
    report: a sources.Report to add to.

  Yields:
    ('train' or 'validation', str).

  Raises:
    errors.DataError: as `find`, or what is read is broken.
  """
  report = sources.Report() if report is None else report
  corpus = find(data)

  def counted(split):
    for text in corpus.documents(split, report):
      report.documents += 1
      yield text
    report.check()

  if 'validation' in corpus.splits:
    for split in corpus.splits:
      for text in counted(split):
        yield split, text
    return
  trains = False
  for split, text in hold_out(counted('train'), data.held_out):
    trains |= split == 'train'
    yield split, text
  if not report.documents:
    raise errors.DataError(
      'corpus has no text', where=data.corpus, got=f'{report.lines} lines'
    )
  if not trains:
    raise errors.DataError(
      'nothing is left to train on, as a document is held out',
      where=data.corpus,
      got='one document, or copies of it',
      fix='part the text more finely, by --gin.Data.document=line or '
      'paragraph, or hold nothing out, by --gin.Data.held_out=0',
    )


class Texts:
  """The documents of a corpus, for `building`; `pairs.Lines` is of pairs."""

  encode = None  # they are texts, for the vocabulary

  def __init__(self, data):
    """Finds what specs.Data names; see `find`."""
    self._data, corpus = data, find(data)
    self.name, self.splits = corpus.name, corpus.splits
    self.identity, self.num_bytes = corpus.identity, corpus.num_bytes

  def examples(self, report):
    """(split, text) of each document."""
    return documents(self._data, report)
