import json
import math
import pathlib
import struct

import pytest

from t5x_lite import errors
from t5x_lite import reporting

PNG = b'\x89PNG\r\n\x1a\n'
METRICS = {
  'loss': 5.4321,
  'accuracy': 0.1214,
  'learning_rate': 0.01,
  'grad_norm': 1.2345,
  'weight': 300.0,
  'perf/tokens_per_second': 45210.3,
  'perf/mfu': 0.4123,
  'perf/mfu_whole_attention': 0.389,
  'timing/steps_per_second': 12.0,
}


def write(workdir, begin, steps, offset=0.0):
  with reporting.Metrics(workdir, begin) as metrics:
    for step in steps:
      metrics.write(step, 'train', {'loss': step + offset})


def steps_of(workdir):
  return [(x['step'], x['loss']) for x in reporting.read_metrics(workdir)]


def test_numbers_come_back_as_the_same_bits(tmp_path):
  values = {'a': 1 / 3, 'b': 5e-324, 'c': -0.0, 'd': 1e308, 'e': math.pi}
  odd = {'nan': math.nan, 'inf': math.inf, '-inf': -math.inf}
  with reporting.Metrics(tmp_path, 0) as metrics:
    metrics.write(1, 'train', values | odd)
  text = (tmp_path / 'metrics.jsonl').read_text()
  json.loads(text, parse_constant=pytest.fail)  # strict JSON
  (line,) = reporting.read_metrics(tmp_path)
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
    reporting.Metrics(tmp_path, 2)


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


def test_step_line():
  assert reporting.step_line(200, 1200, METRICS) == (
    'step 200/1200  loss 5.432  accuracy 0.121  lr 0.0100  grad_norm 1.23  '
    'tokens/s 45,210  mfu 41.2 % (38.9 %)  eta 1:23'
  )
  assert reporting.step_line(3, 9, {'loss': math.nan}) == 'step 3/9  loss nan'


def test_clock():
  clocks = [reporting.clock(seconds) for seconds in (0, 59.6, 3599, 36_061)]
  assert clocks == ['0:00', '1:00', '59:59', '10:01:01']


def test_lines_are_plain_where_there_is_no_terminal(capsys):
  with reporting.Progress(1200, 0) as progress:
    progress.update(200, METRICS)
    progress.note('held out [0.5]')
  line = reporting.step_line(200, 1200, METRICS)
  assert capsys.readouterr().out == f'{line}\nheld out [0.5]\n'


def test_a_terminal_shows_a_bar(capsys, monkeypatch):
  monkeypatch.setattr('sys.stdout.isatty', lambda: True)
  monkeypatch.setenv('TERM', 'xterm')
  monkeypatch.setenv('COLUMNS', '200')
  with reporting.Progress(1200, 0) as progress:
    progress.update(200, METRICS)
    progress.note('held out [0.5]')
  out = capsys.readouterr().out
  assert reporting.step_line(200, 1200, METRICS) in out
  assert '━' in out and 'held out [0.5]\n' in out
  assert out.count('loss 5.432') == 1


def test_picture(tmp_path):
  with reporting.Metrics(tmp_path, 0) as metrics:
    for step in range(0, 100, 10):
      values = {'loss': 7.0 - step / 50, 'unigram_entropy': 6.0}
      metrics.write(step, 'train', values)
    metrics.write(0, 'validation', values | {'text_loss': 7.0})
  file = reporting.plot_losses(tmp_path)
  assert pathlib.Path(file) == tmp_path / 'losses.png'
  assert file.read_bytes().startswith(PNG)


def test_picture_needs_metrics(tmp_path):
  with pytest.raises(errors.DataError, match='no metrics'):
    reporting.plot_losses(tmp_path)


def test_count_line():
  line = reporting.count_line(1500, 20_000, 250.25, 74)
  assert line == '1,500/20,000 lines  250.2 lines/s  eta 1:14'
  assert reporting.count_line(0, 5, None, None) == '0/5 lines'


def test_lines_are_counted_on_stderr(capsys, monkeypatch):
  """A line when it is due, and the time that is left by the recent speed."""
  now = 0.0
  for clock in ('time.monotonic', 'rich.console.monotonic'):
    monkeypatch.setattr(clock, lambda: now)
  with reporting.Counter(100, done=20) as counter:
    for _ in range(8):
      now += 2
      counter.add(10)
  out, err = capsys.readouterr()
  assert not out
  lines = err.splitlines()
  assert [line.split()[0] for line in lines] == ['50/100', '80/100']
  assert lines[0].split('  ')[1:] == ['5.0 lines/s', 'eta 0:10']
  with reporting.Counter(100, silent=True) as counter:
    now += 100
    counter.add(1)
  assert capsys.readouterr() == ('', '')


def test_a_terminal_counts_by_a_bar(capsys, monkeypatch):
  monkeypatch.setenv('FORCE_COLOR', '1')
  monkeypatch.setenv('COLUMNS', '100')
  with reporting.Counter(100) as counter:
    counter.add(40)
  out, err = capsys.readouterr()
  assert not out
  assert '━' in err and '40/100 lines' in err
