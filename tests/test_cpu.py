"""What is done for CPUs changes no result, and no other platform sees it."""

import jax
from jax import export
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite import losses
from t5x_lite import models
from t5x_lite import specs
from t5x_lite.nn import cpu
from t5x_lite.nn import modules
from tests import tiny

SHAPES = {
  't5': {},
  'gpt2': dict(
    encoder_layers=0,
    position=specs.Learned(length=16),
    norm=specs.LayerNorm(),
    gated=False,
    bias=True,
    scale_attention=True,
  ),
}


def transformer(**changes):
  return tiny.transformer(
    **{'encoder_layers': 1, 'decoder_layers': 1, **changes}
  )


def loss_of(spec):
  """A function of parameters, with jax.grad to be taken of it."""
  model = models.build(spec)
  batch = tiny.batch(2)

  def loss(params):
    return losses.cross_entropy(
      model.apply(params, batch),
      batch['decoder_target_tokens'],
      batch['decoder_loss_weights'],
    )[0]

  return loss, tiny.params(model)


def plainly(monkeypatch):
  """Does without all that is done for CPUs."""
  monkeypatch.setattr(cpu, 'apart', lambda *arrays: arrays)
  monkeypatch.setattr(modules, 'softmax', jax.nn.softmax)
  monkeypatch.setattr(
    modules,
    'einsum',
    lambda equation, x, y, dtype=None: jnp.einsum(
      equation, x, y, preferred_element_type=dtype
    ),
  )


@pytest.mark.parametrize(
  'dtype, within', [('float32', 2e-6), ('float64', 1e-12)]
)
@pytest.mark.parametrize('shape', SHAPES)
def test_gradients_are_those_of_the_plain_formulas(
  shape, dtype, within, monkeypatch
):
  with jax.enable_x64(dtype == 'float64'):
    loss, params = loss_of(transformer(dtype=dtype, **SHAPES[shape]))
    params = jax.tree.map(lambda x: x.astype(dtype), params)
    found = jax.jit(jax.grad(loss))(params)
    plainly(monkeypatch)
    expected = jax.jit(jax.grad(lambda p: loss(p)))(params)
  scale = max(np.abs(x).max() for x in jax.tree.leaves(expected))
  for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
    np.testing.assert_allclose(a, b, rtol=0, atol=within * scale)


@pytest.mark.parametrize('platform', ['cpu', 'tpu', 'cuda'])
def test_only_a_cpu_sees_what_is_done_for_it(platform):
  loss, params = loss_of(transformer())
  step = jax.jit(jax.grad(loss))
  text = export.export(step, platforms=[platform])(params).mlir_module()
  assert ('optimization_barrier' in text) == (platform == 'cpu')


def test_softmax_gradient():
  x, d = np.random.default_rng(0).standard_normal((2, 3, 7)).astype('f')
  found = jax.vjp(modules.softmax, x)[1](d)[0]
  expected = jax.vjp(jax.nn.softmax, x)[1](d)[0]
  np.testing.assert_allclose(found, expected, atol=1e-7)
