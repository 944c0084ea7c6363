"""Models: from a spec to parameters and pure functions over them."""

import dataclasses
import functools
import math

from flax import nnx
import jax
import jax.numpy as jnp

from t5x_lite import errors
from t5x_lite import partitioning
from t5x_lite.nn import masks
from t5x_lite.nn import modules
from t5x_lite.nn import stacks


class EncoderDecoder(nnx.Module):
  """T5: arXiv:1910.10683; with gated and untied layers, 2002.05202."""

  def __init__(self, rngs, spec):
    self.spec = spec
    self.token_embedder = modules.Embed(rngs, spec.vocab_size, spec.embed_dim)
    self.encoder = stacks.Stack(rngs, spec, spec.encoder_layers, cross=False)
    self.decoder = stacks.Stack(rngs, spec, spec.decoder_layers, cross=True)
    if not spec.tie_embeddings:
      self.logits = modules.Dense(
        rngs,
        'BLE,EV->BLV',
        (spec.embed_dim, spec.vocab_size),
        ('embed', 'vocab'),
        modules.truncated_normal(1 / math.sqrt(spec.embed_dim)),
      )

  def embed(self, tokens_BL):
    return self.token_embedder(tokens_BL, jnp.dtype(self.spec.dtype))

  def encode(self, tokens_BL, segments_BL, keys_B=None):
    mask_BQK = masks.same_segment(segments_BL, segments_BL)
    x_BLE = self.embed(tokens_BL)
    return self.encoder(x_BLE, mask_BQK, keys_B=keys_B)[0]

  def head(self, x_BLE):
    """Logits, in float32 at least."""
    if self.spec.tie_embeddings:
      logits_BLV = self.token_embedder.logits(x_BLE)
    else:
      wide = modules.at_least_float32(x_BLE.dtype)
      logits_BLV = self.logits(x_BLE.astype(wide))
    return partitioning.constrain(logits_BLV, ('batch', 'length', 'logits'))

  def __call__(self, batch, keys_B=None):
    """Teacher-forced logits [B, L, V] of a batch."""

    def key(n):
      return None if keys_B is None else modules.fold_in(keys_B, n)

    source_BK = batch['encoder_segment_ids']
    target_BQ = batch['decoder_segment_ids']
    encoded_BKE = self.encode(batch['encoder_input_tokens'], source_BK, key(0))
    x_BQE = self.embed(batch['decoder_input_tokens'])
    length = target_BQ.shape[1]
    mask_BQK = masks.same_segment(target_BQ, target_BQ)
    mask_BQK &= masks.causal(length, length)
    cross_mask_BQK = masks.same_segment(target_BQ, source_BK)
    x_BQE, _ = self.decoder(
      x_BQE, mask_BQK, (encoded_BKE, cross_mask_BQK), key(1)
    )
    return self.head(x_BQE)

  def start(self, tokens_BK, segments_BK, length):
    """Encodes the inputs and makes an empty cache for `length` tokens."""
    spec = self.spec
    encoded_BKE = self.encode(tokens_BK, segments_BK)
    shape = (
      spec.decoder_layers,
      tokens_BK.shape[0],
      length,
      spec.num_heads,
      spec.head_dim,
    )
    empty = jnp.zeros(shape, encoded_BKE.dtype)
    return {
      'keys_values': (empty, empty),
      'cross_keys_values': self.decoder.cross_keys_values(encoded_BKE),
      'cross_mask': segments_BK[:, None, :] > 0,
      'index': jnp.zeros((), jnp.int32),
    }

  def step(self, cache, tokens_B):
    """Logits [B, V] after one more token of each row, and the new cache."""
    index = cache['index']
    length = cache['keys_values'][0].shape[2]
    x_BQE, keys_values = self.decoder(
      self.embed(tokens_B[:, None]),
      masks.causal(1, length, index),
      (cache['cross_keys_values'], cache['cross_mask']),
      cache=(*cache['keys_values'], index),
    )
    cache = dict(cache, keys_values=keys_values, index=index + 1)
    return self.head(x_BQE)[:, 0], cache


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
  """Pure functions over a nested dict of parameters.

  Attributes:
    spec: what it was built from.
    abstract: shape and type of each parameter.
    axes: the logical axis names of each parameter.
  """

  spec: object
  abstract: dict
  axes: dict
  _graphdef: object
  _state: object

  @property
  def num_params(self):
    return sum(math.prod(p.shape) for p in jax.tree.leaves(self.abstract))

  def init(self, key):
    """Fresh float32 parameters."""
    module = EncoderDecoder(nnx.Rngs(params=key), self.spec)
    return nnx.to_pure_dict(nnx.split(module)[1])

  def _bind(self, params):
    state = jax.tree.map(lambda p: p, self._state)  # a copy to fill
    nnx.replace_by_pure_dict(state, params)
    return nnx.merge(self._graphdef, state)

  def apply(self, params, batch, dropout_keys=None):
    """Teacher-forced logits.

    Args:
      params: as from `init`.
      batch: encoder_input_tokens, encoder_segment_ids,
        decoder_input_tokens, decoder_segment_ids, each [B, L].
      dropout_keys: a random key for each row [B], or None for no dropout.

    Returns:
      logits_BLV, float32 at least.
    """
    return self._bind(params)(batch, dropout_keys)

  def start(self, params, tokens_BK, segments_BK, length):
    """A cache to decode up to `length` tokens from these inputs."""
    return self._bind(params).start(tokens_BK, segments_BK, length)

  def step(self, params, cache, tokens_B):
    """Feeds one token a row: (logits_BV, cache)."""
    return self._bind(params).step(cache, tokens_B)


@functools.lru_cache(maxsize=16)
def build(spec):
  """The model of a spec; allocates nothing."""
  if spec.dtype == 'float64' and not jax.config.jax_enable_x64:
    raise errors.ConfigError(
      'Transformer.dtype float64 is off',
      fix='set the environment variable JAX_ENABLE_X64=1',
    )
  module = nnx.eval_shape(lambda: EncoderDecoder(nnx.Rngs(params=0), spec))
  graphdef, state = nnx.split(module)
  is_param = lambda x: isinstance(x, nnx.Variable)
  axes = jax.tree.map(lambda p: p.axes, state, is_leaf=is_param)
  return Model(
    spec=spec,
    abstract=nnx.to_pure_dict(state),
    axes=nnx.to_pure_dict(axes),
    _graphdef=graphdef,
    _state=state,
  )
