"""Attention of one query a row to what was kept for it: a step of decoding."""

import jax.numpy as jnp

from t5x_lite.nn import modules
from t5x_lite.nn.kernels import plain


def attend(q_R1HD, parts, mask, bias=None, scale=1.0, writers_BNL=None):
  """The plain formula as two products for each part of the keys.

  With `writers_BNL`, each query meets the last part of all N rows of its input,
  and what is not its own is left out of the sum: its logits before, and by
  weights of 0 after the softmax. So rows can change places in a search with no
  key moved. A step reads as much as if each row had a copy of its own keys, and
  multiplies N times as much of that part; to move the copies instead is to read
  and write all of them at each step. That would be the better only where N
  products cost more than this: by what devices multiply in the time of a read,
  from tens of rows on for CPUs and from hundreds on for accelerators; measured
  was N = 4 on a CPU.

  Args:
    q_R1HD: queries. The rows of one input stand together.
    parts: (k_BGDK, v_BGKD) side by side; each of the B inputs, and then it is
      read once for all rows of an input, or of the R rows.
    mask: masks.Mask of the B inputs over all parts, the last one's rows of an
      input as one.
    bias: None, or positions.Toeplitz.
    scale: a factor of the logits.
    writers_BNL: None, or which row of the same input has the key and value of
      each place in the last part, of L * N keys, that a row sees.

  Returns:
    y_R1HD.
  """
  rows, _, h, d = q_R1HD.shape
  g = parts[0][1].shape[1]
  inputs = mask.query_segments_BQ.shape[0]
  wide = modules.at_least_float32(q_R1HD.dtype)
  shape = inputs, g, rows // inputs, h // g  # B G N R
  q_BNGRD = q_R1HD.reshape(inputs, rows // inputs, g, h // g, d)
  q_BGNRD = q_BNGRD.swapaxes(1, 2)

  def fold(x_BGNRX, b):
    """[b, G, rows for each of them, X]."""
    if b != inputs:
      x_BGNRX = x_BGNRX.swapaxes(1, 2)
    return x_BGNRX.reshape(b, g, -1, x_BGNRX.shape[-1])

  def unfold(x_bGMX):
    b, _, _, x = x_bGMX.shape
    if b == inputs:
      return x_bGMX.reshape(*shape, x)
    return x_bGMX.reshape(inputs, -1, g, h // g, x).swapaxes(1, 2)

  if writers_BNL is not None:
    n = rows // inputs
    own_BNLN = writers_BNL[..., None] == jnp.arange(n)
    own = own_BNLN[:, None, :, None]  # B G N R L N

  logits = [
    unfold(
      jnp.einsum(
        'BGMD,BGDK->BGMK',
        fold(q_BGNRD, k_BGDK.shape[0]),
        k_BGDK,
        preferred_element_type=wide,
      )
    )
    for k_BGDK, _ in parts
  ]
  if writers_BNL is not None:
    each = logits[-1].reshape(*shape, -1, n)
    logits[-1] = jnp.where(own, each, 0).sum(-1)
  logits_BGNRK = jnp.concatenate(logits, axis=-1)
  if scale != 1:
    logits_BGNRK = logits_BGNRK * jnp.asarray(scale, wide)
  if bias is not None:
    bias_GRK = bias.matrix()[0].astype(wide).reshape(g, h // g, -1)
    logits_BGNRK += bias_GRK[None, :, None]
  seen_BK = mask.matrix()[:, 0]
  logits_BGNRK = jnp.where(
    seen_BK[:, None, None, None], logits_BGNRK, plain.HIDDEN
  )
  weights_BGNRK = modules.softmax(logits_BGNRK, parts[0][1].dtype)
  y_BGNRD, end = 0, 0
  for (_, v_BGKD), found in zip(parts, logits, strict=True):
    start, end = end, end + found.shape[-1]
    weights = weights_BGNRK[..., start:end]
    if writers_BNL is not None and end == weights_BGNRK.shape[-1]:
      weights = jnp.where(own, weights[..., None], 0).reshape(*shape, -1)
    weights = fold(weights, v_BGKD.shape[0])
    y_BGNRD += unfold(jnp.einsum('BGMK,BGKD->BGMD', weights, v_BGKD))
  return y_BGNRD.swapaxes(1, 2).reshape(rows, 1, h, d)
