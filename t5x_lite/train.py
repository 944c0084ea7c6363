"""Training: the state, one step of it, and the loop around the step."""

import dataclasses
import math
import os
import signal
import time

import jax
import jax.numpy as jnp
import optax

from t5x_lite import checkpoints
from t5x_lite import data
from t5x_lite import errors
from t5x_lite import evaluate
from t5x_lite import flops
from t5x_lite import losses
from t5x_lite import models
from t5x_lite import optimizers
from t5x_lite import partitioning
from t5x_lite import record as records
from t5x_lite import reporting
from t5x_lite import storage


def init_state(model, tx, seed):
  """A fresh state: step, params and the optimizer's state."""
  params = model.init(jax.random.fold_in(jax.random.key(seed), 0))
  return {
    'step': jnp.zeros((), jnp.int32),
    'params': params,
    'opt_state': tx.init(params),
  }


def dropout_keys(seed, step, batch_size):
  """A key for each row of a step's batch."""
  key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 1), step)
  rows = jnp.arange(batch_size)
  return jax.vmap(jax.random.fold_in, (None, 0))(key, rows)


def make_train_step(run, model, tx):
  """The function (state, batch) -> (state, metrics) of a run, to be jitted."""
  rate = optimizers.learning_rate(run.optimizer.schedule, run.steps)

  def loss(params, batch, keys_B):
    total, weight, sums = losses.cross_entropy(
      model.apply(params, batch, keys_B if run.model.dropout else None),
      batch['decoder_target_tokens'],
      batch['decoder_loss_weights'],
      run.z_loss,
      run.label_smoothing,
    )
    return total, sums | {'weight': weight}

  def gradients(params, batch, keys_B):
    """Sums of gradients and metrics over the microbatches.

    Microbatch m of M is the rows m, M + m, 2M + m, ..., so that each device
    keeps its rows.
    """
    gradient = jax.grad(loss, has_aux=True)
    count = run.microbatches
    if count == 1:
      return gradient(params, batch, keys_B)

    def split(x):
      return x.reshape(-1, count, *x.shape[1:]).swapaxes(0, 1)

    def add(sums, rows):
      new = gradient(params, *rows)
      return jax.tree.map(jnp.add, sums, new), None

    rows = jax.tree.map(split, (batch, keys_B))
    first = jax.tree.map(lambda x: x[0], rows)
    shapes = jax.eval_shape(gradient, params, *first)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.scan(add, zeros, rows)[0]

  def train_step(state, batch):
    step, params = state['step'], state['params']
    keys_B = dropout_keys(run.seed, step, run.batch_size)
    grads, sums = gradients(params, batch, keys_B)
    # Everything so far is a sum over tokens. This is the one division.
    weight = jnp.maximum(sums['weight'], 1)
    grads = jax.tree.map(lambda g: g / weight, grads)
    updates, opt_state = tx.update(grads, state['opt_state'], params)
    metrics = {name: total / weight for name, total in sums.items()}
    metrics |= {
      'weight': sums['weight'],
      'grad_norm': optax.tree.norm(grads),
      'learning_rate': rate(step),
    }
    state = {
      'step': step + 1,
      'params': optax.apply_updates(params, updates),
      'opt_state': opt_state,
    }
    return state, metrics

  return train_step


@dataclasses.dataclass(frozen=True)
class Program:
  """A run's model, optimizer and step, laid out on a mesh."""

  run: object
  mesh: object
  model: object
  tx: object
  abstract_state: dict  # ShapeDtypeStructs with their shardings

  @classmethod
  def build(cls, run, mesh):
    """Checks that the run fits the mesh; allocates nothing."""
    partitioning.check_batch(mesh.shape, run.batch_size, run.microbatches)
    model = models.build(run.model)
    tx = optimizers.build(run.optimizer, model.axes, run.steps)
    shapes = jax.eval_shape(lambda: init_state(model, tx, run.seed))
    params = partitioning.shardings(shapes['params'], model.axes, mesh)
    shardings = {
      'step': jax.NamedSharding(mesh, jax.P()),
      'params': params,
      'opt_state': partitioning.state_shardings(
        shapes['opt_state'], model.abstract, model.axes, mesh
      ),
    }
    abstract = jax.tree.map(
      lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
      shapes,
      shardings,
    )
    return cls(run, mesh, model, tx, abstract)

  @property
  def shardings(self):
    return jax.tree.map(lambda x: x.sharding, self.abstract_state)

  def init(self):
    """The state before the first step, each array made where it lies."""
    # One program with the layout of the step's own output: else the first step
    # would be compiled for one layout and the second for another.
    make = lambda: init_state(self.model, self.tx, self.run.seed)
    return jax.jit(make, out_shardings=self.shardings)()

  def compile_step(self, batch):
    """The train step, compiled for batches like this one (of numpy)."""
    sharding = partitioning.batch_sharding(self.mesh)
    shapes = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
      batch,
    )
    step = jax.jit(
      make_train_step(self.run, self.model, self.tx),
      donate_argnums=0,
      out_shardings=(self.shardings, None),
    )
    return step.lower(self.abstract_state, shapes).compile()


