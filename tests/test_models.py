"""The model as a function: caches, packing, and what may see what."""

import functools
import types

from flax import nnx
import jax
import numpy as np
import pytest

from t5x_lite import decoding
from t5x_lite import losses
from t5x_lite import models
from t5x_lite import specs
from tests import systems
from tests import tiny

SHAPES = {
  't5_1_1': {},
  't5_1_0': dict(activation='relu', gated=False, tie_embeddings=True),
  'umt5': dict(position=specs.T5Bias(per_layer=True)),
  'no_position': dict(position=None),
}
ROWS, LENGTH = 4, 8  # of all batches here, so that each is compiled once
NUM_IDS = 120  # of the vocabulary, of 128 rows of the table
MOST_PREFIX = 3  # tokens that a sequence may have to begin with


@pytest.fixture(scope='module', params=SHAPES)
def system(request):
  """A model, its parameters, a batch, and both ways to run it, compiled."""
  model = models.build(tiny.transformer(**SHAPES[request.param]))
  batch = tiny.batch(ROWS, inputs=16, targets=LENGTH)
  params = tiny.params(model)
  decode = jax.jit(
    functools.partial(decoding.decode, model),
    static_argnames=('spec', 'length', 'num_ids'),
  )

  def greedy(eos_id, prefixes=None, params=params):
    rows = [row[row > 0] for row in batch['encoder_input_tokens']]
    tokens, log_probs, _ = decode(
      params,
      decoding.prompts.batch(model.spec, rows, 16, 0, prefixes),
      specs.Greedy(),
      LENGTH,
      NUM_IDS,
      eos_id,
    )
    return np.asarray(tokens[:, 0]), np.asarray(log_probs[:, 0])

  apply = jax.jit(model.apply)

  def teacher_forced(targets, params=params):
    """Log probabilities [B, L, V] of each token after these before it."""
    shape = targets.shape
    decoder = {
      'decoder_input_tokens': np.pad(targets, ((0, 0), (1, 0)))[:, :-1],
      'decoder_segment_ids': np.ones(shape, np.int32),
      'decoder_positions': np.broadcast_to(np.arange(shape[1]), shape),
    }
    return np.asarray(jax.nn.log_softmax(apply(params, batch | decoder)))

  return types.SimpleNamespace(
    model=model,
    params=params,
    batch=batch,
    greedy=greedy,
    teacher_forced=teacher_forced,
  )


def brute_force_greedy(system, eos, prefixes=((),) * ROWS):
  """Greedy decoding by running the whole model for each token."""
  rows = [[] for _ in range(ROWS)]
  for n in range(LENGTH):
    before = np.zeros((ROWS, LENGTH + MOST_PREFIX), np.int32)
    for row, prefix, tokens in zip(before, prefixes, rows):
      row[: len(prefix) + n] = [*prefix, *tokens]
    log_probs = system.teacher_forced(before)[..., :NUM_IDS]
    for row, prefix, tokens in zip(log_probs, prefixes, rows):
      done = eos in tokens
      tokens.append(0 if done else int(np.argmax(row[len(prefix) + n])))
  return np.array(rows)


@pytest.mark.parametrize('name', systems.SYSTEMS)
def test_shapes_are_those_of_what_is_drawn(name):
  model = models.build(systems.make(name, dtype='float32'))
  assert jax.eval_shape(model.init, jax.random.key(0)) == model.abstract


def test_greedy_is_the_likeliest_token_each_time(system):
  never_ends = brute_force_greedy(system, eos=-1)
  # So that a row ends early, and one that this token is not in does not.
  eos = int(never_ends[0, 2])
  wanted = brute_force_greedy(system, eos)
  tokens, log_probs = system.greedy(eos)
  np.testing.assert_array_equal(tokens, wanted)
  after_end = np.cumsum(np.cumsum(wanted == eos, 1), 1) > 1
  assert after_end[0, 3:].all()
  assert (tokens[after_end] == 0).all()
  assert (log_probs[after_end] == 0).all()
  assert (log_probs[~after_end] < 0).all()


