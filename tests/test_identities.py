"""What holds of every architecture whatever its numbers, in float64."""

import types

import jax
import numpy as np
import pytest

from t5x_lite import models
from t5x_lite import partitioning
from t5x_lite import specs
from t5x_lite import train
from tests import systems
from tests import tiny
from tests import trunk_parity
from tests.exact import flatten
from tests.exact import float64
from tests.exact import nest
from tests.exact import run

ROWS, LENGTH = 4, 16  # of all batches here, so that each model compiles once
DECODERS = [name for name, s in systems.SYSTEMS.items() if s['decoder_layers']]
PAIRS = [name for name in DECODERS if 'encoder_layers' in systems.SYSTEMS[name]]
MOVES = 1e-3  # what a change that should show moves at least


def sides(spec):
  return [
    side for side in ('encoder', 'decoder') if getattr(spec, f'{side}_layers')
  ]


def make_example(spec, seed, length, inputs=0, prefix=None):
  """An example's arrays by side and name."""
  rng, found = np.random.default_rng(seed), {}
  for side in sides(spec):
    n = length if side == sides(spec)[-1] else inputs
    rows = {
      'input_tokens': rng.integers(spec.vocab_size, size=n),
      'positions': np.arange(n),
    }
    if spec.mask == 'prefix':
      first = n // 2 if prefix is None else prefix
      rows['bidirectional_mask'] = np.arange(n) < first
    if spec.segments:
      rows['type_ids'] = rng.integers(spec.segments, size=n)
    found[side] = rows
  return found


def pack(spec, rows, junk=None):
  """A batch of rows, lists of examples; `junk` seeds what padding holds."""
  batch, rng = {}, np.random.default_rng(junk)
  for side in sides(spec):
    for name in rows[0][0][side]:
      high = spec.vocab_size if name == 'input_tokens' else 2
      filled = rng.integers(high, size=(ROWS, LENGTH)) * (junk is not None)
      batch[f'{side}_{name}'] = filled
    segments = batch[f'{side}_segment_ids'] = np.zeros((ROWS, LENGTH), int)
    for r, row in enumerate(rows):
      start = 0
      for number, example in enumerate(row, start=1):
        end = start + len(example[side]['positions'])
        segments[r, start:end] = number
        for name, values in example[side].items():
          batch[f'{side}_{name}'][r, start:end] = values
        start = end
  return {name: value.astype(np.int32) for name, value in batch.items()}


def build(spec, seed=0, params=None):
  """A model, parameters, and its compiled logits of a batch."""
  with float64():
    model = models.build(spec)
    params = params or systems.draw(model, seed)
    apply = run(model.apply)

  def logits(batch, params=params):
    with float64():
      return np.asarray(apply(params, batch))

  return types.SimpleNamespace(
    spec=spec,
    model=model,
    params=params,
    logits=logits,
    main=f'{model.side}_segment_ids',
  )


@pytest.fixture(scope='module', params=systems.SYSTEMS)
def system(request):
  return build(systems.make(request.param))


@pytest.fixture(scope='module')
def examples(system):
  sizes = [(5, 4), (6, 3), (3, 7)]
  return [
    make_example(system.spec, seed, *size) for seed, size in enumerate(sizes)
  ]


def change_tokens(spec, example, side, where=slice(None)):
  rows = dict(example[side])
  rows['input_tokens'] = rows['input_tokens'].copy()
  rows['input_tokens'][where] += 1
  rows['input_tokens'] %= spec.vocab_size
  return example | {side: rows}


# -- every system -------------------------------------------------------------


def test_packed_examples_are_as_alone(system, examples):
  batch = pack(system.spec, [examples, *([example] for example in examples)])
  got = system.logits(batch)
  for n, _ in enumerate(examples, start=1):
    np.testing.assert_allclose(
      got[0][batch[system.main][0] == n],
      got[n][batch[system.main][n] == 1],
      rtol=0,
      atol=1e-11,
    )


