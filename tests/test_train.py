"""The train step: the same numbers however a batch is cut and laid out."""

import math
import re
import types

import jax
import numpy as np
import pytest

from t5x_lite import models
from t5x_lite import partitioning
from t5x_lite import specs
from t5x_lite import train
from tests import tiny


def steps(run, count=2, num_devices=1):
  """(metrics of some steps on a batch, state, compiled text), as numpy."""
  mesh = partitioning.make_mesh(run.mesh, jax.devices()[:num_devices])
  batch = tiny.batch(run.batch_size, packed=True)
  with jax.set_mesh(mesh):
    program = train.Program.build(run, mesh)
    step, state, metrics = program.compile_step(batch), tiny.state(program), []
    batch = partitioning.put_batch(batch, mesh, run.batch_size)
    for _ in range(count):
      state, found = step(state, batch)
      metrics.append({k: float(v) for k, v in found.items()})
  return metrics, jax.device_get(state), step.as_text()


def assert_same_run(a, b, tolerance=2e-6):
  for x, y in zip(a[0], b[0], strict=True):
    for name in x:
      np.testing.assert_allclose(x[name], y[name], rtol=tolerance, err_msg=name)
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=10 * tolerance),
    a[1]['params'],
    b[1]['params'],
  )


@pytest.fixture(scope='module')
def alone():
  """Two steps with dropout, on one device in one piece."""
  return steps(tiny.run(tiny.transformer(dropout=0.2)))


@pytest.fixture(scope='module')
def plain():
  """Thirty steps without dropout."""
  return steps(tiny.run(), count=30)


def gradients(axes, microbatches, num_devices=8):
  """(metrics, gradients, compiled text) of a step on packed rows.

  In float64: sums in another order differ in float32 by as much as is allowed.
  """
  run = tiny.run(
    tiny.transformer(dropout=0.2, num_heads=8, dtype='float64'),
    mesh=specs.Mesh(**axes),
    batch_size=32,
    microbatches=microbatches,
  )
  with tiny.kept_gradients(), jax.enable_x64(True):
    [metrics], state, text = steps(run, 1, num_devices)
  return metrics, state['opt_state']['tensors'], text


@pytest.fixture(scope='module')
def one_device():
  return gradients({}, 1, num_devices=1)


def case(*sizes, quick=None):
  """A mesh over data, fsdp, tensor, sequence with 1, 2 and 4 microbatches."""
  for count in (1, 2, 4):
    marks = () if count == quick else pytest.mark.parallel
    yield pytest.param(sizes, count, marks=marks, id=f'{sizes}-{count}')


