"""Files of text and of records: plain and compressed, TFRecord and Parquet.

Each reader says at which byte, record or row group a file breaks.
"""

import contextlib
import functools
import gzip
import re
import struct
import zlib

from google.protobuf import descriptor_pb2
from google.protobuf import descriptor_pool
from google.protobuf import message
from google.protobuf import message_factory
import google_crc32c

from t5x_lite import errors
from t5x_lite import storage

JSON = re.compile(r'\.(jsonl|json|ndjson)(\.gz|\.zst)?$')
PARQUET = re.compile(r'\.(parquet|pq)$')
TFRECORD = re.compile(r'\.tfrecords?(-\d+-of-\d+)?(\.gz)?$')
PACKED = re.compile(r'\.(gz|zst)$')
BLOCK = 1 << 22  # bytes that are read at once
_RECORDS = 1024  # rows of Parquet that are decoded at once
_NOT_TEXT = {  # how other files begin
  b'\x1f\x8b': 'gzip: let its name end in .gz',
  b'\x28\xb5\x2f\xfd': 'zstd: let its name end in .zst',
  b'PAR1': 'Parquet: let its name end in .parquet',
  b'BZh': 'bzip2: unpack it',
  b'\xfd7zXZ\0': 'xz: unpack it',
  b'PK\x03\x04': 'a zip archive: unpack it',
  b'%PDF-': 'PDF: extract its text',
  b'SQLite format 3\0': 'an SQLite database: export it as JSON lines',
}


def kind(path):
  """'json', 'parquet', 'tfrecord' or 'text', by a file's name."""
  for name, pattern in (
    ('json', JSON),
    ('parquet', PARQUET),
    ('tfrecord', TFRECORD),
  ):
    if pattern.search(path):
      return name
  return 'text'


def broken(place, got, fix='copy it again'):
  """A file that can't be read to its end."""
  return errors.DataError(
    'cannot read the corpus to its end', where=place, got=got, fix=fix
  )


@contextlib.contextmanager
def opened(file, name):
  """(reader of what is in a file, reader of the file itself).

  Args:
    file: its path; of an object in a bucket it is the beginning that is right.
    name: what messages call it; its end says how it is compressed.

  Raises:
    DataError: it can't be read, within the block, too.
  """
  raw = None
  try:
    raw = storage.path(file).open('rb')
    if name.endswith('.gz'):
      yield gzip.GzipFile(fileobj=raw), raw
    elif name.endswith('.zst'):
      import pyarrow  # half a second

      yield pyarrow.CompressedInputStream(raw, 'zstd'), raw
    else:
      yield raw, raw
  except (OSError, EOFError, zlib.error) as e:
    got = getattr(e, 'strerror', None) or e
    if raw is None or not PACKED.search(name):
      raise broken(name, got, None) from e
    raise broken(name, f'{got} at byte {raw.tell():,}') from e
  finally:
    if raw:
      raw.close()


def check_text(head, name):
  """Refuses what is no UTF-8 text by how it begins."""
  for magic, what in _NOT_TEXT.items():
    if head.startswith(magic):
      raise errors.DataError(
        'corpus file is no text', where=name, got=what.split(': ')[0],
        fix=what.split(': ')[1],
      )  # fmt: skip
  if head.startswith((b'\xff\xfe', b'\xfe\xff')):
    raise errors.DataError(
      'text is UTF-16',
      where=name,
      expected='UTF-8',
      fix='convert it: iconv -f UTF-16 -t UTF-8',
    )
  if b'\r' in head and b'\n' not in head:
    raise errors.DataError(
      'lines end with CR alone',
      where=name,
      expected='LF or CR LF',
      fix=f"tr '\\r' '\\n' < {name} > new.txt",
    )


def blocks(reader, raw, size, longest, report):
  """Runs of whole lines, and of pieces of lines that are too long.

  Args:
    reader: where to read on.
    raw: the file behind it, of which `report.taken` tells how much was read.
    size: bytes to read, or None for all there are.
    longest: bytes of a line at most.
    report: a sources.Report.

  Yields:
    (bytes, whether their last line goes on).
  """
  tail, before = b'', raw.tell()
  while size is None or size > 0:
    data = reader.read(BLOCK if size is None else min(BLOCK, size))
    report.taken += raw.tell() - before
    before = raw.tell()
    if not data:
      break
    size = size and size - len(data)
    block = tail + data
    end = block.rfind(b'\n') + 1
    if end:
      yield block[:end], False
    tail = block[end:]
    while len(tail) > longest:
      # At a space, else between two characters.
      end = tail.rfind(b' ', 1, longest) + 1 or longest
      while end > longest - 4 and tail[end] & 0xC0 == 0x80:
        end -= 1
      yield tail[:end], True
      tail = tail[end:]
  if tail:
    yield tail, False


# -- records ------------------------------------------------------------------


