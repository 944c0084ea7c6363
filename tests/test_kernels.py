"""Every kernel of attention computes what a few lines of NumPy compute."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite import errors
from t5x_lite import models
from t5x_lite import partitioning
from t5x_lite import specs
from t5x_lite import train
from t5x_lite.nn import kernels
from t5x_lite.nn import masks
from t5x_lite.nn import modules
from t5x_lite.nn import positions
from t5x_lite.nn.kernels import choice
from t5x_lite.nn.kernels import chunked
from tests import tiny

B, L, H, D = 2, 21, 4, 8  # 21: five blocks of four and one token more
RATE = 0.3


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
  monkeypatch.setattr(chunked, 'BLOCK', 4)


def draw_mask(kind):
  rng = np.random.default_rng(3)
  cut = rng.integers(5, L - 8, (B, 1))
  places = np.arange(L)[None]
  segments = np.where(places < cut, 1, np.where(places < L - 3, 2, 0))
  segments = segments.astype(np.int32)
  if kind in ('all', 'causal', 'near', 'causal near'):
    segments = np.ones_like(segments)
  if kind == 'cross':
    keys = np.where(np.arange(L + 5)[None] < 9, 1, 2) * np.ones((B, 1), int)
    queries = np.maximum(segments, 1)
    return masks.Mask(query_segments_BQ=queries, key_segments_BK=keys)
  if kind == 'cached':  # the last of what is decoded so far, and empty room
    return masks.Mask(
      query_segments_BQ=np.ones((B, 7), np.int32),
      key_segments_BK=segments * 0 + 1,
      causal=True,
      first=jnp.int32(9),
    )
  prefix = (places % 10 < 4) * (segments > 0) if 'prefix' in kind else None
  mask = masks.within(segments, 'causal' in kind, prefix)
  return dataclasses.replace(mask, window=3 if 'near' in kind else 0)


MASKS = [
  'all',
  'packed',
  'causal',
  'causal packed',
  'causal packed prefix',
  'near',
  'causal near',
  'causal packed near',
  'causal packed near prefix',
  'cross',
  'cached',
]
FUSED_MASKS = [k for k in MASKS if 'prefix' not in k and k != 'cached']


def draw(mask, groups, bias, dtype):
  """Queries, keys, values, values of a bias, and what the output is times."""
  rng = np.random.default_rng(0)
  (q, k), values = mask.shape, None
  shapes = (B, q, H, D), (B, k, groups, D), (B, k, groups, D)
  arrays = [rng.standard_normal(s).astype(dtype) for s in shapes]
  wide = modules.at_least_float32(jnp.dtype(dtype))
  if bias:
    shape = {
      'toeplitz': (H, q + k - 1),
      'array': (1, H, q, k),
      'array of rows': (B, H, q, k),
    }[bias]
    values = rng.standard_normal(shape).astype(wide)
  return *arrays, values, rng.standard_normal((B, q, H, D)).astype(wide)


def run(kernel, arrays, mask, dropout, scale=0.4):
  """Output, and gradients of its product with the last array."""
  *inputs, factor = arrays

  def attend(q, k, v, values):
    toeplitz = values is not None and values.ndim == 2
    bias = positions.Toeplitz(values, mask.shape[0]) if toeplitz else values
    return kernel(q, k, v, mask, bias, scale, dropout)

  @jax.jit
  def both(*inputs):
    y, pull = jax.vjp(attend, *inputs)
    return y, pull(factor.astype(y.dtype))

  return both(*inputs)


def weights_kept(dropout, mask):
  """Of each weight 0 or 1 / (1 - rate), by drawing one at a time."""
  q, k = mask.shape
  kept = np.ones((B, H, q, k))
  if dropout is None:
    return kept
  for b, i in np.ndindex(B, q):
    key = dropout.keys_B[b]
    if not dropout.shared:
      key = jax.random.fold_in(key, i)
    key = jax.random.fold_in(key, 0)
    kept[b, :, i] = jax.random.bernoulli(key, 1 - RATE, (H, k)) / (1 - RATE)
  return kept


def by_hand(arrays, mask, dropout, scale=0.4):
  """What `run` gives, in float64, the gradients by their formula."""
  q, k, v, values, g = (
    x if x is None else np.asarray(x, np.float64) for x in arrays
  )
  repeats = H // k.shape[2]
  wide_k, wide_v = (np.repeat(x, repeats, 2) for x in (k, v))
  bias = 0 if values is None else values
  at = None
  if values is not None and values.ndim == 2:
    n, m = mask.shape
    at = np.arange(m)[None] - np.arange(n)[:, None] + n - 1
    bias = values[:, at][None]
  logits = scale * np.einsum('bqhd,bkhd->bhqk', q, wide_k) + bias
  seen = np.asarray(mask.matrix())[:, None]
  p = np.where(seen, np.exp(logits - logits.max(-1, keepdims=True)), 0)
  p /= p.sum(-1, keepdims=True)
  kept = weights_kept(dropout, mask)
  y = np.einsum('bhqk,bkhd->bqhd', p * kept, wide_v)
  of_p = np.einsum('bqhd,bkhd->bhqk', g, wide_v) * kept
  of_logits = p * (of_p - (of_p * p).sum(-1, keepdims=True))
  group = lambda x: x.reshape(B, -1, H // repeats, repeats, D).sum(3)
  of_bias = None
  if values is not None:
    of_bias = of_logits.sum(0, keepdims=True)
    if at is not None:
      of_bias = np.stack(
        [np.bincount(at.ravel(), head.ravel()) for head in of_bias[0]]
      )
    elif len(values) == B:
      of_bias = of_logits
  return y, (
    scale * np.einsum('bhqk,bkhd->bqhd', of_logits, wide_k),
    scale * group(np.einsum('bhqk,bqhd->bkhd', of_logits, q)),
    group(np.einsum('bhqk,bqhd->bkhd', p * kept, g)),
    of_bias,
  )


def assert_near(got, wanted, tolerance):
  def near(x, y):
    np.testing.assert_allclose(
      np.asarray(x, np.float64), y, rtol=0, atol=tolerance * np.abs(y).max()
    )

  jax.tree.map(near, got, wanted)


TOLERANCES = {'float32': 2e-6, 'float64': 1e-12, 'bfloat16': 2e-2}
HERE = 'plain', 'chunked'
CASES = [
  *((mask, 'toeplitz', 'token', 2, 'float32') for mask in MASKS),
  *((mask, 'array of rows', 't5', 4, 'float64') for mask in MASKS),
  *(('causal packed', bias, None, 1, 'float32') for bias in (None, 'array')),
  *(('causal packed near', 'toeplitz', 'token', g, 'float64') for g in (1, 4)),
  ('causal packed prefix', 'toeplitz', 'token', 2, 'bfloat16'),
]


@pytest.mark.parametrize('kernel', HERE)
@pytest.mark.parametrize('mask, bias, dropout, groups, dtype', CASES)
def test_output_and_gradients(kernel, mask, bias, dropout, groups, dtype):
  with jax.enable_x64(dtype == 'float64'):
    mask, dtype = draw_mask(mask), jnp.dtype(dtype)
    if dropout:
      keys = jax.random.split(jax.random.key(5), B)
      dropout = modules.WeightDropout(RATE, keys, dropout == 't5')
    arrays = draw(mask, groups, bias, dtype)
    got = run(kernels.KERNELS[kernel], arrays, mask, dropout)
    assert got[0].dtype == dtype
    assert_near(got, by_hand(arrays, mask, dropout), TOLERANCES[dtype.name])