def test_sequences_go_on_from_their_prefixes(system):
  prefixes = [[7, 9], [11], [], [5, 5, 6]]
  tokens, _ = system.greedy(-1, prefixes)
  np.testing.assert_array_equal(
    tokens, brute_force_greedy(system, -1, prefixes)
  )


@pytest.mark.parametrize('system', ['t5_1_0'], indirect=True)
def test_rows_past_the_vocabulary_are_never_chosen(system):
  """They only pad the table, and no vocabulary can say what they mean."""
  free, _ = system.greedy(-1)
  table = system.params['token_embedder']['embedding'].copy()
  table[127] = 50 * table[free[0, 0]]  # the likeliest by far, logits are tied
  params = {**system.params, 'token_embedder': {'embedding': table}}
  wanted = system.teacher_forced(free, params)[0, 0]
  assert np.argmax(wanted) == 127
  tokens, log_probs = system.greedy(-1, params=params)
  assert (tokens < NUM_IDS).all()
  assert tokens[0, 0] == free[0, 0]
  # The probability is of the whole table, as in training.
  np.testing.assert_allclose(log_probs[0, 0], wanted[free[0, 0]], atol=1e-4)


@pytest.mark.parametrize('system', ['t5_1_1'], indirect=True)
def test_unrolling_is_a_matter_of_speed_alone(system):
  unrolled = models.build(tiny.replace(system.model.spec, unroll=2))
  np.testing.assert_allclose(
    jax.jit(unrolled.apply)(system.params, system.batch),
    jax.jit(system.model.apply)(system.params, system.batch),
    atol=1e-5,
  )


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('shape', SHAPES)
def test_strict_promotion(strict_promotion, shape, dtype):
  """Tracing is enough: no dtype or rank is promoted unsaid."""
  spec = tiny.transformer(**SHAPES[shape], dtype=dtype, dropout=0.1)
  model = models.build(spec)
  batch = tiny.batch(2)

  def loss(params, batch, keys):
    return losses.cross_entropy(
      model.apply(params, batch, keys),
      batch['decoder_target_tokens'],
      batch['decoder_loss_weights'],
      z_loss=1e-4,
      label_smoothing=0.1,
    )[0]

  keys = jax.random.split(jax.random.key(0), 2)
  grads = jax.eval_shape(jax.grad(loss), model.abstract, batch, keys)
  assert grads == model.abstract
  prompts = decoding.prompts.batch(spec, [[3, 4], [5]], 16, 0)
  tokens, log_probs, _ = jax.eval_shape(
    lambda params, prompts: decoding.decode(
      model, params, prompts, specs.Greedy(), 5, 100, 1
    ),
    model.abstract,
    prompts,
  )
  assert (tokens.dtype, log_probs.dtype) == (np.int32, np.float32)


def test_dropout_masks_follow_the_key_of_the_row():
  model = models.build(tiny.transformer(dropout=0.5))
  params, batch = tiny.params(model), tiny.batch(ROWS)
  keys = jax.random.split(jax.random.key(1), ROWS)
  apply = jax.jit(model.apply)
  whole = apply(params, batch, keys)
  rows = np.array([2, 0, 3, 1])
  moved = apply(params, {k: v[rows] for k, v in batch.items()}, keys[rows])
  np.testing.assert_allclose(moved, whole[rows], atol=1e-5)
  other = apply(params, batch, keys[rows])
  assert (np.abs(other - whole).max((1, 2)) > 0.1).all()


def test_both_modes_of_nnx_give_the_same():
  """Flax traverses modules as graphs or as trees; `NNX_GRAPH_MODE` chooses."""
  batch, spec = tiny.batch(2), tiny.transformer()
  found = []
  for as_graph in (True, False):
    with nnx.set_graph_mode(as_graph):
      model = models.build.__wrapped__(spec)
      found.append((model.apply(tiny.params(model), batch), model.axes))
  np.testing.assert_array_equal(found[0][0], found[1][0])
  assert found[0][1] == found[1][1]
