"""Optimizers against independent references, each layer by itself."""

import math

import adafactor_reference
import jax
import jax.numpy as jnp
import numpy as np
import optimizer_reference
import pytest

from t5x_lite import optimizers
from t5x_lite import specs

STEPS = 5
RATES = [0.15, 0.3, 0.3, 0.3, 0.3 * math.sqrt(3 / 4)]  # of `schedule`
# Both sides of the 128 from which T5X factors, of matrices as T5X has them:
# all axes but embed merged, so that heads of 64 and of 40 count together.
AXES = {
  'query': ('layers', 'embed', 'heads', 'kv'),
  'query_64': ('layers', 'embed', 'heads', 'kv'),
  'query_narrow': ('layers', 'embed', 'heads', 'kv'),
  'out': ('layers', 'heads', 'kv', 'embed'),
  'out_alone': ('heads', 'kv', 'embed'),
  'wi': ('layers', 'embed', 'mlp'),
  'wo': ('layers', 'mlp', 'embed'),
  'wo_narrow': ('layers', 'mlp', 'embed'),
  'zeros': ('layers', 'embed', 'mlp'),
  'layer/scale': ('layers', 'embed'),
  'bias': ('layers', 'heads', 'buckets'),
  'bias_of_stack': ('heads', 'buckets'),
  'final/scale': ('embed',),
  'embedding': ('vocab', 'embed'),
  'embedding_small': ('vocab', 'embed'),
}
SHAPES = {
  'query': (2, 128, 4, 40),
  'query_64': (2, 130, 2, 64),
  'query_narrow': (2, 128, 3, 42),
  'out': (2, 4, 40, 128),
  'out_alone': (4, 40, 128),
  'wi': (3, 128, 136),
  'wo': (3, 136, 128),
  'wo_narrow': (3, 200, 127),
  'zeros': (2, 128, 136),
  'layer/scale': (3, 128),
  'bias': (2, 4, 32),
  'bias_of_stack': (4, 32),
  'final/scale': (128,),
  'embedding': (130, 128),
  'embedding_small': (40, 128),
}
FACTORED = {'query', 'query_64', 'out', 'out_alone', 'wi', 'wo', 'zeros'}
FACTORED |= {'embedding'}


def schedule(peak=0.3):
  return specs.Schedule(peak=peak, warmup=2, hold=1)


def draw(seed):
  """Parameters, and gradients whose scales differ by layer, leaf and step."""
  rng = np.random.default_rng(seed)

  def gradient(shape):
    scale = 10 ** rng.uniform(-3, 3, (shape[0],) + (1,) * (len(shape) - 1))
    rows = rng.uniform(0.1, 10, shape[-1:])
    return scale * rows * rng.standard_normal(shape)

  params = {
    name: rng.uniform(0.1, 2) * rng.standard_normal(shape)
    for name, shape in SHAPES.items()
  }
  params['zeros'] *= 0
  grads = [{k: gradient(v) for k, v in SHAPES.items()} for _ in range(STEPS)]
  for grad in grads:
    grad['embedding'][7:60] = 0  # tokens that did not occur
  return params, grads


def matrices(name, x):
  """T5X's tensors of one of ours: a list, of one for each layer."""
  axes = AXES[name]
  layers = x if axes[0] == 'layers' else x[None]
  axes = [axis for axis in axes if axis != 'layers']
  if len(axes) < 3:
    return list(layers)
  shape = (x.shape[axes.index('embed') - len(axes)], -1)
  return [
    y.reshape(shape if axes[0] == 'embed' else shape[::-1]) for y in layers
  ]


CHOICES = {
  specs.Adafactor: (
    'decay_rate',
    'clip_threshold',
    'parameter_scale',
    'min_scale',
    'max_scale',
    'factored',
    'beta1',
    'weight_decay_power',
  ),
  specs.AdamW: ('beta1', 'beta2', 'epsilon', 'rms_scaled'),
  specs.Lamb: ('beta1', 'beta2', 'epsilon'),
  specs.Sgd: ('momentum', 'nesterov'),
}
REFERENCES = {
  specs.Adafactor: adafactor_reference.run,
  specs.AdamW: optimizer_reference.adamw,
  specs.Lamb: optimizer_reference.lamb,
  specs.Sgd: optimizer_reference.sgd,
}


def run_reference(spec, params, grads, rates):
  if spec.clip_norm is not None:
    grads = [
      dict(
        zip(
          g,
          adafactor_reference.clip_by_global_norm(g.values(), spec.clip_norm),
          strict=True,
        )
      )
      for g in grads
    ]
  moved = {}
  for name, param in params.items():
    choices = {key: getattr(spec, key) for key in CHOICES[type(spec)]}
    decays = not name.endswith('/scale')
    choices['weight_decay'] = spec.weight_decay * decays
    if isinstance(spec, specs.Lamb):
      choices['adapts'] = decays
    by_step = [matrices(name, grad[name]) for grad in grads]
    after = [
      REFERENCES[type(spec)](layer, by_layer, rates, **choices)
      for layer, *by_layer in zip(matrices(name, param), *by_step, strict=True)
    ]
    moved[name] = np.stack(after).reshape(param.shape) - param
  return moved


