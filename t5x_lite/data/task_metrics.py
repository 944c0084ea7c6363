"""The metrics of a SeqIO task, computed as SeqIO's own Evaluator does."""

import contextlib
import dataclasses
import functools
import importlib.util

import numpy as np

from t5x_lite import errors
from t5x_lite.data import sources


def of(task):
  """[(what it asks of the model, metric), ...] of a task."""
  try:
    metrics = task.metric_objs
  except ValueError as e:
    raise errors.ConfigError(
      'metric of a task asks for what there is not',
      where=task.name,
      got=str(e).rpartition('Got: ')[2],
      expected='(targets, predictions) or (targets, scores)',
    ) from e
  for function in task.metric_fns:
    check_needs(function, task.name)
  found = []
  for metric in metrics:
    kind = metric.model_output_type.name
    if kind not in ('PREDICTION', 'SCORE'):
      raise errors.ConfigError(
        'metric of a task asks for what there is not',
        where=task.name,
        got=kind.lower(),
        expected='prediction or score',
      )
    found.append((kind, metric))
  return found


def check_needs(function, name):
  """Refuses a built-in metric whose package is not installed."""
  package = getattr(function, 'needs', None)
  if package and importlib.util.find_spec(package) is None:
    raise errors.ConfigError(
      'a metric needs a package that is not installed',
      where=name,
      got=package,
      fix="pip install 't5x_lite[tasks]'",
    )


def compute(metric, task, examples, output):
  """{name: value} of one metric, as plain JSON.

  Args:
    metric: of `of`.
    task: seqio.Task.
    examples: as SeqIO makes them.
    output: what it asks of the model, for each example.

  Raises:
    errors.DataError: a function of the user's own failed.
  """
  seqio, _ = sources.libraries()
  try:
    made = metric.from_model_output(
      examples, output, task.output_features, 'targets'
    )
    if isinstance(made, seqio.metrics.CollectingMetric):
      found, _ = made.actual_compute(examples, task.output_features, 'targets')
    else:
      found = made.compute()
    return {name: plain(value) for name, value in found.items()}
  except errors.UserError:
    raise
  # The user's own functions raise what they like.
  except (Exception, SystemExit) as e:
    raise errors.DataError(
      'a metric or postprocessing of a task failed',
      where=task.name,
      got=f'{type(e).__name__}: {e}',
      fix='mend it; --debug shows where',
    ) from e


def constant(metrics, task, examples, answer):
  """What metrics of predictions say of one answer to all examples.

  With the most frequent target it is the least that is to be beaten. What can't
  be told of it is left out.

  Args:
    metrics: as `of` gives them.
    task: seqio.Task.
    examples: as SeqIO makes them.
    answer: token ids.
  """
  predictions_NL = np.tile(np.array(answer, np.int32), (len(examples), 1))
  found = {}
  for kind, metric in metrics:
    if kind == 'PREDICTION':
      with contextlib.suppress(errors.DataError):
        found |= compute(metric, task, examples, predictions_NL)
  return found


@functools.singledispatch
def plain(value):
  """A value of a user's own function as plain JSON; text where it is none."""
  if dataclasses.is_dataclass(value):  # seqio.metrics.Scalar, Text, ...
    names = [field.name for field in dataclasses.fields(value)]
    if len(names) == 1:
      return plain(getattr(value, names[0]))
    return {name: plain(getattr(value, name)) for name in names}
  if hasattr(value, 'tolist'):  # numpy's and JAX's arrays and numbers
    return plain(value.tolist())
  return value if value is None else str(value)


@plain.register(bool)
@plain.register(int)
@plain.register(float)
@plain.register(str)
def _(value):
  return value


@plain.register
def _(value: bytes):
  return value.decode(errors='replace')


@plain.register(list)
@plain.register(tuple)
def _(value):
  return [plain(item) for item in value]


@plain.register
def _(value: dict):
  return {str(name): plain(item) for name, item in value.items()}
