"""Memory of a step from shapes alone, against what compilers say of it."""

import dataclasses

import jax
import numpy as np
import pytest

from t5x_lite import accelerators
from t5x_lite import chips
from t5x_lite import cli
from t5x_lite import config
from t5x_lite import errors
from t5x_lite import fit
from t5x_lite import flops
from t5x_lite import partitioning
from t5x_lite import specs
from t5x_lite import train
from t5x_lite.data import shapes
from t5x_lite.planning import analytic
from t5x_lite.planning import fitting
from t5x_lite.planning import tracing
from tests import tiny

MIB = 2**20
BF16 = {'Transformer.dtype': 'bfloat16'}
KERNEL = {'Transformer.attention': 'chunked'}  # whatever the size
DRY = {'Transformer.dropout': 0.0}  # else no fused attention
LLAMA_1B = {
  'Transformer.decoder_layers': 16,
  'Transformer.embed_dim': 2048,
  'Transformer.mlp_dim': 5632,
  'Transformer.num_heads': 16,
}


def batch(size, microbatches=1):
  return {'Run.batch_size': size, 'Run.microbatches': microbatches}


def remat(kind):
  return {'Transformer.remat': kind}


# Recipe, mesh of eight v5e, changes; MiB of arguments and at the peak that
# libtpu 0.0.42 says of the compiled step, which `make plans` asks again.
CASES = {
  't5 small': (
    't5/1_1_small',
    dict(fsdp=8),
    BF16 | batch(64),
    (46.7, 1124.2),
  ),
  't5 base': (
    't5/1_1_base',
    dict(data=8),
    BF16 | batch(64),
    (947.2, 3714.8),
  ),
  't5 base, full, 4 microbatches': (
    't5/1_1_base',
    dict(fsdp=4, tensor=2),
    BF16 | batch(256, 4) | remat('full'),
    (134.6, 884.4),
  ),
  't5 large, dots': (
    't5/1_1_large',
    dict(fsdp=8),
    BF16 | batch(64) | remat('dots'),
    (378.2, 4304.2),
  ),
  'gpt2 small': (
    'gpt2/small',
    dict(data=8),
    BF16 | DRY | batch(32),
    (1425.1, 4249.0),
  ),
  'gpt2 small, dropout': (
    'gpt2/small',
    dict(fsdp=8),
    BF16 | batch(16),
    (193.0, 3039.5),
  ),
  # Plain attention would take 6337.6: by two dozen arrays of random bits.
  'gpt2 small, dropout, dots': (
    'gpt2/small',
    dict(data=2, fsdp=4),
    BF16 | batch(32) | remat('dots'),
    (384.6, 2245.2),
  ),
  'gpt2 medium, full, 4 microbatches': (
    'gpt2/medium',
    dict(fsdp=8),
    BF16 | DRY | batch(128, 4) | remat('full'),
    (510.5, 2375.5),
  ),
  'gpt3 small, windows': (
    'gpt3/small',
    dict(fsdp=8),
    BF16 | batch(16),
    (194.2, 3099.1),
  ),
  'llama 1b, full': (
    'llama/7b',
    dict(fsdp=8),
    LLAMA_1B | batch(16),
    (1363.7, 2722.3),
  ),
  'llama 1b, dots': (
    'llama/7b',
    dict(fsdp=4, tensor=2),
    LLAMA_1B | batch(16) | remat('dots'),
    (1363.9, 5622.4),
  ),
  'llama 1b, full, sequence': (
    'llama/7b',
    dict(fsdp=4, sequence=2),
    LLAMA_1B | batch(16),
    (2727.4, 5417.2),
  ),
  'prefix lm base': (
    't5/prefix_lm_base',
    dict(data=2, fsdp=2, tensor=2),
    BF16 | batch(32),
    (129.4, 1631.0),
  ),
  'ul2 base, dots': (
    'ul2/base',
    dict(tensor=4, data=2),
    BF16 | batch(16) | remat('dots'),
    (215.4, 1111.9),
  ),
  'transformer big, float32, full, dropout': (
    'transformer/big',
    dict(data=2, fsdp=4),
    batch(64) | remat('full'),
    (614.8, 1116.1),
  ),
}
cases = pytest.mark.parametrize(
  'recipe, mesh, changes, measured', CASES.values(), ids=CASES
)


