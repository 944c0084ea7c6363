"""Readers of the offline tasks: from files of fetched packages to examples."""

import hashlib
import re
from typing import NamedTuple

_SHARES = {'test': 5, 'validation': 10}  # of 100, each to the one before it


class Row(NamedTuple):
  """An example of a task.

  Attributes:
    document: what it is of; all examples of a document are on the same side.
    inputs: text, without the prefix of the task.
    targets: text.
    more: further entries, for the metrics.
    split: of a dataset that has its own; else the document decides.
  """

  document: str
  inputs: str
  targets: str
  more: dict = {}  # noqa: RUF012 (nobody changes it)
  split: str | None = None


def plain(text):
  """Text with a space in the place of all that is white."""
  return ' '.join(text.split())


def folded(text):
  """Letters and digits of a text, by which equal inputs are told."""
  return re.sub(r'[\W_]+', '', text.casefold()) or text


def share(key, most):
  """A whole number below `most` that a text decides: a fair die."""
  return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) % most


def split_of(document):
  """'train' for 90 of 100 documents, 'validation' for 5 and 'test' for 5."""
  number = share(document, 100)
  return next((k for k, most in _SHARES.items() if number < most), 'train')


def split(rows, wanted):
  """The rows of a split, without those whose inputs came before.

  Two examples of equal inputs, but for case, blanks and marks, would be on two
  sides where their documents are; the first is kept. They come in the order of
  a throw, so that the first few of them are a sample.
  """
  seen, found = set(), []
  for row in rows:
    inputs, targets = plain(row.inputs), plain(row.targets)
    row = row._replace(inputs=inputs, targets=targets)
    key = hashlib.sha256(folded(row.inputs).encode()).digest()[:12]
    if key in seen or not row.inputs or not row.targets:
      continue
    seen.add(key)
    if (row.split or split_of(row.document)) == wanted:
      found.append(row)
  return sorted(found, key=lambda row: share(row.inputs, 1 << 64))
