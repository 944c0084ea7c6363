"""`launch gke`, through a fake kubectl whose pods are real processes."""

import json
import pathlib
import shlex
import signal
import sys
import time

import pytest

from t5x_lite import accelerators
from t5x_lite.launch import calls
from t5x_lite.launch import gke
from t5x_lite.launch import gke_manifest
from t5x_lite.launch import jobs
from t5x_lite.launch import stamps
from tests import clouds
from tests import impatient
from tests import kubernetes_schema
from tests import recovery
from tests import runs

SLICE = ['--config=v5e_4', '--config.accelerator=v6e-16', '--name=tiny']
SLICE += ['--config.gke.image=here/t5x_lite:1']
SLOW = pytest.mark.slow
ONE = '--config.accelerator=v5e-4'  # and one pod
TWO = '--config.accelerator=v4-16'
STUB = ['train', '--gin_file=t5/1_1_small', '--workdir=gs://bucket/runs/tiny']
STUB += ['--gin.Run.microbatches=8']  # for the smallest slice


@pytest.fixture
def cloud(tmp_path, monkeypatch):
  made = clouds.Cloud(tmp_path, monkeypatch)
  monkeypatch.setenv('FAKE_PYTHON', sys.executable)
  impatient.hurry(monkeypatch)
  yield made
  made.end()


@pytest.fixture
def say(capsys):
  return lambda *a, **k: clouds.launched(capsys, 'launch', *a, **k)


def launch(say, cloud, body, *more, code=0, **plan):
  """Launches pods that run a stub."""
  cloud.plan(**plan)
  python = clouds.worker(cloud.folder.parent, body)
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('FAKE_PYTHON', str(python))
    return say('gke', *SLICE, *more, '--', *STUB, code=code)


# -- the manifest -------------------------------------------------------------


def a_job(spec, *overrides, files=None, name='a', command=('train',)):
  config = jobs.load(spec, ['gke.image=a/b:1', *overrides])
  return jobs.Job(name, 'gke', config.to_dict(), list(command), files or {})


def made(*args, **kwargs):
  """The items of a manifest, which the schema and the webhooks take."""
  found = json.loads(gke_manifest.make(a_job(*args, **kwargs)))
  assert kubernetes_schema.faults(found) == []
  assert kubernetes_schema.webhook_faults(found['items'][-1]) == []
  return found['items']


TPUS = [
  name
  for name in jobs.names()
  if jobs.accelerator(jobs.load(name)).is_tpu
]  # fmt: skip


@pytest.mark.parametrize('spec', TPUS)
def test_installed_specs_give_valid_manifests(spec):
  (job_set,) = made(spec, name='a' * 40)
  accelerator = jobs.accelerator(jobs.load(spec))
  (job,) = job_set['spec']['replicatedJobs']
  assert job['replicas'] == accelerator.slices
  inner = job['template']['spec']
  assert inner['completions'] == inner['parallelism'] == accelerator.hosts
  pod = inner['template']['spec']
  assert pod['nodeSelector'] | {'cloud.google.com/gke-spot': 'true'} == {
    'cloud.google.com/gke-tpu-accelerator': accelerators.KINDS[
      accelerator.kind
    ].label,
    'cloud.google.com/gke-tpu-topology': accelerator.shape,
    'cloud.google.com/gke-spot': 'true',
  }
  chips = pod['containers'][0]['resources']['limits']['google.com/tpu']
  assert chips * accelerator.hosts == accelerator.chips
  several = pod['containers'][0]['command'][-1] == '--multiprocess'
  assert several == (accelerator.processes > 1)


