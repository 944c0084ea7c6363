"""Jobs on TPU VMs, through the fake `gcloud` of tests/fakes."""

import ast
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest

from t5x_lite import accelerators
from t5x_lite import errors
from t5x_lite.launch import calls
from t5x_lite.launch import following
from t5x_lite.launch import gcloud
from t5x_lite.launch import jobs
from t5x_lite.launch import keeping
from t5x_lite.launch import leaving
from t5x_lite.launch import queueing
from t5x_lite.launch import shipping
from t5x_lite.launch import tpu_vm
from t5x_lite.launch import vms
from tests import fake_cloud
from tests import impatient

ROOT = pathlib.Path(__file__).parents[1]
# What a VM runs instead of Python and t5x_lite: it prints what it was given,
# and ends with the next of STUB_CODES; `wait` waits for SIGTERM, or is killed.
STUB = f"""#!{sys.executable} -S
import json, os, pathlib, signal, sys, time
tries = pathlib.Path('tries')
n = int(tries.read_text()) if tries.exists() else 0
tries.write_text(str(n + 1))
print(json.dumps([sys.argv, dict(os.environ)]), flush=True)
codes = os.environ.get('STUB_CODES', '0').split(',')
code = codes[min(n, len(codes) - 1)]
if code == 'wait':
  signal.signal(signal.SIGTERM, lambda *_: (print('saved'), sys.exit(143)))
  print('waiting', flush=True)
  time.sleep(100)
print('ends with', code, flush=True)
sys.exit(int(code))
"""


@pytest.fixture
def cloud(tmp_path, monkeypatch):
  """A fake cloud with a job's usual options, `options`; nothing stays."""
  made = fake_cloud.Cloud(tmp_path)
  for name, value in made.environment.items():
    monkeypatch.setenv(name, value)
  impatient.hurry(monkeypatch)
  stub = tmp_path / 'stub'
  stub.write_text(STUB)
  stub.chmod(0o755)
  made.options = [
    '--config=v5e_4',
    '--config.accelerator=2xv5e-1',
    f'--config.tpu_vm.port={made.port}',
    f'--config.tpu_vm.python={stub}',
    f'--config.shared_folders={tmp_path}',
  ]
  made.start = ['--', 'evaluate', f'--workdir={tmp_path}/my-run']
  yield made
  made.kill()


@pytest.fixture
def launch(cloud, command):
  """Launches a job of stubs, here: what is printed."""

  def run(*options, code=0, start=None):
    words = [*cloud.options, *options, *(start or cloud.start)]
    return command('launch', 'tpu_vm', *words, code=code)

  return run


# -- what is refused ----------------------------------------------------------


@pytest.mark.parametrize(
  'changes, said',
  [
    ({'accelerator': 'h100-8'}, 'tpu_vm has TPUs only at --config.accelerator'),
    ({'zone': ''}, 'no zone; fix: --config.zone=ZONE'),
    ({'zone': 'us:west'}, 'not a name of Google Cloud at --config.zone'),
    (
      {'slices': 2, 'tpu_vm': {'existing': 'vm'}},
      'one TPU VM has one slice at --config.tpu_vm.existing',
    ),
    ({'tpu_vm': {'existing': 'a/b'}}, 'not a name of Google Cloud'),
    ({'tpu_vm': {'port': 70000}}, 'not a port at --config.tpu_vm.port'),
    ({'tpu_vm': {'wheel': '/none.whl'}}, 'no such wheel'),
    ({'tpu_vm': {'wheel': __file__}}, 'no such wheel'),
  ],
)
def test_wrong_specs_are_refused(changes, said):
  made = fake_cloud.spec(**changes)
  with pytest.raises(errors.ConfigError, match=re.escape(said)):
    tpu_vm.check(made, jobs.accelerator(made))


def test_without_source_a_wheel_must_be_given(monkeypatch, tmp_path):
  monkeypatch.setattr(shipping, '_ROOT', tmp_path)
  with pytest.raises(errors.ConfigError, match='no wheel can be made'):
    tpu_vm.check(fake_cloud.spec(), jobs.accelerator(fake_cloud.spec()))
  wheel = tmp_path / 't5x_lite-1.0-py3-none-any.whl'
  wheel.touch()
  for given in ({'wheel': str(wheel)}, {'python': '/usr/bin/python3'}):
    made = fake_cloud.spec(tpu_vm=given)
    tpu_vm.check(made, jobs.accelerator(made))


def test_a_name_is_not_taken_for_a_fault(cloud):
  assert (
    gcloud.ask(gcloud.describe('quota-test', fake_cloud.spec()), tries=1)
    is None
  )


def test_no_gcloud(cloud, launch, monkeypatch):
  monkeypatch.setenv('PATH', '/nowhere')
  said = launch(code=2)
  assert 'there is no program gcloud here' in said


