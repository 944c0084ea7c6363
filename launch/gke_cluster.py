"""What a Kubernetes cluster says of a job, by kubectl."""

import dataclasses
import functools
import json

from t5x_lite import errors
from t5x_lite.launch import answers
from t5x_lite.launch import calls
from t5x_lite.launch import gke_manifest
from t5x_lite.launch import jobs

_SET = 'jobset.sigs.k8s.io'
FAULTS = (
  calls.Fault(
    ('localhost:8080',),
    'kubectl knows no cluster',
    'gcloud container clusters get-credentials CLUSTER --location=LOCATION',
  ),
  calls.Fault(
    ('context was not found', 'does not exist for context', 'no context exists')
    + ('error: context',),
    'kubectl has no such context',
    '--config.gke.context=NAME; kubectl config get-contexts lists them',
  ),
  calls.Fault(
    ('must be logged in', 'unauthorized', 'gke-gcloud-auth-plugin')
    + ('reauthentication',),
    'the cluster does not know who you are',
    'gcloud auth login, then gcloud container clusters get-credentials',
  ),
  calls.Fault(
    ('exceeded quota',),
    'a quota of the namespace is used up',
    'kubectl describe quota shows it; ask who runs the cluster for more',
  ),
  calls.Fault(
    ('forbidden',),
    'you may not do this in the cluster',
    'ask for create, get, list, patch and delete of jobsets.jobset.x-k8s.io,'
    ' configmaps, pods and pods/log',
  ),
  calls.Fault(
    ('no matches for kind "jobset"', "doesn't have a resource type"),
    'the cluster has no JobSet',
    'kubectl apply --server-side -f https://github.com/kubernetes-sigs/jobset/'
    'releases/download/v0.10.1/manifests.yaml',
  ),
  calls.Fault(
    ('unknown field',),
    "the cluster's JobSet is too old",
    'install 0.10 or later: kubectl apply --server-side -f https://github.com/'
    'kubernetes-sigs/jobset/releases/download/v0.10.1/manifests.yaml',
  ),
  calls.Fault(
    ('is immutable',),
    'a JobSet of this name is there, with another spec',
    'another --name; or t5x_lite launch delete NAME',
  ),
  calls.Fault(
    ('namespaces "',),
    'there is no such namespace',
    '--config.gke.namespace=NAME; kubectl get namespaces lists them',
  ),
  calls.Fault(
    ('unable to connect', 'connection refused', 'i/o timeout', 'tls handshake')
    + ('no route to host', 'connection to the server', 'etcdserver'),
    'the cluster does not answer',
    'see whether it is there, and your network: kubectl cluster-info',
    passes=True,
  ),
)
# Why a container waits; what it means and what to do.
_WAITS = {
  'ImagePullBackOff': 'the image cannot be read: --config.gke.image, and the'
  " node pool's right to read it",
  'ErrImagePull': 'the image cannot be read: --config.gke.image, and the'
  " node pool's right to read it",
  'InvalidImageName': 'the image has no valid name: --config.gke.image',
  'CreateContainerConfigError': 'something that it mounts is not there',
}
_UNSCHEDULABLE = (
  'no node takes it: is there a node pool of this TPU and topology, and has it'
  ' capacity?'
)


def kubectl(job):
  """The beginning of each call."""
  asked = job.config['gke']
  context = [f'--context={asked["context"]}'] if asked['context'] else []
  return ['kubectl', *context, f'--namespace={asked["namespace"]}']


def call(job, *words, say=None, text=None):
  """What a call of kubectl prints."""
  return calls.run(
    [*kubectl(job), '--request-timeout=60s', *words],
    deadline=120,
    faults=FAULTS,
    say=say,
    text=text,
  )


@dataclasses.dataclass(frozen=True)
class Pod:
  """One process of a job.

  Attributes:
    name: of the pod.
    uid: that no other pod has, even of the same name.
    rank: of the process.
    phase: Pending, Running, Succeeded or Failed.
    started: whether its container has.
    why: it waits or failed, or ''.
    code: its exit code, if it has ended.
    ended: when, as text that sorts.
  """

  name: str
  uid: str
  rank: int
  phase: str
  started: bool
  why: str
  code: int | None
  ended: str


@dataclasses.dataclass(frozen=True)
class Found:
  """A JobSet as the cluster shows it.

  Attributes:
    state: Pending, Queued, Running, Suspended, Completed or Failed.
    why: the message of that, or ''.
    restarts: how often it was started again.
    counted: of these, how many count towards the limit.
    pods: of its newest start, by rank.
    queue: of Kueue, in which it is or was, or ''.
    digest: of the manifest that it was made by, or ''.
  """

  state: str
  why: str
  restarts: int
  counted: int
  pods: tuple[Pod, ...]
  queue: str = ''
  digest: str = ''

  @property
  def is_over(self):
    return self.state in ('Completed', 'Failed')

  @property
  def code(self):
    """The exit code of the job: that of the pod that failed first."""
    if self.state == 'Completed':
      return 0
    failed = [pod for pod in self.pods if pod.code]
    final = [pod for pod in failed if pod.code in jobs.FINAL_CODES]
    first = min(final or failed, key=lambda pod: pod.ended, default=None)
    return first.code if first else errors.DeviceError.exit_code

  @property
  def words(self):
    """Its state, and those of its pods."""
    if not self.pods:
      return self.state
    phases = [pod.phase for pod in self.pods]
    counts = {phase: phases.count(phase) for phase in dict.fromkeys(phases)}
    pods = ', '.join(f'{n} {phase}' for phase, n in counts.items())
    return f'{self.state}, pods: {pods}'

  def says(self, name, most):
    """Its state in a line, and the reasons of pods that wait or failed."""
    text = f'{name}: {self.words}'
    if self.restarts:
      text += f'; started again {self.restarts} times'
      text += f', {self.counted} of {most} that count'
    lines = [f'{text}; {self.why}' if self.why else text]
    reasons = {}
    for pod in self.pods:
      if pod.why:
        reasons.setdefault(pod.why, []).append(pod.rank)
    for why, ranks in reasons.items():
      more = f' and {len(ranks) - 1} more' if ranks[1:] else ''
      lines.append(f'[{ranks[0]}]{more}: {why}')
    return lines