def test_the_manifest_of_two_slices():
  files = {'a.gin': b'Run.steps = 1\n', 'more/v.model': b'\xff\0'}
  config_map, job_set = made(
    'v5e_256_x2',
    'gke.reservation=mine',
    'gke.service_account=trainer',
    'gke.queue=team',
    'gke.grace=25',
    'gke.claim=nfs',
    'shared_folders=/nfs',
    'delete_when_done=True',
    'env.A=$(PATH) $x',
    files=files,
    command=['train', '--workdir=$(A)'],
  )
  assert config_map['data'] == {'file0': 'Run.steps = 1\n'}
  assert config_map['binaryData'] == {'file1': '/wA='}
  assert job_set['metadata']['labels'] == {'kueue.x-k8s.io/queue-name': 'team'}
  spec = job_set['spec']
  assert 'suspend' not in spec  # Kueue says it
  assert spec['ttlSecondsAfterFinished'] == 3600
  pod = spec['replicatedJobs'][0]['template']['spec']['template']['spec']
  assert pod['nodeSelector']['cloud.google.com/reservation-name'] == 'mine'
  assert 'tolerations' not in pod
  assert pod['serviceAccountName'] == 'trainer'
  assert pod['terminationGracePeriodSeconds'] == 25
  assert pod['hostNetwork'] is True
  (container,) = pod['containers']
  assert container['workingDir'] == '/t5x_lite/files'
  # Kubernetes makes $ of $$, and sees no variable.
  assert container['command'][3:5] == ['train', '--workdir=$$(A)']
  assert container['env'][1] == {'name': 'A', 'value': '$$(PATH) $$x'}
  assert pod['volumes'][0]['configMap']['items'][1] == {
    'key': 'file1',
    'path': 'more/v.model',
  }
  assert pod['volumes'][1]['persistentVolumeClaim'] == {'claimName': 'nfs'}


@pytest.mark.parametrize(
  'name, label', [('v3-8', 'tpu-v3-device'), ('v3-32', 'tpu-v3-slice')]
)
def test_one_host_of_v3_has_a_label_of_its_own(name, label):
  (job_set,) = made('v5e_4', f'accelerator={name}')
  job = job_set['spec']['replicatedJobs'][0]['template']['spec']
  selector = job['template']['spec']['nodeSelector']
  assert selector['cloud.google.com/gke-tpu-accelerator'] == label


def test_spot_capacity():
  (job_set,) = made('v6e_64', 'capacity=spot')
  job = job_set['spec']['replicatedJobs'][0]['template']['spec']
  pod = job['template']['spec']
  assert pod['nodeSelector']['cloud.google.com/gke-spot'] == 'true'
  assert pod['tolerations'][0]['key'] == 'cloud.google.com/gke-spot'


def test_ends_are_told_apart():
  (job_set,) = made('v6e_64', 'restarts=7')
  policy = job_set['spec']['failurePolicy']
  assert policy['maxRestarts'] == 7
  inner = job_set['spec']['replicatedJobs'][0]['template']['spec']
  codes = [
    rule.get('onExitCodes', {}).get('values')
    for rule in inner['podFailurePolicy']['rules']
  ]
  assert codes == [[1, 2, 3, 4, 5, 130], None, [143]]
  final, preempted = policy['rules']
  assert final['action'] == 'FailJobSet'
  assert final['onJobFailureMessagePatterns'] == [
    'matching FailJob rule at index 0$'
  ]
  assert preempted['action'] == 'RestartJobSetAndIgnoreMaxRestarts'


@pytest.mark.parametrize(
  'change, said',
  [
    (('spec', 'suspended', True), 'unknown field'),
    (('spec', 'failurePolicy', 'maxRestarts', 1.0), 'not an int'),
    (
      ('spec', 'failurePolicy', 'restartStrategy', 'Replace'),
      'is not Recreate',
    ),
    (('metadata', 'name', 'A_b'), 'is not /'),
    (('spec', 'replicatedJobs', None), 'not a list'),
  ],
)
def test_the_schema_refuses_what_is_wrong(change, said):
  found = json.loads(gke_manifest.make(a_job('v5e_4')))
  inside = found['items'][0]
  *path, name, value = change
  for key in path:
    inside = inside[key]
  inside[name] = value
  assert said in kubernetes_schema.faults(found)[0]


def test_too_much_for_a_config_map():
  job = a_job('v5e_4', files={'a': b'x' * 2**20})
  with pytest.raises(Exception, match='takes too much along for Kubernetes'):
    gke_manifest.make(job)


