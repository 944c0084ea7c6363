"""A process joins the others of its run, and compares itself with them."""

import dataclasses

from t5x_lite import errors
from t5x_lite import installation
from t5x_lite import preflight
from t5x_lite import processes
from t5x_lite import record


def meet(options, run=None):
  """Joins the other processes of a run, if it has any, and compares with them.

  Args:
    options: of the command line.
    run: the recipe, or None if it comes from the workdir.
  """
  at = options.place
  given = [
    name
    for name in ('coordinator_address', 'process_count', 'process_index')
    if getattr(at, name) is not None
  ]
  if at.multiprocess:
    place = processes.detect()
  elif not given:
    preflight.check_devices(at.device_count)
    return
  elif len(given) < 3:
    raise errors.ConfigError(
      'a run of several processes lacks an option',
      got=', '.join(f'--{name}' for name in given),
      expected='--coordinator_address, --process_count and --process_index',
    )
  else:
    place = processes.Place(*(getattr(at, name) for name in given))
  place = dataclasses.replace(
    place, timeout=at.initialization_timeout, silence=at.heartbeat_timeout
  )
  versions = installation.versions()
  code = installation.code(getattr(options, 'task_module', ()))
  facts = {f'the version of {name}': found for name, found in versions.items()}
  facts |= {f'the code of {file}': found for file, found in code.items()}
  if run is not None:
    facts |= record.flatten(record.record(run))
  facts['--device_count'] = at.device_count
  facts |= {
    f'--{name}': value
    for name, value in vars(options).items()
    if name not in ('place', 'debug')
  }
  processes.join(place, facts)
  preflight.check_devices(at.device_count)