def find(job, say=None):
  """The Found of a Job, or None if the cluster has none."""
  text = call(
    job, 'get', 'jobset', job.name, '--output=json', '--ignore-not-found',
    say=say,
  )  # fmt: skip
  if not text.strip():
    return None
  found = answers.read('kubectl get jobset', text, _set)
  text = call(
    job, 'get', 'pods', f'--selector={_SET}/jobset-name={job.name}',
    '--output=json', say=say,
  )  # fmt: skip
  reader = functools.partial(_pods, hosts=job.accelerator.hosts)
  pods = answers.read('kubectl get pods', text, reader)
  state, why = found.state, found.why
  if state == 'Pending' and not pods:
    why = _refused(job, say)
  elif state == 'Pending' and all(pod.phase != 'Pending' for pod in pods):
    state = 'Running'
  return dataclasses.replace(found, state=state, why=why, pods=pods)


def _set(text):
  """What a JobSet says of itself, as a Found without pods."""
  shown = json.loads(text)
  status = shown.get('status', {})
  metadata = shown['metadata']
  queue = metadata.get('labels', {}).get(gke_manifest.QUEUE, '')
  state, why = 'Pending', ''
  if shown['spec'].get('suspend'):
    state = 'Suspended'
    if queue:
      state = 'Queued'
      why = f'it waits in the queue {queue} for Kueue to admit it'
  for condition in status.get('conditions', ()):
    kind = condition['type']
    if condition['status'] == 'True' and kind in ('Completed', 'Failed'):
      state = kind
      why = condition.get('message', '') if kind == 'Failed' else ''
  return Found(
    state,
    why,
    status.get('restarts', 0),
    status.get('restartsCountTowardsMax', 0),
    (),
    queue,
    metadata.get('annotations', {}).get(gke_manifest.DIGEST, ''),
  )


def _pods(text, hosts):
  """The pods of the newest start: those of an earlier one may yet be going."""
  items = json.loads(text)['items']
  key = f'{_SET}/restart-attempt'
  attempts = [int(item['metadata']['labels'].get(key, 0)) for item in items]
  newest = max(attempts, default=0)
  pairs = zip(items, attempts, strict=True)
  pods = [_pod(item, hosts) for item, n in pairs if n == newest]
  return tuple(sorted(pods, key=lambda pod: (pod.rank, pod.ended)))


def _pod(item, hosts):
  labels = item['metadata']['labels']
  index = labels.get('batch.kubernetes.io/job-completion-index', 0)
  status = item.get('status', {})
  phase = status.get('phase', 'Pending')
  state = next(
    (
      s['state']
      for s in status.get('containerStatuses', ())
      if s['name'] == gke_manifest.CONTAINER
    ),
    {},
  )
  ended = state.get('terminated', {})
  return Pod(
    item['metadata']['name'],
    item['metadata']['uid'],
    int(labels.get(f'{_SET}/job-index', 0)) * hosts + int(index),
    phase,
    'running' in state or 'terminated' in state,
    _why(status, state),
    ended.get('exitCode'),
    ended.get('finishedAt') or '',
  )


def _why(status, state):
  """Why a pod does not run, or ''."""
  waiting, ended = state.get('waiting', {}), state.get('terminated', {})
  if waiting.get('reason') in _WAITS:
    said = waiting.get('message') or waiting['reason']
    return f'{_WAITS[waiting["reason"]]}; {said}'
  if ended.get('reason') == 'OOMKilled':
    return 'its memory was not enough, and it was killed (OOMKilled)'
  for condition in status.get('conditions', ()):
    if condition.get('reason') == 'Unschedulable':
      return f'{_UNSCHEDULABLE} {condition.get("message", "")}'
    if condition['type'] == 'DisruptionTarget':
      return f'preempted: {condition.get("message", "")}'
  if ended.get('exitCode'):
    return f'exit code {ended["exitCode"]}'
  return ''


def _refused(job, say):
  """Why the cluster makes no pods, by its events, or ''."""
  text = call(
    job, 'get', 'events', '--field-selector=reason=FailedCreate',
    '--output=json', say=say,
  )  # fmt: skip
  reader = functools.partial(_creation, name=job.name)
  said = answers.read('kubectl get events', text, reader)
  for fault in FAULTS:
    if any(word in said.lower() for word in fault.words):
      return f'{fault.what}: {said}; fix: {fault.fix}'
  return said


def _creation(text, name):
  """What the newest event says of a pod of a JobSet that was not made."""
  for item in reversed(json.loads(text)['items']):
    if item['involvedObject']['name'].startswith(f'{name}-'):
      return item.get('message', '')
  return ''
