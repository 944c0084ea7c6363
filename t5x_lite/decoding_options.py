"""The options of the command line that say how sequences are decoded."""

import argparse

from t5x_lite import errors
from t5x_lite import specs
from t5x_lite import values

_KINDS = {'greedy': specs.Greedy, 'beam': specs.Beam, 'sample': specs.Sample}
_OPTIONS = {  # of each kind, as help shows them, and what makes their values
  'greedy': {},
  'beam': {
    '--beams=4': values.positive,
    '--length_penalty=0.6': float,
    '--penalty=t5|hf': str,
    '--return=1': values.positive,
  },
  'sample': {
    '--temperature=1': float,
    '--top_k=0': values.natural,
    '--top_p=1': float,
    '--samples=1': values.positive,
    '--seed=0': values.natural,
  },
}
_SEVERAL = '--return=1', '--samples=1'


def _name(shown):
  return shown.removeprefix('--').split('=')[0]


def add(add_argument, several=False):
  """Adds them to a parser.

  Args:
    add_argument: of the parser.
    several: whether an input may have several sequences.
  """
  kinds = [
    {k: v for k, v in own.items() if several or k not in _SEVERAL}
    for own in _OPTIONS.values()
  ]
  lines = ['greedy, beam or sample, each with its own:', *map(' '.join, kinds)]
  add_argument(
    '--decoding',
    choices=tuple(_KINDS),
    metavar='KIND',
    help='\n'.join(filter(None, lines)),
  )
  for own in kinds:
    for shown, value in own.items():
      add_argument(f'--{_name(shown)}', type=value, help=argparse.SUPPRESS)


def spec(options):
  """What the options ask for, or None if they do not say.

  Raises:
    ConfigError: an option does nothing for this kind, or its value is wrong.
  """
  kind, settings = options.decoding or 'greedy', {}
  for owner, own in _OPTIONS.items():
    for name in map(_name, own):
      value = getattr(options, name, None)
      if value is not None and owner != kind:
        raise errors.ConfigError(
          f'--{name} is of --decoding={owner}', got=f'--decoding={kind}'
        )
      if value is not None:
        settings['returned' if name == 'return' else name] = value
  return _KINDS[kind](**settings) if options.decoding else None
