"""Silences what Orbax prints of a failed save, which is told in one message."""

import logging
import os
import sys


def _is_news(record):
  """Whether a log record is not the traceback of a save that failed.

  Orbax prints one for each of its threads.
  """
  return not (record.exc_info and f'{os.sep}orbax{os.sep}' in record.pathname)


def _tell_unraisable(fault, tell=sys.unraisablehook):
  """Python's hook, but for what follows from a write that failed.

  Orbax then closes its event loop while TensorStore's threads still report to
  it, and each of them prints a traceback.
  """
  if str(fault.exc_value) != 'Event loop is closed':
    tell(fault)


def silence():
  """For the whole process."""
  logging.getLogger('absl').addFilter(_is_news)
  sys.unraisablehook = _tell_unraisable
