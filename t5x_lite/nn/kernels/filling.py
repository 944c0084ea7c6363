"""Lengths filled up to what a kernel can take."""

import dataclasses

import jax.numpy as jnp

FILL = -1  # the segment of what fills up: it and no token see each other


def fill(x, axis, multiple, value=0):
  """An array whose axis is a multiple of a number, by a value at its end."""
  widths = [(0, 0)] * x.ndim
  widths[axis] = 0, -x.shape[axis] % multiple
  return jnp.pad(x, widths, constant_values=value)


def fill_all(q_BQHD, k_BKGD, v_BKGD, mask, multiple):
  """Queries, keys, values and their mask, filled up."""
  mask = dataclasses.replace(
    mask,
    query_segments_BQ=fill(mask.query_segments_BQ, 1, multiple, FILL),
    key_segments_BK=fill(mask.key_segments_BK, 1, multiple, FILL),
    prefix=mask.prefix and tuple(fill(x, 1, multiple) for x in mask.prefix),
  )
  return *(fill(x, 1, multiple) for x in (q_BQHD, k_BKGD, v_BKGD)), mask
