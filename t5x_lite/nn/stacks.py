"""A stack of layers, as a scan."""

from flax import nnx
import jax
import jax.numpy as jnp

from t5x_lite.nn import layers
from t5x_lite.nn import modules
from t5x_lite.nn import positions

REMAT = {
  'none': None,
  'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  'full': jax.checkpoint_policies.nothing_saveable,
}


class Stack(nnx.Module):
  """n equal layers and a final norm; a decoder if `cross`.

  The layers' parameters are stacked and scanned over, whatever `unroll` says,
  so there is one layout of checkpoints.
  """

  def __init__(self, rngs, spec, num_layers, cross):
    self.spec, self.num_layers, self.cross = spec, num_layers, cross
    if spec.position and not spec.position.per_layer:
      self.position = positions.POSITIONS[type(spec.position)](
        rngs, spec.position, spec.num_heads, bidirectional=not cross
      )
    self.layers = modules.stack(
      lambda rngs: layers.Layer(rngs, spec, cross), num_layers, rngs
    )
    self.final_norm = modules.RMSNorm(rngs, spec.embed_dim)

  def __call__(self, x_BQE, mask_BQK, encoder=None, keys_B=None, cache=None):
    """The whole stack.

    Args:
      x_BQE: embedded tokens.
      mask_BQK: which tokens of the own sequence are seen.
      encoder: for a decoder, (encoded_BKE, mask_BQK), or with a cache
        ((keys_NBKHD, values_NBKHD), mask_BQK) from `cross_keys_values`.
      keys_B: dropout keys, or None.
      cache: None, or (keys_NBKHD, values_NBKHD, index).

    Returns:
      The normed stream, and the cache's new keys and values or None.
    """
    spec = self.spec

    def key(n):
      return None if keys_B is None else modules.fold_in(keys_B, n)

    bias_HQK = None
    if spec.position and not spec.position.per_layer:
      first = 0 if cache is None else cache[2]
      bias_HQK = self.position(*mask_BQK.shape[1:], first)
    graphdef, params = nnx.split(self.layers)
    x_BQE = modules.dropout(x_BQE, spec.dropout, key(0), site=0)

    def body(x_BQE, scanned):
      params, n, old, memory = scanned
      layer = nnx.merge(graphdef, params)
      around = encoder
      if memory is not None:
        around = memory, encoder[1]
      now = None if cache is None else (*old, cache[2])
      return layer(x_BQE, mask_BQK, bias_HQK, around, key(n + 1), now)

    if spec.remat != 'none':
      body = jax.checkpoint(body, prevent_cse=False, policy=REMAT[spec.remat])
    x_BQE, new = jax.lax.scan(
      body,
      x_BQE,
      (
        params,
        jnp.arange(self.num_layers),
        None if cache is None else cache[:2],
        None if cache is None or encoder is None else encoder[0],
      ),
      unroll=min(spec.unroll, self.num_layers),
    )
    x_BQE = self.final_norm(x_BQE)
    # T5's encoder draws this one for each token, its decoder does not.
    x_BQE = modules.dropout(
      x_BQE, spec.dropout, key(0), site=1, share_length=self.cross
    )
    return x_BQE, new

  def cross_keys_values(self, encoded_BKE):
    """Each layer's keys and values of the encoder: two of [N, B, K, H, D]."""
    graphdef, params = nnx.split(self.layers)

    def body(_, params):
      layer = nnx.merge(graphdef, params)
      return None, layer.cross_attention.keys_values(encoded_BKE)

    return jax.lax.scan(body, None, params)[1]