@pytest.fixture(autouse=True)
def as_users_have_it(monkeypatch):
  """No products of higher precision, which would rule fused attention out.

  And no share of a GPU's memory but JAX's own.
  """
  for name in chips.SHARE:
    monkeypatch.delenv(name, raising=False)
  with jax.default_matmul_precision('default'):
    yield


def load(recipe, mesh, changes):
  found = [f'{name}={value!r}' for name, value in changes.items()]
  run = config.load([f'{recipe}.gin'], found)
  mesh = specs.Mesh(**{'data': 1} | mesh)
  return dataclasses.replace(run, mesh=mesh)


def place(run, platform='tpu', kind='TPU v5 lite', devices=8):
  sizes = partitioning.check_mesh(run.mesh, devices)
  return analytic.mesh_of(sizes, platform, kind)


def arguments(found):
  names = 'parameters', 'optimizer', 'batch'
  return sum(found.families[name] for name in names)


def compile_step(run, mesh):
  filled = {
    name: np.broadcast_to(np.ones((), x.dtype), x.shape)
    for name, x in shapes.batch(run).items()
  }
  with jax.set_mesh(mesh):
    return train.Program.build(run, mesh).compile_step(filled)


# -- against the compilers ----------------------------------------------------


@cases
def test_estimates_are_what_the_compiler_said(recipe, mesh, changes, measured):
  run = load(recipe, mesh, changes)
  found = analytic.estimate(run, place(run))
  assert arguments(found) / MIB == pytest.approx(measured[0], abs=0.4)
  assert found.total / MIB == pytest.approx(measured[1], rel=analytic.ERROR)


@pytest.mark.plans
@cases
def test_the_compiler_says_it_still(recipe, mesh, changes, measured):
  pytest.importorskip('libtpu', reason='needs libtpu; run `make plans`')
  from jax.experimental import topologies

  run = load(recipe, mesh, changes)
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('TPU_SKIP_MDS_QUERY', '1')
    patch.setenv('ALLOW_MULTIPLE_LIBTPU_LOAD', '1')
    devices = topologies.get_topology_desc(
      platform='tpu', topology_name='v5e:2x4'
    ).devices
    mesh = partitioning.make_mesh(run.mesh, devices)
    found = compile_step(run, mesh).memory_analysis()
    estimate = analytic.estimate(run, mesh)
  said = found.argument_size_in_bytes, found.peak_memory_in_bytes
  assert [n / MIB for n in said] == pytest.approx(measured, rel=0.01)
  assert estimate.total == pytest.approx(said[1], rel=analytic.ERROR)


def test_masks_of_dropout_are_of_their_stack():
  run = tiny.run(tiny.transformer(dropout=0.5, dropout_kind='token'))
  masks = [
    (x.shape, x.reach)
    for x in tracing.kept(run, shapes.batch(run), 'tpu')
    if x.itemsize == 1 and x.shape[-2:] in ((24, 32), (6, 32))
  ]
  assert ((2, 8, 24, 32), tracing.ENCODER) in masks
  assert ((2, 8, 6, 32), tracing.DECODER) in masks


GPT = tiny.transformer(
  encoder_layers=0,
  position=specs.Learned(length=24),
  norm=specs.LayerNorm(),
  bias=True,
  tie_embeddings=True,
)


def language_model(**changes):
  data = specs.Data(corpus='none', lengths={'targets': 24})
  return tiny.run(GPT, objective=specs.CausalLM(), data=data, **changes)


