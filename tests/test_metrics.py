"""Metrics in files, TensorBoard and Weights & Biases."""

import importlib.machinery
import importlib.util
import json
import math
import struct
import sys
import types

import pytest

from t5x_lite import errors
from t5x_lite import metrics


def write(workdir, begin, steps, offset=0.0):
  with metrics.Metrics(workdir, begin) as writer:
    for step in steps:
      writer.write(step, 'train', {'loss': step + offset})


def steps_of(workdir):
  return [(x['step'], x['loss']) for x in metrics.read(workdir)]


def test_numbers_come_back_as_the_same_bits(tmp_path):
  values = {'a': 1 / 3, 'b': 5e-324, 'c': -0.0, 'd': 1e308, 'e': math.pi}
  odd = {'nan': math.nan, 'inf': math.inf, '-inf': -math.inf}
  with metrics.Metrics(tmp_path, 0) as writer:
    writer.write(1, 'train', values | odd)
  text = (tmp_path / 'metrics.jsonl').read_text()
  json.loads(text, parse_constant=pytest.fail)  # strict JSON
  (line,) = metrics.read(tmp_path)
  for name, value in (values | odd).items():
    assert struct.pack('d', line[name]) == struct.pack('d', value), name


def test_goes_on_from_the_restored_step(tmp_path):
  write(tmp_path, 0, [1, 2, 3, 4])
  before = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  write(tmp_path, 2, [3, 4, 5], offset=0.5)
  after = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  assert after[:2] == before[:2]
  assert steps_of(tmp_path) == [(1, 1), (2, 2), (3, 3.5), (4, 4.5), (5, 5.5)]


def test_starting_afresh_keeps_nothing(tmp_path):
  write(tmp_path, 0, [0, 1, 2])
  write(tmp_path, 0, [0, 1])
  assert steps_of(tmp_path) == [(0, 0), (1, 1)]


def test_a_line_that_a_killed_process_began_is_dropped(tmp_path):
  write(tmp_path, 0, [1, 2])
  file = tmp_path / 'metrics.jsonl'
  file.write_text(file.read_text() + '{"step": 3, "spl')
  assert steps_of(tmp_path) == [(1, 1), (2, 2)]  # of a run that is going on
  write(tmp_path, 2, [3])
  assert steps_of(tmp_path) == [(1, 1), (2, 2), (3, 3)]


def test_a_damaged_line_is_named(tmp_path):
  write(tmp_path, 0, [1, 2])
  file = tmp_path / 'metrics.jsonl'
  file.write_text(file.read_text().replace('"step": 2', '"st'))
  with pytest.raises(errors.DataError, match=r'metrics\.jsonl:2; fix: delete'):
    metrics.Metrics(tmp_path, 2)


def test_tensorboard_has_the_same_and_forgets_later_steps(tmp_path):
  write(tmp_path, 0, [1, 2, 3])
  write(tmp_path, 2, [3], offset=0.5)
  found = []
  for file in sorted((tmp_path / 'tensorboard' / 'train').iterdir()):
    found += [
      (event.step, [(v.tag, v.simple_value) for v in event.summary.value])
      if event.HasField('summary')
      else (event.step, 'start')
      for event in events(file)
      if not event.HasField('file_version')
    ]
  loss = [(n, [('loss', float(n))]) for n in (1, 2, 3)]
  assert sorted(found, key=str) == sorted(
    [(0, 'start'), *loss, (3, 'start'), (3, [('loss', 3.5)])], key=str
  )


def events(file):
  """The events of a TensorBoard file, which is TFRecord."""
  from tensorboardX.proto import event_pb2

  content = file.read_bytes()
  while content:
    (size,) = struct.unpack('<Q', content[:8])
    yield event_pb2.Event.FromString(content[12 : 12 + size])
    content = content[16 + size :]


# -- Weights & Biases ---------------------------------------------------------


