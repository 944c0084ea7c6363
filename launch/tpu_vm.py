"""Jobs on TPU VMs of Google Cloud, through `gcloud`.

A queued resource of the job's name is asked for; once it is granted, a folder
is copied to each of its VMs, and worker.py started there, which keeps the
command running. So a job goes on without the machine that launched it. This
machine shows its lines, and asks for new TPUs when Google Cloud takes them.
"""

import re
import time

from t5x_lite import errors
from t5x_lite.launch import calls
from t5x_lite.launch import following
from t5x_lite.launch import gcloud
from t5x_lite.launch import jobs
from t5x_lite.launch import keeping
from t5x_lite.launch import plans
from t5x_lite.launch import queueing
from t5x_lite.launch import shipping
from t5x_lite.launch import standing
from t5x_lite.launch import vms

SHARED, UNREAD = (), ()
OWN = 'tpu_vm.wait', 'delete_when_done'
SAVING = 900.0  # seconds that a job may take to save and end
forget = keeping.forget
_PLACE = re.compile(r'[a-z][-a-z0-9]*', re.ASCII)


def check_place(config, accelerator):
  """Refuses a job spec by which no TPU VMs can be found.

  Raises:
    ConfigError: it names the field.
  """
  vm = config.tpu_vm
  if not accelerator.is_tpu:
    raise errors.ConfigError(
      'tpu_vm has TPUs only',
      where='--config.accelerator',
      got=accelerator.name,
      fix='t5x_lite launch slurm, or an accelerator such as v5e-16',
    )
  if not config.zone:
    raise errors.ConfigError(
      'no zone',
      fix='--config.zone=ZONE; `gcloud compute tpus locations list` shows them',
    )
  for where, value in (
    ('zone', config.zone),
    ('tpu_vm.existing', vm.existing),
  ):
    if value and not _PLACE.fullmatch(value):
      raise errors.ConfigError(
        'not a name of Google Cloud',
        where=f'--config.{where}',
        got=repr(value),
        expected='small letters, digits and -, such as us-west4-a',
      )
  if vm.existing and accelerator.slices > 1:
    raise errors.ConfigError(
      'one TPU VM has one slice',
      where='--config.tpu_vm.existing',
      got=f'{vm.existing} for {accelerator.slices} slices',
      fix='leave it out, so that the slices are asked for together',
    )


def check(config, accelerator):
  """Refuses a job spec that has not all that TPU VMs need.

  Raises:
    ConfigError: it names the field.
  """
  check_place(config, accelerator)
  vm = config.tpu_vm
  if not 0 < vm.port < 1 << 16:
    raise errors.ConfigError(
      'not a port', where='--config.tpu_vm.port', got=vm.port
    )
  shipping.check_wheel(config)


# -- what is done -------------------------------------------------------------


def plan(job):
  """The calls and files of `submit`, in their order.

  Those of one VM stand for those of all.
  """
  spec, found = job.spec, job.accelerator
  names = queueing.node_names(job)
  steps = []
  if not spec.tpu_vm.python and not spec.tpu_vm.wheel:
    steps.append(
      plans.Call(
        'make a wheel of a copy of this checkout',
        shipping.build_wheel('COPY', shipping.beside(job.name)),
      )
    )
  if not spec.tpu_vm.existing:
    steps += [
      plans.Call(
        f'ask for {found}, unless it was done before',
        gcloud.create(job.name, spec, found),
      ),
      plans.Call('wait until it is ACTIVE', gcloud.describe(job.name, spec)),
    ]
  steps += [
    plans.Call(
      'wait until the slice is READY, and learn the addresses of its VMs',
      gcloud.describe_node(node, spec),
    )
    for node in names
  ]
  steps.append(
    plans.File(
      'what each VM is to run',
      f'{shipping.home(job.name) / job.name}/job.json',
      shipping.job_text(job, 'ADDRESS_OF_RANK_0'),
    )
  )
  steps += [
    plans.File(
      'taken along',
      f'{shipping.home(job.name) / job.name}/files/{name}',
      f'{len(content):,} bytes',
    )
    for name, content in job.files.items()
  ]
  for n, node in enumerate(names):
    last = found.hosts - 1
    more = f'; likewise --worker=1 to {last}' if last else ''
    first = vms.VM(n * found.hosts, node, 0, '')
    ranks = f', --rank={first.rank + 1} to {first.rank + last}' if last else ''
    steps += [
      plans.Call(
        f'copy it to each VM{more}',
        gcloud.scp(shipping.home(job.name), node, 0, spec),
      ),
      plans.Call(
        f'start its process{more}{ranks}',
        vms.ssh(job, first, 'start', rank=first.rank),
      ),
    ]
  steps.append(
    plans.Call(
      'follow it',
      vms.ssh(job, vms.VM(0, names[0], 0, ''), 'follow', offset=0),
    )
  )
  return steps


