"""A stack of layers, as a scan."""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp

from t5x_lite.nn import layers
from t5x_lite.nn import modules
from t5x_lite.nn import positions

REMAT = {
  'none': None,
  # Of dense layers; those of attention are computed again. JAX's own policies
  # see no product within a custom gradient.
  'dots': jax.checkpoint_policies.save_only_these_names(modules.PRODUCT),
  'full': jax.checkpoint_policies.nothing_saveable,
}


class Stack(nnx.Module):
  """n equal layers with what comes before and after them.

  The layers' parameters are stacked and scanned over, whatever `windows` and
  `unroll` say, so there is one layout of checkpoints.
  """

  def __init__(self, rngs, spec, num_layers, cross):
    self.spec, self.num_layers = spec, num_layers
    if not positions.is_per_layer(spec):
      self.position = positions.make(rngs, spec)
    if spec.embedding_norm:
      self.embedding_norm = modules.Norm(rngs, spec)
    depth = num_layers * (3 if cross else 2)
    self.layers = modules.stack(
      lambda rngs: layers.Layer(rngs, spec, cross, depth), num_layers, rngs
    )
    if spec.norm_place != 'post':
      self.final_norm = modules.Norm(rngs, spec)

  def __call__(
    self,
    x_BQE,
    positions_BQ,
    mask,
    encoder=None,
    keys_B=None,
    cache=None,
    keep=False,
    each=None,
  ):
    """The whole stack.

    Args:
      x_BQE: embedded tokens.
      positions_BQ: of the tokens; schemes of differences ignore them.
      mask: masks.Mask of the own sequence.
      encoder: for a decoder of two stacks, (encoded_BKE, masks.Mask), or
        ((keys_NBKGD, values_NBKGD), masks.Mask) from `cross_keys_values`; with
        a cache, as attention.lay_out has them.
      keys_B: dropout keys, or None.
      cache: None, or the attention.Cache of what was decoded so far.
      keep: whether the keys and values are wanted.
      each: None, or the parameters of each layer, as `apart` has them, and then
        so are the encoder's keys and values and the cache.

    Returns:
      The stream; (keys_NBQGD, values_NBQGD), or None; the cache with them.
    """
    spec = self.spec
    position = None, None
    if not positions.is_per_layer(spec):
      x_BQE = self.position.embed(x_BQE, positions_BQ)
      bias = self.position.bias(mask)
      if bias is not None and cache is None:
        bias = bias.share(x_BQE.shape[0])
      position = bias, self.position.rotation(positions_BQ)
    if spec.embedding_norm:
      x_BQE = self.embedding_norm(x_BQE)
    key, is_t5 = modules.fold_in(keys_B, 0), spec.dropout_kind == 't5'
    x_BQE = modules.dropout(x_BQE, spec.dropout, key, 0, is_t5)

    graphdef, params = nnx.split(self.layers)
    memory = None
    if encoder is not None:
      memory = encoder[0] if isinstance(encoder[0], tuple) else None
      encoder = *encoder, encoder[1].sees()

    def one(x_BQE, cache, params, n, memory, window):
      around = encoder if memory is None else (memory, *encoder[1:])
      return nnx.merge(graphdef, params)(
        x_BQE,
        dataclasses.replace(mask, window=window),
        position,
        around,
        modules.fold_in(keys_B, n + 1),
        n,
        cache,
      )

    if spec.remat != 'none' and cache is None:
      one = jax.checkpoint(
        one, prevent_cse=False, policy=REMAT[spec.remat], static_argnums=5
      )
    windows = spec.windows or (0,)
    if each is not None:
      for n, params in enumerate(each):
        own = memory and tuple(x_N[n] for x_N in memory)
        window = windows[n % len(windows)]
        x_BQE, _, cache = one(x_BQE, cache, params, n, own, window)
      return self._leave(x_BQE), None, cache
    turns, width = self.num_layers // len(windows), len(windows)

    def turn(carry, scanned):
      new = []
      for i, window in enumerate(windows):
        params, n, memory = jax.tree.map(lambda x, i=i: x[i], scanned)
        x_BQE, kept, cache = one(*carry, params, n, memory, window)
        carry = x_BQE, cache
        new.append(kept if keep else None)
      return carry, jax.tree.map(lambda *x: jnp.stack(x), *new)

    scanned = params, jnp.arange(self.num_layers, dtype=jnp.int32), memory
    (x_BQE, cache), new = jax.lax.scan(
      turn,
      (x_BQE, cache),
      jax.tree.map(lambda x: x.reshape(turns, width, *x.shape[1:]), scanned),
      unroll=min(max(spec.unroll // width, 1), turns),
    )
    new = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), new)
    x_BQE = self._leave(x_BQE)
    if is_t5:
      # T5's encoder draws this one for each token, its decoder does not.
      x_BQE = modules.dropout(x_BQE, spec.dropout, key, 1, mask.causal)
    return x_BQE, new, cache

  def _leave(self, x_BQE):
    return x_BQE if self.spec.norm_place == 'post' else self.final_norm(x_BQE)

  def apart(self):
    """The parameters of each layer, for a stack without a scan."""
    _, params = nnx.split(self.layers)
    return tuple(
      jax.tree.map(lambda x_N, n=n: x_N[n], params)
      for n in range(self.num_layers)
    )

  def cross_keys_values(self, encoded_BKE):
    """Each layer's keys and values of the encoder: two of [N, B, K, G, D]."""
    graphdef, params = nnx.split(self.layers)

    def body(_, params):
      layer = nnx.merge(graphdef, params)
      return None, layer.cross_attention.keys_values(encoded_BKE)

    return jax.lax.scan(body, None, params)[1]