@pytest.mark.parametrize(
  'options, said',
  [
    (['--config.accelerator=gpu-8'], 'launch gke is for TPUs'),
    (['--config.accelerator=v2-8'], 'GKE has no v2'),
    (['--config.accelerator=2xv5e-4'], 'GKE joins no slices of one host'),
    (['--config.gke.image='], 'no image that has t5x_lite'),
    (['--config.shared_folders=/nfs'], 'a shared folder needs the volume'),
    (
      ['--config.shared_folders=nfs', '--config.gke.claim=nfs'],
      'has a path from the root',
    ),
    (['--config.gke.claim=nfs'], 'a shared folder needs the volume'),
    (['--config.gke.image=a;id'], 'not a name at --config.gke.image'),
    (['--config.gke.namespace=$(id)'], 'not a name'),
    (['--name=`id`'], 'not a name of a job'),
    (['--config.gke.namespace=a/b'], 'not a name in Kubernetes at'),
    (['--config.gke.namespace=a.b'], 'expected small letters, digits and -'),
    (['--config.gke.namespace='], 'no namespace at --config.gke.namespace'),
    (['--config.gke.service_account=A_B'], 'not a name in Kubernetes at'),
    (['--config.gke.queue=a/b'], 'not a name in Kubernetes at'),
    (['--config.capacity=reserved'], 'needs a reservation at --config.cap'),
    (
      ['--config.capacity=spot', '--config.gke.reservation=r'],
      'spot capacity is never of a reservation',
    ),
    (['--config.gke.reservation=A_b'], 'not a name of a reservation'),
    (['--config.project=mine'], 'launch gke takes no project'),
    (['--config.gke.nmespace=a'], 'did you mean namespace?'),
    (['--config.accelerator=v6e-17'], 'fix: v6e-16'),
  ],
)
def test_what_gke_does_not_take(cloud, say, options, said):
  assert said in say('gke', *SLICE, *options, '--', *STUB, code=2)
  assert not cloud.calls()


def test_a_local_workdir_is_refused(cloud, say):
  text = say('gke', *SLICE, '--', *STUB[:-1], '--workdir=runs/a', code=2)
  assert '--workdir is local, and 4 machines are to share it' in text


def test_a_dry_run_shows_what_a_launch_does(cloud, say):
  said = say('gke', *SLICE, '--dry_run', '--', *STUB)
  assert not cloud.calls()
  launch(say, cloud, 'pass', '--detach')
  applied = [argv for argv in cloud.calls() if 'apply' in argv]
  assert len(applied) == 2 and '--dry-run=server' in applied[0]
  for argv in applied:
    assert shlex.join(argv) in said
  manifest = said[said.index('  {') :].split('\n\n')[0]
  (job_set,) = json.loads(manifest)['items']
  made = cloud.read('kubernetes.json')['sets']['tiny']
  assert made['replicatedJobs'] == job_set['spec']['replicatedJobs']


# -- what the cluster says ----------------------------------------------------


@pytest.mark.parametrize(
  'text, said',
  [
    (
      'Error from server (Forbidden): jobsets.jobset.x-k8s.io is forbidden:'
      ' User "me" cannot create resource "jobsets"',
      'you may not do this in the cluster',
    ),
    (
      'Error from server (Forbidden): configmaps "a" is forbidden: exceeded'
      ' quota: small',
      'a quota of the namespace is used up',
    ),
    (
      'error: resource mapping not found for name: "a": no matches for kind'
      ' "JobSet" in version "jobset.x-k8s.io/v1alpha2"',
      'the cluster has no JobSet',
    ),
    (
      'error: You must be logged in to the server (Unauthorized)',
      'who you are',
    ),
    ('strict decoding error: unknown field "spec.x"', 'JobSet is too old'),
    (
      'The connection to the server localhost:8080 was refused',
      'kubectl knows no cluster',
    ),
  ],
)
def test_a_request_that_the_cluster_refuses(cloud, say, text, said):
  text = launch(say, cloud, 'pass', apply=[text], code=6)
  assert said in text and 'fix: ' in text
  assert (
    not (cloud.folder / 'kubernetes.json').exists()
    or not cloud.read('kubernetes.json')['maps']
  )


