"""The figures of a plan, in plain values: what `--json` prints."""

import collections
import dataclasses

from t5x_lite import chips
from t5x_lite import data
from t5x_lite import flops
from t5x_lite import models
from t5x_lite import partitioning
from t5x_lite.nn.kernels import splash
from t5x_lite.planning import analytic
from t5x_lite.planning import collectives
from t5x_lite.planning import compiling
from t5x_lite.planning import counting
from t5x_lite.planning import families
from t5x_lite.planning import fitting
from t5x_lite.planning import loops
from t5x_lite.planning import memory
from t5x_lite.planning import network
from t5x_lite.planning import timing

SECONDS_A_DAY = 86_400
_BUFFERS = 12  # the largest that are named
_SMALL = 2**20  # bytes of an exchange that nobody minds
_DESIGN = {  # over which axes the design exchanges what
  'all-gather': {'fsdp', 'tensor', 'sequence'},
  'reduce-scatter': {'replica', 'data', 'fsdp', 'tensor', 'sequence'},
  'all-reduce': {'replica', 'data', 'tensor', 'sequence'},
  'all-to-all': {'fsdp'},  # of looked up embeddings, from width to rows
  'collective-permute': {'fsdp', 'tensor', 'sequence'},  # a product's ring
}


def of(run, accelerator, compiled, fast=False, rates=None):
  """All figures of a compiled train step.

  Args:
    run: specs.Run.
    accelerator: accelerators.Accelerator.
    compiled: compiling.Compiled.
    fast: whether in haste.
    rates: timing.Rates.

  Returns:
    A dict of plain values, in bytes, operations and seconds.
  """
  chip = chips.CHIPS[accelerator.kind]
  too_much = _too_much(accelerator, compiled, chip.available())
  found = {
    'level': 'fast' if fast else 'compiled',
    'accelerator': _name(accelerator),
    'devices': accelerator.devices,
    'mesh': compiled.mesh,
    'fits': too_much is None,
    'hbm': chip.available(),
    'hbm_whole': chip.hbm_usable,
    'unsharded': unsharded(run, accelerator, compiled.mesh),
    'notes': _notes(run, accelerator),
    'compile': {
      'seconds': compiled.seconds,
      'cpu_seconds': compiled.cpu_seconds,
      'rss': compiled.rss,
      'cached': compiled.cached,
    },
  }
  if too_much:
    estimate = without(run, accelerator, compiled.mesh)
    return found | {
      'too_much': too_much,
      'estimate': estimate['memory'],
      'fix': fitting.nearest(run, accelerator),
    }
  module = compiled.module
  runs, turns, unknown = loops.count(module)
  net = network.Network.of(chip, compiled.slices, compiled.coords)
  exchanges = collectives.find(module, runs, net.slices)
  clock = timing.Clock(
    module, turns, exchanges, net, rates, attended(run.model, data.widths(run))
  )
  times = clock.step()
  work = _work(run, accelerator, module, runs)
  found |= {
    'memory': _memory(run, compiled),
    'flops': work,
    'collectives': _collectives(module, runs, exchanges, net, compiled.mesh),
    'times': _times(times, chip),
    'unknown_loops': unknown,
  }
  return found | speed(run, accelerator, times.total)


def _name(accelerator):
  tpu = accelerator.is_tpu  # which says its kind itself
  return str(accelerator) if tpu else f'{accelerator.name}: {accelerator}'


def without(run, accelerator, sizes):
  """What can be told without a compiler: memory by estimate, and arithmetic.

  Args:
    run: specs.Run.
    accelerator: accelerators.Accelerator.
    sizes: {axis: size} of its mesh.
  """
  chip = chips.CHIPS[accelerator.kind]
  estimate = analytic.estimate(run, analytic.mesh_on(sizes, accelerator))
  halved, whole = estimate.flops
  return {
    'level': 'analytic',
    'accelerator': _name(accelerator),
    'devices': accelerator.devices,
    'mesh': sizes,
    'fits': estimate.total <= chip.available(),
    'hbm': chip.available(),
    'hbm_whole': chip.hbm_usable,
    'unsharded': unsharded(run, accelerator, sizes),
    'memory': {
      'peak': estimate.total,
      'families': estimate.families,
      'at': estimate.moment,
      'error': analytic.ERROR,
    },
    'flops': {'model': halved, 'model_attention_whole': whole},
  }


def unsharded(run, accelerator, sizes):
  """A line for each parameter that lies whole, as the mesh does not divide it.

  So does what is made by it: logits of a vocabulary that no `tensor` divides.
  """
  model = models.build(run.model)
  mesh = analytic.mesh_on(sizes, accelerator)
  return partitioning.unsharded(model.abstract, model.axes, mesh)


def _too_much(accelerator, compiled, room):
  """{needed, available} bytes of what does not fit, or None.

  Compilers of TPUs refuse it themselves; that of GPUs knows nothing of the
  share that JAX takes.
  """
  if compiled.too_much or accelerator.is_tpu:
    return compiled.too_much
  needed = _whole(compiled, memory.peak(compiled.module))
  return {'needed': needed, 'available': room} if needed > room else None


def _whole(compiled, peak):
  """Bytes at the peak: as the compiler says, else what was followed."""
  return compiled.memory.get('peak_memory', 0) or peak.bytes


