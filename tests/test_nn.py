"""The layers alone: position bias, masks, attention, dropout, stacking."""

import dataclasses
import types

from flax import nnx
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest
import t5_numpy

from t5x_lite import models
from t5x_lite import partitioning
from t5x_lite import specs
from t5x_lite.nn import attention
from t5x_lite.nn import kernels
from t5x_lite.nn import masks
from t5x_lite.nn import modules
from t5x_lite.nn import positions
from t5x_lite.nn import products
from tests import tiny

TABLES = [(32, 128), (8, 20), (16, 20), (64, 256), (16, 256), (4, 3)]


def make_mask(q, k, first=0, causal=False, **rules):
  """Of queries that see all keys, but for the rules."""
  ones = np.ones((1, q), np.int32), np.ones((1, k), np.int32)
  return masks.Mask(
    query_segments_BQ=ones[0],
    key_segments_BK=ones[1],
    causal=causal,
    first=first,
    **rules,
  )


def bias_by_hand(position, q, k, first, causal):
  """table[head, bucket(key - query)], one by one."""
  table, spec = np.asarray(position.rel_embedding[...]), position.spec.position
  found = np.zeros((len(table), q, k), np.float32)
  for i, j in np.ndindex(q, k):
    place = t5_numpy.bucket(
      j - (i + first), not causal, spec.buckets, spec.max_distance
    )
    found[:, i, j] = table[:, place]
  return found


@pytest.mark.parametrize(
  'q, k, first, table, causal',
  [
    (7, 7, 0, (32, 128), False),
    (150, 150, 0, (32, 128), False),
    (150, 150, 0, (32, 128), True),
    (9, 40, 0, (8, 20), False),  # fewer queries than keys, and more
    (40, 9, 0, (16, 20), True),
    (1, 60, 0, (32, 128), True),  # one token of decoding, at several places
    (1, 60, 59, (32, 128), True),
    (1, 1, 0, (32, 128), False),
    (3, 60, 30, (64, 256), True),
  ],
)
def test_position_bias_is_a_table_of_key_minus_query(
  q, k, first, table, causal
):
  buckets, max_distance = table
  scheme = specs.T5Bias(buckets=buckets, max_distance=max_distance)
  spec = tiny.transformer(num_heads=2, position=scheme)
  position = positions.make(nnx.Rngs(params=3), spec)
  # While decoding, the place of the query is known on the device only.
  got = jax.jit(
    lambda first: position.bias(make_mask(q, k, first, causal)).matrix()[0]
  )(first)
  np.testing.assert_array_equal(
    got, bias_by_hand(position, q, k, first, causal)
  )


@pytest.mark.parametrize('buckets, max_distance', TABLES)
def test_bucket_starts_rise_to_the_last_bucket(buckets, max_distance):
  starts = positions.bucket_starts(buckets, max_distance)
  assert len(starts) == buckets - buckets // 2 - 1
  assert starts == sorted(starts)
  relative = -np.arange(2 * max_distance)
  got = np.asarray(positions.bucket(relative, False, buckets, max_distance))
  wanted = [t5_numpy.bucket(n, False, buckets, max_distance) for n in relative]
  assert got.tolist() == wanted
  assert got.max() == buckets - 1
  assert got[max_distance] == buckets - 1


