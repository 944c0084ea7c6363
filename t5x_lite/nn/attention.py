"""Multi-head attention."""

import dataclasses
import functools
import math

from flax import nnx
import jax
import jax.numpy as jnp

from t5x_lite import partitioning
from t5x_lite.nn import kernels
from t5x_lite.nn import modules

_HEADS = 'batch', 'length', 'heads', 'kv'


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=['keys_NBKGD', 'values_NBKGD', 'index'],
  meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class Cache:
  """Keys and values of all layers, of `index` tokens and room for more."""

  keys_NBKGD: jax.Array
  values_NBKGD: jax.Array
  index: jax.Array

  def add(self, layer, keys_BQGD, values_BQGD):
    """Writes a layer's keys and values of new tokens, at `index`.

    Returns:
      The cache, and this layer's keys and values with the new ones, [B, K, G,
      D] each.
    """
    zero = jnp.zeros((), jnp.int32)
    place = layer, zero, self.index, zero, zero

    def write(all_NBKGD, new_BQGD):
      new_BQGD = new_BQGD.astype(all_NBKGD.dtype)
      return jax.lax.dynamic_update_slice(all_NBKGD, new_BQGD[None], place)

    cache = dataclasses.replace(
      self,
      keys_NBKGD=write(self.keys_NBKGD, keys_BQGD),
      values_NBKGD=write(self.values_NBKGD, values_BQGD),
    )
    read = functools.partial(
      jax.lax.dynamic_index_in_dim, index=layer, keepdims=False
    )
    return cache, (read(cache.keys_NBKGD), read(cache.values_NBKGD))


class Attention(nnx.Module):
  """Queries from one sequence, keys and values from another or the same."""

  def __init__(self, rngs, spec, depth):
    """Makes the parameters; `depth` as of initializers.weights."""
    self.spec = spec
    e, h, d = spec.embed_dim, spec.num_heads, spec.head_dim
    g = spec.num_kv_heads or h

    def project(role, heads):
      return modules.Dense(
        rngs,
        spec,
        role,
        'BLE,EHD->BLHD',
        {'embed': e, 'heads': heads, 'kv': d},
      )

    self.query = project('query', h)
    self.key = project('attention', g)
    self.value = project('attention', g)
    self.out = modules.Dense(
      rngs,
      spec,
      'attention',
      'BLHD,HDE->BLE',
      {'heads': h, 'kv': d, 'embed': e},
      depth=depth,
    )

  def keys_values(self, y_BKE, rotate=None):
    """Keys, turned by `rotate` if given, and values of a sequence."""
    k_BKGD = self.key(y_BKE)
    return (
      partitioning.constrain(rotate(k_BKGD) if rotate else k_BKGD, _HEADS),
      partitioning.constrain(self.value(y_BKE), _HEADS),
    )

  def __call__(self, x_BQE, keys_values, mask, bias, keys_B, rotate=None):
    spec = self.spec
    q_BQHD = self.query(x_BQE)

    dropout = None
    if keys_B is not None and spec.dropout:
      shared = spec.dropout_kind == 't5'
      dropout = modules.WeightDropout(spec.dropout, keys_B, shared)
    y_BQHD = kernels.attend(
      spec,
      partitioning.constrain(rotate(q_BQHD) if rotate else q_BQHD, _HEADS),
      *keys_values,
      mask,
      bias,
      1 / math.sqrt(spec.head_dim) if spec.scale_attention else 1.0,
      dropout,
    )
    return self.out(y_BQHD)
