"""Attention behind one name: softmax(scale q k + bias) v, by several kernels.

Every kernel is a function

  kernel(q_BQHD, k_BKGD, v_BKGD, mask, bias, scale, dropout) -> y_BQHD

of queries; keys and values, each of whose G heads serves H / G neighbouring
heads of queries; a masks.Mask; None, a positions.Toeplitz or an array [B or 1,
H, Q, K], added to the logits; a factor of the logits; and None or a
modules.WeightDropout. They differ in speed and memory, never in what they
compute.
"""

from t5x_lite.nn.kernels import blocks
from t5x_lite.nn.kernels import chunked
from t5x_lite.nn.kernels import cudnn
from t5x_lite.nn.kernels import plain
from t5x_lite.nn.kernels import splash
from t5x_lite.nn.kernels import step
from t5x_lite.nn.kernels.choice import Site
from t5x_lite.nn.kernels.choice import check
from t5x_lite.nn.kernels.choice import choose
from t5x_lite.nn.kernels.choice import describe
from t5x_lite.nn.kernels.choice import place_here

__all__ = ['KERNELS', 'attend', 'check', 'describe', 'step']

KERNELS = {
  'plain': plain.attend,
  'blocks': blocks.attend,
  'chunked': chunked.attend,
  'splash': splash.attend,
  'cudnn': cudnn.attend,
}


def attend(spec, q_BQHD, k_BKGD, v_BKGD, mask, bias, scale, dropout):
  """Attention by the kernel that is chosen for these sizes and devices."""
  site = Site.of(q_BQHD, mask, bias, dropout)
  kernel = KERNELS[choose(spec, site, place_here()).kernel]
  return kernel(q_BQHD, k_BKGD, v_BKGD, mask, bias, scale, dropout)