def test_masks():
  segments = np.array([[1, 1, 2, 0]])
  seen = masks.Mask(
    query_segments_BQ=segments, key_segments_BK=np.array([[2, 1, 0]])
  ).matrix()
  assert seen.dtype == bool
  assert seen[0].astype(int).tolist() == [
    [0, 1, 0],
    [0, 1, 0],
    [1, 0, 0],
    [0, 0, 1],  # else a row of padding would have nothing to see
  ]

  few = masks.Mask(
    query_segments_BQ=segments, key_segments_BK=np.array([[2, 2]])
  )
  assert few.sees().tolist() == [[False, False, True, False]]
  far = masks.Mask(
    query_segments_BQ=np.array([[70, 7, 9]]),
    key_segments_BK=np.array([[9, 70]]),
  )
  assert far.sees().tolist() == far.matrix().any(-1).tolist()

  def see(*shape, **rules):
    return make_mask(*shape, **rules).matrix()[0].astype(int).tolist()

  assert see(3, 3, causal=True) == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
  assert see(1, 4, 2, causal=True) == [[1, 1, 1, 0]]
  assert see(2, 4, jnp.int32(1), causal=True) == [[1, 1, 0, 0], [1, 1, 1, 0]]
  assert see(3, 3, causal=True, window=2) == [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
  assert see(3, 3, window=2) == [[1, 1, 0], [1, 1, 1], [0, 1, 1]]
  assert see(1, 4, 3, causal=True, window=2) == [[0, 0, 1, 1]]


def test_a_prefix_is_seen_both_ways_within_its_example():
  segments = np.array([[1, 1, 1, 2, 2, 2, 0]])
  prefix = np.array([[1, 1, 0, 1, 1, 0, 0]])
  seen = masks.within(segments, causal=True, prefix_BL=prefix).matrix()
  assert seen[0].astype(int).tolist() == [
    [1, 1, 0, 0, 0, 0, 0],
    [1, 1, 0, 0, 0, 0, 0],
    [1, 1, 1, 0, 0, 0, 0],
    [0, 0, 0, 1, 1, 0, 0],
    [0, 0, 0, 1, 1, 0, 0],
    [0, 0, 0, 1, 1, 1, 0],
    [0, 0, 0, 0, 0, 0, 1],
  ]


def test_survey_e1_rope_turns_queries_and_keys_of_each_layer_alone():
  """Neither values nor embeddings: RoFormer is a BERT with this, no Reformer.

  So positions show as long as any layer has queries, and then no more.
  """
  model = models.build(
    tiny.transformer(encoder_layers=0, position=specs.Rope())
  )
  params, batch = tiny.params(model), tiny.batch(2)
  apart = batch | {'decoder_positions': 3 * batch['decoder_positions']}
  apply = jax.jit(model.apply)
  kernel = params['decoder']['layers']['attention']['query']['kernel']
  drawn = kernel.copy()
  for without in ([], [0], [1], [0, 1]):
    kernel[:] = drawn
    kernel[without] = 0
    moved = np.abs(apply(params, apart) - apply(params, batch)).max()
    assert moved > 1e-3 if len(without) < 2 else moved == 0


def attend_by_hand(q, k, v, mask, bias):
  """In float64, one query of one head at a time."""
  q, k, v, bias = (x.astype(np.float64) for x in (q, k, v, bias))
  found = np.zeros(q.shape)
  for b, i, h in np.ndindex(q.shape[:3]):
    logits = k[b, :, h] @ q[b, i, h] + bias[h, i]
    share = np.where(mask[b, i], np.exp(logits - logits.max()), 0)
    found[b, i, h] = share @ v[b, :, h] / share.sum()
  return found


def draw_attention(dtype=np.float32, scale=1.0):
  rng = np.random.default_rng(0)
  q, k, v = (
    (scale * rng.standard_normal((2, n, 3, 8))).astype(dtype) for n in (4, 6, 6)
  )
  mask = rng.random((2, 4, 6)) < 0.6
  mask[:, :, 0] = True
  return q, k, v, mask, rng.standard_normal((3, 4, 6)).astype(np.float32)


def attend(q, k, v, mask_BQK, bias, **kwargs):
  """Attention with any matrices for mask and bias."""
  mask = types.SimpleNamespace(matrix=lambda: mask_BQK)
  return kernels.KERNELS['plain'](q, k, v, mask, bias[None], **kwargs)


def test_attention():
  arrays = draw_attention()
  got = attend(*arrays, dropout=lambda x: x)
  np.testing.assert_allclose(got, attend_by_hand(*arrays), atol=1e-5)


def test_groups_of_heads_share_keys_and_values():
  q, k, v, mask, bias = draw_attention()
  q = np.concatenate([q, q[:, :, ::-1]], axis=2)  # six heads for three
  bias = np.concatenate([bias, 2 * bias])
  got = attend(q, k, v, mask, bias, scale=0.5)
  wide = [np.repeat(x, 2, axis=2) for x in (k, v)]
  wanted = attend_by_hand(0.5 * q, *wide, mask, bias)
  np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_softmax_is_in_float32_under_bfloat16():
  """As if the bfloat16 inputs were exact, until the weights are rounded."""
  arrays = draw_attention(jnp.bfloat16, scale=3.0)
  seen = []

  def dropout(weights):
    seen.append(weights)
    return weights

  got = attend(*arrays, dropout=dropout)
  assert got.dtype == seen[0].dtype == jnp.bfloat16
  q, k, _, mask, bias = arrays
  each_key = np.broadcast_to(np.eye(6, 8)[:, None], k.shape)
  exact = attend_by_hand(q, k, each_key, mask, bias)[..., :6].swapaxes(1, 2)
  # Rounded at the end, by 2^-9; logits of 50 in bfloat16 would err by a tenth.
  error = np.abs(np.asarray(seen[0], np.float64) - exact)
  assert (error <= 2**-8 * exact + 1e-6).all()


def keys(n, seed=0):
  return jax.random.split(jax.random.key(seed), n)


@pytest.mark.parametrize('share_length', [True, False])
def test_dropout_keeps_the_mean_and_the_rate(share_length):
  x = jnp.ones((64, 20, 64))
  y = modules.dropout(x, 0.3, keys(64), 0, share_length)
  draws = 64 * 64 * (1 if share_length else 20)
  assert abs(float((y == 0).mean()) - 0.3) < 5 * (0.21 / draws) ** 0.5
  np.testing.assert_allclose(y[y > 0], 1 / 0.7, rtol=1e-6)
  assert bool((y == y[:, :1]).all()) == share_length


def test_dropout_places_and_rows_are_independent():
  x = jnp.ones((8, 3, 500))
  first = modules.dropout(x, 0.5, keys(8), site=0)
  again = modules.dropout(x, 0.5, keys(8), site=0)
  other = modules.dropout(x, 0.5, keys(8), site=1)
  np.testing.assert_array_equal(first, again)
  kept = np.stack([first[:, 0] > 0, other[:, 0] > 0]).reshape(16, -1)
  # Two fair coins agree half of the time: five deviations of 500 throws.
  agree = (kept[:, None] == kept[None]).mean(-1)[~np.eye(16, dtype=bool)]
  assert np.abs(agree - 0.5).max() < 5 * 0.5 / 500**0.5


def test_no_dropout_is_the_same_array():
  x = jnp.ones((2, 3, 4))
  assert modules.dropout(x, 0.5, None, 0) is x
  assert modules.dropout(x, 0.0, keys(2), 0) is x


def test_each_dropout_of_a_model_draws_its_own(monkeypatch):
  """No two places of a step share a mask: keys and sites are all different."""
  drawn, real = [], modules.draw

  def spy(rate, keys_B, site, shape):
    jax.debug.callback(
      lambda data: drawn.append((data.tobytes(), site)),
      jax.random.key_data(keys_B),
      ordered=True,
    )
    return real(rate, keys_B, site, shape)

  monkeypatch.setattr(modules, 'draw', spy)
  model = models.build(tiny.transformer(dropout=0.1))
  jax.jit(model.apply)(tiny.params(model), tiny.batch(2), keys(2))
  jax.effects_barrier()
  # After the embedding and at the end; in a layer after each of two or three
  # parts, on the weights of one or two attentions, and in the feed-forward.
  assert len(drawn) == 2 * 2 + 2 * (2 + 1 + 1) + 2 * (3 + 2 + 1)
  assert len(set(drawn)) == len(drawn)


def test_stack_differs_by_layer_and_names_the_axis():
  def make(rngs):
    spec = tiny.transformer()
    sizes = {'embed': 4, 'mlp': 5}
    return modules.Dense(rngs, spec, 'mlp', 'BLE,EF->BLF', sizes)

  stacked = modules.stack(make, 3, nnx.Rngs(params=0))
  kernel = stacked.kernel
  assert kernel[...].shape == (3, 4, 5)
  assert kernel.axes == ('layers', 'embed', 'mlp')
  assert len({np.asarray(layer).tobytes() for layer in kernel[...]}) == 3
  other = modules.stack(make, 3, nnx.Rngs(params=1)).kernel[...]
  assert not (np.asarray(other) == np.asarray(kernel[...])).any()


def test_norm():
  x = np.random.default_rng(0).standard_normal((2, 3, 64)) * 1e4
  norm = modules.Norm(nnx.Rngs(params=0), tiny.transformer(embed_dim=64))
  scale = np.linspace(-1, 2, 64).astype(np.float32)
  norm.scale[...] = jnp.asarray(scale)
  wanted = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale
  got = norm(jnp.asarray(x, jnp.float32))
  np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
  tiny_x = np.full((1, 1, 64), 1e-3)
  got = norm(jnp.asarray(tiny_x, jnp.float32))
  np.testing.assert_allclose(got[0, 0], scale / 2**0.5, rtol=1e-5)


def test_norm_is_in_float32_under_bfloat16():
  """Rounded once, before the scale, but for a few that lie between two."""
  x = np.random.default_rng(0).standard_normal((8, 8, 64)).astype(jnp.bfloat16)
  norm = modules.Norm(nnx.Rngs(params=0), tiny.transformer(embed_dim=64))
  wide = x.astype(np.float64)
  wide /= np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6)
  got = norm(jnp.asarray(x))
  assert got.dtype == jnp.bfloat16
  assert (np.asarray(got) == wide.astype(jnp.bfloat16)).mean() > 0.995


