"""What makes a step fast on CPUs changes no result."""

import mmap
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite import losses
from t5x_lite import models
from t5x_lite import partitioning
from t5x_lite import specs
from t5x_lite.nn import modules
from t5x_lite.nn import products
from tests import runs
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
    monkeypatch.setattr(modules, 'softmax', plain_softmax)
    monkeypatch.setattr(products, 'einsum', plain_einsum)
    expected = of()
  largest = max(np.abs(x).max() for x in jax.tree.leaves(expected))
  for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
    np.testing.assert_allclose(a, b, rtol=0, atol=within * largest)


def plain_softmax(x, dtype):
  return jax.nn.softmax(x).astype(dtype)


def plain_einsum(equation, x, y, dtype=None, axes=None):
  del axes
  return jnp.einsum(equation, x, y, preferred_element_type=dtype)


@pytest.mark.parametrize('shape', SHAPES)
def test_a_gradient_of_kernels_needs_no_transposed_copy(shape):
  """XLA makes one, slowly, where a product sums over two axes."""
  text = str(jax.make_jaxpr(gradient(shape, 'float32'))())
  assert 'dot_general' in text
  assert 'dimension_numbers=(([0, 1], [0, 1])' not in text


def test_softmax_gradient():
  x, d = np.random.default_rng(0).standard_normal((2, 3, 7)).astype('f')
  found = jax.vjp(lambda x: modules.softmax(x, x.dtype), x)[1](d)[0]
  expected = jax.vjp(jax.nn.softmax, x)[1](d)[0]
  np.testing.assert_allclose(found, expected, atol=1e-7)


@pytest.mark.parametrize('platform', ['cpu', 'tpu', 'gpu'])
@pytest.mark.parametrize('shape', SHAPES)
def test_no_other_platform_sees_what_is_done_for_cpus(
  shape, platform, monkeypatch
):
  monkeypatch.setattr(partitioning, 'platform', lambda: platform)
  text = str(jax.make_jaxpr(gradient(shape, 'float32'))())
  assert ('optimization_barrier' in text) == (platform == 'cpu')


@pytest.mark.parametrize(
  'equation', ['RK,KN->RN', 'RK,NK->RN', 'BHQD,BHKD->BHQK', 'BHQK,BHKD->BHQD']
)
@pytest.mark.parametrize('larger', ['RBQ', 'KNDH'])
def test_gradients_of_an_einsum_whichever_is_the_smaller(equation, larger):
  rng = np.random.default_rng(0)
  sizes = {letter: 3 + 8 * (letter in larger) for letter in 'RKNBHQD'}
  terms = equation.replace('->', ',').split(',')
  x, y, d = (
    rng.standard_normal([sizes[letter] for letter in term]) for term in terms
  )
  with jax.enable_x64(True):
    found = jax.vjp(lambda x, y: products.einsum(equation, x, y), x, y)[1](d)
    expected = jax.vjp(lambda x, y: plain_einsum(equation, x, y), x, y)[1](d)
  for a, b in zip(found, expected, strict=True):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize('size', [5, 96, 384, 4096, 32128, 50257])
def test_argmax_is_that_of_numpy(size):
  """The first of equal ones, and the first that is no number."""
  rng = np.random.default_rng(0)
  logits = rng.integers(0, 9, (4, 5, size)).astype('f')
  logits[1] = -np.inf
  np.testing.assert_array_equal(losses.argmax(logits), logits.argmax(-1))
  logits[2, :, size // 2 :] = np.nan
  logits[3, 0, 2:4] = np.inf
  logits[3, 1, 1:] = -np.inf
  found = jax.jit(losses.argmax)(logits)
  np.testing.assert_array_equal(found, logits.argmax(-1))
  assert found.dtype == np.int32
  assert losses.argmax(logits[:0]).shape == (0, 5)


def test_memory_is_kept_and_in_huge_pages():
  """Where Linux gives them to those that ask."""
  setting = pathlib.Path('/sys/kernel/mm/transparent_hugepage/enabled')
  if not setting.exists() or '[never]' in setting.read_text():
    pytest.skip('this system has no huge pages')
  script = (
    'from t5x_lite import allocator; allocator.keep_freed_memory();'
    'import numpy as np; np.ones(1 << 26, "b");'
    'print(open("/proc/self/smaps").read(), open("/proc/self/statm").read())'
  )
  said = runs.printed(script)
  huge = [int(n) for n in re.findall(r'AnonHugePages: +(\d+) kB', said)]
  resident = int(said.split()[-6]) * mmap.PAGESIZE
  assert sum(huge) * 1024 > 0.9 * 2**26
  assert 2**26 < resident < 2**28


def test_a_limit_of_addresses_is_left_to_those_who_need_them():
  script = (
    'import resource; n = 1 << 33;'
    'resource.setrlimit(resource.RLIMIT_AS, (n, n));'
    'from t5x_lite import allocator; allocator.keep_freed_memory();'
    'print(open("/proc/self/statm").read())'
  )
  said = runs.printed(script)
  assert int(said.split()[0]) * mmap.PAGESIZE < 2**30


def test_the_right_token_is_the_first_of_the_largest():
  logits = np.array([[[1, 3, 3], [0, 0, 0], [2, 1, 5]]], 'f')
  for targets in ([[1, 0, 2]], [[2, 1, 0]]):
    sums = losses.cross_entropy(logits, np.array(targets), np.ones((1, 3), 'f'))
    expected = (logits.argmax(-1) == np.array(targets)).sum()
    assert sums[2]['accuracy'] == expected
