"""What may end a training loop from outside: signals, and standing still."""

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time

from t5x_lite import errors
from t5x_lite import processes


class StopSignals:
  """Notes SIGINT and SIGTERM, so that the loop can save and leave.

  Before the loop there is nothing to save, and a second signal will not wait
  for it: both leave at once, and what was saved before stays whole. (An
  exception could be lost, if it came while the interpreter runs a callback.)
  """

  EXIT_CODES = {
    signal.SIGINT: errors.INTERRUPTED,
    signal.SIGTERM: errors.PREEMPTED,
  }

  def __enter__(self):
    self.received, self.in_loop = None, False
    self._old = {s: signal.signal(s, self._note) for s in self.EXIT_CODES}
    return self

  def __exit__(self, *_):
    for number, handler in self._old.items():
      signal.signal(number, handler)

  def _note(self, number, _):
    if self.received or not self.in_loop:
      os._exit(self.EXIT_CODES[number])
    self.received = signal.Signals(number).name


class Watchdog:
  """Ends a process that stands still, and shows where each thread stands.

  A collective whose peer is stuck, or a source of data that hangs, else waits
  for ever without a word.
  """

  def __init__(self, seconds):
    """Watches from `with` on; call `alive` at each step."""
    self._seconds = seconds
    self._ended = threading.Event()
    self.alive()

  def alive(self):
    self._last = time.monotonic()

  def pause(self):
    """Until `alive` is called again."""
    self._last = float('inf')

  def __enter__(self):
    threading.Thread(target=self._watch, daemon=True).start()
    return self

  def __exit__(self, *_):
    self._ended.set()

  def _watch(self):
    while not self._ended.wait(min(1.0, self._seconds / 4)):
      if time.monotonic() - self._last > self._seconds:
        self._end()

  def _end(self):
    error = errors.DeviceError(
      f'no step was finished, nor saved, in {self._seconds:g} s',
      fix='see above where each thread of each process stands; if steps are'
      ' that slow, allow more by --step_timeout',
    )
    with contextlib.suppress(OSError):
      sys.stdout.flush()
    faulthandler.dump_traceback(sys.__stderr__)
    if processes.count() > 1:
      time.sleep(3)  # for the others to show the same
    processes.fail(error, str(error))
    with contextlib.suppress(OSError):
      print(f't5x_lite: {error}', file=sys.stderr, flush=True)
    os._exit(error.exit_code)
