"""Which tokens may see which: booleans [B, Q, K], true where seen."""

import jax.numpy as jnp


def same_segment(query_segments_BQ, key_segments_BK):
  """Tokens of one packed example see each other; padding sees padding."""
  return query_segments_BQ[:, :, None] == key_segments_BK[:, None, :]


def causal(query_length, key_length, first_query=0):
  """A token sees itself and what is before it: [1, Q, K].

  `first_query` is the position of the first query among the keys.
  """
  query_Q = jnp.arange(query_length) + first_query
  return (jnp.arange(key_length)[None, :] <= query_Q[:, None])[None]
