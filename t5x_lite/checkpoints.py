"""Saving and restoring, by Orbax: whole steps or none, and every byte checked.

A step is the folder `<workdir>/checkpoints/<step>`: the arrays in `state`, the
place in the data in `position`, the resolved recipe in `record`, what was
measured at it in `measured`, and `manifest.json` with the size and CRC-32C of
each file in these. Orbax's arrays carry no checksum of their own: it fixes the
codecs of Zarr 3.
"""

import contextlib
import functools
import json
import os
import re

import numpy as np
import orbax.checkpoint as ocp

from t5x_lite import best
from t5x_lite import errors
from t5x_lite import manifest
from t5x_lite import noise
from t5x_lite import partitioning
from t5x_lite import processes
from t5x_lite import storage
from t5x_lite import stored

_ITEMS = ('state', 'position', 'record', 'measured')
_DAMAGED = (
  'delete this step to go on from the one before, or name another by --step'
)
_SHOWN = 8  # arrays in the table of an error

noise.silence()


class Checkpoints:
  """The steps saved in a run directory, as a context manager.

  Leaving the block waits for the save under way and raises unless the last
  step saved is on the disk; leaving it by Ctrl-C abandons that save.
  """

  def __init__(self, workdir, spec):
    """Opens `<workdir>/checkpoints` to save and restore, one process a time.

    Args:
      workdir: the run directory, local or remote.
      spec: `specs.Checkpoints`, or None to only read.

    Raises:
      StorageError: the folder can't be written.
    """
    self.folder = storage.absolute(workdir) / 'checkpoints'
    self._spec = spec
    self._newest = None  # the step last saved or restored here
    self._values = {}  # of the metric that tells the best, by step
    self._manager = None
    if spec is not None:
      stored.check_name(self.folder)
      # Orbax lists it while it removes what a killed save left there.
      storage.make_folder(self.folder, keep=processes.is_first())
      if spec.best is not None:
        self._values = self.values(spec.best)
      self._manager = self._open_manager()

  @classmethod
  def reader(cls, workdir):
    """Only reads, and leaves alone what another process may be writing."""
    return cls(workdir, None)

  def _open_manager(self):
    policies = ocp.checkpoint_managers
    keep = [policies.LatestN(self._spec.keep)]
    if self._spec.keep_every is not None:
      keep.append(policies.EveryNSteps(self._spec.keep_every))
    if self._spec.best is not None:
      keep.append(best.Policy(self._spec.best, self._values))
    return ocp.CheckpointManager(
      self.folder,
      item_handlers={
        'state': ocp.PyTreeCheckpointHandler(use_zarr3=True),
        'position': ocp.JsonCheckpointHandler(),
        'record': ocp.JsonCheckpointHandler(),
        'measured': ocp.JsonCheckpointHandler(),
      },
      options=ocp.CheckpointManagerOptions(
        preservation_policy=policies.AnyPreservationPolicy(keep),
        # Called after Orbax's last array and before its commit: a step and its
        # manifest appear as one, and a step without it has been damaged.
        async_options=ocp.AsyncOptions(
          post_finalization_callback=lambda: manifest.write(
            self._scratch(), _ITEMS
          )
        ),
        cleanup_tmp_directories=True,
        lightweight_initialize=True,  # Orbax's own notes may be damaged too
        save_root_metadata=False,
      ),
    )

  def _scratch(self):
    """Where Orbax keeps the step under way until it commits it."""
    final = self.folder / str(self._newest)
    hidden = self.folder / f'{final.name}{ocp.utils.TMP_DIR_SUFFIX}'
    return hidden if hidden.exists() else final

  def __enter__(self):
    return self

  def __exit__(self, kind, error, traceback):
    if kind is None:
      self.close()
    elif issubclass(kind, Exception) and processes.count() == 1:
      # Of several processes one may fail alone: the others would not close.
      try:
        self.close()
      except errors.UserError as e:
        error.add_note(str(e))  # the first fault is the one to mend

  # -- writing ----------------------------------------------------------------

  def should_save(self, step):
    """Whether a step is a multiple of the period."""
    return step % self._spec.every == 0

  def save(self, step, state, position, record, metrics=None):
    """Starts to save a step, once the save before it is on the disk.

    The step that was saved or restored last is not written again.

    Args:
      step: the number of updates that made the state.
      state: a tree of arrays on a mesh; copied before this returns.
      position: the place in the data, plain JSON.
      record: the resolved recipe, plain JSON.
      metrics: {'measured': {name: metrics} or None, 'best': best.Best.state()}
        or None, plain JSON.

    Raises:
      CheckpointError: the step is there already, of another history.
      StorageError: this save or the one before it failed.
    """
    self.wait()
    if step == self._newest:
      return
    if step in self.steps():
      raise errors.CheckpointError(
        'step is there already',
        where=self.folder / str(step),
        fix='delete it, or train in another workdir',
      )
    self._newest = step
    notes = {'position': position, 'record': record}
    if metrics is not None:
      notes['measured'] = metrics
      if self._spec.best is not None:
        found = best.value(self._spec.best, metrics['measured'])
        self._values[step] = found
    with self._failures():
      self._manager.save(
        step,
        args=ocp.args.Composite(
          state=ocp.args.PyTreeSave(state),
          **{name: ocp.args.JsonSave(note) for name, note in notes.items()},
        ),
        force=True,
      )

  def wait(self):
    """Waits for the save under way, and raises if it failed."""
    if self._manager is not None:
      with self._failures():
        self._manager.wait_until_finished()

  def close(self):
    """Waits, and raises unless the last step saved is on the disk."""
    if self._manager is None:
      return
    self.wait()
    self._manager.close()
    self._manager = None
    if self._newest is not None and self._newest not in self.steps():
      raise errors.CheckpointError(
        'the last step is not on the disk',
        where=self.folder / str(self._newest),
        fix=self._advice(),
      )

  @contextlib.contextmanager
  def _failures(self):
    """Says which save failed and why, and removes what it left."""
    try:
      yield
    except Exception as e:
      failed = self.folder / str(self._newest)
      with contextlib.suppress(Exception):  # the first fault is told
        self._remove(failed)
      self._newest = None
      raise errors.StorageError(
        'save failed', where=failed, got=_reason(e), fix=self._advice()
      ) from e

  def _remove(self, failed):
    """Removes what a failed save left; in a bucket it has no other name."""
    hidden = f'{failed.name}{ocp.utils.TMP_DIR_SUFFIX}'
    for entry in self.folder.iterdir():
      if entry.name.startswith(hidden) or (
        entry.name == failed.name and not ocp.path.step.is_path_finalized(entry)
      ):
        entry.rmtree(missing_ok=True)

  def _advice(self):
    try:
      latest = max(self.steps(), default=None)  # one process may be here
    except Exception:  # the storage is out of reach
      return 'mend the way to the storage, and run again'
    safe = 'no step is' if latest is None else f'step {latest} is'
    return f'make room or mend the folder, and run again; {safe} safe'

  # -- reading ----------------------------------------------------------------

  def steps(self):
    """The committed steps in order, as they are on the disk."""
    if not self.folder.exists():
      return []
    return sorted(
      int(entry.name)
      for entry in self.folder.iterdir()
      if entry.name.isdigit() and ocp.path.step.is_path_finalized(entry)
    )

  def latest(self):
    """The newest committed step, or None."""
    return processes.first(lambda: max(self.steps(), default=None))

  def restore(self, step, abstract_state):
    """Reads a state onto the devices that its abstract arrays name.

    Args:
      step: a committed step.
      abstract_state: a tree of `jax.ShapeDtypeStruct` with shardings.

    Returns:
      (state, position), the state a tree like `abstract_state`.

    Raises:
      CheckpointError: a file is damaged, or an array is missing, left over, or
        of another shape or dtype.
    """
    folder = self._verified(step, *_ITEMS)
    state = _read_arrays(folder, stored.arrays(folder), abstract_state)
    self._newest = step
    return state, self._read_json(step, 'position')

  def restore_params(self, step, abstract_params, some=False):
    """Reads the parameters without the optimizer's state; see `restore`.

    Args:
      step: a committed step.
      abstract_params: a tree of `jax.ShapeDtypeStruct` with shardings.
      some: whether others than these may be there.
    """
    folder = self._verified(step, 'state')
    wanted = {'params': abstract_params}
    names = partitioning.by_path(wanted)
    found = {
      path: array
      for path, array in stored.arrays(folder).items()
      if path.startswith('params/') and (not some or path in names)
    }
    return _read_arrays(folder, found, wanted)['params']

  def stored_params(self, step):
    """{path: array with shape and dtype} of the parameters of a step."""
    return {
      path.removeprefix('params/'): array
      for path, array in stored.arrays(self._verified(step)).items()
      if path.startswith('params/')
    }

  def read_params(self, step):
    """{path: function that reads one parameter of a step, as numpy's}.

    The files are checked now, once, and not by these.
    """
    folder = self._verified(step, 'state')
    return {
      path: functools.partial(stored.read, folder, f'params/{path}')
      for path in self.stored_params(step)
    }

  def read_position(self, step):
    """The place in the data that a step was saved at."""
    self._verified(step, 'position')
    return self._read_json(step, 'position')

  def read_record(self, step):
    """The resolved recipe that a step was saved with."""
    self._verified(step, 'record')
    return self._read_json(step, 'record')

  def _read_json(self, step, item):
    file = self.folder / str(step) / item / 'metadata'
    return processes.first(lambda: json.loads(file.read_text()))

  def read_metrics(self, step):
    """What was saved with a step as its metrics, or None."""
    folder = self._verified(step, 'measured')
    if processes.first((folder / 'measured').exists):
      return self._read_json(step, 'measured')
    return None

  def fingerprint(self, step):
    """A checksum of all that a step holds: tells it from those of any run."""
    folder = self._verified(step)
    return processes.first(lambda: manifest.fingerprint(folder, _DAMAGED))

  def values(self, spec):
    """{step: value or None} of a specs.Best's metric."""
    steps = processes.first(self.steps)
    notes = {step: self.read_metrics(step) or {} for step in steps}
    return {
      step: best.value(spec, note.get('measured'))
      for step, note in notes.items()
    }

  def _verified(self, step, *items):
    """The folder of a step, once each file of some items is as written."""

    def check():
      steps = self.steps()
      if step not in steps:
        raise errors.CheckpointError(
          'no such step',
          where=self.folder,
          got=step,
          expected=f'one of {steps}' if steps else 'a step, but there is none',
        )
      manifest.check(folder, items, _DAMAGED)

    folder = self.folder / str(step)
    processes.first(check)
    return folder


