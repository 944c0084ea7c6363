"""What users of `launch` get wrong, and the one line that they are told."""

import pytest

from t5x_lite import cli
from tests import fake_cloud
from tests import impatient

TRAIN = 'train', '--gin_file=t5/1_1_small', '--workdir=gs://b/runs/small'
TPU = 'tpu_vm', '--config=v5e_256'
SLURM = 'slurm', '--config=gpu_8'
# What may help where a zone has no TPUs free.
TRIES = 'another --config.zone', 'capacity=spot', '=reserved', 'later'
FITS = '--gin.Mesh.data=1', '--gin.Mesh.fsdp=-1'
# What comes before `--` and after it: what the line says.
WRONG = {
  'an accelerator that is none': (
    [*TPU, '--config.accelerator=v5-256'],
    TRAIN,
    ['no such accelerator', 'did you mean v5p-256?'],
  ),
  'a size that is none': (
    [*TPU, '--config.accelerator=v5e-200'],
    TRAIN,
    ['no slice of v5e has 200 chips', '128, 256', 'fix: v5e-256'],
  ),
  'a place that is none': (['tpuvm'], TRAIN, ['did you mean tpu_vm?']),
  'no job spec': (['tpu_vm'], TRAIN, ['required: --config']),
  'a job spec that is none': (
    ['gke', '--config=v5e_265'],
    TRAIN,
    ['no such job spec', 'did you mean v5e_256?'],
  ),
  'a path from another folder': (
    ['tpu_vm', '--config=launch/no/configs/v5e_4.py'],
    TRAIN,
    ['no such file of a job spec at --config', 'fix: --config=v5e_4, which'],
  ),
  'a folder for a job spec': (
    ['tpu_vm', '--config=/tmp'],
    TRAIN,
    ['a folder is no job spec at --config; got /tmp'],
  ),
  'an empty job spec': (
    ['tpu_vm', '--config='],
    TRAIN,
    ['no job spec is named at --config; expected a Python file, or one of'],
  ),
  'no slices': (
    [*TPU, '--config.slices=0'],
    TRAIN,
    ['at --config.slices; got 0, expected 1 to 1,024'],
  ),
  'a field that is none': (
    [*TPU, '--config.zonne=us-west4-a'],
    TRAIN,
    ['no such field', 'did you mean zone?'],
  ),
  'no zone': ([*TPU, '--config.zone='], TRAIN, ['no zone', 'locations list']),
  'a region for a zone': (
    [*TPU, '--config.zone=us-west4'],
    TRAIN,
    ['--config.zone', 'expected us-west4-a'],
  ),
  'a mesh that does not divide the slice': (
    TPU,
    [*TRAIN, '--gin.Mesh.data=1', '--gin.Mesh.tensor=3'],
    ['does not fit 256 devices', 'fix: --gin.Mesh.'],
  ),
  'a batch that does not divide': (
    TPU,
    [*TRAIN, '--gin.Run.batch_size=100'],
    ['100 rows', 'a multiple of 256', 'use 256'],
  ),
  'a workdir that is local': (
    TPU,
    [*TRAIN[:2], '--workdir=runs/small'],
    ['--workdir is local, and 64 machines are to share it', 'gs://BUCKET'],
  ),
  'no workdir': (TPU, TRAIN[:2], ['no --workdir']),
  'a corpus that is local': (
    TPU,
    [*TRAIN, '--corpus=/texts/my.txt'],
    ['cannot read this corpus', 'gs://BUCKET'],
  ),
  'a checkpoint that is local': (
    TPU,
    [*TRAIN, '--gin.Run.start_from=@Pretrained()', '--gin.Pretrained.path=/x'],
    ['cannot start from this', 'Pretrained.path', 'gs://BUCKET'],
  ),
  'no command': (TPU, [], ['no command to start', 'train']),
  'a command that is none': (TPU, ['trian'], ['did you mean train?']),
  'a wrong option of the command': (
    TPU,
    [*TRAIN, '--gin.Run.stepz=3'],
    ['stepz', 'did you mean', 'steps'],
  ),
  'a place that is told': (
    TPU,
    [*TRAIN, '--process_count=2'],
    ['launch gives each process its place itself'],
  ),
  'a name that no cloud takes': (
    [*TPU, '--name=My_Run'],
    TRAIN,
    ['not a name of a job', 'fix: --name=my-run'],
  ),
  'TPUs of SLURM': (
    ['slurm', '--config=v5e_4'],
    TRAIN,
    ['--config.accelerator', 'tpu_vm'],
  ),
  'GPUs of TPU VMs': (
    ['tpu_vm', '--config=gpu_8', '--config.zone=us-west4-a'],
    TRAIN,
    ['tpu_vm has TPUs only', 'slurm'],
  ),
  'no image': (['gke', '--config=v5e_4'], TRAIN, ['no image']),
  'a field of another place': (
    [*TPU, '--config.slurm.partition=gpus'],
    TRAIN,
    ['launch tpu_vm does not read', '--config.slurm.partition'],
  ),
  'a zone of GKE': (
    ['gke', '--config=v5e_4', '--config.zone=us-west4-a'],
    TRAIN,
    ['launch gke does not read', '--config.zone'],
  ),
  'a field without =': (
    [*SLURM, '--config.slurm.partition', 'gpus'],
    TRAIN,
    ['no value', 'expected --config.slurm.partition=VALUE'],
  ),
  'a wheel for no Python': (
    [*TPU, '--config.tpu_vm.python=/p', '--config.tpu_vm.wheel=/w.whl'],
    TRAIN,
    ['a wheel, and a Python', 'leave out'],
  ),
  'a workdir of another cloud': (
    TPU,
    [*TRAIN[:2], '--workdir=s3://b/runs/small'],
    ['no such kind of storage', 'gs://BUCKET'],
  ),
  'a variable that is none': (
    [*TPU, '--config.env.MY.NAME=1'],
    TRAIN,
    ['not a variable of an environment', "'MY.NAME=1'", 'letters, digits'],
  ),
  'a Python beside this folder': (
    [*SLURM, '--config.slurm.python=venv/bin/python'],
    TRAIN,
    ['--config.slurm.python', 'expected a full path'],
  ),
  'a Python of a home that no shell looks up': (
    [*TPU, '--config.tpu_vm.python=~/venv/bin/python'],
    TRAIN,
    ['--config.tpu_vm.python', 'expected a full path'],
  ),
  'a time in which it can only save': (
    [*SLURM, '--config.slurm.time=2'],
    TRAIN,
    ['time is over before', 'got 2,', 'more than the 120 seconds', 'grace'],
  ),
}


