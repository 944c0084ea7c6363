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
  data_fields=['read', 'written', 'index'],
  meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class Cache:
  """Keys and values of all layers: an array of them, or one for each layer.

  Attributes:
    read: (keys, values) of the prompts, [B, G, P, D] a layer: rows that go on
      from the same prompt share them.
    written: (keys, values) of what follows, [R, G, L, D] a layer.
    index: how many tokens were written.
  """

  read: tuple
  written: tuple
  index: jax.Array

  def add(self, layer, keys_R1GD, values_R1GD):
    """Writes a layer's keys and values of one more token, at `index`.

    Returns:
      The cache, and `parts` of this layer as kernels.step has them.
    """
    zero = jnp.zeros((), jnp.int32)

    def write(all_N, new_R1GD):
      new_RG1D = new_R1GD.swapaxes(1, 2)
      place = zero, zero, self.index, zero
      if isinstance(all_N, tuple):
        new = jax.lax.dynamic_update_slice(
          all_N[layer], new_RG1D.astype(all_N[layer].dtype), place
        )
        return *all_N[:layer], new, *all_N[layer + 1 :]
      new_RG1D = new_RG1D.astype(all_N.dtype)
      return jax.lax.dynamic_update_slice(
        all_N, new_RG1D[None], (layer, *place)
      )

    def read(all_N):
      if isinstance(all_N, tuple):
        return all_N[layer]
      return jax.lax.dynamic_index_in_dim(all_N, layer, keepdims=False)

    new = keys_R1GD, values_R1GD
    cache = dataclasses.replace(
      self, written=tuple(map(write, self.written, new))
    )
    return cache, [
      tuple(map(read, part)) for part in (cache.read, cache.written)
    ]


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
      _scale(spec),
      dropout,
    )
    return self.out(y_BQHD)

  def step(self, x_R1E, parts, mask, bias, rotate=None):
    """One query of each row; `parts` as kernels.step has them."""
    spec = self.spec
    q_R1HD = self.query(x_R1E)
    y_R1HD = kernels.step.attend(
      partitioning.constrain(rotate(q_R1HD) if rotate else q_R1HD, _HEADS),
      parts,
      mask,
      bias,
      _scale(spec),
    )
    return self.out(y_R1HD)


def _scale(spec):
  return 1 / math.sqrt(spec.head_dim) if spec.scale_attention else 1.0
