"""The model as a function: caches, packing, and what may see what."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite import decoding
from t5x_lite import models
from t5x_lite import specs
from tests import tiny

SHAPES = {
  't5_1_1': {},
  't5_1_0': dict(activation='relu', gated=False, tie_embeddings=True),
  'umt5': dict(position=specs.T5Bias(per_layer=True)),
  'no_position': dict(position=None),
}


@pytest.fixture(params=SHAPES)
def model_and_params(request):
  model = models.build(tiny.transformer(**SHAPES[request.param]))
  return model, tiny.params(model)


def test_cached_decoding_equals_teacher_forcing(model_and_params):
  model, params = model_and_params
  batch = tiny.batch(3, inputs=20, targets=9)
  batch['decoder_segment_ids'][:] = 1
  wanted = model.apply(params, batch)
  cache = model.start(
    params, batch['encoder_input_tokens'], batch['encoder_segment_ids'], 12
  )
  step = jax.jit(model.step)
  for n in range(9):
    logits, cache = step(params, cache, batch['decoder_input_tokens'][:, n])
    np.testing.assert_allclose(logits, wanted[:, n], atol=2e-4)


def test_scanned_layers_are_the_layers_one_by_one(model_and_params):
  """Unrolling is a matter of speed alone."""
  model, params = model_and_params
  batch = tiny.batch(2)
  unrolled = models.build(tiny.replace(model.spec, unroll=2))
  np.testing.assert_allclose(
    model.apply(params, batch), unrolled.apply(params, batch), atol=1e-5
  )


def test_strict_promotion(strict_promotion, model_and_params):
  model, params = model_and_params
  keys = jax.random.split(jax.random.key(0), 2)
  model.apply(params, tiny.batch(2), keys)


def test_dropout_masks_follow_the_key_of_the_row():
  model = models.build(tiny.transformer(dropout=0.5))
  params = tiny.params(model)
  keys = jax.random.split(jax.random.key(1), 4)
  batch = tiny.batch(4)
  apply = jax.jit(model.apply)
  whole = apply(params, batch, keys)
  rows = np.array([2, 0])
  part = apply(params, {k: v[rows] for k, v in batch.items()}, keys[rows])
  np.testing.assert_allclose(part, whole[rows], atol=1e-5)


def test_dropout_keeps_the_mean_and_the_rate():
  from t5x_lite.nn import modules

  x = jnp.ones((256, 50, 64))
  keys = jax.random.split(jax.random.key(0), 256)
  for share_length, draws in ((True, 256 * 64), (False, 256 * 64 * 50)):
    y = modules.dropout(x, 0.3, keys, 0, share_length)
    assert abs(float((y == 0).mean()) - 0.3) < 5 * (0.21 / draws) ** 0.5
    np.testing.assert_allclose(y[y > 0], 1 / 0.7, rtol=1e-6)
    assert bool((y == y[:, :1]).all()) == share_length


def brute_force_greedy(model, params, batch, length, eos):
  """Greedy decoding by running the whole model for each token."""
  size = len(batch['encoder_input_tokens'])
  tokens, done = np.zeros((size, length), np.int32), np.zeros(size, bool)
  apply = jax.jit(model.apply)
  for n in range(length):
    inputs = np.pad(tokens, ((0, 0), (1, 0)))[:, :length]
    logits = apply(
      params,
      batch
      | {
        'decoder_input_tokens': inputs,
        'decoder_segment_ids': np.ones_like(inputs),
      },
    )
    tokens[:, n] = np.where(done, 0, np.argmax(logits[:, n], -1))
    done |= tokens[:, n] == eos
  return tokens


def test_greedy_is_the_likeliest_token_each_time(model_and_params):
  model, params = model_and_params
  batch = tiny.batch(5, inputs=16)
  never_ends = brute_force_greedy(model, params, batch, 6, eos=-1)
  eos = int(never_ends[0, 2])  # so that some rows end early
  wanted = brute_force_greedy(model, params, batch, 6, eos)
  inputs = batch['encoder_input_tokens'], batch['encoder_segment_ids']
  free = np.zeros((5, 0), np.int32)
  greedy = jax.jit(decoding.greedy, static_argnums=(0, 4, 5))
  tokens, log_probs = greedy(model, params, *inputs, 6, eos, free)
  np.testing.assert_array_equal(tokens, wanted)
  after_end = np.cumsum(np.cumsum(wanted == eos, 1), 1) > 1
  assert (log_probs[after_end] == 0).all()
  assert (log_probs[~after_end] < 0).all()


def test_a_prompt_comes_first(model_and_params):
  model, params = model_and_params
  batch = tiny.batch(2, inputs=16)
  inputs = batch['encoder_input_tokens'], batch['encoder_segment_ids']
  prompt = np.array([[7, 9], [11, -1]], np.int32)
  greedy = jax.jit(decoding.greedy, static_argnums=(0, 4, 5))
  tokens, _ = greedy(model, params, *inputs, 5, 1, prompt)
  assert tokens[0, :2].tolist() == [7, 9]
  assert tokens[1, 0] == 11