@pytest.mark.parametrize(
  'call, answer',
  [
    ('get jobset', '<html>Log in</html>'),
    ('get jobset', '[]'),
    ('get pods', '{}'),
    ('get events', '{"items": [{}]}'),
  ],
)
def test_an_answer_that_is_none(cloud, say, call, answer):
  one = '{"metadata": {}, "spec": {}}'
  none = '{"items": []}'
  cloud.plan(answers={'get jobset': one, 'get pods': none, call: answer})
  said = say('status', 'a', '--backend=gke', *SLICE[:2], SLICE[-1], code=6)
  assert f'the answer of kubectl {call} is not understood' in said
  assert f"got '{answer}'" in said and len(said.splitlines()) == 1


def test_a_wrong_context_and_namespace(cloud, say):
  """The job is not remembered, and can be launched where it is right."""
  said = launch(say, cloud, 'pass', '--config.gke.context=no', code=6)
  assert 'kubectl has no such context' in said
  said = launch(say, cloud, 'pass', '--config.gke.namespace=no', code=6)
  assert 'there is no such namespace' in said
  assert 'no job was launched here' in say('status')
  assert 'is launched' in launch(say, cloud, 'pass', ONE, '--detach')


def test_a_cluster_that_answers_the_third_time(cloud, say, monkeypatch):
  monkeypatch.setattr(calls.time, 'sleep', lambda _: None)
  away = 'Unable to connect to the server: dial tcp: i/o timeout'
  said = launch(say, cloud, 'print("ran")', ONE, get=[away, away])
  assert said.count('the cluster does not answer; trying again') == 2
  assert 'tiny: Completed' in said


@pytest.mark.parametrize(
  'wait, said',
  [
    (
      {
        'reason': 'Unschedulable',
        'message': "0/4 nodes are available: 4 node(s) didn't match Pod's node"
        ' affinity/selector.',
      },
      'no node takes it: is there a node pool of this TPU and topology',
    ),
    pytest.param(
      {'reason': 'ImagePullBackOff', 'message': 'Back-off pulling image'},
      'the image cannot be read: --config.gke.image',
      marks=SLOW,
    ),
    (
      {
        'reason': 'Quota',
        'message': 'pods "x" is forbidden: exceeded quota: small',
        'fails_create': True,
      },
      'a quota of the namespace is used up',
    ),
  ],
  ids=['unschedulable', 'image', 'quota'],
)
def test_pods_that_wait_say_why(cloud, say, wait, said):
  launch(say, cloud, 'pass', ONE, '--detach', wait=wait | {'seconds': 60})
  for _ in range(50):
    text = say('status', 'tiny')
    if said in text:
      break
    time.sleep(0.1)
  assert said in text and 'tiny: Pending' in text
  assert 'is deleted' in say('delete', 'tiny')


# -- the life of a job --------------------------------------------------------

COUNTED = """
rank = int(os.environ['TPU_WORKER_ID'])
rank += 4 * int(os.environ['MEGASCALE_SLICE_ID'])
from pathlib import Path
starts = Path(os.environ['FAKE_CLOUD'], f'starts-{rank}')
start = int(starts.read_text()) if starts.exists() else 0
starts.write_text(str(start + 1))
print('rank', rank, 'start', start, flush=True)
"""


def test_a_job_to_its_end(cloud, say):
  said = launch(say, cloud, COUNTED, TWO)
  for rank in range(2):
    assert said.count(f'[{rank}] rank {rank} start 0') == 1
  assert 'tiny: Completed' in say('status', 'tiny')
  assert say('logs', 'tiny').count('start 0') == 2
  # The same launch again replaces what has ended.
  assert 'is replaced' in launch(say, cloud, COUNTED, TWO, '--detach')


@pytest.mark.slow
def test_two_slices(cloud, say):
  said = launch(say, cloud, COUNTED, '--config.slices=2')
  for rank in range(8):
    assert f'[{rank}] rank {rank} start 0' in said


@pytest.mark.slow
def test_many_ranks_are_shown_by_the_first_of_each_slice(cloud, say):
  body = "print('host', os.environ['TPU_WORKER_ID'])"
  said = launch(say, cloud, body, '--config.accelerator=2xv6e-64')
  assert '[0] host 0' in said and '[16] host 0' in said
  assert 'host 1' not in said


