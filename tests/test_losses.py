"""The loss against numpy in float64, written out by its definition."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite import losses
from t5x_lite import partitioning
from t5x_lite import train
from tests import tiny
from tests import toy

pytestmark = pytest.mark.usefixtures('strict_promotion')


def draw(seed=0, scale=3.0):
  """Logits [2, 5, 7], targets and weights, some of them 0."""
  rng = np.random.default_rng(seed)
  logits = (scale * rng.standard_normal((2, 5, 7))).astype(np.float32)
  targets = rng.integers(0, 7, (2, 5)).astype(np.int32)
  weights = np.array([[1, 1, 0, 1, 1], [0, 1, 1, 1, 0]], np.float32)
  return logits, targets, weights


def by_hand(logits, targets, weights, z_loss, smoothing):
  """Sums over tokens of (loss, cross-entropy, z-loss, accuracy)."""
  sums = np.zeros(4)
  for at in np.ndindex(targets.shape):
    x = logits[at].astype(np.float64)
    log_z = np.log(np.sum(np.exp(x)))
    share = np.full(len(x), smoothing / (len(x) - 1))
    share[targets[at]] = 1 - smoothing
    some = share[share > 0]
    # T5X subtracts the entropy of the smoothed targets.
    cross = -np.sum(share * (x - log_z)) + np.sum(some * np.log(some))
    z = z_loss * log_z**2
    right = float(np.argmax(x) == targets[at])
    sums += weights[at] * np.array([cross + z, cross, z, right])
  return sums


@pytest.mark.parametrize('smoothing', [0.0, 0.1, 0.6])
@pytest.mark.parametrize('z_loss', [0.0, 1e-4, 0.5])
def test_equals_its_definition(z_loss, smoothing):
  arrays = draw()
  loss, weight, sums = losses.cross_entropy(*arrays, z_loss, smoothing)
  names = 'loss', 'cross_ent_loss', 'z_loss', 'accuracy'
  assert set(sums) == set(names)
  np.testing.assert_allclose(
    [sums[name] for name in names],
    by_hand(*arrays, z_loss, smoothing),
    rtol=1e-5,
    atol=1e-6,
  )
  assert loss == sums['loss']
  assert weight == 7


@pytest.mark.parametrize('z_loss, smoothing', [(0.5, 0.0), (0.5, 0.1)])
def test_gradient(z_loss, smoothing):
  """softmax - targets, and of the z-loss 2 z log(Z) softmax."""
  logits, targets, weights = draw(1)
  got = jax.grad(
    lambda x: losses.cross_entropy(x, targets, weights, z_loss, smoothing)[0]
  )(jnp.asarray(logits))
  x = logits.astype(np.float64)
  total = np.exp(x).sum(-1, keepdims=True)
  softmax = np.exp(x) / total
  shares = np.where(
    np.arange(7) == targets[..., None], 1 - smoothing, smoothing / 6
  )
  wanted = softmax - shares + 2 * z_loss * np.log(total) * softmax
  np.testing.assert_allclose(got, weights[..., None] * wanted, atol=1e-5)


def test_sums_not_means():
  """Two halves add up to the whole, so that one division suffices."""
  arrays = draw(2)
  whole = losses.cross_entropy(*arrays, 0.1, 0.1)
  halves = [
    losses.cross_entropy(*(x[n : n + 1] for x in arrays), 0.1, 0.1)
    for n in (0, 1)
  ]
  added = jax.tree.map(jnp.add, *halves)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), whole, added
  )


def test_tokens_of_weight_zero_do_not_count():
  logits, targets, weights = draw(3)
  hidden = weights == 0
  other = np.where(hidden[..., None], 1e6, logits).astype(np.float32)
  moved = np.where(hidden, (targets + 1) % 7, targets).astype(np.int32)
  a = losses.cross_entropy(logits, targets, weights, 0.1, 0.1)
  b = losses.cross_entropy(other, moved, weights, 0.1, 0.1)
  jax.tree.map(np.testing.assert_array_equal, a, b)
  zero = losses.cross_entropy(logits, targets, 0 * weights, 0.1, 0.1)
  assert not any(jax.tree.leaves(zero))


def test_a_perfect_prediction_of_smoothed_targets_costs_nothing():
  targets = np.array([[2]], np.int32)
  shares = np.full((1, 1, 5), 0.3 / 4, np.float32)
  shares[0, 0, 2] = 0.7
  _, _, sums = losses.cross_entropy(
    np.log(shares), targets, np.ones((1, 1), np.float32), label_smoothing=0.3
  )
  assert abs(sums['cross_ent_loss']) < 1e-6
  assert sums['accuracy'] == 1


@pytest.mark.parametrize('sign', [1, -1])
def test_huge_logits_stay_finite(sign):
  logits, targets, weights = draw(4)
  logits = sign * logits + sign * np.float32(1e9)

  def loss(x):
    return losses.cross_entropy(x, targets, weights, 1e-4, 0.1)[0]

  value, grad = jax.value_and_grad(loss)(jnp.asarray(logits))
  assert np.isfinite(value)
  assert np.isfinite(grad).all()


def test_huge_logits_are_right():
  """No difference of large sums: t5's released models reach 1e4."""
  logits = np.array([[[4e4, 1e4, -2e4]]], np.float32)
  one = np.ones((1, 1), np.float32)
  for target, wanted in ((0, 0.0), (1, 3e4), (2, 6e4)):
    loss, _, _ = losses.cross_entropy(
      logits, np.full((1, 1), target, np.int32), one
    )
    np.testing.assert_allclose(loss, wanted, rtol=1e-6)