@pytest.mark.parametrize('before, after, said', WRONG.values(), ids=WRONG)
def test_wrong_inputs_are_told_in_a_line(
  before, after, said, capsys, monkeypatch, tmp_path
):
  monkeypatch.setenv('T5X_LITE_STATE', str(tmp_path))
  assert cli.main(['launch', *before, '--dry_run', '--', *after]) == 2
  out, err = capsys.readouterr()
  assert not out and err.startswith('t5x_lite: ') and err.count('\n') == 1
  assert all(part in err for part in said), err
  assert not list(tmp_path.rglob('*.json'))


# What gcloud says as TPUs are asked for, or of their request; and what we do.
CLOUD = {
  'no project': (
    {
      'on': 'queued-resources describe',
      'say': 'The required property [project] is not currently set.',
    },
    ['gcloud has no project', 'fix: --config.project=PROJECT'],
  ),
  'a zone that has no capacity now': (
    {
      'on': 'queued-resources create',
      'say': 'RESOURCE_EXHAUSTED: There is no more capacity in the zone'
      ' "us-west4-a"',
    },
    ['the zone has no such TPUs free', *TRIES],
  ),
  'a zone that has none later': (
    {
      'on': 'queue',
      'set': {
        'path': ['WAITING_FOR_RESOURCES', 'FAILED'],
        'error': 'There is no more capacity in the zone "us-west4-a"',
      },
    },
    ['no such TPUs free at queued resource small; got FAILED', *TRIES],
  ),
  'a zone that is none': (
    {
      'on': 'queued-resources describe',
      'say': "PERMISSION_DENIED: Permission denied on 'locations/us-west4-a'"
      ' (or it may not exist).',
    },
    ['there is no such zone for TPUs', 'fix: --config.zone=ZONE, one of'],
  ),
  'a kind that the zone lacks': (
    {
      'on': 'queued-resources create',
      'say': 'INVALID_ARGUMENT: Accelerator type v5litepod-256 is not available'
      ' in zone us-west4-a',
    },
    ['the zone does not have this kind or size', 'accelerator-types list'],
  ),
}


@pytest.mark.parametrize('fault, said', CLOUD.values(), ids=CLOUD)
def test_what_only_the_cloud_knows(fault, said, capsys, monkeypatch, tmp_path):
  cloud = fake_cloud.Cloud(tmp_path)
  for name, value in cloud.environment.items():
    monkeypatch.setenv(name, value)
  for module, name, value in impatient.PAUSES:
    monkeypatch.setattr(module, name, value)
  cloud.plan(fault)
  python = f'--config.tpu_vm.python={tmp_path}/python'
  assert cli.main(['launch', *TPU, python, '--', *TRAIN, *FITS]) == 6
  err = capsys.readouterr().err
  assert err.startswith('t5x_lite: ') and err.count('\n') == 1
  assert all(part in err for part in said), err


@pytest.mark.parametrize('verb', ['status', 'logs', 'watch', 'stop', 'delete'])
def test_a_place_that_is_none_to_ask(command, verb):
  said = command('launch', verb, '--backend=gk', 'NAME', code=2)
  assert (
    'argument --backend: no such choice; got gk, expected one of tpu' in said
  )
  assert 'did you mean gke?' in said and said.count('\n') == 1


def test_a_spec_is_asked_of_one_job(command):
  said = command('launch', 'status', '--config=v5e_4', code=2)
  assert 'no NAME' in said and 'launch status NAME' in said


def test_what_is_right_is_shown_and_nothing_done(capsys, monkeypatch, tmp_path):
  monkeypatch.setenv('T5X_LITE_STATE', str(tmp_path))
  assert cli.main(['launch', *TPU, '--dry_run', '--', *TRAIN, *FITS]) == 0
  assert 'nothing is done' in capsys.readouterr().out
  assert not list(tmp_path.rglob('*.json'))