EVIL = [
  'a;touch X',
  'a&touch X',
  'a|touch X',
  'a$(touch X)',
  'a`touch X`',
  'a\ntouch X',
  'a > X',
  "a';touch X;'",
  'a";touch X;"',
  'a\\;touch X',
  '--flag=;touch X',
  '-oProxyCommand=touch X',
  'a b',
  'a*?[X]',
  '{a,X}',
  '~/X',
  '$HOME/X',
  '!!touch X',
  '#touch X',
  'a\ttouch X\r',
]


@pytest.mark.parametrize('evil', EVIL)
def test_s14_names_are_refused(evil):
  for field in (
    'zone',
    'project',
    'accelerator',
    'tpu_vm.existing',
    'tpu_vm.runtime',
    'tpu_vm.network',
    'tpu_vm.subnetwork',
    'tpu_vm.service_account',
  ):
    with pytest.raises(errors.ConfigError, match='not a name|no such acc'):
      jobs.load('v5e_4', [f'{field}={evil}'])
  with pytest.raises(errors.ConfigError, match='not a name of a job at --name'):
    jobs.check_name(evil)


def test_s14_a_refused_name_calls_nothing(cloud, launch):
  said = launch(f'--config.zone={EVIL[3]}', code=2)
  assert said.startswith('t5x_lite: not a name at --config.zone; got ')
  assert not cloud.calls()


def test_s14_values_arrive_as_they_are(cloud, launch, tmp_path):
  """Paths and variables may be anything; no shell reads them."""
  values = {f'E{n}': evil for n, evil in enumerate(EVIL)}
  folder = tmp_path / 'a;touch X&`touch X`$(touch X)\'"\n\\'
  folder.mkdir()
  taken = folder / "my $(touch X);'file"
  taken.write_text('here')
  said = launch(
    '--name=evil',
    f'--config.files={taken}',
    f'--config.shared_folders={folder}',
    *(f'--config.env.{name}={value}' for name, value in values.items()),
    start=['--', 'evaluate', f'--workdir={folder}/run'],
  )
  for rank in (0, 1):
    line = next(
      line for line in said.splitlines() if line.startswith(f'[{rank}] [[')
    )
    argv, environment = json.loads(line[4:])
    assert f'--workdir={folder}/run' in argv
    assert {k: environment[k] for k in values} == values
    home = cloud.home(f'evil-{rank}') / 't5x_lite_jobs' / 'evil' / 'files'
    assert (home / taken.name).read_text() == 'here'
  assert not list(tmp_path.rglob('X')) and not (ROOT / 'X').exists()
  for argv in cloud.calls('tpu-vm', 'ssh'):
    assert re.fullmatch(
      r'--command=python3 t5x_lite_jobs/evil/worker.py'
      r' (start --rank=\d|status|follow --offset=\d+)',
      argv[-1],
    )


# -- the life of a job --------------------------------------------------------


def test_a_job_from_its_request_to_its_end(cloud, launch, command, tmp_path):
  dry = launch('--dry_run')
  assert not cloud.calls() and not (tmp_path / 'state').exists()
  said = launch('--config.env.WORD=hello', '--config.delete_when_done=true')
  lines = said.splitlines()
  two = accelerators.parse('2xv5e-1')
  assert lines[0] == (
    f'asking for {two} in us-west4-a, 2 chips of v5e, on demand'
  )
  told = [line.split()[2] for line in lines if line.startswith('queued')]
  assert told == [
    'ACCEPTED',
    'WAITING_FOR_RESOURCES',
    'PROVISIONING',
    'ACTIVE',
  ]
  for rank in (0, 1):
    line = next(x for x in lines if x.startswith(f'[{rank}] [['))
    argv, environment = json.loads(line[4:])
    assert argv[1:4] == ['-m', 't5x_lite', 'evaluate']
    assert argv[4] == f'--workdir={tmp_path}/my-run'
    assert argv[-3:] == [
      f'--coordinator_address=127.0.0.1:{cloud.port}',
      *('--process_count=2', f'--process_index={rank}'),
    ]
    assert environment['WORD'] == 'hello'
    assert f'[{rank}] ends with 0' in lines
  assert lines[-1] == 'they are deleted; nothing costs money any more'
  assert cloud.state()['nodes'] == cloud.state()['queued'] == {}
  assert jobs.known() == [] and not list((tmp_path / 'state').rglob('job.json'))
  # What a dry run shows is what was called.
  called = {calls.shown(argv) for argv in cloud.calls()}
  shown = [
    line.removeprefix('gcloud compute tpus ')
    for line in dry.splitlines()
    if line.startswith('gcloud ')
  ]
  assert len(shown) == 9 and set(shown) <= called


@pytest.mark.slow
def test_one_process_needs_no_place(cloud, launch):
  said = launch('--config.accelerator=v5e-4')
  [line] = [x for x in said.splitlines() if x.startswith('[0] [[')]
  assert 'coordinator' not in json.loads(line[4:])[0][-1]
  assert 'to delete them: t5x_lite launch delete my-run' in said