def _times(times, chip):
  """Times as a dict, exchanges by what joins these chips."""
  names = dict(zip(('ici', 'dcn'), chip.networks))
  found = dataclasses.asdict(times)
  return {names.get(name, name): seconds for name, seconds in found.items()}


def _notes(run, accelerator):
  if accelerator.is_tpu:
    return []
  notes = ['compiled without the tuning that a GPU allows: its times are rough']
  if compiling.without_cudnn(run):
    notes.append(
      "attention is compiled as 'chunked': where cuDNN is and takes it, it is "
      'faster and needs less'
    )
  return notes


def attended(spec, widths):
  """Share of all pairs that a fused kernel computes: it skips hidden blocks.

  Args:
    spec: specs.Transformer.
    widths: tokens of a row of each stack.
  """
  if spec.encoder_layers or spec.mask != 'causal' or spec.windows:
    return 1.0
  blocks = max(widths['decoder'] / splash.BLOCKS[0], 1.0)
  return (1 + 1 / blocks) / 2


def speed(run, accelerator, seconds):
  """What follows of a step's seconds: MFU, tokens a second, days."""
  chip = chips.CHIPS[accelerator.kind]
  widths = data.widths(run)
  halved, whole = flops.of_run(run, widths)
  peak = chip.flops * accelerator.devices
  tokens = run.batch_size * sum(widths.values())
  return {
    'seconds': seconds,
    'mfu': halved / peak / seconds,
    'mfu_attention_whole': whole / peak / seconds,
    'tokens_per_second': tokens / seconds,
    'days': seconds * run.steps / SECONDS_A_DAY,
  }


def _work(run, accelerator, module, runs):
  halved, whole = (
    x / accelerator.devices for x in flops.of_run(run, data.widths(run))
  )
  total = moved = 0
  for name, times in runs.items():
    computation = module.computations[name]
    for op in computation.ops.values():
      work = counting.work(module, computation, op)
      total += times * work.flops
      moved += times * work.bytes
  return {
    'model': halved,
    'model_attention_whole': whole,
    'compiled': total,
    'ratio': total / whole,
    'hbm_bytes': moved,
  }


def _memory(run, compiled):
  module = compiled.module
  peak = memory.peak(module)
  shards = compiled.mesh['tensor'] * compiled.mesh['sequence']
  kinds = families.Families(
    module, run.model.vocab_size, run.model.embed_dim, shards
  )
  sums = collections.Counter()
  for buffer in peak.buffers:
    sums[kinds.of(buffer)] += buffer.bytes
  code = compiled.memory.get('generated_code_size', 0)
  sums[families.CODE] = code
  whole = _whole(compiled, peak)
  sums[families.REST] = max(0, whole - peak.bytes - code)
  named = [
    {
      'bytes': b.bytes,
      'array': str(b.array),
      'family': kinds.of(b),
      'tensor': families.path(b.op)
      if b.parameter is not None
      else _short(b.maker.op_name),
      'source': module.source(b.maker),
    }
    for b in peak.buffers[:_BUFFERS]
  ]
  return {
    'peak': whole,
    'followed': peak.bytes,
    'compiler': compiled.memory,
    'families': {name: sums[name] for name in families.ALL},
    'buffers': named,
    'at': module.source(peak.at),
  }


def _short(op_name):
  """The end of an operation's place in the traced program."""
  return '/'.join(op_name.split('/')[-2:])


def _collectives(module, runs, exchanges, net, mesh):
  """One entry for each kind, axes and network, the most bytes first."""
  groups = {}
  for name, times in runs.items():
    computation = module.computations[name]
    for x in exchanges[name]:
      axes = collectives.axes(x.groups, mesh)
      across = net.chip.networks[net.crosses(x.groups)]
      ici, dcn, _ = net.seconds(x)
      hidden = collectives.overlapped(module, computation, x)
      entry = groups.setdefault(
        (x.kind, axes, across),
        {
          'kind': x.kind,
          'axes': list(axes),
          'network': across,
          'count': 0,
          'bytes': 0.0,
          'seconds': 0.0,
          'hidden_bytes': 0.0,
          'unexpected_bytes': 0.0,
          'source': '',
        },
      )
      entry['count'] += times
      entry['bytes'] += times * x.sent
      entry['seconds'] += times * (ici + dcn)
      entry['hidden_bytes'] += times * x.sent * hidden
      if not expected(x, axes):
        entry['unexpected_bytes'] += times * x.sent
        where = module.source(x.op) or _short(x.op.op_name)
        entry['source'] = entry['source'] or where
  return sorted(groups.values(), key=lambda e: -e['bytes'])


def expected(collective, axes):
  """Whether the design calls for such an exchange, or it is a small one."""
  # Optimizers sum up rows and columns, several small arrays at once.
  if max(a.plain_bytes for a in collective.op.arrays) < _SMALL:
    return True
  if collective.op.array.dtype[0] in 'su':  # tokens, for who looks them up
    return True
  of_product = collective.op.op_name.endswith('dot_general')
  if collective.is_sliced:
    # Over several sides of a torus the compiler sums up whole what it is told
    # to scatter, and slices it: as quick as along one side.
    return True
  if not set(axes) <= _DESIGN[collective.kind]:
    return False
  return of_product or collective.kind != 'collective-permute'
