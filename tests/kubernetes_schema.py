"""The part of the Kubernetes and JobSet schemas that manifests of ours use.

Written from the API references: ConfigMap v1, JobSet v1alpha2 of
jobset.x-k8s.io, batch/v1 JobSpec and v1 PodSpec. A name with `!` is required; a
list is in brackets, a map of strings is `{}`, an int has its bounds, words with
`|` between are the only values, and `/.../` is a pattern.
"""

import re

LABEL = r'/[a-z]([-a-z0-9]{0,61}[a-z0-9])?/'
KEY = r'/[-._a-zA-Z0-9]{1,253}/'
QUALIFIED = r'/([a-z0-9.-]{1,253}\/)?[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?/'
VALUE = r'/([A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?)?/'
ACTIONS = 'FailJobSet|RestartJobSet|RestartJobSetAndIgnoreMaxRestarts'
ACTIONS += '|RestartJob|RestartJobAndIgnoreMaxRestarts'
REASONS = 'BackoffLimitExceeded|DeadlineExceeded|FailedIndexes'
REASONS += '|MaxFailedIndexesExceeded|PodFailurePolicy'
TYPES = {
  'Manifest': {'apiVersion!': 'v1', 'kind!': 'List', 'items!': ['Item']},
  'Meta': {
    'name!': LABEL,
    'namespace!': LABEL,
    'labels': {QUALIFIED: VALUE},
    'annotations': {QUALIFIED: 'text'},
  },
  'AConfigMap': {
    'apiVersion!': 'v1',
    'kind!': 'ConfigMap',
    'metadata!': 'Meta',
    'data': {KEY: 'text'},
    'binaryData': {KEY: r'/[A-Za-z0-9+\/]*=*/'},
    'immutable': 'bool',
  },
  'AJobSet': {
    'apiVersion!': 'jobset.x-k8s.io/v1alpha2',
    'kind!': 'JobSet',
    'metadata!': 'Meta',
    'spec!': 'JobSetSpec',
  },
  'JobSetSpec': {
    'replicatedJobs!': ['ReplicatedJob'],
    'network': 'any',
    'successPolicy': 'any',
    'failurePolicy': 'FailurePolicy',
    'suspend': 'bool',
    'coordinator': 'any',
    'managedBy': 'text',
    'ttlSecondsAfterFinished': (0, 2**31 - 1),
  },
  'FailurePolicy': {
    'maxRestarts': (0, 2**31 - 1),
    'restartStrategy': 'Recreate|BlockingRecreate|InPlaceRestart',
    'rules': ['FailureRule'],
  },
  'FailureRule': {
    'name!': r'/[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?/',
    'action!': ACTIONS,
    'onJobFailureReasons': [REASONS],
    'onJobFailureMessagePatterns': ['text'],
    'targetReplicatedJobs': [LABEL],
  },
  'ReplicatedJob': {
    'name!': LABEL,
    'groupName': LABEL,
    'template!': 'JobTemplate',
    'replicas': (0, 2**31 - 1),
    'dependsOn': 'any',
  },
  'JobTemplate': {'metadata': 'any', 'spec!': 'JobSpec'},
  'JobSpec': {
    'completionMode': 'Indexed|NonIndexed',
    'completions': (0, 2**31 - 1),
    'parallelism': (0, 2**31 - 1),
    'backoffLimit': (0, 2**31 - 1),
    'activeDeadlineSeconds': (1, 2**31 - 1),
    'podFailurePolicy': 'PodFailurePolicy',
    'template!': 'PodTemplate',
  },
  'PodFailurePolicy': {'rules!': ['PodRule']},
  'PodRule': {
    'action!': 'FailJob|FailIndex|Ignore|Count',
    'onExitCodes': 'ExitCodes',
    'onPodConditions': ['PodCondition'],
  },
  'ExitCodes': {
    'containerName': LABEL,
    'operator!': 'In|NotIn',
    'values!': [(1, 255)],
  },
  'PodCondition': {'type!': QUALIFIED, 'status!': 'True|False|Unknown'},
  'PodTemplate': {'metadata': 'any', 'spec!': 'PodSpec'},
  'PodSpec': {
    'restartPolicy!': 'Never|OnFailure',
    'terminationGracePeriodSeconds': (0, 2**31 - 1),
    'nodeSelector': {QUALIFIED: VALUE},
    'tolerations': ['Toleration'],
    'containers!': ['Container'],
    'volumes': ['Volume'],
    'serviceAccountName': LABEL,
    'hostNetwork': 'bool',
    'dnsPolicy': 'ClusterFirst|ClusterFirstWithHostNet|Default|None',
    'subdomain': LABEL,
  },
  'Toleration': {
    'key': QUALIFIED,
    'operator': 'Exists|Equal',
    'value': VALUE,
    'effect': 'NoSchedule|PreferNoSchedule|NoExecute',
  },
  'Container': {
    'name!': LABEL,
    'image!': r'/[\w.:\/@-]+/',
    'command': ['text'],
    'args': ['text'],
    'workingDir': r'/\/.*/',
    'env': ['Variable'],
    'ports': ['Port'],
    'resources': 'Resources',
    'volumeMounts': ['Mount'],
    'imagePullPolicy': 'Always|IfNotPresent|Never',
  },
  'Variable': {'name!': r'/[-._a-zA-Z][-._a-zA-Z0-9]*/', 'value': 'text'},
  'Port': {
    'name': r'/(?=.*[a-z])[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?/',
    'containerPort!': (1, 65535),
    'protocol': 'TCP|UDP|SCTP',
  },
  'Resources': {
    'limits': {QUALIFIED: (1, 2**31)},
    'requests': {QUALIFIED: (1, 2**31)},
  },
  'Mount': {
    'name!': LABEL,
    'mountPath!': r'/\/[^:]*/',
    'readOnly': 'bool',
    'subPath': 'text',
  },
  'Volume': {
    'name!': LABEL,
    'configMap': 'ConfigMapSource',
    'persistentVolumeClaim': 'Claim',
    'emptyDir': 'any',
  },
  'ConfigMapSource': {
    'name!': LABEL,
    'items': ['Item_'],
    'optional': 'bool',
    'defaultMode': (0, 0o777),
  },
  'Item_': {'key!': KEY, 'path!': r'/(?!.*\.\.)[^\/].*/', 'mode': (0, 0o777)},
  'Claim': {'claimName!': LABEL, 'readOnly': 'bool'},
}


