"""Measures the checkpoints of a run, those that are not measured yet."""

import dataclasses

import jax

from t5x_lite import best
from t5x_lite import checkpoints
from t5x_lite import data
from t5x_lite import errors
from t5x_lite import fit
from t5x_lite import infer
from t5x_lite import measures
from t5x_lite import processes
from t5x_lite import results
from t5x_lite import specs
from t5x_lite import storage


def saved(
  workdir,
  which=None,
  tasks=None,
  examples=None,
  batch_size=None,
  force=False,
  decoding=None,
  say=processes.say,
):
  """Measures on held-out documents and tasks, and writes what it finds.

  What was measured before by the same settings is not measured again: a call
  that was cut short goes on when it is repeated.

  Args:
    workdir: of the run.
    which: a step, 'latest' or None, 'best' or 'all'.
    tasks: names of SeqIO tasks and mixtures; None: the run's own.
    examples: at most so many of each; None: all.
    batch_size: examples at once; None: the run's.
    force: measures all anew.
    decoding: of the tasks' predictions, a spec; None: the run's.
    say: prints a line.

  Returns:
    {step: {name: metrics}}, as `results` has written them.
  """
  workdir = storage.path(workdir)
  found, run, measure, trained_on = {}, None, None, None
  with checkpoints.Checkpoints.reader(workdir) as saver:
    chosen = [best.find(saver, None if which == 'all' else which)]
    for step in processes.first(saver.steps) if which == 'all' else chosen:
      if which == 'all' and step not in processes.first(saver.steps):
        say(f'step {step} is gone meanwhile: left out')
        continue
      processes.same(f'step {step} of {workdir}', saver.fingerprint(step))
      settings = infer.read_run(saver, step)
      if settings != run:
        run = settings
        mesh, model = infer.lay_out(run)
        changes = {'tasks': tasks, 'decoding': decoding}
        measure, trained_on = _measures(
          run, model, mesh, changes, examples, batch_size, workdir, say
        )
        if processes.is_first():
          results.save_constants(workdir, measure.constants())
      if trained_on is not None:
        fit.check_data(saver, step, trained_on)
      params, found[step] = None, {}
      for name in measure.names:
        settings = {'checkpoint': saver.fingerprint(step)}
        settings |= measure.settings(name)
        metrics = results.find(workdir, name, step, settings)
        if metrics is None or force:
          if params is None:
            params = infer.restore_params(saver, step, mesh, model)
          with jax.set_mesh(mesh):
            metrics, lines = measure(name, params)
          file = results.save(workdir, name, step, metrics, settings, lines)
          say(f'measured {name} at step {step}: {file}')
        else:
          say(f'{name} at step {step} is measured already; --force to repeat')
        found[step][name] = metrics
      for name, metrics in measure.means(found[step]).items():
        results.save(workdir, name, step, metrics, {})
        found[step][name] = metrics
      results.gather(workdir)
  return found


def _measures(run, model, mesh, changes, examples, batch_size, workdir, say):
  """(what to measure with, the fingerprint of what was trained on).

  The fingerprint is None where nothing is held out of it. A run that has
  nothing to measure is refused.
  """
  changes = {k: value for k, value in changes.items() if value is not None}
  spec = dataclasses.replace(run.evaluation, **changes)
  run = dataclasses.replace(run, evaluation=spec)
  if batch_size is not None:
    run = dataclasses.replace(run, batch_size=batch_size, microbatches=1)
  vocabulary = data.load_vocabulary(run.data)
  imported = run.data.corpus == specs.IMPORTED
  stores = {} if imported else fit.open_stores(run, vocabulary, say)
  made = measures.Measures(run, model, stores, vocabulary, mesh, examples, say)
  if not made.names:
    raise errors.DataError(
      'nothing to measure',
      where=workdir,
      got='imported weights, and no --tasks'
      if imported
      else 'Data.held_out 0, and no Evaluation.tasks',
      fix='--tasks=NAMES',
    )
  if measures.HELD_OUT not in made.names:
    return made, None
  # Checkpoints tell of the rows of the training split, which may be packed.
  return made, data.Batches(run, stores, vocabulary, 'train').fingerprint
