"""Sequences of numbers on disk, read at any place.

An array is little-endian numbers in records of 4,096 of ArrayRecord shards;
only the last record of a shard may be shorter.
"""

import bisect
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
from t5x_lite.data import shards

BLOCK = 4096  # numbers in a record
_SHARD = 1 << 26  # numbers in a shard
_OPTIONS = 'group_size:1,uncompressed'  # each record is read alone


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
    self._entries, self._shards, self._open = entry['shards'], [], {}
    self._dtype, self.block = np.dtype(entry['dtype']), entry['block']
    lengths = [shard['length'] for shard in self._entries]
    self._starts = np.cumsum([0, *lengths]).tolist()
    self._lock = threading.Lock()  # shards are not shared between threads
    item = self._dtype.itemsize
    for shard in self._entries:
      check_name(shard['file'])
      path = folder / shard['file']
      size = path.stat().length if path.exists() else 'no file'
      if size != shard['bytes']:
        raise broken(path, size, f'{shard["bytes"]} bytes')
      self._shards.append(
        shards.Shard(path, shard['length'] * item, self.block * item)
      )

  def __len__(self):
    return self._starts[-1]

  def read(self, starts_B, length):
    """Stretches of the array, zero past its end.

    Args:
      starts_B: where each begins.
      length: how long they are.

    Returns:
      [B, length].
    """
    out_BL = np.zeros((len(starts_B), length), self._dtype)
    if out_BL.size:
      with self._lock:
        self._fill(out_BL, np.asarray(starts_B).tolist())
    return out_BL

  def _fill(self, out_BL, starts):
    flat, item = out_BL.reshape(-1), self._dtype.itemsize
    into = memoryview(flat.view(np.uint8))
    for row, at in enumerate(starts):
      to = row * out_BL.shape[1]
      end = min(at + out_BL.shape[1], len(self))
      while at < end:
        number = bisect.bisect_right(self._starts, at) - 1
        first, stop = self._starts[number], min(end, self._starts[number + 1])
        after = to + stop - at
        self._read(number, (at - first) * item, into[to * item : after * item])
        if added := self._entries[number].get('add'):
          flat[to:after] += added
        to, at = after, stop

  def _read(self, number, at, into):
    """Fills bytes from a shard; keeps open no more than may be."""
    shard = self._shards[number]
    try:
      if number not in self._open:
        if len(self._open) >= _open_files() // 16:
          self._shards[next(iter(self._open))].close()
          del self._open[next(iter(self._open))]
        shard.open()
        self._open[number] = True
      shard.read(at, into)
    except (IndexError, OSError, RuntimeError, ValueError) as e:
      got = str(e).splitlines()[0][:120]
      raise broken(shard.path, got, 'whole records') from e

  def verify(self):
    """Compares every file with the digest of when it was written."""
    for shard, entry in zip(self._shards, self._entries, strict=True):
      if (digest := sha256(shard.path)) != entry['sha256']:
        raise broken(shard.path, f'sha256 {digest[:12]}', entry['sha256'][:12])


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
