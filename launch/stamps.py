"""Lines with a time stamp, taken as they come and never twice."""

import subprocess
import threading

from t5x_lite.launch import calls


class Stream:
  """A program whose lines, each after a time stamp, are taken as they come.

  Attributes:
    last: the time stamp of the last line, with which to ask for what follows.
  """

  def __init__(self, argv, take, since=None):
    """Starts it.

    Args:
      argv: list: the program and its arguments; no shell sees it.
      take: called with each line, from another thread.
      since: a time stamp; lines that are no later were taken before.
    """
    self.last = since
    self._process = calls.start(
      argv,
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
      encoding='utf-8',
      errors='replace',
    )
    self._thread = threading.Thread(target=self._read, args=[take], daemon=True)
    self._thread.start()

  def _read(self, take):
    with self._process.stdout as lines:
      for text in lines:
        stamp, _, line = text.rstrip('\n').partition(' ')
        if self.last is None or stamp > self.last:
          self.last = stamp
          take(line)

  @property
  def runs(self):
    return self._process.poll() is None or self._thread.is_alive()

  @property
  def ended_well(self):
    return self._process.poll() == 0

  def end(self):
    """Ends it, whatever it does."""
    self._process.kill()
    self._process.wait()
    self._thread.join(timeout=5)
