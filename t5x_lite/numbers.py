"""Numbers that JSON can't say, as strings: "nan", "inf" and "-inf"."""

import math

_NAMES = ('nan', 'inf', '-inf')


def to_json(value):
  """Plain JSON, however deep, whose floats are all finite."""
  if isinstance(value, dict):
    return {name: to_json(item) for name, item in value.items()}
  if isinstance(value, list):
    return [to_json(item) for item in value]
  if isinstance(value, float) and not math.isfinite(value):
    return str(value)
  return value


def from_json(values):
  """A dict of values as they were, those of the three names floats again."""
  return {
    name: float(value) if isinstance(value, str) and value in _NAMES else value
    for name, value in values.items()
  }
