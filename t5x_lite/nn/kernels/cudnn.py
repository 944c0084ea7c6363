"""The fused kernel of NVIDIA's cuDNN."""

import jax

from t5x_lite.nn.kernels import filling

EVEN = 2  # lengths that backward can take


def attend(q_BQHD, k_BKGD, v_BKGD, mask, bias=None, scale=1.0, dropout=None):
  """Attention under any mask, in bfloat16; with neither bias nor dropout.

  cuDNN would round a bias to bfloat16, where the other kernels add it in
  float32. The mask costs memory of B Q K, the logits none.
  """
  if bias is not None or dropout is not None:
    raise ValueError('attention by cuDNN has no bias or dropout')
  queries = q_BQHD.shape[1]
  *qkv, mask = filling.fill_all(q_BQHD, k_BKGD, v_BKGD, mask, EVEN)
  causal = mask.causal and mask.prefix is None
  y_BQHD = jax.nn.dot_product_attention(
    *qkv,
    mask=mask.matrix()[:, None],
    scale=scale,
    is_causal=causal,  # what it hides is in the mask too; so it is skipped
    local_window_size=(mask.window - 1, 0) if causal and mask.window else None,
    implementation='cudnn',
  )
  return y_BQHD[:, :queries]
