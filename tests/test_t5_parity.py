"""T5 against transformers' numbers, plain numpy, and its published facts.

The golden numbers are made by golden/make_t5_goldens.py.
"""

import contextlib
import json
import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import t5_numpy

from t5x_lite import losses
from t5x_lite import models
from t5x_lite import specs
from t5x_lite.nn import modules
from t5x_lite.nn import positions

GOLDEN = pathlib.Path(__file__).parent / 'golden'
SYSTEMS = ('t5_1_0', 't5_1_1', 'umt5')

pytestmark = pytest.mark.usefixtures('strict_promotion')


# -- the golden numbers -------------------------------------------------------


def load(system):
  """(choices, params, batch, logits, loss, grads) of a golden file."""
  with np.load(GOLDEN / f'{system}.npz', allow_pickle=False) as file:
    arrays = dict(file)
  params, batch, grads = (
    t5_numpy.below(arrays, f'{part}/') for part in ('params', 'batch', 'grads')
  )
  params = {path: value.astype(np.float64) for path, value in params.items()}
  choices = json.loads(str(arrays['spec']))
  return choices, params, batch, arrays['logits'], arrays['loss'], grads


def make_spec(choices, **more):
  choices = dict(choices)
  names = ('buckets', 'max_distance', 'per_layer')
  position = specs.T5Bias(**{name: choices.pop(name) for name in names})
  return specs.Transformer(position=position, **choices | more)


def nest(flat):
  """A nested dict of a dict by path."""
  tree = {}
  for path, value in flat.items():
    *folders, name = path.split('/')
    node = tree
    for folder in folders:
      node = node.setdefault(folder, {})
    node[name] = value
  return tree


def flatten(tree):
  leaves = jax.tree_util.tree_leaves_with_path(
    tree, is_leaf=lambda x: isinstance(x, tuple)
  )
  path_name = jax.tree_util.keystr
  return {path_name(p, simple=True, separator='/'): v for p, v in leaves}


def run(fn):
  """Compiles for the test of numbers, not of speed."""
  options = {'xla_backend_optimization_level': 0}  # half the time to compile
  return jax.jit(fn, compiler_options=options)


@contextlib.contextmanager
def float64():
  # jax makes int64 of what is int32 elsewhere: mixtures are no fault here
  with jax.enable_x64(True), jax.numpy_dtype_promotion('standard'):
    yield


def measure(spec, params, batch):
  """Logits, mean loss and gradients by path, in float64."""
  with float64():
    model = models.build(spec)

    def mean_loss(params, batch):
      logits_BLV = model.apply(params, batch)
      total, weight, _ = losses.cross_entropy(
        logits_BLV,
        batch['decoder_target_tokens'],
        batch['decoder_loss_weights'].astype(jnp.float64),
      )
      return total / weight, logits_BLV

    measured = run(jax.value_and_grad(mean_loss, has_aux=True))
    (loss, logits_BLV), grads = measured(nest(params), batch)
  return np.asarray(logits_BLV), float(loss), flatten(grads)


@pytest.mark.parametrize('system', SYSTEMS)
def test_paths_and_shapes(system):
  choices, params, *_ = load(system)
  model = models.build(make_spec(choices))
  shapes = {path: p.shape for path, p in flatten(model.abstract).items()}
  assert shapes == {path: p.shape for path, p in params.items()}
  axes = {path: len(names) for path, names in flatten(model.axes).items()}
  assert axes == {path: p.ndim for path, p in params.items()}


@pytest.mark.parametrize(
  'system, speed',
  [
    ('t5_1_0', {}),
    ('t5_1_1', {'remat': 'full'}),
    ('umt5', {'remat': 'dots'}),
  ],
)
def test_maxtext_560_equals_transformers(system, speed):
  choices, params, batch, logits_BLV, loss, grads = load(system)
  spec = make_spec(choices, dtype='float64', **speed)
  got_BLV, got_loss, got_grads = measure(spec, params, batch)
  valid_BL = batch['decoder_segment_ids'] > 0
  np.testing.assert_allclose(
    got_BLV[valid_BL], logits_BLV[valid_BL], rtol=0, atol=1e-9
  )
  assert abs(got_loss - loss) < 1e-10
  assert got_grads.keys() == grads.keys()
  for path, grad in grads.items():
    np.testing.assert_allclose(
      got_grads[path], grad, rtol=0, atol=1e-8, err_msg=path
    )