def faults(value, kind='Manifest', path=''):
  """What is wrong with a manifest: 'path: what', as many as there are."""
  if kind == 'Item':
    kind = value.get('kind')
    if kind not in ('ConfigMap', 'JobSet'):
      return [f'{path}: no matches for kind "{kind}"']
    kind = f'A{kind}'
  if isinstance(kind, list):
    if not isinstance(value, list):
      return [f'{path}: not a list']
    return [
      fault
      for n, item in enumerate(value)
      for fault in faults(item, kind[0], f'{path}[{n}]')
    ]
  if isinstance(kind, tuple):
    if type(value) is not int or not kind[0] <= value <= kind[1]:
      return [f'{path}: {value!r} is not an int from {kind[0]} to {kind[1]}']
    return []
  if isinstance(kind, dict):
    ((keys, inner),) = kind.items()
    return [
      fault
      for key, item in value.items()
      for fault in (
        faults(key, keys, f'{path} key') + faults(item, inner, f'{path}.{key}')
      )
    ]
  if kind in TYPES:
    return _object(value, TYPES[kind], path)
  if kind == 'any':
    return []
  if kind == 'bool':
    return [] if isinstance(value, bool) else [f'{path}: not a bool']
  if not isinstance(value, str):
    return [f'{path}: {value!r} is not a string']
  if kind.startswith('/'):
    fits = re.fullmatch(kind[1:-1], value, re.ASCII | re.DOTALL)
  else:
    fits = kind == 'text' or value in kind.split('|')
  return [] if fits else [f'{path}: {value!r} is not {kind}']


def _object(value, fields, path):
  if not isinstance(value, dict):
    return [f'{path}: not an object']
  known = {name.rstrip('!'): kind for name, kind in fields.items()}
  found = [
    f'{path}: {name} is required'
    for name in fields
    if name.endswith('!') and name[:-1] not in value
  ]
  for name, item in value.items():
    if name not in known:
      found.append(f'unknown field "{path.lstrip(".")}.{name}"')
    else:
      found += faults(item, known[name], f'{path}.{name}')
  return found


def webhook_faults(job_set):
  """What the webhooks of JobSet and batch/v1 refuse beyond the schema."""
  found, name, spec = [], job_set['metadata']['name'], job_set['spec']
  for job in spec['replicatedJobs']:
    inner = job['template']['spec']
    last = job['replicas'] - 1, inner['completions'] - 1
    pod = f'{name}-{job["name"]}-{last[0]}-{last[1]}-abcde'
    if len(pod) > 63:
      found.append('JobSet name is too long, pod names will exceed 63')
    if inner['completionMode'] != 'Indexed':
      found.append('TPU workloads need Indexed')
    pods = inner['template']['spec']
    if inner.get('podFailurePolicy') and pods['restartPolicy'] != 'Never':
      found.append('podFailurePolicy needs restartPolicy Never')
    for rule in inner.get('podFailurePolicy', {}).get('rules', ()):
      if ('onExitCodes' in rule) == ('onPodConditions' in rule):
        found.append('one of onExitCodes and onPodConditions')
      codes = rule.get('onExitCodes', {}).get('values', [])
      if codes != sorted(set(codes)):
        found.append('exit codes must be ordered and not repeated')
    volumes = {volume['name'] for volume in pods.get('volumes', ())}
    for container in pods['containers']:
      for mount in container.get('volumeMounts', ()):
        if mount['name'] not in volumes:
          found.append(f'volumeMounts: {mount["name"]} not found')
  names = [rule['name'] for rule in spec['failurePolicy'].get('rules', ())]
  if len(names) != len(set(names)):
    found.append('rule names are not unique')
  return found