def submit(job, follow, say):
  """Launches a job, or goes on with it.

  Args:
    job: Job; it is saved.
    follow: whether to stay until it has ended.
    say: prints a line.

  Returns:
    The exit code of the job; 0 if it is not followed.
  """
  if job.state.pop('deleted', None):  # and is wanted again
    job.save()
  shipping.make(job)  # before anything is asked for
  return keeping.keep(job, follow, say, again=True)


def watch(job, say):
  """Follows a job to its end, and starts it again where it must."""
  keeping.know(job, say)
  queueing.wanted(job)
  return keeping.keep(job, True, say, again=False)


# -- looking after it ---------------------------------------------------------


def where(job):
  """The zone and project of a Job, in words."""
  project = job.spec.project
  return job.spec.zone + (f' of {project}' if project else '')


def is_there(job, say):
  """Whether a queued resource, or a TPU VM of one's own, has the job."""
  if not job.spec.tpu_vm.existing:
    return queueing.request(job, say) is not None
  found = keeping.find(job, say)
  return any(vms.ask(job, vm, 'status', say) != vms.ABSENT for vm in found)


def stands(job, say=None):
  """The Standing of a Job, or None."""
  now = 'READY'
  if not job.spec.tpu_vm.existing:
    said = queueing.request(job, say)
    if said is None:
      return None
    now = queueing.state(said)
    if now in queueing.DEAD:
      return standing.Standing(now, is_live=False)
  found = keeping.find(job, say)
  if not found:
    return standing.Standing(now, False, queueing.FIXED)
  chosen = following.followed(job, found)
  phases = [
    s['phase'] for s in vms.each(chosen, lambda vm: vms.glance(job, vm))
  ]
  words = f'{now}, {", ".join(dict.fromkeys(phases))}'
  runs = not set(phases).isdisjoint(vms.RUNNING)
  return standing.Standing(words, runs, queueing.FIXED)


def clear(job, say):
  """Takes away a request that failed, which its next one may not find."""
  if not job.spec.tpu_vm.existing:
    said = queueing.request(job, say)
    if said is not None and queueing.state(said) in queueing.DEAD:
      say(standing.replaced(job, queueing.state(said)))
      queueing.release(job, say)


def status(job, say):
  """Tells how the TPUs and each process of a job are."""
  spec = job.spec
  if not spec.tpu_vm.existing:
    said = queueing.request(job, say)
    if said is None:
      say(f'{job.name}: no queued resource in {spec.zone}; it costs nothing')
      return
    now, why = queueing.state(said), queueing.reason(said)
    say(
      f'{job.name}: queued resource {now}{queueing.since(said)};'
      f' {queueing.MEANS.get(now, "")}' + (f': {why}' if why else '')
    )
  said = queueing.nodes(job, say)
  for name, node in said.items():
    health = (node or {}).get('healthDescription', '')
    state = node['state'] if node else 'not there'
    say(f'TPU VM {name}: {state}' + (f', {health}' if health else ''))
  found = keeping.find(job, say)
  if not found:
    return

  def ask(vm):
    try:
      return vms.shown(vms.ask(job, vm, 'status', say))
    except calls.CallError as e:
      return f'no answer: {e.what}'

  for vm, words in zip(found, vms.each(found, ask), strict=True):
    say(f'[{vm.rank}] {vm}: {words}')
  if job.state.get('recreated'):
    say(f'asked for new TPUs {job.state["recreated"]} times')
  say(queueing.still_costs(job))


