"""What runs on each VM of a job: it installs, starts and restarts the command.

It is copied there as it is, and run by whatever Python the VM has: standard
library only, Python 3.8 or later. Its folder holds all that a job needs:

  job.json         the same on all VMs
  files/           where the command starts
  *.whl            t5x_lite, with constraints.txt
  log.txt          what the command and the installation print
  status.json      how it is

python3 worker.py start --rank=3 | status | follow --offset=0 | logs | stop
"""

import argparse
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

FOLDER = pathlib.Path(__file__).resolve().parent
STATUS, LOG, LOCK = (
  FOLDER / name for name in ('status.json', 'log.txt', 'lock')
)
BEAT = 10.0  # seconds of silence after which `follow` says how it is
TAIL = 1 << 14  # bytes in which the last line of a log is looked for


def read_job():
  return json.loads((FOLDER / 'job.json').read_text(encoding='utf-8'))


# -- status -------------------------------------------------------------------


def write_status(**changes):
  """Changes the status, whole or not at all."""
  kept = read_status()
  kept.update(changes)
  part = STATUS.with_suffix('.part')
  part.write_text(json.dumps(kept), encoding='utf-8')
  os.replace(str(part), str(STATUS))
  return kept


def read_status():
  try:
    return json.loads(STATUS.read_text(encoding='utf-8'))
  except FileNotFoundError:
    return {}


def hold():
  """The lock of the job, which its supervisor and command hold; or None."""
  held = os.open(str(LOCK), os.O_RDWR | os.O_CREAT, 0o600)
  for _ in range(10):  # whoever looks takes it for a moment, too
    try:
      fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
      return held
    except OSError:
      time.sleep(0.05)
  os.close(held)
  return None


def is_held(lock=LOCK):
  """Whether a supervisor, or the command that it left, has the lock."""
  if not lock.exists():
    return False
  with lock.open('rb') as file:
    try:
      fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
      return True
  return False


def look():
  """The status, as it is told: with the last line of the log.

  The phase is new, installing, running, ended, or lost: of a job that neither
  runs nor ended, as after a restart of the VM.
  """
  # The lock is let go after the status is written: so it is looked at first.
  held = is_held()
  status = {'phase': 'new'}
  status.update(read_status())
  if status['phase'] in ('installing', 'running') and not held:
    status['phase'] = 'lost'
  status['digest'] = read_job()['digest']
  status['log'] = LOG.stat().st_size if LOG.exists() else 0
  status['last'] = last_line()
  return status


def last_line():
  if not LOG.exists():
    return ''
  with LOG.open('rb') as log:
    log.seek(max(LOG.stat().st_size - TAIL, 0))
    lines = log.read().decode('utf-8', 'replace').splitlines()
  return next((line for line in reversed(lines) if line.strip()), '')[:500]


# -- starting -----------------------------------------------------------------


def others():
  """The names of other jobs that run on this VM."""
  for folder in FOLDER.parent.iterdir():
    if folder != FOLDER and is_held(folder / 'lock'):
      yield folder.name


def start(rank):
  """Leaves a supervisor behind, unless one is there, and says how it is."""
  busy = sorted(others())
  if busy:
    sys.exit('worker: this VM runs another job, ' + ', '.join(busy))
  held = hold()
  if held is None:
    return dict(look(), already=True)
  if read_status().get('phase') == 'ended':
    note('started again')
  now = time.time()
  begin = LOG.stat().st_size if LOG.exists() else 0
  write_status(
    phase='installing',
    rank=rank,
    code=None,
    why=None,
    restarts=0,
    since=now,
    tried=now,
    ended=None,
    pid=None,
    child=None,
  )
  reader, writer = os.pipe()
  if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
      os.close(reader)
      supervise(rank, held, writer)  # does not return
    os._exit(0)
  os.close(writer)
  os.close(held)
  os.read(reader, 1)  # it is there, or gone
  os.wait()
  return dict(look(), log=begin)  # what comes now is of this start


def note(text):
  """Writes a line of our own into the log."""
  stamp = time.strftime('%Y-%m-%d %H:%M:%S')
  with LOG.open('a', encoding='utf-8') as log:
    log.write(f'worker {stamp}: {text}\n')


