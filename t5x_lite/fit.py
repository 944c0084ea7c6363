"""The training loop: steps, metrics, evaluations and saves as they fall due."""

import dataclasses
import math
import os
import signal
import time

import jax

from t5x_lite import checkpoints
from t5x_lite import data
from t5x_lite import errors
from t5x_lite import evaluate
from t5x_lite import flops
from t5x_lite import infer
from t5x_lite import metrics
from t5x_lite import partitioning
from t5x_lite import profiling
from t5x_lite import record as records
from t5x_lite import reporting
from t5x_lite import storage
from t5x_lite import train


class StopSignals:
  """Notes SIGINT and SIGTERM, so that the loop can save and leave.

  Before the loop there is nothing to save, and a second signal will not wait
  for it: both leave at once, and what was saved before stays whole. (An
  exception could be lost, if it came while the interpreter runs a callback.)
  """

  EXIT_CODES = {
    signal.SIGINT: errors.INTERRUPTED,
    signal.SIGTERM: errors.PREEMPTED,
  }

  def __enter__(self):
    self.received, self.in_loop = None, False
    self._old = {s: signal.signal(s, self._note) for s in self.EXIT_CODES}
    return self

  def __exit__(self, *_):
    for number, handler in self._old.items():
      signal.signal(number, handler)

  def _note(self, number, _):
    if self.received or not self.in_loop:
      os._exit(self.EXIT_CODES[number])
    self.received = signal.Signals(number)

  @property
  def exit_code(self):
    return self.EXIT_CODES.get(self.received, 0)


def open_store(spec, vocabulary, say):
  """The tokenised corpus of a run, made if there is none; says how far it is.

  Args:
    spec: specs.Data.
    vocabulary: its vocabulary.
    say: prints a line.
  """
  next_line = time.monotonic()
  built = False

  def progress(tokens, share):
    nonlocal next_line, built
    built = True
    if time.monotonic() >= next_line:
      next_line = time.monotonic() + 5
      part = '' if share is None else f' ({share:.0%} of {spec.corpus})'
      say(f'tokenising: {tokens:,} tokens{part}')

  store = data.open_or_build(spec, vocabulary, progress)
  if built:
    say(f'tokenised {spec.corpus} into {store.folder}')
    for note in store.notes():
      say(note)
  return store


def keep_vocabulary(spec, workdir):
  """Copies the vocabulary into the workdir, so that it needs nothing else."""
  kept = workdir / infer.VOCABULARY
  if spec.vocabulary != 'bytes':
    # One that is there may be of a start that never saved a step.
    storage.write_bytes(kept, storage.path(spec.vocabulary).read_bytes())


def resumable(run, record, saver, say):
  """The step to go on from, or None; refuses another model or objective."""
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
  if step > run.steps:
    raise errors.ConfigError(
      'workdir is past Run.steps',
      where=saver.folder,
      got=f'Run.steps {run.steps}',
      expected=f'at least the {step} that are done',
    )
  return step


def check_data(saver, step, fingerprint):
  """Refuses other text or another vocabulary than a step was saved with."""
  saved = saver.read_position(step)['fingerprint']
  if saved != fingerprint:
    raise errors.DataError(
      'corpus or vocabulary changed since the checkpoint',
      where=saver.folder / str(step),
      got=f'fingerprint {fingerprint[:12]}',
      expected=saved[:12],
      fix='restore the files, or choose another --workdir',
    )


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


def fit(run, workdir, say=print, sinks=metrics.DEFAULT, window=None):
  """Trains a run to its end, going on from what the workdir holds.

  Args:
    run: specs.Run.
    workdir: where checkpoints, metrics and pictures go.
    say: prints a line.
    sinks: metrics.Sinks.
    window: profiling.Window, or None.

  Returns:
    The exit code: 0, or 130 or 143 if a signal ended it, after saving.

  Raises:
    ConfigError, DataError, CheckpointError, NumericError or StorageError.
  """
  workdir = storage.path(workdir)
  mesh = partitioning.make_mesh(run.mesh)
  with jax.set_mesh(mesh):
    program = train.Program.build(run, mesh)
    vocabulary = data.load_vocabulary(run.data)
    data.check(run, vocabulary)
    storage.make_folder(workdir)
    record = records.record(run)
    with (
      StopSignals() as stop,
      storage.lock(workdir / 'lock'),
      checkpoints.Checkpoints(workdir, run.checkpoints) as saver,
    ):
      begin = resumable(run, record, saver, say)
      store = open_store(run.data, vocabulary, say)
      batches = data.Batches(run, store, vocabulary, 'train')
      if begin is not None:
        check_data(saver, begin, batches.fingerprint)
      if begin == run.steps:
        say(f'done: all {run.steps} steps are in {workdir}')
        return 0
      storage.write_text(workdir / 'config.json', records.to_json(record))
      keep_vocabulary(run.data, workdir)
      for line in partitioning.unsharded(
        program.model.abstract, program.model.axes, mesh
      ):
        say(line)
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
      loop = Loop(program, saver, batches, held_out, workdir, stop, say)
      loop.sinks, loop.window = sinks, window
      stop.in_loop = True
      loop(state, begin or 0, position['examples'], record)
  return stop.exit_code


