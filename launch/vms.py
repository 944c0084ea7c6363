"""The VMs of a job: each runs one process, by worker.py."""

import concurrent.futures
import dataclasses
import json
import time

from t5x_lite import errors
from t5x_lite.launch import answers
from t5x_lite.launch import calls
from t5x_lite.launch import gcloud
from t5x_lite.launch import shipping

AT_ONCE = 16  # calls of gcloud; each takes a second of a core
GLANCE = 60.0  # seconds for a look that is not tried again
PAUSE = 10.0  # seconds before the second try of a call
RUNNING = 'installing', 'running'
ABSENT = {'phase': 'absent'}  # the status of a VM that knows nothing of it


@dataclasses.dataclass(frozen=True)
class VM:
  """A VM of a job.

  Attributes:
    rank: of its process.
    node: the slice that it is in.
    worker: which of the slice it is.
    address: inside the network.
  """

  rank: int
  node: str
  worker: int
  address: str

  def __str__(self):
    return f'worker {self.worker} of {self.node}'


def find(job, nodes):
  """The VMs of a job, by rank.

  Args:
    job: Job.
    nodes: {name: what the Cloud TPU API says of a slice}, in their order.
  """
  found = []
  for name, said in nodes.items():
    endpoints = said.get('networkEndpoints', [])
    networks = max(len(said.get('networkConfigs', [])), 1)
    for worker, endpoint in enumerate(endpoints[::networks]):
      found.append(VM(len(found), name, worker, endpoint['ipAddress']))
  wanted = job.accelerator
  if len(found) != wanted.processes:
    names = ', '.join(nodes)
    raise errors.ConfigError(
      'the TPU VMs are not those of the job spec',
      where=names,
      got=f'{len(found)} hosts',
      expected=f'{wanted.processes}: {wanted}',
      fix='--config.accelerator',
    )
  return found


def ssh(job, vm, verb, **numbers):
  """The argv that runs worker.py on a VM."""
  return gcloud.ssh(vm.node, vm.worker, job.spec, job.name, verb, **numbers)


def _run(argv, vm, say, deadline=gcloud.SSH_DEADLINE):
  """calls.run of an argv for one VM, which its errors name."""
  try:
    return calls.run(
      argv,
      deadline=deadline,
      faults=gcloud.SSH_FAULTS,
      pause=PAUSE,
      say=(lambda line: say(f'{vm}: {line}')) if say else None,
    )
  except calls.CallError as e:
    named = e.at(f'{vm}, rank {vm.rank}')
    named.fault = e.fault
    raise named from None


def ask(job, vm, verb, say=None, **numbers):
  """The status that a verb of worker.py gives."""
  try:
    text = _run(ssh(job, vm, verb, **numbers), vm, say)
  except calls.CallError as e:
    if e.fault is gcloud.ABSENT:
      return ABSENT
    raise
  return answers.read(f'worker.py of {vm}', text, _status)


def glance(job, vm):
  """The status of a VM, if it can be had at once."""
  try:
    text = calls.run(
      ssh(job, vm, 'status'),
      deadline=GLANCE,
      faults=gcloud.SSH_FAULTS,
      tries=1,
    )
  except calls.CallError as e:
    if e.fault is gcloud.ABSENT:
      return ABSENT
    raise e.at(f'{vm}, rank {vm.rank}') from None
  return answers.read(f'worker.py of {vm}', text, _status)


def _status(text):
  status = json.loads(text.splitlines()[-1])
  status['phase']  # noqa: B018  it is one, or LookupError
  return status


def each(vms, act):
  """What `act(vm)` gives of each VM, in order.

  The first goes alone: it is with it that gcloud makes a key, if there is none.

  Raises:
    CallError: of the first one that failed, with the number of others.
  """
  if not vms:
    return []
  found, faults = [], []
  try:
    found.append(act(vms[0]))
  except calls.CallError as e:
    faults.append(e)
  with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
    for future in [pool.submit(act, vm) for vm in vms[1:]]:
      try:
        found.append(future.result())
      except calls.CallError as e:
        faults.append(e)
  if faults:
    if faults[1:]:
      faults[0].add_note(f'and {len(faults) - 1} more VMs failed')
    raise faults[0]
  return found


def statuses(job, vms, say=None):
  return each(vms, lambda vm: ask(job, vm, 'status', say))


def bring(job, vm, digest, say):
  """Copies the folder of a job to a VM that has another, and starts it."""
  status = ask(job, vm, 'status', say)
  if status['phase'] in RUNNING:
    return status
  if status.get('digest') != digest:
    argv = gcloud.scp(shipping.home(job.name), vm.node, vm.worker, job.spec)
    _run(argv, vm, say, gcloud.SSH_DEADLINE + 600)
  return ask(job, vm, 'start', say, rank=vm.rank)


def shown(status):
  """A status in a few words."""
  phase = status['phase']
  words = [{'absent': 'not there yet', 'lost': 'gone'}.get(phase, phase)]
  if phase == 'ended':
    words.append(f'with code {status["code"]}')
  if status.get('restarts'):
    words.append(f'restarts: {status["restarts"]}')
  if phase in RUNNING:
    words.append(f'for {span(time.time() - status["since"])}')
  if status.get('why'):
    words.append(status['why'])
  if status.get('last'):
    words.append(f'| {status["last"]}')
  return '  '.join(words)


def span(seconds):
  """A time as a person would say it."""
  seconds = max(int(seconds), 0)
  hours, minutes = seconds // 3600, seconds % 3600 // 60
  if hours:
    return f'{hours} h {minutes:02} min'
  return f'{minutes} min {seconds % 60:02} s' if minutes else f'{seconds} s'
