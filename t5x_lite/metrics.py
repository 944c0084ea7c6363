"""The metrics of a run: in `metrics.jsonl`, and where else one wants them."""

import contextlib
import dataclasses
import importlib.util
import json
import math
import os
import tempfile
import time
import uuid

from t5x_lite import errors
from t5x_lite import numbers
from t5x_lite import storage

_FILE = 'metrics.jsonl'


@dataclasses.dataclass(frozen=True)
class Sinks:
  """Where metrics go besides `metrics.jsonl`; no part of what a run is."""

  tensorboard: bool = True
  wandb_project: str | None = None  # of Weights & Biases

  def check(self):
    """Raises a ConfigError if a package is missing."""
    if self.wandb_project is not None and not importlib.util.find_spec('wandb'):
      raise errors.ConfigError(
        'Weights & Biases is not installed',
        where='--wandb_project',
        got=self.wandb_project,
        fix="pip install 't5x_lite[wandb]'",
      )


DEFAULT = Sinks()


class Metrics:
  """Writes the metrics of a run, as a context manager.

  A line of `<workdir>/metrics.jsonl` is one step of one split:
  `{"step": 200, "split": "train", "loss": 5.43, ...}`. Floats read back as the
  same bits; not-a-number and the infinities are "nan", "inf" and "-inf".
  """

  def __init__(self, workdir, step, sinks=DEFAULT, config=None):
    """Cuts a run's metrics back to where it goes on from.

    Args:
      workdir: the run directory, local or remote.
      step: the step that was restored, or 0 to start afresh; lines after it
        are dropped, since they will be written again.
      sinks: Sinks.
      config: the record of the run, for Weights & Biases.
    """
    workdir = storage.path(workdir)
    file, written = workdir / _FILE, []
    if file.exists():
      written = list(_lines(file))
      kept = [json.dumps(line) for line in written if line['step'] <= step]
      text = ''.join(f'{line}\n' for line in kept) if step else ''
      storage.write_text(file, text)
    self._file = storage.Appender(file)
    self._sinks = []
    if sinks.tensorboard:
      self._sinks.append(TensorBoard(workdir, step))
    if sinks.wandb_project is not None:
      known = {(line['step'], line['split']) for line in written}
      self._sinks.append(
        Wandb(sinks.wandb_project, workdir, config, known if step else set())
      )

  def __enter__(self):
    return self

  def __exit__(self, kind, *_):
    with contextlib.ExitStack() as stack:
      for sink in self._sinks:
        stack.callback(sink.close, kind is None)
      self._file.flush()

  def write(self, step, split, values):
    """Adds what was measured at a step of a split: numbers by name."""
    values = {name: float(value) for name, value in values.items()}
    line = {'step': step, 'split': split} | numbers.to_json(values)
    self._file.add(f'{json.dumps(line)}\n')
    for sink in self._sinks:
      sink.write(step, split, values)

  def flush(self):
    """Returns once all that was written is stored, as a save needs it."""
    self._file.flush()
    for sink in self._sinks:
      sink.flush()


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


def read(workdir):
  """The lines of a run's `metrics.jsonl`, as dicts.

  Raises:
    DataError: there is none, or a line of it is damaged.
  """
  file = storage.path(workdir) / _FILE
  if not file.exists():
    raise errors.DataError('no metrics', where=file, fix='train there first')
  return [numbers.from_json(line) for line in _lines(file)]


class TensorBoard:
  """The same in `<workdir>/tensorboard/<split>`, a file for each start.

  A file that grows can't be an object: those of a remote workdir are written
  here, and copied there when metrics are flushed.
  """

  def __init__(self, workdir, step):
    self._step, self._boards, self._scratch = step, {}, None
    self._folder = self._kept = workdir / 'tensorboard'
    if not storage.is_local(workdir):
      self._scratch = tempfile.TemporaryDirectory(prefix='t5x_lite.')
      self._folder = storage.path(self._scratch.name)
    storage.make_folder(self._folder)  # told now if it can't be

  def write(self, step, split, numbers):
    if split not in self._boards:
      self._boards[split] = _Board(self._folder / split, self._step)
    self._boards[split].write(step, numbers)

  def flush(self):
    if self._scratch is not None:
      storage.copy_tree(self._folder, self._kept)

  def close(self, _):
    with self._scratch or contextlib.nullcontext():
      for board in self._boards.values():
        board.close()
      self.flush()


class _Board:
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
        'cannot write', where=self._folder, got=e.strerror or e
      ) from e

  def write(self, step, numbers):
    """Adds the numbers of a step, by name."""
    from tensorboardX import summary

    with self._failures():
      for name, value in numbers.items():
        if math.isfinite(value):  # of others tensorboardX complains
          self._add(step, summary=summary.scalar(name, value))
      self._file.flush()

  def close(self):
    """Closes the file; all that was written is in it already."""
    with contextlib.suppress(OSError):
      self._file.close()


class Wandb:
  """The same in Weights & Biases, one run there for a workdir.

  Its id is kept in `<workdir>/wandb.json`. Steps that it was told before the
  run was stopped come out the same again, and are not logged twice.
  """

  def __init__(self, project, workdir, config, known):
    """Begins the run, or goes on with it.

    Args:
      project: the project's name.
      workdir: the run directory.
      config: the record of the run, shown as its settings.
      known: the (step, split) that were written before.

    Raises:
      ConfigError: not logged in, or no such project.
    """
    import wandb

    self._known = known
    file = workdir / 'wandb.json'
    if file.exists():
      id_ = json.loads(file.read_text())['id']
    else:
      id_ = uuid.uuid4().hex[:16]
      storage.write_text(file, json.dumps({'id': id_, 'project': project}))
    # Its own files, from which `wandb sync` sends what was logged offline.
    local = workdir if storage.is_local(workdir) else storage.cache_dir()
    try:
      self._run = wandb.init(
        project=project,
        id=id_,
        resume='allow',
        name=workdir.name,
        config=config,
        dir=str(storage.make_folder(local)),
        settings=wandb.Settings(console='off', silent=True),
      )
    except wandb.Error as e:
      raise errors.ConfigError(
        'cannot log to Weights & Biases',
        where='--wandb_project',
        got=e,
        fix='`wandb login`, or set WANDB_MODE=offline',
      ) from e

  def write(self, step, split, numbers):
    if (step, split) not in self._known and step >= self._run.step:
      self._run.log({f'{split}/{k}': v for k, v in numbers.items()}, step=step)

  def flush(self):
    """Nothing: it sends by a process of its own."""

  def close(self, ended_well):
    self._run.finish(exit_code=0 if ended_well else 1)