class Loop:
  """Steps, metrics, evaluations and saves, in the order that they fall due."""

  def __init__(self, program, saver, batches, held_out, workdir, stop, say):
    self.program, self.run = program, program.run
    self.saver, self.batches, self.held_out = saver, batches, held_out
    self.workdir, self.stop, self.say = workdir, stop, say
    self.sinks, self.window = metrics.DEFAULT, None

  def __call__(self, state, begin, examples, record):
    """Trains from step `begin`, with that many examples consumed before."""
    run = self.run
    feed = data.prefetch(self.batches, examples, run.batch_size)
    with (
      metrics.Metrics(self.workdir, begin, self.sinks, record) as self.metrics,
      reporting.Progress(run.steps, begin) as self.progress,
      profiling.Profile(
        self.workdir, self.window, self.progress.note
      ) as profile,
    ):
      step_fn, self.meter = self.prepare(examples)
      if begin == 0:
        self.evaluate(state, 0)
      self.meter.start()
      pending = None  # the step before, whose metrics are still on the device
      for step in range(begin + 1, run.steps + 1):
        examples, batch = next(feed)
        state, found = profile.step(
          step,
          step_fn,
          state,
          partitioning.put_batch(batch, self.program.mesh),
        )
        # Reading the step before this one lets the device run on meanwhile.
        self.report(pending)
        pending = step, batch, found
        stopping = self.stop.received is not None
        every = run.evaluation.every
        measures = step == run.steps or (every and step % every == 0)
        saves = step == run.steps or stopping or self.saver.should_save(step)
        if measures or saves:
          self.report(pending)
          pending = None
          self.meter.stop()
          # What belongs to a step is written before the step is saved: a run
          # that goes on from there will not write it again.
          if measures:
            self.evaluate(state, step)
          if saves:
            position = {
              'examples': examples + run.batch_size,
              'fingerprint': self.batches.fingerprint,
            }
            self.metrics.flush()
            self.saver.save(step, state, position, record)
          self.meter.start()
        if stopping:
          self.progress.note(
            f'{self.stop.received.name}: saving step {step}; the same command '
            'goes on from there'
          )
          break

  def prepare(self, examples):
    """Compiles the step and counts what it costs: (step, Meter)."""
    run, started = self.run, time.perf_counter()
    batch = self.batches.at(examples, run.batch_size)
    step_fn = self.program.compile_step(batch)
    seconds = time.perf_counter() - started
    cost = flops.train_step(
      run.model,
      run.batch_size,
      batch['encoder_input_tokens'].shape[1],
      batch['decoder_input_tokens'].shape[1],
    )
    peak, how = flops.peak(jax.devices())
    self.say(
      f'compiled in {seconds:.1f} s; a step is {cost[0] / 1e9:,.1f} GFLOP, '
      f'peak {peak / 1e9:,.0f} GFLOP/s ({how})'
    )
    return step_fn, Meter(run, cost, peak)

  def report(self, pending):
    """Fetches a step's metrics; prints and writes them where they are due."""
    if pending is None:
      return
    step, batch, found = pending
    self.meter.count(batch)
    found = {k: float(v) for k, v in jax.device_get(found).items()}
    if not math.isfinite(found['loss'] + found['grad_norm']):
      saved = self.saver.latest()
      raise errors.NumericError(
        f'loss or gradient is not finite at step {step}',
        got=f'loss {found["loss"]}, gradient norm {found["grad_norm"]}',
        fix='lower Schedule.peak, or set Adafactor.clip_norm; '
        + ('no step' if saved is None else f'step {saved}')
        + ' is saved',
      )
    if step % self.run.log_every == 0 or step == self.run.steps:
      found |= self.meter.read()
      self.metrics.write(step, 'train', found)
      self.progress.update(step, found)

  def evaluate(self, state, step):
    """Measures the held-out documents, if there are any."""
    if self.held_out is None:
      return
    found = self.held_out(state['params'], self.run.evaluation.examples)
    self.metrics.write(step, 'validation', found)
    self.progress.note(
      f'held out at step {step}: loss {found["loss"]:.3f}  accuracy '
      f'{found["accuracy"]:.3f}  text {found["text_loss"]:.3f}  '
      f'(unigram entropy {found["unigram_entropy"]:.3f})'
    )