@pytest.mark.parametrize(
  'mesh, optimizer, microbatches, golden',
  [
    (dict(data=8), specs.AdamW, 1, 499_012),
    (dict(data=2, fsdp=2, tensor=2), specs.AdamW, 2, 237_476),
    (dict(fsdp=4, sequence=2), specs.Sgd, 1, 227_716),
  ],
)
def test_arguments_are_exact_and_totals_golden(
  mesh, optimizer, microbatches, golden
):
  schedule = specs.Schedule(peak=0.01, decay='constant')
  run = language_model(
    mesh=specs.Mesh(**{'data': 1} | mesh),
    optimizer=optimizer(schedule=schedule),
    microbatches=microbatches,
  )
  mesh = partitioning.make_mesh(run.mesh)
  found = analytic.estimate(run, mesh)
  compiled = compile_step(run, mesh).memory_analysis()
  assert arguments(found) == compiled.argument_size_in_bytes
  assert found.total == golden
  abstract = place(run, 'cpu', '')
  assert analytic.estimate(run, abstract).moments == found.moments


# -- what an estimate is made of ----------------------------------------------


def test_operations_are_shared_out():
  run = tiny.run(mesh=specs.Mesh(data=4, tensor=2))
  found = analytic.estimate(run, place(run)).flops
  whole = flops.train_step(run.model, 8, 24, 6)

  assert found == tuple(n / 8 for n in whole)


def test_what_is_kept_is_sorted_by_what_it_depends_on():
  run = tiny.run(tiny.transformer(dtype='bfloat16'))
  found = tracing.kept(run, shapes.batch(run), 'tpu')
  reach = {}
  for x in found:
    reach.setdefault(x.reach, []).append(x.shape)
  both = tracing.ENCODER | tracing.DECODER
  memory = tracing.ENCODER | tracing.MEMORY
  alone = tracing.WEIGHTS, tracing.ENCODER, tracing.DECODER
  assert set(reach) <= {*alone, both, memory}
  assert (8, 6, 128) in reach[both]  # logits
  assert (2, 8, 4, 24, 24) in reach[tracing.ENCODER]  # attention's weights
  assert (2, 8, 4, 6, 6) in reach[both]  # the encoder reaches it by layer 1
  assert reach[memory].count((2, 8, 4, 24, 8)) == 2  # keys and values
  assert (2, 32, 48) in reach[tracing.WEIGHTS]  # kernels, cast


def test_a_share_of_the_model_is_traced():
  run = tiny.run(mesh=specs.Mesh(data=2, fsdp=2, tensor=2))
  lengths = {'encoder': 24, 'decoder': 6}
  found = tracing.local(run.model, place(run), 8, lengths)
  assert (found.num_heads, found.mlp_dim, found.vocab_size) == (2, 24, 64)
  assert found.embed_dim == run.model.embed_dim
  odd = dataclasses.replace(run.model, num_heads=3)
  assert tracing.local(odd, place(run), 8, lengths).num_heads == 3


@pytest.mark.parametrize(
  'shape, bytes_',
  [
    ((100,), 400),
    ((8, 64), 4096),
    ((3, 100), 4096),
    ((2, 12, 512, 64), 3145728),
    ((2, 3, 114, 114), 368640),
  ],
)
def test_tpus_fill_arrays_up(shape, bytes_):
  assert tracing.size(shape, 4, True) == bytes_
  assert tracing.size(shape, 4, False) == 4 * np.prod(shape)


def totals(**changes):
  run = load('gpt2/small', dict(fsdp=8), BF16 | KERNEL | batch(64) | changes)
  return analytic.estimate(run, place(run))


def test_changes_go_the_right_way():
  plain = totals()
  full = totals(**remat('full'))
  many = totals(**{'Run.microbatches': 4})
  assert full.families['activations'] < plain.families['activations'] / 5
  assert many.families['activations'] < plain.families['activations'] / 3
  assert many.families['gradients'] > plain.families['gradients']
  assert full.total < plain.total and many.total < plain.total
  assert plain.total == sum(plain.families.values())
  assert all(
    sum(part.values()) <= plain.total for part in plain.moments.values()
  )


