"""Small specs and batches that many tests share."""

import contextlib
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5x_lite import data
from t5x_lite import optimizers
from t5x_lite import specs


def transformer(**changes):
  """A T5 1.1 of two layers."""
  fields = dict(
    vocab_size=128,
    encoder_layers=2,
    decoder_layers=2,
    embed_dim=32,
    mlp_dim=48,
    num_heads=4,
    head_dim=8,
  )
  return specs.Transformer(**fields | changes)


def run(model=None, **changes):
  """A run of six steps on a corpus that need not exist."""
  fields = dict(
    model=model or transformer(),
    objective=specs.SpanCorruption(),
    data=specs.Data(corpus='none', lengths={'inputs': 24}, extra_ids=20),
    optimizer=specs.Adafactor(
      schedule=specs.Schedule(peak=0.01, decay='constant')
    ),
    steps=6,
    batch_size=8,
    z_loss=1e-4,
  )
  return specs.Run(**fields | changes)


def batches(run, vocabulary, split='train'):
  """The data.Batches of a run, and what they are read from."""
  stores = {
    name: data.Stream(part, vocabulary)
    if run.data.stream
    else data.open_or_build(
      part.data, vocabulary, None, data.origin(part, vocabulary)
    )
    for name, part in data.parts(run).items()
  }
  return data.Batches(run, stores, vocabulary, split)


def batch(size=8, inputs=24, targets=8, vocab_size=128, packed=False, seed=0):
  """Random tokens with padding at the end, or two packed examples a row."""
  rng = np.random.default_rng(seed)
  found = {}
  for side, length in (('encoder', inputs), ('decoder', targets)):
    if packed:
      cut = rng.integers(2, length - 2, (size, 1))
      places = np.arange(length)[None]
      segments = np.where(places < cut, 1, 2)
      positions = np.where(places < cut, places, places - cut)
    else:
      real = rng.integers(length // 2, length + 1, (size, 1))
      segments = (np.arange(length)[None] < real).astype(int)
      positions = np.arange(length)[None] * segments
    tokens = rng.integers(3, vocab_size, (size, length)) * (segments > 0)
    found[f'{side}_segment_ids'] = segments.astype(np.int32)
    found[f'{side}_positions'] = positions.astype(np.int32)
    name = 'input' if side == 'encoder' else 'target'
    found[f'{side}_{name}_tokens'] = tokens.astype(np.int32)
  targets = found['decoder_target_tokens']
  shifted = np.pad(targets, ((0, 0), (1, 0)))[:, :-1]
  shifted *= found['decoder_positions'] > 0
  found['decoder_input_tokens'] = shifted
  weights = (found['decoder_segment_ids'] > 0).astype(np.float32)
  found['decoder_loss_weights'] = weights
  return found


def params(model, seed=0, std=0.3):
  """Parameters drawn anew, wide enough that a wrong formula shows."""
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda x: (std * rng.standard_normal(x.shape)).astype(x.dtype),
    model.abstract,
  )


def replace(spec, **changes):
  return dataclasses.replace(spec, **changes)


def state(program):
  """A state before the first step, for which nothing must be compiled."""
  found = jax.tree.map(
    lambda x: np.zeros(x.shape, x.dtype), program.abstract_state
  )
  found['params'] = params(program.model)
  return jax.tree.map(
    lambda x, s: jax.make_array_from_callback(x.shape, s, lambda i: x[i]),
    found,
    program.shardings,
  )


@contextlib.contextmanager
def kept_gradients():
  """An optimizer that changes nothing and keeps the gradients as its state."""
  keep = optax.GradientTransformation(
    init=lambda params: jax.tree.map(jnp.zeros_like, params),
    update=lambda grads, _, params: (
      jax.tree.map(jnp.zeros_like, params),
      grads,
    ),
  )
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(optimizers.OPTIMIZERS, specs.Adafactor, lambda *_: keep)
    yield
