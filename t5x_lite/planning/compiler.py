"""Compiles the train step of a run for chips that are not there.

A process of its own, `python -m t5x_lite.planning.compiler REQUEST FOLDER`, as
the compilers of TPUs end the process that asks for what they can't do, and as
nothing else here is to wait for them.
"""

import contextlib
import gzip
import json
import os
import pathlib
import re
import resource
import sys
import threading
import time

from t5x_lite import errors

_MEMORY = (
  'argument_size_in_bytes',
  'output_size_in_bytes',
  'alias_size_in_bytes',
  'temp_size_in_bytes',
  'generated_code_size_in_bytes',
  'peak_memory_in_bytes',
)
_TOO_MUCH = re.compile(
  r'Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm|'
  r'\(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)'
)
_UNITS = {'': 1, 'K': 2**10, 'M': 2**20, 'G': 2**30, 'T': 2**40}


def compile_to(request, folder):
  """Writes facts.json, and program.hlo.gz if the program fits.

  Args:
    request: of compiling.request.
    folder: that is there.
  """
  import jax

  from t5x_lite import partitioning
  from t5x_lite import record
  from t5x_lite import storage
  from t5x_lite import train
  from t5x_lite.data import shapes

  run = record.from_record(request['record'])
  devices = chips(request)
  mesh = partitioning.make_mesh(run.mesh, devices)
  start = time.monotonic()
  facts = {'mesh': dict(mesh.shape)}
  with jax.set_mesh(mesh):
    program = train.Program.build(run, mesh)
    laid = list(mesh.devices.flat)
    facts['coords'] = [getattr(device, 'coords', None) for device in laid]
    facts['slices'] = [getattr(device, 'slice_index', 0) for device in laid]
    options = request['options']
    try:
      compiled = program.compile_step(shapes.batch(run), options)
    except jax.errors.JaxRuntimeError as e:
      facts['too_much'] = too_much(str(e))
      if facts['too_much'] is None:
        raise
    else:
      memory = compiled.memory_analysis()
      facts['memory'] = {
        name.removesuffix('_in_bytes'): getattr(memory, name)
        for name in _MEMORY
      }
      text = gzip.compress(compiled.as_text().encode(), 3)
      storage.write_bytes(folder / 'program.hlo.gz', text)
  used = resource.getrusage(resource.RUSAGE_SELF)
  facts['seconds'] = time.monotonic() - start
  facts['cpu_seconds'] = used.ru_utime + used.ru_stime
  facts['rss'] = used.ru_maxrss * 1024
  storage.write_text(folder / 'facts.json', json.dumps(facts))


def chips(request):
  """The devices that are compiled for, as jax has them."""
  if request['platform'] == 'cuda':
    from t5x_lite import accelerators
    from t5x_lite.planning import targets

    accelerator = accelerators.parse(request['topology'])
    return targets.topology(accelerator).devices
  from jax.experimental import topologies

  return topologies.get_topology_desc(
    platform=request['platform'],
    topology_name=request['topology'],
    **request['arguments'],
  ).devices


def too_much(message):
  """{needed, available} bytes of an error of the compiler, or None."""
  found = _TOO_MUCH.search(message)
  if not found:
    return None
  needed, unit, available, other = [x for x in found.groups() if x is not None]
  return {
    'needed': int(float(needed) * _UNITS[unit]),
    'available': int(float(available) * _UNITS[other]),
  }


def _end_with_parent():
  """Leaves when whoever asks is gone: then its end of the pipe is closed."""
  while os.read(0, 1):  # a reader with a lock would hang at the end
    pass
  os._exit(1)


def main(argv):
  threading.Thread(target=_end_with_parent, daemon=True).start()
  request = json.loads(pathlib.Path(argv[0]).read_text())
  os.environ['JAX_PLATFORMS'] = 'cpu'  # of what runs here
  os.environ['TPU_SKIP_MDS_QUERY'] = '1'  # no machine of Google's to ask
  os.environ['ALLOW_MULTIPLE_LIBTPU_LOAD'] = '1'  # several plans at once
  with contextlib.suppress(KeyboardInterrupt):
    try:
      compile_to(request, pathlib.Path(argv[1]))
    except errors.StorageError as e:  # the disk has no room for a log, either
      return e.exit_code
    return 0
  return 130


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
