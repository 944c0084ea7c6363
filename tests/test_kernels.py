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
from t5x_lite.nn.kernels import blocks
from t5x_lite.nn.kernels import choice
from t5x_lite.nn.kernels import chunked
from tests import tiny

B, L, H, D = 2, 21, 4, 8  # 21: five blocks of four and one token more
RATE = 0.3


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
  monkeypatch.setattr(chunked, 'BLOCK', 4)
  monkeypatch.setattr(blocks, 'BLOCK', 4)


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
    bias = (
      positions.Toeplitz(values[None], mask.shape[0]) if toeplitz else values
    )
    return kernel(q, k, v, mask, bias, scale, dropout)

  @jax.jit
  def both(*inputs):
    y, pull = jax.vjp(attend, *inputs)
    return y, pull(factor.astype(y.dtype))

  return both(*inputs)


def keys():
  return jax.random.split(jax.random.key(5), B)


@functools.cache
def weights_kept(shared, q, k, x64):
  """Of each weight 0 or 1 / (1 - rate), by drawing one at a time.

  Others are drawn in float64, which is to be switched on if `x64`.
  """
  assert jax.config.jax_enable_x64 == x64
  kept = np.ones((B, H, q, k))
  for b, i in np.ndindex(B, q):
    key = keys()[b]
    if not shared:
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
  kept = 1.0
  if dropout is not None:
    x64 = arrays[0].dtype == 'float64'
    kept = weights_kept(dropout.shared, *mask.shape, x64)
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
  largest = max(np.abs(y).max() for y in jax.tree.leaves(wanted[1]))

  def near(x, y):
    np.testing.assert_allclose(
      np.asarray(x, np.float64), y, rtol=0, atol=tolerance * largest
    )

  jax.tree.map(near, got, wanted)


TOLERANCES = {'float32': 2e-6, 'float64': 1e-12, 'bfloat16': 2e-2}
CASES = [
  *((mask, 'toeplitz', 'token', 2, 'float32') for mask in MASKS),
  *((mask, 'array of rows', 't5', 4, 'float64') for mask in MASKS),
  *(('causal packed', bias, None, 1, 'float32') for bias in (None, 'array')),
  *(('causal packed near', 'toeplitz', 'token', g, 'float64') for g in (1, 4)),
  ('causal packed prefix', 'toeplitz', 'token', 2, 'bfloat16'),
]


@pytest.mark.parametrize(
  'kernel, mask, bias, dropout, groups, dtype',
  [
    *(('chunked', *case) for case in CASES),
    *(('plain', *case) for case in CASES[::3]),
    *(('blocks', *case) for case in CASES if 'causal' in case[0]),
  ],
)
def test_output_and_gradients(kernel, mask, bias, dropout, groups, dtype):
  with jax.enable_x64(dtype == 'float64'):
    mask, dtype = draw_mask(mask), jnp.dtype(dtype)
    if dropout:
      dropout = modules.WeightDropout(RATE, keys(), dropout == 't5')
    arrays = draw(mask, groups, bias, dtype)
    got = run(kernels.KERNELS[kernel], arrays, mask, dropout)
    assert got[0].dtype == dtype
    assert_near(got, by_hand(arrays, mask, dropout), TOLERANCES[dtype.name])


@pytest.mark.parametrize('groups', [1, 2, 4])
@pytest.mark.parametrize('mask', ['causal packed', 'near', 'cross'])
def test_splash_attention(mask, groups):
  """As on a TPU, but step by step."""
  mask = draw_mask(mask)
  arrays = draw(mask, groups, None, 'float32')
  got = run(kernels.KERNELS['splash'], arrays, mask, None)
  assert_near(got, by_hand(arrays, mask, None), 2e-6)


@pytest.mark.parametrize('kernel', ['plain', 'chunked', 'blocks', 'splash'])
def test_a_window_as_wide_as_the_row_is_none(kernel):
  mask = draw_mask('causal packed')
  arrays = draw(mask, 2, None, 'float32')
  whole, near = (
    run(kernels.KERNELS[kernel], arrays, m, None)
    for m in (mask, dataclasses.replace(mask, window=L))
  )
  jax.tree.map(np.testing.assert_array_equal, near, whole)


