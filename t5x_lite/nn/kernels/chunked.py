"""Attention of some queries at a time: memory linear in the length.

Each query's softmax is taken over all of its keys at once, by the plain kernel,
so that its numbers are those of the plain one; backward computes them again.
arXiv:2112.05682 cuts the keys too.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from t5x_lite import partitioning
from t5x_lite.nn import positions
from t5x_lite.nn.kernels import filling
from t5x_lite.nn.kernels import plain

BLOCK = 128  # queries at a time
_HEADS = 'batch', 'length', 'heads', 'kv'


def attend(q_BQHD, k_BKGD, v_BKGD, mask, bias=None, scale=1.0, dropout=None):
  """Attention by blocks of queries, of which one at a time has its logits."""
  queries, keys = mask.shape
  if queries <= BLOCK:
    return plain.attend(q_BQHD, k_BKGD, v_BKGD, mask, bias, scale, dropout)
  toeplitz = isinstance(bias, positions.Toeplitz)
  blocks = {
    'start': jnp.arange(0, queries, BLOCK, dtype=jnp.int32),
    'q': _split(q_BQHD, 1),
    'segments': _split(mask.query_segments_BQ, 1),
    'prefix': mask.prefix and _split(mask.prefix[0], 1),
    'bias': None if bias is None or toeplitz else _split(bias, 2),
  }
  if toeplitz:
    bias = bias.pad(len(blocks['start']) * BLOCK)
  width = mask.reach(BLOCK)

  @functools.partial(jax.checkpoint, prevent_cse=False)
  def of_block(block, k_BKGD, v_BKGD, bias):
    start = block['start']
    part = dataclasses.replace(
      mask,
      query_segments_BQ=block['segments'],
      first=mask.first + start,
      prefix=mask.prefix and (block['prefix'], mask.prefix[1]),
    )
    key = 0
    if width < keys:
      part, key = part.near(width)
      k_BKGD, v_BKGD = (
        jax.lax.dynamic_slice_in_dim(x, key, width, 1) for x in (k_BKGD, v_BKGD)
      )
    rows = bias.part(start, BLOCK, key, width) if toeplitz else block['bias']
    if rows is not None and not toeplitz:
      rows = jax.lax.dynamic_slice_in_dim(rows, key, width, 3)
    y_BQHD = plain.attend(
      partitioning.constrain(block['q'], _HEADS),
      k_BKGD,
      v_BKGD,
      part,
      rows,
      scale,
      dropout and functools.partial(dropout, query=start, key=key, keys=keys),
    )
    return partitioning.constrain(y_BQHD, _HEADS)

  _, y_NBQHD = jax.lax.scan(
    lambda _, block: (None, of_block(block, k_BKGD, v_BKGD, bias)), None, blocks
  )
  y_BNQHD = y_NBQHD.swapaxes(0, 1)
  y_BQHD = y_BNQHD.reshape(len(q_BQHD), -1, *q_BQHD.shape[2:])
  return y_BQHD[:, :queries]


def _split(x, axis):
  """Blocks of an axis of queries, the last filled up with zeros: [N, ...]."""
  shape = *x.shape[:axis], -1, BLOCK, *x.shape[axis + 1 :]
  filled = filling.fill(x, axis, BLOCK)
  return jnp.moveaxis(filled.reshape(shape), axis, 0)
