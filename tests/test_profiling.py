import dataclasses
import gzip
import json

import jax
import jax.numpy as jnp
import pytest

from t5x_lite import errors
from t5x_lite import profiling


def run(workdir, window, steps):
  """What a loop of such steps prints."""
  said = []
  step_fn = jax.jit(lambda x: x + 1)
  state = jnp.zeros(4)
  with profiling.Profile(workdir, window, said.append) as profile:
    for number in steps:
      state = profile.step(number, step_fn, state)
  assert state[0] == len(steps)
  return said


def test_a_window_of_steps_is_traced(tmp_path):
  said = run(tmp_path, profiling.Window(3, 2), range(1, 7))
  [line] = said
  assert str(tmp_path / 'profile') in line
  [file] = (tmp_path / 'profile').rglob('*.xplane.pb')
  assert file.relative_to(tmp_path / 'profile').parts[:2] == (
    'plugins',
    'profile',
  )
  assert numbers(file) == {3, 4}


def numbers(file):
  """The numbers of the steps that are annotated in a trace."""
  # jax.profiler.ProfileData of jax 0.12 aborts on some of them.
  [file] = file.parent.glob('*.trace.json.gz')
  events = json.loads(gzip.decompress(file.read_bytes()))['traceEvents']
  return {
    int(event['args']['step_num'])
    for event in events
    if event.get('name') == 'train'
  }


def test_a_run_that_ends_amid_the_window_has_what_was_traced(tmp_path):
  run(tmp_path, profiling.Window(2, 5), range(1, 4))
  [file] = (tmp_path / 'profile').rglob('*.xplane.pb')
  assert numbers(file) == {2, 3}


@pytest.mark.parametrize('window', [None, profiling.Window(2, 3)])
def test_a_run_that_goes_on_past_the_window_traces_nothing(tmp_path, window):
  assert run(tmp_path, window, range(5, 8)) == []
  assert not any(path.is_file() for path in tmp_path.rglob('*'))


def test_a_run_that_goes_on_amid_the_window_traces_the_rest(tmp_path):
  run(tmp_path, profiling.Window(2, 3), range(4, 7))
  [file] = (tmp_path / 'profile').rglob('*.xplane.pb')
  assert numbers(file) == {4}


def test_a_window_past_the_end_is_refused():
  window = profiling.Window(9, 3)
  window.check(11)
  with pytest.raises(errors.ConfigError, match='up to Run.steps, 10'):
    window.check(10)
  assert dataclasses.astuple(window) == (9, 3)
