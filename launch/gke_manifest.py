"""The manifest of a GKE job: a JobSet, and a ConfigMap of what it takes along.

A slice is a Job of the set, and each of its hosts a pod of that Job. What a pod
ends with decides what becomes of the set: see `_pod_rules` and `_set_rules`.
"""

import base64
import hashlib
import json

from t5x_lite import accelerators
from t5x_lite import errors
from t5x_lite.launch import jobs

WORKERS = 'w'  # the replicated job; pods are NAME-w-SLICE-HOST
CONTAINER = 'main'
FOLDER = '/t5x_lite/files'  # where the command starts
MOST = 2**20 - 2**14  # bytes in a ConfigMap, in base64; Kubernetes has 1 MiB
QUEUE = 'kueue.x-k8s.io/queue-name'
DIGEST = 't5x_lite.digest'  # an annotation, by which a set is told apart
PREEMPTED = 'preempted'  # the rule by which a restart is not counted
_KEPT = 3600  # seconds that a finished set stays, if it is to be deleted
_PORTS = {'tpu': 8471, 'slices': 8080, 'coordinator': 8482}


def make(job):
  """The manifest of a Job, as JSON text for kubectl."""
  items = _items(job)
  marks = items[-1]['metadata'].setdefault('annotations', {})
  marks[DIGEST] = digest(job)
  listed = {'apiVersion': 'v1', 'kind': 'List', 'items': items}
  return json.dumps(listed, indent=2) + '\n'


def digest(job):
  """Of all that is asked for, as hexadecimal digits."""
  return hashlib.sha256(json.dumps(_items(job)).encode()).hexdigest()[:16]


def _items(job):
  return [_config_map(job)] * bool(job.files) + [_set(job)]


def files_name(job):
  return f'{job.name}-files'


def _config_map(job):
  found = {
    'apiVersion': 'v1',
    'kind': 'ConfigMap',
    'metadata': {
      'name': files_name(job),
      'namespace': job.config['gke']['namespace'],
    },
    'data': {},
    'binaryData': {},
  }
  for key, content in zip(_keys(job), job.files.values(), strict=True):
    try:
      found['data'][key] = content.decode()
    except UnicodeDecodeError:
      found['binaryData'][key] = base64.b64encode(content).decode()
  size = len(json.dumps(found))
  if size > MOST:
    raise errors.ConfigError(
      'a job takes too much along for Kubernetes',
      got=f'{size:,} bytes in {len(job.files)} files',
      expected=f'{MOST:,} at most',
      fix='put what is large on gs://, or into the image',
    )
  return found


def _keys(job):
  """Keys of a ConfigMap, which may not have the slash of a path."""
  return [f'file{n}' for n in range(len(job.files))]


def _set(job):
  asked, accelerator = job.config['gke'], job.accelerator
  metadata = {'name': job.name, 'namespace': asked['namespace']}
  if asked['queue']:
    metadata['labels'] = {QUEUE: asked['queue']}
  if accelerator.hosts > 1:  # a slice is a node pool, and has it alone
    metadata['annotations'] = {
      'alpha.jobset.sigs.k8s.io/exclusive-topology': (
        'cloud.google.com/gke-nodepool'
      )
    }
  # Of what is in its queues, Kueue alone says when it runs.
  suspend = {} if asked['queue'] else {'suspend': False}
  spec = suspend | {
    'failurePolicy': {
      'maxRestarts': job.config['restarts'],
      # So that no process of an earlier start still writes.
      'restartStrategy': 'BlockingRecreate',
      'rules': _set_rules(),
    },
    'replicatedJobs': [
      {
        'name': WORKERS,
        'replicas': accelerator.slices,
        'template': {
          'spec': {
            'completionMode': 'Indexed',
            'completions': accelerator.hosts,
            'parallelism': accelerator.hosts,
            'backoffLimit': 0,  # one pod that fails ends its Job
            'podFailurePolicy': {'rules': _pod_rules()},
            'template': {'spec': _pod(job)},
          }
        },
      }
    ],
  }
  if job.config['delete_when_done']:
    spec['ttlSecondsAfterFinished'] = _KEPT
  return {
    'apiVersion': 'jobset.x-k8s.io/v1alpha2',
    'kind': 'JobSet',
    'metadata': metadata,
    'spec': spec,
  }


