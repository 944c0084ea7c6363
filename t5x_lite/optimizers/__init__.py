"""Optimizers from optax, applied to each layer of a stack by itself.

Whatever a transformation measures of a tensor (its scale, its norm, its moments
by rows and columns) is then the same whether or not layers are stacked.
"""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from t5x_lite.optimizers import groups
from t5x_lite.optimizers.schedules import learning_rate
from t5x_lite.optimizers.tensors import OPTIMIZERS


@dataclasses.dataclass(frozen=True)
class Optimizer:
  """An optimizer of all parameters of a model.

  Its state is a dict: of 'tensors', a nested dict like the parameters of the
  states of each (with leading axes of layers, and None of what is frozen), and
  of the numbers of steps 'skipped' and 'skipped_in_a_row'.

  Attributes:
    spec: one of specs' optimizers.
    tensors: nested dict like the parameters, of tensors.Tensor.
    rate: learning rate by step.
  """

  spec: object
  tensors: dict
  rate: object

  def init(self, params):
    """The state before the first step."""

    def one(tensor, x):
      return self._by_layer(tensor, 1.0, lambda tx: tx.init)(x)

    return {
      'tensors': self._of_trained(one, params),
      'skipped': jnp.zeros((), jnp.int32),
      'skipped_in_a_row': jnp.zeros((), jnp.int32),
    }

  def trained(self, params):
    """The parameters, with None in place of those that are frozen."""
    return self._of_trained(lambda _, x: x, params)

  def merge(self, trained, params):
    """The parameters, with those that are trained replaced."""
    return jax.tree.map(
      lambda tensor, new, old: new if tensor.rate else old,
      self.tensors,
      trained,
      params,
    )

  def update(self, grads, state, params, step, loss):
    """One step, of all that is trained.

    Args:
      grads: nested dict like the parameters, None where one is frozen.
      state: the optimizer's.
      params: nested dict.
      step: its number, from 0.
      loss: that the gradients are of, which decides with them whether a step
        is skipped for not being finite.

    Returns:
      (params, state, metrics): of the metrics, `grad_norm` is of all gradients
      that there are, before they are clipped; `learning_rate` is what is
      applied, with `learning_rate/PATTERN` for a group's own.
    """
    norm, rate = optax.tree.norm(grads), self.rate(step)
    if self.spec.clip_norm is not None:
      shrink = jnp.minimum(1, self.spec.clip_norm / norm)
      grads = jax.tree.map(lambda g: g * shrink, grads)

    def one(tensor, grad, old, x):
      def layer(tx):
        def update(grad, old, x):
          change, new = tx.update(grad, old, x)
          return x + change, new

        return update

      own = jnp.asarray(tensor.rate * rate, x.dtype)
      return self._by_layer(tensor, own, layer)(grad, old, x)

    old = state['tensors'], self.trained(params)
    pairs = self._of_trained(one, grads, *old)
    new = tuple(
      self._of_trained(lambda _, pair, n=n: pair[n], pairs) for n in (1, 0)
    )
    metrics = {'grad_norm': norm, 'learning_rate': rate}
    for group in self.spec.groups:
      if group.rate not in (0, 1):
        metrics[f'learning_rate/{group.pattern}'] = group.rate * rate
    counts = {name: state[name] for name in ('skipped', 'skipped_in_a_row')}
    if self.spec.skip_nonfinite:
      fine = jnp.isfinite(norm) & jnp.isfinite(loss)
      new = jax.tree.map(lambda x, y: jnp.where(fine, x, y), new, old)
      in_a_row = jnp.where(fine, 0, counts['skipped_in_a_row'] + 1)
      counts = {
        'skipped': counts['skipped'] + (~fine).astype(jnp.int32),
        'skipped_in_a_row': in_a_row,
      }
      metrics |= counts
    return self.merge(new[1], params), {'tensors': new[0], **counts}, metrics

  def _of_trained(self, fn, *trees):
    """Maps over all that is trained; None takes the place of the rest."""
    return jax.tree.map(
      lambda tensor, *xs: fn(tensor, *xs) if tensor.rate else None,
      self.tensors,
      *trees,
    )

  def _by_layer(self, tensor, rate, make):
    """A function of one layer's transformation, for all layers at once."""
    fn = make(OPTIMIZERS[type(self.spec)](self.spec, tensor, rate))
    for _ in range(tensor.layers):
      fn = jax.vmap(fn)
    return fn


def build(spec, axes, steps):
  """The Optimizer of a spec.

  Args:
    spec: one of specs' optimizers.
    axes: nested dict of the parameters' logical axes.
    steps: of the whole run, for schedules that end.

  Raises:
    ConfigError: a pattern of the spec fits no parameter.
  """
  rate = learning_rate(spec.schedule, steps)
  return Optimizer(spec, groups.assign(spec, axes), rate)
