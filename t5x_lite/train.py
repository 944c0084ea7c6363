"""The train step, and a run's program laid out on a mesh."""

import dataclasses
import functools
import os

import jax
import jax.numpy as jnp

from t5x_lite import losses
from t5x_lite import models
from t5x_lite import optimizers
from t5x_lite import partitioning
from t5x_lite.nn import kernels

# Kernels that fsdp shares out are gathered beside the products before. Of its
# own accord libtpu does so on v5e and v6e, not on v4 and v5p.
_TPU_OPTIONS = (
  'xla_enable_async_all_gather',
  'xla_tpu_enable_async_collective_fusion',
  'xla_tpu_enable_async_collective_fusion_fuse_all_gather',
)


def init_state(model, optimizer, seed, given):
  """A fresh state: step, params and the optimizer's state.

  Args:
    model: models.Model.
    optimizer: its optimizer.
    seed: of the parameters that are drawn.
    given: {path: array} of those that are not.
  """
  params = model.init(jax.random.fold_in(jax.random.key(seed), 0))
  params = jax.tree_util.tree_map_with_path(
    lambda path, x: given.get(partitioning.path_name(path), x), params
  )
  return {
    'step': jnp.zeros((), jnp.int32),
    'params': params,
    'opt_state': optimizer.init(params),
  }


def dropout_keys(seed, step, batch_size):
  """A key for each row of a step's batch."""
  key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 1), step)
  rows = jnp.arange(batch_size)
  return jax.vmap(jax.random.fold_in, (None, 0))(key, rows)


def digest(tokens_BL):
  """A checksum of a batch, uint32, that does not depend on where its rows lie.

  Runs that print the same digests have trained on the same batches.
  """
  place = jnp.arange(tokens_BL.size, dtype=jnp.uint32).reshape(tokens_BL.shape)
  mixed = (place * jnp.uint32(2654435761)) ^ (tokens_BL.astype(jnp.uint32) + 1)
  mixed = (mixed ^ (mixed >> 16)) * jnp.uint32(0x45D9F3B)
  return jnp.sum(mixed ^ (mixed >> 16), dtype=jnp.uint32)


def make_loss(run, model, optimizer):
  """The function (trained, params, batch, shares_BL, keys_B) -> (loss, sums).

  Its first argument is what gradients are taken of; `shares_BL` is as of
  losses.normalize, and `keys_B` as of `dropout_keys`.
  """

  def loss(trained, params, batch, shares_BL, keys_B):
    params = optimizer.merge(trained, params)
    keys_B = keys_B if run.model.dropout else None
    if 'labels' in batch:
      logits_BLV, classes_BC = model.classify(params, batch, keys_B)
    else:
      logits_BLV = model.apply(params, batch, keys_B)
    total, weight, sums = losses.cross_entropy(
      logits_BLV,
      batch[f'{model.side}_target_tokens'],
      batch[f'{model.side}_loss_weights'],
      run.z_loss,
      run.label_smoothing,
      shares_BL=shares_BL,
    )
    if 'labels' in batch:
      class_loss, found = losses.classes(
        classes_BC, batch['labels'], batch['label_weights']
      )
      total = run.objective.lm_weight * total + class_loss
      sums |= found
    return total, sums | {'weight': weight}

  return loss


def make_train_step(run, model, optimizer):
  """The function (state, batch) -> (state, metrics) of a run, to be jitted."""
  loss = make_loss(run, model, optimizer)

  def gradients(trained, params, batch, shares_BL, keys_B):
    """Sums of gradients and metrics over the microbatches.

    Microbatch m of M is the rows m, M + m, 2M + m, ..., so that each device
    keeps its rows.
    """
    gradient = jax.grad(loss, has_aux=True)
    count = run.microbatches
    if count == 1:
      return gradient(trained, params, batch, shares_BL, keys_B)

    def split(x):
      return x.reshape(-1, count, *x.shape[1:]).swapaxes(0, 1)

    def add(sums, rows):
      new = gradient(trained, params, *rows)
      return jax.tree.map(jnp.add, sums, new), None

    rows = jax.tree.map(split, (batch, shares_BL, keys_B))
    first = jax.tree.map(lambda x: x[0], rows)
    shapes = jax.eval_shape(gradient, trained, params, *first)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.scan(add, zeros, rows)[0]

  def train_step(state, batch):
    step, params = state['step'], state['params']
    keys_B = dropout_keys(run.seed, step, run.batch_size)
    trained = optimizer.trained(params)
    # Everything below is a sum over tokens, to be divided once, by this.
    shares_BL, divisor = losses.normalize(
      run.loss_normalizer,
      batch[f'{model.side}_loss_weights'],
      batch[f'{model.side}_segment_ids'],
    )
    if 'labels' in batch:  # their loss is a mean over examples
      weights_B = batch['label_weights']
      weights_B *= divisor / jnp.maximum(jnp.sum(weights_B), 1)
      batch = batch | {'label_weights': weights_B}
    grads, sums = gradients(trained, params, batch, shares_BL, keys_B)
    grads = jax.tree.map(lambda g: g / divisor, grads)
    weight = jnp.maximum(sums['weight'], 1)
    metrics = {
      name: total / (divisor if name.startswith('class_') else weight)
      for name, total in sums.items()
    }
    params, opt_state, found = optimizer.update(
      grads, state['opt_state'], params, step, metrics['loss']
    )
    metrics |= found | {
      'weight': sums['weight'],
      'tokens': sum(
        jnp.sum(x > 0) for name, x in batch.items() if 'segment' in name
      ),
      'data/digest': functools.reduce(
        jnp.bitwise_xor,
        (digest(x) for name, x in sorted(batch.items()) if 'tokens' in name),
      ),
    }
    state = {
      'step': step + 1,
      'params': params,
      'opt_state': opt_state,
    }
    return state, metrics

  return train_step


