"""Lines with a time stamp, taken as they come and never twice."""

import contextlib
import threading

from t5x_lite.launch import calls


class Stream(threading.Thread):
  """Takes the lines of a program, each after a time stamp, as they come.

  Attributes:
    last: the time stamp of the last line, with which to ask for what follows.
    ended_well: whether the program ended, and well.
    fault: the OSError of what takes the lines, or None.
  """

  def __init__(self, argv, take, since=None):
    """Starts it.

    Args:
      argv: list: the program and its arguments; no shell sees it.
      take: called with each line, from this thread.
      since: a time stamp; lines that are no later were taken before.
    """
    super().__init__(daemon=True)
    self.last, self.ended_well, self.fault = since, False, None
    self._lines, self._take = calls.Stream(argv, silence=None), take
    self.start()

  def run(self):
    with contextlib.closing(self._lines):
      try:
        for text in self._lines:
          stamp, _, line = text.partition(' ')
          if self.last is None or stamp > self.last:
            self.last = stamp
            self._take(line)
        self.ended_well = True
      except calls.CallError:
        pass  # it is asked again from there
      except OSError as e:  # such as of `| head`
        self.fault = e

  def end(self):
    """Ends it, whatever it does."""
    self._lines.kill()
    self.join(timeout=5)
