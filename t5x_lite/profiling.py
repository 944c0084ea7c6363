"""A window of steps, traced for TensorBoard's profile plugin."""

import dataclasses
import tempfile

import jax

from t5x_lite import errors
from t5x_lite import storage


@dataclasses.dataclass(frozen=True)
class Window:
  """Steps `start` to `start + count - 1`."""

  start: int
  count: int

  @property
  def last(self):
    return self.start + self.count - 1

  def check(self, steps):
    """Raises a ConfigError unless a run has these steps."""
    if self.last > steps:
      raise errors.ConfigError(
        'steps to profile are past the end of the run',
        where='--profile',
        got=f'{self.start}:{self.count}',
        expected=f'steps up to Run.steps, {steps}',
      )


class Profile:
  """Calls the step function, and traces it in a window; a context manager.

  The trace is in `<workdir>/profile`; each step in it is annotated as `train`
  with its number, from which TensorBoard tells times per step.
  """

  def __init__(self, workdir, window, say):
    """Takes a Window, or None to trace nothing."""
    self._folder = storage.path(workdir) / 'profile'
    self._window, self._say = window, say
    self._scratch = None  # while tracing
    if window:
      storage.make_folder(self._folder)  # told now if it can't be

  def __enter__(self):
    return self

  def __exit__(self, *_):
    if self._scratch is not None:
      self._stop()

  def step(self, number, step_fn, *arguments):
    """What the function returns for a step."""
    window = self._window
    if window is None or not window.start <= number <= window.last:
      return step_fn(*arguments)
    if self._scratch is None:
      self._scratch = tempfile.TemporaryDirectory(prefix='t5x_lite.')
      jax.profiler.start_trace(self._scratch.name)
    with jax.profiler.StepTraceAnnotation('train', step_num=number):
      found = step_fn(*arguments)
    if number == window.last:
      jax.block_until_ready(found)
      self._stop()
    return found

  def _stop(self):
    jax.profiler.stop_trace()
    with self._scratch:
      storage.copy_tree(self._scratch.name, self._folder)
    self._scratch = None
    self._say(
      f'profiled into {self._folder}; `tensorboard --logdir={self._folder}` '
      'shows it (pip install tensorboard xprof)'
    )
