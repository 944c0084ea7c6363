"""Which tensor of Hugging Face's is which parameter of ours, both ways."""

import dataclasses
import functools
import math
import re

import numpy as np

from t5x_lite import checkpoints
from t5x_lite import errors
from t5x_lite import models
from t5x_lite import partitioning
from t5x_lite.interop.tensors import Tensor

_LEAVES = {
  'kernel': 'weight',
  'embedding': 'weight',
  'rel_embedding': 'weight',
  'scale': 'weight',
  'bias': 'bias',
}


@dataclasses.dataclass(frozen=True)
class Part:
  """One of their tensors, or the share of it that is a parameter of ours.

  Attributes:
    path: of our parameter.
    layer: of its first axis, or None where it has none.
    shape: of ours, without layers.
    matrix: (inputs, outputs) of what both see; (n,) of a vector.
  """

  path: str
  layer: int | None
  shape: tuple
  matrix: tuple


@dataclasses.dataclass(frozen=True)
class Piece:
  """A tensor of theirs, made of parts side by side.

  Attributes:
    name: theirs.
    others: names of the same tensor, if there.
    copies: names of the same tensor, which are written too.
    parts: of it.
    turned: whether theirs is [out, in].
    shape: of theirs.
  """

  name: str
  others: tuple
  copies: tuple
  parts: tuple
  turned: bool
  shape: tuple

  def split(self, array):
    """Yields (part, array of our shape) of theirs."""
    array = array.reshape(self.shape)
    array = array.T if self.turned else array
    widths = [part.matrix[-1] for part in self.parts]
    if array.ndim < 2 or len(widths) > 1:
      array = array.reshape(*self.parts[0].matrix[:-1], -1)
    ends = np.cumsum(widths)[:-1]
    for part, own in zip(self.parts, np.split(array, ends, -1), strict=True):
      yield part, own.reshape(part.shape)

  def join(self, read):
    """Theirs, of what `read(path, layer)` gives for ours."""
    own = [
      read(part.path, part.layer).reshape(part.matrix) for part in self.parts
    ]
    array = own[0] if len(own) == 1 else np.concatenate(own, -1)
    return (array.T if self.turned else array).reshape(self.shape)


def _matrix(path, shape, axes):
  """(inputs, outputs) of a kernel, or the shape of what is none."""
  if not path.endswith('/kernel'):
    return (math.prod(shape),) if path.endswith('/bias') else tuple(shape)
  inputs = 2 if axes[0] == 'heads' else 1
  return math.prod(shape[:inputs]), math.prod(shape[inputs:])


def _parameters(model):
  """{path: (layers or None, shape of one, matrix)} of a models.Model."""
  found = {}
  axes = partitioning.by_path(model.axes, lambda x: isinstance(x, tuple))
  for path, p in partitioning.by_path(model.abstract).items():
    stacked = '/layers/' in path
    shape, names = p.shape[stacked:], axes[path][stacked:]
    layers = p.shape[0] if stacked else None
    found[path] = layers, shape, _matrix(path, shape, names)
  return found


def pieces(family, spec):
  """The Pieces of a model, of which each parameter is a part of one."""
  known = _parameters(models.build(spec))
  copies, aliases = family.copies(spec), family.aliases(spec)
  found = []
  for ours, theirs in family.modules(spec).items():
    folder, _, names = ours.rpartition('/')
    modules = [f'{folder}/{name}'.lstrip('/') for name in names.split('+')]
    # An entry names a module, or one parameter.
    leaves = {f'/{leaf}': f'.{name}' for leaf, name in _LEAVES.items()}
    if ours in known:
      leaves = {'': ''}
    for leaf, suffix in leaves.items():
      paths = [module + leaf for module in modules]
      if paths[0] in known:
        more = [
          tuple(f'{name}{suffix}' for name in table.get(ours, ()))
          for table in (aliases, copies)
        ]
        found += _layers(family, known, paths, f'{theirs}{suffix}', *more)
  covered = {part.path for piece in found for part in piece.parts}
  assert covered == known.keys(), sorted(known.keys() - covered)
  return found


def _layers(family, known, paths, name, others, copies):
  """The Pieces of parameters side by side, one for each layer."""
  layers, _, matrix = known[paths[0]]
  turned = paths[0].endswith('/rel_embedding') or (
    family.turned and paths[0].endswith('/kernel')
  )
  width = sum(known[path][2][-1] for path in paths)
  shape = (*matrix[:-1], width)[:: -1 if turned else 1]
  if name in family.lacked.values():
    shape = 1, *shape
  for n in range(layers or 1):
    layer = None if layers is None else n
    yield Piece(
      name=name.format(n),
      others=tuple(other.format(n) for other in others),
      copies=tuple(copy.format(n) for copy in copies),
      parts=tuple(Part(path, layer, *known[path][1:]) for path in paths),
      turned=turned,
      shape=shape,
    )