def supervise(rank, held, ready):
  """Installs, runs the command until it ends for good, and leaves."""
  code, why = 1, None
  try:
    with open(os.devnull) as null:
      os.dup2(null.fileno(), 0)
    with LOG.open('ab') as log:
      os.dup2(log.fileno(), 1)
      os.dup2(log.fileno(), 2)
    keeper = Keeper(rank, held)
    write_status(pid=os.getpid())
    os.write(ready, b'.')
    os.close(ready)
    code, why = keeper.run()
  except Exception as e:
    why = f'{type(e).__name__}: {e}'
  finally:
    if why:
      note(why)
    write_status(phase='ended', code=code, why=why, ended=time.time())
    os._exit(0)


class Keeper:
  """Runs one program after another, and hands SIGTERM on to it."""

  def __init__(self, rank, held):
    self.rank, self.held, self.job = rank, held, read_job()
    self.child, self.stopped = None, False
    signal.signal(signal.SIGTERM, self._stop)
    for number in (signal.SIGHUP, signal.SIGINT):
      signal.signal(number, signal.SIG_IGN)

  def _stop(self, *_):
    self.stopped = True
    if self.child is not None and self.child.poll() is None:
      self.child.terminate()

  def call(self, argv, **options):
    """The exit code of a program, as a shell would tell it."""
    # It holds the lock, too: were the supervisor killed, nobody would start
    # the command beside itself.
    self.child = subprocess.Popen(
      [str(word) for word in argv],
      stdin=subprocess.DEVNULL,
      pass_fds=[self.held],
      **options,
    )
    write_status(child=self.child.pid)
    if self.stopped:  # it came before there was a child
      self.child.terminate()
    code = self.child.wait()
    self.child = None
    return 128 - code if code < 0 else code

  def run(self):
    """(exit code, why it ended unless the command itself says it)."""
    job = self.job
    python = os.path.expanduser(job['python']) or self.install()
    if python is None:
      if self.stopped:
        return 143, 'stopped while it was installing'
      return 1, 'installing failed'
    place = []
    if job['process_count'] > 1:
      place = [
        '--coordinator_address=' + job['coordinator'],
        '--process_count={}'.format(job['process_count']),
        f'--process_index={self.rank}',
      ]
    argv = [python, '-m', 't5x_lite'] + job['arguments'] + place
    environment = dict(os.environ, PYTHONUNBUFFERED='1')
    environment.update(job['env'])
    (FOLDER / 'files').mkdir(exist_ok=True)
    first, most = job['pause']
    for restarts in range(job['restarts'] + 1):
      now = time.time()
      write_status(phase='running', restarts=restarts, tried=now)
      try:
        code = self.call(argv, cwd=str(FOLDER / 'files'), env=environment)
      except OSError as e:
        return 2, f'cannot start {python}: {e.strerror}'
      if self.stopped or code in job['final_codes']:
        return code, None
      if restarts == job['restarts']:
        return code, f'ended with code {code} after {restarts} restarts'
      pause = min(first * 2**restarts, most)
      note(
        'ended with code {}; restart {} of {} in {:g} s'.format(
          code, restarts + 1, job['restarts'], pause
        )
      )
      write_status(code=code, child=None)
      until = time.time() + pause
      while time.time() < until and not self.stopped:
        time.sleep(0.1)
      if self.stopped:
        return code, 'stopped before it was started again'
    raise AssertionError(job['restarts'])

  # -- installing -------------------------------------------------------------

  def install(self):
    """The Python of an environment that has the wheel; None if it failed."""
    wheel = FOLDER / self.job['wheel']
    pins = FOLDER / 'constraints.txt'
    digest = hashlib.sha256()
    for part in (
      wheel.read_bytes(),
      pins.read_bytes(),
      repr(self.job['needs']),
    ):
      digest.update(part if isinstance(part, bytes) else part.encode())
    home = pathlib.Path.home() / 't5x_lite_envs' / digest.hexdigest()[:16]
    python, done = home / 'bin' / 'python', home / 'installed'
    if done.exists():
      note('the environment is there already')
      return python
    begun = time.time()
    for trial in range(3):
      if trial and not self.stopped:
        note('installing again')
        time.sleep(min(5 * trial, self.job['pause'][1]))
      if self.stopped:
        return None
      if self._install(home, python, wheel, pins):
        done.touch()
        note(f'installed in {time.time() - begun:.0f} s')
        return python
    return None

  def _install(self, home, python, wheel, pins):
    uv = shutil.which('uv') or pathlib.Path.home() / '.local' / 'bin' / 'uv'
    if not os.path.exists(str(uv)):
      note('installing uv')
      # Some systems keep pip out unless told so; an old pip passes over it.
      allowed = dict(os.environ, PIP_BREAK_SYSTEM_PACKAGES='1')
      pip = [sys.executable, '-m', 'pip', 'install', '--user', 'uv']
      if self.call(pip, env=allowed):
        return False
    note('installing t5x_lite')
    shutil.rmtree(str(home), ignore_errors=True)
    home.parent.mkdir(exist_ok=True)
    version, extras = self.job['needs']
    needed = f't5x_lite[{extras}] @ {wheel.as_uri()}'
    install = [uv, 'pip', 'install', '--python', python]
    return not (
      self.call([uv, 'venv', '--python', version, home])
      or self.call(install + ['--constraint', pins, needed])
    )


