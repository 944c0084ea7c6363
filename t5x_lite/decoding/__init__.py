"""Decoding: from inputs to token sequences, and how likely they are."""

import jax
import jax.numpy as jnp

from t5x_lite import errors
from t5x_lite import losses
from t5x_lite import specs
from t5x_lite.decoding import beams
from t5x_lite.decoding import prompts  # noqa: F401  (a part of it)
from t5x_lite.decoding import sampling

CHOOSERS = {
  specs.Greedy: sampling.Rows,
  specs.Sample: sampling.Rows,
  specs.Beam: beams.Search,
}


def decode(
  model,
  params,
  batch,
  spec,
  length,
  num_ids,
  eos_id,
  examples_B=None,
  active_B=None,
  temperature_B=None,
):
  """Sequences that go on from each row's prompt.

  Args:
    model: models.Model.
    params: its parameters.
    batch: what `model.start` takes: prompts, and inputs of an encoder.
    spec: specs.Greedy, Beam or Sample.
    length: most tokens to decode.
    num_ids: of the vocabulary; rows of the table past it are never chosen.
    eos_id: ends a sequence.
    examples_B: what tells the draws of a row from those of others, an int each;
      by default their places in the batch.
    active_B: false for rows that only fill up the batch.
    temperature_B: for `Sample`, a temperature for each row in its place.

  Returns:
    (tokens_BNL, log_probs_BNL, scores_BN) of N sequences for each row: their
    tokens to and with EOS, then 0; the log probability of each, 0 after the
    end, under the model's own distribution, whatever it was drawn by; and what
    they are ranked by, for beams, or else the sum of those.
  """
  search = CHOOSERS[type(spec)](spec, length, num_ids, eos_id)
  logits_BV, cache = model.start(params, batch, length)
  size = logits_BV.shape[0]
  if examples_B is None:
    examples_B = jnp.arange(size)
  if active_B is None:
    active_B = jnp.ones(size, bool)
  if isinstance(spec, specs.Sample) and temperature_B is None:
    temperature_B = jnp.full(size, spec.temperature)
  state = search.init(active_B, examples_B, temperature_B, logits_BV.dtype)

  def choose(state, cache, logits_RV, n):
    state, tokens_R, rows_R = search.choose(state, logits_RV, n)
    if rows_R is not None:
      cache = model.reorder(cache, rows_R)
    return state, cache, tokens_R, n + 1

  def unfinished(carry):
    state, _, _, n = carry
    return (n < length) & ~jnp.all(state['done'])

  def step(carry):
    state, cache, tokens_R, n = carry
    logits_RV, cache = model.step(params, cache, tokens_R)
    return choose(state, cache, logits_RV, n)

  logits_RV = jnp.repeat(logits_BV, search.width, axis=0)
  cache = model.repeat(cache, search.width)
  carry = choose(state, cache, logits_RV, jnp.zeros((), jnp.int32))
  state, *_ = jax.lax.while_loop(unfinished, step, carry)
  return search.result(state)


def check(spec, num_ids):
  """Refuses what a vocabulary of this size can't give.

  Raises:
    ConfigError: names the setting.
  """
  for name in ('beams', 'top_k'):
    if getattr(spec, name, 0) > num_ids:
      raise errors.ConfigError(
        f'{type(spec).__name__}.{name} is more than the vocabulary has',
        got=getattr(spec, name),
        expected=f'at most {num_ids}',
      )


def log_probs(model, params, batch):
  """Log probability of each target token, teacher-forced.

  Args:
    model: models.Model.
    params: its parameters.
    batch: the batch contract of the model.

  Returns:
    log_probs_BL, float32 at least, 0 where no target is.
  """
  logits_BLV = model.apply(params, batch)
  log_z_BL, right_BL = losses.log_partition(
    logits_BLV, batch[f'{model.side}_target_tokens']
  )
  return jnp.where(
    batch[f'{model.side}_loss_weights'] > 0, right_BL - log_z_BL, 0
  )
