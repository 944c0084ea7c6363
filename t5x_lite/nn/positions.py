"""Position schemes."""

import dataclasses
import functools
import math

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from t5x_lite import partitioning
from t5x_lite import specs
from t5x_lite.nn import initializers
from t5x_lite.nn import modules


def bucket_starts(buckets, max_distance):
  """The least distance in each of T5's buckets after the exact ones.

  The first half of the buckets hold one distance each, the others grow
  logarithmically up to max_distance (arXiv:1910.10683 section 2.1). Computed
  here, in float32 as the released models were, so that no device's logarithm
  can shift an edge.
  """
  exact = buckets // 2
  distance = np.arange(exact, max(max_distance, exact) + 1, dtype=np.float32)
  epsilon = np.finfo(np.float32).eps
  bucket = exact + (
    np.log(distance / np.float32(exact) + epsilon)
    / np.float32(math.log(max_distance / exact))
    * np.float32(buckets - exact)
  ).astype(np.int32)
  bucket = np.minimum(bucket, buckets - 1)
  return [
    int(distance[np.argmax(bucket >= b)]) for b in range(exact + 1, buckets)
  ]


def bucket(relative, bidirectional, buckets, max_distance):
  """T5's bucket of a relative position (key minus query).

  Args:
    relative: int array.
    bidirectional: whether keys after the query have buckets of their own.
    buckets: how many in all.
    max_distance: from here on all share the last bucket.
  """
  offset = 0
  if bidirectional:
    buckets //= 2
    offset = jnp.where(relative > 0, buckets, 0)
    distance = jnp.abs(relative)
  else:
    distance = jnp.maximum(-relative, 0)
  exact = buckets // 2
  beyond = sum(
    (distance >= start).astype(jnp.int32)
    for start in bucket_starts(buckets, max_distance)
  )
  return offset + jnp.minimum(distance, exact) + beyond


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=['values_SHN'],
  meta_fields=['queries'],
)
@dataclasses.dataclass(frozen=True)
class Toeplitz:
  """A bias of attention that depends on key minus query alone.

  Attributes:
    values_SHN: one for each difference, from that of the last query and the
      first key to that of the first query and the last key: N is Q + K - 1. S
      is 1, or as many as share out the rows of a batch.
    queries: Q.
  """

  values_SHN: jax.Array
  queries: int

  def matrix(self):
    """The bias [S, H, Q, K].

    Its rows are the list of values shifted by one each: a matrix of Q + K
    columns read with rows one shorter.
    """
    (*_, n), q = self.values_SHN.shape, self.queries
    outer = self.values_SHN.shape[:2]
    rows = jnp.broadcast_to(
      jnp.pad(self.values_SHN, ((0, 0), (0, 0), (0, 1)))[:, :, None],
      (*outer, q, n + 1),
    )
    shifted = rows.reshape(*outer, q * (n + 1))[..., :-q].reshape(*outer, q, n)
    return shifted[..., q - 1 :]

  def add_to(self, logits_BHQK):
    """The logits with the bias."""
    matrix_SHQK = self.matrix().astype(logits_BHQK.dtype)
    if len(matrix_SHQK) == 1:
      return logits_BHQK + matrix_SHQK
    shape = len(matrix_SHQK), -1, *logits_BHQK.shape[1:]
    added = logits_BHQK.reshape(shape) + matrix_SHQK[:, None]
    return added.reshape(logits_BHQK.shape)

  def share(self, rows):
    """One for each share of so many rows of a batch, if the mesh shares them.

    Its gradient is a sum over rows. So each device adds up its own, over all
    layers; else they would exchange matrices [H, Q, K] in each layer.
    """
    mesh = jax.sharding.get_abstract_mesh()
    shares = 1 if mesh.empty else partitioning.batch_shards(mesh.shape)
    if shares == 1 or rows % shares:
      return self
    values_SHN = jnp.broadcast_to(
      self.values_SHN, (shares, *self.values_SHN.shape[1:])
    )
    axes = 'batch', 'heads', 'keys'
    return Toeplitz(partitioning.constrain(values_SHN, axes), self.queries)

  def pad(self, queries):
    """The bias of more queries, zero for what is new."""
    more = (0, 0), (0, 0), (queries - self.queries, 0)
    return Toeplitz(jnp.pad(self.values_SHN, more), queries)

  def part(self, query, queries, key, keys):
    """The bias of so many queries and keys, from these on."""
    start = self.queries - query - queries + key
    values_SHN = jax.lax.dynamic_slice_in_dim(
      self.values_SHN, start, queries + keys - 1, 2
    )
    return Toeplitz(values_SHN, queries)


def differences(mask):
  """Key minus query of each value of a Toeplitz bias for a mask, int [N]."""
  q, k = mask.shape
  return jnp.arange(q + k - 1) - (q - 1) - mask.first