def test_packed_examples_change_no_bit_of_each_other(system, examples):
  spec, rows = system.spec, [[example] for example in examples]
  batch = pack(spec, [examples, *rows])
  before, segments_L = system.logits(batch)[0], batch[system.main][0]
  for n, example in enumerate(examples, start=1):
    for side in sides(spec):
      others = list(examples)
      others[n - 1] = change_tokens(spec, example, side)
      after = system.logits(pack(spec, [others, *rows]))[0]
      kept_L = (segments_L != n) & (segments_L > 0)
      np.testing.assert_array_equal(after[kept_L], before[kept_L])
      moved_L = np.abs(after - before)[segments_L == n].max(-1)
      assert moved_L.max() > MOVES


def test_megatron_486_padding_moves_nothing(system, examples):
  """Of the encoder or the decoder, whatever it holds.

  Megatron PR#486: attention to the encoder ignored its mask.
  """
  rows = [examples, *([example] for example in examples)]
  batch = pack(system.spec, rows)
  valid_BL = batch[system.main] > 0
  other = pack(system.spec, rows, junk=1)
  assert any((other[name] != batch[name]).any() for name in batch)
  np.testing.assert_array_equal(
    system.logits(other)[valid_BL], system.logits(batch)[valid_BL]
  )


@pytest.mark.parametrize('system', PAIRS, indirect=True)
def test_t5x_defect_15_what_an_example_lacks_is_nobody_elses(system, examples):
  """Without inputs its targets see none, packed or alone, and no padding.

  T5X: an example without targets left its inputs to the next one's.
  """
  no_targets, no_inputs = (
    make_example(system.spec, 9, *size) for size in ((0, 4), (5, 0))
  )
  whole = [examples[0], no_targets, no_inputs, examples[2]]
  rows = [whole, *([whole[n]] for n in (0, 2, 3))]
  batch, other = (pack(system.spec, rows, junk=junk) for junk in (None, 1))
  got, valid_BL = system.logits(batch), batch[system.main] > 0
  np.testing.assert_array_equal(system.logits(other)[valid_BL], got[valid_BL])
  packed, alone = got[0][valid_BL[0]], got[1:][valid_BL[1:]]
  np.testing.assert_allclose(packed, alone, rtol=0, atol=1e-11)


def test_each_token_is_seen_by_those_that_may(system):
  """A change shows where the mask says, and nowhere else."""
  spec, n, prefix = system.spec, 14, 7
  example = make_example(spec, 0, n, inputs=9)
  side = sides(spec)[-1]
  before = system.logits(pack(spec, [[example]] * ROWS))[0, :n]
  for place in (2, 6, 7, 11):
    other = change_tokens(spec, example, side, place)
    after = system.logits(pack(spec, [[other]] * ROWS))[0, :n]
    moved_L = np.abs(after - before).max(-1)
    if side == 'encoder':
      assert (moved_L > 0).all()
      continue
    first = 0 if spec.mask == 'prefix' and place < prefix else place
    assert (moved_L[:first] == 0).all()
    assert moved_L[first:].min() > 0
    assert moved_L[place] > MOVES


def test_positions_count_as_the_scheme_says(system):
  """Differences alone of RoPE, T5 and ALiBi; whole numbers of the others."""
  spec = system.spec
  rows = [[make_example(spec, seed, 10, inputs=9)] for seed in range(ROWS)]
  batch = pack(spec, rows)
  valid_BL = batch[system.main] > 0
  before = system.logits(batch)[valid_BL]

  def moved(shift_L):
    shifted = {
      name: value + shift_L * ('positions' in name)
      for name, value in batch.items()
    }
    return np.abs(system.logits(shifted)[valid_BL] - before).max()

  common = moved(np.full(LENGTH, 5, np.int32))
  apart = moved((5 * (np.arange(LENGTH) > 4)).astype(np.int32))
  if isinstance(spec.position, (specs.T5Bias, specs.Alibi)):
    assert common == apart == 0
  elif isinstance(spec.position, specs.Rope):
    assert common < 1e-11 < MOVES < apart
  else:
    assert min(common, apart) > MOVES


@pytest.mark.parametrize('system', DECODERS, indirect=True)
def test_cached_decoding_equals_teacher_forcing(system):
  check_decoding(system)


