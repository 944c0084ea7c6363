import math
import pathlib

import pytest

from t5x_lite import errors
from t5x_lite import metrics
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


def test_maxtext_8_a_step_line_has_mfu():
  """maxtext#8: how is it calculated, as the page shows it?"""
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
  with metrics.Metrics(tmp_path, 0) as writer:
    for step in range(0, 100, 10):
      values = {'loss': 7.0 - step / 50, 'unigram_entropy': 6.0}
      writer.write(step, 'train', values)
    writer.write(0, 'validation', values | {'text_loss': 7.0})
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
