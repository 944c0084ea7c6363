"""The TPUs of a job: asked for, waited for, watched and given back."""

import datetime
import time

from t5x_lite import errors
from t5x_lite.launch import beginning
from t5x_lite.launch import calls
from t5x_lite.launch import gcloud
from t5x_lite.launch import jobs
from t5x_lite.launch import leaving
from t5x_lite.launch import vms

POLL = 15.0  # seconds between two looks while waiting
READY = 1800  # seconds that VMs may take to be ready, once they are given
GONE = 1800  # seconds that deleting may take
# Of a request for TPUs: it will not be what was asked for any more.
DEAD = 'FAILED', 'SUSPENDING', 'SUSPENDED', 'DELETING'
# Of a job spec: what a request for TPUs was made with.
FIXED = ('accelerator', 'slices', 'project', 'zone', 'capacity') + tuple(
  f'tpu_vm.{field}'
  for field in ('existing', 'runtime', 'service_account', 'network')
  + ('subnetwork', 'internal_ips')
)
# Of a TPU VM: it comes back by no other way than asking for new ones.
LOST = 'PREEMPTED', 'TERMINATED', 'STOPPING', 'STOPPED', 'DELETING', 'HIDDEN'
# Of those, what Google Cloud does, and not a person.
TAKEN = 'PREEMPTED', 'TERMINATED'
MEANS = {
  'CREATING': 'the request is looked at',
  'ACCEPTED': 'in the queue; it costs nothing yet',
  'WAITING_FOR_RESOURCES': 'in the queue; it costs nothing yet',
  'PROVISIONING': 'the VMs are made',
  'ACTIVE': 'the VMs are there, and cost money from now on',
  'SUSPENDING': 'the VMs are taken away',
  'SUSPENDED': 'the VMs were taken away; it costs nothing',
  'FAILED': 'it will get no VMs; it costs nothing',
  'DELETING': 'it is being deleted',
}


def request(job, say=None):
  """What the Cloud TPU API says of a job's request, or None."""
  return gcloud.ask(gcloud.describe(job.name, job.spec), say)


def state(said):
  return said.get('state', {}).get('state', 'STATE_UNSPECIFIED')


def reason(said):
  """Why a request is in its state, as far as the API tells it."""
  kept = said.get('state', {})
  for name, data in kept.items():
    error = data.get('error') if isinstance(data, dict) else None
    if name.endswith('Data') and isinstance(error, dict):
      return str(error.get('message', ''))
  if kept.get('stateInitiator') == 'SERVICE' and state(said) in DEAD:
    return 'Google Cloud took them back, as it may with spot capacity'
  return ''


def node_names(job):
  return gcloud.nodes(job.name, job.spec, job.accelerator)


def nodes(job, say=None):
  """{name: what the API says of it, or None} of a job's slices."""
  return {
    name: gcloud.ask(gcloud.describe_node(name, job.spec), say)
    for name in node_names(job)
  }


def bill(job):
  """What a job has that costs money, in words."""
  found = job.accelerator
  chips = f'{found.chips * found.slices} chips of {found.kind}'
  if job.spec.tpu_vm.existing:
    return f'{chips}, on a TPU VM of your own'
  return f'{chips}, {job.spec.capacity.replace("_", " ")}'


def still_costs(job):
  """A line that tells what goes on costing money, and how to end it."""
  if job.spec.tpu_vm.existing:
    return (
      f'{job.spec.tpu_vm.existing} stays, and costs money: {bill(job)}; it was'
      ' there before, and launch delete does not delete it'
    )
  return (
    f'the VMs stay, and cost money: {bill(job)}; to delete them: t5x_lite'
    f' launch delete {job.name}'
  )


def gone(job):
  """Why Google Cloud took the VMs of a job, or None.

  Raises:
    CallError: with the Fault DELETED: somebody took them.
  """
  own = job.spec.tpu_vm.existing
  if not own:
    wanted(job)
    said = request(job)
    if by_hand(said):
      raise deleted(job, said)
    if state(said) in DEAD:
      why = reason(said)
      return f'queued resource {state(said)}' + (f': {why}' if why else '')
  for name, said in nodes(job).items():
    now = said.get('state') if said else 'gone'
    if said is None or now in LOST:
      if own or now in TAKEN:
        return f'TPU VM {name} is {now}'
      # A VM that Google Cloud takes may be gone before its request says so.
      time.sleep(POLL)
      said = request(job)
      if by_hand(said) or state(said) not in DEAD:
        why = f'TPU VM {name} is {now}, not by Google Cloud'
        raise leaving.deleted(job, why)
      return f'queued resource {state(said)}'
  return None


def by_hand(said):
  """Whether a request is, or goes, away because somebody wanted it."""
  return (
    said is None
    or state(said) == 'DELETING'
    or (
      state(said).startswith('SUSPEND')
      and said['state'].get('stateInitiator') == 'USER'
    )
  )


def wanted(job):
  """Raises what `deleted` gives if another command has deleted the job."""
  kept = jobs.find(job.name)
  if kept is None or 'deleted' in kept.state:
    raise leaving.deleted(job, f't5x_lite launch delete {job.name} was given')


def deleted(job, said):
  """The CallError of a request that somebody took away."""
  now = 'gone' if said is None else state(said)
  why = f'the queued resource is {now}, and not by Google Cloud'
  return leaving.deleted(job, why)


# -- getting ------------------------------------------------------------------