def test_blocks_leave_out_what_all_of_their_queries_are_hidden_from():
  mask = draw_mask('causal packed')
  arrays = draw(mask, 4, None, 'float32')
  text = str(
    jax.make_jaxpr(lambda x: run(blocks.attend, x, mask, None))(arrays)
  )
  for first in range(0, L, 4):
    end = min(first + 4, L)
    assert f'{B},{H},{end - first},{end}]' in text
  assert f'{B},{H},4,{L}]' not in text


def test_a_window_leaves_out_keys_that_it_does_not_reach():
  """Blocks of queries by the keys near them, and no other logits."""
  mask = dataclasses.replace(draw_mask('causal packed'), window=3)
  arrays = draw(mask, 4, 'toeplitz', 'float32')
  text = str(
    jax.make_jaxpr(functools.partial(run, kernels.KERNELS['chunked']))(
      arrays, mask, None
    )
  )
  assert f'{B},{H},4,6]' in text
  assert f'{B},{H},4,{L}]' not in text


# -- whole models -------------------------------------------------------------

ROPE = dict(encoder_layers=0, position=specs.Rope(), head_dim=64)
MODELS = {
  't5': dict(dropout=0.2, remat='dots'),
  'lm': dict(ROPE, num_kv_heads=2, dropout=0.2, dropout_kind='token'),
  'prefix': dict(
    encoder_layers=0, mask='prefix', windows=(0, 5), remat='full', bias=True
  ),
  'encoder': dict(decoder_layers=0, position=specs.Alibi(), windows=(6, 0)),
}


def build(name, **changes):
  return models.build(tiny.transformer(**MODELS[name] | changes))


def batch_of(model, size=2):
  batch = tiny.batch(size, inputs=18, targets=14, packed=True)
  prefix = batch['decoder_positions'] < 3
  batch['decoder_bidirectional_mask'] = prefix.astype(np.int32)
  tokens = batch['encoder_input_tokens']
  batch['encoder_target_tokens'] = np.roll(tokens, 3, 1)
  batch['encoder_loss_weights'] = np.ones(tokens.shape, np.float32)
  return {k: v for k, v in batch.items() if keeps(model.spec, k)}


def keeps(spec, name):
  return getattr(spec, f'{name.split("_")[0]}_layers') > 0


@functools.partial(jax.jit, static_argnums=0)
def loss_and_gradient(model, params, batch):
  keys = jax.random.split(jax.random.key(4), 2)

  def loss(params):
    logits = model.apply(params, batch, keys if model.spec.dropout else None)
    at = batch[f'{model.side}_target_tokens'][..., None]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), at, -1).mean()

  return jax.value_and_grad(loss)(params)


@pytest.mark.parametrize('name', MODELS)
def test_a_model_is_the_same_by_chunks(name):
  found = []
  for attention in ('plain', 'chunked'):
    model = build(name, attention=attention)
    params = tiny.params(model)
    found.append(loss_and_gradient(model, params, batch_of(model)))
  assert_near(found[1], jax.tree.map(np.asarray, found[0]), 2e-5)


@pytest.fixture
def splash_here(monkeypatch):
  """Takes the TPU's kernel for this platform's."""
  monkeypatch.setitem(choice.FUSED, 'cpu', 'splash')


@pytest.mark.parametrize(
  'name, attention',
  [(n, a) for n in MODELS for a in ('plain', 'chunked')]
  + [('lm', 'fused'), ('lm', 'auto')],
)
def test_packed_examples_are_isolated_to_the_bit(splash_here, name, attention):
  model = build(name, attention=attention)
  batch, params = batch_of(model), tiny.params(model)
  apply = jax.jit(model.apply)
  before = np.asarray(apply(params, batch))
  segments = batch[f'{model.side}_segment_ids']
  for example, other in ((1, 2), (2, 1)):
    changed = dict(batch)
    for side in ('encoder', 'decoder'):
      if f'{side}_input_tokens' in batch:
        tokens = batch[f'{side}_input_tokens']
        here = batch[f'{side}_segment_ids'] == example
        changed[f'{side}_input_tokens'] = np.where(here, 127 - tokens, tokens)
    after = np.asarray(apply(params, changed))
    np.testing.assert_array_equal(
      after[segments == other], before[segments == other]
    )
    assert (after != before).any(-1)[segments == example].mean() > 0.9


