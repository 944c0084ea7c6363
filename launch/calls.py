"""Calls of other programs: argument lists, deadlines, and tries that end."""

import contextlib
import dataclasses
import os
import select
import shlex
import signal
import subprocess
import tempfile
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
  """The lines that a program writes, as it writes them, until it ends.

  Iterating raises ConfigError or CallError as `run` does, once it has failed or
  was silent for too long; it is not tried again here.
  """

  def __init__(self, argv, *, silence, faults=()):
    """Starts the program.

    Args:
      argv: list: the program and its arguments; no shell sees it.
      silence: seconds without a line after which it is given up.
      faults: Faults that the program is known for.
    """
    self._argv, self._faults, self._silence = argv, faults, silence
    # A pipe that nobody reads would fill up.
    self._said = tempfile.TemporaryFile()  # noqa: SIM115
    try:
      self._process = subprocess.Popen(
        list(map(str, argv)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=self._said,
        start_new_session=True,  # Ctrl-C is for us
      )
    except FileNotFoundError:
      self._said.close()
      raise missing(argv[0]) from None

  def __iter__(self):
    out, rest = self._process.stdout.fileno(), b''
    while True:
      if not select.select([out], [], [], self._silence)[0]:
        self.kill()
        raise CallError(
          f'{self._argv[0]} was silent for {self._silence:g} s',
          got=shown(self._argv),
        )
      chunk = os.read(out, 1 << 16)
      *lines, rest = (rest + chunk).split(b'\n')
      if not chunk and rest:
        lines, rest = [rest], b''
      for line in lines:
        yield line.decode('utf-8', 'replace')
      if not chunk:
        break
    code = self._process.wait()
    if code:
      self._said.seek(0)
      said = self._said.read().decode('utf-8', 'replace')
      raise failed(self._argv, code, said, self._faults)[0]

  def kill(self):
    """Ends the program and what it started; what it wrote can still be read."""
    if self._process.poll() is None:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(self._process.pid, signal.SIGKILL)

  def close(self):
    self.kill()
    self._process.wait()
    self._process.stdout.close()
    self._said.close()


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
