"""`launch slurm`, through fake programs whose jobs are real processes."""

import functools
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time

import pytest

from t5x_lite import errors
from t5x_lite import processes
from t5x_lite.launch import jobs
from t5x_lite.launch import slurm
from t5x_lite.launch import slurm_queue
from t5x_lite.launch import slurm_script
from tests import clouds
from tests import impatient
from tests import recovery
from tests import runs

TINY = ['--config=gpu_8', '--config.accelerator=2xgpu-1', '--name=tiny']
STUB = ['train', '--gin_file=t5/1_1_small', '--workdir=/shared/runs/tiny']


@pytest.fixture
def cloud(tmp_path, monkeypatch):
  made = clouds.Cloud(tmp_path, monkeypatch)
  impatient.hurry(monkeypatch)
  yield made
  made.end()


@pytest.fixture
def say(capsys):
  return lambda *a, **k: clouds.launched(capsys, 'launch', *a, **k)


def a_job(*overrides, name='a', command=('train',), spec='gpu_8_x16'):
  config = jobs.load(spec, overrides)
  return jobs.Job(name, 'slurm', config.to_dict(), list(command))


def launch(say, cloud, body, *more, code=0, **plan):
  """Launches ranks that run a stub."""
  cloud.plan(**plan)
  python = clouds.worker(cloud.folder.parent, body)
  return say(
    'slurm', *TINY, f'--config.slurm.python={python}', *more, '--', *STUB,
    code=code,
  )  # fmt: skip


# -- the script ---------------------------------------------------------------


def test_the_script():
  job = a_job(
    'slurm.partition=gpus',
    'accelerator=h100-8',
    'env.A=it\'s "$(id)" `id` \n;',
    'slurm.setup=module load cuda,ulimit -n 4096',
    'slurm.python=/a b/$(id)/python',
    'restarts=3',
    command=['train', '--workdir=/a b;$(id)/`id`'],
  )
  text = slurm_script.script(job)
  head, _, body = text.partition('\n\n')
  assert head.splitlines() == [
    '#!/bin/bash',
    '#SBATCH --job-name=a',
    '#SBATCH --nodes=16',
    '#SBATCH --ntasks-per-node=1',
    '#SBATCH --gpus-per-node=h100:8',
    '#SBATCH --exclusive',
    '#SBATCH --mem=0',
    '#SBATCH --time=24:00:00',
    '#SBATCH --partition=gpus',
    '#SBATCH --output=../log.txt',
    '#SBATCH --open-mode=append',
    '#SBATCH --requeue',
    '#SBATCH --signal=B:TERM@120',
  ]
  assert 'module load cuda\nulimit -n 4096\n' in body
  assert "'/a b/$(id)/python' -m t5x_lite train " in body
  assert "'--workdir=/a b;$(id)/`id`'" in body and '--multiprocess' in body
  checked = subprocess.run(['bash', '-n'], input=text, text=True, check=True)
  assert not checked.stderr


def test_a_part_of_a_node_and_one_node():
  job = a_job('slurm.cpus=12', 'slurm.memory=64G', spec='gpu_8')
  options = slurm_script.options(job)
  assert 'gpus-per-node=8' in options and 'exclusive' not in options
  assert 'cpus-per-task=12' in options and 'mem=64G' in options
  assert '--cpus-per-task=12' in slurm_script.srun(job)
  assert '--multiprocess' not in slurm_script.command(job)
  assert slurm_script.command(job)[0] == sys.executable


def test_values_reach_the_ranks_as_they_are(cloud, say):
  """No shell runs any of them, whatever characters they have."""
  bad = 'a"b\'c $(touch bad) `touch bad` ;touch bad\n& | > bad *'
  said = launch(
    say,
    cloud,
    'print(repr(os.environ["X"]), repr(sys.argv[3:5]), os.getcwd())',
    f'--config.env.X={bad}',
  )
  assert said.count(f"[0] {bad!r} ['train', ") == 1
  assert not list(cloud.folder.parent.rglob('bad'))


