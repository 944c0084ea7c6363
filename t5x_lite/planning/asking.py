"""The command `plan`: what a run will take of chips that are not there."""

import json
import sys

from t5x_lite import accelerators
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
  if options.picture and not options.picture.endswith('.png'):
    raise errors.ConfigError(
      '--picture is drawn as PNG',
      got=options.picture,
      expected='a name that ends with .png',
    )
  if options.analytic and (options.fast or options.search or options.compare):
    raise errors.ConfigError(
      '--analytic compiles nothing',
      got='--fast' if options.fast else '--search or --compare',
      expected='one of them',
    )
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

  def say(text):
    print(text, file=sys.stderr if options.json else sys.stdout, flush=True)

  def plan(own):
    compiled = compiling.compile(own, accelerator, options.fast)
    found = figures.of(own, accelerator, compiled, options.fast)
    return found | prices.of(accelerator, found.get('days'))

  if options.compare:
    found = {name: plan(load([name])) for name in options.compare}
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
    own = load(options.gin_file)
    sizes = partitioning.check_mesh(
      own.mesh, accelerator.devices, accelerator.slices
    )
    partitioning.check_batch(
      sizes, own.batch_size, own.microbatches, accelerator.slices
    )
    if options.analytic:
      result = figures.without(own, accelerator, sizes)
    else:
      result = plan(own)
    if not options.json:
      report.tell(result)
    if options.picture:
      picture.draw(result, options.picture)
      say(f'drawn: {options.picture}')
  if options.json:
    print(json.dumps(result, indent=2))


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
