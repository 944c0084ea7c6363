"""Compares a model of ours with what an oracle measured, all in float64."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from t5x_lite import losses
from t5x_lite import models
from t5x_lite import optimizers
from t5x_lite import specs
from tests import systems
from tests.exact import flatten
from tests.exact import float64
from tests.exact import nest
from tests.exact import run

GOLDEN = pathlib.Path(__file__).parent / 'golden' / 'trunk'


def load(name):
  """The case of a golden file, as make_case has it."""
  with np.load(GOLDEN / f'{name}.npz', allow_pickle=False) as file:
    arrays = dict(file)
  case = {'logits': arrays.pop('logits'), 'loss': arrays.pop('loss')}
  for path, value in arrays.items():
    part, _, path = path.partition('/')
    case.setdefault(part, {})[path] = value
  return case


def loss_and_gradients(model, batch):
  """The compiled function of parameters: ((loss, logits_BLV), gradients)."""

  def loss(params):
    logits_BLV = model.apply(params, batch)
    total, weight, _ = losses.cross_entropy(
      logits_BLV,
      batch[f'{model.side}_target_tokens'],
      batch[f'{model.side}_loss_weights'].astype(jnp.float64),
    )
    return total / weight, logits_BLV

  return run(jax.value_and_grad(loss, has_aux=True))


class Steps:
  """AdamW on all parameters as two vectors: what decays, and what does not.

  It treats each number alone, and so is compiled once for all models.
  """

  room = 2**15

  def __init__(self, params):
    self.step, self.params = 0, params
    optimizer, self.update = self.compiled()
    self.state = optimizer.init(self.join(params))

  @staticmethod
  @functools.cache
  def compiled():
    sizes = systems.ADAMW
    spec = specs.AdamW(
      schedule=specs.Schedule(peak=sizes['lr'], decay='constant'),
      beta1=sizes['betas'][0],
      beta2=sizes['betas'][1],
      epsilon=sizes['eps'],
      weight_decay=sizes['weight_decay'],
    )
    axes = {'all': {'kernel': ('embed',), 'bias': ('embed',)}}
    optimizer = optimizers.build(spec, axes, systems.STEPS)
    return optimizer, run(optimizer.update)

  @classmethod
  def join(cls, tree):
    found = {'kernel': [], 'bias': []}
    for path, value in sorted(tree.items()):
      kind = 'bias' if path.endswith(('scale', 'bias')) else 'kernel'
      found[kind].append(np.ravel(value))
    joined = {kind: np.concatenate(parts) for kind, parts in found.items()}
    return {
      'all': {k: np.pad(v, (0, cls.room - len(v))) for k, v in joined.items()}
    }

  def __call__(self, grads):
    joined = self.join(grads), self.state, self.join(self.params)
    new, self.state, _ = self.update(*joined, np.int32(self.step), 0.0)
    self.step += 1
    places = dict.fromkeys(('kernel', 'bias'), 0)
    for path, value in sorted(self.params.items()):
      kind = 'bias' if path.endswith(('scale', 'bias')) else 'kernel'
      start = places[kind]
      places[kind] += value.size
      part = np.asarray(new['all'][kind][start : places[kind]])
      self.params[path] = part.reshape(value.shape)


def assert_near(found, wanted, tolerance):
  for path, value in wanted.items():
    np.testing.assert_allclose(
      found[path], value, rtol=0, atol=tolerance, err_msg=path
    )


def assert_equal(spec, case):
  """Logits, loss, gradients and some steps of AdamW equal the oracle's."""
  grads, batch = case['grads'], case['batch']
  with float64():
    model = models.build(spec)
    shapes = {path: p.shape for path, p in flatten(model.abstract).items()}
    absent = shapes.keys() - grads.keys()
    assert shapes.keys() >= grads.keys()
    assert absent <= set(systems.ABSENT)
    zeros = {path: np.zeros(shapes[path]) for path in absent}
    params = {k: v.astype(np.float64) for k, v in case['params'].items()}
    steps, measure = Steps(zeros | params), loss_and_gradients(model, batch)
    for n in range(systems.STEPS):
      (loss, logits_BLV), found = measure(nest(steps.params))
      found = flatten(found) | zeros
      if n == 0:
        valid_BL = batch[f'{model.side}_segment_ids'] > 0
        np.testing.assert_allclose(
          logits_BLV[valid_BL], case['logits'][valid_BL], rtol=0, atol=1e-9
        )
        assert abs(float(loss) - case['loss']) < 1e-10
        assert_near(found, grads, 1e-8)
      steps(found)
  assert_near(steps.params, case['after'], 1e-7)
