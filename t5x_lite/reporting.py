"""What a run shows: its progress on the screen, and a picture of its losses."""

import contextlib
import io
import os
import sys
import time

import numpy as np

from t5x_lite import metrics as metrics_files
from t5x_lite import storage


class Quiet(contextlib.nullcontext):
  """Tells nothing: for the processes of a run that leave it to one."""

  def __init__(self):
    super().__init__(self)

  def write(self, *_):
    pass

  update = note = flush = write


# -- the line -----------------------------------------------------------------

_SHOWN = (  # metric, its name in the line, its format
  ('loss', 'loss', '{:.3f}'),
  ('accuracy', 'accuracy', '{:.3f}'),
  ('learning_rate', 'lr', '{:#.3g}'),
  ('grad_norm', 'grad_norm', '{:.3g}'),
  ('perf/tokens_per_second', 'tokens/s', '{:,.0f}'),
  ('perf/mfu', 'mfu', '{:.1%}'),
  ('perf/mfu_whole_attention', None, '({:.1%})'),
)


def clock(seconds):
  """Seconds as m:ss, or h:mm:ss."""
  minutes, seconds = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  if hours:
    return f'{hours}:{minutes:02}:{seconds:02}'
  return f'{minutes}:{seconds:02}'


def step_line(step, total, metrics):
  """A step of training in one line, of the metrics that are there."""
  line = f'step {step}/{total}'
  for name, label, style in _SHOWN:
    if name in metrics:
      value = style.format(metrics[name]).replace('%', ' %')
      line += f'  {label} {value}' if label else f' {value}'
  rate = metrics.get('timing/steps_per_second')
  if rate:
    line += f'  eta {clock((total - step) / rate)}'
  return line


class Progress:
  """A bar on a terminal, plain lines elsewhere; a context manager."""

  def __init__(self, total, start):
    """Begins at step `start` of `total`."""
    self._total, self._start = total, start
    self._live = None  # the part of a terminal that is drawn anew

  def __enter__(self):
    if sys.stdout.isatty() and os.environ.get('TERM') != 'dumb':
      from rich import live

      self._live = live.Live(refresh_per_second=4)
      self._draw(self._start, step_line(self._start, self._total, {}))
      self._live.start()
    return self

  def __exit__(self, *_):
    if self._live is not None:
      self._live.stop()

  def _draw(self, step, line):
    from rich import console
    from rich import progress_bar
    from rich import text

    bar = progress_bar.ProgressBar(total=self._total, completed=step)
    self._live.update(console.Group(text.Text(line), bar))

  def update(self, step, metrics):
    """Shows how far training is, and its metrics."""
    line = step_line(step, self._total, metrics)
    if self._live is None:
      print(line, flush=True)
    else:
      self._draw(step, line)

  def note(self, line):
    """Prints a line that stays."""
    print(line, flush=True)  # rich moves it above the bar


class Counter:
  """How many of some lines are done, on stderr; a context manager.

  A bar on a terminal, elsewhere a line every few seconds.
  """

  _SECONDS = 5.0  # between lines

  def __init__(self, total, done=0, silent=False):
    """Begins with some done of `total`; of an unknown total it is silent."""
    from rich import console
    from rich import progress

    screen = console.Console(stderr=True)
    self._silent = silent or total is None
    self._bar = progress.Progress(
      progress.BarColumn(),
      progress.TextColumn('{task.description}'),
      console=screen,
      disable=self._silent or not screen.is_terminal,
      transient=True,
    )
    self._task = self._bar.add_task('', total=total, completed=done)
    self._due = time.monotonic() + self._SECONDS

  def __enter__(self):
    self._bar.start()
    return self

  def __exit__(self, *_):
    self._bar.stop()

  def add(self, count):
    """Notes that so many more are done."""
    if self._silent:
      return
    self._bar.advance(self._task, count)
    task = self._bar.tasks[self._task]
    line = count_line(
      int(task.completed), task.total, task.speed, task.time_remaining
    )
    self._bar.update(self._task, description=line)
    lines = self._bar.disable and not task.finished
    if lines and time.monotonic() >= self._due:
      print(line, file=sys.stderr, flush=True)
      self._due = time.monotonic() + self._SECONDS


def count_line(done, total, rate, seconds_left):
  """How far some lines are, of what is known."""
  line = f'{done:,}/{total:,} lines'
  if rate:
    line += f'  {rate:,.1f} lines/s'
  if seconds_left is not None:
    line += f'  eta {clock(seconds_left)}'
  return line


# -- the picture --------------------------------------------------------------


def plot_losses(workdir):
  """Draws a run's losses by step, and returns the path of the PNG."""
  from matplotlib import figure

  lines = metrics_files.read(workdir)

  def points(split, name):
    found = [(x['step'], x[name]) for x in lines if _is(x, split, name)]
    return np.array(found, float).reshape(-1, 2).T

  picture = figure.Figure(figsize=(8, 5), dpi=120, layout='constrained')
  axes = picture.add_subplot()
  steps, losses = points('train', 'loss')
  axes.plot(steps, losses, color='tab:blue', lw=0.6, alpha=0.4)
  axes.plot(steps, _smooth(losses), color='tab:blue', label='training')
  for name, label, color in (
    ('loss', 'held out', 'tab:orange'),
    ('text_loss', 'held out, text tokens alone', 'tab:green'),
  ):
    steps, losses = points('validation', name)
    if steps.size:
      axes.plot(steps, losses, 'o-', color=color, ms=4, label=label)
  _, entropies = points('validation', 'unigram_entropy')
  if entropies.size:
    axes.axhline(
      entropies[-1],
      color='tab:green',
      ls='--',
      label='unigram entropy of the same text tokens',
    )
  axes.set_xlabel('step')
  axes.set_ylabel('loss (nats per token)')
  axes.set_title('Training and held-out loss', loc='left')
  axes.grid(alpha=0.3)
  axes.spines[['top', 'right']].set_visible(False)
  axes.legend(frameon=False)
  content = io.BytesIO()
  picture.savefig(content, format='png')
  file = storage.path(workdir) / 'losses.png'
  storage.write_bytes(file, content.getvalue())
  return file


def _is(line, split, name):
  return line['split'] == split and name in line


def _smooth(values):
  """A running mean over a twentieth of the values."""
  window = np.ones(max(1, values.size // 20))
  counts = np.convolve(np.ones_like(values), window, 'same')
  return np.convolve(values, window, 'same') / counts
