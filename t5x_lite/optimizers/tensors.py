"""How one tensor is updated: each optimizer, composed of optax's parts.

Each is a function (spec, tensor, rate) -> optax.GradientTransformation of one
layer's parameter, with the learning rate of the step at hand.
"""

import dataclasses

import jax.numpy as jnp
import optax

from t5x_lite import specs


@dataclasses.dataclass(frozen=True)
class Tensor:
  """What is particular to a parameter."""

  axes: tuple  # logical, of one layer
  layers: int  # leading axes over layers, which are not among these
  rate: float  # times the schedule's; 0: frozen
  decays: bool  # whether it takes part in weight decay
  decay: float  # how much, before the rate


def _part(wanted, tx):
  # What is left out keeps its place, so that the state's tree is the same.
  return tx() if wanted else optax.identity()


def _scale_by_rms(low, high=None):
  """Updates in proportion to the parameter's root mean square."""

  def scale(updates, params):
    rms = jnp.sqrt(jnp.mean(jnp.square(params)))
    return updates * jnp.clip(rms, low, high)

  return optax.stateless(scale)


def _as_matrix(x, axes):
  if x.ndim < 3:
    return x
  if axes[0] == 'embed':
    return x.reshape(x.shape[0], -1)
  return x.reshape(-1, x.shape[-1])


def _in_matrices(tx, axes):
  """Shows `tx` a kernel as a matrix of 'embed' against all its other axes.

  That is how T5X stores it, so that row and column moments are the same.
  """

  def update(grad, state, x):
    matrices = _as_matrix(grad, axes), state, _as_matrix(x, axes)
    moved, state = tx.update(*matrices)
    return moved.reshape(x.shape), state

  return optax.GradientTransformation(
    lambda x: tx.init(_as_matrix(x, axes)), update
  )


def adafactor(spec, tensor, rate):
  """Adafactor with T5X's semantics, arXiv:1804.04235 and t5x/adafactor.py.

  The first moment is that of whole updates, rate and scale included. Weight
  decay comes after it and is not scaled: x - rate^power * weight_decay * x.
  """
  tx = optax.chain(
    optax.scale_by_factored_rms(
      factored=spec.factored, decay_rate=spec.decay_rate
    ),
    optax.clip_by_block_rms(spec.clip_threshold),
    optax.scale(-rate),
    _part(
      spec.parameter_scale,
      lambda: _scale_by_rms(spec.min_scale, spec.max_scale),
    ),
    _part(spec.beta1, lambda: optax.ema(spec.beta1, debias=False)),
    _decay(tensor, rate**spec.weight_decay_power),
  )
  return _in_matrices(tx, tensor.axes)


def _decay(tensor, rate):
  return _part(
    tensor.decay, lambda: optax.add_decayed_weights(-rate * tensor.decay)
  )


def adamw(spec, tensor, rate):
  """AdamW, arXiv:1711.05101: x - rate * (step + weight_decay * x).

  With `rms_scaled`, the step alone is in proportion to the parameter, as in
  nanoT5, arXiv:2309.02373 section 3.2.
  """
  return optax.chain(
    optax.scale_by_adam(spec.beta1, spec.beta2, spec.epsilon),
    optax.scale(-rate),
    _part(spec.rms_scaled, lambda: _scale_by_rms(1e-3)),
    _decay(tensor, rate),
  )


def lamb(spec, tensor, rate):
  """LAMB, arXiv:1904.00962 algorithm 2, with phi(z) = z.

  A tensor of zeros, or whose step is zero, moves by the rate times the step.
  """
  return optax.chain(
    optax.scale_by_adam(spec.beta1, spec.beta2, spec.epsilon),
    _decay(tensor, -1.0),
    _part(tensor.decays, optax.scale_by_trust_ratio),
    optax.scale(-rate),
  )


def sgd(spec, tensor, rate):
  """Gradient descent: the sum is m = momentum * m + gradient."""
  return optax.chain(
    _part(spec.momentum, lambda: optax.trace(spec.momentum, spec.nesterov)),
    optax.scale(-rate),
    _decay(tensor, rate),
  )


OPTIMIZERS = {
  specs.Adafactor: adafactor,
  specs.AdamW: adamw,
  specs.Lamb: lamb,
  specs.Sgd: sgd,
}