def test_values_reach_the_pods_as_they_are(cloud, say):
  """Nothing in them is run, nor taken for a variable of Kubernetes."""
  bad = 'a"b\'c $(touch bad) $(PYTHONUNBUFFERED) `touch bad` $$ ;touch bad\n*'
  body = 'print(repr(os.environ["X"]), repr(sys.argv[3:5]))'
  said = launch(say, cloud, body, ONE, f'--config.env.X={bad}')
  assert said.count(f"[0] {bad!r} ['train', ") == 1
  assert not list(cloud.folder.parent.rglob('bad'))


@pytest.mark.parametrize(
  'code', [2, *(pytest.param(c, marks=SLOW) for c in (5, 130))]
)
def test_an_end_for_good_is_not_repeated(cloud, say, code):
  body = f'{COUNTED}\nif rank == 1: sys.exit({code})\ntime.sleep(60)'
  said = launch(say, cloud, body, TWO, '--config.gke.grace=1', code=code)
  assert 'tiny: Failed' in said and f'failed with exit code {code}' in said
  assert 'start 1' not in said


@pytest.mark.parametrize(
  'end',
  ['sys.exit(6)', pytest.param('os.kill(os.getpid(), 9)', marks=SLOW)],
)
def test_what_may_go_well_is_started_again(cloud, say, end):
  body = f'{COUNTED}\nif not start: {end}'
  said = launch(say, cloud, body, ONE)
  assert 'started again 1 times, 1 of 10 that count' in said
  assert '[0] rank 0 start 1' in said and 'Completed' in said


@pytest.mark.slow
def test_restarts_are_used_up(cloud, say):
  body = f'{COUNTED}\nsys.exit(6)'
  said = launch(say, cloud, body, '--config.restarts=1', code=6)
  assert 'reaching max number of restarts' in said
  assert (cloud.folder / 'starts-0').read_text() == '2'


SAVES = (
  COUNTED
  + """
import signal
def save(*_):
  time.sleep(0.3)
  print('saved', rank, flush=True)
  os._exit(143)
signal.signal(signal.SIGTERM, save)
print('runs', flush=True)
if start: sys.exit(0)
time.sleep(60)
"""
)


def test_preemption_is_no_restart_that_counts(cloud, say):
  event = {'do': 'preempt', 'rank': 0, 'grace': 5, 'log': 'runs', 'after': 1}
  said = launch(say, cloud, SAVES, TWO, '--config.restarts=0', events=[event])
  assert 'started again 1 times, 0 of 0 that count' in said
  saved = [f.read_text().count('saved') for f in cloud.folder.glob('*.log')]
  assert sum(saved) == 2 and 'Completed' in said


@pytest.mark.slow
def test_a_pod_without_memory_is_told(cloud, say):
  body = COUNTED + 'time.sleep(60)'
  event = {'do': 'oom', 'rank': 2, 'log': 'start', 'after': 1}
  said = launch(
    say, cloud, body, '--config.restarts=0', '--config.gke.grace=1',
    events=[event], code=137,
  )  # fmt: skip
  assert '[2]: its memory was not enough' in said


def test_stop_suspends_and_launch_goes_on(cloud, say):
  launch(say, cloud, SAVES, TWO, '--detach')
  for _ in range(100):
    said = [file.read_text() for file in cloud.folder.glob('*.log')]
    if ''.join(said).count('runs') == 2:
      break
    time.sleep(0.05)
  assert 'Running' in say('status', 'tiny')
  assert 'the job runs' in say('delete', 'tiny', code=2)
  said = say('stop', 'tiny')
  assert 'saves and ends' in said and 'nodes cost money' in said
  assert 'Suspended' in say('status', 'tiny')
  time.sleep(0.4)
  said = launch(say, cloud, SAVES, TWO)
  assert '[0] rank 0 start 1' in said and 'Completed' in said
  said = say('delete', 'tiny')
  assert 'is deleted' in said and 'nodes cost money' in said
  assert not cloud.read('kubernetes.json')['sets']