@pytest.mark.parametrize('system', SYSTEMS)
def test_packed_equals_numpy(system):
  """Both oracles agree, and ours with numpy on what transformers can't do."""
  choices, params, batch, logits_BLV, *_ = load(system)
  valid_BL = batch['decoder_segment_ids'] > 0
  plain_BLV = t5_numpy.logits(params, choices, batch)
  np.testing.assert_allclose(
    plain_BLV[valid_BL], logits_BLV[valid_BL], rtol=0, atol=1e-9
  )
  packed = pack(choices['vocab_size'], [(5, 3), (60, 40), (9, 17)])
  expected_BLV = t5_numpy.logits(params, choices, packed)
  with float64():
    model = models.build(make_spec(choices, dtype='float64'))
    got_BLV = run(model.apply)(nest(params), packed)
  valid_BL = packed['decoder_segment_ids'] > 0
  np.testing.assert_allclose(
    got_BLV[valid_BL], expected_BLV[valid_BL], rtol=0, atol=1e-9
  )


def test_float32_is_near():
  choices, params, batch, logits_BLV, *_ = load('t5_1_1')
  params = {path: p.astype(np.float32) for path, p in params.items()}
  model = models.build(make_spec(choices))
  got_BLV = np.asarray(run(model.apply)(nest(params), batch))
  valid_BL = batch['decoder_segment_ids'] > 0
  np.testing.assert_allclose(
    got_BLV[valid_BL], logits_BLV[valid_BL], rtol=1e-4, atol=1e-4
  )


# -- formulas -----------------------------------------------------------------

AFTER = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]  # buckets 17 .. 31
BEFORE = [18, 20, 23, 26, 30, 34, 39, 45, 51, 58, 66, 76, 86, 98, 112]


def buckets_of(relative, bidirectional):
  return np.asarray(
    positions.bucket(jnp.asarray(relative), bidirectional, 32, 128)
  ).tolist()


def test_buckets_of_encoder():
  assert buckets_of([0], True) == [0]
  assert buckets_of(AFTER, True) == list(range(17, 32))
  last = [start - 1 for start in AFTER[1:]] + [10_000]
  assert buckets_of(last, True) == list(range(17, 32))
  assert buckets_of([-n for n in AFTER], True) == list(range(1, 16))
  assert buckets_of([-n for n in last], True) == list(range(1, 16))


def test_buckets_of_decoder():
  assert buckets_of(range(-15, 1), False) == list(range(15, -1, -1))
  assert buckets_of([-n for n in BEFORE], False) == list(range(16, 31))
  first = [-n - 1 for n in BEFORE]
  assert buckets_of([-16, *first], False) == list(range(16, 32))
  assert buckets_of([-10_000, 1, 500], False) == [31, 0, 0]


@pytest.mark.parametrize('shape', [(32, 128), (8, 20), (64, 256), (32, 1000)])
@pytest.mark.parametrize('bidirectional', [True, False])
def test_buckets_equal_whole_number_formula(shape, bidirectional):
  relative = np.arange(-1100, 1101)
  got = positions.bucket(jnp.asarray(relative), bidirectional, *shape)
  expected = [t5_numpy.bucket(n, bidirectional, *shape) for n in relative]
  assert np.asarray(got).tolist() == expected


def test_gelu_is_the_tanh_form():
  got = modules.ACTIVATIONS['gelu'](jnp.float32(1))
  exact = modules.ACTIVATIONS['gelu_exact'](jnp.float32(1))
  np.testing.assert_allclose([got, exact], [0.841192, 0.841345], atol=1e-6)


COUNTS = {  # d, heads, encoder, decoder, head, ff, vocabulary, relu, umT5
  60_506_624: (512, 8, 6, 6, 64, 2048, 32_128, True, False),  # T5 1.0 small
  11_307_321_344: (1024, 128, 24, 24, 128, 65_536, 32_128, True, False),
  247_577_856: (768, 12, 12, 12, 64, 2048, 32_128, False, False),  # 1.1 base
  299_637_760: (1472, 6, 12, 4, 64, 3584, 384, False, False),  # ByT5 small
  306_601_984: (512, 6, 8, 8, 64, 1024, 256_384, False, True),  # umT5 small
}


