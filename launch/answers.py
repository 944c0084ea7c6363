"""Answers of other programs, which may be others than we know."""

import json

from t5x_lite.launch import calls

_MISREAD = ValueError, TypeError, LookupError, AttributeError
_SHOWN = 80  # characters of what is not understood


def read(program, text, reader=json.loads):
  """What `reader` makes of an answer.

  Raises:
    CallError: it can make nothing of it.
  """
  try:
    return reader(text)
  except _MISREAD:
    raise misread(program, text) from None


def misread(program, text):
  """The CallError of an answer in which a part is missing."""
  words = ' '.join(text.split())
  more = '...' if words[_SHOWN:] else ''
  return calls.CallError(
    f'the answer of {program} is not understood',
    got=ascii(words[:_SHOWN]) + more if words else 'nothing',
    fix='see what it prints here by itself: a proxy or wrapper may answer',
  )
