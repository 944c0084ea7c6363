"""The formula as it stands."""

import jax
import jax.numpy as jnp

from t5x_lite.nn import modules

HIDDEN = -1e10  # the logit of a key that may not be seen


def attend(q_BQHD, k_BKGD, v_BKGD, mask, bias=None, scale=1.0, dropout=None):
  """Logits of all pairs at once, at least float32 as is their softmax."""
  wide = modules.at_least_float32(q_BQHD.dtype)
  b, q, h, d = q_BQHD.shape
  k, g = k_BKGD.shape[1:3]
  if g == h:
    logits_BHQK = modules.einsum('BQHD,BKHD->BHQK', q_BQHD, k_BKGD, wide)
  else:
    q_BQGRD = q_BQHD.reshape(b, q, g, h // g, d)
    logits_BHQK = modules.einsum(
      'BQGRD,BKGD->BGRQK', q_BQGRD, k_BKGD, wide
    ).reshape(b, h, q, k)
  if scale != 1:
    logits_BHQK = logits_BHQK * jnp.asarray(scale, wide)
  if bias is not None:
    bias_BHQK = bias if hasattr(bias, 'ndim') else bias.matrix()[None]
    logits_BHQK = logits_BHQK + bias_BHQK.astype(wide)
  logits_BHQK = jnp.where(mask.matrix()[:, None], logits_BHQK, HIDDEN)
  weights_BHQK = jax.nn.softmax(logits_BHQK).astype(v_BKGD.dtype)
  if dropout is not None:
    weights_BHQK = dropout(weights_BHQK)
  if g == h:
    return modules.einsum('BHQK,BKHD->BQHD', weights_BHQK, v_BKGD)
  weights_BGRQK = weights_BHQK.reshape(b, g, h // g, q, k)
  return modules.einsum('BGRQK,BKGD->BQGRD', weights_BGRQK, v_BKGD).reshape(
    b, q, h, d
  )
