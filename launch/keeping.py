"""Keeping a job alive on TPU VMs: brought there, followed, brought anew."""

import json
import pathlib
import shutil
import tempfile
import time

from t5x_lite import errors
from t5x_lite.launch import calls
from t5x_lite.launch import following
from t5x_lite.launch import gcloud
from t5x_lite.launch import jobs
from t5x_lite.launch import leaving
from t5x_lite.launch import queueing
from t5x_lite.launch import shipping
from t5x_lite.launch import standing
from t5x_lite.launch import vms

_RETRIED = (6, 7, errors.PREEMPTED)


def keep(job, follow, say, again):
  """Brings a job to its VMs, and follows it, as often as they are lost."""
  while True:
    started = False
    try:
      found = queueing.acquire(job, say, again)
      statuses, bring = _start(job, found, say, again)
      started = True
      if not follow:
        say(f'{job.name} is launched; {leaving.ways(job)}')
        say(queueing.still_costs(job))
        return 0
      statuses = following.follow(job, found, statuses, bring, say)
      return _end(job, found, statuses, say)
    except following.Lost as e:
      why = str(e)
    except calls.CallError as e:
      if e.fault is not gcloud.TERMINAL:
        raise
      why = str(e)
    except KeyboardInterrupt:
      if started:
        leaving.left(job, say)
        say(queueing.still_costs(job))
      else:
        say(
          'nothing runs yet, but TPUs may be there or come, and cost money; the'
          f' same command goes on, t5x_lite launch delete {job.name} takes them'
          ' back'
        )
      return errors.INTERRUPTED
    _renew(job, why, say)
    again = True


def _renew(job, why, say):
  """Gives lost TPUs back, so that new ones are asked for."""
  queueing.gone(job)  # raises if somebody has deleted them
  count, limit = job.state.get('recreated', 0), job.spec.restarts
  if job.spec.tpu_vm.existing or count >= limit:
    many = (
      'it is a TPU VM of your own'
      if count < limit
      else (f'{limit} times it was started anew already')
    )
    raise calls.CallError(
      'the job has lost its VMs',
      got=f'{why}; {many}',
      fix='once they are back, the same command goes on from the last'
      ' checkpoint',
    )
  job.state['recreated'] = count + 1
  job.state.pop('asked', None)  # what was is taken away by us
  job.save()
  say(f'{why}; asking for new TPUs ({count + 1} of {limit})')
  queueing.release(job, say)


def _start(job, found, say, again):
  """Starts a job where it does not run yet.

  Args:
    job: Job.
    found: its VMs.
    say: prints a line.
    again: whether to start what ended badly once more.

  Returns:
    (the statuses, what brings a job to a VM anew).
  """
  digest = shipping.address(job, found[0].address)
  say(f'{len(found)} VMs are ready; coordinator {found[0].address}')

  def bring(vm):
    return vms.bring(job, vm, digest, say)

  statuses = vms.statuses(job, found, say)
  phases = {status['phase'] for status in statuses}
  if phases <= set(vms.RUNNING):
    say('it runs on all of them; its last line is')
    say(f'[0] {statuses[0]["last"]}')
    if any(status['digest'] != digest for status in statuses):
      say(f'(as it was launched before; first t5x_lite launch stop {job.name})')
    return statuses, bring
  same = all(status.get('digest') == digest for status in statuses)
  if phases == {'ended'} and (
    not again or (same and not any(status['code'] for status in statuses))
  ):
    return statuses, bring
  _check_ended(job, found, statuses, digest)
  if phases == {'ended'}:
    codes = {str(status['code']) for status in statuses}
    say(standing.replaced(job, f'code {", ".join(sorted(codes))}'))
  begun = time.time()
  statuses = vms.each(found, bring)
  say(f'started on all VMs in {vms.span(time.time() - begun)}')
  return statuses, bring


def _check_ended(job, found, statuses, digest):
  """Refuses to start a job on some VMs while others run it otherwise."""
  for vm, status in zip(found, statuses, strict=True):
    if status['phase'] in vms.RUNNING and status['digest'] != digest:
      raise errors.ConfigError(
        'the job still runs as it was launched before',
        where=str(vm),
        got=vms.shown(status),
        fix=f't5x_lite launch stop {job.name}, and the same command again',
      )


def _end(job, found, statuses, say):
  """Tells how a job ended, gives its TPUs back if asked; its exit code."""
  codes = {vm.rank: s['code'] for vm, s in zip(found, statuses, strict=True)}
  # One of them failed; of the others we know by what followed from it.
  bad = [r for r in codes if codes[r] and codes[r] not in _RETRIED] or [
    r for r in codes if codes[r]
  ]
  if bad:
    rank = bad[0]
    status = statuses[rank]
    say(f'{found[rank]}, rank {rank}: {vms.shown(status)}')
    say(f'{job.name} ended with code {codes[rank]}')
    say(queueing.still_costs(job))
    return codes[rank]
  say(f'{job.name} is done')
  if job.spec.delete_when_done and not job.spec.tpu_vm.existing:
    say('deleting its VMs')
    queueing.release(job, say)
    say('they are deleted; nothing costs money any more')
    forget(job)
  else:
    say(queueing.still_costs(job))
  return 0


# -- knowing -----------------------------------------------------------------


def find(job, say=None):
  """The VMs of a job that are there, or none of them."""
  said = queueing.nodes(job, say)
  if any(s is None or s.get('state') != 'READY' for s in said.values()):
    return []
  return vms.find(job, said)


def know(job, say):
  """Learns what a job runs, from its first VM if it isn't remembered here."""
  if job.command and shipping.is_made(job):
    return
  found = find(job, say)
  if not found:
    raise errors.ConfigError(
      'the job has no VMs, and its command is not remembered here',
      got=job.name,
      fix='give the command by which it was launched once more',
    )
  say(f'reading what it runs from {found[0]}')
  with tempfile.TemporaryDirectory() as made:
    folder = pathlib.Path(made) / job.name
    argv = gcloud.fetch(job.name, found[0].node, job.spec, folder)
    try:
      calls.run(argv, deadline=600, faults=gcloud.SSH_FAULTS)
      kept = json.loads((folder / 'job.json').read_text())
      command, config = kept['command'], kept['config']
      worker = folder / 'worker.py'
    except (calls.CallError, OSError, ValueError, LookupError) as e:
      raise errors.ConfigError(
        'there is no such job on the VMs', got=job.name, expected=str(e)
      ) from None
    if kept['name'] != job.name or not worker.is_file():
      raise errors.ConfigError('the VMs run another job', got=kept['name'])
    job.command, job.config = command, jobs.spec().to_dict() | config
    jobs.check(job.spec)
    job.save()
    for name in ('log.txt', 'status.json', 'lock'):
      (folder / name).unlink(missing_ok=True)
    with shipping.replaced(job.name) as target:
      shutil.copytree(folder, target, dirs_exist_ok=True)


def forget(job):
  shipping.remove(job)
  job.forget()
