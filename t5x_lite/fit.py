"""The training loop: steps, metrics, evaluations and saves as they fall due."""

import contextlib
import dataclasses
import math
import signal
import time
import uuid

import jax

from t5x_lite import best
from t5x_lite import checkpoints
from t5x_lite import data
from t5x_lite import errors
from t5x_lite import evaluate
from t5x_lite import flops
from t5x_lite import infer
from t5x_lite import measures as measuring
from t5x_lite import partitioning
from t5x_lite import processes
from t5x_lite import record as records
from t5x_lite import reporting
from t5x_lite import results
from t5x_lite import storage
from t5x_lite import train
from t5x_lite import watching


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


def check_shared(workdir):
  """Refuses a workdir that is another folder in another process."""
  file = workdir / '.shared'

  def write():
    mark = uuid.uuid4().hex
    storage.write_text(file, mark)
    return mark

  if processes.count() > 1:
    mark = processes.first(write)
    seen = file.exists() and file.read_text() == mark
    processes.same(f'whether they see {file}: a workdir is shared by all', seen)


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


def fit(run, workdir, say=processes.say, step_timeout=3600):
  """Trains a run to its end, going on from what the workdir holds.

  Args:
    run: specs.Run.
    workdir: where checkpoints, metrics and pictures go.
    say: prints a line, in process 0.
    step_timeout: seconds after which a step that does not end is given up.

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
    check_shared(workdir)
    record = records.record(run)
    alone = contextlib.nullcontext()
    with (
      watching.StopSignals() as stop,
      storage.lock(workdir / 'lock') if processes.is_first() else alone,
      checkpoints.Checkpoints(workdir, run.checkpoints) as saver,
    ):
      begin = processes.first(lambda: resumable(run, record, saver, say))
      store = open_store(run.data, vocabulary, say)
      batches = data.Batches(run, store, vocabulary, 'train')
      processes.same('corpus or vocabulary', batches.fingerprint)
      if begin is not None:
        check_data(saver, begin, batches.fingerprint)
      if begin == run.steps:
        say(f'done: all {run.steps} steps are in {workdir}')
        return 0
      saved = {} if begin is None else saver.read_metrics(begin) or {}
      wanted = run.checkpoints.best
      follower = best.Best(
        wanted, saved.get('best'), wanted and saver.values(wanted)
      )
      if follower.exhausted:
        say(f'done at step {begin}: {follower}')
        return 0
      measures = measuring.Measures(
        run,
        program.model,
        store,
        vocabulary,
        mesh,
        run.evaluation.examples,
        say,
      )
      measures.check(wanted)
      if processes.is_first():
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
      loop = Loop(
        program, saver, batches, measures, follower, workdir, stop, say
      )
      stop.in_loop = True
      with watching.Watchdog(step_timeout) as loop.watchdog:
        ended_by = loop(state, begin or 0, position['examples'], record)
  return (
    watching.StopSignals.EXIT_CODES[signal.Signals[ended_by]] if ended_by else 0
  )


class Loop:
  """Steps, metrics, evaluations and saves, in the order that they fall due."""

  def __init__(
    self, program, saver, batches, measures, follower, workdir, stop, say
  ):
    self.program, self.run = program, program.run
    self.saver, self.batches = saver, batches
    self.measures, self.best = measures, follower
    self.workdir, self.stop, self.say = workdir, stop, say
    self.rows = partitioning.local_rows(program.mesh, self.run.batch_size)

  def __call__(self, state, begin, examples, record):
    """Trains from step `begin`, with that many examples consumed before.

    Returns:
      The name of the signal that ended it, or None.
    """
    run, mesh = self.run, self.program.mesh
    self.watchdog.pause()
    step_fn, self.meter = self.prepare(examples)
    feed = data.prefetch(self.batches, examples, run.batch_size, self.rows)
    first, quiet = processes.is_first(), reporting.Quiet()
    with (
      reporting.Metrics(self.workdir, begin)
      if first
      else quiet as self.metrics,
      reporting.Progress(run.steps, begin) if first else quiet as self.progress,
    ):
      if begin == 0:
        self.evaluate(state, 0)
      self.meter.start()
      self.watchdog.alive()
      pending = None  # the step before, whose metrics are still on the device
      for step in range(begin + 1, run.steps + 1):
        examples, batch = next(feed)
        batch = partitioning.put_batch(batch, mesh, run.batch_size)
        state, found = step_fn(state, batch)
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
            position = {
              'examples': examples + run.batch_size,
              'fingerprint': self.batches.fingerprint,
            }
            metrics = {'measured': measured, 'best': self.best.state()}
            self.saver.save(step, state, position, record, metrics)
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
    lengths = [
      batch[f'{side}_input_tokens'].shape[1] for side in ('encoder', 'decoder')
    ]
    cost = flops.train_step(run.model, run.batch_size, *lengths)
    peak, how = flops.peak(jax.devices())
    self.say(
      f'compiled in {seconds:.1f} s; a step is {cost[0] / 1e9:,.1f} GFLOP, '
      f'peak {peak / 1e9:,.0f} GFLOP/s ({how})'
    )
    return step_fn, Meter(run, cost, peak, run.batch_size * sum(lengths))

  def report(self, pending):
    """Fetches a step's metrics; prints and writes them where they are due."""
    if pending is None:
      return
    step, found = pending
    found = {k: float(v) for k, v in jax.device_get(found).items()}
    self.meter.count(found)
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
    """Measures what there is to measure: {name: metrics}, numbers alone."""
    found = {}
    for name in self.measures.names:
      found[name], lines = self.measures(name, state['params'])
      if lines is not None:
        settings = self.measures.settings(name)
        results.save(self.workdir, name, step, found[name], settings, lines)
    found |= self.measures.means(found)
    self.measures.check(self.run.checkpoints.best, found)
    for name, metrics in found.items():
      numbers = {k: v for k, v in metrics.items() if evaluate.is_number(v)}
      self.metrics.write(step, name, numbers)
      self.progress.note(measuring.line(name, step, metrics))
      found[name] = {k: v for k, v in numbers.items() if math.isfinite(v)}
    return found