def test_variables_are_of_the_ranks_alone(cloud, say):
  """Whatever their names mean to bash, or to the script."""
  names = 'place', 'restarts', 'code', 'UID', 'SECONDS', 'BASH_ENV', 'PATH_'
  given = [f'--config.env.{name}=/x {name}' for name in names]
  body = f'print([os.environ[n] for n in {names}])'
  said = launch(say, cloud, body, *given, '--config.env.EMPTY=')
  assert f'[0] {[f"/x {name}" for name in names]}' in said
  folder = pathlib.Path.cwd() / '.t5x_lite_jobs' / 'tiny'
  assert (folder / 'exit_code').read_text() == '0\n'
  mode = (folder / 'job.sh').stat().st_mode
  assert mode & 0o077 == 0  # they may be secrets


def test_what_was_refused_is_not_remembered(cloud, say):
  refused = say('slurm', *TINY, '--config.slurm.qos=no', '--', *STUB, code=6)
  assert 'no such QOS' in refused
  assert 'no job was launched here' in say('status')
  where = '--backend=slurm', '--config=gpu_8'
  said = say('delete', 'other', *where, code=2)
  assert 'no such job, here or in the queue of SLURM; got other' in said
  assert 'COMPLETED' in launch(say, cloud, 'pass')
  # What has ended may change, and is still there if what is new is refused.
  said = launch(say, cloud, 'pass', '--config.slurm.qos=no', code=6)
  assert 'tiny changes: --config.slurm.qos: no (before: none)\n' in said
  assert 'tiny has ended before (SLURM job ' in said
  assert 'COMPLETED on 2 nodes, 00:00:01, exit code 0): it is repl' in said
  assert 'no such QOS' in said
  assert 'COMPLETED' in say('status', 'tiny')


def test_a_job_that_runs_does_not_change(cloud, say, monkeypatch):
  """It is told what differs; the same launch goes on with it."""
  body, time_ = 'time.sleep(60)', ['--detach', '--config.env.A=1']
  launch(say, cloud, body, *time_)
  while 'RUNNING' not in say('status', 'tiny'):
    time.sleep(0.05)
  again = functools.partial(launch, say, cloud, body, *time_)
  said = again('--config.restarts=3', '--config.env.A=secret', code=2)
  assert 'was launched otherwise, and is there at --name=tiny' in said
  assert 'got --config.env.A: a value (there: a value); --config.re' in said
  assert '--config.restarts: 3 (there: 10), expected what it was' in said
  assert 'as it is SLURM job ' in said and 'launch stop tiny lets it' in said
  assert 'secret' not in said and len(said.splitlines()) == 1
  said = again()
  assert 'tiny is there (SLURM job ' in said and 'going on with it' in said
  assert (
    len(cloud.calls('sbatch')) == 1 and jobs.find('tiny').spec.restarts == 10
  )
  # Of what another machine has launched, the script tells.
  monkeypatch.setenv('T5X_LITE_STATE', str(cloud.folder / 'other'))
  said = again('--config.restarts=3', code=2)
  assert 'got restarts=3  # at most, expected /' in said
  assert 'going on with it' in again()
  assert 'is cancelled' in say('delete', 'tiny', '--force')


def test_files_of_a_job_that_runs_do_not_change(cloud, say, tmp_path):
  mine = '--detach', '--config.files=mine'
  (tmp_path / 'mine').write_text('one')
  launch(say, cloud, 'time.sleep(60)', *mine)
  (tmp_path / 'mine').write_text('two')
  said = launch(say, cloud, 'time.sleep(60)', *mine, code=2)
  assert 'got mine: what it is now (there: another), expected' in said


def test_jobs_are_listed_with_their_state(cloud, say):
  """Also of those that cannot be asked for."""
  launch(say, cloud, 'time.sleep(60)', '--detach')
  (jobs.folder() / 'broken.json').write_text('{')
  (jobs.folder() / 'folder.json').mkdir()
  gone = jobs.Job('gone', 'slurm', jobs.load('gpu_8').to_dict(), ['train'])
  gone.save()
  while 'RUNNING' not in say('status'):
    time.sleep(0.05)
  first, torn, second, third = say('status').splitlines()
  assert torn.startswith('folder  ') and 'Is a directory' in torn
  assert first.startswith('broken  what is remembered of a job is damaged')
  assert second.endswith(
    '1 node of 8 GPUs  the queue of SLURM  nothing is there'
  )
  folder = pathlib.Path.cwd() / '.t5x_lite_jobs' / 'tiny'
  start = f'tiny  slurm  2 nodes of 1 GPU  {folder}  SLURM job '
  assert third.startswith(start) and 'RUNNING on 2 nodes' in third
  cloud.plan(squeue=['Invalid user'] * 2)
  shown = say('status').splitlines()
  assert [line.count('not known how: squeue') for line in shown] == [0, 0, 1, 1]


