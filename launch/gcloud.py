"""What `gcloud compute tpus` is asked, and the ways in which it fails.

Each function makes one argument list; a dry run shows these very lists. Flags
and fields are those of the Google Cloud CLI and of the Cloud TPU API, v2.
"""

import json

from t5x_lite import errors
from t5x_lite.launch import answers
from t5x_lite.launch import calls

JOBS = 't5x_lite_jobs'  # in the home folder of each VM
# `gcloud` itself tries ten times to connect, 5 s apart, and twice as long
# passes until a machine that is gone is given up.
CONNECT = 15
SSH_DEADLINE = 10 * (CONNECT + 5) + 100
API_DEADLINE = 120

_PROJECT = 'https://console.cloud.google.com/apis/library/tpu.googleapis.com'
# A word with capitals is the API's own, and counts as it is written.
API_FAULTS = (
  calls.Fault(
    ('have an active account', 'gcloud auth login', 'invalid_grant')
    + ('reauthent', 'problem refreshing your current auth'),
    'gcloud is not logged in',
    'gcloud auth login',
  ),
  calls.Fault(
    ('property [project]', 'find attribute [project]'),
    'gcloud has no project',
    '--config.project=PROJECT',
  ),
  calls.Fault(
    ('compute engine api has not', 'compute.googleapis.com/overview'),
    'the Compute Engine API of the project is not enabled',
    'gcloud services enable compute.googleapis.com',
  ),
  calls.Fault(
    ('SERVICE_DISABLED', 'has not been used in project', 'not enabled'),
    'the Cloud TPU API of the project is not enabled',
    f'gcloud services enable tpu.googleapis.com, or {_PROJECT}',
  ),
  calls.Fault(
    ('per minute', 'rateLimitExceeded', 'RATE_LIMIT_EXCEEDED'),
    'too many calls of the Cloud TPU API',
    passes=True,
  ),
  calls.Fault(
    # Not each `quota`: gcloud warns of a quota project in any answer.
    ('quota limit', 'quota exceeded', 'exceeded quota', 'exceeds quota')
    + ('quota metric', 'quota has been', 'insufficient quota', 'enough quota')
    + ('exceeded your quota', 'exceeds the quota', 'exceeded the quota')
    + ('QUOTA_EXCEEDED', 'quotaExceeded', 'no quota', 'out of quota'),
    'the quota of the project is used up, or none was granted',
    'ask for more at IAM & Admin > Quotas (Cloud TPU API), take another zone'
    ' or --config.capacity, and delete queued resources that failed: they'
    ' count, too',
  ),
  calls.Fault(
    ('no more capacity', 'insufficient capacity', 'stockout')
    + ('insufficient reserved capacity', 'resource_availability'),
    'the zone has no such TPUs free',
    'another --config.zone (gcloud compute tpus accelerator-types list'
    ' --zone=ZONE shows what it has), --config.capacity=spot, or =reserved if'
    ' you have a reservation; or the same command later',
  ),
  calls.Fault(
    ('or it may not exist', 'invalid zone', 'unknown zone', 'invalid location')
    + ('locations/- not found', 'not a valid zone'),
    'there is no such zone for TPUs, or not for this project',
    '--config.zone=ZONE, one of `gcloud compute tpus locations list`',
  ),
  calls.Fault(
    ('accelerator type', 'AcceleratorType', 'accelerator_type'),
    'the zone does not have this kind or size of TPU',
    '`gcloud compute tpus accelerator-types list --zone=ZONE` shows what it'
    ' has',
  ),
  calls.Fault(
    ('runtime version', 'RuntimeVersion', 'runtime_version'),
    'there is no such software for these TPUs',
    '`gcloud compute tpus versions list --zone=ZONE` shows them; name one by'
    ' --config.tpu_vm.runtime',
  ),
  calls.Fault(
    ('actAs', 'serviceAccounts', 'service account'),
    'the service account cannot be used',
    'ask for the role Service Account User on it, or name another by'
    ' --config.tpu_vm.service_account',
  ),
  calls.Fault(
    ("'compute.projects.", "'compute.instances.", "'compute.zones.")
    + ("'compute.globalOperations.", 'compute.oslogin', 'oslogin.'),
    'your account may not do in Compute Engine what ssh needs',
    'ask for the role Compute Instance Admin (v1)'
    ' (roles/compute.instanceAdmin.v1); TPU Admin has nothing of Compute',
  ),
  calls.Fault(
    ('subnetwork', 'networks/'),
    'the network is not as the TPUs need it',
    '--config.tpu_vm.network and --config.tpu_vm.subnetwork',
  ),
  calls.Fault(
    ('PERMISSION_DENIED', 'does not have permission', 'permission for')
    + ('was denied', 'forbidden'),
    'your account may not do this in the project',
    'ask for the role TPU Admin (roles/tpu.admin), or name another project by'
    ' --config.project',
  ),
  calls.Fault(
    ('name resolution', 'network is unreachable', 'unable to find the server')
    + ('max retries exceeded', 'connection aborted', 'SSLError')
    + ('problem reaching', 'gcloud crashed (ConnectionError)'),
    'Google Cloud is not reached',
    'see to the network of this machine',
    passes=True,
  ),
  calls.Fault(
    ('UNAVAILABLE', 'DEADLINE_EXCEEDED', 'INTERNAL:', '"INTERNAL"')
    + (
      'internal error',
      'HTTPError 50',
      'ABORTED',
      'try again later',
      'currently unavailable',
    ),
    'Google Cloud failed for a moment',
    passes=True,
  ),
)
# Of what was asked for by name; it may itself have a word of the above.
EXISTS = calls.Fault(('ALREADY_EXISTS', 'already exists'), 'there already')
NOT_THERE = calls.Fault(
  ('NOT_FOUND', 'was not found', 'HTTPError 404'), 'there is no such thing'
)
TERMINAL = calls.Fault(
  ('terminal state', 'cannot be currently connected'), 'the TPU VM is gone'
)
ABSENT = calls.Fault(("can't open file",), 'the job is not on this VM')
SSH_FAULTS = (
  ABSENT,
  calls.Fault(('worker: ',), 'the VM refuses the job'),
  TERMINAL,
  calls.Fault(
    ('permission denied (publickey', 'permission denied, please try again'),
    'the VM does not take your key',
    'wait a minute after the first connection; if OS Login is on, ask for the'
    ' role Compute OS Admin Login',
    passes=True,
  ),
  calls.Fault(
    ('host key verification failed', 'HOST IDENTIFICATION HAS CHANGED'),
    'the VM has another host key than before',
    'delete its lines in ~/.ssh/google_compute_known_hosts',
  ),
  calls.Fault(
    ('[255]', 'connection refused', 'connection timed out', 'broken pipe')
    + ('connection closed', 'connection reset', 'lost connection')
    + ('operation timed out', 'no route to host'),
    'the VM is not reached by ssh',
    'let port 22 in by a firewall rule of the network; without external'
    ' addresses, launch from a machine in the same network',
    passes=True,
  ),
  *API_FAULTS,
)


