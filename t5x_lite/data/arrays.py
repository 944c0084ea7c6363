"""Sequences of numbers on disk, read at any place.

An array is little-endian numbers in records of 4,096 of ArrayRecord shards;
only the last record of a shard may be shorter.
"""

import contextlib
import functools
import hashlib
import os
import re
import resource
import threading

from array_record.python import array_record_module
import numpy as np

from t5x_lite import errors

BLOCK = 4096  # numbers in a record
_SHARD = 1 << 26  # numbers in a shard
_OPTIONS = 'group_size:1,uncompressed'  # each record is read alone
_READ = 'readahead_buffer_size:0'


@functools.cache
def _open_files():
  """How many files may be open, once as many are allowed as can be."""
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  most = 1 << 16
  wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
  if soft != resource.RLIM_INFINITY and soft < wanted:
    with contextlib.suppress(OSError, ValueError):
      resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
      soft = wanted
  return most if soft == resource.RLIM_INFINITY else soft


def sha256(path):
  """The digest of a file."""
  with open(path, 'rb') as f:
    return hashlib.file_digest(f, 'sha256').hexdigest()


class Array:
  """A stored sequence of numbers.

  Attributes:
    block: how many of them lie in a record.
  """

  def __init__(self, folder, entry):
    """Opens an array by its part of the manifest; checks the files' sizes.

    A shard may say what to `add` to its numbers, so that places in a part of a
    corpus are places in the whole.
    """
    self._folder, self._shards = folder, entry['shards']
    self._dtype, self.block = np.dtype(entry['dtype']), entry['block']
    lengths = [shard['length'] for shard in self._shards]
    self._starts = np.cumsum([0, *lengths])
    self._readers = {}
    self._lock = threading.Lock()  # readers are not shared between threads
    for shard in self._shards:
      check_name(shard['file'])
      path = folder / shard['file']
      size = path.stat().length if path.exists() else 'no file'
      if size != shard['bytes']:
        raise broken(path, size, f'{shard["bytes"]} bytes')

  def __len__(self):
    return int(self._starts[-1])

  def read(self, starts_B, length):
    """Stretches of the array, zero past its end.

    All the records that they lie in are read at once, each once.

    Args:
      starts_B: where each begins.
      length: how long they are.

    Returns:
      [B, length].
    """
    out_BL = np.zeros((len(starts_B), length), self._dtype)
    pieces, records = [], {}  # where to copy from and to; what to read
    for row, start in enumerate(np.asarray(starts_B).tolist()):
      at, end = start, min(start + length, len(self))
      while at < end:
        shard = int(np.searchsorted(self._starts, at, 'right')) - 1
        first = int(self._starts[shard])
        record, offset = divmod(at - first, self.block)
        stop = min(end, at - offset + self.block, int(self._starts[shard + 1]))
        pieces.append((row, at - start, shard, record, offset, stop - at))
        records.setdefault(shard, set()).add(record)
        at = stop
    blocks = {}
    with self._lock:
      for shard, wanted in records.items():
        wanted = sorted(wanted)
        for record, block in zip(
          wanted, self._records(shard, wanted), strict=True
        ):
          blocks[shard, record] = block
    for row, to, shard, record, offset, size in pieces:
      numbers = np.frombuffer(
        blocks[shard, record], self._dtype, size, offset * self._dtype.itemsize
      )
      if added := self._shards[shard].get('add'):
        numbers = numbers + added
      out_BL[row, to : to + size] = numbers
    return out_BL

  def _records(self, shard, records):
    path = self._folder / self._shards[shard]['file']
    try:
      reader = self._readers.pop(shard, None)
      if reader is None:
        if len(self._readers) >= _open_files() // 8:
          self._readers.pop(next(iter(self._readers))).close()
        reader = array_record_module.ArrayRecordReader(str(path), options=_READ)
      self._readers[shard] = reader  # the last in use stands last
      blocks = reader.read(records)
      if len(blocks) != len(records):
        raise ValueError(f'{len(blocks)} of {len(records)} records')
    except (IndexError, RuntimeError, ValueError) as e:
      raise broken(path, str(e).splitlines()[0][:120], 'whole records') from e
    return blocks

  def verify(self):
    """Compares every file with the digest of when it was written."""
    for shard in self._shards:
      path = self._folder / shard['file']
      if (digest := sha256(path)) != shard['sha256']:
        raise broken(path, f'sha256 {digest[:12]}', shard['sha256'][:12])


def check_name(name):
  """Keeps a manifest from pointing outside its folder."""
  if not re.fullmatch(r'\w[\w.-]*', name):
    raise ValueError(f'file name {name!r}')


def broken(path, got, expected, store=None):
  store = store or path.parent.parent  # a shard lies in the folder of its split
  return errors.DataError(
    'tokenised corpus is damaged',
    where=path,
    got=got,
    expected=expected,
    fix=f'delete {store}; it is made again from the corpus',
  )


@contextlib.contextmanager
def _writing(folder):
  """ArrayRecord's errors, as ours."""
  try:
    yield
  except RuntimeError as e:
    raise errors.StorageError(
      'cannot write', where=folder, got=str(e).split(';')[0]
    ) from e


class ArrayWriter:
  """Appends numbers to one array of a split."""

  def __init__(self, folder, name, dtype):
    self._folder, self._name = folder, name
    self._dtype = np.dtype(dtype)
    self._shards = []  # the lengths of those begun
    self._writer, self._pending, self._held = None, [], 0

  def append(self, values):
    """Adds an array of numbers."""
    self._pending.append(values.astype(self._dtype))
    self._held += len(values)
    if self._held >= 64 * BLOCK:
      self._write(BLOCK)

  def _write(self, least):
    """Writes whole blocks while at least `least` numbers are held."""
    values = np.concatenate([*self._pending, np.empty(0, self._dtype)])
    at = 0
    with _writing(self._folder):
      while len(values) - at >= least:
        if self._writer is None or self._shards[-1] >= _SHARD:
          self._begin_shard()
        block = values[at : at + BLOCK]
        self._writer.write(block.tobytes())
        self._shards[-1] += len(block)
        at += len(block)
    self._pending, self._held = [values[at:]], len(values) - at

  def _begin_shard(self):
    if self._writer:
      self._writer.close()
    path = self._folder / f'{self._name}-{len(self._shards)}'
    self._writer = array_record_module.ArrayRecordWriter(str(path), _OPTIONS)
    self._shards.append(0)

  def close(self):
    """Ends the array; returns its part of the manifest."""
    self._write(1)
    if self._writer:
      with _writing(self._folder):
        self._writer.close()
    shards, count = [], len(self._shards)
    for i, length in enumerate(self._shards):
      name = f'{self._name}.arrayrecord-{i:05d}-of-{count:05d}'
      path = self._folder / name
      os.rename(self._folder / f'{self._name}-{i}', path)
      shards.append(
        {
          'file': name,
          'length': length,
          'bytes': os.path.getsize(path),
          'sha256': sha256(path),
        }
      )
    return {
      'dtype': self._dtype.str,
      'block': BLOCK,
      'length': sum(self._shards),
      'shards': shards,
    }
