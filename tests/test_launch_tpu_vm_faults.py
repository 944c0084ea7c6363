"""Training on TPU VMs of the fake cloud, and what disturbs it.

`make faults` runs most of it, `make slow` the rest; each fault tells how long
it took to recover.
"""

import json
import os
import re
import signal
import sys
import threading
import time

import pytest

from tests import fake_cloud
from tests import runs

STEPS, EVERY = 40, 5
SMALL = runs.options(
  Transformer__encoder_layers=1,
  Transformer__decoder_layers=1,
  Run__steps=STEPS,
  Checkpoints__every=EVERY,
  Evaluation__every=1000,
)


class Run:
  """A launcher at work: its lines, and when they came."""

  def __init__(self, process):
    self.process, self.lines = process, []
    self._thread = threading.Thread(target=self._read, daemon=True)
    self._thread.start()

  def _read(self):
    with self.process.stdout as lines:
      for line in lines:
        self.lines.append((time.time(), line.rstrip('\n')))

  def end(self, code=0):
    """What it printed, once it ended with this code."""
    found = self.process.wait(timeout=400)
    self._thread.join(timeout=10)
    said = '\n'.join(line for _, line in self.lines)
    assert found == code, said
    assert 'Traceback' not in said, said
    return said

  def says(self, words):
    return any(words in line for _, line in self.lines)

  def step(self, after):
    """When the first step was printed after a moment, or None."""
    return next(
      (at for at, line in self.lines if at > after and '] step ' in line), None
    )


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  return runs.write_corpus(tmp_path_factory.mktemp('text'))


@pytest.fixture(scope='module')
def undisturbed(corpus, tmp_path_factory):
  """The workdir of the same run, started here by `launch local`."""
  workdir = tmp_path_factory.mktemp('undisturbed') / 'run'
  process = runs.launch(
    2, 'train', f'--corpus={corpus}', f'--workdir={workdir}', *SMALL
  )
  code, output = runs.finish(process)
  assert code == 0, output
  return workdir


@pytest.fixture
def cloud(tmp_path):
  made = fake_cloud.Cloud(tmp_path)
  yield made
  made.kill()


@pytest.fixture
def train(cloud, corpus, tmp_path):
  """Launches the run on two slices of one VM each."""
  started = []

  def start(*options):
    process = cloud.launch(
      'tpu_vm',
      '--config=v5e_4',
      '--config.accelerator=2xv5e-1',
      f'--config.tpu_vm.port={cloud.port}',
      f'--config.shared_folders={tmp_path},{corpus.parent}',
      *options,
      '--',
      'train',
      f'--corpus={corpus}',
      f'--workdir={tmp_path}/run',
      *SMALL,
    )
    started.append(process)
    return Run(process)

  yield start
  for process in started:
    process.kill()
    process.wait()


HERE = f'--config.tpu_vm.python={sys.executable}'  # nothing is installed


def reached(workdir):
  """The last step that a run has told."""
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  return max(json.loads(line)['step'] for line in lines)


def assert_undisturbed(workdir, undisturbed):
  runs.assert_same_state(workdir, undisturbed, STEPS)
  assert runs.metrics(workdir) == runs.metrics(undisturbed)


@pytest.mark.slow
def test_it_trains_as_it_does_here(train, undisturbed, tmp_path):
  said = train(HERE).end()
  assert f'[0] step {STEPS}/{STEPS}' in said
  assert_undisturbed(tmp_path / 'run', undisturbed)


# -- disturbed ----------------------------------------------------------------


@pytest.fixture
def disturb(train, undisturbed, tmp_path, capsys, request):
  """Runs it, disturbs it at a moment, and compares it at its end."""
  workdir = tmp_path / 'run'

  def run(ready, act, *options):
    seen = {}

    def disturb():
      seen['step'] = reached(workdir)
      seen['saved'] = max(runs.steps(workdir), default=0)
      act()

    def look():
      seen['finished'] = max(runs.steps(workdir), default=0)

    at = fake_cloud.when(lambda: ready(workdir), disturb)
    started = train(HERE, *options)
    fake_cloud.when(lambda: started.says('going on from step'), look)
    said = started.end()
    at.join(timeout=10)
    assert at.at is not None, said
    assert_undisturbed(workdir, undisturbed)
    # From the last save that was finished, by then or by what was left of it.
    begun = int(re.search(r'going on from step (\d+)', said)[1])
    assert seen['saved'] <= begun == seen['finished']
    lost = seen['step'] - begun
    assert lost <= 2 * EVERY  # a save waits for the one before it
    again = started.step(at.at + 1)
    if again:
      with capsys.disabled():
        print(
          f'\n{request.node.name}: disturbed at step {seen["step"]}, lost'
          f' {lost} steps, next step after {again - at.at:.1f} s'
        )
    return said

  return run


