"""Makes parts of a store in several processes of this machine."""

import contextlib
import multiprocessing
from multiprocessing import connection
from multiprocessing import resource_tracker
import os
import signal
import threading
import traceback

from t5x_lite import errors
from t5x_lite.data import making

_GOING = 5.0  # seconds that a process gets to end


def cores():
  """How many this process may use."""
  return len(os.sched_getaffinity(0))


def here(job, todo, told):
  """Makes parts in this process, one after the other.

  Args:
    job: making.Job.
    todo: list of (number, partition.Part).
    told: called with the number of a part, its tokens and bytes so far, and
      whether it is done.
  """
  for number, part in todo:
    last = 0, part.bytes

    def tell(tokens, taken, number=number):
      nonlocal last
      last = tokens, taken
      told(number, tokens, taken, False)

    making.make(job, number, part, tell)
    told(number, last[0], part.bytes, True)


def several(count):
  """As `here`, in so many processes."""

  def run(job, todo, told):
    with _workers(count, job) as pipes:
      _share(pipes, todo, told)

  return run


@contextlib.contextmanager
def _deaf():
  """Processes that start here never hear Ctrl-C: who starts them ends them.

  Here signals wait, also those that another thread meets: a process that is
  half started, and told no more, would complain.
  """
  resource_tracker.ensure_running()  # it lets Ctrl-C in when it starts
  came, main = [], threading.current_thread() is threading.main_thread()
  kinds = (signal.SIGINT, signal.SIGTERM) if main else ()
  old = {
    kind: signal.signal(kind, lambda number, _: came.append(number))
    for kind in kinds
  }
  mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
  try:
    yield
  finally:
    for kind, handler in old.items():
      signal.signal(kind, handler)
    for number in came:
      signal.raise_signal(number)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextlib.contextmanager
def _workers(count, job):
  """{pipe: process} of processes that were given a job; ends them."""
  context = multiprocessing.get_context('spawn')
  started = {}
  try:
    with _deaf():
      for _ in range(count):
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        started[ours] = process
    for pipe in started:
      with contextlib.suppress(OSError):  # one that died is told of below
        pipe.send(job)
    yield started
  finally:
    for process in started.values():
      process.terminate()
    for pipe, process in started.items():
      process.join(_GOING)
      if process.is_alive():
        process.kill()
        process.join()
      pipe.close()


def _share(workers, todo, told):
  """Gives each process a part whenever it is free, until all are made."""
  left, busy = list(reversed(todo)), {}
  sentinels = {process.sentinel: pipe for pipe, process in workers.items()}

  def give(pipe):
    if left:
      busy[pipe] = left.pop()
      pipe.send(busy[pipe])
    else:
      del busy[pipe]

  for pipe in workers:
    if left:
      busy[pipe] = None
      with contextlib.suppress(OSError):
        give(pipe)
  while busy:
    for ready in connection.wait([*busy, *sentinels]):
      pipe = sentinels.get(ready, ready)
      if pipe not in busy:
        if ready in sentinels:
          del sentinels[ready]  # it was idle
        continue
      number, part = busy[pipe]
      try:
        if not pipe.poll():
          raise EOFError
        kind, *what = pipe.recv()
      except (EOFError, OSError):
        raise _died(workers[pipe], part) from None
      if kind == 'failed':
        raise what[0]
      if kind == 'crashed':
        raise RuntimeError(f'in a process that makes parts:\n{what[0]}')
      tokens, taken, done = what
      told(number, tokens, part.bytes if done else taken, done)
      if done:
        give(pipe)


def _died(process, part):
  process.join(_GOING)
  code = process.exitcode
  if code is not None and code < 0:
    code = signal.Signals(-code).name
  return errors.DeviceError(
    'process that tokenises ended before its part',
    where=part.pieces[0][0],
    got=code,
    fix='free some memory, or use fewer processes: t5x_lite cache --workers=1. '
    'A script that starts it needs `if __name__ == "__main__":`',
  )


def _serve(pipe):
  """What a process does: it makes the parts that it is given."""
  signal.signal(signal.SIGTERM, signal.SIG_DFL)
  os.environ.setdefault('RAYON_NUM_THREADS', '1')  # tokenizers' own threads
  with contextlib.suppress(EOFError, OSError):  # it has gone
    try:
      job = pipe.recv()
    except errors.UserError as e:  # as of a module that is not found here
      pipe.send(('failed', e))
      return
    while True:
      number, part = pipe.recv()
      _make(pipe, job, number, part)


def _make(pipe, job, number, part):
  last = 0

  def tell(tokens, taken):
    nonlocal last
    last = tokens
    pipe.send(('told', tokens, taken, False))

  try:
    making.make(job, number, part, tell)
  except (errors.UserError, OSError) as e:
    if isinstance(e, BrokenPipeError):
      raise
    pipe.send(('failed', e))
  except MemoryError:
    pipe.send(('failed', errors.DataError('not enough memory')))
  except Exception:  # whatever it is, it is told where it can be seen
    pipe.send(('crashed', traceback.format_exc()))
  else:
    pipe.send(('told', last, part.bytes, True))
