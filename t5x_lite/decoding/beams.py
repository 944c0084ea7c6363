"""Beam search."""

import jax
import jax.numpy as jnp

PENALTIES = {
  't5': lambda tokens, alpha: ((5 + tokens) / 6) ** alpha,
  'hf': lambda tokens, alpha: tokens**alpha,
}
_ENDED, _CUT, _NONE = range(3)  # kinds of results, the best first


class Search:
  """Beam search over K unfinished sequences of each example.

  Of the 2K likeliest continuations, the unfinished ones live on. The others are
  ranked by their log probability over the penalty; a sequence that the length
  cuts off counts as one that ends there. Two rules are as in the system that a
  penalty is named after: T5X ranks all that end behind no cut one; Hugging Face
  ranks cut ones equally, but only what is among the K likeliest continuations.

  The search of an example ends when none of its live sequences can get among
  those that are returned: it finds what it would find if it did not end, as
  Hugging Face's does with early_stopping='never'. (A log probability only
  falls. So the most that a sequence can reach is what it has now over the
  penalty of the full length, or of one token more if the length penalty is not
  above 0.)
  """

  def __init__(self, spec, length, num_ids, eos_id):
    self.spec, self.length = spec, length
    self.num_ids, self.eos_id = num_ids, eos_id
    self.width = spec.beams

  def penalty(self, tokens, dtype):
    tokens = jnp.asarray(tokens, dtype)
    alpha = jnp.asarray(self.spec.length_penalty, dtype)
    return PENALTIES[self.spec.penalty](tokens, alpha)

  def init(self, active_B, examples_B, temperature_B, dtype):
    """The state before the first token."""
    del examples_B, temperature_B
    shape = active_B.shape[0], self.width
    sequences = {
      'tokens': jnp.zeros((*shape, self.length), jnp.int32),
      'log_probs': jnp.zeros((*shape, self.length), dtype),
    }
    worst = jnp.full(shape, -jnp.inf, dtype)
    return {
      # All are copies of the first one yet, and would be followed K times.
      'live': sequences | {'total': worst.at[:, 0].set(0)},
      'found': sequences
      | {'score': worst, 'kind': jnp.full(shape, _NONE, jnp.int32)},
      'done': ~active_B,
    }

  def choose(self, state, logits_RV, n):
    """The state with token n of each row: (state, tokens_R, rows_R).

    rows_R says of which row each row is a continuation.
    """
    live, found, k = state['live'], state['found'], self.width
    batch = live['total'].shape[0]
    dtype = live['total'].dtype
    values_RC, ids_RC = jax.lax.top_k(
      logits_RV[:, : self.num_ids], min(2 * k, self.num_ids)
    )
    gains_RC = values_RC - jax.nn.logsumexp(logits_RV, axis=-1, keepdims=True)
    each = gains_RC.shape[1]
    gains_BN = gains_RC.reshape(batch, k * each)
    totals_BN = jnp.repeat(live['total'], each, axis=1) + gains_BN
    totals_BC, at_BC = jax.lax.top_k(totals_BN, min(2 * k, k * each))
    beams_BC = at_BC // each
    ids_BC = _pick(ids_RC.reshape(batch, k * each), at_BC)
    after = {
      'tokens': _pick(live['tokens'], beams_BC).at[:, :, n].set(ids_BC),
      'log_probs': _pick(live['log_probs'], beams_BC)
      .at[:, :, n]
      .set(_pick(gains_BN, at_BC)),
    }
    ends_BC = ids_BC == self.eos_id
    last = n == self.length - 1

    kind_BC = jnp.where(ends_BC, _ENDED, jnp.where(last, _CUT, _NONE))
    if self.spec.penalty == 'hf':
      kind_BC = jnp.where(kind_BC == _CUT, _ENDED, kind_BC)
      kind_BC = jnp.where(jnp.arange(kind_BC.shape[1]) < k, kind_BC, _NONE)
    kind_BC = jnp.where(totals_BC > -jnp.inf, kind_BC, _NONE)
    ranked = after | {
      'score': totals_BC / self.penalty(n + 1, dtype),
      'kind': kind_BC.astype(jnp.int32),
    }
    ranked = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), found, ranked)
    # Equal ones stay in order.
    order_BC = jnp.lexsort((-ranked['score'], ranked['kind']))[:, :k]
    found = jax.tree.map(lambda x: _pick(x, order_BC), ranked)

    totals_BC = jnp.where(ends_BC, -jnp.inf, totals_BC)
    totals_BK, at_BK = jax.lax.top_k(totals_BC, k)
    live = jax.tree.map(lambda x: _pick(x, at_BK), after)
    live['total'] = totals_BK
    beams_BK = _pick(beams_BC, at_BK)

    tokens = self.length if self.spec.length_penalty > 0 else n + 2
    hope_B = totals_BK[:, 0] / self.penalty(tokens, dtype)
    worst = self.spec.returned - 1
    settled_B = (found['kind'][:, worst] == _ENDED) & (
      found['score'][:, worst] >= hope_B
    )
    first_B = k * jnp.arange(batch)
    return (
      {'live': live, 'found': found, 'done': state['done'] | settled_B},
      _pick(ids_BC, at_BK).reshape(-1),
      (first_B[:, None] + beams_BK).reshape(-1),
    )

  def result(self, state):
    """(tokens_BNL, log_probs_BNL, scores_BN), the best first."""
    found = state['found']
    return tuple(
      found[name][:, : self.spec.returned]
      for name in ('tokens', 'log_probs', 'score')
    )


def _pick(x_BN, places_BM):
  """Of each row of [B, N, ...], these places: [B, M, ...]."""
  places = places_BM.reshape(places_BM.shape + (1,) * (x_BN.ndim - 2))
  return jnp.take_along_axis(x_BN, places, axis=1)
