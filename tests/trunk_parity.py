"""Compares a model of ours with what an oracle measured."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
from test_t5_parity import flatten
from test_t5_parity import float64
from test_t5_parity import nest
from test_t5_parity import run

from t5x_lite import losses
from t5x_lite import models
from tests import systems

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


def parameters(model, found):
  """Float64 parameters of a case; what the oracle lacks is zero."""
  zeros = {
    path: np.zeros(p.shape)
    for path, p in flatten(model.abstract).items()
    if path in systems.ABSENT
  }
  params = zeros | {k: v.astype(np.float64) for k, v in found.items()}
  return nest(params)


def adamw():
  """That of the oracle: matrices decay, norms and biases do not."""
  sizes = systems.ADAMW

  def matrices(params):
    return nest(
      {path: not path.endswith(('scale', 'bias')) for path in flatten(params)}
    )

  return optax.adamw(
    sizes['lr'],
    *sizes['betas'],
    eps=sizes['eps'],
    weight_decay=sizes['weight_decay'],
    mask=matrices,
  )


def assert_equal(spec, case):
  """Logits, loss, gradients and some steps of AdamW, in float64."""
  with float64():
    model, optimizer = models.build(spec), adamw()
    side, batch, grads = model.side, case['batch'], case['grads']

    def loss(params):
      logits_BLV = model.apply(params, batch)
      total, weight, _ = losses.cross_entropy(
        logits_BLV,
        batch[f'{side}_target_tokens'],
        batch[f'{side}_loss_weights'].astype(jnp.float64),
      )
      return total / weight, logits_BLV

    def step(params, state):
      (value, logits_BLV), found = jax.value_and_grad(loss, has_aux=True)(
        params
      )
      kept = nest(
        {k: v if k in grads else 0 * v for k, v in flatten(found).items()}
      )
      updates, state = optimizer.update(kept, state, params)
      params = optax.apply_updates(params, updates)
      return (logits_BLV, value, kept), params, state

    params = parameters(model, case['params'])
    run_step, state = run(step), optimizer.init(params)
    first = None
    for _ in range(systems.STEPS):
      measured, params, state = run_step(params, state)
      first = first or measured
  logits_BLV, value, found = first
  valid_BL = batch[f'{side}_segment_ids'] > 0
  np.testing.assert_allclose(
    logits_BLV[valid_BL], case['logits'][valid_BL], rtol=0, atol=1e-9
  )
  assert abs(float(value) - case['loss']) < 1e-10
  paths = set(flatten(model.abstract))
  assert paths - set(grads) <= set(systems.ABSENT)
  assert paths >= set(grads)
  for tree, wanted, tolerance in (
    (found, grads, 1e-8),
    (params, case['after'], 1e-7),
  ):
    tree = flatten(tree)
    for path, value in wanted.items():
      np.testing.assert_allclose(
        tree[path], value, rtol=0, atol=tolerance, err_msg=path
      )
