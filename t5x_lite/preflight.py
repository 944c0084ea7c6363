"""What must hold of all processes of a run before its first step.

That they run the same recipe by the same code is compared when they meet; what
is checked here needs the devices, and the storage that they share.
"""

from concurrent import futures
import contextlib
import uuid

import jax

from t5x_lite import errors
from t5x_lite import partitioning
from t5x_lite import processes
from t5x_lite import storage
from t5x_lite.processes import meeting


def check_devices(expected=None):
  """Refuses processes that JAX does not have each once, or too few devices.

  A TPU pod numbers them by its topology, maybe in another order than they were
  started: each reads the rows of its own devices, so that no harm is done.

  Args:
    expected: devices of all processes together, or None for any number.

  Raises:
    DeviceError: in every process; the processes that are at fault are named.
  """
  if processes.count() == 1 and expected is None:
    return
  partitioning.all_devices()  # or one message
  own = jax.process_index(), jax.process_count(), jax.local_device_count()
  processes.agree(own, lambda found: _judge_devices(found, expected))


def _judge_devices(found, expected):
  """The same, of what each process has: (index, processes, devices)."""
  indices = [index for index, _, _ in found]
  for n, (index, count, _) in enumerate(found):
    if count != len(found) or indices.count(index) > 1:
      raise errors.DeviceError(
        'JAX has other processes than were started',
        got=f'process {n} is process {index} of {count} to JAX',
        expected=f'each of {len(found)} once, as --process_count says',
        fix='let the cluster count them: --multiprocess, without this',
      )
  counts = {n: devices for n, (_, _, devices) in enumerate(found)}
  total = sum(counts.values())
  if expected in (None, total):
    return
  (usual, _), *others = meeting.group(counts)
  each = '' if others else ' each'
  said = [f'{meeting.named(who)}: {n}' for n, who in others]
  said += ['the others: ' * bool(others) + f'{usual}{each}']
  raise errors.DeviceError(
    'the run has too ' + ('few' if total < expected else 'many') + ' devices',
    got=f'{total} ({", ".join(said)})' if len(found) > 1 else total,
    expected=f'{expected}, as --device_count says',
    fix='free or replace what is missing; does another program hold it?'
    if total < expected
    else 'start fewer processes, or correct --device_count',
  )


def check_workdir(workdir):
  """Refuses a workdir that some process can't write, or sees another one of.

  Each process leaves a file there for a moment: process 0 looks for those of
  all others, and they for that of process 0.

  Args:
    workdir: made if it is not there.

  Raises:
    StorageError: in every process; the processes that are at fault are named.
  """
  if processes.count() == 1:
    storage.make_folder(workdir)
    return
  fault = None

  def arrive(name, index):
    nonlocal fault
    try:
      storage.make_folder(workdir)
      storage.write_bytes(file(name, index), b'')
    except errors.StorageError as e:
      fault = str(e.got)
    return name

  def file(name, index):
    return storage.path(workdir) / f'.arrived-{name}-{index}'

  def sees(index):
    return file(name, index).exists()

  me = processes.index()
  # The others hear the name once process 0 has written its own.
  name = processes.first(lambda: arrive(uuid.uuid4().hex, 0))
  if me:
    arrive(name, me)
  try:
    processes.agree(
      [fault, bool(fault) or sees(0)],
      lambda found: _judge_workdir(workdir, found, sees),
    )
  finally:
    if not fault:
      with contextlib.suppress(Exception):  # it is empty, and harms nothing
        file(name, me).unlink(missing_ok=True)


def _judge_workdir(workdir, found, sees):
  """The same, of (its fault, whether it sees process 0) of each process."""
  faults = {n: fault for n, (fault, _) in enumerate(found) if fault}
  if faults:
    raise errors.StorageError(
      'not every process can write the workdir',
      where=workdir,
      got=', '.join(
        f'{fault} in {meeting.named(who)}'
        for fault, who in meeting.group(faults)
      ),
      fix='mount it there for writing, and let the same user own it',
    )
  with futures.ThreadPoolExecutor(32) as pool:  # of 64 objects 3 s otherwise
    seen = pool.map(sees, range(len(found)))
  both = enumerate(zip(seen, found, strict=True))
  apart = [n for n, (seen_by_0, (_, sees_0)) in both if not seen_by_0 & sees_0]
  if apart:
    raise errors.StorageError(
      'the workdir is not the same folder in all processes',
      where=workdir,
      got=f'{meeting.named(apart)} with a folder of that name of its own',
      expected='storage that all machines share, such as gs://',
      fix='choose another --workdir, by its whole path',
    )