@pytest.mark.slow
def test_an_existing_tpu_vm_is_used_and_kept(cloud, launch, command):
  said = launch('--config.accelerator=v4-16', '--detach')
  words = '--config.accelerator=v4-16', '--config.tpu_vm.existing=my-run'
  said = launch('--name=other', *words, '--config.delete_when_done=true')
  assert 'other is done' in said and 'my-run stays, and costs money' in said
  assert len(cloud.calls('queued-resources', 'create')) == 1
  assert 'it is not deleted' in command('launch', 'delete', 'other')
  assert not cloud.calls('queued-resources', 'delete')
  said = launch('--name=o', words[1], '--config.accelerator=v4-32', code=2)
  assert 'got 2 hosts, expected 4' in said
  said = launch(
    '--name=p', '--config.tpu_vm.existing=no', '--config.accelerator=v5e-4',
    code=2,
  )  # fmt: skip
  assert 'no such TPU VM at --config.tpu_vm.existing' in said


QUOTA = "RESOURCE_EXHAUSTED: Quota limit 'TPUV5s' has been exceeded. Limit: 0"
DENIED = "PERMISSION_DENIED: Permission 'tpu.queuedResources.create' denied"


@pytest.mark.parametrize(
  'said, told',
  [
    (
      QUOTA,
      'the quota of the project is used up, or none was granted; got ERR',
    ),
    (DENIED, 'your account may not do this in the project'),
  ],
)
def test_a_request_is_refused(cloud, launch, said, told):
  cloud.plan({'on': 'queued-resources create', 'say': said})
  assert told in launch(code=6)
  assert len(cloud.calls()) == 2  # it is not tried again
  assert not jobs.known() and not list(jobs.folder().glob('my-run*/'))
  # Another zone may have more.
  assert 'is launched' in launch('--config.zone=us-west1-c', '--detach')


@pytest.mark.slow
def test_no_capacity_yet(cloud, launch):
  path = ['ACCEPTED', *['WAITING_FOR_RESOURCES'] * 5, 'PROVISIONING', 'ACTIVE']
  cloud.plan({'on': 'queue', 'set': {'path': path}})
  said = launch('--config.accelerator=v5e-1')
  assert said.count('WAITING_FOR_RESOURCES') == 1 and 'is done' in said
  assert len(cloud.calls('queued-resources', 'describe')) > len(path)


@pytest.mark.slow
def test_no_capacity_at_all(cloud, launch):
  """It is told; the same command asks anew."""
  why = 'There is no more capacity in the zone "us-west4-a"'
  path = ['WAITING_FOR_RESOURCES', 'FAILED']
  cloud.plan({'on': 'queue', 'set': {'path': path, 'error': why}})
  said = launch('--config.accelerator=v5e-1', code=6)
  assert 'the zone has no such TPUs free at queued resource my-run' in said
  assert f'FAILED: {why}' in said
  said = launch('--config.accelerator=v5e-1')
  assert 'an earlier request is FAILED; it is deleted, and made anew' in said
  assert 'my-run is done' in said


@pytest.mark.slow
def test_taken_before_it_was_given(cloud, launch):
  path = ['PROVISIONING', 'SUSPENDING']
  cloud.plan({'on': 'queue', 'set': {'path': path}})
  said = launch('--config.accelerator=v5e-1')
  assert 'asking for new TPUs (1 of 10)' in said and 'my-run is done' in said


def test_waiting_has_an_end(cloud):
  cloud.plan({'on': 'queue', 'set': {'path': ['WAITING_FOR_RESOURCES']}})
  made = fake_cloud.spec(accelerator='v5e-1', tpu_vm={'wait': 1})
  asked = {'asked': time.time() - 3601}
  job = jobs.Job('my-run', 'tpu_vm', made.to_dict(), [], state=asked)
  gcloud.do(gcloud.create('my-run', made, job.accelerator), gcloud.EXISTS)
  with pytest.raises(calls.CallError) as e:
    queueing.acquire(job, lambda line: None)
  assert 'no TPUs within 1 hours at queued resource my-run' in str(e.value)
  assert 'WAITING_FOR_RESOURCES, which costs nothing' in str(e.value)


def test_ssh_and_scp_that_fail_are_tried_again(cloud, launch):
  cloud.plan(
    {'on': 'ssh', 'node': 'my-run', 'times': 2, 'code': 255},
    {'on': 'scp', 'node': 'my-run', 'say': 'lost connection'},
    # While it is followed: the connection, and later lines are not lost.
    {'on': 'ssh', 'node': 'my-run', 'after': 3, 'times': 2, 'code': 255},
  )
  said = launch('--config.accelerator=v5e-1')
  assert said.count('the VM is not reached by ssh; trying again (2 of 3)') == 2
  assert said.count('trying again (3 of 3)') == 1
  assert said.count('not reached by ssh; trying until it answers') == 1
  assert said.count('[0] ends with 0') == 1 and 'my-run is done' in said


