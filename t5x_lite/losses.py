"""Losses: sums and weights, divided once by whoever adds up the last."""

import math

import jax
import jax.numpy as jnp

from t5x_lite import partitioning


def log_partition(logits_BLV, targets_BL):
  """(log Z of each token's logits, the logit of its target), each [B, L]."""
  log_z_BL = jax.nn.logsumexp(logits_BLV, axis=-1)
  right_BL = jnp.take_along_axis(logits_BLV, targets_BL[..., None], -1)[..., 0]
  return log_z_BL, right_BL


def argmax(logits_BLV):
  """jnp.argmax of each token's logits; the first of equal ones.

  XLA's CPU backend is fast at a maximum, and slow at where it is. So there, on
  one device, the maxima of blocks are found first, and then the place in a
  single block. Its maximum passes over NaN, which a sum does not.

  Args:
    logits_BLV: of any leading axes; infinite ones of one sign only.

  Returns:
    ids_BL, int32.
  """
  place = lambda x: jax.lax.argmax(x, x.ndim - 1, jnp.int32)
  width = math.gcd(logits_BLV.shape[-1], 128)
  fast = partitioning.platform() == 'cpu' and partitioning.is_one_device()
  if not fast or width < 16 or not logits_BLV.size:
    return place(logits_BLV)
  logits_BLNW = logits_BLV.reshape(*logits_BLV.shape[:-1], -1, width)
  sums_BLN = logits_BLNW.sum(-1)
  most_BLN = jnp.where(jnp.isnan(sums_BLN), sums_BLN, logits_BLNW.max(-1))
  block_BL = place(most_BLN)
  logits_BLW = jnp.take_along_axis(
    logits_BLNW, block_BL[..., None, None], axis=-2
  )[..., 0, :]
  return block_BL * width + place(logits_BLW)


def cross_entropy(
  logits_BLV,
  targets_BL,
  weights_BL,
  z_loss=0.0,
  label_smoothing=0.0,
  axis=None,
  shares_BL=None,
):
  """Cross-entropy with label smoothing and z-loss.

  Smoothed targets give 1 - s to the right token and s / (V - 1) to each other;
  their entropy is subtracted, so that a perfect prediction costs 0
  (arXiv:1512.00567 section 7). The z-loss adds z_loss * log(Z)^2
  (arXiv:2204.02311 section 5).

  Args:
    logits_BLV: float32 or wider.
    targets_BL: token ids.
    weights_BL: 1 where a token counts, else 0.
    z_loss: its weight.
    label_smoothing: s.
    axis: None to add up all tokens, 1 those of each row.
    shares_BL: what a token's loss counts in the loss sum, of `normalize`; None
      is 1 for all.

  Returns:
    (loss sum, weight sum, {name: sum} of loss, cross_ent_loss, z_loss,
    accuracy), all scalars, or [B] for rows.
  """
  log_z_BL, right_BL = log_partition(logits_BLV, targets_BL)
  cross_BL = log_z_BL - right_BL
  if label_smoothing:
    others = logits_BLV.shape[-1] - 1
    on, off = 1 - label_smoothing, label_smoothing / others
    other_BL = jnp.sum(logits_BLV, axis=-1) - right_BL
    cross_BL = log_z_BL - on * right_BL - off * other_BL
    entropy = -on * math.log(on) - others * off * math.log(off)
    cross_BL = cross_BL - entropy
  z_BL = z_loss * jnp.square(log_z_BL)
  correct_BL = argmax(logits_BLV) == targets_BL
  correct_BL = correct_BL.astype(weights_BL.dtype)

  def total(x_BL):
    return jnp.sum(x_BL * weights_BL, axis)

  loss_BL = cross_BL + z_BL
  loss = total(loss_BL)
  return (
    loss if shares_BL is None else total(loss_BL * shares_BL),
    jnp.sum(weights_BL, axis),
    {
      'loss': loss,
      'cross_ent_loss': total(cross_BL),
      'z_loss': total(z_BL),
      'accuracy': total(correct_BL),
    },
  )


def normalize(normalizer, weights_BL, segment_ids_BL):
  """How T5X weighs the losses of tokens, and what it divides their sum by.

  Args:
    normalizer: Run.loss_normalizer.
    weights_BL: 1 where a token counts, else 0.
    segment_ids_BL: whose token it is of the row's sequences; 0 is padding.

  Returns:
    (shares_BL or None, divisor): what a token's loss counts, and the divisor, a
    scalar of the whole batch.
  """
  if normalizer == 'AVERAGE_PER_SEQUENCE':

    def count(weights_L, ids_L):
      """(tokens that count of each token's sequence, sequences with any)."""
      sums = jax.ops.segment_sum(weights_L, ids_L, len(ids_L) + 1)
      return sums[ids_L], jnp.sum(sums > 0)

    count_BL, sequences_B = jax.vmap(count)(weights_BL, segment_ids_BL)
    sequences = jnp.maximum(jnp.sum(sequences_B), 1).astype(weights_BL.dtype)
    return 1 / jnp.maximum(count_BL, 1), sequences
  divisors = {
    'NUM_REAL_TARGET_TOKENS': lambda: jnp.maximum(jnp.sum(weights_BL), 1),
    'NUM_TOTAL_TARGET_TOKENS': lambda: weights_BL.size,
    'NONE': lambda: 1,
  }
  divisor = divisors.get(normalizer, lambda: normalizer)()
  return None, jnp.asarray(divisor, weights_BL.dtype)


def classes(logits_BC, labels_B, weights_B, axis=None):
  """Cross-entropy of the classes of whole rows: (loss sum, {name: sum})."""
  loss, _, sums = cross_entropy(
    logits_BC[:, None], labels_B[:, None], weights_B[:, None], axis=axis
  )
  return loss, {f'class_{x}': sums[x] for x in ('loss', 'accuracy')}
