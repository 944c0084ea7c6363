"""The best steps of a run, and when to wait for a better one no longer."""

import math

from t5x_lite import errors
from t5x_lite import record as records


def value(spec, measured):
  """The metric of a specs.Best, or None where there is no finite number.

  Args:
    spec: specs.Best.
    measured: {name: metrics} of a step, or None.
  """
  name, _, metric = spec.metric.partition('/')
  found = (measured or {}).get(name, {}).get(metric)
  is_number = isinstance(found, (int, float)) and math.isfinite(found)
  return found if is_number else None


def steps(spec, values):
  """The steps of {step: value or None}, best first; of equals the earlier."""
  sign = 1 if spec.goal == 'min' else -1
  measured = [step for step, found in values.items() if found is not None]
  return sorted(measured, key=lambda step: (sign * values[step], step))


class Policy:
  """Tells Orbax to keep the best of the steps that were measured.

  Its own BestN lets not-a-number win, and forgets all metrics at a restart.
  """

  def __init__(self, spec, values):
    """Keeps specs.Best.keep of {step: value or None}, which may change."""
    self._spec, self._values = spec, values

  def should_preserve(self, checkpoints, *, context):
    del context
    values = {x.step: self._values.get(x.step) for x in checkpoints}
    kept = steps(self._spec, values)[: self._spec.keep]
    return [x.step in kept for x in checkpoints]


def find(saver, name=None):
  """The step that a name stands for.

  Args:
    saver: checkpoints.Checkpoints.
    name: a step; 'latest' or None; or 'best', by the run's own metric.

  Raises:
    errors.CheckpointError: there is none.
    errors.ConfigError: the run has no such metric.
  """
  latest, workdir = saver.latest(), saver.folder.parent
  if latest is None:
    raise errors.CheckpointError(
      'no checkpoint',
      where=workdir,
      expected='the --workdir of a run, which has checkpoints/STEP in it',
      fix='train into it first',
    )
  if name != 'best':
    return latest if name in (None, 'latest') else name
  where = saver.folder / str(latest)
  run = records.from_record(saver.read_record(latest), where)
  spec = run.checkpoints.best
  if spec is None:
    raise errors.ConfigError(
      'run has no Checkpoints.best',
      where=workdir,
      fix='name a step, or train with --gin.Checkpoints.best=@Best()',
    )
  ranked = steps(spec, saver.values(spec))
  if not ranked:
    raise errors.CheckpointError(
      f'no step was measured by {spec.metric}',
      where=saver.folder,
      got=f'steps {saver.steps()}',
    )
  return ranked[0]


class Best:
  """Follows a metric from evaluation to evaluation.

  Steps count from 1 on: an untrained model is nobody's best.

  Attributes:
    step: the best step so far, or None.
    value: of the metric there.
    worse: evaluations since then.
  """

  def __init__(self, spec, state=None, known=None):
    """Begins, or goes on with the `state` that a checkpoint holds.

    Args:
      spec: specs.Best, or None to follow nothing.
      state: as `state` gave it; that of another metric is left alone.
      known: then {step: value or None} of the steps that are there.
    """
    self._spec = spec
    self._of = spec and f'{spec.goal} {spec.metric}'
    self.step, self.value, self.worse = None, None, 0
    if spec and state and state['of'] == self._of:
      self.step, self.value = state['step'], state['value']
      self.worse = state['worse']
    elif spec and (ranked := steps(spec, known or {})):
      self.step, self.value = ranked[0], known[ranked[0]]

  def state(self):
    """What a checkpoint keeps, plain JSON, or None."""
    if self._spec is None:
      return None
    return {
      'of': self._of,
      'step': self.step,
      'value': self.value,
      'worse': self.worse,
    }

  def update(self, step, measured):
    """Takes in what was measured, and tells whether the step is the best."""
    if self._spec is None or step == 0:
      return False
    found = {self.step: self.value, step: value(self._spec, measured)}
    if steps(self._spec, found)[:1] != [step]:
      self.worse += 1
      return False
    self.step, self.value, self.worse = step, found[step], 0
    return True

  @property
  def exhausted(self):
    """Whether patience is at its end."""
    spec = self._spec
    return bool(spec and spec.patience and self.worse >= spec.patience)

  def __str__(self):
    text = f'no better {self._spec.metric} in {self.worse} evaluations'
    if self.step is None:
      return f'{text}, and it never was a finite number'
    return f'{text}; the best is {self.value:.6g} at step {self.step}'
