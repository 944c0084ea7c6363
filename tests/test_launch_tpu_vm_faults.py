"""Training on TPU VMs of the fake cloud, and what disturbs it.

`make faults` runs most of it, `make slow` the rest; each fault tells how long
it took to recover.
"""

import dataclasses
import json
import os
import signal
import sys
import threading
import time

import pytest

from tests import fake_cloud
from tests import recovery
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

  def at(self, words, after=0.0):
    """When a line with these words was first printed after a moment."""
    return next(at for at, line in self.lines if at > after and words in line)


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
  return recovery.Moment.of(workdir).step


def assert_undisturbed(workdir, undisturbed):
  runs.assert_same_state(workdir, undisturbed, STEPS)
  assert runs.metrics(workdir) == runs.metrics(undisturbed)


@pytest.mark.slow
def test_it_trains_as_it_does_here(train, undisturbed, tmp_path):
  said = train(HERE).end()
  assert f'[0] step {STEPS}/{STEPS}' in said
  assert_undisturbed(tmp_path / 'run', undisturbed)


# -- disturbed ----------------------------------------------------------------


class Fault:
  """Something that strikes a run, and what it had right before and after."""

  def __init__(self, workdir, act):
    self.workdir, self.act, self.struck, self.ended = workdir, act, None, None

  def strike_when(self, ready):
    """Strikes, in a thread that is returned, at the first Moment for it."""

    def look():
      self.struck = recovery.Moment.of(self.workdir)
      return ready(self.struck)

    def strike():
      self.act()
      self.ended = recovery.Moment.of(self.workdir)

    return fake_cloud.when(look, strike)

  def follow(self, run):
    """Sees what a Run goes on from."""

    def look():
      # Those who were left may have finished a save since.
      saved = recovery.Moment.of(self.workdir).saved
      self.ended = dataclasses.replace(self.ended, saved=saved)

    fake_cloud.when(lambda: run.says('[0] going on from step'), look)

  def recovery(self, run, said):
    """The Recovery of a Run that has ended, if it is a good one."""
    assert self.ended is not None, said
    again = run.at('[0] going on from step')
    back = run.at('[0] step ', after=again)
    begun = recovery.begun(said)
    found = recovery.Recovery(self.struck, self.ended, begun, back)
    found.check(EVERY)
    return found


@pytest.fixture
def disturb(train, undisturbed, tmp_path, request):
  """Runs it, disturbs it at a moment, and compares it at its end."""
  workdir = tmp_path / 'run'

  def run(ready, act, *options):
    fault = Fault(workdir, act)
    struck = fault.strike_when(ready)
    started = train(HERE, *options)
    fault.follow(started)
    said = started.end()
    struck.join(timeout=10)
    assert_undisturbed(workdir, undisturbed)
    found = fault.recovery(started, said)
    recovery.note(request, 'tpu_vm', found)
    return said

  return run


def after(step):
  """Whether a step is done, and no save under way."""
  return lambda moment: moment.step >= step and not moment.saving


def saving(moment):
  """Whether a save is under way."""
  return moment.step >= 15 and moment.saving


@pytest.mark.faults
def test_preempted_in_a_step(cloud, disturb):
  said = disturb(after(17), lambda: cloud.preempt('run', 'run-0'))
  assert 'asking for new TPUs (1 of 10)' in said


@pytest.mark.faults
def test_preempted_while_it_saves(cloud, disturb):
  disturb(saving, lambda: cloud.preempt('run', 'run-1'))


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
def test_a_vm_that_never_arrives(cloud, train, undisturbed, tmp_path, request):
  """What was started there is not there: it is started once more."""
  cloud.plan({'on': 'dead start', 'node': 'run-1', 'times': 1})
  run = train(HERE)
  said = run.end()
  assert 'the job does not run on worker 0 of run-1: it is started' in said
  assert_undisturbed(tmp_path / 'run', undisturbed)
  none = recovery.Moment(run.at('started on all VMs'), 0, 0, False)
  back = run.at('[0] step ')
  recovery.note(request, 'tpu_vm', recovery.Recovery(none, none, 0, back))


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
def test_a_training_goes_on_without_its_launcher(
  cloud, train, undisturbed, tmp_path, request
):
  """It is preempted, too, and the same command takes it up again."""
  workdir = tmp_path / 'run'
  fault = Fault(workdir, lambda: cloud.preempt('run', 'run-0'))
  first = train(HERE)
  fake_cloud.when(lambda: reached(workdir) >= 8, first.process.kill).join()
  fault.strike_when(after(14)).join()
  run = train(HERE)
  fault.follow(run)
  said = run.end()
  assert 'an earlier request is SUSPENDED' in said
  assert_undisturbed(workdir, undisturbed)
  recovery.note(request, 'tpu_vm', fault.recovery(run, said))