@pytest.mark.parametrize('attention', ['plain', 'chunked'])
def test_a_prefix_lm_without_a_prefix_is_an_lm(attention):
  prefix, lm = (
    build('prefix', attention=attention, mask=mask)
    for mask in ('prefix', 'causal')
  )
  params, batch = tiny.params(lm), batch_of(lm)
  batch['decoder_bidirectional_mask'] *= 0
  np.testing.assert_allclose(
    jax.jit(prefix.apply)(params, batch),
    jax.jit(lm.apply)(params, batch),
    atol=1e-6,
  )


@pytest.mark.parametrize('name', ['t5', 'lm', 'prefix'])
def test_decoding_is_the_same_by_chunks(name):
  found = []
  for attention in ('plain', 'chunked'):
    model = build(name, attention=attention)
    batch, params = batch_of(model), tiny.params(model)
    # Prompts of six and nine tokens: more than a block.
    segments = (np.arange(9)[None] >= np.array([[3], [0]])).astype(np.int32)
    tokens = batch['decoder_input_tokens'][:, :9]
    batch |= {'decoder_input_tokens': tokens, 'decoder_segment_ids': segments}
    logits, state = jax.jit(model.start, static_argnums=2)(params, batch, 2)
    more, _ = jax.jit(model.step)(params, state, np.array([5, 7]))
    found.append((np.asarray(logits), np.asarray(more)))
  assert_near(found[1], found[0], 1e-5)


# -- memory -------------------------------------------------------------------


def temporary_bytes(kernel, length):
  """Of a compiled gradient; nothing is run."""
  shape = jax.ShapeDtypeStruct((1, length, 2, 8), 'float32')
  segments = jax.ShapeDtypeStruct((1, length), 'int32')
  values = jax.ShapeDtypeStruct((2, 2 * length - 1), 'float32')

  def total(q, k, v, values, segments):
    mask = masks.within(segments, causal=True)
    bias = positions.Toeplitz(values[None], length)
    return kernels.KERNELS[kernel](q, k, v, mask, bias).sum()

  gradient = jax.jit(jax.grad(total, argnums=(0, 1, 2, 3)))
  compiled = gradient.lower(shape, shape, shape, values, segments).compile()
  return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize('kernel, most', [('plain', 4.1), ('chunked', 2.1)])
def test_memory_by_length(monkeypatch, kernel, most):
  """Doubled length: four times as much by the plain kernel, twice by chunks."""
  monkeypatch.setattr(chunked, 'BLOCK', 128)
  sizes = [temporary_bytes(kernel, n) for n in (2048, 4096, 8192)]
  growth = np.divide(sizes[1:], sizes[:-1])
  assert (growth < most).all(), sizes
  assert (growth > most - 0.4).all(), sizes


# -- meshes -------------------------------------------------------------------


def gradients(attention, **axes):
  """Loss and gradients of a prefix LM on a mesh of one or eight devices."""
  model = tiny.transformer(
    encoder_layers=0,
    mask='prefix',
    windows=(0, 6),
    dropout=0.2,
    dropout_kind='token',
    dtype='float64',
    attention=attention,
  )
  run = tiny.run(model, mesh=specs.Mesh(**axes))
  devices = jax.devices()[: 8 if axes else 1]
  mesh = partitioning.make_mesh(run.mesh, devices)
  batch = tiny.batch(run.batch_size, inputs=8, targets=16, packed=True)
  prefix = batch['decoder_positions'] < 5
  batch['decoder_bidirectional_mask'] = prefix.astype(np.int32)
  batch = {k: v for k, v in batch.items() if k.startswith('decoder')}
  with tiny.kept_gradients(), jax.enable_x64(True), jax.set_mesh(mesh):
    program = train.Program.build(run, mesh)
    step, state = program.compile_step(batch), tiny.state(program)
    batch = partitioning.put_batch(batch, mesh, run.batch_size)
    state, metrics = step(state, batch)
    return float(metrics['loss']), jax.device_get(state['opt_state'])


@pytest.fixture(scope='module')
def alone():
  return gradients('plain')


