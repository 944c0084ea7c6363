"""Calls of other programs: argument lists, deadlines, and tries that end."""

import dataclasses
import shlex
import subprocess
import threading
import time

from t5x_lite import errors


@dataclasses.dataclass(frozen=True)
class Fault:
  """A way in which a program fails.

  Attributes:
    words: any of which its words contain, whatever the case.
    what: it means, in a few words.
    fix: one action that mends it.
    passes: whether to try again.
  """

  words: tuple[str, ...]
  what: str
  fix: str | None = None
  passes: bool = False


class CallError(errors.DeviceError):
  """A call that failed.

  Attributes:
    fault: the Fault, if it is a known one.
    passes: whether it might go well the next time.
  """

  fault = None
  passes = False


def shown(argv):
  """A call as it could be given to a shell."""
  return shlex.join(map(str, argv))


def run(argv, *, deadline, faults=(), tries=3, pause=5.0, text=None, say=None):
  """What a program writes to its standard output.

  Args:
    argv: list: the program and its arguments; no shell sees it.
    deadline: seconds for each try.
    faults: Faults that the program is known for; the first that fits counts.
    tries: of what may pass, and of a try that took too long.
    pause: seconds before the second try; twice as many before the next.
    text: for its standard input, or None.
    say: told of each try that failed, in a line.

  Raises:
    ConfigError: there is no such program.
    CallError: it failed.
  """
  for n in range(tries):
    try:
      done = subprocess.run(
        list(map(str, argv)),
        input=text,
        stdin=subprocess.DEVNULL if text is None else None,
        capture_output=True,
        encoding='utf-8',
        errors='replace',
        timeout=deadline,
        start_new_session=True,  # Ctrl-C is for us
      )
    except FileNotFoundError:
      raise missing(argv[0]) from None
    except subprocess.TimeoutExpired:
      error = CallError(
        f'{argv[0]} did not end within {deadline:g} s', got=shown(argv)
      )
      passes = True
    else:
      if done.returncode == 0:
        return done.stdout
      error, passes = failed(argv, done.returncode, done.stderr, faults)
    error.passes = passes
    if not passes or n + 1 == tries:
      raise error
    if say:
      say(f'{error.what}; trying again ({n + 2} of {tries})')
    time.sleep(pause * 2**n)
  raise AssertionError(tries)


def outlast(ask, say, seconds=3600.0, pause=30.0):
  """What `ask()` returns, once what may pass has passed.

  For those who watch a job for days, and would not lose sight of it because a
  network is away for some minutes.

  Args:
    ask: makes calls.
    say: told that they fail, once.
    seconds: after which the error is raised after all.
    pause: seconds between two tries.
  """
  deadline, told = time.monotonic() + seconds, False
  while True:
    try:
      return ask()
    except CallError as e:
      if not e.passes or time.monotonic() > deadline:
        raise
      if not told:
        say(f'{e.what}: the job goes on, and is asked for again')
      told = True
      time.sleep(pause)


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
    self._process = subprocess.Popen(
      list(map(str, argv)),
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
      encoding='utf-8',
      errors='replace',
      start_new_session=True,
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


def missing(program):
  return errors.ConfigError(
    f'there is no program {program} here',
    fix='install it, and put it on your path',
  )


def failed(argv, code, said, faults):
  """(the CallError of a call that failed, whether it may pass)."""
  lowered = said.lower()
  lines = [line.strip() for line in said.splitlines() if line.strip()]
  last = ' '.join(lines[-4:])
  for fault in faults:
    if any(word.lower() in lowered for word in fault.words):
      got = last or f'exit code {code}'
      error = CallError(fault.what, got=got, fix=fault.fix)
      error.fault = fault
      return error, fault.passes
  name = ' '.join(str(word) for word in argv[:4])
  error = CallError(f'{name} failed', got=last or f'exit code {code}')
  return error, False