def _need(job, say):
  """The VMs of a job, or a ConfigError that there are none."""
  found = keeping.find(job, say)
  if not found:
    raise errors.ConfigError(
      'the job has no VMs now',
      got=job.name,
      fix=f't5x_lite launch status {job.name}',
    )
  return found


def logs(job, say):
  """Shows what the processes printed, from the beginning."""
  found = _need(job, say)
  chosen = following.followed(job, found)
  if chosen != found:
    say(f'{len(chosen)} of {len(found)} workers, one of each slice')
  for vm in chosen:
    stream = calls.Stream(
      vms.ssh(job, vm, 'logs'),
      silence=gcloud.SSH_DEADLINE,
      faults=gcloud.SSH_FAULTS,
    )
    try:
      for line in stream:
        say(f'[{vm.rank}] {line}')
    finally:
      stream.close()


def stop(job, say):
  """Lets a job save and end; its VMs stay."""
  found = _need(job, say)
  statuses = vms.each(found, lambda vm: vms.ask(job, vm, 'stop', say))
  if any(status['phase'] in vms.RUNNING for status in statuses):
    say('asked to save and end')
  until = time.time() + SAVING
  while any(status['phase'] in vms.RUNNING for status in statuses):
    if time.time() > until:
      raise calls.CallError(
        f'it did not end within {vms.span(SAVING)}',
        fix=f't5x_lite launch delete {job.name} --force, which loses what'
        ' came after the last checkpoint',
      )
    time.sleep(following.PAUSE)
    statuses = vms.statuses(job, found, say)
  for vm, status in zip(found, statuses, strict=True):
    say(f'[{vm.rank}] {vms.shown(status)}')
  say('it is ended; its checkpoints are in its workdir')
  say(queueing.still_costs(job))


def delete(job, force, say):
  """Deletes the TPUs of a job, and forgets it."""
  if not force:
    _check_idle(job, say)
  if jobs.find(job.name):
    # First: who watches it would take this for a loss, and ask anew.
    job.state['deleted'] = time.time()
    try:
      job.save()
    except errors.StorageError as e:  # a full disk must not go on costing money
      say(f'(who watches the job is not told: {e})')
  if job.spec.tpu_vm.existing:
    say(f'{job.spec.tpu_vm.existing} was there before: it is not deleted')
  elif queueing.request(job, say) is None:
    say(f'there is no queued resource {job.name}; the job is forgotten')
  else:
    say(f'deleting queued resource {job.name} and its VMs')
    queueing.release(job, say)
    say('they are deleted; nothing costs money any more')
  keeping.forget(job)


def _check_idle(job, say):
  """Refuses to delete what still runs, or what can't be seen."""
  for vm in keeping.find(job, say):
    try:
      status = vms.ask(job, vm, 'status', say)
    except calls.CallError as e:
      raise errors.ConfigError(
        'cannot see whether the job still runs',
        where=str(vm),
        got=e.what,
        fix=f't5x_lite launch delete {job.name} --force',
      ) from None
    if status['phase'] in vms.RUNNING:
      raise errors.ConfigError(
        'the job still runs',
        got=f'{vm}: {vms.shown(status)}',
        fix=f't5x_lite launch stop {job.name}; or delete it by --force, which'
        ' loses what came after the last checkpoint',
      )