# -- what the sum is divided by -----------------------------------------------

NORMALIZERS = [
  'NUM_REAL_TARGET_TOKENS',
  'NUM_TOTAL_TARGET_TOKENS',
  'AVERAGE_PER_SEQUENCE',
  'NONE',
  233472.0,
]


def means_by_sequence(x, weights, segments):
  """The mean of each sequence that has tokens that count, packed or not."""
  found = []
  for row, weight, ids in zip(x, weights, segments, strict=True):
    for n in range(1, ids.max() + 1):
      counts = weight * (ids == n)
      if counts.any():
        found.append((row * counts).sum() / counts.sum())
  return found


def normalized(normalizer, x, weights, segments):
  """T5X's loss of token losses, by hand."""
  if normalizer == 'AVERAGE_PER_SEQUENCE':
    return np.mean(means_by_sequence(x, weights, segments))
  return (x * weights).sum() / {
    'NUM_REAL_TARGET_TOKENS': weights.sum(),
    'NUM_TOTAL_TARGET_TOKENS': weights.size,
    'NONE': 1,
  }.get(normalizer, normalizer)


def packed(seed=7):
  """(losses, weights, segment ids) [8, 12]: rows that differ in all of them."""
  rng = np.random.default_rng(seed)
  segments = np.sort(rng.integers(0, 4, (8, 12)))[:, ::-1]
  segments = np.where(
    segments, segments.max(1, keepdims=True) + 1 - segments, 0
  )
  # Ids from 1 without gaps, as rows are packed; some inputs do not count.
  segments = np.stack(
    [np.unique(row, return_inverse=True)[1] for row in segments]
  )
  weights = (segments > 0) * rng.integers(0, 2, (8, 12))
  weights[0] = segments[0] > 0
  weights[3] = 0
  return rng.uniform(1, 5, (8, 12)), weights.astype(float), segments


@pytest.mark.parametrize('normalizer', NORMALIZERS)
@pytest.mark.parametrize('microbatches', [1, 4])
def test_levanter_842_t5x_defect_2_normalizers(normalizer, microbatches):
  """Add up over microbatches, whose tokens that count differ in number."""
  x, weights, segments = packed()
  total = 0.0
  with jax.enable_x64(True):
    shares, divisor = losses.normalize(
      normalizer, jnp.asarray(weights), jnp.asarray(segments)
    )
    for n in range(microbatches):
      part = slice(n, None, microbatches)
      share = 1.0 if shares is None else shares[part]
      total += jnp.sum(x[part] * weights[part] * share)
    got = total / divisor
  expected = normalized(normalizer, x, weights, segments)
  assert float(got) == pytest.approx(expected, rel=1e-12)


@functools.cache
def step_gradients(normalizer, microbatches, num_devices=1):
  """(metrics, gradients) of a train step of the toy model, in float64."""
  run = tiny.run(
    tiny.transformer(dtype='float64'),
    batch_size=32,
    microbatches=microbatches,
    loss_normalizer=normalizer,
  )
  batch = tiny.batch(32, packed=True)
  batch['decoder_loss_weights'][::4] *= np.arange(8) % 2  # uneven microbatches
  mesh = partitioning.make_mesh(run.mesh, jax.devices()[:num_devices])
  with (
    toy.models_are_toys(),
    tiny.kept_gradients(),
    jax.enable_x64(True),
    jax.numpy_dtype_promotion('standard'),
    jax.numpy_rank_promotion('allow'),
    jax.set_mesh(mesh),
  ):
    program = train.Program.build(run, mesh)
    step = program.compile_step(batch)
    state, metrics = step(
      tiny.state(program), partitioning.put_batch(batch, mesh, 32)
    )
  grads = jax.tree.leaves(jax.device_get(state['opt_state']['tensors']))
  return metrics, np.concatenate([x.ravel() for x in grads]), batch


@pytest.mark.parametrize('normalizer', NORMALIZERS)
def test_levanter_842_t5x_defect_2_gradients_of_normalizers(normalizer):
  """T5X: cosine 0.82 and a norm 4.7 times too large with four microbatches."""
  metrics, whole, batch = step_gradients(normalizer, 1)
  more, parts, _ = step_gradients(normalizer, 4, num_devices=8)
  np.testing.assert_allclose(parts, whole, rtol=1e-9, atol=1e-12)
  # What is reported is the mean of tokens, whatever it is trained on.
  weights = batch['decoder_loss_weights']
  for found in (metrics, more):
    assert found['weight'] == weights.sum()
    assert found['loss'] == pytest.approx(float(metrics['loss']), rel=1e-9)
  assert set(metrics) == set(more)
  assert 'divisor' not in metrics
  mean, plain, _ = step_gradients('NUM_REAL_TARGET_TOKENS', 1)
  assert found['loss'] == pytest.approx(float(mean['loss']), rel=1e-9)
  if normalizer != 'AVERAGE_PER_SEQUENCE':
    factor = normalized(normalizer, 1, weights, None)
    np.testing.assert_allclose(whole, factor * plain, rtol=1e-9, atol=1e-12)
  else:
    assert abs(whole @ plain) < 0.999 * np.linalg.norm(whole) * np.linalg.norm(
      plain
    )


def test_a_batch_without_a_token_that_counts_divides_by_one():
  weights, segments = np.zeros((2, 4), np.float32), np.zeros((2, 4), np.int32)
  for normalizer in NORMALIZERS[:3]:
    shares, divisor = losses.normalize(normalizer, weights, segments)
    assert shares is None or np.isfinite(shares).all()
    assert divisor >= 1
