"""Arrays of Zarr 2, as T5X and Orbax have TensorStore write them.

An array is `<name>/.zarray`, a few lines of JSON, and beside it a file for each
chunk, named by its place such as `0.2`. TensorStore reads them too, but swells
with a chunk that expands to more than it may, and follows links.
"""

import math

import ml_dtypes
import numpy as np
import pyarrow as pa

from t5x_lite import errors
from t5x_lite.interop import files
from t5x_lite.interop.tensors import Tensor

_DTYPES = {
  **{name: np.dtype(name) for name in ('<f2', '<f4', '<f8')},
  **{name: np.dtype(name) for name in ('<i2', '<i4', '<i8', '|i1', '|b1')},
  **{name: np.dtype(name) for name in ('<u2', '<u4', '<u8', '|u1')},
  'bfloat16': np.dtype(ml_dtypes.bfloat16),
}
_CODECS = 'gzip', 'zstd'
_METADATA = 1 << 16  # bytes that .zarray may have
_EXPANDS = 1100  # more than gzip can, 1032; of weights it is less than 2


def tensor(store, name):
  """The Tensor of an array.

  Args:
    store: where, sizes and read as of folders.Folder.
    name: of the array.

  Raises:
    CheckpointError: it is no such array, chunks are missing, or they are too
      small for its shape.
  """
  where = store.where / name
  text = store.read(f'{name}/.zarray', _METADATA)
  dtype, shape, chunks, codec = _metadata(text, where)
  grid = [-(-n // size) for n, size in zip(shape, chunks)]
  chunk_files = _files(store, name, grid, where)
  size, stored = (
    math.prod(shape) * dtype.itemsize,
    sum(store.sizes[file] for file in chunk_files),
  )
  if size > stored * _EXPANDS:
    raise errors.CheckpointError(
      'files are too small for the array',
      where=where,
      got=f'{stored} bytes for shape {list(shape)}',
    )

  def read():
    parts = (_chunk(store, file, codec, dtype, chunks) for file in chunk_files)
    if len(chunk_files) == 1 and chunks == shape:
      return next(parts)
    array = np.empty(shape, dtype)
    for place, part in zip(np.ndindex(*grid), parts):
      here = array[
        tuple(slice(i * n, (i + 1) * n) for i, n in zip(place, chunks))
      ]
      here[...] = part[tuple(map(slice, here.shape))]
    return array

  return Tensor(dtype, shape, read)


def _metadata(text, where):
  """(dtype, shape, shape of a chunk, codec or None) of a .zarray."""
  found = files.parse_json(text, where / '.zarray')
  shape, chunks = found.get('shape'), found.get('chunks')
  codec = found.get('compressor')
  if codec is not None:
    codec = (isinstance(codec, dict) and codec.get('id')) or ''
  wrong = [
    name
    for name, good in {
      'zarr_format': found.get('zarr_format') == 2,
      'shape': _are_sizes(shape),
      'chunks': _are_sizes(chunks)
      and _are_sizes(shape)
      and len(chunks) == len(shape)
      and all(n <= size for n, size in zip(chunks, shape)),
      'dtype': str(found.get('dtype')) in _DTYPES,
      'compressor': codec is None or codec in _CODECS,
      'filters': not found.get('filters'),
      'order': found.get('order') == 'C',
      'dimension_separator': found.get('dimension_separator', '.') == '.',
    }.items()
    if not good
  ]
  if wrong:
    got = f'{wrong[0]} {found.get(wrong[0])!r}'
    raise errors.CheckpointError(
      'not an array of Zarr 2 that can be read',
      where=where / '.zarray',
      got=ascii(got)[1:-1],
      expected=f'one of {", ".join(_DTYPES)}, by rows, in chunks no larger '
      f'than it, each a file such as 0.0, plain or by {" or ".join(_CODECS)}',
    )
  return _DTYPES[found['dtype']], tuple(shape), tuple(chunks), codec


def _are_sizes(value):
  return (
    isinstance(value, list)
    and len(value) <= 8
    and all(type(n) is int and 0 < n < 2**40 for n in value)
  )


def _files(store, name, grid, where):
  """The files of all chunks, which must be there: none is taken for zeros."""
  found = []
  if math.prod(grid) <= len(store.sizes):
    places = ('.'.join(map(str, place)) or '0' for place in np.ndindex(*grid))
    found = [f'{name}/{place}' for place in places]
  missing = next((file for file in found if file not in store.sizes), None)
  if missing or not found:
    raise errors.CheckpointError(
      'chunks of the array are missing',
      where=where,
      got=f'no file {missing}' if missing else None,
      expected=f'{math.prod(grid)} files',
      fix='copy the whole checkpoint again',
    )
  return found


def _chunk(store, file, codec, dtype, shape):
  """Reads and expands a chunk; stops where it is larger than it may be."""
  data = store.read(file)
  array = np.empty(shape, dtype)
  flat = array.reshape(-1).view(np.uint8)
  room, more = memoryview(flat), b''
  try:
    if codec is None:
      more = data[flat.size :].tobytes()
      room = room[len(data) :]
      flat[: len(data)] = data[: flat.size]
    else:
      reader = pa.BufferReader(pa.py_buffer(data))
      with pa.CompressedInputStream(reader, codec) as stream:
        while room and (count := stream.readinto(room)):
          room = room[count:]
        more = stream.read(1)  # also checks the sum at the end
    if room or more:
      raise ValueError('more bytes' if more else 'fewer bytes')
  except (OSError, ValueError) as e:
    raise errors.CheckpointError(
      'chunk is damaged',
      where=store.where / file,
      got=e,
      expected=f'{array.nbytes} bytes',
      fix='copy the whole checkpoint again',
    ) from None
  return array
