"""Splash attention, the fused kernel of TPUs that comes with JAX.

It skips the blocks that the mask hides and never holds the logits.
"""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from t5x_lite import partitioning
from t5x_lite.nn.kernels import filling

LANES = 128  # of a TPU: lengths are filled up to its multiples
BLOCKS = 512, 384, 256, 128


def attend(q_BQHD, k_BKGD, v_BKGD, mask, bias=None, scale=1.0, dropout=None):
  """Attention of segments, all, causal or near; with none of the rest."""
  if bias is not None or dropout is not None or mask.prefix is not None:
    raise ValueError('splash attention has no bias, dropout or prefix')
  queries = q_BQHD.shape[1]
  q_BQHD = (q_BQHD.astype(jnp.float32) * scale).astype(q_BQHD.dtype)
  *qkv, mask = filling.fill_all(q_BQHD, k_BKGD, v_BKGD, mask, LANES)
  q_BHQD, k_BGKD, v_BGKD = (x.swapaxes(1, 2) for x in qkv)
  segments = mask.query_segments_BQ, mask.key_segments_BK
  shape = q_BHQD.shape[2], k_BGKD.shape[2]

  def on_device(q_BHQD, k_BGKD, v_BGKD, query_BQ, key_BK):
    kernel = _kernel(q_BHQD.shape[1], shape, mask.causal, mask.window)
    return jax.vmap(kernel)(q_BHQD, k_BGKD, v_BGKD, (query_BQ, key_BK))

  mesh = jax.sharding.get_abstract_mesh()
  if not mesh.empty and mesh.size > 1:
    # XLA can't divide a kernel over devices; keys' heads, the fewer, say how.
    axes = 'batch', 'heads', 'keys', 'kv'
    heads = partitioning.partition_spec(k_BGKD.shape, axes, mesh)
    rows = PartitionSpec(heads[0])
    on_device = jax.shard_map(
      on_device,
      in_specs=(heads, heads, heads, rows, rows),
      out_specs=heads,
      check_vma=False,
    )
  y_BHQD = on_device(q_BHQD, k_BGKD, v_BGKD, *segments)
  return y_BHQD.swapaxes(1, 2)[:, :queries]


def _kernel(heads, shape, causal, window):
  """A function of q_HQD, k_GKD, v_GKD and a pair of segments."""
  from jax.experimental.pallas.ops.tpu import splash_attention as ops

  if window:
    sides = window - 1, 0 if causal else window - 1
    mask = ops.LocalMask(shape, sides, 0)
  else:
    mask = ops.CausalMask(shape) if causal else ops.FullMask(shape)
  q, k = (next(n for n in BLOCKS if not size % n) for size in shape)
  kernel = ops.make_splash_mha(
    ops.MultiHeadMask([mask] * heads),
    block_sizes=ops.BlockSizes(
      block_q=q,
      block_kv=k,
      block_q_dkv=q,
      block_kv_dkv=k,
      block_q_dq=q,
      block_kv_dq=k,
    ),
    head_shards=1,
    q_seq_shards=1,
    interpret=_interpret(),
  )
  return lambda q, k, v, segments: kernel(q, k, v, ops.SegmentIds(*segments))


def _interpret():
  """Whether there is no TPU, as in tests: then step by step, slowly."""
  return partitioning.platform() != 'tpu'