@pytest.mark.parametrize(
  'sizes, microbatches',
  [
    *case(8, 1, 1, 1, quick=4),
    *case(1, 8, 1, 1),
    *case(2, 2, 2, 1),
    *case(1, 1, 8, 1),
    *case(2, 1, 2, 2, quick=2),
  ],
)
def test_megatron_7452_levanter_842_t5x_defects_2_and_20_gradients(
  one_device, sizes, microbatches
):
  """Are those of one device.

  Megatron#7452: silent errors where kinds of parallelism are combined.
  levanter#842 and T5X's defect 2: microbatches whose weights differ.
  T5X's defect 20: a microbatch's rows moved from device to device.
  """
  axes = dict(zip(partitioning.AXES[1:], sizes, strict=True))
  metrics, found, text = gradients(axes, microbatches)
  wanted_metrics, wanted, _ = one_device
  for name, value in wanted_metrics.items():
    assert metrics[name] == pytest.approx(value, rel=1e-6, abs=1e-9), name

  def assert_near(x, y):
    assert np.linalg.norm(x - y) < 3e-7 * np.linalg.norm(y)

  jax.tree.map(assert_near, found, wanted)
  if axes['data'] == 8:  # no row of a microbatch goes from device to device
    assert not re.search('all-to-all|collective-permute|all-gather', text)
  assert_no_device_holds_all_logits(text, 32 // microbatches * 8 * 128)


def assert_no_device_holds_all_logits(text, size):
  for shape in set(re.findall(r'f(?:32|64)\[([\d,]+)\]', text)):
    sizes = [int(n) for n in shape.split(',')]
    assert math.prod(sizes) < size or 8 not in sizes or 128 not in sizes, shape


def test_remat_and_unroll_change_nothing(alone):
  """Remat draws the same dropout again; what 'dots' computes, parity shows."""
  model = tiny.transformer(dropout=0.2, remat='full', unroll=2)
  assert_same_run(steps(tiny.run(model)), alone)


def test_dropout_acts(alone, plain):
  assert abs(alone[0][0]['loss'] / plain[0][0]['loss'] - 1) > 1e-3


def test_loss_falls(plain):
  assert plain[0][-1]['loss'] < plain[0][0]['loss'] - 1


def test_jax_toolbox_347_losses_are_those_of_other_versions(plain):
  """JAX-Toolbox#347: they were not numbers once a dependency was newer."""
  losses = [plain[0][n]['loss'] for n in (0, 1, 9, 29)]
  assert losses == pytest.approx([4.8046, 4.6403, 3.9074, 2.5165], rel=1e-3)


def test_metrics_are_means_over_tokens(plain):
  first, second = plain[0][:2]
  weights = tiny.batch(8, packed=True)['decoder_loss_weights']
  assert first['weight'] == weights.sum()
  assert first['loss'] == pytest.approx(
    first['cross_ent_loss'] + first['z_loss'], rel=1e-6
  )
  assert first['z_loss'] > 0
  assert 0 <= first['accuracy'] <= 1
  assert first['learning_rate'] == second['learning_rate'] == np.float32(0.01)
  assert plain[1]['step'] == 30


def test_bfloat16_keeps_float32_parameters():
  """Tracing is enough; how near its numbers are, parity shows."""
  run = tiny.run(tiny.transformer(dtype='bfloat16', dropout=0.1))
  program = train.Program.build(run, partitioning.make_mesh(run.mesh))
  step = train.make_train_step(run, program.model, program.optimizer)
  batch = tiny.batch(run.batch_size)
  float32 = np.dtype('float32')
  state, metrics = jax.eval_shape(step, program.abstract_state, batch)
  assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == jax.tree.map(
    lambda x: (x.shape, x.dtype), program.abstract_state
  )
  assert {x.dtype for x in jax.tree.leaves(state['params'])} == {float32}
  assert metrics.pop('tokens').dtype == np.int32
  assert metrics.pop('data/digest').dtype == np.uint32
  assert {x.dtype for x in metrics.values()} == {float32}


def test_state_lies_where_its_parameters_lie():
  """Moments of a sharded parameter that are as large are sharded as it is."""
  optimizer = specs.Adafactor(
    schedule=specs.Schedule(peak=0.01), factored=False, beta1=0.9
  )
  run = tiny.run(optimizer=optimizer, mesh=specs.Mesh(fsdp=4, tensor=2))
  mesh = partitioning.make_mesh(run.mesh)
  program = train.Program.build(run, mesh)
  with jax.set_mesh(mesh):
    state = program.init()
  sizes = {}
  for part in ('params', 'opt_state'):
    for path, x in jax.tree_util.tree_leaves_with_path(state[part]):
      name = partitioning.path_name(path)
      if 'query' in name and x.size > 1000:
        sizes[name] = x.addressable_shards[0].data.size / x.size
  assert len(sizes) == 9  # of three attentions: parameter and two moments
  assert set(sizes.values()) == {1 / 8}
  moments = jax.tree.leaves(state['opt_state'])
  assert not any(np.asarray(x).any() for x in moments)


def state_of(**choices):
  """Paths and shapes of the state before the first step, nothing compiled."""
  optimizer = specs.Adafactor(schedule=specs.Schedule(peak=0.01), **choices)
  run = tiny.run(optimizer=optimizer)
  program = train.Program.build(run, partitioning.make_mesh(run.mesh))
  return {
    partitioning.path_name(path): (x.shape, x.dtype)
    for path, x in jax.tree_util.tree_leaves_with_path(program.abstract_state)
  }


@pytest.mark.parametrize(
  'choices',
  [
    dict(clip_norm=1.0),
    dict(parameter_scale=False),
    dict(clip_threshold=2.0, decay_rate=0.9, min_scale=0.1),
  ],
  ids=str,
)
def test_a_run_may_go_on_with_parts_of_its_optimizer_switched(choices):
  assert state_of(**choices) == state_of()


def test_a_first_moment_adds_its_own_state_alone():
  without, more = state_of(clip_norm=1.0), state_of(beta1=0.9)
  assert more.items() > without.items()
  added = [more[path] for path in more.keys() - without.keys()]
  count = len(jax.tree.leaves(tiny.params(models.build(tiny.transformer()))))
  moments = [shape for shape, dtype in added if dtype == np.float32]
  assert len(moments) == count


def test_options_that_the_user_gives_the_compiler_stay(monkeypatch):
  chip = types.SimpleNamespace(platform='tpu')
  tpus = types.SimpleNamespace(devices=np.array([chip]))
  name = 'xla_enable_async_all_gather'
  assert train.compiler_options(tpus)[name] is True
  monkeypatch.setenv('LIBTPU_INIT_ARGS', f'--a=1 --{name}=false')
  found = train.compiler_options(tpus)
  assert len(found) == 2 and name not in found
  cpus = partitioning.make_mesh(specs.Mesh(), jax.devices()[:1])
  assert train.compiler_options(cpus) == {}
