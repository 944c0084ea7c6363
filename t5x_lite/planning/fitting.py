"""Whether a run's step fits in memory, and the nearest change that does.

What is refused can't fit, even if the estimate is as much too high as MARGIN
allows for; what is proposed fits if the estimate is right.
"""

import bisect
import dataclasses

from t5x_lite import accelerators
from t5x_lite import chips
from t5x_lite import errors
from t5x_lite import partitioning
from t5x_lite.planning import analytic

# Of an estimate, that is surely needed: wider than its ERROR, which is that of
# one kind of TPU.
MARGIN = 0.85
_SHOWN = 0.02  # of the total, from which on a family is told


def check(run, accelerator, environ=None):
  """Refuses a run whose step can't fit in the memory of a chip.

  Args:
    run: specs.Run, whose mesh and batch fit the accelerator.
    accelerator: accelerators.Accelerator.
    environ: variables that it will have; default: those of this process.

  Raises:
    ConfigError: says what it needs, and the nearest change that fits.
  """
  chip = chips.CHIPS.get(accelerator.kind)
  if chip is None:  # GPUs of any kind, and chips that nobody measured
    return
  place = _Place.of(accelerator, chip, environ)
  slices = accelerator.slices if accelerator.is_tpu else 1
  sizes = partitioning.check_mesh(run.mesh, accelerator.devices, slices)
  _check(run, sizes, place)


def check_devices(run, mesh):
  """The same, of the devices of a mesh; CPUs have no memory of their own."""
  device = mesh.local_devices[0]
  if device.platform == 'cpu':
    return
  chip = chips.find(device.device_kind)
  stats = device.memory_stats() or {}
  room = stats.get('bytes_limit') or (chip and chip.available())
  if room:
    whole = chip.hbm_usable if chip else room
    place = _Place(device.platform, device.device_kind, room, whole)
    _check(run, dict(mesh.shape), place)


def nearest(run, accelerator):
  """The options of the nearest change that fits by estimate, or what to do.

  Args:
    run: specs.Run, that does not fit.
    accelerator: accelerators.Accelerator, whose chips have figures.
  """
  place = _Place.of(accelerator, chips.CHIPS[accelerator.kind])
  slices = accelerator.slices if accelerator.is_tpu else 1
  sizes = partitioning.check_mesh(run.mesh, accelerator.devices, slices)
  return _fix(run, sizes, place)


@dataclasses.dataclass(frozen=True)
class _Place:
  """Where a step runs.

  Attributes:
    platform: and device_kind, as JAX calls them.
    device_kind: see platform.
    room: bytes of a device that programs get.
    whole: what JAX takes them of: more, of GPUs.
    larger: (name, devices, slices) of what has more devices.
  """

  platform: str
  device_kind: str
  room: int
  whole: int
  larger: tuple = ()

  @classmethod
  def of(cls, accelerator, chip, environ=None):
    larger = []
    if accelerator.is_tpu:
      of_kind = [
        accelerators.parse(name, accelerator.slices)
        for name in accelerators.names()
        if name.startswith(f'{accelerator.kind}-')
      ]
      larger = [x for x in of_kind if x.devices > accelerator.devices]
    return cls(
      'tpu' if accelerator.is_tpu else 'gpu',
      chip.device_kinds[0],
      chip.available(environ),
      chip.hbm_usable,
      tuple((x.name, x.devices, x.slices) for x in larger),
    )

  def estimate(self, run, sizes):
    mesh = analytic.mesh_of(sizes, self.platform, self.device_kind)
    return analytic.estimate(run, mesh)

  def fits(self, run, sizes):
    return self.estimate(run, sizes).total <= self.room


def _check(run, sizes, place):
  found = place.estimate(run, sizes)
  if MARGIN * found.total <= place.room:
    return
  parts = sorted(found.families.items(), key=lambda pair: -pair[1])
  said = ', '.join(
    f'{name} {_gib(n)}' for name, n in parts if n >= _SHOWN * found.total
  )
  taken = ''
  if place.platform == 'gpu' and place.room < place.whole:
    taken = (
      f', which JAX takes of {place.whole / 2**30:.2f}: {chips.SHARE[0]} says '
      'what share'
    )
  raise errors.ConfigError(
    'the run does not fit in memory',
    got=f'about {_gib(found.total)} GiB of a device, in the {found.moment}'
    f' ({said})',
    expected=f'{place.room / 2**30:.2f} GiB at most{taken}',
    fix=_fix(run, sizes, place),
  )


def _gib(n):
  return f'{n / 2**30:.1f}'


def _fix(run, sizes, place):
  """The options of the nearest change that fits, or what to do without one."""
  wider = sizes | {'data': 1, 'fsdp': sizes['data'] * sizes['fsdp']}
  moved = f'--gin.Mesh.data=1 --gin.Mesh.fsdp={wider["fsdp"]}'
  shards = wider != sizes
  full = dataclasses.replace(
    run, model=dataclasses.replace(run.model, remat='full')
  )
  remat = '--gin.Transformer.remat=full'
  recomputes = run.model.remat != 'full'
  ways = [(run, sizes, '')]
  if recomputes:
    ways.append((full, sizes, remat))
  if shards:
    ways.append((run, wider, moved))
  if recomputes and shards:
    ways.append((full, wider, f'{remat} {moved}'))
  for n, (changed, mesh, options) in enumerate(ways):
    if n and place.fits(changed, mesh):
      return options
    if micro := _microbatches(changed, mesh, place):
      return f'{options} --gin.Run.microbatches={micro}'.strip()
  for name, devices, slices in place.larger:
    try:
      mesh = partitioning.check_mesh(run.mesh, devices, slices)
      partitioning.check_batch(mesh, run.batch_size, run.microbatches, slices)
    except errors.ConfigError:
      continue
    if place.fits(run, mesh):
      return f'{name}, or another with more memory in all'
  return 'more devices with Mesh.fsdp over all of them, or a smaller model'


def _microbatches(run, sizes, place):
  """The least number of microbatches that fits, or None."""
  rows = run.batch_size // partitioning.batch_shards(sizes)
  ways = [n for n in range(run.microbatches + 1, rows + 1) if rows % n == 0]
  fits = lambda n: place.fits(dataclasses.replace(run, microbatches=n), sizes)
  if not ways or not fits(ways[-1]):
    return None
  return ways[bisect.bisect_left(ways, True, key=fits)]
