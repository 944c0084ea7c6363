"""The layer that every stack repeats."""

import functools

from flax import nnx
import jax.numpy as jnp

from t5x_lite import partitioning
from t5x_lite.nn import attention
from t5x_lite.nn import modules
from t5x_lite.nn import positions


class Layer(nnx.Module):
  """Self-attention, attention to an encoder if `cross`, and feed-forward.

  What they find is added to the stream. They read a norm of it ('pre'), or it
  is normed when they have added to it ('post'), or they read a norm and what
  they find is normed too ('both').
  """

  def __init__(self, rngs, spec, cross, depth):
    self.spec, self.cross = spec, cross
    if positions.is_per_layer(spec):
      self.position = positions.make(rngs, spec)
    parts = {
      'attention': attention.Attention,
      'cross_attention': attention.Attention if cross else None,
      'mlp': modules.Mlp,
    }
    for name, part in parts.items():
      if part:
        setattr(self, name, part(rngs, spec, depth))
        setattr(self, f'{name}_norm', modules.Norm(rngs, spec))
        if spec.norm_place == 'both':
          setattr(self, f'{name}_out_norm', modules.Norm(rngs, spec))

  def __call__(self, x_BQE, mask, position, encoder, keys_B, layer, cache):
    """One layer.

    Args:
      x_BQE: the stream.
      mask: masks.Mask of the own sequence.
      position: (bias, rotate) of the whole stack, each may be None.
      encoder: None, or (encoded_BKE or its keys and values, masks.Mask, what
        that `sees`); with a cache, as attention.lay_out has them.
      keys_B: dropout keys, or None.
      layer: its number.
      cache: None, or the attention.Cache of what was decoded so far.

    Returns:
      The stream; keys and values of the new tokens; the cache with them.
    """
    place, rate = self.spec.norm_place, self.spec.dropout
    shared = self.spec.dropout_kind == 't5'

    def key(n):
      return modules.fold_in(keys_B, n)

    def add(x_BQE, name, find, site):
      norm = getattr(self, f'{name}_norm')
      y_BQE = find(norm(x_BQE) if place != 'post' else x_BQE)
      if place == 'both':
        y_BQE = getattr(self, f'{name}_out_norm')(y_BQE)
      y_BQE = modules.dropout(y_BQE, rate, key(0), site, shared)
      x_BQE = x_BQE + y_BQE
      x_BQE = norm(x_BQE) if place == 'post' else x_BQE
      return partitioning.constrain(x_BQE, ('batch', 'length', 'embed'))

    bias, rotate = position
    if positions.is_per_layer(self.spec):
      bias = self.position.bias(mask)
      bias = bias if cache is not None else bias.share(x_BQE.shape[0])
    new = None

    def attend(y_BQE):
      nonlocal new, cache
      new = self.attention.keys_values(y_BQE, rotate)
      if cache is not None:
        cache, parts = cache.add(layer, *new)
        return self.attention.step(
          y_BQE, parts, mask, bias, rotate, cache.writers_BNL
        )
      return self.attention(y_BQE, new, mask, bias, key(1), rotate)

    def look(y_BQE):
      memory, cross_mask, sees_BQ = encoder
      if cache is not None:
        y_BQE = self.cross_attention.step(y_BQE, [memory], cross_mask, None)
        rows = y_BQE.shape[0] // sees_BQ.shape[0]
        sees_BQ = jnp.repeat(sees_BQ, rows, axis=0)
      else:
        if not isinstance(memory, tuple):
          memory = self.cross_attention.keys_values(memory)
        y_BQE = self.cross_attention(y_BQE, memory, cross_mask, None, key(2))
      # Else an example without inputs would find the mean of all others'.
      return jnp.where(sees_BQ[..., None], y_BQE, 0)

    x_BQE = add(x_BQE, 'attention', attend, site=0)
    if encoder is not None:
      x_BQE = add(x_BQE, 'cross_attention', look, site=1)
    mlp = functools.partial(self.mlp, keys_B=key(3))
    return add(x_BQE, 'mlp', mlp, site=2), new, cache
