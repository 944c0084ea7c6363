"""Which mesh, remat and microbatches a run is best trained with.

All that fit by the analytic estimate are ranked by a rough time; the first few
are compiled, and ranked by what their programs take.
"""

import dataclasses
import itertools
import math
import time

from t5x_lite import chips
from t5x_lite import data
from t5x_lite import errors
from t5x_lite import flops
from t5x_lite import partitioning
from t5x_lite.planning import analytic

_MOST = 64  # microbatches that are tried
_REMAT = {'none': 1.0, 'dots': 1.02, 'full': 4 / 3}  # times the products
_AXES = 'data', 'fsdp', 'tensor'
_REACHED = 0.75  # of the peak, by products alone
_HAZARD = 1.1  # times the estimate: what is likelier to fit comes first


@dataclasses.dataclass(frozen=True)
class Candidate:
  """One way to train a run.

  Attributes:
    run: specs.Run.
    sizes: {axis: size} of its mesh.
    seconds: of a step, roughly.
  """

  run: object
  sizes: dict
  seconds: float

  @property
  def flags(self):
    """The options that make a recipe this one."""
    # Those that the search leaves at one are one without a word.
    mesh = [
      f'--gin.Mesh.{k}={n}'
      for k, n in self.sizes.items()
      if k in _AXES or n > 1
    ]
    return ' '.join(
      [
        *mesh,
        f'--gin.Transformer.remat={self.run.model.remat}',
        f'--gin.Run.microbatches={self.run.microbatches}',
      ]
    )


def candidates(run, accelerator):
  """All ways that the batch and the heads allow, the roughly fastest first."""
  found = []
  for sizes in _meshes(run, accelerator):
    shards = partitioning.batch_shards(sizes)
    rows, left = divmod(run.batch_size, shards)
    counts = [] if left else [n for n in _divisors(rows) if n <= _MOST]
    for remat, count in itertools.product(_REMAT, counts):
      model = dataclasses.replace(run.model, remat=remat)
      mesh = dataclasses.replace(run.mesh, **sizes)
      own = dataclasses.replace(run, model=model, mesh=mesh, microbatches=count)
      seconds = _seconds(own, accelerator, sizes)
      found.append(Candidate(own, sizes, seconds))
  return sorted(found, key=lambda c: (c.seconds, c.run.microbatches))


def _meshes(run, accelerator):
  """Sizes of all axes; those that the search leaves alone are the recipe's."""
  model, slices = run.model, accelerator.slices
  replica = slices if run.mesh.replica in (1, -1) else run.mesh.replica
  sequence = 1 if run.mesh.sequence == -1 else run.mesh.sequence
  rest, left = divmod(accelerator.devices, replica * sequence)
  heads = model.num_kv_heads or model.num_heads
  for tensor, fsdp in itertools.product(_divisors(rest), repeat=2):
    data_ = rest // (tensor * fsdp)
    if left or rest % (tensor * fsdp):
      continue
    if heads % tensor or model.mlp_dim % tensor or model.embed_dim % fsdp:
      continue
    yield {
      'replica': replica,
      'data': data_,
      'fsdp': fsdp,
      'tensor': tensor,
      'sequence': sequence,
    }


def _divisors(number):
  return [n for n in range(1, number + 1) if number % n == 0]


def _seconds(run, accelerator, sizes):
  """Of a step, roughly: products, and what no product hides."""
  chip, model = chips.CHIPS[accelerator.kind], run.model
  widths = data.widths(run)
  lengths = [widths.get(side, 0) for side in ('encoder', 'decoder')]
  _, whole = flops.of_run(run, widths)
  products = whole * _REMAT[model.remat] / accelerator.devices
  products /= chip.flops * _REACHED
  link = chip.link_bandwidth * chips.LINK_REACHED * 2
  ways = _sides(accelerator, sizes['fsdp'])
  # A layer's weights are gathered for each pass of each microbatch.
  weights = (
    12 * model.embed_dim**2 * (model.encoder_layers + model.decoder_layers)
  )
  passes = 2 + (model.remat == 'full')
  fsdp, tensor = sizes['fsdp'], sizes['tensor']
  gathered = 2 * weights / tensor * (fsdp - 1) / fsdp
  gathering = run.microbatches * passes * gathered / (link * ways)
  # Over three sides of a torus libtpu gathers by a sum, and waits for it.
  hidden, exposed = (0, 2 * gathering) if ways > 2 else (gathering, 0)
  exposed += run.microbatches * gathered / (link * ways)  # to share gradients
  summed = 4 * weights / tensor / fsdp if sizes['data'] > 1 else 0
  shards = partitioning.batch_shards(sizes)
  stream = 2 * run.batch_size / shards * model.embed_dim
  layers = sum(
    n * layers * k
    for n, layers, k in zip(
      lengths, (model.encoder_layers, model.decoder_layers), (2, 3)
    )
  )
  exchanged = 2 * stream * layers * 2 * passes / 2 if tensor > 1 else 0
  exposed += 2 * exchanged * (tensor - 1) / tensor / link
  exposed += 2 * summed / (link * _sides(accelerator, sizes['data']))
  return max(products, hidden) + exposed