def _call(spec, *words):
  made = ['gcloud', 'compute', 'tpus', *words, f'--zone={spec.zone}']
  if spec.project:
    made.append(f'--project={spec.project}')
  return [*made, '--quiet']


def nodes(name, spec, accelerator):
  """The names of a job's TPU VMs, one for each slice."""
  if spec.tpu_vm.existing:
    return [spec.tpu_vm.existing]
  if accelerator.slices == 1:
    return [name]
  return [f'{name}-{n}' for n in range(accelerator.slices)]


def create(name, spec, accelerator):
  """Asks for the TPUs of a job, all slices at once or none."""
  vm = spec.tpu_vm
  made = _call(spec, 'queued-resources', 'create', name)
  made += [
    f'--accelerator-type={accelerator.api_name}',
    f'--runtime-version={vm.runtime or accelerator.runtime}',
  ]
  if accelerator.slices == 1:
    made.append(f'--node-id={name}')
  else:
    made += [f'--node-count={accelerator.slices}', f'--node-prefix={name}']
  made += {'on_demand': [], 'spot': ['--spot'], 'reserved': ['--reserved']}[
    spec.capacity
  ]
  for flag in ('service_account', 'network', 'subnetwork'):
    if vm[flag]:
      made.append(f'--{flag.replace("_", "-")}={vm[flag]}')
  if vm.internal_ips:
    made.append('--internal-ips')
  return [*made, f'--valid-until-duration={vm.wait}h', '--async']