@pytest.mark.parametrize(
  'system', ['t5_shared', 'gpt3', 'llama_grouped'], indirect=True
)
def test_cached_decoding_as_other_platforms_scan(system, monkeypatch):
  monkeypatch.setattr(partitioning, 'platform', lambda: 'tpu')
  check_decoding(system)


def check_decoding(system):
  """Of prompts of unequal length, and inputs down to none.

  Two rows of each change places.
  """
  spec, model, prompts = system.spec, system.model, (4, 2, 1, 3)
  rows = [
    [make_example(spec, seed, 10, inputs=9 - 3 * seed, prefix=n)]
    for seed, n in enumerate(prompts)
  ]
  batch = pack(spec, rows)
  others = batch['decoder_input_tokens'].copy()
  for row, n in enumerate(prompts):
    others[row, n:] = (others[row, n:] + 1) % spec.vocab_size
  batches = batch, batch | {'decoder_input_tokens': others}
  tokens = np.stack([b['decoder_input_tokens'] for b in batches], 1)
  wanted = np.stack([system.logits(b) for b in batches], 1)
  prompt = {k: v for k, v in batch.items() if k.startswith('encoder')}
  for name in ('input_tokens', 'segment_ids'):
    padded = np.zeros((ROWS, max(prompts)), np.int32)
    for row, n in enumerate(prompts):
      padded[row, -n:] = batch[f'decoder_{name}'][row, :n]
    prompt[f'decoder_{name}'] = padded
  every = np.arange(ROWS)
  turned = np.arange(2 * ROWS) ^ 1
  with float64():
    start = run(lambda params, prompt: model.start(params, prompt, 7))
    step = run(model.step)
    got, state = start(system.params, prompt)
    got, state = np.repeat(got, 2, axis=0), model.repeat(state, 2)
    for place in np.array(prompts) + np.arange(7)[:, None]:
      right = wanted[every, :, place - 1].reshape(got.shape)
      np.testing.assert_allclose(got, right, rtol=0, atol=1e-11)
      if place.max() == 10:
        break
      state = model.reorder(state, turned)
      tokens, wanted = tokens[:, ::-1], wanted[:, ::-1]
      got, state = step(
        system.params, state, tokens[every, :, place].reshape(-1)
      )


# -- choices that are the same ------------------------------------------------


def compare(system, other, seed=5, tolerance=1e-11, prefix=None):
  """Most that two models of the same parameters differ by."""
  batches = [
    pack(
      spec,
      [[make_example(spec, seed + n, 14, 9, prefix)] for n in range(ROWS)],
    )
    for spec in (system.spec, other.spec)
  ]
  valid_BL = batches[0][system.main] > 0
  one, two = system.logits(batches[0]), other.logits(batches[1])
  return np.abs(one - two)[valid_BL].max()


def with_same_parameters(name, one, two):
  """Two models of a system, its spec changed in two ways."""
  first = build(systems.make(name, **one))
  return first, build(systems.make(name, **two), params=first.params)


@pytest.mark.parametrize('name', ['t5_lm', 'gpt2', 'llama_grouped'])
def test_a_prefix_of_the_start_token_is_a_language_model(name):
  prefix, plain = with_same_parameters(name, dict(mask='prefix'), {})
  assert compare(prefix, plain, prefix=1) < 1e-11
  assert compare(prefix, plain, prefix=0) < 1e-11
  assert compare(prefix, plain, prefix=3) > MOVES


@pytest.mark.parametrize('name', ['gpt2', 'bert'])
def test_a_window_as_long_as_the_text_is_none(name):
  wide, full = with_same_parameters(name, dict(windows=(0, 14)), {})
  assert compare(wide, full) < 1e-11
  narrow = build(systems.make(name, windows=(0, 13)), params=full.params)
  assert compare(narrow, full) > MOVES / 100


def test_layouts_of_windows_and_unrolling_are_the_same():
  pairs, blocks = with_same_parameters(
    'gpt3', {}, dict(windows=(0, 3, 0, 3), unroll=4)
  )
  assert compare(pairs, blocks) < 1e-11
  unrolled = systems.make('gpt3', unroll=3)
  assert compare(pairs, build(unrolled, params=pairs.params)) < 1e-11
  turned = build(systems.make('gpt3', windows=(3, 0)), params=pairs.params)
  assert compare(pairs, turned) > MOVES


