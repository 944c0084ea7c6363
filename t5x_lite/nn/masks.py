"""Which tokens may see which."""

import dataclasses
import functools

import jax
import jax.numpy as jnp


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=['query_segments_BQ', 'key_segments_BK', 'first', 'prefix'],
  meta_fields=['causal', 'window'],
)
@dataclasses.dataclass(frozen=True, kw_only=True)
class Mask:
  """The rules by which a query sees a key; a matrix only when asked for.

  Attributes:
    query_segments_BQ: the packed example that a token is of; 0 is padding.
    key_segments_BK: the same of the keys. Tokens of one example see each other,
      and padding sees padding, so that every query sees something.
    causal: whether keys after a query are hidden.
    window: how many tokens, itself included, a query sees in each direction;
      0 for all.
    first: place of the first query among the keys.
    prefix: None, or (query_BQ, key_BK): true for tokens that see each other
      whatever comes first.
  """

  query_segments_BQ: jax.Array
  key_segments_BK: jax.Array
  causal: bool = False
  window: int = 0
  first: int | jax.Array = 0
  prefix: tuple[jax.Array, jax.Array] | None = None

  @property
  def shape(self):
    """Queries and keys."""
    return self.query_segments_BQ.shape[1], self.key_segments_BK.shape[1]

  def matrix(self):
    """Booleans [B, Q, K], true where a query sees a key."""
    q, k = self.shape
    query_Q, key_K = jnp.arange(q) + self.first, jnp.arange(k)
    after_QK = key_K[None, :] - query_Q[:, None]
    seen_BQK = (
      self.query_segments_BQ[:, :, None] == self.key_segments_BK[:, None, :]
    )
    if self.causal:
      past_BQK = (after_QK <= 0)[None]
      if self.prefix:
        query_BQ, key_BK = self.prefix
        past_BQK |= query_BQ[:, :, None] & key_BK[:, None, :]
      seen_BQK &= past_BQK
    if self.window:
      seen_BQK &= (jnp.abs(after_QK) < self.window)[None]
    return seen_BQK

  def sees(self):
    """Booleans [B, Q], true where a query's example has any key.

    In memory linear in the length, as `matrix` is not, if that is known yet.
    """
    known = isinstance(self.shape[1], int)
    method = 'binary_search' if known else 'compare_all'
    isin = functools.partial(jnp.isin, method=method)
    return jax.vmap(isin)(self.query_segments_BQ, self.key_segments_BK)

  def reach(self, queries):
    """How many keys, at most, so many neighbouring queries see."""
    keys = self.shape[1]
    if not self.window:
      return keys
    sides = 1 if self.causal and self.prefix is None else 2
    return min(keys, queries + sides * (self.window - 1))

  def near(self, width):
    """The mask of so many keys as near to the queries as there are.

    Returns:
      (the mask, the number of the first of these keys).
    """
    key = jnp.clip(self.first - (self.window - 1), 0, self.shape[1] - width)
    cut = lambda x_BK: jax.lax.dynamic_slice_in_dim(x_BK, key, width, 1)
    return dataclasses.replace(
      self,
      key_segments_BK=cut(self.key_segments_BK),
      first=self.first - key,
      prefix=self.prefix and (self.prefix[0], cut(self.prefix[1])),
    ), key


def within(segments_BL, causal=False, prefix_BL=None):
  """The mask of a sequence that attends to itself.

  Args:
    segments_BL: the packed example of each token; 0 is padding.
    causal: whether later tokens are hidden.
    prefix_BL: None, or above 0 for tokens that see each other both ways.
  """
  if prefix_BL is not None:
    prefix_BL = prefix_BL > 0
  return Mask(
    query_segments_BQ=segments_BL,
    key_segments_BK=segments_BL,
    causal=causal,
    prefix=None if prefix_BL is None else (prefix_BL, prefix_BL),
  )
