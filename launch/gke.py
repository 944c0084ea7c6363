"""Jobs on TPUs of a Kubernetes cluster, by kubectl and JobSet.

The cluster itself starts a job again, so that nothing is lost if the machine
that launched it is.
"""

import json
import time

from t5x_lite import errors
from t5x_lite.launch import beginning
from t5x_lite.launch import calls
from t5x_lite.launch import gke_check
from t5x_lite.launch import gke_cluster
from t5x_lite.launch import gke_manifest
from t5x_lite.launch import jobs
from t5x_lite.launch import leaving
from t5x_lite.launch import plans
from t5x_lite.launch import stamps
from t5x_lite.launch import standing

SHARED = ()
UNREAD = ('zone',)
OWN = ()
LOOK = 10.0  # seconds between two looks at the cluster
DRAIN = 20.0  # and until the last lines of a job that has ended are there
GONE = 600.0  # and until what is deleted is gone
SHOWN = 16  # ranks whose lines are shown; of more, the first of each slice

check, check_place = gke_check.check, gke_check.check_place
forget = jobs.Job.forget


def plan(job):
  """The manifest and the calls that start a Job."""
  manifest = plans.File(
    'given to kubectl on its standard input',
    'manifest.json',
    gke_manifest.make(job),
  )
  base = gke_cluster.kubectl(job)
  words = ['--request-timeout=60s', 'apply', '--server-side']
  # We alone own these fields, even what `launch stop` has set since.
  words += ['--force-conflicts', '--field-manager=t5x_lite', '--filename=-']
  return [
    manifest,
    plans.Call(
      'asks the cluster whether it would take it, and makes nothing',
      [*base, *words, '--dry-run=server'],
    ),
    plans.Call('makes it, or goes on with it', [*base, *words]),
  ]


def submit(job, follow, say):
  """Makes the JobSet of a Job, unless it is there, and follows it."""
  manifest, asked, made = plan(job)
  found = gke_cluster.find(job, say)
  if found and not found.is_over and found.state != 'Suspended':
    if not beginning.is_begun(job):
      _check_set(job, found)
    beginning.begin(job)
    say(standing.going_on(job, found.words))
  else:
    if found and found.is_over:
      say(standing.replaced(job, found.words))
      _delete_set(job, say)
    _apply(asked, manifest, say)
    with beginning.making(job):
      _apply(made, manifest, say)
    pods = job.accelerator.processes
    say(f'{job.name} is in the cluster: JobSet of {pods} pod{"s" * (pods > 1)}')
  if not follow:
    say(f'{job.name} is launched; {leaving.ways(job)}')
    return 0
  return watch(job, say)


def _check_set(job, found):
  """Refuses to go on with a set that is not remembered here, if it differs."""
  if found.digest != gke_manifest.digest(job):
    there = f'those of the JobSet in {where(job)}, as it is {found.words}'
    raise standing.unlike(job, 'another job spec, command or file', there)


def _apply(call, manifest, say):
  calls.run(
    call.argv,
    deadline=120,
    faults=gke_cluster.FAULTS,
    text=manifest.text,
    say=say,
  )


def where(job):
  """The cluster and namespace of a Job, in words."""
  asked = job.config['gke']
  context = f'context {asked["context"]}' * bool(asked['context'])
  return f'namespace {asked["namespace"]} of the {context or "current context"}'


def stands(job, say=None):
  """The Standing of a Job, or None."""
  found = gke_cluster.find(job, say)
  if found is None:
    return None
  is_live = not found.is_over and found.state != 'Suspended'
  return standing.Standing(found.words, is_live)


def is_there(job, say):
  """Whether the cluster has a JobSet of its name."""
  return gke_cluster.find(job, say) is not None


def clear(job, say):
  """Takes away what would stand in the way of another, which has ended."""
  found = gke_cluster.find(job, say)
  if found:
    say(standing.replaced(job, found.words))
    _delete_set(job, say)


def status(job, say):
  """Says how a Job is, and why those of its pods wait that do."""
  for line in _find(job, say).says(job.name, job.config['restarts']):
    say(line)


def logs(job, say):
  """Says what the pods of a Job have printed since its newest start."""
  found = _find(job, say)
  for pod in _shown(job, found):
    if pod.started:
      for line in gke_cluster.call(job, *_logs(pod), say=say).splitlines():
        say(f'[{pod.rank}] {line}')