# -- what fits ----------------------------------------------------------------

FITS = [
  ('llama/7b', 'v5e-256', '--gin.Mesh.data=1 --gin.Mesh.fsdp=256'),
  ('gpt2/xl', 'h100-8', '--gin.Run.microbatches=8'),
  ('gpt2/xl', 'gpu-8', None),  # of any kind: nobody knows
]


@pytest.mark.parametrize('recipe, name, fix', FITS)
def test_what_does_not_fit_is_refused(recipe, name, fix):
  run = config.load([f'{recipe}.gin'])
  accelerator = accelerators.parse(name)
  if fix is None:
    fitting.check(run, accelerator)
    return
  with pytest.raises(errors.ConfigError, match='does not fit') as e:
    fitting.check(run, accelerator)
  assert e.value.fix == fix
  changes = [x.removeprefix('--gin.') for x in fix.split()]
  fitting.check(config.load([f'{recipe}.gin'], changes), accelerator)


def test_what_jax_takes_of_a_gpu_is_what_a_launch_gets(monkeypatch):
  run, gpus = config.load(['gpt2/xl']), accelerators.parse('h100-8')
  with pytest.raises(errors.ConfigError) as e:
    fitting.check(run, gpus)
  assert '59.33 GiB at most, which JAX takes of 79.11' in e.value.expected
  changed = dataclasses.replace(run, microbatches=4)
  with pytest.raises(errors.ConfigError):
    fitting.check(changed, gpus, {})
  monkeypatch.setenv(chips.SHARE[0], '0.1')  # not of the job
  fitting.check(changed, gpus, {chips.SHARE[0]: '0.95'})


def test_what_nothing_helps_is_told():
  run = tiny.run(tiny.transformer(vocab_size=2**30, tie_embeddings=True))
  with pytest.raises(errors.ConfigError) as e:
    fitting.check(run, accelerators.parse('v5e-8'))
  assert 'parameters' in e.value.got and '15.75 GiB' in e.value.expected
  assert 'more devices' in e.value.fix


class Device:
  """A device that JAX could have."""

  platform, device_kind = 'tpu', 'TPU v5 lite'

  def __init__(self, limit):
    self.limit = limit

  def memory_stats(self):
    return self.limit and {'bytes_limit': self.limit}


class Mesh:
  """A mesh of such devices."""

  def __init__(self, device):
    self.local_devices = [device]
    self.shape = dict.fromkeys(partitioning.AXES, 1)


def test_training_asks_the_devices(monkeypatch):
  run = language_model()
  fitting.check_devices(run, Mesh(Device(None)))  # by the table
  fitting.check_devices(run, Mesh(Device(2**25)))
  with pytest.raises(errors.ConfigError, match='does not fit'):
    fitting.check_devices(run, Mesh(Device(2**18)))
  monkeypatch.setattr(Device, 'platform', 'cpu')
  fitting.check_devices(run, Mesh(Device(2**18)))


def test_training_asks_before_it_writes(monkeypatch, tmp_path):
  def refuse(run, mesh):
    assert mesh.size == 8
    raise errors.ConfigError('does not fit')

  monkeypatch.setattr(fitting, 'check_devices', refuse)
  with pytest.raises(errors.ConfigError, match='does not fit'):
    fit.fit(tiny.run(), tmp_path / 'run')
  assert not list(tmp_path.iterdir())


def test_a_launch_is_refused_before_anything_is_done(
  capsys, monkeypatch, tmp_path
):
  monkeypatch.setenv('T5X_LITE_STATE', str(tmp_path))
  arguments = '--config=v5e_256', '--dry_run', '--', 'train'
  recipe = '--gin_file=llama/7b.gin', '--workdir=gs://bucket/runs/big'
  assert cli.main(['launch', 'tpu_vm', *arguments, *recipe]) == 2
  out, err = capsys.readouterr()
  assert 'does not fit in memory' in err and '--gin.Mesh.fsdp=256' in err
  assert not out and not list(tmp_path.rglob('*.json'))