@pytest.mark.parametrize(
  'attention, axes',
  [
    ('chunked', dict(data=2, sequence=4)),
    *(
      pytest.param(*case, marks=pytest.mark.parallel)
      for case in [
        ('plain', dict(data=2, sequence=4)),
        ('plain', dict(tensor=2, sequence=2)),
        ('chunked', dict(tensor=2, sequence=2)),
      ]
    ),
  ],
)
def test_a_length_shared_by_devices(alone, attention, axes):
  assert_near(gradients(attention, **axes), alone, 3e-7)


def test_splash_attention_on_a_mesh():
  """Rows and heads shared by devices, as XLA can't share out a kernel."""
  mask = draw_mask('causal packed')
  arrays = draw(mask, 2, None, 'float32')
  mesh = partitioning.make_mesh(specs.Mesh(data=2, tensor=2), jax.devices()[:4])
  with jax.set_mesh(mesh):
    got = run(kernels.KERNELS['splash'], arrays, mask, None)
  assert got[0].sharding.spec[:3:2] == ('data', 'tensor')
  assert_near(got, by_hand(arrays, mask, None), 2e-6)


# -- the choice ---------------------------------------------------------------


def chosen(platform, length=2048, rows=8, first=True, queries=None, **changes):
  fields = dict(encoder_layers=0, position=specs.Rope(), head_dim=64)
  spec = tiny.transformer(**fields | dict(dtype='bfloat16') | changes)
  mesh = specs.Mesh(data=1)
  shares = {name: getattr(mesh, name) for name in partitioning.AXES}
  site = choice.sites(spec, rows, {'decoder': length})['decoder']
  site = dataclasses.replace(site, first=first)
  if queries:
    site = dataclasses.replace(site, queries=queries)
  place = choice.Place(platform, shares | changes.get('shares', {}))
  return tuple(dataclasses.astuple(choice.choose(spec, site, place)))


@pytest.mark.parametrize(
  'wanted, why, facts',
  [
    ('splash', '512 keys or more', dict(platform='tpu')),
    ('cudnn', '512 keys or more', dict(platform='gpu')),
    ('plain', 'under 512 keys', dict(platform='tpu', length=256)),
    ('plain', 'one query', dict(platform='tpu', queries=1)),
    (
      'chunked',
      'plain would keep 4.00 GiB a device; splash has no bias, as T5Bias needs',
      dict(platform='tpu', rows=32, position=specs.T5Bias()),
    ),
    (
      'plain',
      'plain would keep 0.50 GiB a device; splash has no bias, as Alibi needs',
      dict(platform='tpu', rows=4, position=specs.Alibi()),
    ),
    ('plain', 'no dropout', dict(platform='tpu', rows=1, dropout=0.1)),
    (
      'chunked',
      '256 MiB of random bits a layer for dropout; splash has no dropout',
      dict(platform='tpu', rows=4, dropout=0.1, dropout_kind='token'),
    ),
    (
      'plain',
      'no dropout',
      dict(platform='tpu', rows=2, dropout=0.1, dropout_kind='token'),
    ),
    ('plain', 'no dropout', dict(platform='tpu', rows=4, dropout=0.1)),
    ('plain', 'no prefix', dict(platform='tpu', rows=1, mask='prefix')),
    ('cudnn', '512 keys', dict(platform='gpu', rows=1, mask='prefix')),
    ('plain', 'is for bfloat16', dict(platform='gpu', rows=1, dtype='float32')),
    ('plain', 'that 64 divides', dict(platform='tpu', rows=1, head_dim=80)),
    ('plain', 'first on', dict(platform='tpu', rows=1, first=False)),
    ('chunked', 'faster on CPUs', dict(platform='cpu', rows=1)),
    ('blocks', 'what is hidden', dict(platform='cpu', length=512)),
    (
      'plain',
      'cpu has no fused',
      dict(platform='cpu', length=512, mask='prefix'),
    ),
    ('chunked', 'as Tra', dict(platform='tpu', attention='chunked', length=9)),
    ('splash', 'as Tra', dict(platform='tpu', attention='fused', length=9)),
  ],
)
def test_the_choice_and_its_reason(wanted, why, facts):
  with jax.default_matmul_precision('default'):
    kernel, said = chosen(**facts)
  assert kernel == wanted
  assert why in said