def _sides(accelerator, size):
  """Sides of the torus that an axis of the mesh lies along, at the least."""
  if not accelerator.is_tpu:
    return 1
  sides, count = sorted(map(int, accelerator.shape.split('x'))), 1
  while math.prod(sides[-count:]) < size and count < len(sides):
    count += 1
  return count


def _estimate(candidate, accelerator):
  place = analytic.mesh_on(candidate.sizes, accelerator)
  return analytic.estimate(candidate.run, place)


def fitting(found, accelerator, limit):
  """The first so many that fit by the analytic estimate, with it.

  Of those that differ in microbatches alone, the one with the fewest.
  """
  usable = chips.CHIPS[accelerator.kind].available()
  kept, seen = [], set()
  for candidate in found:
    kind = (candidate.run.mesh, candidate.run.model.remat)
    if kind in seen:
      continue
    estimate = _estimate(candidate, accelerator)
    if estimate.total * _HAZARD < usable:
      seen.add(kind)
      kept.append((candidate, estimate))
      if len(kept) == limit:
        break
  return kept


def _least(found, accelerator):
  """(Candidate, bytes) of what keeps least: all recomputed, few rows."""

  def keeps(candidate):
    own, sizes = candidate.run, candidate.sizes
    shards = partitioning.batch_shards(sizes) * own.microbatches
    shared = sizes['fsdp'] * sizes['tensor']
    return own.model.remat != 'full', own.batch_size / shards, -shared

  least = min(found, key=keeps)
  return least, _estimate(least, accelerator).total


def run(base, accelerator, limit, plan, say):
  """Compiles the best few and ranks them.

  Args:
    base: specs.Run.
    accelerator: accelerators.Accelerator.
    limit: how many are compiled.
    plan: from a run to its figures.
    say: prints a line.

  Returns:
    [(Candidate, figures)], the fastest first; those that don't fit last.
  """
  found = candidates(base, accelerator)
  if not found:
    raise errors.ConfigError(
      'no mesh fits the batch and the heads',
      got=f'{base.batch_size} rows, {base.model.num_heads} heads on '
      f'{accelerator.devices} devices',
      fix='another Run.batch_size',
    )
  kept = fitting(found, accelerator, limit)
  if not kept:
    least, need = _least(found, accelerator)
    raise errors.ConfigError(
      'no way to train it fits by estimate',
      got=f'{len(found)} ways; the least needs {need / 2**30:.1f} GiB a chip: '
      + least.flags,
      expected=f'{chips.CHIPS[accelerator.kind].available() / 2**30:.2f} GiB',
      fix='more chips, or a smaller Run.batch_size',
    )
  say(
    f'{len(found)} ways to train it; {len(kept)} of those that fit by estimate '
    'are compiled, the roughly fastest first'
  )
  done, start = [], time.monotonic()
  for n, (candidate, estimate) in enumerate(kept):
    eta = (time.monotonic() - start) / n * (len(kept) - n) if n else None
    left = f', {eta:.0f} s left' if eta else ''
    say(
      f'{n + 1} of {len(kept)}: {candidate.flags} (roughly '
      f'{candidate.seconds * 1e3:.0f} ms, {estimate.total / 2**30:.1f} GiB)'
      f'{left}'
    )
    try:
      done.append((candidate, plan(candidate.run)))
    except errors.DeviceError as e:
      say(f'not compiled: {e}')
    except KeyboardInterrupt:
      say('interrupted: the same command goes on with the next')
      break
  return sorted(done, key=lambda x: x[1].get('seconds', float('inf')))