def test_what_is_known_here_alone_is_forgotten(cloud, say):
  jobs.Job('gone', 'slurm', jobs.load('gpu_8').to_dict(), ['train']).save()
  assert 'gone is forgotten' in say('delete', 'gone')
  assert 'no job was launched here' in say('status')


@pytest.mark.parametrize('verb', ['status', 'logs', 'watch', 'stop', 'delete'])
def test_a_job_that_nobody_knows(cloud, say, verb):
  jobs.Job('mine', 'slurm', jobs.load('gpu_8').to_dict(), ['train']).save()
  said = say(verb, 'mien', '--backend=slurm', '--config=gpu_8', code=2)
  assert 'here or in the queue of SLURM; got mien; did you mean mine?' in said


def test_a_full_disk(cloud, say, tmp_path):
  """Nothing is put in the queue, or remembered."""
  (tmp_path / 'mine').write_text('mine')
  files = tmp_path / '.t5x_lite_jobs' / 'tiny' / 'files'
  files.mkdir(parents=True)
  (files / 'mine').symlink_to('/dev/full')
  said = launch(say, cloud, '', '--config.files=mine', code=7)
  assert f'cannot write at {files}/mine; got No space left' in said
  assert 'no job was launched here' in say('status')
  assert not cloud.calls('sbatch')


@pytest.mark.parametrize(
  'options, said',
  [
    (
      ['--config.accelerator=v5e-4'],
      'launch slurm is for GPU nodes at --config.accel',
    ),
    (
      ['--config.capacity=spot'],
      'at --config.capacity; got spot',
    ),
    (['--config.slurm.time=soon'], 'not a time limit'),
    (['--config.slurm.time=1:2:3:4'], 'not a time limit'),
    (['--config.slurm.grace=0'], 'slurm.grace; got 0, expected 1 to'),
    (['--config.zone=us-west4-a'], 'SLURM has no zone'),
    (['--config.project=p'], 'SLURM has no project'),
    (['--config.slurm.partition=a;id'], 'not a name at --config.slurm.part'),
    (['--config.slurm.qos=$(id)'], 'not a name'),
    (['--name=a$(id)'], 'not a name of a job'),
    (['--config.slurm.partitoin=a'], 'did you mean partition?'),
  ],
)
def test_what_slurm_does_not_take(cloud, say, options, said):
  assert said in say('slurm', *TINY, *options, '--', *STUB, code=2)
  assert not cloud.calls()


@pytest.mark.parametrize(
  'constraint, fine',
  [
    ('[rack1*2&rack2*4]', True),
    ('(knl&a100)|h100', True),
    ('a b', False),
    ('a\n', False),
    ('a;id', False),
    ('"a"', False),
    ('a #', False),
  ],
)
def test_constraints(constraint, fine):
  config = jobs.spec(accelerator='gpu-8', slurm={'constraint': constraint})
  job = jobs.Job('a', 'slurm', config.to_dict(), ['train'])
  if not fine:
    with pytest.raises(errors.ConfigError, match='expected features, and &'):
      jobs.check(config)
    return
  jobs.check(config)
  slurm.check(config, job.accelerator)
  line = f'#SBATCH --constraint={constraint}\n'
  assert line in slurm_script.script(job)


def test_a_relative_workdir_is_refused(cloud, say):
  text = say('slurm', *TINY, '--', *STUB[:-1], '--workdir=runs/a', code=2)
  assert f'fix: --workdir={pathlib.Path.cwd()}/runs/a' in text


def test_a_dry_run_shows_what_a_launch_does(cloud, say):
  said = say('slurm', *TINY, '--dry_run', '--', *STUB)
  assert not cloud.calls() and not list(pathlib.Path.cwd().rglob('job.sh'))
  launch(say, cloud, 'pass', '--detach')
  script = next(pathlib.Path.cwd().rglob('job.sh')).read_text()
  python = str(cloud.folder.parent / 'worker')
  for line in script.replace(python, sys.executable).splitlines():
    assert line in said
  assert shlex.join(cloud.calls('sbatch')[0]) in said


