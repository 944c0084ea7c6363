"""One process of several: what `test_processes.py` compares.

python -m tests.process_worker TASK HOST:PORT COUNT INDEX OUT [WORKDIR]
"""

import hashlib
import json
import sys

import jax
from jax.experimental import multihost_utils
import numpy as np

from t5x_lite import checkpoints
from t5x_lite import partitioning
from t5x_lite import processes
from t5x_lite import record
from t5x_lite import specs
from t5x_lite import train
from tests import tiny


def whole(tree):
  """A tree of arrays over all processes, as numpy."""
  return multihost_utils.process_allgather(tree, tiled=True)


def gradients(out):
  """Loss and gradients of a step with dropout on packed rows, to a file."""
  run = tiny.run(
    tiny.transformer(dropout=0.2, dtype='float64'),
    mesh=specs.Mesh(data=1, fsdp=2, tensor=2),
    batch_size=16,
    microbatches=2,
  )
  mesh = partitioning.make_mesh(run.mesh)
  batch = tiny.batch(run.batch_size, packed=True)
  rows = partitioning.local_rows(mesh, run.batch_size)
  own = {name: x[rows] for name, x in batch.items()}
  with tiny.kept_gradients(), jax.set_mesh(mesh):
    program = train.Program.build(run, mesh)
    state = tiny.state(program)
    step = program.compile_step(own)
    state, metrics = step(
      state, partitioning.put_batch(own, mesh, run.batch_size)
    )
    found = whole(state['opt_state']['tensors'])
  if processes.is_first():
    leaves = jax.tree_util.tree_leaves_with_path(found)
    arrays = {partitioning.path_name(path): x for path, x in leaves}
    numbers = {k: np.asarray(v) for k, v in jax.device_get(metrics).items()}
    np.savez(out, rows=rows, **arrays, **numbers)


def restored(out, workdir):
  """The checksum of each array of the newest state, to a file."""
  saver = checkpoints.Checkpoints.reader(workdir)
  step = saver.latest()
  run = record.from_record(saver.read_record(step))
  mesh = partitioning.make_mesh(specs.Mesh(data=1, fsdp=-1))
  with jax.set_mesh(mesh):
    program = train.Program.build(run, mesh)
    state, position = saver.restore(step, program.abstract_state)
    leaves = jax.tree_util.tree_leaves_with_path(whole(state))
  if processes.is_first():
    found = {
      partitioning.path_name(path): hashlib.sha256(
        np.ascontiguousarray(x).tobytes()
      ).hexdigest()
      for path, x in leaves
    }
    with open(out, 'w', encoding='utf-8') as f:
      json.dump({'step': step, 'position': position, 'state': found}, f)


def main(task, address, count, index, out, *workdir):
  place = processes.Place(address, int(count), int(index), timeout=60)
  if place.count > 1:
    processes.join(place, {})
  {'gradients': gradients, 'restored': restored}[task](out, *workdir)
  processes.leave()


if __name__ == '__main__':
  main(*sys.argv[1:])