def test_layer_norm():
  x = np.random.default_rng(0).standard_normal((2, 3, 64)) * 5 + 2
  layer_norm = specs.LayerNorm(epsilon=0.1)
  spec = tiny.transformer(embed_dim=64, norm=layer_norm)
  norm = modules.Norm(nnx.Rngs(params=0), spec)
  scale, bias = np.random.default_rng(1).standard_normal((2, 64))
  norm.scale[...] = jnp.asarray(scale, jnp.float32)
  norm.bias[...] = jnp.asarray(bias, jnp.float32)
  x -= x.mean(-1, keepdims=True)
  wanted = x / np.sqrt(x.var(-1, keepdims=True) + 0.1) * scale + bias
  got = norm(jnp.asarray(x + 3, jnp.float32))
  np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('norm', [specs.RMSNorm, specs.LayerNorm])
def test_norms_without_parameters(norm):
  spec = tiny.transformer(norm=norm(scale=False, bias=False))
  norm = modules.Norm(nnx.Rngs(params=0), spec)
  assert not jax.tree.leaves(nnx.split(norm)[1])
  got = norm(jnp.ones((1, 1, 32)).at[0, 0, ::2].set(-1))
  np.testing.assert_allclose(jnp.abs(got), 1, atol=1e-5)


@pytest.mark.parametrize('rows', [1, 4, 32, 33])
def test_tied_logits_of_few_rows_and_of_many(rows):
  rng = np.random.default_rng(0)
  x, table = rng.standard_normal((rows, 1, 16)), rng.standard_normal((48, 16))
  wanted = np.einsum('BLE,VE->BLV', x, table)

  def total(x, table):
    y = products.linear('BLE,VE->BLV', x, table)
    return jnp.sum(y * y), y

  (_, got), (of_x, of_table) = jax.jit(
    jax.value_and_grad(total, (0, 1), has_aux=True)
  )(jnp.asarray(x, jnp.float32), jnp.asarray(table, jnp.float32))
  for found, right in (
    (got, wanted),
    (of_x, 2 * np.einsum('BLV,VE->BLE', wanted, table)),
    (of_table, 2 * np.einsum('BLV,BLE->VE', wanted, x)),
  ):
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-3)


