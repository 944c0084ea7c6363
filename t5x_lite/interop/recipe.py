"""The recipe that goes on from imported weights."""

import dataclasses

from t5x_lite import specs
from t5x_lite import storage

NAME = 'recipe.gin'
_FREE = 'Data.corpus', 'Data.held_out'  # what is trained on says the user


def lines(spec):
  """Yields the bindings of a spec and of those in it, but for defaults."""
  name, inside = type(spec).__name__, []
  for field in dataclasses.fields(spec):
    value = getattr(spec, field.name)
    if value == field.default or f'{name}.{field.name}' in _FREE:
      continue
    if isinstance(value, specs.Spec):
      inside.append(value)
      yield f'{name}.{field.name} = @{type(value).__name__}()'
    else:
      value = list(value) if isinstance(value, tuple) else value
      yield f'{name}.{field.name} = {value!r}'
  for value in inside:
    yield from lines(value)


def write(workdir, run, source):
  """Writes `recipe.gin`: a specs.Run without what it learns from.

  Its specs are of a kind each, so that none needs a scope.
  """
  head = f'# Goes on from weights of {ascii(str(source))}; name a --corpus.\n\n'
  storage.write_text(workdir / NAME, head + '\n'.join(lines(run)) + '\n')
