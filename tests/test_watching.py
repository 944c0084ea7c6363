"""What may end a training loop from outside."""

import subprocess
import sys
import time

import pytest

from t5x_lite import watching

STUCK = """
import time
from t5x_lite import watching

def read_a_slow_source():
  time.sleep(60)

with watching.Watchdog(0.5) as watchdog:
  for _ in range(8):
    time.sleep(0.2)
    watchdog.alive()
  print('alive')
  watchdog.pause()
  time.sleep(1)
  watchdog.alive()
  print('paused', flush=True)
  read_a_slow_source()
"""


def test_t5_127_a_run_that_stands_still_ends_and_shows_where():
  """t5#127: training on a pod stalled after 2,200 steps, without a word."""
  began = time.monotonic()
  done = subprocess.run(
    [sys.executable, '-c', STUCK], capture_output=True, text=True, timeout=60
  )
  assert time.monotonic() - began < 30
  assert done.returncode == 6
  assert done.stdout == 'alive\npaused\n'
  assert 'in read_a_slow_source' in done.stderr
  assert 'no step was finished, nor saved, in 0.5 s; fix:' in done.stderr
  assert done.stderr.rstrip().endswith('by --step_timeout')


def test_a_watchdog_ends_with_its_block(monkeypatch):
  monkeypatch.setattr(
    watching.Watchdog, '_end', lambda self: pytest.fail('ended')
  )
  with watching.Watchdog(0.1):
    pass
  time.sleep(0.5)
