"""Multi-head attention."""

import dataclasses
import functools
import math

from flax import nnx
import jax
import jax.numpy as jnp

from t5x_lite import partitioning
from t5x_lite.nn import modules

HIDDEN = -1e10  # the logit of a key that may not be seen
_HEADS = 'batch', 'length', 'heads', 'kv'


def attend(q_BQHD, k_BKGD, v_BKGD, mask, bias=None, scale=1.0, dropout=None):
  """softmax(scale q k + bias) v over the keys that the mask shows.

  Logits and softmax are at least float32.

  Args:
    q_BQHD: queries.
    k_BKGD: keys; each of G heads serves H / G neighbouring heads of queries.
    v_BKGD: values.
    mask: masks.Mask.
    bias: positions.Toeplitz, added to the logits, or None.
    scale: of the logits.
    dropout: None, or a function of the weights [B, H, Q, K].
  """
  wide = modules.at_least_float32(q_BQHD.dtype)
  b, q, h, d = q_BQHD.shape
  k, g = k_BKGD.shape[1:3]
  if g == h:
    logits_BHQK = modules.einsum('BQHD,BKHD->BHQK', q_BQHD, k_BKGD, wide)
  else:
    q_BQGRD = q_BQHD.reshape(b, q, g, h // g, d)
    logits_BHQK = modules.einsum(
      'BQGRD,BKGD->BGRQK', q_BQGRD, k_BKGD, wide
    ).reshape(b, h, q, k)
  if scale != 1:
    logits_BHQK = logits_BHQK * jnp.asarray(scale, wide)
  if bias is not None:
    logits_BHQK = logits_BHQK + bias.matrix()[None].astype(wide)
  logits_BHQK = jnp.where(mask.matrix()[:, None], logits_BHQK, HIDDEN)
  weights_BHQK = modules.softmax(logits_BHQK).astype(v_BKGD.dtype)
  if dropout is not None:
    weights_BHQK = dropout(weights_BHQK)
  if g == h:
    return modules.einsum('BHQK,BKHD->BQHD', weights_BHQK, v_BKGD)
  weights_BGRQK = weights_BHQK.reshape(b, g, h // g, q, k)
  return modules.einsum('BGRQK,BKGD->BQGRD', weights_BGRQK, v_BKGD).reshape(
    b, q, h, d
  )


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

    def dropout(weights_BHQK):
      shared = spec.dropout_kind == 't5'
      return modules.dropout(weights_BHQK, spec.dropout, keys_B, 0, shared)

    y_BQHD = attend(
      partitioning.constrain(rotate(q_BQHD) if rotate else q_BQHD, _HEADS),
      *keys_values,
      mask,
      bias,
      1 / math.sqrt(spec.head_dim) if spec.scale_attention else 1.0,
      dropout,
    )
    return self.out(y_BQHD)