@pytest.mark.parametrize('count', COUNTS)
def test_published_parameter_counts(count):
  d, heads, encoder, decoder, head, ff, vocab, old, per_layer = COUNTS[count]
  spec = specs.Transformer(
    vocab_size=vocab,
    encoder_layers=encoder,
    decoder_layers=decoder,
    embed_dim=d,
    mlp_dim=ff,
    num_heads=heads,
    head_dim=head,
    gated=not old,
    tie_embeddings=old,
    position=specs.T5Bias(per_layer=per_layer),
  )
  shapes = jax.tree.leaves(models.build(spec).abstract)
  assert sum(math.prod(p.shape) for p in shapes) == count


# -- a fresh model ------------------------------------------------------------


def tiny(**choices):
  return specs.Transformer(
    **{
      'vocab_size': 40,
      'encoder_layers': 2,
      'decoder_layers': 2,
      'embed_dim': 16,
      'mlp_dim': 20,
      'num_heads': 2,
      'head_dim': 10,
    }
    | choices
  )


def redraw(model, seed=0, std=0.3):
  """Parameters at a scale where every part of the model matters."""
  rng = np.random.default_rng(seed)

  def draw(path, p):
    mean = 1.0 if path[-1].key == 'scale' else 0.0
    return np.float32(mean + std * rng.standard_normal(p.shape))

  return jax.tree_util.tree_map_with_path(draw, model.abstract)


def pack(vocab_size, lengths, room=(80, 64), seed=0):
  """One row of examples of these (encoder, decoder) lengths, then padding."""
  rng = np.random.default_rng(seed)
  batch = {}
  for stack, size, counts in zip(
    ('encoder', 'decoder'), room, zip(*lengths, strict=True), strict=True
  ):
    used = sum(counts)
    segments = np.repeat(np.arange(1, len(counts) + 1), counts)
    restarts = np.concatenate([np.arange(n) for n in counts])
    tokens = rng.integers(1, vocab_size, used)
    rows = {'segment_ids': segments, 'positions': restarts}
    rows['input_tokens' if stack == 'encoder' else 'target_tokens'] = tokens
    for name, row in rows.items():
      row = np.pad(row, (0, size - used))[None]
      batch[f'{stack}_{name}'] = row.astype(np.int32)
  targets, starts = batch['decoder_target_tokens'], batch['decoder_positions']
  shifted = np.pad(targets[:, :-1], [(0, 0), (1, 0)])
  batch['decoder_input_tokens'] = np.where(starts == 0, 0, shifted)
  valid = batch['decoder_segment_ids'] > 0
  return batch | {'decoder_loss_weights': valid.astype(np.float32)}


def test_initial_scales():
  d, heads, head, ff = 64, 8, 24, 160
  spec = tiny(
    vocab_size=1000,
    embed_dim=d,
    mlp_dim=ff,
    num_heads=heads,
    head_dim=head,
    position=specs.T5Bias(per_layer=True),
  )
  limit = math.sqrt(3 / ((heads + 32) / 2))
  stds = {
    'token_embedder/embedding': 1.0,
    'query/kernel': 1 / math.sqrt(d * head),
    'key/kernel': 1 / math.sqrt(d),
    'value/kernel': 1 / math.sqrt(d),
    'out/kernel': 1 / math.sqrt(heads * head),
    'wi_0/kernel': 1 / math.sqrt(d),
    'wi_1/kernel': 1 / math.sqrt(d),
    'wo/kernel': 1 / math.sqrt(ff),
    'logits/kernel': 1 / math.sqrt(d),
    'position/rel_embedding': limit / math.sqrt(3),
  }
  seen = set()
  for path, p in flatten(
    run(models.build(spec).init)(jax.random.key(0))
  ).items():
    p = np.asarray(p)
    assert p.dtype == np.float32
    if path.endswith('scale'):
      np.testing.assert_array_equal(p, 1)
      continue
    name = '/'.join(path.split('/')[-2:])
    seen.add(name)
    std, most = stds[name], np.abs(p).max()
    assert p.std() == pytest.approx(std, rel=6 / math.sqrt(2 * p.size)), path
    assert abs(p.mean()) < 6 * std / math.sqrt(p.size), path
    if name == 'position/rel_embedding':
      assert 0.95 * limit < min(p.max(), -p.min()), path
      assert most <= limit, path
    elif name.startswith(('wi', 'wo', 'logits')):  # cut at two deviations
      assert 2 < most / std <= 2 / 0.87962566 + 1e-6, path
    else:  # so many normal draws reach farther
      assert most / std > 3.3, path
    if '/layers/' in path:
      assert not np.array_equal(p[0], p[1]), path
  assert seen == stds.keys()