def test_remat_keeps_the_weights_of_one_layer():
  facts = dict(platform='tpu', rows=32, position=specs.T5Bias())
  assert 'keep 4.00 GiB' in chosen(**facts)[1]
  assert 'keep 2.00 GiB' in chosen(**facts, remat='full')[1]


@pytest.mark.parametrize(
  'changes, said',
  [
    ({}, 'decoder: cpu has no fused kernel'),
    (dict(position=specs.T5Bias()), 'no bias, as T5Bias needs'),
    (dict(dropout=0.1), 'no dropout of weights'),
    (dict(mask='prefix'), 'no prefix'),
    (dict(head_dim=8), 'needs a head_dim that 64 divides'),
    (dict(dtype='float64'), 'is for float32 and bfloat16'),
  ],
)
def test_a_fused_kernel_that_can_not_be_had_is_refused(
  monkeypatch, changes, said
):
  """Before anything is compiled, with the reason."""
  if changes:
    monkeypatch.setitem(choice.FUSED, 'cpu', 'splash')
  model = tiny.transformer(**ROPE | dict(attention='fused') | changes)
  run = tiny.run(model)
  with pytest.raises(errors.ConfigError, match=said) as caught:
    train.Program.build(run, partitioning.make_mesh(run.mesh))
  assert "take 'auto'" in str(caught.value)


def test_a_run_says_what_computes_attention():
  run = tiny.run(tiny.transformer(), batch_size=32, microbatches=4)
  program = train.Program.build(run, partitioning.make_mesh(run.mesh))
  line = program.attention({'encoder': 16384, 'decoder': 512})
  assert line == (
    'attention: encoder chunked (plain would keep 16.00 GiB a device; cpu has'
    ' no fused kernel); decoder blocks (on CPUs, most of what is hidden is left'
    ' out); cross plain (plain would keep 0.50 GiB a device; cpu has no fused'
    ' kernel)'
  )


def test_evaluation_elsewhere_takes_what_there_is():
  """A model trained by a fused kernel is not tied to its platform."""
  model = build('lm', attention='fused', dropout=0.0)
  fused, auto = (
    jax.jit(models.build(tiny.replace(model.spec, attention=kind)).apply)(
      tiny.params(model), batch_of(model)
    )
    for kind in ('fused', 'auto')
  )
  np.testing.assert_array_equal(fused, auto)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('kind', ['t5', 'token'])
def test_strict_promotion(strict_promotion, kind, dtype):
  """Tracing is enough: no dtype or rank is promoted unsaid."""
  mask = draw_mask('causal packed near prefix')
  dropout = modules.WeightDropout(RATE, keys(), kind == 't5')
  arrays = draw(mask, 2, 'toeplitz', jnp.dtype(dtype))
  jax.eval_shape(
    lambda arrays: run(kernels.KERNELS['chunked'], arrays, mask, dropout),
    jax.tree.map(jnp.asarray, arrays),
  )


def test_cudnn_is_lowered_for_gpus_forward_and_backward(monkeypatch):
  """As far as it goes without one: its libraries are taken for granted."""
  home = 'jax._src.cudnn.fused_attention_stablehlo'
  monkeypatch.setattr(f'{home}.check_cudnn_version', lambda: 91000)
  monkeypatch.setattr(f'{home}.check_compute_capability', lambda _: True)
  calls = '__cudnn$fmhaScaleBiasSoftmax', '__cudnn$fmhaScaleBiasSoftmaxBackward'
  mask = draw_mask('causal packed')
  *inputs, _, _ = draw(mask, 2, None, jnp.bfloat16)

  def total(*inputs):
    y = kernels.KERNELS['cudnn'](*inputs, mask, None, 0.4)
    return y.astype('float32').sum()

  exported = jax.export.export(
    jax.jit(jax.grad(total, (0, 1, 2))),
    platforms=['cuda'],
    disabled_checks=[
      jax.export.DisabledSafetyCheck.custom_call(n) for n in calls
    ],
  )(*inputs)
  for name in calls:
    assert f'@{name}(' in exported.mlir_module()