@pytest.mark.slow
def test_a_vm_that_is_not_reached_is_named(cloud, launch):
  cloud.plan({'on': 'ssh', 'node': 'my-run-1', 'times': -1})
  said = launch(code=6)
  assert 'not reached by ssh at worker 0 of my-run-1, rank 1; got' in said
  assert 'fix: let port 22 in' in said


def test_of_many_workers_some_are_followed():
  many = [vms.VM(n, f'n-{n // 64}', n % 64, '') for n in range(128)]
  assert [vm.rank for vm in following.followed(None, many)] == [0, 64]
  assert following.followed(None, many[:16]) == many[:16]


def test_vms_have_their_ranks_in_the_order_of_the_slices():
  ends = [{'ipAddress': f'10.0.0.{n}'} for n in range(4)]
  said = {
    'a': {'networkEndpoints': ends},
    # Two networks: the first address of each VM is the one that counts.
    'b': {
      'networkEndpoints': [end for end in ends for _ in range(2)],
      'networkConfigs': [{}, {}],
    },
  }
  made = fake_cloud.spec(accelerator='v5e-16', slices=2)
  job = jobs.Job('job', 'tpu_vm', made.to_dict(), [])
  found = vms.find(job, said)
  assert [(vm.rank, vm.node, vm.worker) for vm in found][3:6] == [
    (3, 'a', 3),
    (4, 'b', 0),
    (5, 'b', 1),
  ]
  assert found[6].address == '10.0.0.2'


def test_a_command_is_started_again_unless_it_would_fail_again(cloud, launch):
  words = '--config.accelerator=v5e-1', '--config.env.STUB_CODES=6,137,3'
  said = launch(*words, code=3)
  assert 'ended with code 6; restart 1 of 10 in 0.2 s' in said
  assert 'ended with code 137; restart 2 of 10 in 0.4 s' in said
  assert 'restart 3' not in said and 'my-run ended with code 3' in said
  assert 'code 3  restarts: 2  | ends with 3' in said
  assert 'cost money' in said
  # The same command starts it once more, on the VMs that are there.
  said = launch(*words, code=3)
  assert 'queued resource my-run is there' in said
  assert said.count('[0] ends with 3') == 1 and 'ends with 6' not in said


@pytest.mark.slow
def test_restarts_have_a_limit(cloud, launch):
  words = '--config.accelerator=v5e-1', '--config.restarts=1'
  said = launch(*words, '--config.env.STUB_CODES=6', code=6)
  assert 'ended with code 6 after 1 restarts' in said


def test_looking_after_a_job(cloud, launch, command):
  one = '--config.accelerator=v5e-1', '--config.env.STUB_CODES=wait'
  launch('--detach', *one)
  said = command('launch', 'status', 'my-run')
  assert 'queued resource ACTIVE, asked for' in said
  assert re.search(r'\[0\] worker 0 of my-run: running  for \d+ s', said)
  assert 'cost money: 1 chips of v5e, on demand' in said
  refused = command('launch', 'delete', 'my-run', code=2)
  assert 'the job still runs' in refused and '--force' in refused
  said = command('launch', 'stop', 'my-run')
  assert 'ended  with code 143' in said and 'saved' in said
  assert '[0] saved' in command('launch', 'logs', 'my-run')
  said = command('launch', 'watch', 'my-run', code=143)
  assert 'my-run ended with code 143' in said
  command('launch', 'delete', 'my-run')
  assert cloud.state()['nodes'] == {}
  assert 'no job of this name' in command('launch', 'status', 'my-run', code=2)


@pytest.mark.slow
def test_a_job_is_found_from_elsewhere(
  cloud, launch, command, tmp_path, monkeypatch
):
  """Its VMs are killed, too: it is started on them again."""
  launch('--config.env.STUB_CODES=wait,0', '--detach')
  monkeypatch.setenv('T5X_LITE_STATE', str(tmp_path / 'elsewhere'))
  where = ['--backend=tpu_vm', *cloud.options]
  assert command('launch', 'logs', 'my-run', *where).count('] waiting') == 2
  cloud.kill()
  assert command('launch', 'status', 'my-run', *where).count(': gone') == 2
  said = command('launch', 'watch', 'my-run', *where)
  assert 'reading what it runs from worker 0 of my-run-0' in said
  assert said.count('] ends with 0') == 2 and 'my-run is done' in said
  command('launch', 'delete', 'my-run')
  said = command('launch', 'watch', 'my-run', *where, code=2)
  assert 'there is no such job, here or in us-west4-a; got my-run' in said


@pytest.fixture
def small(cloud, tmp_path, monkeypatch):
  """Makes a saved job of one VM, of which all is there here."""

  def make(**vm):
    vm = {'python': str(tmp_path / 'stub')} | vm
    made = fake_cloud.spec(accelerator='v5e-1', tpu_vm=vm)
    job = jobs.Job('my-run', 'tpu_vm', made.to_dict(), ['evaluate'])
    shipping.make(job)
    job.save()
    return job

  return make


