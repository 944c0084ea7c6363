"""The options of `plan`: for which chips, how exactly, and what is shown."""

from t5x_lite import values

EXAMPLES = """t5x_lite plan --gin_file=t5/1_1_xl --topology=v5e-64 --search
  t5x_lite plan --compare t5/1_1_xl my.gin --topology=2xv5e-256 --fast
What was compiled is kept; stopped, a search goes on from there."""


def add(add):
  """Adds them to the command.

  Args:
    add: its `add_argument`.
  """
  add(
    '--topology',
    required=True,
    metavar='NAME',
    help='v4-8, v5e-256, v5p-512, 2xv5e-256, h100-8 ...',
  )
  add('--fast', action='store_true', help='compile in haste: does it fit?')
  add('--analytic', action='store_true', help='compile nothing')
  add('--search', action='store_true', help='rank meshes, remat, microbatches')
  add(
    '--compile',
    type=values.positive,
    default=4,
    metavar='N',
    help='so many of the best that a search finds; default: 4',
  )
  add('--compare', nargs=2, metavar='NAME', help='two recipes, side by side')
  add('--json', action='store_true', help='print the figures alone, as JSON')
  picture = dict(type=values.png, metavar='FILE.png')
  add('--picture', **picture, help='draw memory and time')