def after(step):
  """Whether a step is done, and saved what was to be saved before it."""
  saved = step // EVERY * EVERY
  return lambda workdir: (
    reached(workdir) >= step and max(runs.steps(workdir)) >= saved
  )


def saving(step):
  """Whether a checkpoint is being written, and is not there yet."""

  def ready(workdir):
    folders = [f.name for f in workdir.rglob(f'{step}*') if f.is_dir()]
    return bool(folders) and step not in runs.steps(workdir)

  return ready


@pytest.mark.faults
def test_preempted_in_a_step(cloud, disturb):
  said = disturb(after(12), lambda: cloud.preempt('run', 'run-0'))
  assert 'asking for new TPUs (1 of 10)' in said


@pytest.mark.faults
def test_preempted_while_it_saves(cloud, disturb):
  disturb(saving(15), lambda: cloud.preempt('run', 'run-1'))


@pytest.mark.faults
def test_preempted_twice(cloud, disturb):
  fake_cloud.when(
    lambda: (
      'run-0' in cloud.state()['nodes']
      and cloud.state()['made'] == 4
      and (cloud.folder.parent / 'run').exists()
      and reached(cloud.folder.parent / 'run') >= 20
    ),
    lambda: cloud.preempt('run', 'run-1'),
  )
  said = disturb(after(7), lambda: cloud.preempt('run', 'run-0'))
  assert 'asking for new TPUs (2 of 10)' in said


@pytest.mark.faults
def test_a_vm_is_lost_for_a_while(cloud, disturb):
  """As when it is moved to another machine: it comes back, without the job."""

  def lose():
    cloud.lose('run-1', 0)
    threading.Timer(4, lambda: cloud.found('run-1', 0)).start()

  said = disturb(after(12), lose)
  assert 'trying until it answers' in said
  assert 'the job does not run on worker 0 of run-1: it is started' in said
  assert 'asking for new TPUs' not in said


@pytest.mark.faults
def test_a_vm_is_lost_for_ever(cloud, disturb):
  said = disturb(
    after(12), lambda: cloud.lose('run-1', 0), '--config.arrival_timeout=40'
  )
  assert 'worker 0 of run-1, rank 1, has not answered for' in said
  assert 'asking for new TPUs (1 of 10)' in said


@pytest.mark.faults
def test_a_vm_that_never_arrives(cloud, train, undisturbed, tmp_path):
  """What was started there is not there: it is started once more."""
  cloud.plan({'on': 'dead start', 'node': 'run-1', 'times': 1})
  said = train(HERE).end()
  assert 'the job does not run on worker 0 of run-1: it is started' in said
  assert_undisturbed(tmp_path / 'run', undisturbed)


@pytest.mark.faults
def test_a_vm_that_never_arrives_is_told(cloud, train):
  cloud.plan({'on': 'dead start', 'node': 'run-1', 'times': -1})
  said = train(HERE, '--config.restarts=2').end(code=6)
  assert 'the job does not stay on a VM at worker 0 of run-1, rank 1' in said
  assert 'run is left as it is' in said


@pytest.mark.faults
def test_a_process_is_killed(cloud, disturb):
  """As for want of memory: its supervisor starts it again, and the others."""

  def kill():
    status = json.loads(
      (cloud.home('run-1') / 't5x_lite_jobs/run/status.json').read_text()
    )
    os.kill(status['child'], signal.SIGKILL)

  said = disturb(after(12), kill)
  assert 'ended with code 137; restart 1 of 10' in said
  assert 'asking for new TPUs' not in said


@pytest.mark.faults
def test_the_launcher_is_killed(cloud, train, undisturbed, tmp_path):
  """The job goes on, and is preempted; the same command takes it up again."""
  first = train(HERE)
  workdir = tmp_path / 'run'
  fake_cloud.when(lambda: reached(workdir) >= 8, first.process.kill).join()
  fake_cloud.when(
    lambda: reached(workdir) >= 14, lambda: cloud.preempt('run', 'run-0')
  ).join()
  said = train(HERE).end()
  assert 'an earlier request is SUSPENDED' in said
  assert 'going on from step' in said
  assert_undisturbed(workdir, undisturbed)