def test_files_of_the_names_of_ours(cloud, say, tmp_path):
  """They lie in a folder of their own."""
  names = 'job.sh', 'log.txt', 'exit_code'
  for name in names:
    (tmp_path / name).write_text(f'mine: {name}\n')
  body = f'print([open(n).read() for n in {names}])'
  option = f'--config.files={",".join(names)}'
  said = launch(say, cloud, body, option)
  assert all(f'mine: {name}' in said for name in names)
  folder = tmp_path / '.t5x_lite_jobs' / 'tiny'
  assert (folder / 'exit_code').read_text() == '0\n'


# -- what SLURM says ----------------------------------------------------------


@pytest.mark.parametrize(
  'options, said',
  [
    (['--config.slurm.partition=no'], 'SLURM has no such partition'),
    (['--config.slurm.account=no'], 'this account may not use this partition'),
    (['--config.slurm.qos=no'], 'there is no such QOS for you'),
    (['--config.slurm.constraint=no'], 'no node has this constraint'),
    (['--config.accelerator=b200-8'], 'no node has GPUs of this kind'),
    (['--config.accelerator=gpu-16'], 'no node has as many GPUs'),
    (['--config.slurm.time=30-0'], 'it asks for more time than it may'),
  ],
)
def test_a_request_that_slurm_refuses(cloud, say, options, said):
  text = say('slurm', *TINY, *options, '--', *STUB, code=6)
  assert said in text and 'fix: ' in text
  assert len(text.splitlines()) == 1


def test_a_limit_of_the_qos(cloud, say):
  cloud.plan(
    sbatch=[
      'QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed:'
      ' Job violates accounting/QOS policy (job submit limit, ...)'
    ]
  )
  text = say('slurm', *TINY, '--', *STUB, code=6)
  assert 'a limit of your account or QOS stands in the way' in text


def test_a_controller_that_answers_late_gets_one_job(cloud, say, monkeypatch):
  monkeypatch.setattr(slurm_queue.time, 'sleep', lambda _: None)
  said = launch(
    say,
    cloud,
    'time.sleep(60)',
    '--detach',
    sbatch=['Unable to contact slurm controller (connect failure)']
    + ['accepted: Socket timed out on send/recv operation'],
  )
  assert said.count('does not answer; trying again') == 2
  assert len(cloud.read('slurm.json')) == 1
  assert 'is SLURM job' in said


@pytest.mark.parametrize('program', ['squeue', 'sacct', 'sbatch'])
def test_an_answer_that_is_none(cloud, say, program):
  """Nothing is put in a queue of which nobody knows what is in it."""
  said = launch(say, cloud, '', answers={program: 'NOTE: down at noon'}, code=6)
  assert f'the answer of {program} is not understood' in said
  assert len(cloud.calls('sbatch')) == (program == 'sbatch')


def test_notes_of_the_cluster_are_no_job(cloud, say):
  notes = ['NOTE: down at noon', '1 of 2|nodes|are|down|at|noon']
  launch(say, cloud, 'time.sleep(60)', '--detach', notes=notes)
  (number,) = cloud.read('slurm.json')
  assert f'tiny (SLURM job {number})' in say('status', 'tiny')


def test_an_exit_code_that_was_cut_short(tmp_path):
  assert slurm_queue.left(tmp_path) is None
  for text, code in {'': None, '3\n': 3}.items():
    (tmp_path / 'exit_code').write_text(text)
    assert slurm_queue.left(tmp_path) == code


def test_a_job_that_waits_says_why(cloud, say):
  launch(
    say,
    cloud,
    'pass',
    '--detach',
    pending={'reason': 'QOSMaxGRESPerUser', 'seconds': 60},
  )
  time.sleep(0.5)
  said = say('status', 'tiny')
  assert 'PENDING for 2 nodes, QOSMaxGRESPerUser: a limit of your QOS' in said
  assert 'taken out of the queue' in say('stop', 'tiny')
  time.sleep(0.5)
  assert 'CANCELLED' in say('status', 'tiny')
  assert 'nothing to stop' in say('stop', 'tiny')


# -- the life of a job --------------------------------------------------------

COUNTED = """
find = os.environ.get
rank, restart = find('SLURM_PROCID'), find('SLURM_RESTART_COUNT')
print('rank', rank, 'of', find('SLURM_NTASKS'), 'restart', restart)
"""