def test_rows_change_places_and_what_they_wrote_does_not():
  prompts = attention.lay_out(*np.ones((2, 1, 3, 5, 2, 4), np.float32))
  cache = attention.Cache.empty(prompts, 7).repeat(2).reorder(np.arange(6))
  assert cache.room == 7
  new = jnp.arange(6 * 2 * 4, dtype=jnp.float32).reshape(6, 1, 2, 4)
  cache, (_, (keys_BGDK, values_BGKD)) = cache.add(0, new, -new)
  cache = dataclasses.replace(cache, index=cache.index + 1)
  assert keys_BGDK.shape == (3, 2, 4, 14)
  np.testing.assert_array_equal(keys_BGDK.swapaxes(2, 3), -values_BGKD)
  turned = cache.reorder(np.arange(6) ^ 1)
  assert turned.written is cache.written
  writers_BNL = np.asarray(turned.writers_BNL)
  assert (writers_BNL[:, :, 0] == [1, 0]).all()
  assert (writers_BNL[:, :, 1:] == np.arange(2)[:, None]).all()
  one_G1D = values_BGKD[2, :, writers_BNL[2, 0, 0]]
  np.testing.assert_array_equal(one_G1D, -new[5, 0])
  with pytest.raises(ValueError, match='not repeated'):
    turned.repeat(2)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_a_table_that_is_brought_together_looks_up_and_adds_up_alike(dtype):
  rng, dtype = np.random.default_rng(0), jnp.dtype(dtype)
  table, d = (
    jnp.asarray(rng.normal(size=size), jnp.float32)
    for size in ((40, 32), (16, 7, 32))
  )
  ids = jnp.asarray(rng.integers(0, 40, (16, 7)))  # some come several times
  axes = 'vocab', 'embed'

  def value(look_up):
    return lambda table: jnp.sum(look_up(table).astype(jnp.float32) * d)

  plain = value(lambda table: table[ids].astype(dtype))
  wanted, of_wanted = jax.value_and_grad(plain)(table)
  mesh = partitioning.make_mesh(specs.Mesh(data=2, fsdp=4))
  with jax.set_mesh(mesh):
    assert products.brings_table(table, ids.shape, axes)
    assert not products.brings_table(table, (16, 1), axes)  # decoding
    assert not products.brings_table(
      table, (12, 7), axes
    )  # rows it can't share out
    wide = jnp.zeros((40, 4 * 32))
    assert not products.brings_table(wide, ids.shape, axes)
    brought = value(lambda table: products.take(table, ids, dtype, axes))
    step = jax.jit(jax.value_and_grad(brought))
    placed = jax.device_put(table, jax.NamedSharding(mesh, P(None, 'fsdp')))
    found, of_found = step(placed)
    text = step.lower(placed).compile().as_text()
  np.testing.assert_allclose(found, wanted, rtol=1e-5)
  np.testing.assert_allclose(of_found, of_wanted, atol=1e-5)
  assert of_found.sharding.spec == P(None, 'fsdp')
  assert 'reduce-scatter' in text and 'all-to-all' not in text
