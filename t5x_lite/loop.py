"""The training loop: steps, metrics, evaluations and saves as they fall due."""

import contextlib
import dataclasses
import math
import time

import jax

from t5x_lite import data
from t5x_lite import errors
from t5x_lite import evaluate
from t5x_lite import flops
from t5x_lite import measures as measuring
from t5x_lite import metrics
from t5x_lite import partitioning
from t5x_lite import processes
from t5x_lite import profiling
from t5x_lite import reporting
from t5x_lite import results


@dataclasses.dataclass
class Meter:
  """Rates since the last line of metrics."""

  run: object
  flops_per_step: tuple
  peak: float
  places: int  # of tokens in a batch
  steps: int = 0
  tokens: int = 0
  targets: int = 0
  busy: float = 0.0

  def __post_init__(self):
    self.start()

  def start(self):
    self._since = time.perf_counter()

  def stop(self):
    """Ends a stretch of training; what follows is not counted."""
    self.busy += time.perf_counter() - self._since

  def count(self, found):
    """Adds a step, by its metrics."""
    self.steps += 1
    self.tokens += int(found['tokens'])
    self.targets += int(found['weight'])

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
      'perf/tokens_per_second': self.tokens / self.busy,
      'perf/mfu': causal,
      'perf/mfu_whole_attention': whole,
      'data/padding_fraction': 1 - self.tokens / (self.places * self.steps),
    }
    self.steps = self.tokens = self.targets = 0
    self.busy = 0.0
    self.start()
    return rates


