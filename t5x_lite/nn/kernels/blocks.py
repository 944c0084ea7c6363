"""Attention of a causal mask, without most of what it hides."""

import dataclasses
import functools

import jax.numpy as jnp

from t5x_lite.nn import positions
from t5x_lite.nn.kernels import plain

BLOCK = 128  # queries at a time


def attend(q_BQHD, k_BKGD, v_BKGD, mask, bias=None, scale=1.0, dropout=None):
  """The plain kernel, block by block of queries, on the keys that one may see.

  Of n blocks it computes (n + 1) / 2n of all pairs, or less within a window.
  Without a causal mask, or if queries are not those of the keys, it is plain.
  """
  queries, keys = mask.shape
  if not may_skip(mask):
    return plain.attend(q_BQHD, k_BKGD, v_BKGD, mask, bias, scale, dropout)
  found = []
  for start in range(0, queries, BLOCK):
    end = min(start + BLOCK, queries)
    first = max(0, start + 1 - mask.window) if mask.window else 0
    own, seen = slice(start, end), slice(first, end)
    part = dataclasses.replace(
      mask,
      query_segments_BQ=mask.query_segments_BQ[:, own],
      key_segments_BK=mask.key_segments_BK[:, seen],
      first=start - first,
    )
    if isinstance(bias, positions.Toeplitz):
      rows = bias.part(start, end - start, first, end - first)
    else:
      rows = None if bias is None else bias[:, :, own, seen]
    y_BQHD = plain.attend(
      q_BQHD[:, own],
      k_BKGD[:, seen],
      v_BKGD[:, seen],
      part,
      rows,
      scale,
      dropout and functools.partial(dropout, query=start, key=first, keys=keys),
    )
    found.append(y_BQHD)
  return jnp.concatenate(found, axis=1)


def may_skip(mask):
  """Whether a query never sees a key of a later block."""
  whole = isinstance(mask.first, int) and mask.first == 0
  return (
    mask.causal
    and mask.prefix is None
    and whole
    and mask.shape[0] == mask.shape[1]
  )
