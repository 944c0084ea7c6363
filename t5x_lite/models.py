"""Models: from a spec to parameters and pure functions over them."""

import dataclasses
import functools
import math

from flax import nnx
import jax
import jax.numpy as jnp

from t5x_lite import errors
from t5x_lite import partitioning
from t5x_lite.nn import attention
from t5x_lite.nn import masks
from t5x_lite.nn import modules
from t5x_lite.nn import stacks


class Transformer(nnx.Module):
  """An encoder-decoder, a decoder or an encoder, arXiv:1706.03762."""

  def __init__(self, rngs, spec):
    self.spec = spec
    self.token_embedder = modules.Embed(rngs, spec, spec.vocab_size)
    if spec.segments:
      self.type_embedder = modules.Embed(rngs, spec, spec.segments, 'types')
    if spec.encoder_layers and not spec.share_stacks:
      self.encoder = stacks.Stack(rngs, spec, spec.encoder_layers, cross=False)
    if spec.decoder_layers:
      cross = spec.encoder_layers > 0
      self.decoder = stacks.Stack(rngs, spec, spec.decoder_layers, cross)
    if not spec.tie_embeddings:
      sizes = {'embed': spec.embed_dim, 'vocab': spec.vocab_size}
      self.logits = modules.Dense(
        rngs, spec, 'logits', 'BLE,EV->BLV', sizes, bias=spec.logits_bias
      )
    elif spec.logits_bias:
      self.logits = modules.Bias(rngs, spec.vocab_size, 'vocab')
    if spec.classes:
      sizes = {'embed': spec.embed_dim, 'classes': spec.classes}
      self.classes = modules.Dense(
        rngs, spec, 'logits', 'BE,EC->BC', sizes, bias=False
      )

  def embed(self, tokens_BL, types_BL=None):
    x_BLE = self.token_embedder(tokens_BL)
    if self.spec.scale_embeddings:
      x_BLE = x_BLE * jnp.asarray(math.sqrt(self.spec.embed_dim), x_BLE.dtype)
    return x_BLE if types_BL is None else x_BLE + self.type_embedder(types_BL)

  def encode(self, batch, keys_B=None):
    """The encoder's stream, and the segments of its tokens."""
    segments_BL = batch['encoder_segment_ids']
    types_BL = batch['encoder_type_ids'] if self.spec.segments else None
    stack = self.decoder if self.spec.share_stacks else self.encoder
    x_BLE, _, _ = stack(
      self.embed(batch['encoder_input_tokens'], types_BL),
      batch.get('encoder_positions'),
      masks.within(segments_BL),
      keys_B=keys_B,
    )
    return x_BLE, segments_BL

  def head(self, x_BLE):
    """Logits, in float32 at least."""
    if self.spec.tie_embeddings:
      logits_BLV = self.token_embedder.logits(x_BLE)
      if self.spec.logits_bias:
        logits_BLV = self.logits(logits_BLV)
    else:
      wide = modules.at_least_float32(x_BLE.dtype)
      logits_BLV = self.logits(x_BLE.astype(wide))
    return partitioning.constrain(logits_BLV, ('batch', 'length', 'logits'))

  def decode(self, batch, keys_B=None, keep=False):
    """The decoder's stream, and what `start` keeps."""
    spec, encoder = self.spec, None
    segments_BQ = batch['decoder_segment_ids']
    if spec.encoder_layers:
      memory, segments_BK = self.encode(batch, modules.fold_in(keys_B, 0))
      if keep:
        memory = self.decoder.cross_keys_values(memory)
      encoder = (
        memory,
        masks.Mask(query_segments_BQ=segments_BQ, key_segments_BK=segments_BK),
      )
    prefix = 'decoder_bidirectional_mask' if spec.mask == 'prefix' else None
    x_BQE, keys_values, _ = self.decoder(
      self.embed(batch['decoder_input_tokens']),
      batch.get('decoder_positions'),
      masks.within(segments_BQ, True, batch[prefix] if prefix else None),
      encoder,
      modules.fold_in(keys_B, 1),
      keep=keep,
    )
    return x_BQE, keys_values, encoder

  def __call__(self, batch, keys_B=None):
    """Teacher-forced logits [B, L, V] of a batch."""
    run = self.decode if self.spec.decoder_layers else self.encode
    return self.head(run(batch, keys_B)[0])

  def classify(self, batch, keys_B=None):
    """Teacher-forced logits, and those of classes [B, C] at the last token."""
    x_BQE, _, _ = self.decode(batch, keys_B)
    last_B = jnp.sum(batch['decoder_segment_ids'] > 0, axis=1) - 1
    x_BE = jnp.take_along_axis(x_BQE, last_B[:, None, None], axis=1)[:, 0]
    wide = modules.at_least_float32(x_BE.dtype)
    key = modules.fold_in(keys_B, 2)
    x_BE = modules.dropout(x_BE, self.spec.dropout, key, 0, share_length=False)
    return self.head(x_BQE), self.classes(x_BE.astype(wide))

  def start(self, batch, length):
    """Reads inputs and prompts: logits [B, V] of the next token, and a cache.

    Args:
      batch: encoder_* of an encoder-decoder; decoder_input_tokens and
        decoder_segment_ids [B, P], prompts that end at P, padded on the left.
      length: how many tokens may follow.
    """
    segments_BP = batch['decoder_segment_ids']
    real_BP = (segments_BP > 0).astype(jnp.int32)
    batch = batch | {
      'decoder_positions': jnp.maximum(jnp.cumsum(real_BP, 1) - 1, 0),
      'decoder_bidirectional_mask': real_BP,
    }
    x_BPE, keys_values, encoder = self.decode(batch, keep=True)
    # XLA's CPU backend copies what a scan takes of each layer, all parameters
    # at every token: there each has its own.
    unrolled = partitioning.platform() == 'cpu'

    def lay_out(keys_values):
      laid = attention.lay_out(*keys_values)
      return tuple(map(tuple, laid)) if unrolled else laid

    state = {
      'each': self.decoder.apart() if unrolled else None,
      'cache': attention.Cache.empty(lay_out(keys_values), length),
      'prompt': real_BP,
      'encoder': None,
    }
    if encoder:
      state['encoder'] = lay_out(encoder[0]), encoder[1].key_segments_BK
    return self.head(x_BPE[:, -1:])[:, 0], state

  def step(self, state, tokens_R):
    """Logits [R, V] after one more token of each row, and the new state."""
    cache, real_BP, encoder = (
      state[name] for name in ('cache', 'prompt', 'encoder')
    )
    inputs, prompt = real_BP.shape
    one_B1 = jnp.ones((inputs, 1), jnp.int32)
    mask = masks.Mask(
      query_segments_BQ=one_B1,
      key_segments_BK=jnp.pad(
        real_BP, ((0, 0), (0, cache.room)), constant_values=1
      ),
      causal=True,
      first=prompt + cache.index,
    )
    if encoder:
      cross = masks.Mask(query_segments_BQ=one_B1, key_segments_BK=encoder[1])
      encoder = encoder[0], cross
    before_B = real_BP.sum(1) + cache.index
    x_R1E, _, cache = self.decoder(
      self.embed(tokens_R[:, None]),
      jnp.repeat(before_B, tokens_R.shape[0] // inputs)[:, None],
      mask,
      encoder,
      cache=cache,
      each=state['each'],
    )
    cache = dataclasses.replace(cache, index=cache.index + 1)
    return self.head(x_R1E)[:, 0], state | {'cache': cache}


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
  def side(self):
    """Whose features hold what is predicted: 'decoder' or 'encoder'."""
    return 'decoder' if self.spec.decoder_layers else 'encoder'

  @property
  def num_params(self):
    return sum(math.prod(p.shape) for p in jax.tree.leaves(self.abstract))

  def init(self, key):
    """Fresh float32 parameters."""
    module = Transformer(nnx.Rngs(params=key), self.spec)
    return nnx.to_pure_dict(nnx.split(module)[1])

  def _bind(self, params):
    state = jax.tree.map(lambda p: p, self._state)  # a copy to fill
    nnx.replace_by_pure_dict(state, params)
    return nnx.merge(self._graphdef, state)

  def apply(self, params, batch, dropout_keys=None):
    """Teacher-forced logits.

    Args:
      params: as from `init`.
      batch: input_tokens, segment_ids and, for schemes of absolute positions,
        positions, each [B, L], of 'encoder_', 'decoder_' or both; of a prefix
        LM decoder_bidirectional_mask; with types of tokens encoder_type_ids.
      dropout_keys: a random key for each row [B], or None for no dropout.

    Returns:
      logits_BLV, float32 at least.
    """
    return self._bind(params)(batch, dropout_keys)

  def classify(self, params, batch, dropout_keys=None):
    """As `apply`, of a spec with classes: (logits_BLV, class_logits_BC)."""
    return self._bind(params).classify(batch, dropout_keys)

  def start(self, params, batch, length):
    """Reads inputs and prompts before decoding.

    Args:
      params: as from `init`.
      batch: encoder_* [B, K] of an encoder-decoder; and the prompts,
        decoder_input_tokens and decoder_segment_ids [B, P]: at least the start
        token, and padding (segment 0) on the left of shorter ones. Of a prefix
        LM the whole prompt is the prefix.
      length: how many tokens may follow.

    Returns:
      (logits_BV of the next token, a state for `step`).
    """
    return self._bind(params).start(batch, length)

  def step(self, params, state, tokens_B):
    """Feeds one token a row: (logits_BV of the next, state)."""
    return self._bind(params).step(state, tokens_B)

  @staticmethod
  def reorder(state, rows_R):
    """The state whose rows go on from these, each of the same input."""
    return state | {'cache': state['cache'].reorder(rows_R)}

  @staticmethod
  def repeat(state, n):
    """The state with each row n times, one after the other.

    Raises:
      ValueError: it was reordered.
    """
    return state | {'cache': state['cache'].repeat(n)}


@functools.lru_cache(maxsize=16)
def build(spec):
  """The model of a spec; allocates nothing."""
  if spec.dtype == 'float64' and not jax.config.jax_enable_x64:
    raise errors.ConfigError(
      'Transformer.dtype float64 is off',
      fix='set the environment variable JAX_ENABLE_X64=1',
    )
  graphdef, state = nnx.split(Transformer(None, spec))
  is_param = lambda x: isinstance(x, nnx.Variable)
  axes = jax.tree.map(lambda p: p.axes, state, is_leaf=is_param)
  return Model(
    spec=spec,
    abstract=nnx.to_pure_dict(state),
    axes=nnx.to_pure_dict(axes),
    _graphdef=graphdef,
    _state=state,
  )
