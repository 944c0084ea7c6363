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
      code, out, said = _once(argv, deadline, text)
    except subprocess.TimeoutExpired:
      error = CallError(
        f'{argv[0]} did not end within {deadline:g} s', got=shown(argv)
      )
      error.passes = True
    else:
      if code == 0:
        return out
      error = failed(argv, code, said, faults)
    if not error.passes or n + 1 == tries:
      raise error
    if say:
      say(f'{error.what}; trying again ({n + 2} of {tries})')
    time.sleep(pause * 2**n)
  raise AssertionError(tries)


def _once(argv, deadline, text):
  """(exit code, standard output, standard error) of a program.

  What it started ends with it if it takes too long.
  """
  with start(
    argv,
    stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    encoding='utf-8',
    errors='replace',
  ) as process:
    try:
      out, said = process.communicate(text, deadline)
    except BaseException:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
      raise
    return process.returncode, out, said


def start(argv, **options):
  """A subprocess.Popen of an argument list, which Ctrl-C does not reach."""
  try:
    return subprocess.Popen(
      list(map(str, argv)), start_new_session=True, **options
    )
  except FileNotFoundError:
    raise errors.ConfigError(
      f'there is no program {argv[0]} here',
      fix='install it, and put it on your path',
    ) from None
  except PermissionError:
    raise errors.ConfigError(
      f'the program {argv[0]} may not be run',
      fix='make it executable, or put the right one first on your path',
    ) from None


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
      silence: seconds without a line after which it is given up, or None.
      faults: Faults that the program is known for.
    """
    self._argv, self._faults, self._silence = argv, faults, silence
    # A pipe that nobody reads would fill up.
    self._said = tempfile.TemporaryFile()  # noqa: SIM115
    self._process = start(
      argv,
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=self._said,
    )

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
      raise failed(self._argv, code, said, self._faults)

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


def failed(argv, code, said, faults):
  """The CallError of a call that failed.

  The first Fault that has any of its words in what was said counts; words with
  a capital, such as codes, match as they are, others whatever the case.
  """
  lines = [line.strip() for line in said.splitlines() if line.strip()]
  got = ' '.join(lines[-4:]) or f'exit code {code}'
  for fault in faults:
    if any(
      word in (said if word != word.lower() else said.lower())
      for word in fault.words
    ):
      error = CallError(fault.what, got=got, fix=fault.fix)
      error.fault, error.passes = fault, fault.passes
      return error
  return CallError(' '.join(map(str, argv[:4])) + ' failed', got=got)
