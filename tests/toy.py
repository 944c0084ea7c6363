"""A model of a few tensors, for what goes on around a model: it compiles fast.

Two stacked layers, with the axes of a Transformer's.
"""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite import models
from tests import tiny

SHAPES = {
  'embedding': ((128, 32), ('vocab', 'embed')),
  'layers': {
    'query': {
      'kernel': ((2, 32, 4, 8), ('layers', 'embed', 'heads', 'kv')),
      'bias': ((2, 4, 8), ('layers', 'heads', 'kv')),
    },
    'out': {'kernel': ((2, 4, 8, 32), ('layers', 'heads', 'kv', 'embed'))},
    'mlp': {'kernel': ((2, 32, 48), ('layers', 'embed', 'mlp'))},
    'norm': {'scale': ((2, 32), ('layers', 'embed'))},
  },
  'norm': {'scale': ((32,), ('embed',))},
}


def pick(n):
  return jax.tree.map(
    lambda pair: pair[n], SHAPES, is_leaf=lambda x: isinstance(x, tuple)
  )


class Model:
  """Has what train.py asks of a model."""

  axes = pick(1)
  side = 'decoder'

  def __init__(self, spec):
    dtype = np.float64 if spec.dtype == 'float64' else np.float32
    self.abstract = jax.tree.map(
      lambda shape: jax.ShapeDtypeStruct(shape, dtype),
      pick(0),
      is_leaf=lambda x: isinstance(x, tuple),
    )

  def init(self, key):
    del key
    return tiny.params(self)

  def apply(self, params, batch, keys_B):
    del keys_B
    layers, x_BLE = params['layers'], params['embedding']
    x_BLE = x_BLE[batch['decoder_input_tokens']]
    for n in range(2):
      one = jax.tree.map(lambda x, n=n: x[n], layers)
      y_BLHD = jnp.einsum('ble,ehd->blhd', x_BLE, one['query']['kernel'])
      y_BLHD = jnp.tanh(y_BLHD + one['query']['bias'])
      x_BLE += jnp.einsum('blhd,hde->ble', y_BLHD, one['out']['kernel'])
      x_BLE += jnp.tanh(x_BLE @ one['mlp']['kernel']) @ one['mlp']['kernel'].T
      x_BLE = jnp.tanh(x_BLE * one['norm']['scale'])
    return (x_BLE * params['norm']['scale']) @ params['embedding'].T


@contextlib.contextmanager
def models_are_toys():
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(models, 'build', Model)
    yield