def test_a_job_to_its_end(cloud, say):
  said = launch(say, cloud, COUNTED)
  assert '[0] rank 0 of 2 restart None' in said
  assert '[1] rank 1 of 2 restart None' in said
  assert 'COMPLETED' in said
  assert 'COMPLETED' in say('status', 'tiny')
  assert say('logs', 'tiny').count('rank 1 of 2') == 1
  assert 'tiny  slurm  2 nodes of 1 GPU' in say('status')


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
  'code', [2, *(pytest.param(c, marks=SLOW) for c in (1, 3, 4, 5, 130))]
)
def test_an_end_for_good_is_not_repeated(cloud, say, code):
  said = launch(say, cloud, f'sys.exit({code})', code=code)
  assert f'exit code {code}' in said
  assert not cloud.calls('scontrol')


@pytest.mark.parametrize(
  'end',
  ['sys.exit(6)', pytest.param('os.kill(os.getpid(), 9)', marks=SLOW)],
)
def test_what_may_go_well_is_started_again(cloud, say, end):
  said = launch(say, cloud, f'{COUNTED}\nif not restart: {end}')
  assert 'restart 1 of 10' in said
  assert '[0] rank 0 of 2 restart 1' in said and 'COMPLETED' in said


@pytest.mark.slow
def test_restarts_are_used_up(cloud, say):
  said = launch(say, cloud, 'sys.exit(6)', '--config.restarts=2', code=6)
  assert 'ended with code 6, and 2 restarts are used up' in said
  assert len(cloud.calls('srun')) == 3


SAVES = """
import signal
def save(*_):
  time.sleep(0.5)
  print('saved', flush=True)
  os._exit(143)
signal.signal(signal.SIGTERM, save)
print('runs', os.environ.get('SLURM_RESTART_COUNT'), flush=True)
if os.environ.get('SLURM_RESTART_COUNT'): sys.exit(0)
time.sleep(60)
"""


@pytest.mark.parametrize(
  'event, options',
  [
    ({'do': 'preempt', 'grace': 5, 'log': r'runs[\s\S]*runs'}, []),
    pytest.param({'do': 'node_fail', 'log': 'runs'}, [], marks=SLOW),
    pytest.param(
      None,
      ['--config.slurm.time=0:0:3', '--config.slurm.grace=2'],
      marks=SLOW,
    ),
  ],
  ids=['preempted', 'node_fails', 'time_limit'],
)
def test_it_saves_and_goes_on(cloud, say, event, options):
  said = launch(say, cloud, SAVES, *options, events=[event] if event else [])
  assert 'COMPLETED' in said and '[1] runs 1' in said
  saves = 0 if event and event['do'] == 'node_fail' else 2
  assert said.count('saved') == saves
  assert 'forcing job termination' not in said


def test_stop_lets_it_save_and_end(cloud, say):
  launch(say, cloud, SAVES, '--detach')
  log = next(pathlib.Path.cwd().rglob('job.sh')).with_name('log.txt')
  while not log.exists() or log.read_text().count('runs') < 2:
    time.sleep(0.05)
  assert 'RUNNING on 2 nodes' in say('status', 'tiny')
  assert 'saves and ends' in say('stop', 'tiny')
  said = say('watch', 'tiny', code=143)
  assert said.count('saved') == 2 and 'stopped as asked' in said
  assert len(cloud.calls('srun')) == 1
  assert 'log stay in' in say('delete', 'tiny')
  assert 'no job was launched here' in say('status')


def test_a_watched_job_that_is_deleted(cloud, say, monkeypatch):
  """It stays forgotten, and who watches it is told."""
  launch(say, cloud, 'print(1, flush=True); time.sleep(60)', '--detach')
  sleep = time.sleep

  def delete(seconds):
    monkeypatch.setattr(slurm.time, 'sleep', sleep)
    job = jobs.find('tiny')
    slurm.delete(job, True, print)

  monkeypatch.setattr(slurm.time, 'sleep', delete)
  said = say('watch', 'tiny', code=6)
  assert 'the job was deleted elsewhere, and is left so at tiny' in said
  assert 'no job was launched here' in say('status')


