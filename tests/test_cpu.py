"""What makes a step fast on CPUs changes no result."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite import losses
from t5x_lite import models
from t5x_lite import partitioning
from t5x_lite import specs
from t5x_lite.nn import modules
from tests import tiny

SHAPES = {
  't5': dict(encoder_layers=1, decoder_layers=1),
  'gpt2': dict(
    decoder_layers=1,
    encoder_layers=0,
    position=specs.Learned(length=16),
    norm=specs.LayerNorm(),
    gated=False,
    bias=True,
    scale_attention=True,
  ),
}


def gradient(shape, dtype):
  """A function of nothing, traced anew at each call."""
  model = models.build(tiny.transformer(dtype=dtype, **SHAPES[shape]))
  batch = tiny.batch(2)
  params = jax.tree.map(lambda x: x.astype(dtype), tiny.params(model))

  def loss(params):
    return losses.cross_entropy(
      model.apply(params, batch),
      batch['decoder_target_tokens'],
      batch['decoder_loss_weights'],
    )[0]

  return lambda: jax.jit(jax.grad(lambda params: loss(params)))(params)


@pytest.mark.parametrize(
  'dtype, within', [('float32', 2e-6), ('float64', 1e-12)]
)
@pytest.mark.parametrize('shape', SHAPES)
def test_gradients_are_those_of_the_plain_formulas(
  shape, dtype, within, monkeypatch
):
  with jax.enable_x64(dtype == 'float64'):
    of = gradient(shape, dtype)
    found = of()
    monkeypatch.setattr(partitioning, 'is_one_device', lambda: False)
    monkeypatch.setattr(partitioning, 'constrain', lambda x, axes: x)
    monkeypatch.setattr(modules, 'softmax', jax.nn.softmax)
    monkeypatch.setattr(modules, 'einsum', plain_einsum)
    expected = of()
  largest = max(np.abs(x).max() for x in jax.tree.leaves(expected))
  for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
    np.testing.assert_allclose(a, b, rtol=0, atol=within * largest)


def plain_einsum(equation, x, y, dtype=None):
  return jnp.einsum(equation, x, y, preferred_element_type=dtype)


@pytest.mark.parametrize('shape', SHAPES)
def test_a_gradient_of_kernels_needs_no_transposed_copy(shape):
  """XLA makes one, slowly, where a product sums over two axes."""
  text = str(jax.make_jaxpr(gradient(shape, 'float32'))())
  assert 'dot_general' in text
  assert 'dimension_numbers=(([0, 1], [0, 1])' not in text


def test_softmax_gradient():
  x, d = np.random.default_rng(0).standard_normal((2, 3, 7)).astype('f')
  found = jax.vjp(modules.softmax, x)[1](d)[0]
  expected = jax.vjp(jax.nn.softmax, x)[1](d)[0]
  np.testing.assert_allclose(found, expected, atol=1e-7)


def test_the_right_token_is_the_first_of_the_largest():
  logits = np.array([[[1, 3, 3], [0, 0, 0], [2, 1, 5]]], 'f')
  for targets in ([[1, 0, 2]], [[2, 1, 0]]):
    sums = losses.cross_entropy(logits, np.array(targets), np.ones((1, 3), 'f'))
    expected = (logits.argmax(-1) == np.array(targets)).sum()
    assert sums[2]['accuracy'] == expected