def compiler_options(mesh):
  """{option: value} for XLA, but what LIBTPU_INIT_ARGS sets already."""
  if mesh.devices.flat[0].platform != 'tpu':
    return {}
  given = os.environ.get('LIBTPU_INIT_ARGS', '')
  return {name: True for name in _TPU_OPTIONS if f'--{name}=' not in given}


def layout(run, mesh):
  """(model, optimizer, state) of a run, the state as shapes and shardings.

  Args:
    run: specs.Run.
    mesh: jax.sharding.Mesh, or an AbstractMesh, for which no device is needed.
  """
  model = models.build(run.model)
  optimizer = optimizers.build(run.optimizer, model.axes, run.steps)
  shapes = {
    'step': jax.ShapeDtypeStruct((), jnp.int32),
    'params': model.abstract,
    'opt_state': jax.eval_shape(optimizer.init, model.abstract),
  }
  shardings = {
    'step': partitioning.replicated(mesh),
    'params': partitioning.shardings(model.abstract, model.axes, mesh),
    'opt_state': partitioning.state_shardings(
      shapes['opt_state'], model.abstract, model.axes, mesh
    ),
  }
  abstract = jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
    shapes,
    shardings,
  )
  return model, optimizer, abstract


@dataclasses.dataclass(frozen=True)
class Program:
  """A run's model, optimizer and step, laid out on a mesh."""

  run: object
  mesh: object
  model: object
  optimizer: object
  abstract_state: dict  # ShapeDtypeStructs with their shardings

  @classmethod
  def build(cls, run, mesh):
    """Checks that the run fits the mesh; allocates nothing."""
    slices = partitioning.count_slices(mesh.devices.flat)
    partitioning.check_batch(
      mesh.shape, run.batch_size, run.microbatches, slices
    )
    kernels.check(run.model, mesh)
    model, optimizer, abstract = layout(run, mesh)
    return cls(run, mesh, model, optimizer, abstract)

  @property
  def shardings(self):
    return jax.tree.map(lambda x: x.sharding, self.abstract_state)

  def attention(self, lengths):
    """A line on what computes attention, and why.

    Args:
      lengths: tokens of a row of each stack, 'encoder' and 'decoder'.
    """
    rows = self.run.batch_size // self.run.microbatches
    return kernels.describe(self.run.model, self.mesh, rows, lengths)

  def init(self, given=None):
    """The state before the first step, each array made where it lies.

    Args:
      given: {path: array} of parameters that are known; they are used up.
    """
    # One program with the layout of the step's own output: else the first step
    # would be compiled for one layout and the second for another.
    return jax.jit(
      lambda given: init_state(
        self.model, self.optimizer, self.run.seed, given
      ),
      out_shardings=self.shardings,
      donate_argnums=0,
    )(given or {})

  def compile_step(self, batch, options=None):
    """The train step, compiled for batches of rows like these.

    Args:
      batch: arrays, or their shapes.
      options: of the compiler, beside `compiler_options`.
    """
    sharding = partitioning.batch_sharding(self.mesh)
    shapes = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(
        (self.run.batch_size, *x.shape[1:]), x.dtype, sharding=sharding
      ),
      batch,
    )
    step = jax.jit(
      make_train_step(self.run, self.model, self.optimizer),
      donate_argnums=0,
      out_shardings=(self.shardings, partitioning.replicated(self.mesh)),
    )
    asked = compiler_options(self.mesh) | (options or {})
    return step.lower(self.abstract_state, shapes).compile(asked)
