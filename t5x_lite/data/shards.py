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
    self.path, self._record, self._file, self._reader = path, record, None, None
    self._right = None  # which records were compared, once there are any
    self._last = -(-size // record) - 1
    self._size_of_last = size - self._last * record
    # Where the records lie, headers of blocks not counted.
    self._first = _CHUNK_HEADER + _before(record)
    self._stride = _before(record) + record
    self._start_of_last = (
      _CHUNK_HEADER + self._last * self._stride + _before(self._size_of_last)
    )

  def open(self):
    """Opens the file, unless it is."""
    if self._right is None:  # not sooner: a corpus may have many files
      self._right = bytearray(self._last + 1)
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
    record, offset = divmod(at, self._record)
    while (count := self._record - offset) < len(into):
      self._read(record, offset, into[:count])
      record, offset, into = record + 1, 0, into[count:]
    self._read(record, offset, into)

  def _read(self, record, offset, into):
    if not self._right[record]:
      self._compare(record)
    self._copy(record, offset, into)

  def _copy(self, record, offset, into):
    if record == self._last:
      start = self._start_of_last
    else:
      start = self._first + record * self._stride
    block, inside = divmod(start + offset, _ROOM)
    while (count := _ROOM - inside) < len(into):
      self._get(block, inside, into[:count])
      block, inside, into = block + 1, 0, into[count:]
    self._get(block, inside, into)

  def _get(self, block, inside, into):
    place = block * _BLOCK + _BLOCK_HEADER + inside
    if os.preadv(self._file, (into,), place) != len(into):
      raise ValueError('ends too soon')

  def _compare(self, record):
    """Reads a record by ArrayRecord, too, which checks its hash."""
    if self._reader is None:
      self._reader = array_record_module.ArrayRecordReader(
        str(self.path), options=_READ
      )
    [right] = self._reader.read([record])
    size = self._size_of_last if record == self._last else self._record
    if len(right) != size:
      raise ValueError(f'{len(right)} bytes in record {record}, not {size}')
    found = bytearray(size)
    self._copy(record, 0, memoryview(found))
    if found != right:
      raise ValueError(f'record {record} is not where it should be')
    self._right[record] = 1
