"""Following a job on TPU VMs: its lines, its losses, its end."""

import json
import threading
import time

from t5x_lite.launch import calls
from t5x_lite.launch import gcloud
from t5x_lite.launch import leaving
from t5x_lite.launch import queueing
from t5x_lite.launch import vms

MOST = 16  # VMs whose logs are followed
LOOK = 30.0  # seconds between two looks at the TPUs
PAUSE = 5.0  # seconds before a lost connection is made anew
# gcloud tries for some minutes to connect; then worker.py is heard each 10 s.
SILENCE = gcloud.SSH_DEADLINE


STAYS_NOT = calls.Fault((), 'the job does not stay on a VM')


class Lost(Exception):
  """The VMs of a job are gone, or one of them for good: it says which."""


class Tail(threading.Thread):
  """Follows the log of one VM, and starts a job that died there.

  Attributes:
    vm: VM.
    status: the last one that was heard.
    heard: when that was.
    over: whether the job has ended there.
    fault: the error that ended the following, or None: a CallError, or an
      OSError of what its lines are shown by.
  """

  def __init__(self, vm, status, open_, bring, say, offset, most):
    """Starts following.

    Args:
      vm: VM.
      status: of its job.
      open_: makes the Stream of `worker.py follow`, given an offset.
      bring: starts the job there anew, and gives its status.
      say: prints a line of it.
      offset: of its log, at which to begin.
      most: times that the job is started there anew.
    """
    super().__init__(daemon=True, name=f'tail of {vm}')
    self.vm, self.status, self.over, self.fault = vm, status, False, None
    self.heard = time.monotonic()
    self._open, self._bring, self._say = open_, bring, say
    self._offset, self._stream = offset, None
    self._trials, self._most = 0, most
    self._ending, self._more = threading.Event(), threading.Event()
    self.start()

  def run(self):
    told = False  # that it does not answer
    while not self._ending.is_set():
      try:
        if self._follow():
          self.over = True
          self._more.wait()
          self._more.clear()
        else:
          self._restart()
        told = False
      except calls.CallError as e:
        if e.fault is gcloud.TERMINAL:
          return  # the next look tells more
        if e.fault and not e.fault.passes:
          self.fault = e
          return
        if not told and not self._ending.is_set():
          self._say(f'({self.vm}: {e.what}; trying until it answers)')
          told = True
      except OSError as e:  # such as of `| head`
        self.fault = e
        return
      self._ending.wait(PAUSE)

  def _follow(self):
    """Whether the job ended; False if it does not run there any more."""
    self._stream = self._open(self._offset)
    try:
      if self._ending.is_set():  # `close` may have missed it
        return True
      for line in self._stream:
        self.heard = time.monotonic()
        kind, text = line[:1], line[1:]
        if kind == '+':
          end, _, text = text.partition(' ')
          # gcloud tries again itself, by the same command.
          if int(end) > self._offset:
            self._offset = int(end)
            self._say(text)
        elif kind in ('=', '.'):
          self.status = json.loads(text)
          if kind == '.':
            return self.status['phase'] == 'ended'
    except calls.CallError as e:
      if e.fault is gcloud.ABSENT:
        return False
      raise
    finally:
      self._stream.close()
    raise calls.CallError('the connection ended')

  def _restart(self):
    """Starts the job anew, unless it was done too often already."""
    self._trials += 1
    if self._trials > self._most:
      error = calls.CallError(
        'the job does not stay on a VM',
        where=f'{self.vm}, rank {self.vm.rank}',
        got=f'started there {self._most + 1} times',
      )
      error.fault = STAYS_NOT
      raise error
    self._say(f'(the job does not run on {self.vm}: it is started there)')
    self.status = self._bring(self.vm)

  def again(self):
    """Starts a job again that is over, and follows it further."""
    self._say('(the others started again: so does this one)')
    self.status, self.over = self._bring(self.vm), False
    self._more.set()

  def close(self):
    self._ending.set()
    self._more.set()
    if self._stream is not None:
      self._stream.kill()


def followed(job, found):
  """The VMs whose logs are shown: all, or the first of each slice."""
  if len(found) <= MOST:
    return found
  return [vm for vm in found if vm.worker == 0]


