"""What the fields of a job spec may hold: no more than all machines take.

Nothing here needs quotes in a shell; paths and variables, which may, are quoted
wherever one reads them.
"""

import os
import re

from t5x_lite import accelerators
from t5x_lite import errors

_WORD = (
  re.compile(r'[A-Za-z0-9]([-\w.:/@]*\w)?', re.ASCII),
  'letters, digits and - _ . : / @',
)
_FORMS = {  # of fields of text that have another than a word
  'zone': (re.compile(r'([a-z]+-)+[a-z]+\d+-[a-z]', re.ASCII), 'us-west4-a'),
  'constraint': (
    re.compile(r'[-\w.:&|,*()\[\]]+', re.ASCII),
    'features, and & | , * ( ) [ ] between them',
  ),
  'wheel': (re.compile(r'[^\n\0]+'), 'a path'),
  'python': (
    re.compile(r'/[^\n\0]+|[^~/\n\0][^/\n\0]*'),
    'a full path, or a name that is found by PATH',
  ),
}
_SOME = 'slices', 'arrival_timeout', 'grace', 'wait', 'port'  # 1 at least
_MOST = 1_000_000
_MOSTS = {'slices': accelerators.MOST_SLICES, 'port': (1 << 16) - 1}
_VARIABLE = re.compile(r'[A-Za-z_]\w*', re.ASCII)


def check_variable(name, value):
  """Refuses what is no variable of an environment."""
  fine = _VARIABLE.fullmatch(name) and isinstance(value, str)
  if not fine or '\0' in value:
    raise errors.ConfigError(
      'not a variable of an environment',
      where='--config.env',
      got=ascii(f'{name}={value}'),
      expected='letters, digits and _',
    )


def check_field(name, value, where):
  """Refuses a count or text that no field of this name may have."""
  least, most = int(name in _SOME), _MOSTS.get(name, _MOST)
  if type(value) is int and not least <= value <= most:
    raise errors.ConfigError(
      'wrong count in a job spec',
      where=where,
      got=value,
      expected=f'{least} to {most:,}',
    )
  pattern, expected = _FORMS.get(name, _WORD)
  if isinstance(value, str) and value and not pattern.fullmatch(value):
    raise errors.ConfigError(
      'not a name', where=where, got=ascii(value), expected=expected
    )
  for folder in value if name == 'shared_folders' else ():
    if not os.path.isabs(folder):
      raise errors.ConfigError(
        'a shared folder has a path from the root', where=where, got=folder
      )
