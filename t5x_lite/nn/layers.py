"""The layer that every stack repeats."""

from flax import nnx
import jax

from t5x_lite import partitioning
from t5x_lite.nn import attention
from t5x_lite.nn import modules
from t5x_lite.nn import positions


class Layer(nnx.Module):
  """Self-attention, attention to an encoder if `cross`, and feed-forward.

  Each is added to the stream after a norm of its input (pre-norm).
  """

  def __init__(self, rngs, spec, cross):
    self.spec, self.cross = spec, cross
    if spec.position and spec.position.per_layer:
      self.position = positions.POSITIONS[type(spec.position)](
        rngs, spec.position, spec.num_heads, bidirectional=not cross
      )
    self.attention_norm = modules.RMSNorm(rngs, spec.embed_dim)
    self.attention = attention.Attention(rngs, spec)
    if cross:
      self.cross_attention_norm = modules.RMSNorm(rngs, spec.embed_dim)
      self.cross_attention = attention.Attention(rngs, spec)
    self.mlp_norm = modules.RMSNorm(rngs, spec.embed_dim)
    self.mlp = modules.Mlp(rngs, spec)

  def __call__(self, x_BQE, mask_BQK, bias_HQK, encoder, keys_B, cache):
    """One layer.

    Args:
      x_BQE: the stream.
      mask_BQK: which tokens of the own sequence are seen.
      bias_HQK: position bias of the whole stack, or None.
      encoder: None, or (encoded_BKE or its keys and values, mask_BQK).
      keys_B: dropout keys, or None.
      cache: None, or (keys_BKHD, values_BKHD, index): what was decoded so
        far, to which the Q new tokens are added at `index`.

    Returns:
      The stream, and the cache's keys and values with the new tokens.
    """

    def key(n):
      return None if keys_B is None else modules.fold_in(keys_B, n)

    def add(x_BQE, y_BQE, site):
      y_BQE = modules.dropout(y_BQE, self.spec.dropout, key(0), site)
      return partitioning.constrain(x_BQE + y_BQE, ('batch', 'length', 'embed'))

    if self.spec.position and self.spec.position.per_layer:
      first = 0 if cache is None else cache[2]
      bias_HQK = self.position(*mask_BQK.shape[1:], first)

    y_BQE = self.attention_norm(x_BQE)
    keys_values = self.attention.keys_values(y_BQE)
    if cache is not None:
      *old, index = cache
      keys_values = tuple(
        jax.lax.dynamic_update_slice_in_dim(a, b.astype(a.dtype), index, axis=1)
        for a, b in zip(old, keys_values)
      )
    y_BQE = self.attention(y_BQE, keys_values, mask_BQK, bias_HQK, key(1))
    x_BQE = add(x_BQE, y_BQE, site=0)

    if self.cross:
      memory, cross_mask_BQK = encoder
      if not isinstance(memory, tuple):
        memory = self.cross_attention.keys_values(memory)
      y_BQE = self.cross_attention(
        self.cross_attention_norm(x_BQE), memory, cross_mask_BQK, None, key(2)
      )
      x_BQE = add(x_BQE, y_BQE, site=1)

    y_BQE = self.mlp(self.mlp_norm(x_BQE), key(3))
    x_BQE = add(x_BQE, y_BQE, site=2)
    return x_BQE, keys_values if cache is not None else None