class StopSignals:
  """Notes SIGINT and SIGTERM, so that the loop can save and leave.

  A second signal leaves at once; what was saved before stays whole.
  """

  EXIT_CODES = {
    signal.SIGINT: errors.INTERRUPTED,
    signal.SIGTERM: errors.PREEMPTED,
  }

  def __enter__(self):
    self.received = None
    self._old = {s: signal.signal(s, self._note) for s in self.EXIT_CODES}
    return self

  def __exit__(self, *_):
    for number, handler in self._old.items():
      signal.signal(number, handler)

  def _note(self, number, _):
    if self.received:
      os._exit(self.EXIT_CODES[number])
    self.received = signal.Signals(number)

  @property
  def exit_code(self):
    return self.EXIT_CODES.get(self.received, 0)


def resumable(run, record, saver, fingerprint, say):
  """The step to go on from, or None; refuses another model or other data."""
  step = saver.latest()
  if step is None:
    return None
  changes = records.compare(saver.read_record(step), record)
  if changes.refused:
    raise errors.ConfigError(
      'run differs from the one in the workdir',
      where=saver.folder,
      got='; '.join(changes.refused),
      expected='the same model, objective and data',
      fix='undo the change, or choose another --workdir',
    )
  for line in changes.told:
    say(f'changed since the last start: {line}')
  saved = saver.read_position(step)['fingerprint']
  if saved != fingerprint:
    raise errors.DataError(
      'corpus or vocabulary changed since the checkpoint',
      where=saver.folder / str(step),
      got=f'fingerprint {fingerprint[:12]}',
      expected=saved[:12],
      fix='restore the files, or choose another --workdir',
    )
  if step > run.steps:
    raise errors.ConfigError(
      'workdir is past Run.steps',
      where=saver.folder,
      got=f'Run.steps {run.steps}',
      expected=f'at least the {step} that are done',
    )
  return step


@dataclasses.dataclass
class Meter:
  """Rates since the last line of metrics."""

  run: object
  flops_per_step: tuple
  peak: float
  steps: int = 0
  real: int = 0
  places: int = 0
  targets: int = 0
  busy: float = 0.0

  def __post_init__(self):
    self.start()

  def start(self):
    self._since = time.perf_counter()

  def stop(self):
    """Ends a stretch of training; what follows is not counted."""
    self.busy += time.perf_counter() - self._since

  def count(self, batch):
    self.steps += 1
    for side in ('encoder', 'decoder'):
      segments = batch[f'{side}_segment_ids']
      self.real += int((segments > 0).sum())
      self.places += segments.size
    self.targets += int(batch['decoder_loss_weights'].sum())

  def read(self):
    """The rates under T5X's names, and a new beginning."""
    self.stop()
    seconds = self.busy / self.steps
    causal, whole = (n / seconds / self.peak for n in self.flops_per_step)
    rates = {
      'timing/seconds_per_step': seconds,
      'timing/steps_per_second': 1 / seconds,
      'timing/seqs_per_second': self.run.batch_size / seconds,
      'timing/target_tokens_per_second': self.targets / self.busy,
      'perf/tokens_per_second': self.real / self.busy,
      'perf/mfu': causal,
      'perf/mfu_whole_attention': whole,
      'data/padding_fraction': 1 - self.real / self.places,
    }
    self.steps = self.real = self.places = self.targets = 0
    self.busy = 0.0
    self.start()
    return rates


