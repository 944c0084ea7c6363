"""The command `plan`: what a run will take of chips that are not there."""

import json
import sys

from t5x_lite import accelerators
from t5x_lite import chips
from t5x_lite import errors
from t5x_lite import partitioning
from t5x_lite import show
from t5x_lite.planning import compiling
from t5x_lite.planning import figures
from t5x_lite.planning import picture
from t5x_lite.planning import prices
from t5x_lite.planning import report
from t5x_lite.planning import search

_COMPARED = (  # what is set side by side: its name and how it reads
  ('fits', ('fits',), str),
  ('HBM of a chip', ('memory', 'peak'), report.gib),
  ('TFLOP of a chip', ('flops', 'compiled'), lambda x: f'{x / 1e12:.4g}'),
  ('times the model', ('flops', 'ratio'), lambda x: f'{x:.3f}'),
  ('ms of a step', ('seconds',), lambda x: f'{x * 1e3:.1f}'),
  ('MFU', ('mfu',), lambda x: f'{x:.1%}'),
  ('tokens/s', ('tokens_per_second',), lambda x: f'{x:,.0f}'),
  ('days', ('days',), lambda x: f'{x:.2f}'),
  ('dollars', ('dollars',), lambda x: f'{x:,.0f}'),
)


def check(options):
  """Refuses options that contradict each other."""
  if options.analytic and (options.fast or options.search or options.compare):
    raise errors.ConfigError(
      '--analytic compiles nothing',
      got='--fast' if options.fast else '--search or --compare',
      expected='one of them',
    )
  if options.compare and options.gin_file:
    raise errors.ConfigError('--compare names the recipes: no --gin_file')
  if options.search and options.compare:
    raise errors.ConfigError('--search and --compare are both given')
  if options.picture and (options.search or options.compare):
    raise errors.ConfigError('--picture draws one plan')


def run(options, load):
  """Plans.

  Args:
    options: of the command.
    load: from names of recipes to a specs.Run.
  """
  check(options)
  accelerator = accelerators.parse(options.topology, where='--topology')
  _check_chips(accelerator)
  if options.fast and not accelerator.is_tpu:
    raise errors.ConfigError('--fast is of TPUs: GPUs are compiled for at once')

  def say(text):
    print(text, file=sys.stderr if options.json else sys.stdout, flush=True)

  def checked(own):
    """A run whose mesh and batch fit these chips."""
    partitioning.check_batch(
      _sizes(own, accelerator),
      own.batch_size,
      own.microbatches,
      accelerator.slices if accelerator.is_tpu else 1,
    )
    return own

  def plan(own):
    if not compiling.is_kept(own, accelerator, options.fast):
      print('compiling: minutes for large models', file=sys.stderr, flush=True)
    compiled = compiling.compile(own, accelerator, options.fast)
    found = figures.of(own, accelerator, compiled, options.fast)
    return found | prices.of(accelerator, found.get('days'))

  if options.compare:
    runs = {name: checked(load([name])) for name in options.compare}
    found = {name: plan(own) for name, own in runs.items()}
    result = found
    if not options.json:
      show.table(_side_by_side(found), right=len(found))
  elif options.search:
    ranked = search.run(
      load(options.gin_file), accelerator, options.compile, plan, say
    )
    result = [{'flags': c.flags} | x for c, x in ranked]
    if not options.json:
      _ranking(ranked)
  else:
    own = checked(load(options.gin_file))
    known = accelerator.is_tpu or compiling.has_compiler('cuda')
    if options.analytic or not known:
      result = figures.without(own, accelerator, _sizes(own, accelerator))
      if not options.analytic:
        result['notes'] = [
          "not compiled, as JAX's CUDA plugin is not installed: pip install "
          '--no-deps jax-cuda12-plugin jax-cuda12-pjrt, of the version of JAX'
        ]
    else:
      result = plan(own)
    if not options.json:
      report.tell(result)
    if options.picture and 'memory' not in result:
      say('nothing is drawn of what does not fit')
    elif options.picture:
      picture.draw(result, options.picture)
      say(f'drawn: {options.picture}')
  if options.json:
    print(json.dumps(result, indent=2))


def _sizes(own, accelerator):
  """{axis: size} of a run's mesh on these chips."""
  slices = accelerator.slices if accelerator.is_tpu else 1
  return partitioning.check_mesh(own.mesh, accelerator.devices, slices)


def _check_chips(accelerator):
  """Refuses chips that nobody knows the figures of."""
  chip = chips.CHIPS.get(accelerator.kind)
  if chip is None:
    raise errors.ConfigError(
      'no figures of this kind of chip',
      where='--topology',
      got=accelerator.name,
      expected=f'one of {", ".join(chips.CHIPS)}',
      choices=list(chips.CHIPS),
    )
  if not accelerator.is_tpu and accelerator.chips > chip.domain:
    raise errors.ConfigError(
      f'a node has {chip.domain} of these GPUs at most',
      where='--topology',
      got=accelerator.name,
      fix=f'{accelerator.chips // chip.domain}x{chip.kind}-{chip.domain}',
    )


def _look(found, path):
  for name in path:
    found = found.get(name) if isinstance(found, dict) else None
  return found


def _side_by_side(found):
  rows = [('', *found)]
  for name, path, text in _COMPARED:
    values = [_look(x, path) for x in found.values()]
    if any(v is not None for v in values):
      rows.append((name, *('' if v is None else text(v) for v in values)))
  return rows


def _ranking(ranked):
  rows = [('rank', 'ms', 'MFU', 'HBM', 'bound by', 'flags')]
  for n, (candidate, x) in enumerate(ranked, 1):
    if x['fits']:
      rows.append(
        (
          str(n),
          f'{x["seconds"] * 1e3:.1f}',
          f'{x["mfu"]:.1%}',
          report.gib(x['memory']['peak']),
          report.bound(x),
          candidate.flags,
        )
      )
    else:
      rows.append((str(n), '', '', 'too much', '', candidate.flags))
  show.table(rows, right=0)