def deleted(act, *what):
  with pytest.raises(calls.CallError, match='was deleted elsewhere') as e:
    act(*what)
  assert e.value.fault is leaving.DELETED and e.value.exit_code == 6
  return str(e.value)


def test_a_job_that_is_deleted_while_it_is_watched(cloud, small):
  """By another process here, or by hand: no new TPUs are asked for."""
  job, said = small(), []
  queueing.acquire(job, said.append)
  with cloud.changing() as kept:
    kept['queued']['my-run'].update(now='DELETING')
  assert 'DELETING, and not by' in deleted(queueing.gone, job)
  with cloud.changing() as kept:
    kept['queued']['my-run'].update(now='ACTIVE')
    kept['nodes']['my-run']['state'] = 'STOPPED'
  assert 'my-run is STOPPED' in deleted(queueing.gone, job)
  tpu_vm.delete(jobs.find('my-run'), True, said.append)
  assert cloud.state()['queued'] == {} and not jobs.known()
  for act, *what in [
    (queueing.gone, job),
    (queueing.ask_for, job, said.append),
    (keeping._renew, job, 'lost', said.append),
    (queueing.acquire, job, said.append, False),
    (following._look, job, None, said.append),
  ]:
    deleted(act, *what)
  shipping.make(job)
  job.save()  # known here, but its request was deleted by hand
  deleted(tpu_vm.watch, job, said.append)
  assert len(cloud.calls('queued-resources', 'create')) == 1


def test_a_vm_may_be_gone_before_its_request_says_so(cloud, small):
  job = small()
  queueing.acquire(job, print)
  with cloud.changing() as kept:
    del kept['nodes']['my-run']
    kept['queued']['my-run'].update(looks=0, path=['ACTIVE', 'SUSPENDED'])
  assert queueing.gone(job) == 'queued resource SUSPENDED'


@pytest.mark.slow
def test_who_watches_lets_a_job_be_deleted(cloud, command):
  """Each a process of its own, as a person would have them."""
  one = '--config.accelerator=v5e-1', '--config.env.STUB_CODES=wait'
  watching = cloud.launch('tpu_vm', *cloud.options, *one, *cloud.start)
  for line in watching.stdout:
    if line == '[0] waiting\n':
      break
  command('launch', 'delete', 'my-run', '--force')
  said, _ = watching.communicate(timeout=60)
  assert watching.returncode == 6, said
  assert 'the job was deleted elsewhere, and is left so at my-run' in said
  assert 'new TPUs' not in said and not jobs.known()
  assert len(cloud.calls('queued-resources', 'create')) == 1
  assert cloud.state()['queued'] == {}


def test_a_job_that_is_deleted_while_tpus_are_asked_for(
  cloud, small, monkeypatch
):
  job, do = small(), gcloud.do

  def forgets(argv, *more):
    if 'create' in argv:
      job.forget()
    return do(argv, *more)

  monkeypatch.setattr(gcloud, 'do', forgets)
  deleted(queueing.ask_for, job, lambda line: None)
  assert cloud.state()['queued'] == {} and not jobs.known()


def test_a_job_that_runs_does_not_change(cloud, launch, command, tmp_path):
  """But for what only we read; once it has ended, it is replaced."""
  one = '--config.accelerator=v5e-1', '--detach'
  waits = '--config.env.STUB_CODES=wait'
  launch(*one, waits)
  for option in '--config.tpu_vm.wait=48', '--config.delete_when_done=true':
    assert 'it runs on all of them' in launch(*one, waits, option)
  kept = jobs.find('my-run').spec
  assert kept.delete_when_done and kept.tpu_vm.wait == 24
  launch(*one, waits)
  for option, differs in {
    '--config.restarts=20': '--config.restarts: 20 (there: 10)',
    '--config.capacity=spot': '--config.capacity: spot (there: on_demand)',
  }.items():
    said = launch(*one, waits, option, code=2)
    assert f'got {differs}, expected what it was launched with' in said
    assert 'as it is ACTIVE, running; fix: t5x_lite launch stop' in said
    assert ('delete gives back' in said) == ('capacity' in option)
  line = command('launch', 'status').strip()
  assert line.startswith('my-run  tpu_vm  v5e-1 (')
  assert line.endswith('us-west4-a  ACTIVE, running')
  command('launch', 'stop', 'my-run')
  said = launch(*one, waits, '--config.capacity=spot', code=2)
  assert 'as it is ACTIVE, ended; fix: t5x_lite launch delete my-run' in said
  start = [*cloud.start, '--step=all']
  said = launch(one[0], '--config.restarts=20', start=start)
  assert 'my-run has ended before (code 143): it is replaced' in said
  assert '--config.restarts: 20 (before: 10)' in said
  assert 'my-run is done' in said
  assert len(cloud.calls('queued-resources', 'create')) == 1