class FakeWandb(types.ModuleType):
  """What of it is used; keeps the runs and what they were told."""

  class Error(Exception):
    """Theirs."""

  class Settings(dict):
    """Theirs."""

  def __init__(self, runs, refused=None):
    super().__init__('wandb')
    self.runs, self.refused = runs, refused
    self.__spec__ = importlib.machinery.ModuleSpec('wandb', None)

  def init(self, *, project, id, resume, config, **_):  # noqa: A002
    if self.refused:
      raise self.Error(self.refused)
    assert resume == 'allow'
    run = self.runs.setdefault(
      (project, id),
      types.SimpleNamespace(step=0, lines=[], codes=[], config=config),
    )

    def log(numbers, step):
      run.lines.append((step, numbers))
      run.step = step

    run.log, run.finish = log, lambda exit_code: run.codes.append(exit_code)
    return run


@pytest.fixture
def wandb(monkeypatch):
  found = FakeWandb({})
  monkeypatch.setitem(sys.modules, 'wandb', found)
  return found


SINKS = metrics.Sinks(tensorboard=False, wandb_project='mine')


def test_wandb_goes_on_with_the_run_and_logs_no_step_twice(wandb, tmp_path):
  with metrics.Metrics(tmp_path, 0, SINKS, {'steps': 4}) as writer:
    for step in (1, 2, 3):
      writer.write(step, 'train', {'loss': step})
    writer.write(3, 'validation', {'loss': 9.0})
  with metrics.Metrics(tmp_path, 1, SINKS, {'steps': 4}) as writer:
    for step in (2, 3, 4):
      writer.write(step, 'train', {'loss': step})
    writer.write(3, 'validation', {'loss': 9.0})
  [((project, id_), run)] = wandb.runs.items()
  assert project == 'mine' and run.config == {'steps': 4}
  assert json.loads((tmp_path / 'wandb.json').read_text())['id'] == id_
  assert run.lines == [
    (1, {'train/loss': 1.0}),
    (2, {'train/loss': 2.0}),
    (3, {'train/loss': 3.0}),
    (3, {'validation/loss': 9.0}),
    (4, {'train/loss': 4.0}),
  ]
  assert run.codes == [0, 0]
  assert not (tmp_path / 'tensorboard').exists()


def test_wandb_is_told_of_a_failure(wandb, tmp_path):
  with pytest.raises(KeyError), metrics.Metrics(tmp_path, 0, SINKS):
    raise KeyError
  [run] = wandb.runs.values()
  assert run.codes == [1]


def test_who_is_not_logged_in_to_wandb_is_told(wandb, tmp_path):
  wandb.refused = 'no API key'
  with pytest.raises(errors.ConfigError, match='no API key.*wandb login'):
    metrics.Metrics(tmp_path, 0, SINKS)


def test_without_wandb_it_is_one_message(monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda _: None)
  with pytest.raises(errors.ConfigError, match=r't5x_lite\[wandb\]'):
    SINKS.check()
  metrics.Sinks().check()


def test_wandb_itself_offline(monkeypatch, tmp_path):
  pytest.importorskip('wandb', reason="needs wandb; pip install '.[wandb]'")
  monkeypatch.setenv('WANDB_MODE', 'offline')
  for begin in (0, 2):
    with metrics.Metrics(tmp_path, begin, SINKS, {'steps': 4}) as writer:
      writer.write(begin + 1, 'train', {'loss': 1.0})
  found = [p.name for p in (tmp_path / 'wandb').glob('offline-run-*')]
  id_ = json.loads((tmp_path / 'wandb.json').read_text())['id']
  assert found and all(name.endswith(id_) for name in found)


def test_t5x_929_tensorboard_is_in_order_and_not_behind(tmp_path):
  """Training lagged behind evaluation there, by a period of its own."""
  with metrics.Metrics(tmp_path, 0) as writer:
    for step in (1, 2):
      times = {}
      for split in ('train', 'validation'):
        writer.write(step, split, {'loss': 1.0})
        [file] = (tmp_path / 'tensorboard' / split).iterdir()
        *_, last = events(file)  # at once, while the run goes on
        assert last.step == step and last.summary.value[0].tag == 'loss'
        times[split] = last.wall_time
      assert times['train'] <= times['validation']