def run_ours(spec, params, grads, axes=AXES):
  axes = {name: axes[name] for name in params}
  optimizer = optimizers.build(spec, axes, STEPS)
  state, now = optimizer.init(params), params
  update = jax.jit(optimizer.update)
  for step, grad in enumerate(grads):
    now, state, _ = update(grad, state, now, step, 0.0)
  return {name: np.asarray(now[name]) - params[name] for name in params}


def assert_equals_reference(spec, names=AXES):
  params, grads = draw(seed=len(repr(spec)) % 100)
  params = {name: params[name] for name in names}
  grads = [{name: grad[name] for name in names} for grad in grads]
  expected = run_reference(spec, params, grads, RATES)
  with jax.enable_x64(True):
    got = run_ours(spec, jax.tree.map(jnp.asarray, params), grads)
  for name in params:
    assert got[name].dtype == np.float64
    np.testing.assert_allclose(
      got[name],
      expected[name],
      rtol=1e-6,
      atol=1e-6 * np.abs(expected[name]).max(),
      err_msg=name,
    )


@pytest.mark.parametrize(
  'choices',
  [
    {},
    {'clip_threshold': 0.25, 'decay_rate': 0.7, 'min_scale': 0.5},
    {'clip_threshold': 1e3, 'parameter_scale': False},
    {'beta1': 0.9, 'weight_decay': 0.5, 'max_scale': 0.4},
    {'weight_decay': 0.1, 'weight_decay_power': 0.0},
    {'weight_decay': 0.5, 'weight_decay_power': 2.0},
    {'factored': False, 'beta1': 0.9, 'clip_norm': 1.0},
  ],
  ids=str,
)
def test_adafactor_equals_reference(choices):
  assert_equals_reference(specs.Adafactor(schedule=schedule(), **choices))


@pytest.mark.parametrize(
  'cls, choices',
  [
    (specs.AdamW, {}),
    (specs.AdamW, {'beta1': 0.8, 'beta2': 0.98, 'weight_decay': 0.5}),
    (specs.AdamW, {'rms_scaled': True, 'weight_decay': 0.5}),
    (specs.AdamW, {'epsilon': 1.0, 'clip_norm': 1.0}),
    (specs.Lamb, {}),
    (specs.Lamb, {'beta1': 0.8, 'weight_decay': 0.5, 'clip_norm': 1.0}),
    (specs.Sgd, {}),
    (specs.Sgd, {'momentum': 0.9, 'weight_decay': 0.5}),
    (specs.Sgd, {'momentum': 0.9, 'nesterov': True}),
  ],
  ids=str,
)
def test_others_equal_references(cls, choices):
  names = 'query', 'out', 'wo', 'zeros', 'layer/scale', 'final/scale', 'bias'
  assert_equals_reference(cls(schedule=schedule(), **choices), names)


def test_adafactor_in_float32():
  spec = specs.Adafactor(schedule=schedule(), beta1=0.9)
  params, grads = draw(seed=9)
  expected = run_reference(spec, params, grads, RATES)
  params, grads = jax.tree.map(np.float32, (params, grads))
  got = run_ours(spec, params, grads)
  for name in params:
    largest = np.abs(expected[name]).max()
    np.testing.assert_allclose(got[name], expected[name], atol=1e-5 * largest)


def test_gradients_here_are_clipped_and_not():
  params, grads = draw(seed=0)

  def moved(steps, threshold):
    spec = specs.Adafactor(schedule=schedule(), clip_threshold=threshold)
    return run_reference(spec, params, grads[:steps], [0.1] * steps)

  differ = {
    name
    for name in params
    if not np.allclose(moved(STEPS, 1.0)[name], moved(STEPS, 1e9)[name])
  }
  assert len(differ) > len(params) / 2
  np.testing.assert_allclose(
    moved(1, 1.0)['final/scale'], moved(1, 1e9)['final/scale']
  )


def test_zeros_move_by_the_least_scale():
  spec = specs.Adafactor(schedule=schedule(0.01), min_scale=1e-3)
  params = {'zeros': jnp.zeros(SHAPES['zeros'])}
  grads = {'zeros': jnp.sign(draw(seed=1)[1][0]['zeros'])}
  tx = optimizers.build(spec, {'zeros': AXES['zeros']}, STEPS)
  moved, _, _ = jax.jit(tx.update)(grads, tx.init(params), params, 0, 0.0)
  # first rate 0.01 / 2 in the warm-up, times the least scale
  np.testing.assert_allclose(
    moved['zeros'], -0.5e-5 * grads['zeros'], rtol=1e-5
  )


@pytest.mark.parametrize('name', SHAPES)
def test_state_is_factored_where_t5x_factors(name):
  spec = specs.Adafactor(schedule=schedule())
  leaf = jax.ShapeDtypeStruct(SHAPES[name], jnp.float32)
  tx = optimizers.build(spec, {name: AXES[name]}, STEPS)
  state = jax.eval_shape(tx.init, {name: leaf})
  size = sum(math.prod(x.shape) for x in jax.tree.leaves(state))
  assert (size < leaf.size / 10) == (name in FACTORED)
