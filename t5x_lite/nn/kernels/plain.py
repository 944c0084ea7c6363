"""The formula as it stands."""

import jax.numpy as jnp

from t5x_lite.nn import modules
from t5x_lite.nn import products

HIDDEN = -1e10  # the logit of a key that may not be seen


def attend(q_BQHD, k_BKGD, v_BKGD, mask, bias=None, scale=1.0, dropout=None):
  """Logits of all pairs at once, at least float32 as is their softmax."""
  wide = modules.at_least_float32(q_BQHD.dtype)
  b, q, h, d = q_BQHD.shape
  k, g = k_BKGD.shape[1:3]
  # Turned around once, here, and not in each of the six products.
  q_BHQD, k_BGKD, v_BGKD = (x.swapaxes(1, 2) for x in (q_BQHD, k_BKGD, v_BKGD))
  if g == h:
    logits_BHQK = products.einsum('BHQD,BHKD->BHQK', q_BHQD, k_BGKD, wide)
  else:
    q_BGRQD = q_BHQD.reshape(b, g, h // g, q, d)
    logits_BHQK = products.einsum(
      'BGRQD,BGKD->BGRQK', q_BGRQD, k_BGKD, wide
    ).reshape(b, h, q, k)
  if scale != 1:
    logits_BHQK = logits_BHQK * jnp.asarray(scale, wide)
  if bias is not None:
    if hasattr(bias, 'ndim'):
      logits_BHQK = logits_BHQK + bias.astype(wide)
    else:
      logits_BHQK = bias.add_to(logits_BHQK)
  logits_BHQK = jnp.where(mask.matrix()[:, None], logits_BHQK, HIDDEN)
  weights_BHQK = modules.softmax(logits_BHQK, v_BKGD.dtype)
  if dropout is not None:
    weights_BHQK = dropout(weights_BHQK)
  if g == h:
    y_BHQD = products.einsum('BHQK,BHKD->BHQD', weights_BHQK, v_BGKD)
  else:
    weights_BGRQK = weights_BHQK.reshape(b, g, h // g, q, k)
    y_BGRQD = products.einsum('BGRQK,BGKD->BGRQD', weights_BGRQK, v_BGKD)
    y_BHQD = y_BGRQD.reshape(b, h, q, d)
  return y_BHQD.swapaxes(1, 2)
