"""The quickstart recipe through each backend: the run that it is here."""

import json
import sys

import pytest

from t5x_lite import accelerators
from tests import clouds
from tests import fake_cloud
from tests import impatient
from tests import runs

pytestmark = pytest.mark.slow
STEPS = 3
FEW = [
  '--gin_file=t5/quickstart',
  '--gin.Data.document=paragraph',
  f'--gin.Run.steps={STEPS}',
  '--gin.Run.batch_size=8',
  '--gin.Run.log_every=1',
  '--gin.Evaluation.examples=16',
]


def tpu_vm(folder, shared, patch):
  """Two slices of a VM each, on which the wheel of this checkout is put."""
  cloud = fake_cloud.Cloud(folder)
  for name, value in cloud.environment.items():
    patch.setenv(name, value)
  impatient.hurry(patch)
  return cloud.kill, [
    '--config=v5e_4',
    '--config.accelerator=2xv5e-1',
    f'--config.tpu_vm.port={cloud.port}',
    f'--config.shared_folders={shared}',
  ]


def gke_(folder, shared, patch):
  """A slice that no vendor has: two chips on two hosts."""
  cloud = clouds.Cloud(folder, patch)
  patch.setenv('FAKE_PYTHON', sys.executable)
  impatient.hurry(patch)
  two = accelerators.Accelerator('v6e', 2, 1, 2, 2, '1x2', 2)
  patch.setattr(accelerators, 'parse', lambda *_: two)
  return cloud.end, [
    '--config=v5e_4',
    '--config.gke.image=here/t5x_lite:1',
    '--config.gke.claim=nfs',
    f'--config.shared_folders={shared}',
  ]


def slurm_(folder, shared, patch):
  """Two nodes of a GPU, which see all that this machine sees."""
  cloud = clouds.Cloud(folder, patch)
  impatient.hurry(patch)
  return cloud.end, ['--config=gpu_8', '--config.accelerator=2xgpu-1']


PLACES = {'tpu_vm': tpu_vm, 'gke': gke_, 'slurm': slurm_}


@pytest.fixture(scope='module')
def shared(tmp_path_factory):
  """A folder that all machines have, with a corpus."""
  folder = tmp_path_factory.mktemp('shared')
  runs.write_corpus(folder)
  return folder


@pytest.fixture(scope='module')
def vocabulary(shared, tmp_path_factory):
  """A file on this machine alone."""
  file = tmp_path_factory.mktemp('here') / 'words.model'
  corpus = f'--corpus={shared}/my.txt'
  runs.complete(1, 1, 'vocab', corpus, '--size=1000', f'--output={file}')
  return file


def train(shared, vocabulary, name):
  """(workdir, the command that trains in it)."""
  workdir = shared / name
  where = f'--corpus={shared}/my.txt', f'--workdir={workdir}'
  named = f'--gin.Data.vocabulary={vocabulary}'
  return workdir, ['train', *where, *FEW, named]


@pytest.fixture(scope='module')
def local(shared, vocabulary):
  """The workdir of the same run by two processes without a cloud."""
  workdir, command = train(shared, vocabulary, 'local')
  runs.complete(2, 1, *command)
  return workdir


@pytest.mark.parametrize('place', PLACES)
def test_the_quickstart_recipe(
  place, shared, vocabulary, local, tmp_path, monkeypatch, capsys
):
  end, options = PLACES[place](tmp_path, shared, monkeypatch)
  workdir, command = train(shared, vocabulary, place.replace('_', '-'))
  try:
    said = clouds.launched(capsys, 'launch', place, *options, '--', *command)
    check_packages(place, said, tmp_path)
  finally:
    end()
  assert f'[0] step {STEPS}/{STEPS}' in said
  assert runs.metrics(workdir) == runs.metrics(local)
  runs.assert_same_state(workdir, local, STEPS)
  # It travels with the job, to machines that have it not.
  record = json.loads((workdir / 'config.json').read_text())
  travels = 'words.model' if place != 'slurm' else str(vocabulary)
  assert record['data']['vocabulary'] == travels


def check_packages(place, said, folder):
  """TPU VMs run what was installed there, from a wheel of this checkout."""
  if place == 'tpu_vm':
    worker = 't5x_lite_envs/*/lib/*/site-packages/t5x_lite/launch/worker.py'
    assert said.count(': installed in') == 2
    assert len(list(folder.glob(f'cloud/vms/*/0/{worker}'))) == 2
