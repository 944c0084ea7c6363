"""The mesh of devices, and which axis of an array lies on which of its axes.

Layers name the axes of their arrays; the table below is all that ties those
names to the mesh.
"""

import contextlib
import contextvars
import functools
import math
import os

import jax
from jax.experimental import mesh_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
import numpy as np

from t5x_lite import errors

AXES = ('replica', 'data', 'fsdp', 'tensor', 'sequence')

ANY = 'any'  # the platform of what is traced once for all of them
_EXPORTING = contextvars.ContextVar('exporting', default=False)

# A mesh axis serves one axis of an array: the first that asks for it.
RULES = {
  'batch': ('replica', 'data', 'fsdp'),
  'rows': ('replica', 'data'),  # where fsdp shares the width instead
  'length': ('sequence',),
  'keys': (),  # each query sees all of them
  'vocab': ('tensor',),
  'logits': ('tensor', 'sequence'),  # sequence, where it can't share the length
  'heads': ('tensor',),
  'mlp': ('tensor',),
  'embed': ('fsdp',),
  'kv': (),
  'whole': (),  # what was shared, brought together
  'buckets': (),
  'positions': (),
  'types': (),
  'classes': (),
  'layers': (),
}


def check_mesh(spec, num_devices, slices=1):
  """The sizes of the mesh's axes, with -1 filled in; looks at no device.

  Args:
    spec: specs.Mesh.
    num_devices: of all slices together.
    slices: TPU pods, joined by a data-centre network.

  Raises:
    ConfigError: it does not fit; the nearest that do are named.
  """
  shape = {name: getattr(spec, name) for name in AXES}
  free = list(shape.values()).count(-1)
  fixed = math.prod(size for size in shape.values() if size != -1)
  said = ' x '.join(f'{name} {size}' for name, size in shape.items())
  if free > 1:
    raise errors.ConfigError(
      'Mesh has more than one axis of -1',
      got=said,
      expected='one at most; it takes the devices that the others leave',
    )
  if num_devices % fixed or (not free and fixed != num_devices):
    what, rule = f'{num_devices} devices', f'a product of {num_devices}'
  else:
    rest = num_devices // fixed
    sizes = {k: rest if size == -1 else size for k, size in shape.items()}
    if batch_shards(sizes) % slices == 0:
      return sizes
    what = f'{slices} slices'
    rule = (
      f'replica x data x fsdp to be a multiple of {slices}: tensor and sequence'
      ' stay within a slice'
    )
  nearest = nearest_meshes(shape, num_devices, slices)
  raise errors.ConfigError(
    f'Mesh does not fit {what}',
    got=said,
    expected=rule,
    fix=', or '.join(_changes(shape, found) for found in nearest) or None,
  )


def nearest_meshes(shape, devices, slices=1, batch_size=None):
  """At most three meshes that fit, the nearest first.

  The nearest changes the fewest axes, and these by the least factor; of two
  that do it alike, the one that shares more data.

  Args:
    shape: {axis: size}; an axis of -1 stays one.
    devices: that the sizes are to multiply to.
    slices: that the axes of a batch are to span.
    batch_size: of a microbatch, that is to divide; None: any.

  Returns:
    A list of {axis: size}.
  """
  found = []
  for sizes in _products(devices, len(AXES)):
    filled = dict(zip(AXES, sizes, strict=True))
    shards = batch_shards(filled)
    if shards % slices or (batch_size is not None and batch_size % shards):
      continue
    mesh = {k: -1 if shape[k] == -1 else size for k, size in filled.items()}
    pairs = [(n, shape[k]) for k, n in mesh.items() if n != shape[k]]
    factor = math.prod(max(pair) / min(pair) for pair in pairs)
    more = [-filled[k] for k in ('data', 'fsdp', 'replica', 'tensor')]
    found.append((len(pairs), factor, more, list(mesh.items())))
  return [dict(mesh) for *_, mesh in sorted(found)[:3]]


