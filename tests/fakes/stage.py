"""What fake programs share: state on disk, faults, and processes to end.

All of it lies in the folder that FAKE_CLOUD names. `faults.json` is a plan: the
name of a call to a list, of which each call takes the first, null for none;
`answers`: of a call, what it prints each time, instead of an answer; `workdir`:
of the run, whose moment events note; `absent`: a list of {restart, rank}, of
processes that are never there in a start.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import moments

ROOT = pathlib.Path(os.environ['FAKE_CLOUD'])


def read(name, default):
  file = ROOT / name
  return json.loads(file.read_text()) if file.exists() else default


def _write(name, value):
  new = ROOT / f'{name}.{os.getpid()}'
  new.write_text(json.dumps(value, indent=1))
  new.replace(ROOT / name)


@contextlib.contextmanager
def state(name, default):
  """State to be changed, while no other process does."""
  with (ROOT / 'lock').open('w') as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    value = read(name, default)
    yield value
    _write(name, value)


def log_call(argv):
  with (ROOT / 'calls.jsonl').open('a') as f:
    f.write(json.dumps([os.path.basename(argv[0]), *argv[1:]]) + '\n')


def fault(call):
  """The next fault planned for a call, or None."""
  with state('faults.json', {}) as plan:
    waiting = plan.get(call) or []
    return waiting.pop(0) if waiting else None


def answer(call):
  """Prints what is planned for a call to say instead, and ends well."""
  waiting = plan('answers', {}).get(call)
  if waiting is not None:
    print(waiting)
    sys.exit(0)


def plan(name, default=None):
  return read('faults.json', {}).get(name, default)


def fail(text, code=1):
  print(text, file=sys.stderr)
  sys.exit(code)


def background(argv, **options):
  """A process in a session of its own, which `end_all` knows."""
  process = subprocess.Popen(
    argv, start_new_session=True, stdin=subprocess.DEVNULL, **options
  )
  with (ROOT / 'groups').open('a') as f:
    f.write(f'{process.pid}\n')
  return process


def happened(event, started, log):
  """The moment for an event: after seconds, at a line, in a save or in none."""
  if time.monotonic() - started < event.get('after', 0):
    return None
  if 'log' in event:
    text = log.read_text(errors='replace') if log.exists() else ''
    if not re.search(event['log'], text[event.get('from', 0) :], re.M):
      return None
  found = moment()
  return found if event.get('in_save') in (None, found['saving']) else None


def absent(restart):
  """The ranks that are never there in a start; it is an event if any are."""
  planned = [e for e in plan('absent', []) if e['restart'] == restart]
  if planned:
    log_event('absent', moment())
  return [e['rank'] for e in planned]


def moment():
  """What the run has now."""
  return moments.read(plan('workdir', '/nowhere'))


def log_event(name, found):
  """Notes that an event comes, and what the run has by then."""
  log_call(['event', name, found])