# -- theirs to ours -----------------------------------------------------------


def find(family, wanted, tensors, where):
  """{piece: its Tensor} of tensors by their names.

  Args:
    family: families.Family.
    wanted: the Pieces of the model.
    tensors: {name: Tensor} of a file; names may lack the family's prefix.
    where: they are, for errors.

  Raises:
    CheckpointError: some are missing, left over or of another shape; or what
      should be one and the same differs.
  """
  left = _with_prefix(family, wanted, tensors)
  found, rows = {}, []
  for piece in wanted:
    names = piece.name, *piece.copies, *piece.others
    there = {name: left.pop(name) for name in names if name in left}
    label = f'{piece.parts[0].path} from {piece.name}'
    ours = f'{list(piece.shape)}'
    if not there:
      rows.append((label, '-', ours))
    for name, tensor in there.items():
      if tensor.shape != piece.shape:
        rows.append((name, checkpoints.describe(tensor), ours))
      elif not _is_float(tensor.dtype):
        rows.append((name, checkpoints.describe(tensor), 'floating point'))
    found[piece] = there
  for pattern, make in family.constants.items():
    for name in [name for name in left if re.fullmatch(pattern, name)]:
      _check_constant(name, left.pop(name), make, where)
  ignored = re.compile('|'.join(family.ignored) or '(?!)')
  spare = [name for name in left if not ignored.fullmatch(name)]
  rows += [(name, checkpoints.describe(left[name]), '-') for name in spare]
  if rows:
    missing = sum(there == '-' for _, there, _ in rows)
    head = 'tensor', 'in the file', f'in this {family.title}'
    raise errors.CheckpointError(
      'weights do not fit the model of config.json',
      where=where,
      got=f'{missing} missing, {len(spare)} left over, '
      f'{len(rows) - missing - len(spare)} of another shape or type',
      fix='mend config.json: its sizes, or tie_word_embeddings'
      + checkpoints.table([head, *rows]),
    )
  for there in found.values():
    _check_same(there, where)
  return {piece: next(iter(there.values())) for piece, there in found.items()}


def _with_prefix(family, wanted, tensors):
  """The tensors, their names with the family's prefix."""
  names = {name for piece in wanted for name in (piece.name, *piece.others)}
  prefix = family.prefix
  if not prefix or any(name.startswith(prefix) for name in tensors):
    return dict(tensors)
  return {
    name if name in names else f'{prefix}{name}': tensor
    for name, tensor in tensors.items()
  }


def _check_constant(name, tensor, make, where):
  """Refuses other values than a family has without a parameter."""
  if len(tensor.shape) == 2 and np.allclose(
    tensor.read().astype(np.float64), make(tensor.shape), atol=1e-2
  ):
    return
  raise errors.CheckpointError(
    'tensor is a constant in this kind of model, and has other values',
    where=where,
    got=name,
  )


def _is_float(dtype):
  return np.issubdtype(dtype, np.floating) or dtype.name.startswith(
    ('bfloat', 'float8')
  )


def _check_same(there, where):
  """Refuses other values under several names of one tensor."""
  (first, tensor), *others = there.items()
  for name, other in others:
    if not np.array_equal(tensor.read(), other.read()):
      raise errors.CheckpointError(
        'tensors differ that are one and the same in this model',
        where=where,
        got=f'{first} and {name}',
        fix='if they are two, set tie_word_embeddings to false in config.json',
      )


def to_ours(model, found):
  """{path: float32 array} of a model's parameters.

  Args:
    model: models.Model.
    found: {piece: Tensor}, as of `find`.
  """
  made = {
    path: np.empty(p.shape, np.float32)
    for path, p in partitioning.by_path(model.abstract).items()
  }
  for piece, tensor in found.items():
    for part, own in piece.split(tensor.read()):
      place = ... if part.layer is None else part.layer
      made[part.path][place] = own
  return made


# -- ours to theirs -----------------------------------------------------------


def to_theirs(wanted, read, dtype):
  """{their name: Tensor}, read one at a time.

  Args:
    wanted: the Pieces of the model.
    read: (path) -> the whole array of ours.
    dtype: of theirs.
  """
  most = max(len(piece.parts) for piece in wanted)
  # All layers are in one array of ours: it is read once for all of them.
  keep = functools.lru_cache(maxsize=most)(read)

  def own(path, layer):
    array = keep(path)
    return array if layer is None else array[layer]

  dtype = np.dtype(dtype)
  return {
    name: Tensor(
      dtype,
      piece.shape,
      lambda piece=piece: piece.join(own).astype(dtype, copy=False),
    )
    for piece in wanted
    for name in (piece.name, *piece.copies)
  }