# -- looking ------------------------------------------------------------------


def follow(offset):
  """Writes the log from a byte on, until the job has ended.

  Each line is told as `+END TEXT`, where END is the byte at which the next one
  begins, so that a reader knows what it has seen; `=STATUS` is told in silence,
  and `.STATUS` at the end.
  """
  out = sys.stdout
  spoke = time.time()
  out.write(f'={json.dumps(look())}\n')
  out.flush()
  while True:
    status = look()
    over = status['phase'] in ('ended', 'lost', 'new')
    with LOG.open('ab+') as log:
      log.seek(offset)
      for line in log:
        if not line.endswith(b'\n') and not over:
          break
        offset += len(line)
        text = line.decode('utf-8', 'replace').rstrip('\r\n')
        # One line of ours for each of theirs, whatever a carriage return did.
        out.write('+{} {}\n'.format(offset, text.replace('\r', ' ')))
        spoke = time.time()
    if over:
      out.write(f'.{json.dumps(status)}\n')
    elif time.time() - spoke > BEAT:
      out.write(f'={json.dumps(status)}\n')
      spoke = time.time()
    out.flush()
    if over:
      return
    time.sleep(0.2)


def stop():
  """Asks the command to save and end; the supervisor then leaves, too."""
  status = look()
  if status['phase'] in ('installing', 'running'):
    for pid in (status['pid'], status['child']):
      try:
        stat = pathlib.Path(f'/proc/{pid}/stat').read_text()
        if stat.rpartition(')')[2].split()[0] not in 'ZX':
          os.kill(pid, signal.SIGTERM)
          break
      except (FileNotFoundError, ProcessLookupError):
        pass  # the supervisor was killed: its child is asked
  return status


def main(argv=None):
  parser = argparse.ArgumentParser(prog='worker.py', description=__doc__)
  verbs = parser.add_subparsers(dest='verb')
  verbs.add_parser('start').add_argument('--rank', type=int, required=True)
  verbs.add_parser('follow').add_argument('--offset', type=int, default=0)
  for name in ('status', 'logs', 'stop'):
    verbs.add_parser(name)
  options = parser.parse_args(argv)
  if options.verb == 'follow':
    follow(options.offset)
  elif options.verb == 'logs':
    if LOG.exists():
      with LOG.open('rb') as log:
        shutil.copyfileobj(log, sys.stdout.buffer)
  elif options.verb == 'start':
    print(json.dumps(start(options.rank)))
  else:
    print(json.dumps({'status': look, 'stop': stop}[options.verb]()))


if __name__ == '__main__':
  try:
    main()
  except BrokenPipeError:  # whoever followed is gone
    os._exit(0)