def fit(run, workdir, say=print):
  """Trains a run to its end, going on from what the workdir holds.

  Args:
    run: specs.Run.
    workdir: where checkpoints, metrics and pictures go.
    say: prints a line.

  Returns:
    The exit code: 0, or 130 or 143 if a signal ended it, after saving.

  Raises:
    ConfigError, DataError, CheckpointError, NumericError or StorageError.
  """
  workdir = storage.path(workdir)
  mesh = partitioning.make_mesh(run.mesh)
  with jax.set_mesh(mesh):
    program = Program.build(run, mesh)
    vocabulary = data.load_vocabulary(run.data)
    data.check(run, vocabulary)
    storage.make_folder(workdir)
    record = records.record(run)
    with checkpoints.Checkpoints(workdir, run.checkpoints) as saver:
      store = data.open_or_build(run.data, vocabulary)
      batches = data.Batches(run, store, vocabulary, 'train')
      begin = resumable(run, record, saver, batches.fingerprint, say)
      if begin == run.steps:
        say(f'done: all {run.steps} steps are in {workdir}')
        return 0
      storage.write_text(workdir / 'config.json', records.to_json(record))
      for path, (shape, axis) in partitioning.unsharded(
        program.model.abstract, program.model.axes, mesh
      ).items():
        say(
          f'not sharded, as the mesh does not divide it: {path} '
          f'{list(shape)} over {axis}'
        )
      if begin is None:
        position, state = {'examples': 0}, program.init()
      else:
        state, position = saver.restore(begin, program.abstract_state)
        say(f'going on from step {begin} in {workdir}')
      held_out = None
      if store.has('validation'):
        held_out = evaluate.HeldOut(
          program.model,
          data.Batches(run, store, vocabulary, 'validation'),
          vocabulary,
          mesh,
          run.batch_size,
        )
      with StopSignals() as stop:
        loop = Loop(program, saver, batches, held_out, workdir, stop, say)
        loop(state, begin or 0, position['examples'], record)
  return stop.exit_code


class Loop:
  """Steps, metrics, evaluations and saves, in the order that they fall due."""

  def __init__(self, program, saver, batches, held_out, workdir, stop, say):
    self.program, self.run = program, program.run
    self.saver, self.batches, self.held_out = saver, batches, held_out
    self.workdir, self.stop, self.say = workdir, stop, say

  def __call__(self, state, begin, examples, record):
    run = self.run
    started = time.perf_counter()
    first = self.batches.at(examples, run.batch_size)
    step_fn = self.program.compile_step(first)
    lengths = (
      first['encoder_input_tokens'].shape[1],
      first['decoder_input_tokens'].shape[1],
    )
    cost = flops.train_step(run.model, run.batch_size, *lengths)
    peak, how = flops.peak(jax.devices())
    self.say(
      f'compiled in {time.perf_counter() - started:.1f} s; a step is '
      f'{cost[0] / 1e9:,.1f} GFLOP, peak {peak / 1e9:,.0f} GFLOP/s ({how})'
    )
    meter = Meter(run, cost, peak)
    feed = data.prefetch(self.batches, examples, run.batch_size)
    with (
      reporting.Metrics(self.workdir, begin) as self.metrics,
      reporting.Progress(run.steps, begin) as self.progress,
    ):
      if begin == 0:
        self.evaluate(state, 0)
      meter.start()
      pending = None  # the last step's number and metrics, still on the device
      for step in range(begin + 1, run.steps + 1):
        examples, batch = next(feed)
        meter.count(batch)
        state, new = step_fn(
          state, partitioning.put_batch(batch, self.program.mesh)
        )
        # Reading the step before this one lets the device run on meanwhile.
        self.report(pending, meter)
        pending = step, new
        stopping = self.stop.received is not None
        last = step == run.steps or stopping
        saves = last or self.saver.should_save(step)
        every = run.evaluation.every
        measures = (every and step % every == 0) or step == run.steps
        if saves or measures:
          self.report(pending, meter)
          pending = None
          meter.stop()
          # What belongs to a step is written before the step is saved: a run
          # that goes on from there will not write it again.
          if measures:
            self.evaluate(state, step)
          if saves:
            position = {
              'examples': examples + run.batch_size,
              'fingerprint': self.batches.fingerprint,
            }
            self.saver.save(step, state, position, record)
          meter.start()
        if stopping:
          break
    if self.stop.received:
      self.say(
        f'{self.stop.received.name}: saved step {step}; '
        'the same command goes on from there'
      )

  def report(self, pending, meter):
    """Fetches a step's metrics; prints and writes them where they are due."""
    if pending is None:
      return
    step, found = pending
    found = {k: float(v) for k, v in jax.device_get(found).items()}
    if not math.isfinite(found['loss'] + found['grad_norm']):
      raise errors.NumericError(
        f'loss or gradient is not finite at step {step}',
        got=f'loss {found["loss"]}, gradient norm {found["grad_norm"]}',
        fix='lower Schedule.peak, or set Adafactor.clip_norm; the last '
        f'saved step is {self.saver.latest()}',
      )
    if step % self.run.log_every == 0 or step == self.run.steps:
      found |= meter.read()
      self.metrics.write(step, 'train', found)
      self.progress.update(step, found)

  def evaluate(self, state, step):
    if self.held_out is None:
      return
    found = self.held_out(state['params'], self.run.evaluation.examples)
    self.metrics.write(step, 'validation', found)
    self.progress.note(
      f'held out at step {step}: loss {found["loss"]:.3f}  accuracy '
      f'{found["accuracy"]:.3f}  text {found["text_loss"]:.3f}  '
      f'(unigram entropy {found["unigram_entropy"]:.3f})'
    )