def describe(name, spec):
  """What has become of the request for TPUs."""
  words = 'queued-resources', 'describe', name
  return [*_call(spec, *words), '--format=json']


def delete(name, spec):
  """Takes the request back, and its TPUs with it."""
  words = 'queued-resources', 'delete', name
  return [*_call(spec, *words), '--force', '--async']


def describe_node(node, spec):
  """The state of the TPU VMs of a slice, and their addresses."""
  return [*_call(spec, 'tpu-vm', 'describe', node), '--format=json']


def _reach(spec):
  return ['--internal-ip'] if spec.tpu_vm.internal_ips else []


def ssh(node, worker, spec, name, verb, **numbers):
  """Runs worker.py on a VM.

  The command that a shell reads there has nothing of the user's but the name
  of the job, which is letters, digits and -.
  """
  command = f'python3 {JOBS}/{name}/worker.py {verb}'
  for option, number in numbers.items():
    command += f' --{option}={int(number)}'
  return [
    *_call(spec, 'tpu-vm', 'ssh', node),
    f'--worker={int(worker)}',
    *_reach(spec),
    f'--ssh-flag=-oConnectTimeout={CONNECT}',
    '--ssh-flag=-oServerAliveInterval=15',
    f'--command={command}',
  ]


def scp(folder, node, worker, spec):
  """Copies a folder JOBS, of this machine, into the home folder of a VM."""
  if ':' in str(folder):
    raise errors.ConfigError(
      'gcloud takes what is before a colon for a machine',
      where='T5X_LITE_STATE',
      got=folder,
      expected='a path without a colon',
    )
  return [
    *_call(spec, 'tpu-vm', 'scp', str(folder), f'{node}:'),
    '--recurse',
    f'--worker={int(worker)}',
    *_reach(spec),
    f'--scp-flag=-oConnectTimeout={CONNECT}',
  ]


def fetch(name, node, spec, folder):
  """Copies the folder of a job from the first VM to this machine."""
  source = f'{node}:{JOBS}/{name}'
  made = [*_call(spec, 'tpu-vm', 'scp', source, str(folder)), '--recurse']
  return [*made, '--worker=0', *_reach(spec)]


# -- calling ------------------------------------------------------------------


def ask(argv, say=None, tries=4):
  """The JSON that an argv of `describe` or `describe_node` gives.

  None means that there is no such thing.

  Raises:
    CallError: it can't be had, or is not understood.
  """
  text = do(argv, NOT_THERE, say, tries)
  if text is None:
    return None
  return answers.read(calls.shown(argv[:6]), text, _state)


def _state(text):
  """An answer, if it has what we read of it."""
  said = json.loads(text)
  state = said['state']
  if isinstance(state, dict):  # of a request; it holds that of its VMs apart
    state = state['state']
  ends = said.get('networkEndpoints', []) if state == 'READY' else []
  texts = [state, *(end['ipAddress'] for end in ends)]
  if not state or not all(isinstance(x, str) for x in texts):
    raise ValueError('no state')
  return said


def do(argv, unless, say=None, tries=4):
  """What an argv that asks the Cloud TPU API prints; None for a Fault."""
  try:
    return calls.run(
      argv,
      deadline=API_DEADLINE,
      faults=(unless, *API_FAULTS, NOT_THERE),
      say=say,
      tries=tries,
    )
  except calls.CallError as e:
    if e.fault is unless:
      return None
    raise