def _masked(data):
  """The CRC-32C of TFRecords."""
  crc = google_crc32c.value(data)
  return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def tfrecords(reader, raw, name, report):
  """The bytes of each record of a TFRecord file, its checksums compared."""
  at, number, before = 0, 0, raw.tell()

  def damaged(what):
    return broken(f'{name}, record {number + 1}', f'{what} at byte {at:,}')

  while head := reader.read(12):
    if len(head) < 12:
      raise damaged(f'{len(head)} bytes of a length')
    size, crc = struct.unpack('<QI', head)
    if _masked(head[:8]) != crc:
      raise damaged('a length that its checksum denies')
    data = reader.read(size + 4)
    if len(data) < size + 4:
      raise damaged(f'{len(data):,} of {size + 4:,} bytes')
    data, [crc] = data[:size], struct.unpack('<I', data[size:])
    if _masked(data) != crc:
      raise damaged('a record that its checksum denies')
    yield data
    report.taken += raw.tell() - before
    at, number, before = at + size + 16, number + 1, raw.tell()


@functools.cache
def _example():
  """The message tf.train.Example, made without TensorFlow."""
  field = descriptor_pb2.FieldDescriptorProto
  file = descriptor_pb2.FileDescriptorProto(
    name='example.proto', package='t5x_lite', syntax='proto3'
  )

  def add(holder, name, number, kind, label=field.LABEL_OPTIONAL):
    own = kind if isinstance(kind, str) else None
    holder.field.add(
      name=name,
      number=number,
      type=field.TYPE_MESSAGE if own else kind,
      type_name=own and f'.t5x_lite.{own}',
      label=label,
    )

  for name, kind in (
    ('BytesList', field.TYPE_BYTES),
    ('FloatList', field.TYPE_FLOAT),
    ('Int64List', field.TYPE_INT64),
  ):
    add(
      file.message_type.add(name=name), 'value', 1, kind, field.LABEL_REPEATED
    )
  feature = file.message_type.add(name='Feature')
  for number, name in enumerate(('BytesList', 'FloatList', 'Int64List'), 1):
    add(feature, name.lower(), number, name)
  features = file.message_type.add(name='Features')
  entry = features.nested_type.add(name='FeatureEntry')
  entry.options.map_entry = True
  add(entry, 'key', 1, field.TYPE_STRING)
  add(entry, 'value', 2, 'Feature')
  add(features, 'feature', 1, 'Features.FeatureEntry', field.LABEL_REPEATED)
  add(file.message_type.add(name='Example'), 'features', 1, 'Features')
  pool = descriptor_pool.DescriptorPool()
  pool.Add(file)
  return message_factory.GetMessageClass(
    pool.FindMessageTypeByName('t5x_lite.Example')
  )


def features(record, fields, place):
  """The bytes in some features of a serialised tf.train.Example."""
  try:
    found = _example().FromString(record).features.feature
  except message.DecodeError as e:
    raise errors.DataError(
      'record is not a tf.train.Example', where=place
    ) from e
  values = []
  for field in fields:
    texts = found[field].byteslist.value if field in found else ()
    if len(texts) != 1:
      raise no_text('record', field, place, list(found), f'{len(texts)} texts')
    values.append(texts[0])
  return values


def no_text(what, field, place, names, got):
  """A record without the text that is asked for."""
  listed = ', '.join(map(repr, names[:9])) or 'none'
  return errors.DataError(
    f'{what} has no text in field {field!r}',
    where=place,
    got=f'{got} in it' if field in names else f'fields {listed}',
    expected='a string',
    fix='name the field that holds the text: --gin.Data.field='
    f'{errors.nearest(field, names) or "..."}, or, of pairs, '
    '--gin.Data.pair=INPUTS,TARGETS',
  )


def row_groups(file, name):
  """Bytes of each row group of a Parquet file."""
  with _parquet(file, name) as table:
    groups = range(table.num_row_groups)
    return [table.metadata.row_group(n).total_byte_size for n in groups]


def rows_before(file, name, group):
  """Rows of a Parquet file before a row group."""
  with _parquet(file, name) as table:
    return sum(table.metadata.row_group(n).num_rows for n in range(group))


@contextlib.contextmanager
def _parquet(file, name):
  """An open Parquet file, and its faults as ours."""
  import pyarrow
  from pyarrow import parquet

  try:
    with parquet.ParquetFile(file) as table:
      yield table
  except (OSError, pyarrow.ArrowException) as e:
    raise broken(name, str(e).splitlines()[0][:200]) from e


def rows(file, name, start, end, fields, report):
  """The bytes, or None, in some columns of each row of some row groups."""
  import pyarrow

  with _parquet(file, name) as table:
    schema = table.schema_arrow
    texts = pyarrow.binary(), pyarrow.large_binary()
    texts += pyarrow.string(), pyarrow.large_string()
    for field in fields:
      at = schema.get_field_index(field)
      type_ = schema.types[at] if at >= 0 else None
      if type_ is not None and pyarrow.types.is_dictionary(type_):
        type_ = type_.value_type
      if type_ not in texts:
        raise no_text('Parquet file', field, name, schema.names, str(type_))
    for number in range(start, table.num_row_groups if end is None else end):
      try:
        for batch in table.iter_batches(_RECORDS, [number], [*fields]):
          columns = [batch[field] for field in fields]
          yield from zip(
            *(
              column.cast(pyarrow.large_binary()).to_pylist()
              for column in columns
            )
          )
      except (OSError, pyarrow.ArrowException) as e:
        raise broken(
          f'{name}, row group {number}', str(e).splitlines()[0][:200]
        ) from e
      report.taken += table.metadata.row_group(number).total_byte_size