def test_a_job_that_runs_does_not_change(cloud, say):
  """What is stopped, or has ended, does."""
  one = ONE, '--detach', '--config.gke.grace=1'
  body = 'time.sleep(60)'
  launch(say, cloud, body, *one)
  said = launch(say, cloud, body, *one, '--config.restarts=3', code=2)
  assert 'got --config.restarts: 3 (there: 10), expected what it was' in said
  assert len(said.splitlines()) == 1 and 'launch stop tiny' in said
  said = launch(say, cloud, body, *one)
  assert 'tiny is there (' in said and 'going on with it' in said
  say('stop', 'tiny')
  changed = '--config.restarts=3', '--config.gke.namespace=default'
  said = launch(say, cloud, 'print("ran")', ONE, *changed)
  assert 'tiny has ended before (Suspended' in said and 'is replaced' in said
  assert 'changes: --config.gke.grace: 300 (before: 1); --config.re' in said
  assert '[0] ran' in said and 'tiny: Completed' in said
  line = say('status').strip()
  assert line.startswith('tiny  gke  v5e-4 (4 chips, 2x2, 1 host)  namespace')
  assert line.endswith('of the current context  Completed, pods: 1 Succeeded')


def test_a_set_of_another_machine_does_not_change(cloud, say, monkeypatch):
  one = ONE, '--detach', '--config.gke.grace=1'
  body = 'time.sleep(60)'
  launch(say, cloud, body, *one)
  monkeypatch.setenv('T5X_LITE_STATE', str(cloud.folder / 'other'))
  for changed in '--config.restarts=3', '--config.env.A=1':
    said = launch(say, cloud, body, *one, changed, code=2)
    assert 'was launched otherwise, and is there at --name=tiny' in said
    assert 'launch watch tiny --backend=gke' in said and said.count('\n') == 1
    assert 'no job was launched here' in say('status')
  assert 'going on with it' in launch(say, cloud, body, *one)
  assert 'is deleted' in say('delete', 'tiny', '--force')


def test_another_machine_needs_no_image(cloud, say, monkeypatch):
  where = '--backend=gke', '--config=v5e_4'
  said = say('delete', 'tiny', *where, code=2)
  assert 'here or in namespace default of the current context; got ti' in said
  launch(say, cloud, 'print("ran")', ONE)
  monkeypatch.setenv('T5X_LITE_STATE', str(cloud.folder / 'other'))
  assert 'Completed' in say('status', 'tiny', *where)
  assert '[0] ran' in say('logs', 'tiny', *where)
  assert '[0] ran' in say('watch', 'tiny', *where)
  assert 'has ended' in say('stop', 'tiny', *where)
  # Nor what else none but a launch reads.
  assert 'is deleted' in say(
    'delete', 'tiny', *where, '--config.capacity=reserved'
  )
  assert not cloud.read('kubernetes.json')['sets']


def test_a_watched_job_that_is_deleted(cloud, say, monkeypatch):
  """It stays forgotten, and who watches it is told."""
  launch(say, cloud, 'time.sleep(60)', ONE, '--config.gke.grace=1', '--detach')
  sleep = time.sleep

  def delete(seconds):
    monkeypatch.setattr(gke.time, 'sleep', sleep)
    job = jobs.find('tiny')
    gke.delete(job, True, print)

  monkeypatch.setattr(gke.time, 'sleep', delete)
  said = say('watch', 'tiny', code=6)
  assert 'the job was deleted elsewhere, and is left so at tiny' in said
  assert 'no job was launched here' in say('status')


def test_a_queue_of_kueue(cloud, say):
  queued = [ONE, '--config.gke.queue=team']
  launch(say, cloud, 'print("ran")', *queued, '--detach')
  said = launch(say, cloud, 'print("ran")', *queued)
  assert 'going on with it' in said
  assert 'Queued; it waits in the queue team' in said
  assert '[0] ran' in said and 'Completed' in said
  applied = [argv for argv in cloud.calls() if 'apply' in argv]
  assert len(applied) == 2  # and one of them was a dry run


def test_stop_takes_out_of_a_queue(cloud, say):
  launch(say, cloud, '', ONE, '--config.gke.queue=team', '--detach', looks=99)
  said = say('stop', 'tiny')
  assert 'out of the queue' in said and 'saved' not in said
  assert not cloud.read('kubernetes.json')['sets']


