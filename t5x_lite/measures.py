"""All that a run is measured by, in training and after."""

from t5x_lite import data
from t5x_lite import errors
from t5x_lite import evaluate
from t5x_lite import record

HELD_OUT = 'validation'  # what the held-out documents go by


class Measures:
  """The held-out documents and the tasks of a run.

  Attributes:
    names: of what is measured on examples of its own.
    mixtures: {name: names of its tasks}; of these, means are taken.
  """

  def __init__(self, run, model, stores, vocabulary, mesh, limit, say):
    """Reads the tasks; allocates nothing on a device.

    Args:
      run: specs.Run.
      model: models.Model.
      stores: {part: data.Store}.
      vocabulary: its vocabulary.
      mesh: of the parameters.
      limit: at most so many examples of each, or None.
      say: prints a line.

    Raises:
      ConfigError, DataError: as data.tasks.load.
    """
    self._limit, self._decoding = limit, run.evaluation.decoding
    tasks, self.mixtures = data.tasks.load(
      run.evaluation, data.feature_lengths(run), vocabulary, limit, say
    )
    self._tasks = {task.name: task for task in tasks}
    self._measure = evaluate.Tasks(
      model, tasks, vocabulary, mesh, run.batch_size, self._decoding
    )
    self.names, self._held_out = list(self._tasks), None
    if any(store.has(HELD_OUT) for store in stores.values()):
      self.names = [HELD_OUT, *self.names]
      batches = data.Batches(run, stores, vocabulary, HELD_OUT)
      self._held_out = evaluate.HeldOut(
        model, batches, vocabulary, mesh, run.batch_size
      )

  def __call__(self, name, params):
    """(metrics, a dict for each example or None) of one of `names`."""
    if name == HELD_OUT:
      return self._held_out(params, self._limit), None
    return self._measure(params, self._tasks[name])

  def settings(self, name):
    """What a result depends on besides the parameters, as plain JSON."""
    if name == HELD_OUT:
      return {
        'examples': self._held_out.num_examples(self._limit),
        'data': self._held_out.batches.fingerprint,
      }
    task = self._tasks[name]
    if not task.predicts:
      return task.settings()
    return task.settings() | {'decoding': record.record(self._decoding)}

  def constants(self):
    """{task: metrics} of one answer to all examples; of mixtures the means."""
    found = {name: task.constant() for name, task in self._tasks.items()}
    return found | self.means(found)

  def means(self, found):
    """{mixture: metrics} from {task: metrics}; see `mean` and `score`."""
    made = {}
    for name, tasks in self.mixtures.items():
      made[name] = mean([found[task] for task in tasks])
      if all(self._tasks[task].per_cent for task in tasks):
        made[name] |= score([found[task] for task in tasks])
    return made

  def check(self, best, found=None):
    """Refuses a specs.Best of what is never measured.

    Args:
      best: the spec, or None.
      found: {name: metrics} of an evaluation; before one, the metrics of tasks
        are not known.
    """
    if best is None:
      return
    known = {}
    if HELD_OUT in self.names:
      known[HELD_OUT] = evaluate.METRICS + self._held_out.class_metrics
    for name in [*self._tasks, *self.mixtures]:
      metrics = {} if found is None else found[name]
      known[name] = [
        k for k, value in metrics.items() if evaluate.is_number(value)
      ]
    name, _, metric = best.metric.partition('/')
    if name in known and (metric in known[name] or not known[name]):
      return
    names = [
      f'{name}/{metric}'
      for name, metrics in known.items()
      for metric in metrics or ['...']
    ]
    raise errors.ConfigError(
      'nothing measures Best.metric',
      got=best.metric,
      expected=f'one of {", ".join(names)}'
      if names
      else 'documents held out, or Evaluation.tasks',
      choices=names,
    )


def line(name, step, metrics):
  """What was measured, for a person."""
  told = [
    f'{metric} {value:.3f}' if isinstance(value, float) else f'{metric} {value}'
    for metric, value in metrics.items()
    if evaluate.is_number(value) and metric not in evaluate.COUNTS
  ]
  name = 'held out' if name == HELD_OUT else name
  return f'{name} at step {step}: {"  ".join(told) or "nothing to measure"}'


def own(metrics):
  """The numbers that a task's own metrics are, without those of all tasks."""
  return {
    name: value
    for name, value in metrics.items()
    if evaluate.is_number(value) and name not in evaluate.OF_ALL_TASKS
  }


def score(found):
  """A mixture in one number: the mean of its tasks, each the mean of its own.

  As of GLUE, arXiv:1804.07461. Nothing where a task has none.

  Args:
    found: the metrics of each task.
  """
  owns = [[*own(metrics).values()] for metrics in found]
  if not all(owns):
    return {}
  return {'score': sum(sum(x) / len(x) for x in owns) / len(owns)}


def mean(found):
  """Metrics of a mixture: means over its tasks of what all of them have.

  Args:
    found: the metrics of each task.
  """
  shared = [
    name
    for name in found[0]
    if all(evaluate.is_number(x.get(name)) for x in found)
  ]
  sums = {name: sum(metrics[name] for metrics in found) for name in shared}
  return {
    name: total if name in evaluate.COUNTS else total / len(found)
    for name, total in sums.items()
  }