def _pod_rules():
  """Which ends of a pod are told to the set apart from all others."""
  final = [code for code in jobs.FINAL_CODES if code]

  def codes(values):
    return {
      'action': 'FailJob',
      'onExitCodes': {
        'containerName': CONTAINER,
        'operator': 'In',
        'values': values,
      },
    }

  disrupted = {
    'action': 'FailJob',
    'onPodConditions': [{'type': 'DisruptionTarget', 'status': 'True'}],
  }
  return [codes(final), disrupted, codes([errors.PREEMPTED])]


def _set_rules():
  """What becomes of the set; what no rule names is restarted and counted.

  A Job tells by which rule of its pods it has failed in its message alone.
  """

  def rule(name, action, *numbers):
    return {
      'name': name,
      'action': action,
      'onJobFailureReasons': ['PodFailurePolicy'],
      'onJobFailureMessagePatterns': [
        f'matching FailJob rule at index {number}$' for number in numbers
      ],
    }

  return [
    rule('final', 'FailJobSet', 0),
    rule(PREEMPTED, 'RestartJobSetAndIgnoreMaxRestarts', 1, 2),
  ]


def _pod(job):
  asked, accelerator = job.config['gke'], job.accelerator
  selector = {
    'cloud.google.com/gke-tpu-accelerator': _label(accelerator),
    'cloud.google.com/gke-tpu-topology': accelerator.shape,
  }
  spec = {
    'restartPolicy': 'Never',
    'terminationGracePeriodSeconds': asked['grace'],
    'nodeSelector': selector,
    'containers': [_container(job)],
  }
  if job.config['capacity'] == 'spot':
    selector['cloud.google.com/gke-spot'] = 'true'
    spec['tolerations'] = [
      {
        'key': 'cloud.google.com/gke-spot',
        'operator': 'Equal',
        'value': 'true',
        'effect': 'NoSchedule',
      }
    ]
  if asked['reservation']:
    selector['cloud.google.com/reservation-name'] = asked['reservation']
  if asked['service_account']:
    spec['serviceAccountName'] = asked['service_account']
  if accelerator.slices > 1:  # slices talk at the full speed of the hosts
    spec['hostNetwork'] = True
    spec['dnsPolicy'] = 'ClusterFirstWithHostNet'
  volumes = []
  if job.files:
    items = [
      {'key': key, 'path': name}
      for key, name in zip(_keys(job), job.files, strict=True)
    ]
    source = {'name': files_name(job), 'items': items}
    volumes.append({'name': 'files', 'configMap': source})
  if asked['claim']:
    claim = {'claimName': asked['claim']}
    volumes.append({'name': 'shared', 'persistentVolumeClaim': claim})
  if volumes:
    spec['volumes'] = volumes
  return spec


def _label(accelerator):
  """What nodes of a TPU are labelled with."""
  if accelerator.kind == 'v3' and accelerator.hosts == 1:
    return 'tpu-v3-device'  # of v3 alone, one host has another name
  return accelerators.KINDS[accelerator.kind].label


def _container(job):
  accelerator = job.accelerator
  several = ['--multiprocess'] if accelerator.processes > 1 else []
  command = ['python', '-m', 't5x_lite', *job.arguments, *several]
  env = {'PYTHONUNBUFFERED': '1'} | job.config['env']
  found = {
    'name': CONTAINER,
    'image': job.config['gke']['image'],
    'command': [_literal(word) for word in command],
    'env': [{'name': n, 'value': _literal(v)} for n, v in env.items()],
    'ports': [
      {'name': name, 'containerPort': port} for name, port in _PORTS.items()
    ],
    'resources': {
      'limits': {'google.com/tpu': accelerator.chips // accelerator.hosts}
    },
  }
  mounts = []
  if job.files:
    found['workingDir'] = FOLDER
    mounts.append({'name': 'files', 'mountPath': FOLDER, 'readOnly': True})
  if job.config['gke']['claim']:
    folder = job.config['shared_folders'][0]
    mounts.append({'name': 'shared', 'mountPath': folder})
  if mounts:
    found['volumeMounts'] = mounts
  return found


def _literal(text):
  """A text in which Kubernetes shall see no $(VARIABLE)."""
  return text.replace('$', '$$')