def test_shared_stacks_have_the_sum_of_both_gradients():
  """And no parameters of an encoder; the shared ones' are transformers'."""
  case = trunk_parity.load('t5_shared')
  params, grads = case['params'], case['grads']
  assert not any('encoder/' in path for path in params)
  with float64():
    model = models.build(systems.make('t5_shared', share_stacks=False))
    paths = flatten(model.abstract)
    twice = {
      path: params[path.replace('encoder/', 'decoder/')].astype(np.float64)
      for path in paths
    }
    measure = trunk_parity.loss_and_gradients(model, case['batch'])
    (loss, _), apart = measure(nest(twice))
  apart = flatten(apart)
  assert abs(float(loss) - case['loss']) < 1e-10
  for path, wanted in grads.items():
    got = apart[path]
    mirror = path.replace('decoder/', 'encoder/')
    if mirror != path and mirror in apart:
      assert np.abs(apart[mirror]).max() > MOVES
      got = got + apart[mirror]
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-9, err_msg=path)


def test_easylm_15_easydel_5_86_layouts_of_rope_differ_by_a_permutation():
  """Pairs of halves are pairs of neighbours if heads are permuted so."""
  halves = build(systems.make('llama_grouped'))
  order = np.arange(halves.spec.head_dim).reshape(2, -1).T.ravel()
  flat = flatten(halves.params)
  for name in ('query', 'key'):
    path = f'decoder/layers/attention/{name}/kernel'
    flat[path] = flat[path][..., order]
  position = specs.Rope(theta=500.0, pairs='neighbours')
  spec = systems.make('llama_grouped', position=position)
  assert compare(halves, build(spec, params=nest(flat))) < 1e-11
  assert compare(halves, build(spec, params=halves.params)) > MOVES


def test_no_position_is_a_bias_of_zero():
  none, biased = (
    systems.make('t5_lm', position=position)
    for position in (None, specs.T5Bias())
  )
  plain = build(none)
  table = np.zeros((3, 32))
  params = nest(
    flatten(plain.params) | {'decoder/position/rel_embedding': table}
  )
  assert compare(plain, build(biased, params=params)) < 1e-11


# -- meshes -------------------------------------------------------------------

EVEN = dict(vocab_size=32, embed_dim=16, mlp_dim=24, num_heads=4, head_dim=4)


@pytest.mark.parametrize(
  'name, changes',
  [
    ('llama_grouped', dict(mask='prefix', num_kv_heads=2)),
    pytest.param(
      'gpt2', dict(windows=(0, 3)), marks=pytest.mark.parallel, id='gpt2'
    ),
    pytest.param('bert', {}, marks=pytest.mark.parallel, id='bert'),
  ],
)
def test_microbatches_on_eight_devices_have_the_gradients_of_one(name, changes):
  """A decoder's, a prefix LM's and an encoder's."""
  spec = systems.make(name, **EVEN | changes)
  counts = [13, 4, 9, 1, 7, 12, 2, 13]
  batch = systems.make_batch(spec, 0, lengths=counts)
  run_spec = tiny.run(
    spec,
    mesh=specs.Mesh(data=2, fsdp=2, tensor=2),
    microbatches=2,
    z_loss=0.0,
  )
  mesh = partitioning.make_mesh(run_spec.mesh)
  with tiny.kept_gradients(), float64(), jax.set_mesh(mesh):
    program = train.Program.build(run_spec, mesh)
    step, state = program.compile_step(batch), tiny.state(program)
    params = jax.device_get(state['params'])
    rows = partitioning.put_batch(batch, mesh, run_spec.batch_size)
    state, metrics = step(state, rows)
    got = flatten(jax.device_get(state['opt_state']['tensors']))
    loss = float(metrics['loss'])
  with float64():
    model = models.build(spec)
    (wanted, _), grads = trunk_parity.loss_and_gradients(model, batch)(params)
  assert loss == pytest.approx(float(wanted), rel=1e-6)
  for path, value in flatten(grads).items():
    error = np.linalg.norm(got[path] - value)
    assert error < 3e-7 * np.linalg.norm(value) + 1e-12, path
