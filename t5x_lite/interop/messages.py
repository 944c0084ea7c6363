"""Trees in msgpack, as flax.serialization writes them.

Its extensions are 1, an array; 2, a complex number; 3, a scalar of numpy. An
array is (shape, name of the dtype, bytes) in msgpack again: simple types alone,
no objects.
"""

import math

import ml_dtypes
import msgpack
import numpy as np

from t5x_lite import errors
from t5x_lite.interop.tensors import Tensor

_ARRAY, _COMPLEX, _SCALAR = 1, 2, 3
_DTYPES = {
  **{f'float{bits}': np.dtype(f'float{bits}') for bits in (16, 32, 64)},
  **{f'int{bits}': np.dtype(f'int{bits}') for bits in (8, 16, 32, 64)},
  **{f'uint{bits}': np.dtype(f'uint{bits}') for bits in (8, 16, 32, 64)},
  'bool': np.dtype('bool'),
  'bfloat16': np.dtype(ml_dtypes.bfloat16),
}
_PARTS = 300_000  # dicts, their entries, and lists: 60 bytes from one


def read(data, where):
  """The tree of some bytes: dicts by names, and lists; arrays are Tensors.

  Args:
    data: bytes.
    where: for messages.

  Raises:
    CheckpointError: it is no such tree, has other leaves, or is made to swell.
  """
  parts = 0

  def count(more):
    nonlocal parts
    parts += more
    if parts > _PARTS:
      raise ValueError(f'more than {_PARTS} parts')

  def to_dict(pairs):
    count(1 + len(pairs))
    found = dict(pairs)
    if len(found) < len(pairs):
      raise ValueError('a name stands twice in one dict')
    if not all(isinstance(name, str) for name in found):
      raise ValueError('a name that is no text')
    return found

  def to_list(values):
    count(1)
    return values

  try:
    return msgpack.unpackb(
      data,
      object_pairs_hook=to_dict,
      list_hook=to_list,
      ext_hook=_extension,
      max_array_len=64,
      max_map_len=_PARTS,
      max_str_len=4096,
      max_bin_len=4096,
    )
  except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as e:
    raise errors.CheckpointError(
      'not a checkpoint in msgpack that can be read',
      where=where,
      got=ascii(str(e) or type(e).__name__)[1:-1],
    ) from None


def _extension(code, data):
  if code not in (_ARRAY, _COMPLEX, _SCALAR):
    raise ValueError(f'extension {code}')
  limits = {'max_array_len': 32, 'max_map_len': 0, 'max_ext_len': 0}
  found = msgpack.unpackb(data, use_list=False, **limits)
  if code == _COMPLEX:
    return complex(*found)
  shape, name, held = found
  dtype = _DTYPES.get(name)
  if dtype is None:
    raise ValueError(f'array of {name!r}')
  if not all(type(n) is int and n >= 0 for n in shape):
    raise ValueError(f'array of shape {shape}')
  if type(held) is not bytes or len(held) != math.prod(shape) * dtype.itemsize:
    raise ValueError(f'array of shape {list(shape)} in other bytes')
  if code == _SCALAR and shape:
    raise ValueError(f'scalar of shape {list(shape)}')
  return Tensor(dtype, shape, lambda: np.frombuffer(held, dtype).reshape(shape))
