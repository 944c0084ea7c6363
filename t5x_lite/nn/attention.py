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


def lay_out(keys_BKGD, values_BKGD):
  """As a step reads them, with nothing turned: [B, G, D, K] and [B, G, K, D].

  The axes before are of whatever is there.
  """
  return jnp.moveaxis(keys_BKGD, -3, -1), values_BKGD.swapaxes(-3, -2)


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=['read', 'written', 'index', 'writers_BNL'],
  meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class Cache:
  """Keys and values of all layers: an array of them, or one for each layer.

  Attributes:
    read: (keys, values) of the prompts, [B, G, D, P] and [B, G, P, D] a layer:
      rows that go on from the same prompt share them.
    written: (keys, values) of what follows, [R, G, D, L] and [R, G, L, D] a
      layer; or, where rows change places, with B for R and L * N for L: of each
      place those of the N rows of an input side by side.
    index: how many tokens were written.
    writers_BNL: None, or where rows change places, which row of the same input
      wrote each token that a row goes on from; of tokens to come, itself.
  """

  read: tuple
  written: tuple
  index: jax.Array
  writers_BNL: jax.Array | None = None

  @classmethod
  def empty(cls, read, length):
    """One with room for `length` tokens after the prompts."""

    def room(axis):
      return lambda x: jnp.zeros_like(
        x, shape=[*x.shape[:axis], length, *x.shape[axis:][1:]]
      )

    keys, values = read
    written = jax.tree.map(room(-1), keys), jax.tree.map(room(-2), values)
    return cls(read, written, jnp.zeros((), jnp.int32))

  @property
  def room(self):
    """How many tokens can be written."""
    if self.writers_BNL is not None:
      return self.writers_BNL.shape[-1]
    return jax.tree.leaves(self.written[1])[0].shape[-2]

  def repeat(self, n):
    """Each row n times, one after the other, before any changes places."""
    if self.writers_BNL is not None:
      raise ValueError('rows that changed places are not repeated')
    written = jax.tree.map(lambda x: jnp.repeat(x, n, -4), self.written)
    return dataclasses.replace(self, written=written)

  def reorder(self, rows_R):
    """The rows that go on from these, each from one of the same input.

    Keys and values stay where they are: what changes is who wrote them.
    """
    inputs = jax.tree.leaves(self.read)[0].shape[-4]
    n = len(rows_R) // inputs
    written, writers_BNL = self.written, self.writers_BNL
    own_N1 = jnp.arange(n, dtype=jnp.int32)[:, None]
    if writers_BNL is None:

      def together(x_RGLD):
        *layers, _, g, length, d = x_RGLD.shape
        x_BNGLD = x_RGLD.reshape(*layers, inputs, n, g, length, d)
        x_BGLND = jnp.moveaxis(x_BNGLD, -4, -2)
        return x_BGLND.reshape(*layers, inputs, g, length * n, d)

      writers_BNL = jnp.broadcast_to(own_N1, (inputs, n, self.room))
      turn = lambda x: x.swapaxes(-1, -2)
      keys, values = written
      written = (
        jax.tree.map(lambda x: turn(together(turn(x))), keys),
        jax.tree.map(together, values),
      )
    rows_BN1 = rows_R.reshape(inputs, n, 1) % n
    writers_BNL = jnp.where(
      jnp.arange(self.room) < self.index,
      jnp.take_along_axis(writers_BNL, rows_BN1, 1, mode='clip'),
      own_N1,
    )
    return dataclasses.replace(self, written=written, writers_BNL=writers_BNL)

  def add(self, layer, keys_R1GD, values_R1GD):
    """Writes a layer's keys and values of one more token, at `index`.

    Returns:
      The cache, and `parts` of this layer as kernels.step has them.
    """
    zero = jnp.zeros((), jnp.int32)

    def write(all_N, new_R1GD, axis):
      apart = isinstance(all_N, tuple)
      old = all_N[layer] if apart else all_N
      (b, *_), (*_, g, d) = old.shape[-4:], new_R1GD.shape
      new = new_R1GD.reshape(b, -1, g, d).swapaxes(1, 2).astype(old.dtype)
      place = [zero] * 4
      place[axis] = self.index * new.shape[2]
      if axis == 3:
        new = new.swapaxes(2, 3)
      if apart:
        new = jax.lax.dynamic_update_slice(old, new, place)
        return *all_N[:layer], new, *all_N[layer + 1 :]
      return jax.lax.dynamic_update_slice(old, new[None], [layer, *place])

    def read(all_N):
      if isinstance(all_N, tuple):
        return all_N[layer]
      return jax.lax.dynamic_index_in_dim(all_N, layer, keepdims=False)

    keys, values = self.written
    written = write(keys, keys_R1GD, 3), write(values, values_R1GD, 2)
    cache = dataclasses.replace(self, written=written)
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
        bias=spec.qkv_bias,
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

  def step(self, x_R1E, parts, mask, bias, rotate=None, writers_BNL=None):
    """One query of each row; arguments as kernels.step has them."""
    spec = self.spec
    q_R1HD = self.query(x_R1E)
    y_R1HD = kernels.step.attend(
      partitioning.constrain(rotate(q_R1HD) if rotate else q_R1HD, _HEADS),
      parts,
      mask,
      bias,
      _scale(spec),
      writers_BNL,
    )
    return self.out(y_R1HD)


def _scale(spec):
  return 1 / math.sqrt(spec.head_dim) if spec.scale_attention else 1.0
