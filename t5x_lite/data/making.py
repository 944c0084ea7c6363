"""Tokenises one part of a corpus, in whatever process."""

import dataclasses
import json

import numpy as np

from t5x_lite import errors
from t5x_lite import storage
from t5x_lite.data import arrays
from t5x_lite.data import corpora
from t5x_lite.data import sources

RESULT = 'part.json'  # of a part that is done
_BATCH = 1 << 22  # characters, or ids, that are tokenised at once
_NONE = 1 << 64  # above every hash


@dataclasses.dataclass(frozen=True)
class Job:
  """What the parts of a store have in common.

  Attributes:
    corpus: corpora.Texts, or another of its kind.
    vocabulary: the vocabulary.
    folder: the finished parts are put into it.
    limit: examples whose hash is below it are held out; None: the corpus has a
      split for that.
    tag: ends the names of the parts.
  """

  corpus: object
  vocabulary: object
  folder: str
  limit: int | None
  tag: str = ''

  def place(self, number):
    """Where a finished part lies."""
    return storage.path(self.folder) / f'part-{number:05d}{self.tag}'

  def is_done(self, number):
    return (self.place(number) / RESULT).exists()

  def result(self, number):
    """What `make` left of a finished part: a dict."""
    return json.loads((self.place(number) / RESULT).read_text())


class SplitWriter:
  """Appends documents, or pairs, to one split."""

  def __init__(self, folder, vocabulary, encode, starts):
    """Makes its folder.

    Args:
      folder: of the split.
      vocabulary: the vocabulary.
      encode: from some documents or pairs to rows of tokens.
      starts: the array of where each row starts.
    """
    folder.mkdir()
    self._vocabulary, self._encode, self._name = vocabulary, encode, starts
    self._tokens = arrays.ArrayWriter(
      folder, 'tokens', '<u2' if vocabulary.size <= 1 << 16 else '<u4'
    )
    self._starts = arrays.ArrayWriter(folder, starts, '<i8')
    self.length = self.unknown = 0

  def append(self, items):
    rows = self._encode(items)
    tokens = np.concatenate(rows)
    if tokens.size and (
      tokens.min() < 0 or tokens.max() >= self._vocabulary.size
    ):
      raise errors.DataError(
        'tokenizer gave an id that the vocabulary does not have',
        got=f'{tokens.min()} to {tokens.max()}',
        expected=f'0 to {self._vocabulary.size - 1}',
      )
    ends = np.cumsum([len(row) for row in rows])
    starts = self.length + np.concatenate([[0], ends[:-1]])
    self._tokens.append(tokens)
    self._starts.append(starts)
    self.length += len(tokens)
    self.unknown += int((tokens == self._vocabulary.unk_id).sum())

  def close(self):
    """Its part of the manifest."""
    return {
      'arrays': {
        'tokens': self._tokens.close(),
        self._name: self._starts.close(),
      },
      'unknown': self.unknown,
    }


def write(folder, items, vocabulary, encode, starts, told=None):
  """Writes splits into an existing empty folder.

  Args:
    folder: a local folder.
    items: iterable of (split, text), or of (split, pair).
    vocabulary: the vocabulary.
    encode: as of SplitWriter.
    starts: as of SplitWriter.
    told: called now and then with the number of tokens so far.

  Returns:
    {split: its part of the manifest}.

  Raises:
    errors.DataError: the tokenizer gave an unknown id, or what `items` raises.
  """
  writers, waiting, size = {}, {}, 0

  def flush():
    for split, batch in waiting.items():
      if split not in writers:
        writers[split] = SplitWriter(folder / split, vocabulary, encode, starts)
      writers[split].append(batch)
    waiting.clear()
    if told:
      told(sum(writer.length for writer in writers.values()))

  for split, item in items:
    waiting.setdefault(split, []).append(item)
    size += len(item) if isinstance(item, str) else sum(map(len, item))
    if size >= _BATCH:
      flush()
      size = 0
  flush()
  return {split: writer.close() for split, writer in writers.items()}


def make(job, number, part, told=None):
  """Makes a part of a store, unless somebody else has.

  Args:
    job: a Job.
    number: of the part.
    part: the partition.Part.
    told: called now and then with tokens made and bytes read so far.
  """
  report, lowest = sources.Report(), _NONE

  def sided():
    nonlocal lowest
    for item in job.corpus.examples(part, report):
      report.documents += 1
      split = part.split
      if job.limit:
        hashed = corpora.hash64(job.corpus.key(item))
        lowest = min(lowest, hashed)
        split = 'validation' if hashed < job.limit else 'train'
      yield split, item

  folder = job.place(number)
  if job.is_done(number):
    return
  try:
    with storage.publish(folder) as scratch:
      found = write(
        scratch,
        sided(),
        job.vocabulary,
        lambda items: job.corpus.encode(items, job.vocabulary),
        job.corpus.starts,
        told and (lambda tokens: told(tokens, report.taken)),
      )
      result = {
        'splits': found,
        'report': dataclasses.asdict(report),
        'lowest': lowest,
      }
      storage.write_text(scratch / RESULT, json.dumps(result))
  except errors.StorageError:
    if not job.is_done(number):  # another was faster with the same
      raise