def acquire(job, say, again=True):
  """The VMs of a job, once all are there; asks for them if it must.

  Args:
    job: Job.
    say: prints a line.
    again: whether to ask even if somebody has deleted what was asked for.

  Raises:
    CallError: they are refused, or do not come in time.
    ConfigError: they are not what the job spec says.
  """
  if job.spec.tpu_vm.existing:
    beginning.begin(job)
  else:
    said = request(job, say)
    if by_hand(said) and not again and 'asked' in job.state:
      raise deleted(job, said)
    if said and state(said) in DEAD:
      say(f'an earlier request is {state(said)}; it is deleted, and made anew')
      release(job, say)
      said = None
    if said is None:
      ask_for(job, say)
    else:
      beginning.begin(job)
      say(f'queued resource {job.name} is there')
    _wait(job, say)
  return vms.find(job, _ready(job, say))


def ask_for(job, say, begun=None):
  """Asks for the TPUs of a job; its time to wait began at `begun`, or now."""
  found = job.accelerator
  say(f'asking for {found} in {job.spec.zone}, {bill(job)}')
  wanted(job)
  job.state['asked'] = begun or time.time()
  job.state['valid'] = time.time() + 3600 * job.spec.tpu_vm.wait
  job.save()  # before anything is there that could cost money
  with beginning.making(job):
    gcloud.do(gcloud.create(job.name, job.spec, found), gcloud.EXISTS, say)
  try:
    wanted(job)
  except calls.CallError:
    # It was deleted while we asked, and may not have seen what we asked for.
    release(job, say)
    raise


def _wait(job, say):
  """Waits until the request is granted, and tells each change."""
  begun = job.state.setdefault('asked', time.time())
  limit = begun + 3600 * job.spec.tpu_vm.wait
  last = None
  while True:
    said = request(job, say)
    now = state(said) if said else 'gone'
    waited = vms.span(time.time() - begun)
    if now != last:
      say(f'queued resource: {now} after {waited}; {MEANS.get(now, "")}')
      last = now
    if now == 'ACTIVE':
      return
    late, lapsed = (
      time.time() > moment for moment in (limit, job.state.get('valid', limit))
    )
    if now == 'FAILED' and lapsed and not late:
      say('its time is over, but it may wait for longer now: it is made anew')
      release(job, say)
      ask_for(job, say, begun)
      continue
    if said is None or now in DEAD:
      raise refused(job, said)
    if late and now != 'PROVISIONING':
      raise calls.CallError(
        f'no TPUs within {job.spec.tpu_vm.wait} hours',
        where=f'queued resource {job.name}, {job.spec.zone}',
        got=f'{now}, which costs nothing',
        fix='the same launch command with a larger --config.tpu_vm.wait goes'
        f' on waiting; t5x_lite launch delete {job.name} takes it back',
      )
    time.sleep(POLL)


def refused(job, said):
  """The CallError of a request that ended without VMs."""
  where = f'queued resource {job.name}'
  if by_hand(said):
    return deleted(job, said)
  why = reason(said)
  error = calls.failed(['gcloud'], 1, why, gcloud.API_FAULTS)
  fix = error.fix if error.fault else f't5x_lite launch delete {job.name}'
  found = error.fault.what if error.fault else 'Google Cloud gives no TPUs'
  made = calls.CallError(
    found, where=where, got=f'{state(said)}: {why or "no reason"}', fix=fix
  )
  if state(said).startswith('SUSPEND'):
    made.fault = gcloud.TERMINAL  # they were there, and were taken
  return made


def _ready(job, say):
  """What the API says of the slices, once all are ready."""
  last, until = {}, time.time() + READY
  while True:
    said = nodes(job, say)
    now = {name: s['state'] if s else 'not there' for name, s in said.items()}
    for name, state_ in now.items():
      if state_ != last.get(name, 'READY'):
        say(f'TPU VM {name}: {state_}')
    last = now
    if all(state_ == 'READY' for state_ in now.values()):
      return said
    bad = [name for name in now if now[name] in LOST]
    missing = [name for name in now if now[name] == 'not there']
    if job.spec.tpu_vm.existing and missing:
      raise errors.ConfigError(
        'no such TPU VM',
        where='--config.tpu_vm.existing',
        got=f'{missing[0]} in {job.spec.zone}',
        fix=f'gcloud compute tpus tpu-vm list --zone={job.spec.zone}',
      )
    if bad or time.time() > until:
      name = (bad or [n for n in now if now[n] != 'READY'])[0]
      error = calls.CallError(
        'a TPU VM is not ready', where=name, got=now[name]
      )
      error.fault = gcloud.TERMINAL if bad else None
      raise error
    time.sleep(POLL)


# -- giving back --------------------------------------------------------------


def release(job, say):
  """Deletes the request and its VMs, and waits until they are gone."""
  said = request(job, say)
  if said is not None and state(said) != 'DELETING':
    gcloud.do(gcloud.delete(job.name, job.spec), gcloud.NOT_THERE, say)
  until = time.time() + GONE
  while request(job, say) is not None:
    if time.time() > until:
      raise calls.CallError(
        f'still there {vms.span(GONE)} after it was deleted',
        where=f'queued resource {job.name}',
        fix=f't5x_lite launch delete {job.name} --force, once more',
      )
    time.sleep(POLL)


def since(said):
  """How long ago a request was made, in words."""
  try:
    made = datetime.datetime.fromisoformat(said['createTime'][:19] + '+00:00')
  except (LookupError, ValueError):
    return ''
  seconds = time.time() - made.timestamp()
  return f', asked for {vms.span(seconds)} ago'