def test_what_got_no_tpus_may_change_its_zone(cloud, launch):
  """Its request, which counts against quota, does not stay where it was."""
  fails = {'path': ['FAILED'], 'error': 'There is no more capacity in the zone'}
  cloud.plan({'on': 'queue', 'set': fails})
  one = '--config.accelerator=v5e-1', '--config.env.STUB_CODES=0'
  assert 'no such TPUs free' in launch(*one, code=6)
  said = launch(*one, '--config.zone=us-west1-c')
  assert 'my-run has ended before (FAILED): it is replaced' in said
  assert '--config.zone: us-west1-c (before: us-west4-a)' in said
  assert 'my-run is done' in said
  (asked,) = cloud.calls('queued-resources', 'delete')
  assert '--zone=us-west4-a' in asked


def test_a_job_that_nobody_knows(cloud, small, command):
  """Nothing is deleted, and no wheel is asked for."""
  small()
  where = (
    '--backend=tpu_vm',
    '--config=v5e_4',
    '--config.tpu_vm.wheel=/none.whl',
  )
  for verb in 'status', 'logs', 'watch', 'stop', 'delete':
    said = command('launch', verb, 'my-rum', *where, code=2)
    assert 'no such job, here or in us-west4-a; got my-rum; did you' in said
    assert 'did you mean my-run?' in said and said.count('\n') == 1
  assert 'job is forgotten' in command('launch', 'delete', 'my-run')
  assert 'no job was launched here' in command('launch', 'status')


@pytest.mark.parametrize('verb', ['status', 'logs', 'watch', 'stop', 'delete'])
def test_a_known_job_takes_no_spec(cloud, small, command, verb):
  small()
  for option in ('--backend=tpu_vm', '--config=v5e_4', '--config.zone=a'):
    said = command('launch', verb, 'my-run', option, code=2)
    assert 'the job was launched here: where it runs is known' in said
  assert not cloud.calls()


def test_what_is_given_is_not_given_up(cloud, small):
  """The time to wait is over, but the VMs are being made."""
  cloud.plan(
    {'on': 'queue', 'set': {'path': ['PROVISIONING'] * 4 + ['ACTIVE']}}
  )
  job = small()
  queueing.ask_for(job, print, begun=time.time() - 25 * 3600)
  assert queueing.acquire(job, print)


def test_a_request_whose_time_is_over_is_made_anew_for_more(cloud, small):
  cloud.plan({'on': 'queue', 'set': {'path': ['FAILED'], 'error': 'expired'}})
  job, said, begun = small(wait=48), [], time.time() - 25 * 3600
  queueing.ask_for(job, said.append, begun)
  with pytest.raises(calls.CallError, match='gives no TPUs'):
    queueing._wait(job, said.append)
  job.state['valid'] = time.time() - 3600
  queueing._wait(job, said.append)
  assert any('it is made anew' in line for line in said)
  assert job.state['asked'] == begun and 'ACTIVE' in said[-1]


def test_each_try_of_a_status_is_told(cloud, small, command, monkeypatch):
  """As when gcloud hangs, whose every try takes minutes."""
  job = small()
  queueing.acquire(job, print)
  run = calls.run
  monkeypatch.setattr(calls, 'run', lambda *a, **k: run(*a, **k | {'pause': 0}))
  hangs = {'say': 'DEADLINE_EXCEEDED: deadline', 'times': 1}
  cloud.plan(
    {'on': 'queued-resources describe'} | hangs,
    {'on': 'tpu-vm describe'} | hangs,
    {'on': 'tpu-vm describe', 'after': 1} | hangs,
    {'on': 'ssh', 'node': 'my-run', 'times': 1},
  )
  said = command('launch', 'status', 'my-run')
  assert said.count('failed for a moment; trying again (2 of 4)') == 3
  assert said.count('by ssh; trying again (2 of 3)') == 1


def test_a_job_that_is_half_made_is_not_launched(small, cloud, monkeypatch):
  """As when this machine falls while the wheel is made."""
  job = small()
  shipping.remove(job)

  def falls(spec, folder):
    assert (folder / 'worker.py').is_file()
    raise SystemExit

  monkeypatch.setattr(shipping, '_wheel', falls)
  job.config['tpu_vm']['python'] = ''
  with pytest.raises(SystemExit):
    shipping.make(job)
  assert not shipping.is_made(job)
  with pytest.raises(errors.ConfigError, match='by which it was launched once'):
    tpu_vm.watch(job, lambda line: None)
  assert not cloud.calls('queued-resources', 'create')
  shipping.remove(job)
  names = sorted(path.name for path in jobs.folder().iterdir())
  assert names == ['my-run.json']


def test_a_full_disk_does_not_keep_tpus(cloud, small, monkeypatch):
  job, said = small(), []
  queueing.acquire(job, lambda line: None)

  def full(*_):
    raise errors.StorageError('cannot write', got='No space left on device')

  monkeypatch.setattr(jobs.Job, 'save', full)
  tpu_vm.delete(job, True, said.append)
  assert 'not told: cannot write; got No space' in said[0]
  assert not jobs.known() and cloud.state()['nodes'] == {}