def follow(job, found, statuses, bring, say):
  """Shows the lines of a job until it has ended on all VMs.

  Args:
    job: Job.
    found: its VMs.
    statuses: of the job on each; they say from where its logs are shown.
    bring: starts the job on a VM anew, and gives its status.
    say: prints a line.

  Returns:
    The statuses at the end.

  Raises:
    Lost: the VMs are gone.
    CallError: it can't be followed.
  """
  chosen = followed(job, found)
  if chosen != found:
    say(f'following {len(chosen)} of {len(found)} workers, one of each slice')
  saying = threading.Lock()

  def prefixed(vm):
    def tell(line):
      with saying:
        say(f'[{vm.rank}] {line}')

    return tell

  def opener(vm):
    return lambda offset: calls.Stream(
      vms.ssh(job, vm, 'follow', offset=offset),
      silence=SILENCE,
      faults=gcloud.SSH_FAULTS,
    )

  tails = [
    Tail(
      vm,
      statuses[vm.rank],
      opener(vm),
      bring,
      prefixed(vm),
      statuses[vm.rank].get('log', 0),
      job.spec.restarts,
    )
    for vm in chosen
  ]
  try:
    return _watch(job, found, tails, bring, say)
  except calls.CallError as e:
    if e.fault is not leaving.DELETED:
      e.add_note(
        f'{job.name} is left as it is, and not followed any more; t5x_lite'
        f' launch status {job.name}'
      )
    raise
  finally:
    for tail in tails:
      tail.close()
    for tail in tails:
      tail.join(timeout=10)


def _watch(job, found, tails, bring, say):
  """Looks after the VMs while their logs are shown."""
  told, heard, looks = None, dict.fromkeys(found, time.monotonic()), 0
  while True:
    for tail in tails:
      heard[tail.vm] = max(tail.heard, heard[tail.vm])
      if tail.fault is not None:
        raise tail.fault
    over = all(tail.over for tail in tails)
    # First: VMs that are taken after the job's end are no loss.
    if over or looks % 10 == 9:
      statuses = _ask_all(job, found, tails, bring, heard)
      if all(s and s['phase'] == 'ended' for s in statuses):
        return statuses
    if looks:
      told = _look(job, told, say)
      _check_heard(job, heard)
      _rejoin(tails)
    looks += 1
    until = time.monotonic() + (LOOK / 3 if over else LOOK)
    while time.monotonic() < until:
      time.sleep(0.1)
      if not over and all(tail.over or tail.fault for tail in tails):
        break
      if any(isinstance(tail.fault, OSError) for tail in tails):
        break


def _look(job, told, say):
  """Raises if the TPUs are gone; what kept it from looking, or None."""
  try:
    why = queueing.gone(job)
  except calls.CallError as e:
    if e.fault is leaving.DELETED:
      raise
    if told is None:
      say(f'cannot see how the TPUs are: {e.what}; the job goes on')
    return e.what
  if why:
    raise Lost(why)
  return None


def _check_heard(job, heard):
  """Raises Lost if a VM has not been heard of for too long."""
  for vm, when in heard.items():
    quiet = time.monotonic() - when
    if quiet > job.spec.arrival_timeout:
      raise Lost(
        f'{vm}, rank {vm.rank}, has not answered for {vms.span(quiet)},'
        ' although its TPU VM is not said to be gone'
      )


def _rejoin(tails):
  """Starts the job again where it is over, if others started again since.

  They would wait for it in vain; all is saved, so that it ends at once.
  """
  tries = [t.status.get('tried') or 0 for t in tails if not t.over]
  for tail in tails:
    ended = tail.status.get('ended')
    if tail.over and ended and tries and max(tries) > ended:
      tail.again()


def _ask_all(job, found, tails, bring, heard):
  """The status of each VM, or None; a job that died there is started again."""
  known = {tail.vm: tail.status for tail in tails if tail.over}

  def ask(vm):
    if vm in known:
      heard[vm] = time.monotonic()
      return known[vm]
    try:
      status = vms.ask(job, vm, 'status')
      if status['phase'] not in (*vms.RUNNING, 'ended'):
        status = bring(vm)
    except calls.CallError:
      return None
    heard[vm] = time.monotonic()
    return status

  return vms.each(found, ask)
