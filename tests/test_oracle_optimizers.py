"""Live against torch, timm and transformers, in float64; see `make oracle`."""

import importlib
import importlib.util
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite import optimizers
from t5x_lite import specs

torch = pytest.importorskip('torch', reason='needs torch; run `make oracle`')
pytest.importorskip(
  'transformers', reason='needs transformers; run `make oracle`'
)
if not importlib.util.find_spec('timm'):
  pytest.skip('needs timm; run `make oracle`', allow_module_level=True)

from transformers import optimization  # noqa: E402

pytestmark = pytest.mark.oracle

STEPS = 6
STACKED = {
  'layers/kernel': ('layers', 'embed', 'mlp'),
  'layers/scale': ('layers', 'embed'),
  'table': ('vocab', 'embed'),
}
SHAPES = {
  'layers/kernel': (3, 130, 136),
  'layers/scale': (3, 130),
  'table': (20, 130),
}
# torch's tensors: a layer each, and those of ours without a stack.
ALONE = {
  f'{name}_{n}': axes[1:]
  for name, axes in STACKED.items()
  if axes[0] == 'layers'
  for n in range(3)
} | {'table': STACKED['table']}
PATTERNS = ['.*/scale.*']  # does not decay, under either layout
SCHEDULE = specs.Schedule(peak=0.1, warmup=2, decay='linear', end=0.01)


def timm_lamb(groups):
  """timm.optim.lamb without what timm itself imports, torchvision above all."""
  folder = importlib.util.find_spec('timm').submodule_search_locations[0]
  with pytest.MonkeyPatch.context() as patch:
    for name, path in (('timm', folder), ('timm.optim', f'{folder}/optim')):
      module = types.ModuleType(name)
      module.__path__ = [path]
      patch.setitem(sys.modules, name, module)
    lamb = importlib.import_module('timm.optim.lamb').Lamb
    for name in list(sys.modules):
      if name.startswith('timm.'):
        patch.delitem(sys.modules, name)
  return lamb(groups, lr=1.0, weight_decay=0.1, max_grad_norm=None)


CASES = {
  'lamb': (timm_lamb, specs.Lamb(schedule=SCHEDULE, weight_decay=0.1)),
  'adamw': (
    lambda groups: torch.optim.AdamW(groups, lr=1.0, weight_decay=0.1),
    specs.AdamW(schedule=SCHEDULE, weight_decay=0.1),
  ),
  'sgd': (
    lambda groups: torch.optim.SGD(
      [group | {'weight_decay': 0.0} for group in groups],
      lr=1.0,
      momentum=0.9,
      nesterov=True,
    ),
    specs.Sgd(schedule=SCHEDULE, momentum=0.9, nesterov=True),
  ),
  'adafactor': (
    lambda groups: optimization.Adafactor(
      groups, lr=1.0, beta1=0.9, relative_step=False, scale_parameter=False
    ),
    specs.Adafactor(schedule=SCHEDULE, parameter_scale=False, beta1=0.9),
  ),
  # Theirs scales the decay by the parameter as well, ours does not.
  'adafactor_decay': (
    lambda groups: optimization.Adafactor(
      [
        group | {'weight_decay': group.get('weight_decay', 0.1)}
        for group in groups
      ],
      lr=1.0,
      beta1=0.9,
      relative_step=False,
      scale_parameter=False,
    ),
    specs.Adafactor(
      schedule=SCHEDULE, parameter_scale=False, beta1=0.9, weight_decay=0.1
    ),
  ),
  'adafactor_scale': (
    lambda groups: optimization.Adafactor(groups, lr=1.0, relative_step=False),
    specs.Adafactor(schedule=SCHEDULE),
  ),
}


def draw(seed):
  rng = np.random.default_rng(seed)
  return {
    name: rng.uniform(0.1, 2) * rng.standard_normal(shape)
    for name, shape in SHAPES.items()
  }


def by_layer(tree):
  found = {}
  for name, x in tree.items():
    stacked = STACKED[name][0] == 'layers'
    found |= (
      {f'{name}_{n}': layer for n, layer in enumerate(x)}
      if stacked
      else {name: x}
    )
  return found


def theirs(make, params, grads):
  tensors = {
    name: torch.nn.Parameter(torch.from_numpy(x.copy()))
    for name, x in by_layer(params).items()
  }
  spared = [x for name, x in tensors.items() if 'scale' in name]
  others = [x for name, x in tensors.items() if 'scale' not in name]
  optimizer = make(
    [{'params': others}, {'params': spared, 'weight_decay': 0.0}]
  )
  rate = optimizers.learning_rate(SCHEDULE, STEPS)
  for step, grad in enumerate(grads):
    for group in optimizer.param_groups:
      group['lr'] = float(rate(step))
    layers = by_layer(grad)
    for name, tensor in tensors.items():
      tensor.grad = torch.from_numpy(layers[name].copy())
    optimizer.step()
  return {name: x.detach().numpy() for name, x in tensors.items()}


def ours(spec, axes, params, grads):
  axes = {name: axes[name] for name in params}
  optimizer = optimizers.build(spec, axes, STEPS)
  update = jax.jit(optimizer.update)
  params = jax.tree.map(jnp.asarray, params)
  state = optimizer.init(params)
  for step, grad in enumerate(grads):
    params, state, _ = update(grad, state, params, step, 0.0)
  return jax.tree.map(np.asarray, params)


@pytest.mark.parametrize('layout', ['stacked', 'alone'])
@pytest.mark.parametrize('name', CASES)
def test_optimizer_equals_a_published_one(name, layout):
  make, spec = CASES[name]
  spec = type(spec)(**vars(spec) | {'no_decay': PATTERNS})
  params, grads = draw(0), [draw(seed) for seed in range(1, STEPS + 1)]
  if name.startswith('adafactor'):  # theirs factors small matrices, too
    del params['table']
    for grad in grads:
      del grad['table']
  with jax.enable_x64(True):
    if layout == 'stacked':
      got = by_layer(ours(spec, STACKED, params, grads))
    else:
      split = [by_layer(grad) for grad in grads]
      got = ours(spec, ALONE, by_layer(params), split)
    expected = theirs(make, params, grads)
  assert got.keys() == expected.keys()
  # optax reckons how Adafactor's moments decay in float32.
  tolerance = 2e-8 if name.startswith('adafactor') else 1e-9
  for path, x in got.items():
    assert x.dtype == np.float64
    np.testing.assert_allclose(
      x, expected[path], rtol=tolerance, atol=tolerance, err_msg=path
    )