# -- arrays -------------------------------------------------------------------


def _read_arrays(folder, found, abstract):
  """Reads the arrays of `abstract`, after comparing them with those found."""
  wanted = partitioning.by_path(abstract)
  differ = [
    (path, describe(found.get(path)), describe(wanted.get(path)))
    for path in sorted(found.keys() | wanted.keys())
    if describe(found.get(path)) != describe(wanted.get(path))
  ]
  if differ:
    raise errors.CheckpointError(
      f'checkpoint does not fit in {len(differ)} arrays',
      where=folder,
      fix='use the recipe that it was trained with'
      + table([('array', 'stored', 'wanted'), *differ]),
    )
  return stored.restore(folder, abstract)


def describe(array):
  """Type and shape of an array, `-` for none."""
  if array is None:
    return '-'
  return f'{np.dtype(array.dtype)}{list(array.shape)}'


def table(rows):
  """Aligned rows, the first a head; a count for those beyond a screen."""
  shown = rows[: _SHOWN + 1]
  widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
  lines = [
    '  '.join(cell.ljust(n) for cell, n in zip(row, widths, strict=True))
    for row in shown
  ]
  if len(rows) > len(shown):
    lines.append(f'and {len(rows) - len(shown)} more')
  return ''.join(f'\n  {line.rstrip()}' for line in lines)


def _reason(error):
  """Why a save failed, in the system's words where it has some."""
  code = re.search(r"os_error_code='(\d+)'", str(error))
  if code:
    return os.strerror(int(code[1]))
  return getattr(error, 'strerror', None) or ' '.join(str(error).split())
