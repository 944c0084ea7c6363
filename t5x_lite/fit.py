"""A training run: what it needs is opened, checked and handed to its loop."""

import contextlib
import json
import signal
import time

import jax

from t5x_lite import best
from t5x_lite import checkpoints
from t5x_lite import data
from t5x_lite import errors
from t5x_lite import installation
from t5x_lite import loop
from t5x_lite import measures as measuring
from t5x_lite import metrics
from t5x_lite import partitioning
from t5x_lite import preflight
from t5x_lite import pretrained
from t5x_lite import processes
from t5x_lite import record as records
from t5x_lite import specs
from t5x_lite import storage
from t5x_lite import train
from t5x_lite import watching
from t5x_lite.planning import fitting


def open_stores(run, vocabulary, say, count=None, runner=None):
  """The tokenised parts of a run's data, made if there are none.

  Args:
    run: specs.Run.
    vocabulary: its vocabulary.
    say: prints a line; told how far it is.
    count: processes that make them, and
    runner: what makes them do it, as of data.open_or_build.

  Returns:
    {part: data.Store}.
  """
  found = {}
  for name, part in data.parts(run, vocabulary).items():
    try:
      found[name] = _open_store(name, part, vocabulary, say, count, runner)
    except errors.UserError as e:
      if run.data.mixture and e.where in ('Data.corpus', 'Data.task'):
        raise e.at(f'a part of Data.mixture, {name}') from e
      raise
  return found


def _open_store(name, run, vocabulary, say, count, runner):
  if run.data.stream:
    return data.Stream(run, vocabulary)
  next_line = time.monotonic()
  built = False

  def progress(found):
    nonlocal next_line, built
    built = True
    if time.monotonic() >= next_line:
      next_line = time.monotonic() + 5
      say(f'tokenising {name}: {found}')

  store = data.open_or_build(
    run.data,
    vocabulary,
    progress,
    data.origin(run, vocabulary),
    count,
    runner,
  )
  if built:
    say(f'tokenised {name} into {store.folder}')
    for note in store.notes():
      say(note)
  return store


def resumable(run, record, saver, say):
  """The step to go on from, or None; refuses another model or objective."""
  step = saver.latest()
  if step is None:
    return None
  saved, where = saver.read_record(step), saver.folder / str(step)
  if saved.get('data', {}).get('corpus') == specs.IMPORTED:
    raise errors.ConfigError(
      'workdir holds imported weights, which have no state of an optimizer',
      where=saver.folder,
      fix='train in another --workdir, from these: '
      f'--gin_file={saver.folder.parent / "recipe.gin"}',
    )
  changes = records.compare(saved, record, where)
  if changes.refused:
    raise errors.ConfigError(
      'run differs from the one in the workdir',
      where=saver.folder,
      got='; '.join(changes.refused),
      expected='the same model, objective, data and state of the optimizer',
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


def describe(record):
  """By what a run is made, other than its settings: a dict of plain JSON."""
  return {
    'recipe': records.digest(record),
    'code': installation.digest(installation.code(data.tasks.imported)),
    'versions': installation.versions(),
    'processes': processes.count(),
    'devices': jax.device_count(),
    'device_kind': jax.devices()[0].device_kind,
  }


def fit(
  run,
  workdir,
  say=processes.say,
  sinks=metrics.DEFAULT,
  window=None,
  step_timeout=3600,
):
  """Trains a run to its end, going on from what the workdir holds.

  Args:
    run: specs.Run.
    workdir: where checkpoints, metrics and pictures go.
    say: prints a line, in process 0.
    sinks: metrics.Sinks.
    window: profiling.Window, or None.
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
    fitting.check_devices(run, mesh)
    vocabulary = data.load_vocabulary(run.data)
    data.check(run, vocabulary)
    preflight.check_workdir(workdir)
    record = records.record(run)
    alone = contextlib.nullcontext()
    with (
      watching.StopSignals() as stop,
      storage.lock(workdir / 'lock') if processes.is_first() else alone,
      checkpoints.Checkpoints(workdir, run.checkpoints) as saver,
    ):
      begin = processes.first(lambda: resumable(run, record, saver, say))
      # On the way back from a checkpoint of its own, no other counts.
      fresh = begin is None and run.start_from is not None
      start = pretrained.Pretrained(run, program.model) if fresh else None
      stores = open_stores(run, vocabulary, say)
      batches = data.Batches(run, stores, vocabulary, 'train')
      for note in batches.notes():
        say(note)
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
        stores,
        vocabulary,
        mesh,
        run.evaluation.examples,
        say,
      )
      measures.check(wanted)
      installed = describe(record)
      if processes.count() > 1:
        say(
          '{processes} processes on {devices} devices: recipe {recipe}, code '
          '{code}'.format(**installed)
        )
      if processes.is_first():
        storage.write_text(workdir / 'config.json', records.to_json(record))
        storage.write_text(
          workdir / 'installation.json', json.dumps(installed, indent=2) + '\n'
        )
        data.keep_vocabulary(run.data, vocabulary, workdir)
      for line in partitioning.unsharded(
        program.model.abstract, program.model.axes, mesh
      ):
        say(line)
      if begin is None:
        given = start and start.read(program.abstract_state['params'])
        position, state = {'examples': 0}, program.init(given)
        for line in start.notes() if start else ():
          say(line)
      else:
        state, position = saver.restore(begin, program.abstract_state)
        say(f'going on from step {begin} in {workdir}')
      stop.in_loop = True
      with watching.Watchdog(step_timeout) as watchdog:
        train_on = loop.Loop(
          program=program,
          saver=saver,
          batches=batches,
          measures=measures,
          best=follower,
          workdir=workdir,
          stop=stop,
          watchdog=watchdog,
          say=say,
          sinks=sinks,
          window=window,
        )
        ended_by = train_on(state, begin or 0, position['examples'], record)
        saver.wait()
  return (
    watching.StopSignals.EXIT_CODES[signal.Signals[ended_by]] if ended_by else 0
  )
