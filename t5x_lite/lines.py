"""What to infer on: the lines of a file, of text or of JSON."""

import codecs
import contextlib
import dataclasses
import hashlib
import io
import json
import math
import os
import re
import sys

from t5x_lite import errors
from t5x_lite import storage

JSON = re.compile(r'\.(json|jsonl|ndjson)$')


@dataclasses.dataclass
class Lines:
  """Lines of text or of JSON, each an example.

  A line ends at LF or CR LF. A byte order mark at the start is left out; all
  other characters are kept, and so are empty lines.

  Attributes:
    name: a path, or '-' for standard input.
    format: 'text', 'jsonl' or None for what the name says.
    field: of an example, holds the text of the inputs.
    scored: whether an example has 'targets' too; in text they follow a tab.
  """

  name: str = '-'
  format: str | None = None
  field: str = 'inputs'
  scored: bool = False

  def __post_init__(self):
    self._kept = None  # the content, of what can't be read twice
    self.is_json = self.format == 'jsonl' or (
      self.format is None and bool(JSON.search(self.name))
    )

  @property
  def fields(self):
    """Of an example, those that hold text for the model."""
    return (self.field, 'targets') if self.scored else (self.field,)

  @property
  def is_stream(self):
    """Whether it can be read once only, as stdin and pipes can."""
    if self._kept is not None or not storage.is_local(self.name):
      return False
    path = os.fspath(storage.path(self.name))
    return self.name == '-' or (
      os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path))
    )

  def keep(self):
    """Reads a stream to its end, so that it can be read again."""
    if self.is_stream:
      with self._open() as source:
        self._kept = source.read()

  def _open(self):
    if self._kept is not None:
      return io.BytesIO(self._kept)
    if self.name == '-':
      return contextlib.nullcontext(sys.stdin.buffer)
    try:
      return storage.path(self.name).open('rb')
    except OSError as e:
      raise errors.DataError(
        'cannot read the input', where=self.name, got=e.strerror or e
      ) from e

  def place(self, number):
    """Where a line stands, for messages."""
    return f'{"stdin" if self.name == "-" else self.name}:{number}'

  def __iter__(self):
    """(number from 1, bytes with their end) of each line."""
    with self._open() as source:
      yield from enumerate(source, 1)

  def digest(self):
    """(how many lines, sha256 of the content in hexadecimal)."""
    count, digest = 0, hashlib.sha256()
    for count, line in self:  # noqa: B007
      digest.update(line)
    return count, digest.hexdigest()

  def example(self, number, line):
    """The example of a line: a dict of text in `field` and what else it has.

    Raises:
      DataError: the line is not of this form.
    """
    if number == 1:
      line = line.removeprefix(codecs.BOM_UTF8)
    try:
      text = line.removesuffix(b'\n').removesuffix(b'\r').decode()
    except UnicodeDecodeError as e:
      raise self._fault(number, 'line is not UTF-8', f'byte {e.start}') from e
    if self.is_json:
      return self._of_json(number, text)
    if not self.scored:
      return {self.field: text}
    inputs, *targets = text.split('\t')
    if len(targets) != 1:
      raise self._fault(
        number,
        'line has no targets to score' if not targets else 'line has more tabs',
        f'{len(targets)} tabs',
        'inputs, a tab, targets; or JSON with both (--format=jsonl)',
      )
    return {self.field: inputs, 'targets': targets[0]}

  def _of_json(self, number, text):
    try:
      example = json.loads(text, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as e:
      raise self._fault(
        number, 'not a line of JSON', f'{text[:60]!r} ({e})'
      ) from e
    if not isinstance(example, dict):
      raise self._fault(
        number,
        'JSON line is not an object',
        type(example).__name__,
        f'{{"{self.field}": "..."}}',
      )
    for field in self.fields:
      if not isinstance(value := example.get(field), str):
        names = ', '.join(map(repr, list(example)[:9])) or 'none'
        raise self._fault(
          number,
          f'JSON line has no text in field {field!r}',
          f'{type(value).__name__} in it'
          if field in example
          else f'fields {names}',
          'a string',
          'name the field that holds the text: --field=...'
          if field == self.field
          else None,
        )
      if re.search('[\ud800-\udfff]', value):
        raise self._fault(
          number, f'half of a surrogate pair in field {field!r}', ascii(value)
        )
    return example

  def _fault(self, number, what, got, expected=None, fix=None):
    return errors.DataError(
      what, where=self.place(number), got=got, expected=expected, fix=fix
    )


def _finite(text):
  number = float(text)
  if not math.isfinite(number):
    raise ValueError(f'{text} is no number')
  return number


def to_json(example):
  """A line of JSON as bytes.

  Raises:
    NumericError: a number is infinite or none.
  """
  try:
    text = json.dumps(example, ensure_ascii=False, allow_nan=False)
    return f'{text}\n'.encode()
  except UnicodeEncodeError:  # half of a surrogate pair, in a field not used
    return f'{json.dumps(example)}\n'.encode()
  except ValueError as e:
    raise errors.NumericError(
      'the model gives no number',
      got=json.dumps(example),
      fix='its parameters may be NaN: name another checkpoint by --step',
    ) from e