@dataclasses.dataclass(kw_only=True)
class Loop:
  """Steps, metrics, evaluations and saves, in the order that they fall due.

  Attributes:
    program: train.Program.
    saver: checkpoints.Checkpoints.
    batches: data.Batches of what is trained on.
    measures: measures.Measures.
    best: best.Best.
    workdir: the run directory.
    stop: watching.StopSignals.
    watchdog: watching.Watchdog.
    say: prints a line, in process 0.
    sinks: metrics.Sinks.
    window: profiling.Window, or None.
  """

  program: object
  saver: object
  batches: object
  measures: object
  best: object
  workdir: object
  stop: object
  watchdog: object
  say: object
  sinks: object
  window: object

  def __post_init__(self):
    self.run = self.program.run
    self.rows = partitioning.local_rows(self.program.mesh, self.run.batch_size)

  def __call__(self, state, begin, examples, record):
    """Trains from step `begin`, with that many examples consumed before.

    Returns:
      The name of the signal that ended it, or None.
    """
    run, mesh = self.run, self.program.mesh
    feed = data.prefetch(self.batches, examples, run.batch_size, self.rows)
    self.watchdog.pause()
    with contextlib.ExitStack() as stack:
      self.metrics = self.progress = reporting.Quiet()
      if processes.is_first():
        self.metrics = stack.enter_context(
          metrics.Metrics(self.workdir, begin, self.sinks, record)
        )
        self.progress = stack.enter_context(
          reporting.Progress(run.steps, begin)
        )
      profile = stack.enter_context(
        profiling.Profile(
          self.workdir,
          self.window if processes.is_first() else None,
          self.progress.note,
        )
      )
      step_fn, self.meter = self.prepare(examples)
      if begin == 0:
        self.evaluate(state, 0)
      self.meter.start()
      self.watchdog.alive()
      pending = None  # the step before, whose metrics are still on the device
      for step in range(begin + 1, run.steps + 1):
        examples, batch = next(feed)
        batch = partitioning.put_batch(batch, mesh, run.batch_size)
        state, found = profile.step(step, step_fn, state, batch)
        # Reading the step before this one lets the device run on meanwhile.
        self.report(pending)
        self.watchdog.alive()
        pending = step, found
        stop = processes.stop_at(step, self.stop.received)
        stopping = stop is not None and stop[0] == step
        every = run.evaluation.every
        measures = step == run.steps or (every and step % every == 0)
        saves = step == run.steps or stopping or self.saver.should_save(step)
        if measures or saves:
          self.report(pending)
          pending = measured = None
          self.meter.stop()
          self.watchdog.pause()
          # What belongs to a step is written before the step is saved: a run
          # that goes on from there will not write it again.
          if measures:
            measured = self.evaluate(state, step)
            saves |= self.best.update(step, measured) or self.best.exhausted
          if saves:
            self.watchdog.alive()  # a save may hang, too
            position = {
              'examples': examples + run.batch_size,
              'fingerprint': self.batches.fingerprint,
            }
            self.metrics.flush()
            notes = {'measured': measured, 'best': self.best.state()}
            self.saver.save(step, state, position, record, notes)
          self.meter.start()
          self.watchdog.alive()
        if stopping:
          self.progress.note(
            f'{stop[1]}: saving step {step}; the same command goes on from '
            'there'
          )
          return stop[1]
        if self.best.exhausted and step < run.steps:
          self.progress.note(f'stopping at step {step}: {self.best}')
          break
    return None

  def prepare(self, examples):
    """Compiles the step and counts what it costs: (step, Meter)."""
    run, started = self.run, time.perf_counter()
    batch = self.batches.at(examples, run.batch_size, self.rows)
    step_fn = self.program.compile_step(batch)
    seconds = time.perf_counter() - started
    widths = data.widths(run)
    cost = flops.of_run(run, widths)
    self.say(self.program.attention(widths))
    peak, how = flops.peak(jax.devices())
    self.say(
      f'compiled in {seconds:.1f} s; a step is {cost[0] / 1e9:,.1f} GFLOP, '
      f'peak {peak / 1e9:,.0f} GFLOP/s ({how})'
    )
    tokens = run.batch_size * sum(widths.values())
    return step_fn, Meter(run, cost, peak, tokens)

  def report(self, pending):
    """Fetches a step's metrics; prints and writes them where they are due."""
    if pending is None:
      return
    step, found = pending
    found = {k: float(v) for k, v in jax.device_get(found).items()}
    self.meter.count(found)
    if not math.isfinite(found['loss'] + found['grad_norm']):
      self.meet_nonfinite(step, found)
    if step % self.run.log_every == 0 or step == self.run.steps:
      found |= self.meter.read()
      self.metrics.write(step, 'train', found)
      self.progress.update(step, found)

  def meet_nonfinite(self, step, found):
    """Tells of a step that was skipped; ends the run where none may be."""
    row = found.get('skipped_in_a_row', 1)
    got = f'loss {found["loss"]}, gradient norm {found["grad_norm"]}'
    if row <= self.run.optimizer.skip_nonfinite:
      self.progress.note(f'skipped step {step}, which is not finite: {got}')
      return
    self.saver.wait()
    saved = self.saver.latest()
    kind = type(self.run.optimizer).__name__
    raise errors.NumericError(
      f'loss or gradient is not finite at step {step}'
      + (f', nor in the {row - 1:.0f} before it' if row > 1 else ''),
      got=got,
      fix=f'lower Schedule.peak, or set {kind}.clip_norm; '
      + ('no step' if saved is None else f'step {saved}')
      + ' is saved',
    )

  def evaluate(self, state, step):
    """Measures what there is to measure: {name: metrics}, numbers alone."""
    found = {}
    for name in self.measures.names:
      found[name], lines = self.measures(name, state['params'])
      if lines is not None:
        settings = self.measures.settings(name)
        results.save(self.workdir, name, step, found[name], settings, lines)
    found |= self.measures.means(found)
    self.measures.check(self.run.checkpoints.best, found)
    for name, values in found.items():
      numbers = {k: v for k, v in values.items() if evaluate.is_number(v)}
      self.metrics.write(step, name, numbers)
      self.progress.note(measuring.line(name, step, values))
      found[name] = {k: v for k, v in numbers.items() if math.isfinite(v)}
    return found
