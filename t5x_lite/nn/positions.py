"""Position schemes."""

import math

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from t5x_lite import specs
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


class T5Bias(nnx.Module):
  """A learned scalar for each head and bucket, added to attention logits."""

  def __init__(self, rngs, spec, num_heads, bidirectional):
    self.spec, self.bidirectional = spec, bidirectional
    limit = math.sqrt(3 / ((num_heads + spec.buckets) / 2))
    self.rel_embedding = modules.param(
      rngs,
      (num_heads, spec.buckets),
      ('heads', 'buckets'),
      modules.uniform(limit),
    )

  def __call__(self, query_length, key_length, first_query=0):
    """The bias [H, Q, K] of queries at first_query, first_query + 1, ...

    It depends on key minus query alone, so one value is looked up for each
    difference, and the rows of the result are that list shifted by one each:
    a matrix of Q + K columns read with rows one shorter.
    """
    q, n = query_length, query_length + key_length - 1
    relative = jnp.arange(n) - (q - 1) - first_query
    places = bucket(
      relative, self.bidirectional, self.spec.buckets, self.spec.max_distance
    )
    one_hot = jax.nn.one_hot(
      places, self.spec.buckets, dtype=self.rel_embedding.dtype
    )
    values = jnp.einsum('HR,NR->HN', self.rel_embedding[...], one_hot)
    heads = values.shape[0]
    rows = jnp.broadcast_to(
      jnp.pad(values, ((0, 0), (0, 1)))[:, None], (heads, q, n + 1)
    )
    shifted = rows.reshape(heads, q * (n + 1))[:, : q * n].reshape(heads, q, n)
    return shifted[:, :, q - 1 :]


POSITIONS = {specs.T5Bias: T5Bias}