class NoPosition(nnx.Module):
  """What a scheme may do to embeddings, to queries and keys, and to logits."""

  def __init__(self, rngs, spec):
    del rngs
    self.spec = spec

  def embed(self, x_BLE, positions_BL):
    """The embedded tokens, with their positions where a scheme adds them."""
    del positions_BL
    return x_BLE

  def rotation(self, positions_BL):
    """A function of queries or keys [B, L, H, D], or None."""
    del positions_BL

  def bias(self, mask):
    """A Toeplitz to add to the logits of self-attention, or None."""
    del mask


class Learned(NoPosition):
  """A table of vectors added to the embeddings."""

  def __init__(self, rngs, spec):
    self.spec, length = spec, spec.position.length
    self.embedding = modules.param(
      rngs,
      (length, spec.embed_dim),
      ('positions', 'embed'),
      initializers.weights(spec, 'embedding', length, spec.embed_dim),
    )

  def embed(self, x_BLE, positions_BL):
    added_BLE = jnp.take(self.embedding[...], positions_BL, axis=0)
    return x_BLE + added_BLE.astype(x_BLE.dtype)


class Sinusoid(NoPosition):
  """Sines in the first half of the width, cosines in the second.

  arXiv:1706.03762 takes them by turns, which is a permutation of the width.
  """

  def embed(self, x_BLE, positions_BL):
    wide = modules.at_least_float32(x_BLE.dtype)
    half = x_BLE.shape[-1] // 2
    period = self.spec.position.max_period
    rates_R = jnp.asarray(period ** -(np.arange(half) / half), wide)
    angles_BLR = positions_BL[..., None].astype(wide) * rates_R[None, None]
    added_BLE = jnp.concatenate([jnp.sin(angles_BLR), jnp.cos(angles_BLR)], -1)
    return x_BLE + added_BLE.astype(x_BLE.dtype)


class Rope(NoPosition):
  """Each pair of a query's and a key's values turned by its position.

  Their product then depends on the difference of positions alone.
  """

  def rotation(self, positions_BL):
    spec = self.spec.position
    half = self.spec.head_dim // 2
    wide = modules.at_least_float32(jnp.dtype(self.spec.dtype))
    rates_R = jnp.asarray(spec.theta ** -(np.arange(half) / half), wide)
    angles_BLR = positions_BL[..., None].astype(wide) * rates_R[None, None]
    cos, sin = jnp.cos(angles_BLR)[:, :, None], jnp.sin(angles_BLR)[:, :, None]

    def rotate(x_BLHD):
      shape = (2, half) if spec.pairs == 'halves' else (half, 2)
      axis = -2 if spec.pairs == 'halves' else -1
      x = x_BLHD.astype(wide).reshape(*x_BLHD.shape[:-1], *shape)
      a, b = (jnp.take(x, i, axis) for i in (0, 1))
      turned = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis)
      return turned.reshape(x_BLHD.shape).astype(x_BLHD.dtype)

    return rotate


def alibi_slopes(heads):
  """The penalties of one token of distance: powers of 2^(-8/H).

  Where the number of heads is no power of two, those of the next lower one and
  then every other of twice as many: the released code of arXiv:2108.12409.
  """
  whole = 2 ** math.floor(math.log2(heads))
  first = [2 ** (-8 * (n + 1) / whole) for n in range(whole)]
  between = [2 ** (-4 * (n + 1) / whole) for n in range(0, 2 * whole, 2)]
  return np.array(first + between[: heads - whole])


class Alibi(NoPosition):
  """Minus a head's slope times the distance, added to the logits."""

  def bias(self, mask):
    wide = modules.at_least_float32(jnp.dtype(self.spec.dtype))
    slopes_H = jnp.asarray(alibi_slopes(self.spec.num_heads), wide)
    distance_N = jnp.abs(differences(mask)).astype(wide)
    values_HN = -slopes_H[:, None] * distance_N[None]
    return Toeplitz(values_HN[None], mask.shape[0])


class T5Bias(NoPosition):
  """A learned scalar for each head and bucket, added to attention logits."""

  def __init__(self, rngs, spec):
    self.spec = spec
    heads, buckets = spec.num_heads, spec.position.buckets
    self.rel_embedding = modules.param(
      rngs,
      (heads, buckets),
      ('heads', 'buckets'),
      initializers.uniform(math.sqrt(3 / ((heads + buckets) / 2))),
    )

  def bias(self, mask):
    spec = self.spec.position
    places_N = bucket(
      differences(mask), not mask.causal, spec.buckets, spec.max_distance
    )
    table_HR = self.rel_embedding[...]
    one_hot_NR = jax.nn.one_hot(places_N, spec.buckets, dtype=table_HR.dtype)
    values_HN = jnp.einsum('HR,NR->HN', table_HR, one_hot_NR)
    return Toeplitz(values_HN[None], mask.shape[0])


POSITIONS = {
  type(None): NoPosition,
  specs.Learned: Learned,
  specs.Sinusoid: Sinusoid,
  specs.Rope: Rope,
  specs.Alibi: Alibi,
  specs.T5Bias: T5Bias,
}


def is_per_layer(spec):
  """Whether each layer has a position table of its own."""
  return getattr(spec.position, 'per_layer', False)


def make(rngs, spec):
  """The position scheme of a specs.Transformer."""
  return POSITIONS[type(spec.position)](rngs, spec)