def test_parameters_are_a_function_of_the_key():
  init = run(models.build(tiny()).init)
  first, again, other = (init(jax.random.key(n)) for n in (3, 3, 4))
  jax.tree.map(np.testing.assert_array_equal, first, again)
  for path, p in flatten(first).items():
    if not path.endswith('scale'):
      assert not np.array_equal(p, flatten(other)[path]), path


def test_tied_logits_are_untied_over_sqrt_embed():
  tied = models.build(tiny(tie_embeddings=True))
  params = redraw(tied)
  batch = pack(40, [(30, 20)])
  kernel = params['token_embedder']['embedding'].T / math.sqrt(16)
  untied = params | {'logits': {'kernel': kernel}}
  np.testing.assert_allclose(
    run(tied.apply)(params, batch),
    run(models.build(tiny()).apply)(untied, batch),
    rtol=1e-5,
    atol=1e-5,
  )


# -- who sees whom ------------------------------------------------------------


def with_tokens(batch, name, where_BL, seed=9):
  """The batch with other tokens in some places."""
  old_BL = batch[f'{name}_input_tokens']
  new_BL = 1 + (old_BL + np.random.default_rng(seed).integers(1, 38)) % 39
  changed = np.where(where_BL, new_BL, old_BL).astype(np.int32)
  assert (changed != old_BL).sum() == where_BL.sum() > 0
  return batch | {f'{name}_input_tokens': changed}


@pytest.fixture(scope='module')
def sees():
  """Decoder logits of a batch, as a function."""
  model = models.build(tiny())
  apply, params = run(model.apply), redraw(model)
  return lambda batch: np.asarray(apply(params, batch))


def test_encoder_padding_is_not_seen(sees):
  batch = pack(40, [(30, 20)])
  padding_BL = batch['encoder_segment_ids'] == 0
  other = with_tokens(batch, 'encoder', padding_BL)
  np.testing.assert_array_equal(sees(batch)[0, :20], sees(other)[0, :20])


def test_room_for_padding_does_not_matter(sees):
  lengths = [(30, 20)]
  near, far = (pack(40, lengths, room) for room in [(30, 20), (80, 64)])
  np.testing.assert_allclose(
    sees(near)[0], sees(far)[0, :20], rtol=1e-4, atol=1e-4
  )


@pytest.mark.parametrize('name', ['encoder', 'decoder'])
@pytest.mark.parametrize('changed', [1, 2, 3])
def test_packed_examples_are_isolated(sees, name, changed):
  batch = pack(40, [(20, 10), (25, 20), (11, 9)])
  where_BL = batch[f'{name}_segment_ids'] == changed
  before, after = sees(batch), sees(with_tokens(batch, name, where_BL))
  segments_BL = batch['decoder_segment_ids']
  others_BL = (segments_BL != changed) & (segments_BL > 0)
  np.testing.assert_array_equal(before[others_BL], after[others_BL])
  assert np.abs(before - after)[segments_BL == changed].max() > 1e-3


def test_packed_equals_alone(sees):
  lengths = [(20, 10), (25, 20), (11, 9)]
  together = pack(40, lengths)
  got = sees(together)
  for n, (encoder, decoder) in enumerate(lengths, start=1):
    alone = pack(40, [(encoder, decoder)])
    for name in ('encoder', 'decoder'):
      from_BL = together[f'{name}_segment_ids'] == n
      to_BL = alone[f'{name}_segment_ids'] == 1
      key = f'{name}_input_tokens'
      alone[key][to_BL] = together[key][from_BL]
    mine_BL = together['decoder_segment_ids'] == n
    np.testing.assert_allclose(
      got[mine_BL], sees(alone)[0, :decoder], rtol=1e-4, atol=1e-4
    )


