"""The arrays of a saved step, as Orbax has them in its folder `state`."""

import re

import jax
import numpy as np
import orbax.checkpoint as ocp

from t5x_lite import errors
from t5x_lite import partitioning


def check_name(folder):
  """Refuses what Orbax would take for a pattern, and lose the arrays by."""
  if re.search(r'\\|\[[^/]*\]', str(folder)):
    raise errors.ConfigError(
      'checkpoints cannot be kept under this name',
      got=folder,
      expected='a path without a backslash or [...]',
      fix='choose another --workdir',
    )


def _handler():
  return ocp.PyTreeCheckpointHandler(use_zarr3=True)


def arrays(folder):
  """What a step holds, by path, with shapes and dtypes."""
  return partitioning.by_path(_handler().metadata(folder / 'state').tree)


def restore(folder, abstract):
  """Reads a part of a step onto the devices that abstract arrays name."""
  return _restore(
    folder, abstract, ocp.checkpoint_utils.construct_restore_args(abstract)
  )


def read(folder, path):
  """One array of a step, as numpy's; those beside it are not read."""
  as_numpy = ocp.RestoreArgs(restore_type=np.ndarray)
  item, options = 0, as_numpy
  for name in reversed(path.split('/')):
    item, options = {name: item}, {name: options}
  [array] = jax.tree.leaves(_restore(folder, item, options))
  return array


def _restore(folder, item, options):
  return _handler().restore(
    folder / 'state',
    args=ocp.args.PyTreeRestore(
      item=item, restore_args=options, partial_restore=True
    ),
  )