@functools.lru_cache
def _products(number, count):
  """All ways to write a number as a product of so many, in order."""
  if count == 1:
    return [(number,)]
  divisors = [n for n in range(1, number + 1) if number % n == 0]
  return [(n, *x) for n in divisors for x in _products(number // n, count - 1)]


def _changes(old, new):
  """The options that make one shape of a mesh another."""
  return ' '.join(
    f'--gin.Mesh.{k}={size}' for k, size in new.items() if size != old[k]
  )


def all_devices():
  """The devices that JAX finds, or one message that says why there are none."""
  try:
    return jax.devices()
  except (RuntimeError, AssertionError) as e:
    wanted = os.environ.get('JAX_PLATFORMS')
    raise errors.DeviceError(
      'JAX finds no device',
      where=f'JAX_PLATFORMS={wanted}' if wanted else None,
      got=(str(e).splitlines() or [type(e).__name__])[0],
      fix='unset JAX_PLATFORMS, or install the [gpu] or [tpu] extra',
    ) from e


def make_mesh(spec, devices=None):
  """The mesh of a run over all devices of all processes, or over these.

  Devices of several slices (TPU pods joined by a data-centre network) are laid
  out so that the outer axes alone cross from slice to slice.
  """
  devices = all_devices() if devices is None else devices
  slices = count_slices(devices)
  shape = check_mesh(spec, len(devices), slices)
  across, rest = [], slices  # of each axis: as the outermost that can
  for name, size in shape.items():
    across.append(math.gcd(size, rest) if name in RULES['batch'] else 1)
    rest //= across[-1]
  within = [size // n for size, n in zip(shape.values(), across, strict=True)]
  # Any mesh that multiplies to the devices is laid out, on a torus as well as
  # that shape allows.
  if slices == 1:
    laid = mesh_utils.create_device_mesh(
      within, devices, allow_split_physical_axes=True
    )
  else:
    laid = mesh_utils.create_hybrid_device_mesh(
      within, across, devices, allow_split_physical_axes=True
    )
  types = (jax.sharding.AxisType.Auto,) * len(AXES)
  return jax.sharding.Mesh(laid, AXES, axis_types=types)


def count_slices(devices):
  """Of how many TPU pods these devices are; 1 of anything else."""
  return len({getattr(device, 'slice_index', 0) for device in devices})


def batch_shards(mesh_axes):
  """Over how many devices the rows of a batch are spread."""
  return math.prod(mesh_axes[axis] for axis in RULES['batch'])


def check_batch(mesh_axes, batch_size, microbatches=1, slices=1):
  """Refuses a batch that the mesh can't share out evenly.

  Args:
    mesh_axes: {axis: size}, as of `check_mesh`.
    batch_size: rows.
    microbatches: parts of it, one after the other.
    slices: as of `check_mesh`.
  """
  shards = batch_shards(mesh_axes)
  unit = shards * microbatches
  if batch_size % unit:
    below = batch_size // unit * unit
    ways = [' or '.join(str(n) for n in (below, below + unit) if n)]
    rows, left = divmod(batch_size, microbatches)
    if not left:
      devices = math.prod(mesh_axes.values())
      nearest = nearest_meshes(mesh_axes, devices, slices, rows)[:1]
      ways += [_changes(mesh_axes, mesh) for mesh in nearest]
    raise errors.ConfigError(
      'Run.batch_size does not divide over the mesh',
      got=f'{batch_size} rows in {microbatches} microbatch(es) over {shards}'
      ' devices of the axes ' + ', '.join(RULES['batch']),
      expected=f'a multiple of {unit}',
      fix='use ' + ', or '.join(ways),
    )


def partition_spec(shape, axes, mesh):
  """Where an array with these logical axes lies on the mesh.

  A mesh axis that does not divide its dimension is left out.
  """
  used, entries = set(), []
  for size, axis in zip(shape, axes, strict=True):
    entry, shards = [], 1
    for name in RULES[axis]:
      wanted = mesh.shape[name]
      if wanted > 1 and name not in used and size % (shards * wanted) == 0:
        entry.append(name)
        shards *= wanted
    used.update(entry)
    entries.append(tuple(entry) if len(entry) > 1 else (*entry, None)[0])
  return PartitionSpec(*entries)


@contextlib.contextmanager
def exporting():
  """What is traced within takes the way that is right on every platform."""
  token = _EXPORTING.set(True)
  try:
    yield
  finally:
    _EXPORTING.reset(token)


def platform():
  """Of the devices that what is traced now will run on: 'cpu', 'tpu', ANY..."""
  if _EXPORTING.get():
    return ANY
  device = jax.sharding.get_abstract_mesh().abstract_device
  return device.platform if device else jax.default_backend()


def unsharded(shapes, axes, mesh):
  """A line for each parameter that a rule would shard, and the mesh can't."""
  leaves = jax.tree_util.tree_leaves_with_path(shapes)
  names = jax.tree.leaves(axes, is_leaf=lambda x: isinstance(x, tuple))
  return [
    f'not sharded over {axis}, as the mesh does not divide it: '
    f'{path_name(path)} {list(leaf.shape)}'
    for (path, leaf), leaf_axes in zip(leaves, names, strict=True)
    for size, axis in zip(leaf.shape, leaf_axes, strict=True)
    if size % math.prod(mesh.shape[name] for name in RULES[axis])
  ]


def path_name(path):
  """A tree path as a/b/c."""
  return jax.tree_util.keystr(path, simple=True, separator='/')


def by_path(tree, is_leaf=None):
  """{a/b/c: leaf} of a tree."""
  leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_leaf)
  return {path_name(path): leaf for path, leaf in leaves}


def nest(flat):
  """The nested dict whose `by_path` this is."""
  tree = {}
  for path, leaf in flat.items():
    *folders, last = path.split('/')
    inner = tree
    for folder in folders:
      inner = inner.setdefault(folder, {})
    inner[last] = leaf
  return tree


def is_one_device():
  """Whether what is traced now will run on one device."""
  mesh = jax.sharding.get_abstract_mesh()
  return mesh.empty or mesh.size == 1


def constrain(x, axes):
  """Lays an activation on the current mesh; nothing without a mesh."""
  if is_one_device():
    return x
  mesh = jax.sharding.get_abstract_mesh()
  return jax.lax.with_sharding_constraint(
    x, partition_spec(x.shape, axes, mesh)
  )


def shardings(shapes, axes, mesh):
  """A NamedSharding for each parameter of a nested dict."""
  return jax.tree.map(
    lambda leaf, names: NamedSharding(
      mesh, partition_spec(leaf.shape, names, mesh)
    ),
    shapes,
    axes,
  )


def state_shardings(state_shapes, shapes, axes, mesh):
  """Shardings of an optimizer's state, whose paths contain the parameters'.

  Whatever has a parameter's shape, or that with neighbouring axes merged, lies
  where the parameter lies. The rest (counts, row and column moments) is small
  and lies everywhere.
  """
  leaves = jax.tree_util.tree_leaves_with_path(shapes)
  names = jax.tree.leaves(axes, is_leaf=lambda x: isinstance(x, tuple))
  params = {
    path_name(path): (leaf.shape, leaf_axes)
    for (path, leaf), leaf_axes in zip(leaves, names, strict=True)
  }

  def place(path, leaf):
    found = None
    for start in range(len(path)):
      for end in range(start + 1, len(path) + 1):
        param = params.get(path_name(path[start:end]))
        if param:
          found = merge_axes(*param, leaf.shape, mesh)
    return NamedSharding(mesh, found or PartitionSpec())

  return jax.tree_util.tree_map_with_path(place, state_shapes)


def merge_axes(shape, axes, merged_shape, mesh):
  """The placing of an array whose neighbouring axes were merged, or None."""
  spec = [*partition_spec(shape, axes, mesh)]
  entries, at = [], 0
  for size in merged_shape:
    group = 1
    start = at
    while group < size and at < len(shape):
      group *= shape[at]
      at += 1
    if group != size or (start == at and size != 1):
      return None
    # Only the outermost of merged axes may be sharded.
    if any(spec[start + 1 : at]):
      return None
    entries.append(spec[start] if start < at else None)
  return PartitionSpec(*entries) if at == len(shape) else None


def batch_sharding(mesh):
  """Rows of a batch over the mesh."""
  return NamedSharding(mesh, PartitionSpec(RULES['batch']))


def fill_up(batch_size, mesh):
  """The least number of rows, from a batch size on, that the mesh can share."""
  shards = batch_shards(mesh.shape)
  return -(-batch_size // shards) * shards


@functools.lru_cache  # asked again at every step
def local_rows(mesh, batch_size):
  """Which rows of a batch the devices of this process hold, in order."""
  places = batch_sharding(mesh).addressable_devices_indices_map((batch_size,))
  rows = {n for [part] in places.values() for n in range(batch_size)[part]}
  found = np.array(sorted(rows))
  found.flags.writeable = False
  return found


def put_batch(batch, mesh, batch_size):
  """A batch on the mesh, of which each process brings its `local_rows`."""
  sharding = batch_sharding(mesh)
  rows = local_rows(mesh, batch_size)
  place = np.full(batch_size, -1)
  place[rows] = np.arange(len(rows))

  def put(x):
    if len(x) != len(rows):
      raise ValueError(f'{len(x)} rows, where this process has {len(rows)}')
    return jax.make_array_from_callback(
      (batch_size, *x.shape[1:]), sharding, lambda index: x[place[index[0]]]
    )

  return jax.tree.map(put, batch)


def replicated(mesh):
  """On all devices: what every process is to read."""
  return NamedSharding(mesh, PartitionSpec())