def test_decoder_is_causal(sees):
  batch = pack(40, [(30, 40)])
  positions_BL = batch['decoder_positions'] + (batch['decoder_segment_ids'] < 1)
  where_BL = (np.arange(64)[None] == 17) & (positions_BL > 0)
  before, after = sees(batch), sees(with_tokens(batch, 'decoder', where_BL))
  np.testing.assert_array_equal(before[0, :17], after[0, :17])
  moved_L = np.abs(before - after)[0, 17:40].max(-1)
  assert moved_L[0] > 1e-3 and (moved_L > 0).all()


def test_encoder_sees_both_ways(sees):
  batch = pack(40, [(30, 20)])
  for place in (0, 29):
    where_BL = np.arange(80)[None] == place
    other = with_tokens(batch, 'encoder', where_BL)
    moved_L = np.abs(sees(batch) - sees(other))[0, :20].max(-1)
    assert (moved_L > 0).all()


def test_bias_of_each_layer_is_its_own():
  model = models.build(tiny(position=specs.T5Bias(per_layer=True)))
  params, batch = redraw(model), pack(40, [(30, 20)])
  path = 'decoder/layers/position/rel_embedding'
  flat = flatten(params)
  apply = run(model.apply)
  logits = apply(params, batch)
  for layer in range(2):
    other = flat[path].copy()
    other[layer] = other[layer, :, ::-1]
    moved = apply(nest(flat | {path: other}), batch) - logits
    assert np.abs(moved).max() > 1e-3


def test_token_zero_is_a_token(sees):
  """Validity is what segments say, whatever the tokens."""
  batch = pack(40, [(30, 20)])
  where_BL = np.arange(80)[None] == 4
  tokens_BL = np.where(where_BL, 0, batch['encoder_input_tokens'])
  tokens_BL = tokens_BL.astype(np.int32)
  zero = sees(batch | {'encoder_input_tokens': tokens_BL})
  hidden = sees(
    batch
    | {
      'encoder_input_tokens': tokens_BL,
      'encoder_segment_ids': batch['encoder_segment_ids'] * ~where_BL,
    }
  )
  assert np.abs(zero - hidden)[0, :20].max() > 1e-3


# -- narrow types and hard cases ----------------------------------------------


def test_bfloat16_is_near_and_its_logits_are_float32():
  wide, narrow = (
    models.build(tiny(dtype=dtype)) for dtype in ('float32', 'bfloat16')
  )
  params, batch = run(wide.init)(jax.random.key(0)), pack(40, [(30, 20)])
  expected, got = (
    np.asarray(run(model.apply)(params, batch)) for model in (wide, narrow)
  )
  assert got.dtype == np.float32
  error = np.abs(got - expected)[0, :20].max() / np.abs(expected).max()
  assert 0 < error < 0.05


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_transformers_18899_23135_hard_rows_and_large_activations_are_finite(
  dtype,
):
  """A row of padding, a row without inputs, and a stream of 7e5.

  Rows of padding fill the last batch of an evaluation. So large a stream
  overflows float16 in released checkpoints.
  """
  model = models.build(tiny(dtype=dtype))
  params = redraw(model)
  params['token_embedder']['embedding'] *= 7e5 / 0.3
  full = pack(40, [(30, 20)])
  no_inputs = {k: v * (k[:7] != 'encoder') for k, v in full.items()}
  rows = full, {k: 0 * v for k, v in full.items()}, no_inputs
  batch = {k: np.concatenate([row[k] for row in rows]) for k in full}

  def mean_loss(params):
    logits_BLV = model.apply(params, batch)
    total, weight, _ = losses.cross_entropy(
      logits_BLV, batch['decoder_target_tokens'], batch['decoder_loss_weights']
    )
    return total / weight, logits_BLV

  result = run(jax.value_and_grad(mean_loss, has_aux=True))(params)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result))
