"""Optimizers from optax, applied to each layer of a stack by itself."""

import math

import jax
import jax.numpy as jnp
import optax

from t5x_lite import specs

DECAYS = {
  'constant': lambda spec, step, first, last: 1.0,
  'rsqrt': lambda spec, step, first, last: jnp.sqrt(
    first / jnp.maximum(step, first)
  ),
  'linear': lambda spec, step, first, last: _between(
    spec, 1 - _progress(step, first, last)
  ),
  'cosine': lambda spec, step, first, last: _between(
    spec, 0.5 + 0.5 * jnp.cos(math.pi * _progress(step, first, last))
  ),
}


def _progress(step, first, last):
  return jnp.clip((step - first) / max(last - first, 1), 0, 1)


def _between(spec, share):
  low = spec.end / spec.peak
  return low + (1 - low) * share


def learning_rate(spec, steps):
  """The rate of a step, a function of its number from 0.

  Rises as peak * (step + 1) / warmup, stays at the peak for `hold` steps and
  decays from there: 'rsqrt' as peak * sqrt(first / step), which for peak 0.01
  and 10,000 steps of hold is T5's 1 / sqrt(max(step, 10,000)); 'linear' and
  'cosine' to `end` at the last step.
  """
  first = max(spec.warmup + spec.hold, 1)

  def rate(step):
    rise = jnp.minimum(1.0, (step + 1) / max(spec.warmup, 1))
    decay = DECAYS[spec.decay](spec, step, first, steps - 1)
    return spec.peak * rise * decay

  return rate


def _as_matrix(x, axes):
  """A kernel as a matrix of 'embed' against all its other axes.

  That is how T5X stores it, so that row and column moments are the same.
  """
  if x.ndim < 3:
    return x
  if axes[0] == 'embed':
    return x.reshape(x.shape[0], -1)
  return x.reshape(-1, x.shape[-1])


def per_tensor(tx, axes):
  """Applies `tx` to each parameter, and to each layer of a stack, by itself.

  Whatever a transformation measures of a tensor (its scale, its moments by
  rows and columns) is then the same whether or not layers are stacked.

  Args:
    tx: a transformation of one matrix or vector.
    axes: nested dict of the parameters' logical axes.

  Returns:
    A transformation whose state is a nested dict like the parameters, of the
    states of `tx`, those of stacked layers with a leading axis.
  """

  def init_one(names, x):
    if names[0] == 'layers':
      return jax.vmap(lambda layer: init_one(names[1:], layer))(x)
    return tx.init(_as_matrix(x, names))

  def update_one(names, grad, state, x):
    if names[0] == 'layers':
      layer = lambda *args: update_one(names[1:], *args)
      return jax.vmap(layer)(grad, state, x)
    update, state = tx.update(
      _as_matrix(grad, names), state, _as_matrix(x, names)
    )
    return update.reshape(x.shape), state

  def is_axes(x):
    return isinstance(x, tuple)

  def init(params):
    return jax.tree.map(init_one, axes, params, is_leaf=is_axes)

  def update(grads, states, params):
    pairs = jax.tree.map(
      update_one, axes, grads, states, params, is_leaf=is_axes
    )
    pick = lambda n: jax.tree.map(
      lambda _, pair: pair[n], axes, pairs, is_leaf=is_axes
    )
    return pick(0), pick(1)

  return optax.GradientTransformation(init, update)


def adafactor(spec, axes, steps):
  """Adafactor with T5X's semantics, arXiv:1804.04235 and t5x/adafactor.py."""

  def part(wanted, tx):
    # What is left out keeps its place, so that the state's tree is the same.
    return tx() if wanted else optax.identity()

  one = optax.chain(
    optax.scale_by_factored_rms(
      factored=spec.factored, decay_rate=spec.decay_rate
    ),
    optax.clip_by_block_rms(spec.clip_threshold),
    optax.scale_by_learning_rate(learning_rate(spec.schedule, steps)),
    part(
      spec.parameter_scale,
      lambda: optax.scale_by_param_block_rms(spec.min_scale),
    ),
    part(spec.beta1, lambda: optax.ema(spec.beta1, debias=False)),
  )
  return optax.chain(
    part(spec.clip_norm, lambda: optax.clip_by_global_norm(spec.clip_norm)),
    per_tensor(one, axes),
  )


OPTIMIZERS = {specs.Adafactor: adafactor}


def build(spec, axes, steps):
  """The optimizer of a spec, as an optax.GradientTransformation.

  Args:
    spec: one of specs' optimizers.
    axes: nested dict of the parameters' logical axes.
    steps: of the whole run, for schedules that end.
  """
  return OPTIMIZERS[type(spec)](spec, axes, steps)
