"""Checked, frozen settings.

A field's annotation is its rule: type, alternatives and bounds are checked when
a spec is made, in Python as from a recipe, and the error names the field.
"""

import dataclasses
import sys
import types
import typing
from typing import Annotated, Literal

from t5x_lite import errors

Count = Annotated[int, '>= 1', '< 2^31']
Natural = Annotated[int, '>= 0', '< 2^31']
Positive = Annotated[float, '> 0']
NonNegative = Annotated[float, '>= 0']
Fraction = Annotated[float, '>= 0', '< 1']
Share = Annotated[float, '> 0', '< 1']
AxisSize = Annotated[int, '>= 1 or -1']

_BOUNDS = {
  '>= 1': lambda x: x >= 1,
  '>= 0': lambda x: x >= 0,
  '> 0': lambda x: x > 0,
  '< 1': lambda x: x < 1,
  '<= 1': lambda x: x <= 1,
  '< 2^31': lambda x: x < 2**31,
  '>= 1 or -1': lambda x: x >= 1 or x == -1,
}


def alternatives(rule):
  """The members of a union, or the rule itself."""
  if typing.get_origin(rule) in (typing.Union, types.UnionType):
    return typing.get_args(rule)
  return (rule,)


def takes_spec(rule):
  """Whether a field takes a spec."""
  return any(
    isinstance(member, type) and issubclass(member, Spec)
    for member in alternatives(rule)
  )


def takes_specs(rule):
  """Whether a field takes a list of specs."""
  return any(
    typing.get_origin(member) is tuple
    and takes_spec(typing.get_args(member)[0])
    for member in alternatives(rule)
  )


def describe(rule):
  """A rule in words: `int >= 1`, `'rsqrt' or 'constant'`, `T5Bias or None`."""
  origin, args = typing.get_origin(rule), typing.get_args(rule)
  if origin is Annotated:
    return ' '.join([describe(args[0]), ' and '.join(rule.__metadata__)])
  if origin is Literal:
    return ' or '.join(map(repr, args))
  if origin in (typing.Union, types.UnionType):
    return ' or '.join(map(describe, args))
  if origin is dict:
    return f'dict of {describe(args[0])} to {describe(args[1])}'
  if origin is tuple:
    return f'list of {describe(args[0])}'
  return 'None' if rule is types.NoneType else rule.__name__


def obeys(value, rule):
  """Whether a value is what a field's annotation asks for."""
  origin, args = typing.get_origin(rule), typing.get_args(rule)
  if origin is Annotated:
    return obeys(value, args[0]) and all(
      _BOUNDS[bound](value) for bound in rule.__metadata__
    )
  if origin is Literal:
    return isinstance(value, str) and value in args
  if origin in (typing.Union, types.UnionType):
    return any(obeys(value, member) for member in args)
  if origin is dict:
    return isinstance(value, dict) and all(
      obeys(k, args[0]) and obeys(v, args[1]) for k, v in value.items()
    )
  if origin is tuple:
    return isinstance(value, tuple) and all(obeys(v, args[0]) for v in value)
  if isinstance(value, bool):
    return rule is bool
  if rule is float:
    return isinstance(value, (int, float)) and abs(value) <= sys.float_info.max
  return isinstance(value, rule)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
  """A checked, frozen set of choices."""

  def __post_init__(self):
    for field in dataclasses.fields(self):
      value, rule = getattr(self, field.name), field.type
      name = f'{type(self).__name__}.{field.name}'
      if typing.get_origin(rule) is tuple:  # a list in gin and in JSON
        if isinstance(value, str):
          value = [word.strip() for word in value.split(',') if word.strip()]
        value = tuple(value) if isinstance(value, list) else value
        object.__setattr__(self, field.name, value)
      if not obeys(value, rule):
        literals = [
          choice
          for member in alternatives(rule)
          if typing.get_origin(member) is Literal
          for choice in typing.get_args(member)
        ]
        kind = f' ({type(value).__name__})'
        raise errors.ConfigError(
          f'wrong value for {name}',
          got=repr(value) + ('' if literals else kind),
          expected=describe(rule),
          choices=literals,
        )


def check_missing(cls, given, label, where=None):
  """Refuses settings of a spec that lack one without a default."""
  missing = [
    f'{cls.__name__}.{field.name} ({describe(field.type)})'
    for field in dataclasses.fields(cls)
    if field.default is dataclasses.MISSING and field.name not in given
  ]
  if missing:
    raise errors.ConfigError(
      f'{label} lacks settings', where=where, expected=', '.join(missing)
    )
