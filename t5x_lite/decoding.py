"""Decoding: from inputs to token sequences, and how likely they are."""

import jax
import jax.numpy as jnp

from t5x_lite import losses
from t5x_lite.nn import modules


def greedy(
  model,
  params,
  tokens_BK,
  segments_BK,
  length,
  num_ids,
  eos_id,
  prompt_BP,
  start_id=0,
):
  """The likeliest token at each step.

  Args:
    model: models.Model.
    params: its parameters.
    tokens_BK: encoder inputs.
    segments_BK: above 0 where they are real.
    length: most tokens to decode.
    num_ids: of the vocabulary; rows of the table past it are never chosen.
    eos_id: ends a sequence.
    prompt_BP: tokens that must come first; -1 where free, P may be 0.
    start_id: what the decoder reads first, as in training.

  Returns:
    (tokens_BL, log_probs_BL): the tokens to and with EOS, then 0, and the log
    probability of each, 0 after the end.
  """
  batch = tokens_BK.shape[0]
  forced = jnp.full((batch, length), -1, jnp.int32)
  forced = forced.at[:, : prompt_BP.shape[1]].set(prompt_BP)
  start_B1 = jnp.full((batch, 1), start_id, jnp.int32)
  logits_BV, cache = model.start(
    params,
    {
      'encoder_input_tokens': tokens_BK,
      'encoder_segment_ids': segments_BK,
      'decoder_input_tokens': start_B1,
      'decoder_segment_ids': jnp.ones_like(start_B1),
    },
    length,
  )

  def unfinished(carry):
    _, _, _, _, done, n = carry
    return (n < length) & ~jnp.all(done)

  def step(carry):
    cache, logits_BV, tokens, log_probs, done, n = carry
    log_p = jax.nn.log_softmax(logits_BV)
    wanted = jax.lax.dynamic_index_in_dim(forced, n, axis=1, keepdims=False)
    likeliest = jnp.argmax(log_p[:, :num_ids], axis=-1)
    chosen = jnp.where(wanted >= 0, wanted, likeliest)
    chosen = jnp.where(done, 0, chosen).astype(jnp.int32)
    gain = jnp.take_along_axis(log_p, chosen[:, None], axis=-1)[:, 0]
    tokens = tokens.at[:, n].set(chosen)
    log_probs = log_probs.at[:, n].set(jnp.where(done, 0, gain))
    done |= chosen == eos_id
    logits_BV, cache = model.step(params, cache, chosen)
    return cache, logits_BV, tokens, log_probs, done, n + 1

  dtype = modules.at_least_float32(jnp.dtype(model.spec.dtype))
  carry = (
    cache,
    logits_BV,
    jnp.zeros((batch, length), jnp.int32),
    jnp.zeros((batch, length), dtype),
    jnp.zeros((batch,), bool),
    0,
  )
  _, _, tokens, log_probs, _, _ = jax.lax.while_loop(unfinished, step, carry)
  return tokens, log_probs


def log_probs(model, params, batch):
  """Log probability of each target token, teacher-forced.

  Args:
    model: models.Model.
    params: its parameters.
    batch: the batch contract of encoder-decoders.

  Returns:
    log_probs_BL, float32 at least, 0 where no token is.
  """
  logits_BLV = model.apply(params, batch)
  log_z_BL, right_BL = losses.log_partition(
    logits_BLV, batch[f'{model.side}_target_tokens']
  )
  return jnp.where(
    batch[f'{model.side}_segment_ids'] > 0, right_BL - log_z_BL, 0
  )