@pytest.mark.slow
def test_delete_of_a_running_job_must_be_forced(cloud, say):
  launch(say, cloud, 'time.sleep(60)', '--detach')
  time.sleep(0.5)
  assert 'fix: t5x_lite launch stop tiny' in say('delete', 'tiny', code=2)
  assert 'is cancelled' in say('delete', 'tiny', '--force')


@pytest.mark.slow
def test_a_launcher_that_is_killed_loses_nothing(cloud, say):
  python = clouds.worker(
    cloud.folder.parent, COUNTED + 'time.sleep(2); print("late", rank)'
  )
  argv = ['launch', 'slurm', *TINY, f'--config.slurm.python={python}']
  process = runs.start(*argv, '--', *STUB)
  for line in process.stdout:
    if 'is SLURM job' in line:
      break
  process.send_signal(signal.SIGKILL)
  process.communicate()
  assert 'SLURM job' in say('status', 'tiny')
  said = say(*argv[1:], '--', *STUB)  # the same command goes on with it
  assert 'going on with it' in said or 'COMPLETED' in said
  assert len(cloud.calls('sbatch')) == 1
  assert say('logs', 'tiny').count('late') == 2


@pytest.mark.slow
def test_a_job_is_found_from_another_machine(cloud, say, monkeypatch, tmp_path):
  launch(say, cloud, COUNTED)
  monkeypatch.setenv('T5X_LITE_STATE', str(tmp_path / 'other'))
  where = ['--backend=slurm', '--config=gpu_8']
  assert 'COMPLETED' in say('status', 'tiny', *where)
  assert 'rank 1 of 2' in say('logs', 'tiny', *where)
  assert 'log stay in' in say('delete', 'tiny', *where)


@pytest.mark.slow
def test_a_cluster_without_accounts(cloud, say):
  launch(say, cloud, 'sys.exit(3)', code=3, accounting=False)
  assert 'exit code 3' in say('status', 'tiny')


@pytest.mark.slow
def test_the_same_name_from_another_folder(cloud, say, monkeypatch, tmp_path):
  launch(say, cloud, 'time.sleep(60)', '--detach')
  (tmp_path / 'other').mkdir()
  monkeypatch.chdir(tmp_path / 'other')
  monkeypatch.setenv('T5X_LITE_STATE', str(tmp_path / 'other'))
  text = say('slurm', *TINY, '--', *STUB, code=2)
  assert 'is in the queue, from another folder' in text


def test_lines_have_their_rank_in_front():
  assert slurm.ranked(' 3: step 1') == '[3] step 1'
  assert slurm.ranked('12: ') == '[12] '
  assert slurm.ranked('srun: error: x') == 'srun: error: x'


def test_jax_is_told_all_that_it_would_ask_slurm_for(monkeypatch):
  asked = {}
  monkeypatch.setattr(processes, '_group', None)
  monkeypatch.setattr(processes.groups, 'Group', lambda *_: 'met')
  monkeypatch.setattr(
    'jax.distributed.initialize', lambda *_, **kept: asked.update(kept)
  )
  processes.join(processes.Place('127.0.0.1:1', 1, 0), {})
  assert asked['cluster_detection_method'] == 'deactivate'


@pytest.mark.slow
def test_no_gpu_is_left_out_under_slurm():
  """JAX would give each process the one GPU of its number on the node."""
  code = """
import socket
import jax
from t5x_lite import processes
with socket.create_server(('127.0.0.1', 0)) as s:
  port = s.getsockname()[1]
processes.join(processes.Place(f'127.0.0.1:{port}', 1, 0), {})
print(jax.config._read('jax_cuda_visible_devices'))
"""
  place = dict(JOB_ID=1, STEP_NODELIST='a', NTASKS=1, PROCID=0, LOCALID=0)
  environment = {f'SLURM_{k}': str(v) for k, v in place.items()}
  done = subprocess.run(
    [sys.executable, '-c', code],
    env=os.environ | environment,
    capture_output=True,
    text=True,
  )
  assert done.stdout.strip() == 'all', done.stderr


# -- real training ------------------------------------------------------------


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  return runs.write_corpus(tmp_path_factory.mktemp('corpus'))


@pytest.fixture(scope='module')
def undisturbed(corpus):
  return clouds.undisturbed(corpus)


@pytest.fixture
def train(cloud, corpus):
  """(workdir, arguments) of the small run on two nodes."""
  workdir = cloud.folder.parent / 'runs' / 'tiny'

  def arguments(*options):
    command = clouds.training(corpus, workdir)
    return ['slurm', *TINY, *options, '--', *command]

  return workdir, arguments