@pytest.mark.slow
def test_a_launcher_that_is_killed_loses_nothing(cloud, say, monkeypatch):
  body = COUNTED + 'time.sleep(2); print("late", rank)'
  python = clouds.worker(cloud.folder.parent, body)
  monkeypatch.setenv('FAKE_PYTHON', str(python))
  argv = ['launch', 'gke', *SLICE, '--', *STUB]
  process = runs.start(*argv)
  for line in process.stdout:
    if 'is in the cluster' in line:
      break
  process.send_signal(signal.SIGKILL)
  process.communicate()
  assert 'tiny: ' in say('status', 'tiny')
  assert say('watch', 'tiny').count('late') == 4
  assert (cloud.folder / 'starts-0').read_text() == '1'
  where = ['--backend=gke', *SLICE[:2], SLICE[-1]]
  monkeypatch.setenv('T5X_LITE_STATE', str(cloud.folder / 'other'))
  assert 'Completed' in say('status', 'tiny', *where)
  text = say('status', 'nobody', *where, code=2)
  assert 'here or in namespace default of the current context' in text


@pytest.mark.slow
def test_files_lie_where_the_command_starts(cloud, say, tmp_path):
  (tmp_path / 'my.gin').write_text("include 't5/1_1_small'\nRun.steps = 7\n")
  cloud.plan()
  body = 'print(open("recipe_0_my.gin").read()); print(sys.argv[4])'
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('FAKE_PYTHON', str(clouds.worker(tmp_path, body)))
    said = say(
      'gke', *SLICE, '--', 'train', '--gin_file=my.gin', '--workdir=gs://b/r'
    )
  assert '[0] Run.steps = 7' in said
  assert '[0] --gin_file=recipe_0_my.gin' in said
  assert 'is deleted' in say('delete', 'tiny')
  assert not cloud.read('kubernetes.json')['maps']


def test_lines_are_taken_once(tmp_path):
  file = tmp_path / 'said'
  file.write_text('1 a\n2 b\n3 c\n')
  lines = []
  stream = stamps.Stream(['cat', file], lines.append, since='1')
  stream.join(timeout=20)
  assert lines == ['b', 'c'] and stream.last == '3' and stream.ended_well


def test_who_reads_the_lines_may_leave(cloud, say):
  """As by `| head`; the job goes on."""
  body = "print('one', flush=True); time.sleep(60)"
  launch(say, cloud, body, ONE, '--config.gke.grace=1', '--detach')

  def leave(line):
    if line == '[0] one':
      raise BrokenPipeError

  with pytest.raises(BrokenPipeError):
    gke.watch(jobs.find('tiny'), leave)
  assert 'Running' in say('status', 'tiny')


# -- real training ------------------------------------------------------------


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  return runs.write_corpus(tmp_path_factory.mktemp('corpus'))


@pytest.fixture(scope='module')
def undisturbed(corpus):
  return clouds.undisturbed(corpus)


@pytest.fixture
def train(say, cloud, corpus):
  """Trains on a slice of two hosts with a chip each: (workdir, arguments)."""
  shared = corpus.parent
  workdir = shared / cloud.folder.parent.name

  def arguments(*options, devices=2):
    return [
      'gke', *SLICE, f'--config.shared_folders={shared}',
      '--config.gke.claim=nfs', '--config.gke.grace=60', *options, '--',
      *clouds.training(corpus, workdir, devices),
    ]  # fmt: skip

  return workdir, arguments


@pytest.fixture
def small(monkeypatch):
  """A slice that no vendor has: two chips on two hosts."""
  two = accelerators.Accelerator('v6e', 2, 1, 2, 2, '1x2', 2)
  monkeypatch.setattr(accelerators, 'parse', lambda *_: two)


