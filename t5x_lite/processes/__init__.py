"""The processes of one run: they meet, compare what they run, and end together.

Process 0 listens at the coordinator's address, before JAX does. The others
call there and say what they are about to run, so that a process that is
missing, or that runs something else, is named before any device is touched.
The connections stay: whoever is gone or silent is named within seconds, and
what process 0 decides is told over them. (JAX's own service knows processes by
a heartbeat alone, and ends the others without a word of ours.)

Process 0 alone prints, and writes what one should write. In a run of one
process everything here does nothing.
"""

import time
import traceback

from t5x_lite import errors
from t5x_lite.processes import group as groups
from t5x_lite.processes import meeting
from t5x_lite.processes.meeting import Place

_group = None  # the Group that this process is in, or None


def detect():
  """The Place that a TPU pod, SLURM, GKE or MPI gives this process.

  JAX detects them, but not by a public function.
  """
  from jax._src import clusters

  found = clusters.ClusterEnv.auto_detect_unset_distributed_params(
    None, None, None, None, None, 300
  )
  if None in found[:3]:
    raise errors.DeviceError(
      'no cluster is found here',
      where='--multiprocess',
      expected='a TPU pod, SLURM, Kubernetes or Open MPI',
      fix='give --coordinator_address, --process_count and --process_index',
    )
  return Place(*found[:3])


def index():
  return _group.place.index if _group else 0


def count():
  return _group.place.count if _group else 1


def is_first():
  return index() == 0


def say(line):
  """Prints a line, in process 0."""
  if is_first():
    print(line, flush=True)


def first(make):
  """What `make()` returns in process 0, where alone it runs: plain JSON.

  A UserError that it raises is raised in every process.
  """
  return make() if _group is None else _group.first(make)


def agree(value, check):
  """Calls `check`, in process 0, with the values that all processes have.

  A UserError that it raises is raised in every process.

  Args:
    value: plain JSON.
    check: a function of the list of the values, by process.
  """
  values = [value] if _group is None else _group.gather(value)
  first(lambda: check(values))


def same(name, value):
  """Raises a DeviceError, in every process, unless all have the same value."""
  agree(value, lambda values: meeting.compare({name: dict(enumerate(values))}))


def stop_at(step, wanted):
  """The step after which all processes are to stop, or None.

  To be asked in each step of a loop, by every process. The answer lies far
  enough ahead that no process can have passed it: none is more than two steps
  ahead of another, if a step starts once the one before the last is done.

  Args:
    step: the step of the caller.
    wanted: the name of a signal that asks this process to stop, or None.

  Returns:
    (step, name of the signal), or None.
  """
  if _group is None:
    return (step, wanted) if wanted else None
  return _group.stop_at(step, wanted)


def join(place, facts):
  """Meets the other processes and starts JAX on all of them.

  Args:
    place: Place.
    facts: dict of names to JSON, that must be the same in all processes.

  Raises:
    DeviceError: a process is missing, or differs.
  """
  global _group
  group = groups.Group(place, facts)
  import jax  # not for `--help`

  # Ours are told by name, and sooner; JAX's would swallow SIGTERM.
  jax.config.update('jax_enable_preemption_service', False)
  jax.distributed.initialize(
    place.address,
    place.count,
    place.index,
    # Asked again, JAX leaves one GPU of a node to each process under SLURM.
    cluster_detection_method='deactivate',
    initialization_timeout=int(place.timeout),
    heartbeat_timeout_seconds=int(10 * place.silence),
    coordinator_bind_address=place.listens_at,
  )
  _group = group


def fail(error, text):
  """Ends all processes for one UserError, which process 0 prints.

  Does not return in a run of several processes.
  """
  if _group is not None:
    if index():
      # All may have met the same, and process 0 tells it: surely if it told us.
      time.sleep(600 if getattr(error, 'told', False) else groups.BEAT)
    _group.fail(text, error.exit_code)


def end(exit_code, text=None):
  """Ends all processes for what is no fault, such as Ctrl-C.

  Does not return in a run of several processes.
  """
  if _group is not None:
    _group.fail(text, exit_code)


def crash(error):
  """Ends all processes for an error that is to be shown with its traceback.

  Does not return in a run of several processes.
  """
  if _group is not None:
    # It may only follow from the end of another process, to be told as that.
    time.sleep(4 * groups.BEAT)
    traceback.print_exception(error)
    lines = str(error).splitlines()
    _group.fail(f'{type(error).__name__}: {lines[0] if lines else ""}', 1)


def leave():
  """Ends the membership of a process that has done its work."""
  if _group is not None:
    _group.finish()
