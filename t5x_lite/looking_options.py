"""The options by which the command line asks to look at data."""

from t5x_lite import values


def add(add):
  """Adds them to a command.

  Args:
    add: its `add_argument`.
  """
  natural = dict(type=values.natural, metavar='N')
  add('--rows', **natural, default=2, help='rows that are shown; default: 2')
  add('--position', **natural, default=0, help='the first of them')
  add(
    '--split',
    choices=('train', 'validation'),
    default='train',
    help='train or validation',
  )
  add(
    '--examples',
    type=values.positive,
    default=10_000,
    metavar='N',
    help='figures are of so many of each part; default: 10000',
  )
  picture = dict(type=values.png, metavar='FILE.png')
  add('--picture', **picture, help='draw the figures, too')
  add('--json', action='store_true', help='print the figures alone, as JSON')
  add('--store', metavar='FOLDER', help='look at a tokenised corpus by itself')