IN_A_STEP = {'log': 'step 7/', 'in_save': False}
IN_A_SAVE = {'log': 'step 10/', 'in_save': True}
TOLD = {'do': 'preempt', 'rank': 0, 'grace': 60}
UNTOLD = TOLD | {'grace': 0}
FAULTS = {
  'preempted in a step': TOLD | IN_A_STEP,
  'preempted in a save': TOLD | IN_A_SAVE,
  'preempted in a step without notice': UNTOLD | IN_A_STEP,
  'preempted in a save without notice': UNTOLD | IN_A_SAVE,
  'a node is lost in a step': {'do': 'lose', 'rank': 1} | IN_A_STEP,
  'process 0 is lost in a step': {'do': 'lose', 'rank': 0} | IN_A_STEP,
  'process 0 is lost in a save': {'do': 'lose', 'rank': 0} | IN_A_SAVE,
  'out of memory': {'do': 'oom', 'rank': 1} | IN_A_STEP,
}


@pytest.mark.faults
@pytest.mark.parametrize('event', FAULTS.values(), ids=FAULTS.keys())
def test_faults_lose_nothing_that_was_saved(
  cloud, say, train, undisturbed, small, event, request
):
  workdir, arguments = train
  cloud.plan(events=[event], workdir=str(workdir))
  said = say(*arguments())
  found = clouds.check_fault(cloud, said, workdir, undisturbed)
  assert found.struck.saving == event['in_save']
  assert not found.lost or event.get('grace') != 60
  recovery.note(request, 'gke', found)


@pytest.mark.faults
def test_a_pod_that_never_arrives(
  cloud, say, train, undisturbed, small, request
):
  """It is named, and the JobSet started again."""
  workdir, arguments = train
  cloud.plan(absent=[{'restart': 0, 'rank': 1}], workdir=str(workdir))
  said = say(*arguments('--config.arrival_timeout=20'))
  assert '[1]: no node takes it' in said
  assert '1 of 2 processes did not call in within 20 s' in said
  assert 'no word of process 1' in said
  assert 'started again 1 times, 1 of 10 that count' in said
  found = clouds.check_fault(cloud, said, workdir, undisturbed)
  recovery.note(request, 'gke', found)


@pytest.mark.faults
@pytest.mark.parametrize(
  'rank, told',
  [(0, 'process 0 did not answer within 20 s'), (1, 'no word of process 1')],
)
def test_a_pod_that_never_arrives_ends_the_job(
  cloud, say, train, small, rank, told
):
  _, arguments = train
  cloud.plan(absent=[{'restart': 0, 'rank': rank}])
  few = '--config.arrival_timeout=20', '--config.restarts=0'
  said = say(*arguments(*few), code=6)
  assert f'[{rank}]: no node takes it' in said and told in said
  assert 'tiny: Failed' in said
  assert 'reaching max number of restarts' in said
  assert 'tiny: Failed' in say('status', 'tiny')


@pytest.mark.faults
def test_a_training_goes_on_without_its_launcher(
  cloud, say, train, corpus, request
):
  """The cluster starts it again, too; and whoever looks finds it."""
  workdir, arguments = train
  event = {'do': 'lose', 'rank': 1, 'log': 'step 12/', 'in_save': False}
  cloud.plan(events=[event], workdir=str(workdir))
  clouds.lose_launcher(cloud, workdir, *arguments(TWO, devices=8))
  clouds.await_event(cloud, 'ended')
  clouds.await_true(lambda: 'tiny: Running' in say('status', 'tiny'))
  clouds.await_event(cloud, 'recovered')
  assert '[0] going on from step' in say('logs', 'tiny')
  said = say('watch', 'tiny')
  assert 'started again 1 times, 1 of 10 that count' in said
  assert 'tiny: Completed' in said
  direct = clouds.undisturbed(corpus, devices=8)
  found = clouds.check_fault(cloud, said, workdir, direct)
  recovery.note(request, 'gke', found)


def test_commands_of_the_page(cloud, say):
  clouds.check_page('launch_gke.md', 'gke', 7, say, '"JobSet"')


def test_the_fake_is_strict(cloud):
  argv = ['kubectl', '--namespace=default', 'get', 'pods', '--sort=a']
  with pytest.raises(calls.CallError, match='unknown flag: --sort'):
    calls.run(argv, deadline=30)
  assert pathlib.Path(clouds.FAKES, 'kubectl').exists()