def test_a_deletion_that_failed_can_be_given_again(cloud, small):
  job = small()
  queueing.acquire(job, lambda line: None)
  cloud.plan({'on': 'queued-resources delete', 'say': DENIED})
  with pytest.raises(calls.CallError, match='may not do this'):
    tpu_vm.delete(job, True, lambda line: None)
  deleted(tpu_vm.watch, jobs.find('my-run'), lambda line: None)
  tpu_vm.delete(jobs.find('my-run'), True, lambda line: None)
  assert not jobs.known() and cloud.state()['nodes'] == {}


@pytest.mark.faults
def test_the_launcher_is_killed_and_the_job_found(cloud, launch, command):
  """Also Ctrl-C, which leaves."""
  one = '--config.accelerator=v5e-1', '--config.env.STUB_CODES=wait'
  words = [*cloud.options, *one, *cloud.start]
  first = cloud.launch('tpu_vm', *words)
  for line in first.stdout:
    if line == '[0] waiting\n':
      break
  first.kill()
  first.communicate()
  assert 'my-run: running' in command('launch', 'status', 'my-run')
  second = cloud.launch('watch', 'my-run')
  for line in second.stdout:
    if 'it runs on all of them' in line:
      break
  time.sleep(0.5)
  second.send_signal(signal.SIGINT)
  said, _ = second.communicate(timeout=60)
  assert second.returncode == 130, said
  assert 'my-run goes on without us; t5x_lite launch watch' in said
  command('launch', 'delete', 'my-run', '--force')
  assert cloud.state()['queued'] == {}


# -- what runs on a VM --------------------------------------------------------


@pytest.fixture
def vm(cloud, tmp_path, monkeypatch):
  """Runs worker.py for a job of one stub, as ssh would: its status."""
  made = fake_cloud.spec(
    accelerator='v5e-1',
    tpu_vm={'python': str(tmp_path / 'stub')},
    env={'STUB_CODES': 'wait'},
  )
  job = jobs.Job('job', 'tpu_vm', made.to_dict(), ['evaluate'])
  shipping.make(job)
  shipping.address(job, '127.0.0.1')
  home = tmp_path / 'cloud' / 'vms' / 'here' / '0'
  shutil.copytree(shipping.home('job'), home / gcloud.JOBS)
  monkeypatch.setenv('FAKE_VM', f'{home}/')

  def run(*words, name='job', code=0):
    done = subprocess.run(
      ['python3', home / gcloud.JOBS / name / 'worker.py', *words],
      capture_output=True,
      text=True,
    )
    assert done.returncode == code, done.stderr
    if words[0] in ('status', 'start', 'stop') and not code:
      return json.loads(done.stdout)
    return done.stdout + done.stderr

  run.home, run.folder = home, home / gcloud.JOBS / 'job'
  return run


def wait_until(ready, seconds=20):
  until = time.monotonic() + seconds
  while not ready():
    assert time.monotonic() < until
    time.sleep(0.05)


def test_a_worker_starts_once_and_stops(vm):
  assert vm('status')['phase'] == 'new'
  assert 'already' not in vm('start', '--rank=0')
  wait_until(lambda: vm('status')['last'] == 'waiting')
  assert vm('start', '--rank=0')['already']
  assert (vm.folder / 'files' / 'tries').read_text() == '1'
  # A TPU has one user: another job must wait.
  other = vm.folder.with_name('other')
  shutil.copytree(vm.folder, other, ignore=shutil.ignore_patterns('lock'))
  assert 'this VM runs another job, job' in vm(
    'start', '--rank=0', name='other', code=1
  )
  vm('stop')
  wait_until(lambda: vm('status')['phase'] == 'ended')
  status = vm('status')
  assert status['code'] == 143 and status['last'] == 'saved'


def test_a_worker_tells_its_log_from_where_it_is_asked(vm):
  vm('start', '--rank=0')
  wait_until(lambda: vm('status')['last'] == 'waiting')
  log = (vm.folder / 'log.txt').read_bytes()
  half = log.index(b'\n') + 1
  vm('stop')
  first, *told, last = vm('follow', f'--offset={half}').splitlines()
  assert first[0] == '=' and last[0] == '.'
  assert told == [f'+{len(log)} waiting', f'+{len(log) + 6} saved']
  assert json.loads(last[1:])['code'] == 143


def test_a_worker_whose_machine_fell_is_lost(vm, cloud):
  vm('start', '--rank=0')
  wait_until(lambda: vm('status')['last'] == 'waiting')
  cloud.kill(vm.home)
  status = vm('status')
  assert status['phase'] == 'lost'
  assert json.loads(vm('follow').splitlines()[-1][1:])['phase'] == 'lost'
  vm('start', '--rank=0')
  wait_until(lambda: (vm.folder / 'files' / 'tries').read_text() == '2')


