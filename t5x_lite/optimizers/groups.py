"""Which parameters a recipe's patterns take, each with its own settings."""

import re

import jax

from t5x_lite import errors
from t5x_lite import partitioning
from t5x_lite.optimizers import tensors


def assign(spec, axes):
  """A tensors.Tensor for each parameter.

  Args:
    spec: one of specs' optimizers.
    axes: nested dict of the parameters' logical axes.

  Raises:
    ConfigError: a pattern takes nothing, or all parameters are frozen.
  """
  leaves = jax.tree_util.tree_leaves_with_path(axes, is_leaf=_is_axes)
  names = [partitioning.path_name(path) for path, _ in leaves]
  kind = type(spec).__name__
  default = type(spec).__dataclass_fields__['no_decay'].default
  for pattern in spec.no_decay:
    if pattern not in default and not _matches(pattern, names):
      raise _unused(f'{kind}.no_decay', pattern, names)
  untaken = names
  for group in spec.groups:
    taken = _matches(group.pattern, untaken)
    if not taken:
      if _matches(group.pattern, names):
        raise errors.ConfigError(
          f'a group of {kind}.groups comes too late',
          got=repr(group.pattern),
          expected='a parameter that no group before it takes',
          fix='move it to the front, or delete it',
        )
      raise _unused('Group.pattern', group.pattern, names)
    untaken = [name for name in untaken if name not in taken]
    if not untaken and not any(group.rate for group in spec.groups):
      raise errors.ConfigError(
        f'{kind}.groups freezes all parameters',
        expected='a parameter to be trained',
      )

  def one(path, names):
    name = partitioning.path_name(path)
    fits = (g for g in spec.groups if re.fullmatch(g.pattern, name))
    group = next(fits, None)
    layers = sum(axis == 'layers' for axis in names)
    decay = group and group.weight_decay
    decays = not any(re.fullmatch(p, name) for p in spec.no_decay)
    return tensors.Tensor(
      axes=names[layers:],
      layers=layers,
      rate=group.rate if group else 1.0,
      decays=decays,
      decay=(spec.weight_decay if decay is None else decay) * decays,
    )

  return jax.tree_util.tree_map_with_path(one, axes, is_leaf=_is_axes)


def _is_axes(x):
  return isinstance(x, tuple)


def _matches(pattern, names):
  return {name for name in names if re.fullmatch(pattern, name)}


def _unused(label, pattern, names):
  return errors.ConfigError(
    f'{label} fits no parameter',
    got=repr(pattern),
    expected='a regular expression of whole names, such as '
    + ', '.join(map(repr, names[:3])),
    choices=names,
  )
