"""Documents and records of text files, in any place of them."""

import dataclasses
import json
import os
import re

from t5x_lite import errors
from t5x_lite import storage
from t5x_lite.data import checksums
from t5x_lite.data import formats
from t5x_lite.data import partition
from t5x_lite.data.sources import Place

LONGEST = 1 << 24  # bytes of a document; a longer one is stored as several
_LONGEST_RECORD = 1 << 30  # bytes of a line of JSON


@dataclasses.dataclass(frozen=True)
class Files:
  """Files of text, JSON lines, TFRecords or Parquet, of one split.

  A line ends at LF or CR LF. A byte order mark at the start of a file is left
  out; all other characters are kept.
  """

  name: str
  paths: tuple[str, ...]
  document: str  # 'line', 'paragraph' or 'file', of text; others go by record
  field: str  # of a record, holds the text

  splits = ('train',)

  @property
  def place(self):
    """What messages call it."""
    return ', '.join(self.paths[:3]) + ', ...' * (len(self.paths) > 3)

  @property
  def has_fields(self):
    """Whether they are all of records, which may be pairs."""
    return all(formats.kind(path) != 'text' for path in self.paths)

  def identity(self):
    """What the documents depend on, as JSON: size and CRC-32C of each file.

    It is the same for a copy elsewhere. Object stores know it without reading.
    """
    root = os.path.dirname(os.path.commonprefix(self.paths))
    kinds = set(map(formats.kind, self.paths))
    return {
      'files': [
        [os.path.relpath(path, root), *checksums.of(path)]
        for path in self.paths
      ],
      'document': self.document,
      'field': self.field if kinds != {'text'} else None,
    }

  def parts(self):
    """As a list of partition.Part."""
    sizes = [storage.path(path).stat().length for path in self.paths]
    wanted, pieces = partition.size(sum(sizes)), []
    for path, size in zip(self.paths, sizes, strict=True):
      pieces += self._pieces(path, size, wanted)
    return partition.group({'train': pieces})

  def _pieces(self, path, size, wanted):
    """[(piece, bytes), ...] of a file."""
    kind = formats.kind(path)
    whole = [((path, 0, None), size)]
    if size <= wanted or not storage.is_local(path):
      return whole  # an object is copied, and checked, as a whole
    if kind == 'parquet':
      sizes = formats.row_groups(path, path)
      return [((path, n, n + 1), x) for n, x in enumerate(sizes)]
    if (
      kind == 'tfrecord'
      or formats.PACKED.search(path)
      or (kind == 'text' and self.document == 'file')
    ):
      return whole
    places = [0]
    paragraphs = kind == 'text' and self.document == 'paragraph'
    count = round(size / wanted)
    for n in range(1, count):
      if (at := n * size // count) > places[-1]:
        places.append(_boundary(path, at, paragraphs))
    places = sorted({*places, size})
    return [
      ((path, start, end), end - start)
      for start, end in zip(places, places[1:])
    ]

  def texts(self, part, report):
    """The texts of a part, in order, with blank ones left out.

    Args:
      part: a partition.Part.
      report: a sources.Report that is added to.

    Yields:
      str.
    """
    for path, start, end in part.pieces:
      if formats.kind(path) != 'text':
        records = self._records(path, start, end, (self.field,), report)
        for _, (text,) in records:
          if text.strip():
            yield from _cut(text, report)
          else:
            report.blank += 1
        continue
      runs = self._runs(path, start, end, LONGEST, report)
      if self.document == 'line':
        for _, lines, goes_on in runs:
          report.cut += goes_on
          texts = [line for line in lines if line.strip()]
          report.blank += len(lines) - len(texts)
          yield from texts
      else:
        yield from self._joined(runs, report)

  def _joined(self, runs, report):
    """Paragraphs, or the one document that a file is."""
    kept, size, going = [], 0, False  # whether a document was cut before
    whole = self.document == 'file'
    for _, lines, goes_on in runs:
      for line in lines:
        if whole or line.strip():
          report.cut += going
          kept.append(line)
          size += len(line) + 1
          going = size > LONGEST
          if not going:
            continue
        else:
          going = False
        if kept:
          yield '\n'.join(kept)
          kept, size = [], 0
      if goes_on and kept:
        going = True
        yield '\n'.join(kept)
        kept, size = [], 0
    if any(map(str.strip, kept)):
      yield '\n'.join(kept)

  def records(self, part, fields, report):
    """(place, the texts in some fields) of each record, in order.

    Args:
      part: a partition.Part.
      fields: their names.
      report: a sources.Report that is added to.
    """
    for piece in part.pieces:
      yield from self._records(*piece, fields, report)

  def _records(self, path, start, end, fields, report):
    kind = formats.kind(path)
    if kind == 'json':
      runs = self._runs(path, start, end, _LONGEST_RECORD, report)
      for first, lines, _ in runs:
        for number, line in enumerate(lines, first):
          if not line.strip():
            report.blank += 1
            continue
          place = Place(path, start, number)
          record = _json_record(line, place, fields)
          yield (
            place,
            tuple(_json_text(record, place, field, report) for field in fields),
          )
      return
    number = 0
    with storage.as_local(path) as file:
      if kind == 'parquet':
        found = formats.rows(file, path, start, end, fields, report)
        if start:
          number = formats.rows_before(file, path, start)
      else:
        found = _features(file, path, fields, report)
      for values in found:
        number += 1
        place = Place(path, 0, number)
        report.read(1, sum(len(x or b'') for x in values))
        yield place, tuple(report.decode(x or b'', place) for x in values)

  def _runs(self, path, start, end, longest, report):
    """Lines that follow one another, as text.

    A line that is too long comes in several, of one number.

    Yields:
      (number of the first, from the start of the piece; the lines; whether the
      last goes on).
    """
    number = 1
    size = None if end is None else end - start
    with (
      storage.as_local(path) as file,
      formats.opened(file, path) as (reader, raw),
    ):
      if start:
        raw.seek(start)
      for block, goes_on in formats.blocks(reader, raw, size, longest, report):
        if number == 1 and not start:
          formats.check_text(block[: 1 << 20], path)
          block = block.removeprefix(b'\xef\xbb\xbf')
        if goes_on and longest == _LONGEST_RECORD:
          raise errors.DataError(
            'line of JSON is too long',
            where=Place(path, start, number),
            expected=f'at most {longest:,} bytes',
          )
        lines = self._texts(block, Place(path, start, number), report)
        report.read(len(lines) - goes_on, len(block))
        yield number, lines, goes_on
        number += len(lines) - goes_on

  @staticmethod
  def _texts(block, place, report):
    """The lines of a block as text, without their ends."""
    if b'\r' in block:
      block = block.replace(b'\r\n', b'\n').removesuffix(b'\r')
    try:
      lines = block.decode().split('\n')
    except UnicodeDecodeError:
      lines = [
        report.decode(line, Place(place.name, place.start, place.number + n))
        for n, line in enumerate(block.split(b'\n'))
      ]
    return lines if lines[-1] else lines[:-1]


def _boundary(path, at, paragraphs):
  """Where the first document behind a place of a local text file starts."""
  with formats.opened(path, path) as (f, _):
    f.seek(at)
    while (line := f.readline(formats.BLOCK)) and line[-1:] != b'\n':
      pass
    while paragraphs and line:
      line = f.readline(formats.BLOCK)
      if line[-1:] == b'\n' and not line.strip():
        break
      while line and line[-1:] != b'\n':  # the rest of a long one
        line = f.readline(formats.BLOCK)
    return f.tell()


def _cut(text, report):
  """A text in pieces that are not too long."""
  while len(text) > LONGEST:
    end = text.rfind(' ', 1, LONGEST) + 1 or LONGEST
    report.cut += 1
    yield text[:end]
    text = text[end:]
  yield text


def _features(file, path, fields, report):
  with formats.opened(file, path) as (reader, raw):
    for number, record in enumerate(
      formats.tfrecords(reader, raw, path, report), 1
    ):
      yield formats.features(record, fields, f'{path}, record {number}')


def _json_record(line, place, fields):
  """One JSON line, an object."""
  try:
    record = json.loads(line)
  except (ValueError, RecursionError) as e:
    raise errors.DataError(
      'not a line of JSON', where=place, got=f'{line[:60]!r} ({e})'
    ) from e
  if not isinstance(record, dict):
    wanted = ', '.join(f'"{field}": "..."' for field in fields)
    raise errors.DataError(
      'JSON line is not an object',
      where=place,
      got=type(record).__name__,
      expected=f'{{{wanted}}}',
    )
  return record


def _json_text(record, place, field, report):
  """The text in one field of a JSON line."""
  if not isinstance(text := record.get(field), str):
    raise formats.no_text(
      'JSON line', field, place, list(record), type(text).__name__
    )
  try:
    text.encode()
  except UnicodeEncodeError as e:  # half of a surrogate pair, as in "\ud800"
    report.bad(place, e.start + 1)
    text = re.sub('[\ud800-\udfff]', '\ufffd', text)
  return text
