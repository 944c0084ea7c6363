"""Which parameters are trained how: groups, decay, clipping, skipped steps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite import checkpoints
from t5x_lite import errors
from t5x_lite import loop
from t5x_lite import models
from t5x_lite import optimizers
from t5x_lite import partitioning
from t5x_lite import record
from t5x_lite import specs
from t5x_lite import train
from tests import tiny
from tests import toy

OPTIMIZERS = {
  'Adafactor': functools.partial(specs.Adafactor, beta1=0.9),
  'unfactored': functools.partial(specs.Adafactor, factored=False),
  'AdamW': specs.AdamW,
  'Lamb': specs.Lamb,
  'Sgd': functools.partial(specs.Sgd, momentum=0.9),
}
RATE = specs.Schedule(peak=0.25, warmup=4, decay='linear')


def group(pattern, **choices):
  return specs.Group(pattern=pattern, **choices)


def named(tree):
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {partitioning.path_name(path): np.asarray(x) for path, x in leaves}


def train_on(optimizer, count=3, sizes=(), num_devices=1, **changes):
  """(metrics by step, state) of some steps of the toy model, as compiled."""
  run = tiny.run(
    tiny.transformer(dtype='float64'),
    optimizer=optimizer,
    mesh=specs.Mesh(**dict(sizes)),
    steps=10,
    **changes,
  )
  mesh = partitioning.make_mesh(run.mesh, jax.devices()[:num_devices])
  batch = tiny.batch(run.batch_size, packed=True)
  with toy.models_are_toys(), jax.enable_x64(True), jax.set_mesh(mesh):
    program = train.Program.build(run, mesh)
    state, metrics = tiny.state(program), []
    step = program.compile_step(batch)
    batch = partitioning.put_batch(batch, mesh, run.batch_size)
    for _ in range(count):
      state, found = step(state, batch)
      metrics.append({k: float(v) for k, v in found.items()})
    return metrics, state


def start():
  with jax.enable_x64(True):
    return tiny.params(toy.Model(tiny.transformer(dtype='float64')))


@pytest.mark.parametrize(
  'name',
  [
    name
    if name in ('Adafactor', 'Lamb')
    else pytest.param(name, marks=pytest.mark.parallel)
    for name in OPTIMIZERS
  ],
)
def test_a_step_on_eight_devices_is_that_of_one(name):
  """Parameters and state are equal, and moments lie where parameters lie."""
  optimizer = OPTIMIZERS[name](
    schedule=RATE,
    weight_decay=0.1,
    clip_norm=0.1,
    skip_nonfinite=1,
    groups=[group('embedding', rate=0.5), group('layers/mlp/.*', rate=0)],
  )
  alone = train_on(optimizer)
  sizes = {'data': 2, 'fsdp': 2, 'tensor': 2}
  metrics, state = train_on(optimizer, sizes=sizes, num_devices=8)
  assert metrics[-1] == pytest.approx(alone[0][-1], rel=1e-9)
  wanted = named(alone[1])
  for path, x in named(state).items():
    np.testing.assert_allclose(x, wanted[path], rtol=1e-8, err_msg=path)
  for path, x in jax.tree_util.tree_leaves_with_path(state):
    path = partitioning.path_name(path)
    if 'query/kernel' in path and x.size == 2048:
      assert {shard.data.size for shard in x.addressable_shards} == {512}, path
  # a moment of each query kernel, or two
  moments = [p for p, x in wanted.items() if 'query/k' in p and x.size == 2048]
  assert len(moments) == {'AdamW': 3, 'Lamb': 3, 'Adafactor': 3}.get(name, 2)


@pytest.mark.parallel
@pytest.mark.parametrize('name', OPTIMIZERS)
def test_a_transformer_on_eight_devices_is_that_on_one(name):
  optimizer = OPTIMIZERS[name](schedule=RATE, weight_decay=0.1)
  found = []
  for sizes, count in (({}, 1), ({'data': 2, 'fsdp': 2, 'tensor': 2}, 8)):
    run = tiny.run(
      tiny.transformer(dtype='float64', dropout=0.1),
      optimizer=optimizer,
      mesh=specs.Mesh(**sizes),
    )
    mesh = partitioning.make_mesh(run.mesh, jax.devices()[:count])
    batch = tiny.batch(run.batch_size, packed=True)
    with jax.enable_x64(True), jax.set_mesh(mesh):
      program = train.Program.build(run, mesh)
      state, step = tiny.state(program), program.compile_step(batch)
      batch = partitioning.put_batch(batch, mesh, run.batch_size)
      for _ in range(2):
        state, _ = step(state, batch)
    found.append(named(state))
  one, eight = found
  for path, x in one.items():
    # Parameters and state are float32; squares double what rounding did.
    difference = np.linalg.norm(eight[path] - x)
    assert difference <= 3e-6 * np.linalg.norm(x), path


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_what_is_frozen_stays_and_has_no_state(name):
  frozen = group('layers/(query|norm)/.*', rate=0, weight_decay=0.5)
  optimizer = OPTIMIZERS[name](
    schedule=RATE, weight_decay=0.5, groups=[frozen], clip_norm=0.1
  )
  metrics, state = train_on(optimizer)
  before, after = named(start()), named(state['params'])
  for path, x in before.items():
    taken = path.startswith(('layers/query', 'layers/norm'))
    assert (x.tobytes() == after[path].tobytes()) == taken, path
  moments = named(state['opt_state'])
  assert any('layers/out' in path for path in moments)
  assert not any('layers/query' in path for path in moments)
  assert all(one['grad_norm'] > 0.1 for one in metrics)  # it was clipped


def test_a_checkpoint_keeps_the_state_of_what_is_trained(tmp_path):
  """And is refused, by name, where other parameters are frozen."""
  wanted = []
  for pattern in ('layers/query/.*', 'layers/mlp/.*'):
    optimizer = specs.AdamW(
      schedule=RATE, groups=[group(pattern, rate=0), group('.*', rate=0.5)]
    )
    run = tiny.run(optimizer=optimizer)
    with toy.models_are_toys():
      mesh = partitioning.make_mesh(run.mesh, jax.devices()[:1])
      wanted.append(train.Program.build(run, mesh))
  state = tiny.state(wanted[0])
  state['opt_state']['skipped'] += 3
  recorded = record.record(wanted[0].run)
  with checkpoints.Checkpoints(tmp_path, specs.Checkpoints()) as saver:
    saver.save(1, state, {'examples': 8}, recorded)
    saver.wait()
    found, _ = saver.restore(1, wanted[0].abstract_state)
    assert jax.tree.structure(found) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, found, state)
    with pytest.raises(
      errors.CheckpointError, match='opt_state/tensors/layers'
    ):
      saver.restore(1, wanted[1].abstract_state)


def moves(optimizer, count=3):
  """[the gradient-free part of a step] of parameters whose gradient is 1."""
  params = jax.tree.map(np.ones_like, start())
  with jax.enable_x64(True):
    built = optimizers.build(optimizer, toy.Model.axes, 10)
    update, state, found = jax.jit(built.update), built.init(params), []
    for step in range(count):
      grads = built.trained(params)
      new, state, metrics = update(grads, state, params, step, 0.0)
      moved = jax.tree.map(lambda x, y: np.asarray(y - x), params, new)
      found.append((named(moved), {k: float(v) for k, v in metrics.items()}))
  return found


def test_t5x_defect_13_the_rate_that_is_told_is_the_rate_that_is_used():
  """T5X: optax optimizers had a rate of their own, another was logged."""
  groups = [group('.*/bias', rate=0.1), group('layers/.*', rate=3)]
  optimizer = specs.Sgd(schedule=RATE, groups=groups)
  for step, (moved, metrics) in enumerate(moves(optimizer, count=9)):
    own = {
      'layers/query/bias': metrics['learning_rate/.*/bias'],
      'layers/out/kernel': metrics['learning_rate/layers/.*'],
      'embedding': metrics['learning_rate'],
    }
    for path, rate in own.items():
      np.testing.assert_allclose(-moved[path], rate, rtol=1e-6)
    expected = 0.25 * min((step + 1) / 4, 1 - max(step - 4, 0) / 5)
    rates = [expected * 0.1, expected * 3, expected]
    assert [*own.values()] == pytest.approx(rates, rel=1e-6)


def test_the_first_group_that_fits_counts():
  groups = [
    group('layers/query/bias', rate=0.5),
    group('layers/.*', rate=0.25, weight_decay=0.5),
  ]
  optimizer = specs.Sgd(schedule=RATE, groups=groups, weight_decay=1.0)
  moved, metrics = moves(optimizer, count=1)[0]
  rate = metrics['learning_rate']
  for path, factor in {
    'layers/query/bias': 0.5,
    'layers/query/kernel': 0.25 * 1.5,
    'layers/norm/scale': 0.25,
    'embedding': 1.0 * 2,
    'norm/scale': 1.0,
  }.items():
    np.testing.assert_allclose(-moved[path] / rate, factor, rtol=1e-9)


@pytest.mark.parametrize(
  'no_decay, decays',
  [
    (None, {'embedding', 'query/kernel', 'out/kernel', 'mlp/kernel'}),
    (
      ['embedding', '.*(bias|scale)'],
      {'query/kernel', 'out/kernel', 'mlp/kernel'},
    ),
  ],
)
@pytest.mark.parametrize('cls', [specs.AdamW, specs.Adafactor, specs.Sgd])
def test_what_decays(cls, no_decay, decays):
  """By default all but norms and biases: BERT's and GPT's rule."""
  more = {} if no_decay is None else {'no_decay': no_decay}
  with_decay = cls(schedule=RATE, weight_decay=0.5, **more)
  [(moved, metrics)] = moves(with_decay, 1)
  [(plain, _)] = moves(cls(schedule=RATE), 1)
  found = {path for path in moved if (moved[path] != plain[path]).any()}
  assert {path.removeprefix('layers/') for path in found} == decays
  for path in found:
    shrunk = plain[path] - moved[path]
    np.testing.assert_allclose(shrunk, 0.5 * metrics['learning_rate'])


def test_norms_and_biases_of_a_transformer_do_not_decay():
  """Tables do, those of positions too: BERT's and GPT's rule."""
  model = models.build(
    tiny.transformer(
      bias=True,
      norm=specs.LayerNorm(),
      position=specs.Learned(length=32),
      embedding_norm=True,
    )
  )
  built = optimizers.build(
    specs.AdamW(schedule=RATE, weight_decay=0.1), model.axes, 10
  )
  decays = {
    partitioning.path_name(path): tensor.decays
    for path, tensor in jax.tree_util.tree_leaves_with_path(built.tensors)
  }
  for path, axes in jax.tree_util.tree_leaves_with_path(
    model.axes, is_leaf=lambda x: isinstance(x, tuple)
  ):
    path = partitioning.path_name(path)
    vector = len(set(axes) - {'layers'}) == 1 or axes[-2:] == ('heads', 'kv')
    is_bias = vector and not path.endswith('/kernel')
    assert decays[path] != is_bias, path
  assert decays['encoder/position/embedding']
  assert not decays['encoder/embedding_norm/scale']


def test_everything_decays_where_nothing_is_spared():
  optimizer = specs.Sgd(schedule=RATE, weight_decay=1.0, no_decay=[])
  moved, metrics = moves(optimizer, 1)[0]
  for x in moved.values():
    np.testing.assert_allclose(-x, 2 * metrics['learning_rate'])


@pytest.mark.parametrize(
  'choices, words',
  [
    (
      dict(groups=[group('layer/query/kernel')]),
      ['Group.pattern fits no', "'layer/query/kernel'", 'layers/query/kernel'],
    ),
    (
      dict(groups=[group('query')]),  # whole names
      ['Group.pattern fits no parameter'],
    ),
    (
      dict(no_decay=['.*/scale', 'embeding']),
      ['Lamb.no_decay fits no', 'did you mean embedding?'],
    ),
    (
      dict(groups=[group('layers/.*'), group('layers/query/.*')]),
      ['comes too late', "'layers/query/.*'"],
    ),
    (dict(groups=[group('.*', rate=0)]), ['freezes all parameters']),
  ],
)
def test_a_pattern_that_takes_nothing_is_refused(choices, words):
  optimizer = specs.Lamb(schedule=RATE, **choices)
  with pytest.raises(errors.ConfigError) as e:
    optimizers.build(optimizer, toy.Model.axes, 10)
  for word in words:
    assert word in str(e.value)


@pytest.mark.parametrize(
  'make',
  [
    lambda: group('layers/('),
    lambda: specs.Lamb(schedule=RATE, no_decay=['*']),
    lambda: specs.Sgd(schedule=RATE, nesterov=True),
  ],
)
def test_wrong_settings_are_refused(make):
  with pytest.raises(errors.ConfigError):
    make()


@pytest.mark.parametrize('name', OPTIMIZERS)
@pytest.mark.parametrize('what', ['loss', 'gradient'])
def test_a_step_that_is_not_finite_changes_nothing(name, what):
  params = start()
  optimizer = OPTIMIZERS[name](
    schedule=RATE, weight_decay=0.1, skip_nonfinite=2, clip_norm=1.0
  )
  with jax.enable_x64(True):
    built = optimizers.build(optimizer, toy.Model.axes, 10)
    update = jax.jit(built.update)
    state = built.init(params)
    params, state, _ = update(params, state, params, 0, 0.0)
    grads, loss = params, 0.0
    if what == 'loss':
      loss = np.nan
    else:
      x = grads['embedding'].at[3, 4].set(np.inf)
      grads = grads | {'embedding': x}
    rows = [True, True, False, True]
    for step, bad in enumerate(rows, start=1):
      g, value = (grads, loss) if bad else (params, 0.0)
      before = named((params, state['tensors']))
      params, state, metrics = update(g, state, params, step, value)
      after = named((params, state['tensors']))
      same = all(
        x.tobytes() == after[path].tobytes() for path, x in before.items()
      )
      assert same == bad
      counts = metrics['skipped'], metrics['skipped_in_a_row']
      assert counts == [(1, 1), (2, 2), (2, 0), (3, 1)][step - 1]
  assert all(np.isfinite(x).all() for x in after.values())


def test_the_norm_is_of_the_gradients_that_there_are():
  built = optimizers.build(
    specs.Sgd(schedule=RATE, groups=[group('layers/.*', rate=0)]),
    toy.Model.axes,
    10,
  )
  grads = params = jax.tree.map(np.ones_like, start())
  with jax.enable_x64(True):
    _, _, metrics = built.update(
      built.trained(grads), built.init(params), params, 0, 0.0
    )
  assert metrics['grad_norm'] == pytest.approx((128 * 32 + 32) ** 0.5)


def test_gradients_are_clipped_together():
  params = start()
  built = optimizers.build(
    specs.Sgd(schedule=RATE, clip_norm=0.5), toy.Model.axes, 10
  )
  with jax.enable_x64(True):
    new, _, metrics = built.update(params, built.init(params), params, 3, 0.0)
  norm = np.sqrt(sum(np.sum(x**2) for x in named(params).values()))
  assert metrics['grad_norm'] == pytest.approx(norm)
  for path, x in named(params).items():
    np.testing.assert_allclose(
      named(new)[path], x * (1 - 0.25 * 0.5 / norm), rtol=1e-7
    )


def test_state_is_whole_however_an_optimizer_is_switched():
  """What a resumed run may change leaves the tree of its state as it was."""
  params = jax.tree.map(jnp.float32, start())

  def layout(cls, **choices):
    built = optimizers.build(cls(schedule=RATE, **choices), toy.Model.axes, 10)
    return jax.tree.map(
      lambda x: (x.shape, x.dtype), jax.eval_shape(built.init, params)
    )

  switched = dict(
    weight_decay=0.1,
    clip_norm=1.0,
    skip_nonfinite=3,
    groups=[group('embedding', rate=0.5)],
  )
  own = {
    specs.AdamW: dict(rms_scaled=True),
    specs.Adafactor: dict(parameter_scale=False),
    specs.Lamb: dict(no_decay=['embedding']),
    specs.Sgd: {},
  }
  for cls, more in own.items():
    assert layout(cls) == layout(cls, **switched, **more)


class Recorder:
  """A saver, progress and meter that note what is asked of them."""

  def __init__(self):
    self.notes = []

  def note(self, text):
    self.notes.append(text)

  def count(self, found):
    pass

  def wait(self):
    pass

  def latest(self):
    return 30


def test_a_run_skips_as_many_steps_in_a_row_as_it_may():
  """One message ends it; the loop knows nothing but the step's metrics."""
  fake = Recorder()
  optimizer = specs.Lamb(schedule=RATE, skip_nonfinite=2)
  run = tiny.run(optimizer=optimizer, log_every=1000, steps=1000)
  one = object.__new__(loop.Loop)
  one.run, one.saver, one.progress, one.meter = run, fake, fake, fake
  bad = {'loss': np.nan, 'grad_norm': 1.0}
  for step, row in [(31, 1), (32, 2), (34, 1)]:
    one.report((step, bad | {'skipped_in_a_row': row}))
  assert [note.split(',')[0] for note in fake.notes] == [
    f'skipped step {step}' for step in (31, 32, 34)
  ]
  with pytest.raises(errors.NumericError) as e:
    one.report((40, bad | {'skipped_in_a_row': 3}))
  for word in ('step 40, nor in the 2 before', 'Lamb.clip_norm', 'step 30'):
    assert word in str(e.value)
  one.run = tiny.run()  # may skip none
  with pytest.raises(errors.NumericError, match='Adafactor.clip_norm'):
    one.report((3, bad))
