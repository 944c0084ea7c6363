"""An ArrayRecord file of records of one size, read at any byte.

ArrayRecord hands out whole records and takes 10 to 20 microseconds for each,
in which a batch's worth of noise is drawn for a row. Ours are not compressed,
one in a chunk, so that it is known where each byte lies. ArrayRecord reads a
record when it is first needed, which checks its hash; what lies there then has
to be the same.

The format is Riegeli's. Blocks of 64 KiB begin with a header of 24 bytes; what
is left, end to end, are chunks. The first is a header of 40 bytes alone. Each
of the others is a header, two bytes (not compressed; bytes of the size), the
size, seven bits a byte, and the record. All but the last are of one size.
"""

import contextlib
import os

from array_record.python import array_record_module

_BLOCK, _BLOCK_HEADER, _CHUNK_HEADER = 1 << 16, 24, 40
_ROOM = _BLOCK - _BLOCK_HEADER
_READ = 'readahead_buffer_size:0'


def _before(size):
  """Bytes of a chunk in front of its record."""
  return _CHUNK_HEADER + 2 + max(-(-size.bit_length() // 7), 1)


class Shard:
  """One file. What is wrong with it is an OSError, RuntimeError or ValueError.

  Attributes:
    path: where it lies.
  """

  def __init__(self, path, size, record):
    """Takes a file; `open` opens it.

    Args:
      path: of a local file.
      size: bytes of all its records.
      record: bytes of a record; the last may have fewer.
    """
    self.path, self._size, self._record = path, size, record
    self._stride = _before(record) + record
    self._right = bytearray(-(-size // record))  # which records were compared
    self._file = self._reader = None

  def open(self):
    """Opens the file, unless it is."""
    if self._file is None:
      self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)

  def close(self):
    """Closes it, until it is opened again."""
    if self._reader is not None:
      with contextlib.suppress(RuntimeError):  # reading has told of it
        self._reader.close()
    if self._file is not None:
      os.close(self._file)
    self._file = self._reader = None

  __del__ = close

  def read(self, at, into):
    """Fills a memoryview of bytes with what the records hold from `at` on."""
    while into:
      record, offset = divmod(at, self._record)
      if not self._right[record]:
        self._compare(record)
      count = min(len(into), self._record - offset)
      self._copy(record, offset, into[:count])
      at, into = at + count, into[count:]

  def _copy(self, record, offset, into):
    size = min(self._record, self._size - record * self._record)
    at = _CHUNK_HEADER + record * self._stride + _before(size) + offset
    while into:
      block, inside = divmod(at, _ROOM)
      count = min(len(into), _ROOM - inside)
      place = block * _BLOCK + _BLOCK_HEADER + inside
      if os.preadv(self._file, [into[:count]], place) != count:
        raise ValueError(f'ends in record {record}')
      at, into = at + count, into[count:]

  def _compare(self, record):
    if self._reader is None:
      self._reader = array_record_module.ArrayRecordReader(
        str(self.path), options=_READ
      )
    [right] = self._reader.read([record])
    found = bytearray(len(right))
    if len(right) != min(self._record, self._size - record * self._record):
      raise ValueError(f'{len(right)} bytes in record {record}')
    self._copy(record, 0, memoryview(found))
    if found != right:
      raise ValueError(f'record {record} is not where it should be')
    self._right[record] = 1
