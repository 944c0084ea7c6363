"""What a run tells: metrics in files and on the screen, and a picture."""

import contextlib
import io
import json
import math
import os
import sys
import time

import numpy as np

from t5x_lite import errors
from t5x_lite import storage

_METRICS = 'metrics.jsonl'
_NOT_IN_JSON = ('nan', 'inf', '-inf')  # written as strings


class Metrics:
  """Writes the metrics of a run, as a context manager.

  A line of `<workdir>/metrics.jsonl` is one step of one split:
  `{"step": 200, "split": "train", "loss": 5.43, ...}`. Floats read back as the
  same bits; not-a-number and the infinities are "nan", "inf" and "-inf". A
  local workdir has the same in `tensorboard/<split>`.
  """

  def __init__(self, workdir, step):
    """Cuts a run's metrics back to where it goes on from.

    Args:
      workdir: the run directory, local or remote.
      step: the step that was restored, or 0 to start afresh; lines after it
        are dropped, since they will be written again.
    """
    self._workdir = storage.path(workdir)
    self._step = step
    self._boards = {}
    file = self._workdir / _METRICS
    if file.exists():
      kept = [json.dumps(line) for line in _lines(file) if line['step'] <= step]
      text = ''.join(f'{line}\n' for line in kept) if step else ''
      storage.write_text(file, text)

  def __enter__(self):
    return self

  def __exit__(self, *_):
    for board in self._boards.values():
      board.close()

  def write(self, step, split, values):
    """Adds what was measured at a step of a split: numbers by name."""
    numbers = {name: float(value) for name, value in values.items()}
    line = {'step': step, 'split': split} | {
      name: value if math.isfinite(value) else str(value)
      for name, value in numbers.items()
    }
    storage.append_text(self._workdir / _METRICS, f'{json.dumps(line)}\n')
    if storage.is_local(self._workdir):
      if split not in self._boards:
        folder = self._workdir / 'tensorboard' / split
        self._boards[split] = Board(folder, self._step)
      self._boards[split].write(step, numbers)


class Board:
  """Writes numbers for TensorBoard, whole steps at once.

  TensorBoardX's own `SummaryWriter` does so in a thread: what it holds dies
  with the process, and no one hears of a full disk.
  """

  def __init__(self, folder, step):
    """Begins a file; of older ones TensorBoard drops what is after a step."""
    from tensorboardX import event_file_writer
    from tensorboardX.proto import event_pb2

    self._folder = storage.make_folder(folder)
    # Else two starts in one second write the same file.
    suffix = f'.{os.getpid()}.{step}'
    with self._failures():
      self._file = event_file_writer.EventsWriter(
        str(folder / 'events'), suffix
      )
      self._add(
        step + 1 if step else 0,
        session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START),
      )

  def _add(self, step, **what):
    from tensorboardX.proto import event_pb2

    self._file.write_event(
      event_pb2.Event(wall_time=time.time(), step=step, **what)
    )

  @contextlib.contextmanager
  def _failures(self):
    try:
      yield
    except OSError as e:
      raise errors.StorageError(
        'cannot write', where=self._folder, got=e
      ) from e

  def write(self, step, numbers):
    """Adds the numbers of a step, by name."""
    from tensorboardX import summary

    with self._failures():
      for name, value in numbers.items():
        self._add(step, summary=summary.scalar(name, value))
      self._file.flush()

  def close(self):
    """Closes the file; all that was written is in it already."""
    with contextlib.suppress(OSError):
      self._file.close()


def _lines(file):
  """The lines of a metrics file, but for one that a killed process began."""
  *whole, _ = file.read_text().split('\n')
  for number, text in enumerate(whole, 1):
    try:
      line = json.loads(text)
      line['step'], line['split']  # noqa: B018
    except (ValueError, LookupError, TypeError):
      raise errors.DataError(
        'not a line of metrics', where=f'{file}:{number}', fix='delete the line'
      ) from None
    yield line


def read_metrics(workdir):
  """The lines of a run's `metrics.jsonl`, as dicts.

  Raises:
    DataError: there is none, or a line of it is damaged.
  """
  file = storage.path(workdir) / _METRICS
  if not file.exists():
    raise errors.DataError('no metrics', where=file, fix='train there first')
  return [
    {k: float(v) if v in _NOT_IN_JSON else v for k, v in line.items()}
    for line in _lines(file)
  ]


class Quiet(contextlib.nullcontext):
  """Tells nothing: for the processes of a run that leave it to one."""

  def __init__(self):
    super().__init__(self)

  def write(self, *_):
    pass

  update = note = write


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

  lines = read_metrics(workdir)

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
  file.write_bytes(content.getvalue())
  return file


def _is(line, split, name):
  return line['split'] == split and name in line


def _smooth(values):
  """A running mean over a twentieth of the values."""
  window = np.ones(max(1, values.size // 20))
  counts = np.convolve(np.ones_like(values), window, 'same')
  return np.convolve(values, window, 'same') / counts