def test_a_command_outlives_its_supervisor_alone(vm):
  """And nobody starts it beside itself."""
  status = vm('start', '--rank=0')
  wait_until(lambda: vm('status')['last'] == 'waiting')
  os.kill(vm('status')['pid'], signal.SIGKILL)
  assert vm('start', '--rank=0')['already']
  vm('stop')  # is told to the command itself
  wait_until(lambda: vm('status')['phase'] == 'lost')
  assert vm('status')['last'] == 'saved' and status['rank'] == 0


def test_a_worker_runs_on_the_python_of_a_vm():
  source = (ROOT / 'launch' / 'worker.py').read_text()
  tree = ast.parse(source, feature_version=(3, 8))
  names = {
    name.name.split('.')[0]
    for node in ast.walk(tree)
    if isinstance(node, ast.Import)
    for name in node.names
  }
  assert names <= sys.stdlib_module_names
  assert not any(isinstance(n, ast.ImportFrom) for n in ast.walk(tree))


# -- the page -----------------------------------------------------------------


def test_commands_of_the_page_are_right():
  from t5x_lite import cli

  text = (ROOT / 'docs' / 'launch_tpu_vm.md').read_text()
  lines = [
    line
    for block in re.findall(r'```sh\n(.*?)```', text, re.S)
    for line in block.splitlines()
  ]
  assert len(lines) == 8
  for line in lines:
    program, *words = shlex.split(line)
    assert program == 't5x_lite'
    cli.parse(words)
  for fault in (*gcloud.API_FAULTS, *gcloud.SSH_FAULTS):
    if fault.fix and 'network' not in fault.fix and 'account' not in fault.what:
      assert fault.what in text, fault


# -- following ----------------------------------------------------------------


def heard(*lines):
  """A stream of worker.py's lines."""

  class Heard(list):
    def kill(self):
      pass

    close = kill

  return Heard(lines)


@pytest.fixture
def tail(monkeypatch):
  """A Tail that hears these streams, one after the other: (it, lines)."""
  monkeypatch.setattr(following, 'PAUSE', 0.01)
  made = []

  def start(*streams, most=3):
    waiting, said, offsets, brought = list(streams), [], [], []

    def open_(offset):
      offsets.append(offset)
      stream = waiting.pop(0)
      if isinstance(stream, Exception):
        raise stream
      return stream

    def bring(vm):
      brought.append(vm)
      return {'phase': 'installing'}

    vm = vms.VM(1, 'n', 1, '')
    made.append(following.Tail(vm, {}, open_, bring, said.append, 0, most))
    return made[-1], said, offsets, brought

  yield start
  for one in made:
    one.close()
    one.join(timeout=5)


ENDED, LOST = (
  json.dumps({'phase': phase, 'code': 0, 'ended': 5, 'tried': 1})
  for phase in ('ended', 'lost')
)


def test_a_connection_goes_on_where_it_was_cut(tail):
  """Lines that gcloud's own second try gives again are not shown again."""
  one, said, offsets, _ = tail(
    heard('+5 one', '+9 two'),
    heard('+5 one', '+9 two', '+12 six', f'.{ENDED}'),
  )
  wait_until(lambda: one.over)
  assert [s for s in said if s[0] != '('] == ['one', 'two', 'six']
  assert offsets == [0, 9]


def test_a_job_that_does_not_stay_is_given_up(tail):
  one, _, _, brought = tail(*[heard(f'.{LOST}')] * 4, most=3)
  wait_until(lambda: one.fault)
  assert one.fault.what == 'the job does not stay on a VM'
  assert len(brought) == 3


def test_what_ended_is_started_again_if_others_are(tail):
  """Else a process that lost its peers in the end would wait for them."""
  late = json.dumps({'phase': 'running', 'tried': 9})
  one, _, _, brought = tail(heard(f'.{ENDED}'), heard(f'.{ENDED}'))
  wait_until(lambda: one.over)
  other, _, _, _ = tail(heard(f'={late}'), *[heard()] * 100)
  wait_until(lambda: other.status)
  following._rejoin([one, other])
  assert len(brought) == 1
  wait_until(lambda: one.over)


def test_who_reads_the_lines_may_leave(cloud, launch):
  """As by `| head`; the job goes on."""
  one = '--config.accelerator=v5e-1', '--config.env.STUB_CODES=wait'
  launch('--detach', *one)

  def leave(line):
    if line == '[0] waiting':
      raise BrokenPipeError

  with pytest.raises(BrokenPipeError):
    job = jobs.find('my-run')
    found = keeping.find(job)
    following.follow(job, found, [{'phase': 'running'}], None, leave)
  status = vms.ask(job, found[0], 'status')
  assert status['phase'] == 'running'


def test_credentials_that_end_stop_the_following_alone(tail):
  error = calls.failed(
    ['gcloud'], 1, 'Please run: gcloud auth login', gcloud.SSH_FAULTS
  )
  one, _, _, _ = tail(error)
  wait_until(lambda: one.fault)
  assert one.fault.what == 'gcloud is not logged in'
