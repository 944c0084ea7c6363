"""Contenders that take turns, so that all of them see the same machine.

Each is a process of its own, kept alive, that runs a few steps when it is told
to and waits otherwise. Speeds of a shared machine change from minute to minute;
the ratio within one round changes little.
"""

import json
import os
import statistics
import subprocess
import sys
import time

_STOP_SECONDS = 30
_PAUSE = 0.5  # seconds after which threads no longer wait in a loop
_THREADS = 'OMP_NUM_THREADS', 'MKL_NUM_THREADS', 'NPROC'  # the last is XLA's


class Contender:
  """A process that serves steps: see `serve`."""

  def __init__(self, name, command, cores):
    """Starts it.

    Args:
      name: what the table calls it.
      command: its argument list.
      cores: the processors it may use; one thread for each.
    """
    self.name, self.turns = name, []
    threads = {name: str(len(cores)) for name in _THREADS}
    self._process = subprocess.Popen(
      command,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      env=os.environ | threads,
      preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    self.about = self._read()

  def _read(self):
    line = self._process.stdout.readline()
    if not line:
      sys.exit(f'{self.name} ended with exit code {self._process.wait()}')
    return json.loads(line)

  def turn(self, steps):
    """Runs steps and keeps what they took."""
    self._process.stdin.write(f'{steps}\n')
    self._process.stdin.flush()
    self.turns.append(self._read())

  def stop(self):
    self._process.stdin.close()
    try:
      self._process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
      self._process.kill()


def serve(step, about):
  """A contender's main loop; what else it prints must go to stderr.

  Args:
    step: runs one step and returns a number that needs its result, a loss.
    about: what to tell of it before the first turn, JSON-able.
  """
  print(json.dumps(about), flush=True)
  for line in sys.stdin:
    time.sleep(_PAUSE)
    wall, cpu = time.perf_counter(), time.process_time()
    losses = [step() for _ in range(int(line))]
    spent = {
      'wall': time.perf_counter() - wall,
      'cpu': time.process_time() - cpu,
      'losses': losses,
    }
    print(json.dumps(spent), flush=True)


def play(contenders, rounds, steps):
  """Rounds of turns; who begins changes from round to round."""
  for n in range(rounds):
    first = n % len(contenders)
    for contender in contenders[first:] + contenders[:first]:
      contender.turn(steps)


def seconds(contender, clock, steps):
  """Seconds a step in each round, by the 'wall' or the 'cpu' clock."""
  return [turn[clock] / steps for turn in contender.turns]


def ratios(contender, ours, clock):
  """How many times our time it took in each round: (median, least, most)."""
  each = [
    theirs[clock] / own[clock]
    for theirs, own in zip(contender.turns, ours.turns)
  ]
  return statistics.median(each), min(each), max(each)


# -- batches of tokens --------------------------------------------------------


def cpu():
  """CPU seconds of this process and of those it has waited for."""
  return time.process_time() + sum(os.times()[2:4])


def text_tokens(sentinel_from, batch):
  """Tokens of text in a batch: all but padding, EOS and sentinels."""
  names = 'encoder_input_tokens', 'decoder_target_tokens'
  return sum(
    int(((batch[name] > 1) & (batch[name] < sentinel_from)).sum())
    for name in names
    if name in batch
  )


def serve_batches(batches, count, note='', first=20):
  """A contender's main loop, for a stream of batches without end.

  A turn's CPU time is counted from the end of the turn before it, as threads
  may work ahead in between.

  Args:
    batches: iterator of batches.
    count: batch -> tokens; only asked about the first, between no turns.
    note: what the table says of it.
    first: how many those are.
  """
  tokens = sum(count(next(batches)) for _ in range(first)) / first
  begin = cpu()
  for _ in range(first):
    next(batches)
  took = max((cpu() - begin) / first, 1e-6)

  def step():
    next(batches)
    return cpu()

  about = {'tokens': tokens, 'cpu': cpu(), 'took': took, 'note': note}
  serve(step, about)


def speeds(contender):
  """Tokens of a CPU second, in each turn of a contender of batches."""
  before, found = contender.about['cpu'], []
  for turn in contender.turns:
    spent = turn['losses'][-1] - before
    found.append(len(turn['losses']) * contender.about['tokens'] / spent)
    before = turn['losses'][-1]
  return found
