"""Tokens one by one: the likeliest, or drawn at random."""

import jax
import jax.numpy as jnp

from t5x_lite import losses


class Rows:
  """What greedy decoding and sampling follow: rows that know no other.

  Draws depend on the seed, the example, the number of the sample and the place
  of the token, and on nothing else: a batch, a mesh or a resumed run has the
  same.
  """

  def __init__(self, spec, length, num_ids, eos_id):
    self.spec, self.length = spec, length
    self.num_ids, self.eos_id = num_ids, eos_id
    self.width = spec.sequences

  def init(self, active_B, examples_B, temperature_B, dtype):
    """The state before the first token."""
    n = self.width
    batch = active_B.shape[0]
    state = {
      'tokens': jnp.zeros((batch * n, self.length), jnp.int32),
      'log_probs': jnp.zeros((batch * n, self.length), dtype),
      'done': jnp.repeat(~active_B, n),
    }
    if temperature_B is not None:
      samples_R = jnp.tile(jnp.arange(n), batch)
      key = jax.random.key(self.spec.seed, impl='threefry2x32')
      state['keys'] = jax.vmap(
        lambda example, sample: jax.random.fold_in(
          jax.random.fold_in(key, example), sample
        )
      )(jnp.repeat(examples_B, n), samples_R)
      state['temperature'] = jnp.repeat(temperature_B.astype(dtype), n)
    return state

  def choose(self, state, logits_RV, n):
    """The state with token n of each row: (state, tokens_R, None)."""
    known_RV = logits_RV[:, : self.num_ids]
    if 'keys' in state:
      chosen_R = draw(
        jax.vmap(jax.random.fold_in, (0, None))(state['keys'], n),
        known_RV,
        state['temperature'],
        self.spec.top_k,
        self.spec.top_p,
      )
    else:
      chosen_R = losses.argmax(known_RV)
    done_R = state['done']
    chosen_R = jnp.where(done_R, 0, chosen_R).astype(jnp.int32)
    gain_R = jnp.take_along_axis(logits_RV, chosen_R[:, None], axis=-1)[:, 0]
    gain_R = gain_R - jax.nn.logsumexp(logits_RV, axis=-1)
    return (
      state
      | {
        'tokens': state['tokens'].at[:, n].set(chosen_R),
        'log_probs': state['log_probs']
        .at[:, n]
        .set(jnp.where(done_R, 0, gain_R)),
        'done': done_R | (chosen_R == self.eos_id),
      },
      chosen_R,
      None,
    )

  def result(self, state):
    """(tokens_BNL, log_probs_BNL, their sums_BN)."""
    tokens_BNL, log_probs_BNL = (
      state[name].reshape(-1, self.width, self.length)
      for name in ('tokens', 'log_probs')
    )
    return tokens_BNL, log_probs_BNL, log_probs_BNL.sum(-1)


def draw(keys_R, logits_RV, temperature_R, top_k=0, top_p=1.0):
  """A token of each row by softmax(logits / temperature), or of its top.

  argmax(logits + temperature * Gumbel noise) has that law (arXiv:1411.0030),
  and is the likeliest token at temperature 0. Of equally likely tokens the
  first ones are in the top.

  Args:
    keys_R: a random key for each row.
    logits_RV: of all tokens.
    temperature_R: of each row; may be 0.
    top_k: how many of the likeliest to draw from; 0 for all.
    top_p: the least share that the tokens to draw from must have, which are
      the fewest that have it.

  Returns:
    ids_R.
  """
  size = logits_RV.shape[-1]
  ids_RK = None
  if top_k or top_p < 1:
    logits_RV, ids_RK = jax.lax.top_k(logits_RV, min(top_k or size, size))
  if top_p < 1:
    warm_R = jnp.where(temperature_R > 0, temperature_R, 1)
    shares_RK = jax.nn.softmax(logits_RV / warm_R[:, None])
    before_RK = jnp.cumsum(shares_RK, axis=-1) - shares_RK
    # The first is kept whatever rounding says.
    in_RK = (before_RK < top_p).at[:, 0].set(True)
    logits_RV = jnp.where(in_RK, logits_RV, -jnp.inf)
  noise_RV = jax.vmap(
    lambda key: jax.random.gumbel(key, logits_RV.shape[-1:], logits_RV.dtype)
  )(keys_R)
  place_R = losses.argmax(logits_RV + temperature_R[:, None] * noise_RV)
  if ids_RK is None:
    return place_R
  return jnp.take_along_axis(ids_RK, place_R[:, None], axis=-1)[:, 0]
