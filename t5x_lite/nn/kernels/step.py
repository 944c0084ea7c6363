"""Attention of one query a row to what was kept for it: a step of decoding."""

import jax.numpy as jnp

from t5x_lite.nn import modules
from t5x_lite.nn.kernels import plain


def attend(q_R1HD, parts, mask, bias=None, scale=1.0):
  """The plain formula as two products for each part of the keys.

  Args:
    q_R1HD: queries. The rows of one input stand together.
    parts: (k_BGKD, v_BGKD) side by side, heads first; each of the B inputs, and
      then it is read once for all rows of an input, or of the R rows.
    mask: masks.Mask of the B inputs over all parts.
    bias: None, or positions.Toeplitz.
    scale: a factor of the logits.

  Returns:
    y_R1HD.
  """
  rows, _, h, d = q_R1HD.shape
  g = parts[0][0].shape[1]
  inputs = mask.query_segments_BQ.shape[0]
  wide = modules.at_least_float32(q_R1HD.dtype)
  shape = inputs, rows // inputs, g, h // g  # B N G R
  q_BNGRD = q_R1HD.reshape(*shape, d)

  def fold(x_BNGRX, b):
    """[b, G, rows for each of them, X]."""
    x = x_BNGRX.reshape(b, rows // b, *x_BNGRX.shape[2:]).swapaxes(1, 2)
    return x.reshape(b, g, -1, x.shape[-1])

  def unfold(x_bGMX):
    b, _, _, x = x_bGMX.shape
    x_bGNRX = x_bGMX.reshape(b, g, rows // b, h // g, x)
    return x_bGNRX.swapaxes(1, 2).reshape(*shape, x)

  logits_BNGRK = jnp.concatenate(
    [
      unfold(
        jnp.einsum(
          'BGMD,BGKD->BGMK',
          fold(q_BNGRD, len(k_BGKD)),
          k_BGKD,
          preferred_element_type=wide,
        )
      )
      for k_BGKD, _ in parts
    ],
    axis=-1,
  )
  if scale != 1:
    logits_BNGRK = logits_BNGRK * jnp.asarray(scale, wide)
  if bias is not None:
    bias_GRK = bias.matrix().astype(wide).reshape(g, h // g, -1)
    logits_BNGRK += bias_GRK[None, None]
  seen_BK = mask.matrix()[:, 0]
  logits_BNGRK = jnp.where(
    seen_BK[:, None, None, None], logits_BNGRK, plain.HIDDEN
  )
  weights_BNGRK = modules.softmax(logits_BNGRK).astype(parts[0][1].dtype)
  y_BNGRD, end = 0, 0
  for _, v_BGKD in parts:
    start, end = end, end + v_BGKD.shape[2]
    weights = fold(weights_BNGRK[..., start:end], len(v_BGKD))
    y_BNGRD += unfold(jnp.einsum('BGMK,BGKD->BGMD', weights, v_BGKD))
  return y_BNGRD.reshape(rows, 1, h, d)