def watch(job, say):
  """Says what the pods of a Job print, over restarts, until its end.

  Returns:
    The exit code of the job.
  """
  streams, said, found = {}, None, None
  try:
    while True:
      seen = found is not None
      found = calls.outlast(lambda: gke_cluster.find(job, say), say)
      if seen and found is None:
        raise leaving.deleted(job)
      found = found or _find(job, say)
      for pod in _shown(job, found):
        _follow(job, pod, streams, say)
      lines = found.says(job.name, job.config['restarts'])
      if lines != said:
        for line in lines:
          say(line)
        said = lines
      if found.state == 'Suspended':
        say('it is stopped: the same launch goes on with it')
        return errors.PREEMPTED
      if found.is_over:
        _drain(streams)
        return _end(job, found, say)
      time.sleep(LOOK)
  except KeyboardInterrupt:
    return leaving.left(job, say)
  finally:
    for stream in streams.values():
      stream.end()


def stop(job, say):
  """Lets the pods of a Job save and end; its JobSet stays, suspended."""
  found = _find(job, say)
  if found.is_over:
    say(f'{job.name} has ended: {found.state}')
    return
  if found.queue:  # Kueue alone suspends and resumes what is in its queues
    _delete_set(job, say)
    had = 'is' if found.state == 'Queued' else 'saved and is'
    say(f'{job.name} {had} out of the queue; the same launch goes on with it')
  else:
    patch = json.dumps({'spec': {'suspend': True}})
    gke_cluster.call(
      job, 'patch', 'jobset', job.name, '--type=merge', f'--patch={patch}',
      say=say,
    )  # fmt: skip
    say(f'{job.name} saves and ends; the same launch goes on with it')
  say('nodes cost money until their pool is scaled down or deleted')


def delete(job, force, say):
  """Deletes the JobSet and ConfigMap of a Job, and forgets it."""
  found = gke_cluster.find(job, say)
  if found and found.state in ('Pending', 'Running') and not force:
    running = [pod for pod in found.pods if pod.phase == 'Running']
    if running:
      raise errors.ConfigError(
        'the job runs',
        got=found.says(job.name, job.config['restarts'])[0],
        fix=f't5x_lite launch stop {job.name}, or delete --force',
      )
  if found:
    _delete_set(job, say)
  gke_cluster.call(
    job, 'delete', 'configmap', gke_manifest.files_name(job),
    '--ignore-not-found', say=say,
  )  # fmt: skip
  job.forget()
  say(f'{job.name} is deleted; its node pool, if it has one, is not')
  say('nodes cost money until their pool is scaled down or deleted')


def _delete_set(job, say):
  """Deletes a JobSet, and waits until its pods are gone, saved or not."""
  wait = [f'--timeout={GONE:.0f}s', '--cascade=foreground']
  argv = [*gke_cluster.kubectl(job), 'delete', 'jobset', job.name]
  calls.run(
    [*argv, *wait, '--ignore-not-found'],
    deadline=GONE + 60,
    faults=gke_cluster.FAULTS,
    say=say,
  )


def _end(job, found, say):
  if job.config['delete_when_done']:
    delete(job, True, say)
  return found.code


def _find(job, say):
  found = gke_cluster.find(job, say)
  if found is None:
    raise errors.DeviceError(
      f'the cluster has no JobSet named {job.name}',
      where=f'namespace {job.config["gke"]["namespace"]}',
      fix='t5x_lite launch gke starts it; see --config.gke.context too',
    )
  return found


def _shown(job, found):
  """The pods whose lines are shown."""
  hosts = job.accelerator.hosts
  few = job.accelerator.processes <= SHOWN
  return [pod for pod in found.pods if few or pod.rank % hosts == 0]


def _logs(pod):
  return ['logs', pod.name, f'--container={gke_manifest.CONTAINER}']


def _follow(job, pod, streams, say):
  """Starts to follow a pod, or goes on where its stream was cut."""
  stream = streams.get(pod.uid)
  if stream and stream.fault:
    raise stream.fault
  if not pod.started or (stream and (stream.is_alive() or stream.ended_well)):
    return
  words = [*_logs(pod), '--follow', '--timestamps']
  since = stream.last if stream else None
  if since:
    words.append(f'--since-time={since}')
  streams[pod.uid] = stamps.Stream(
    [*gke_cluster.kubectl(job), *words],
    lambda line, rank=pod.rank: say(f'[{rank}] {line}'),
    since,
  )


def _drain(streams):
  end = time.monotonic() + DRAIN
  while time.monotonic() < end and any(s.is_alive() for s in streams.values()):
    time.sleep(0.1)