IN_A_STEP = {'log': 'step 7/', 'in_save': False}
IN_A_SAVE = {'log': 'step 10/', 'in_save': True}
TOLD = {'do': 'preempt', 'grace': 60}
FAULTS = {
  'a rank dies in a step': {'do': 'kill_task', 'task': 1} | IN_A_STEP,
  'rank 0 dies in a step': {'do': 'kill_task', 'task': 0} | IN_A_STEP,
  'a rank dies in a save': {'do': 'kill_task', 'task': 1} | IN_A_SAVE,
  'preempted in a step': TOLD | IN_A_STEP,
  'preempted in a save': TOLD | IN_A_SAVE,
  'a node fails in a step': {'do': 'node_fail'} | IN_A_STEP,
  'a node fails in a save': {'do': 'node_fail'} | IN_A_SAVE,
}


@pytest.mark.faults
@pytest.mark.parametrize('event', FAULTS.values(), ids=FAULTS.keys())
def test_faults_lose_nothing_that_was_saved(
  cloud, say, train, undisturbed, event, request
):
  workdir, arguments = train
  cloud.plan(events=[event], workdir=str(workdir))
  said = say(*arguments())
  found = clouds.check_fault(cloud, said, workdir, undisturbed)
  assert found.struck.saving == event['in_save']
  assert not found.lost or event['do'] != 'preempt'
  recovery.note(request, 'slurm', found)


@pytest.fixture
def soon(monkeypatch):
  """Ranks that hang are ended soon after the others."""
  monkeypatch.setattr(slurm_script, '_WAIT', 2)


@pytest.mark.faults
def test_a_task_that_never_arrives(
  cloud, say, train, undisturbed, soon, request
):
  """It is named, and the job put in the queue again."""
  workdir, arguments = train
  cloud.plan(absent=[{'restart': 0, 'rank': 1}], workdir=str(workdir))
  said = say(*arguments('--config.arrival_timeout=20'))
  assert '1 of 2 processes did not call in within 20 s' in said
  assert 'no word of process 1' in said
  assert 'restart 1 of 10' in said
  found = clouds.check_fault(cloud, said, workdir, undisturbed)
  recovery.note(request, 'slurm', found)


@pytest.mark.faults
@pytest.mark.parametrize(
  'rank, told',
  [(0, 'process 0 did not answer within 20 s'), (1, 'no word of process 1')],
)
def test_a_task_that_never_arrives_ends_the_job(
  cloud, say, train, soon, rank, told
):
  _, arguments = train
  cloud.plan(absent=[{'restart': 0, 'rank': rank}])
  few = '--config.arrival_timeout=20', '--config.restarts=0'
  said = say(*arguments(*few), code=137)  # the highest, as srun has it
  assert told in said and ', and 0 restarts are used up' in said
  assert 'FAILED' in say('status', 'tiny')


@pytest.mark.faults
def test_a_training_goes_on_without_its_launcher(
  cloud, say, train, undisturbed, request
):
  """SLURM starts it again, too; and whoever looks finds it."""
  workdir, arguments = train
  event = {'do': 'node_fail', 'log': 'step 12/', 'in_save': False}
  cloud.plan(events=[event], workdir=str(workdir))
  clouds.lose_launcher(cloud, workdir, *arguments())
  clouds.await_event(cloud, 'ended')
  clouds.await_true(lambda: 'RUNNING on 2 nodes' in say('status', 'tiny'))
  assert 'started again 1 of 10 times' in say('status', 'tiny')
  clouds.await_event(cloud, 'recovered')
  assert '[0] going on from step' in say('logs', 'tiny')
  said = say('watch', 'tiny')
  assert 'COMPLETED' in said
  found = clouds.check_fault(cloud, said, workdir, undisturbed)
  recovery.note(request, 'slurm', found)


def test_commands_of_the_page(cloud, say):
  clouds.check_page(
    'launch_slurm.md', 'slurm', 7, say, '#SBATCH --partition=gpus'
  )


def test_errors_are_of_the_right_kind():
  config = jobs.load('v5e_4')
  with pytest.raises(errors.ConfigError):
    slurm.check(config, jobs.accelerator(config))
