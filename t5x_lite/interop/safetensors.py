"""The safetensors format, read lazily and written as a stream.

A file is the length of a header (8 bytes, little-endian), the header, and the
tensors' bytes: {"name": {"dtype", "shape", "data_offsets": [start, end]}, ...,
"__metadata__": {text: text}} in JSON, with spaces up to a multiple of 8 bytes.
The offsets count from its end, and leave out nothing.
https://huggingface.co/docs/safetensors

The library of that name is what the tests compare with. It knows no `gs://`,
gives numpy no float8, opens pipes, and writes only what is in memory whole.
"""

import functools
import hashlib
import json
import math

import ml_dtypes
import numpy as np

from t5x_lite import errors
from t5x_lite import storage
from t5x_lite.interop import digests
from t5x_lite.interop import files
from t5x_lite.interop import shards
from t5x_lite.interop.tensors import Tensor

NAME = 'model.safetensors'
DTYPES = {
  'BOOL': np.bool_,
  'U8': np.uint8,
  'I8': np.int8,
  'F8_E5M2': ml_dtypes.float8_e5m2,
  'F8_E4M3': ml_dtypes.float8_e4m3fn,
  'F8_E8M0': ml_dtypes.float8_e8m0fnu,
  'F8_E4M3FNUZ': ml_dtypes.float8_e4m3fnuz,
  'F8_E5M2FNUZ': ml_dtypes.float8_e5m2fnuz,
  'I16': np.int16,
  'U16': np.uint16,
  'F16': np.float16,
  'BF16': ml_dtypes.bfloat16,
  'I32': np.int32,
  'U32': np.uint32,
  'F32': np.float32,
  'C64': np.complex64,
  'F64': np.float64,
  'I64': np.int64,
  'U64': np.uint64,
}
_NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
_METADATA = '__metadata__'
_LARGEST_HEADER = 100_000_000  # bytes, as in the library
_LARGEST_ARRAY = 2**63 - 1  # bytes, by numpy, zeros among the sizes left out
_PIECE = 1 << 26  # bytes of an array that is copied for its layout


# -- reading ------------------------------------------------------------------


def read(path):
  """{name: Tensor} of safetensors; reads only headers.

  Args:
    path: a file, or a folder with `model.safetensors` or with an index and its
      files, local or remote. A `digests.json` in it is not looked at: see
      `digests.check`, which reads all files once.

  Raises:
    CheckpointError: there is none, or a file is not as the format has it.
  """
  path = storage.path(path)
  if not path.is_dir():
    return read_file(files.File(path))
  found = shards.read(path, NAME, read_file)
  if found is None:
    raise errors.CheckpointError(
      'no safetensors', where=path, expected=f'{NAME}, or {NAME}.index.json'
    )
  return found


def read_file(file):
  """{name: Tensor} of one files.File, in the order of their bytes."""
  begin, header = _read_header(file)
  tensors, end = {}, 0
  for name, (dtype, shape, start, stop) in sorted(
    header.items(), key=lambda item: item[1][2:]
  ):
    if start != end:
      raise _malformed(
        file,
        f'tensor {name!r}',
        f'bytes from {start}',
        f'from {end}, where those before it end',
      )
    end = stop
    tensors[name] = Tensor(
      dtype,
      shape,
      functools.partial(_read_array, file, name, begin + start, dtype, shape),
    )
  if begin + end != file.size:
    raise _malformed(file, 'file', f'{file.size} bytes', f'{begin + end}')
  return tensors


def _read_array(file, name, start, dtype, shape):
  array = file.array(start, dtype, shape)
  if dtype == np.bool_ and (array.view(np.uint8) > 1).any():
    raise _malformed(file, f'tensor {name!r}', 'a byte above 1', 'truth values')
  return array


def _malformed(file, what, got, expected):
  return errors.CheckpointError(
    f'not safetensors: wrong {what}',
    where=file.where,
    got=got,
    expected=expected,
    fix='get the file again',
  )


def _read_header(file):
  """(where the bytes begin, {name: (dtype, shape, start, stop)})."""
  if file.size < 8:
    raise _malformed(file, 'file', f'{file.size} bytes', 'a header')
  count = int.from_bytes(file.read(0, 8), 'little')
  largest = min(_LARGEST_HEADER, file.size - 8)
  if count > largest:
    raise _malformed(
      file, 'header', f'{count} bytes of it', f'at most {largest}'
    )
  text = file.read(8, count)
  if not text.startswith(b'{'):  # JSON may begin with spaces, a header may not
    raise _malformed(file, 'header', ascii(text[:8])[1:], 'JSON')
  header = files.parse_json(text, file.where)
  metadata = header.pop(_METADATA, {})
  if not isinstance(metadata, dict) or not all(
    isinstance(value, str) for value in metadata.values()
  ):
    raise _malformed(file, _METADATA, 'other values', 'text')
  size = file.size - 8 - count
  return 8 + count, {
    name: _read_entry(file, name, entry, size) for name, entry in header.items()
  }


def _read_entry(file, name, entry, size):
  """What a header says of one tensor, once that is possible."""
  if not (name and name.isprintable()):
    raise _malformed(file, 'name', ascii(name), 'text that can be printed')

  def wrong(what, got, expected):
    return _malformed(file, f'{what} of tensor {name!r}', got, expected)

  if not isinstance(entry, dict) or entry.keys() != {
    'dtype',
    'shape',
    'data_offsets',
  }:
    raise wrong('entry', type(entry).__name__, 'dtype, shape, data_offsets')
  dtype, shape, offsets = (
    entry[key] for key in ('dtype', 'shape', 'data_offsets')
  )
  if not isinstance(dtype, str) or dtype not in DTYPES:
    raise wrong('dtype', ascii(dtype), f'one of {", ".join(DTYPES)}')
  dtype = np.dtype(DTYPES[dtype])
  if not _are_counts(shape) or len(shape) > 64:
    raise wrong('shape', ascii(shape), 'at most 64 counts')
  if not _are_counts(offsets) or len(offsets) != 2:
    raise wrong('data_offsets', ascii(offsets), 'two counts of bytes')
  start, stop = offsets
  if not start <= stop <= size:
    raise wrong('data_offsets', offsets, f'two, in {size} bytes, in order')
  room = dtype.itemsize
  for n in shape:
    room *= n or 1
    if room > _LARGEST_ARRAY:
      raise wrong('shape', shape, 'one that fits in memory')
  if stop - start != dtype.itemsize * math.prod(shape):
    raise wrong(
      'data_offsets',
      f'{stop - start} bytes',
      f'{dtype.itemsize * math.prod(shape)} for {dtype}{shape}',
    )
  return dtype, tuple(shape), start, stop


def _are_counts(found):
  return isinstance(found, list) and all(
    type(n) is int and 0 <= n <= _LARGEST_ARRAY for n in found
  )


# -- writing ------------------------------------------------------------------


def write(folder, tensors, shard_size=5_000_000_000, metadata=None):
  """Writes a model's files as Hugging Face names them, tensor by tensor.

  They are `model.safetensors`, or `model-00001-of-0000N.safetensors` and so on
  with `model.safetensors.index.json`; and `digests.json`, last.

  Args:
    folder: an existing one, or a remote one. An object is first made whole in
      the local temporary folder.
    tensors: {name: Tensor}. One at a time is read and held.
    shard_size: most bytes of the tensors in a file, unless one alone has more.
    metadata: {text: text} for the headers, beside `format`.

  Raises:
    CheckpointError: a name or dtype has no place in the format, or a Tensor
      gives another array than it says.
    StorageError: a file can't be written.
  """
  folder = storage.path(folder)
  metadata = {'format': 'pt'} | (metadata or {})
  for name, tensor in tensors.items():
    if name == _METADATA or not (name and name.isprintable()):
      raise errors.CheckpointError('no name of a tensor', got=ascii(name))
    if np.dtype(tensor.dtype) not in _NAMES:
      raise errors.CheckpointError(
        'safetensors has no name for the type of a tensor',
        where=name,
        got=tensor.dtype,
        expected=f'one of {", ".join(map(str, _NAMES))}',
      )
  plan = _plan(tensors, shard_size)
  written, weights = {}, {}
  for n, names in enumerate(plan, 1):
    file = NAME
    if len(plan) > 1:
      file = f'model-{n:05}-of-{len(plan):05}.safetensors'
    part = {name: tensors[name] for name in names}
    written[file] = _write_file(folder / file, part, metadata)
    weights |= dict.fromkeys(names, file)
  if len(plan) > 1:
    total = sum(tensor.size for tensor in tensors.values())
    index = {'metadata': {'total_size': total}, 'weight_map': weights}
    text = (json.dumps(index, indent=2) + '\n').encode()
    storage.write_bytes(folder / f'{NAME}.index.json', text)
    written[f'{NAME}.index.json'] = hashlib.sha256(text).hexdigest(), len(text)
  digests.write(folder, written)


def _plan(tensors, shard_size):
  """Which names go together into a file: in order, until it is full."""
  plan, room = [[]], shard_size
  for name, tensor in tensors.items():
    if tensor.size > room and plan[-1]:
      plan.append([])
      room = shard_size
    plan[-1].append(name)
    room -= tensor.size
  return plan


def _write_file(name, tensors, metadata):
  """Writes one file, and returns its (SHA-256, bytes)."""
  # The widest first, so that each begins at a multiple of its own width.
  tensors = dict(
    sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize)
  )
  header, end = {_METADATA: metadata}, 0
  for key, tensor in tensors.items():
    header[key] = {
      'dtype': _NAMES[np.dtype(tensor.dtype)],
      'shape': list(tensor.shape),
      'data_offsets': [end, end + tensor.size],
    }
    end += tensor.size
  text = json.dumps(header, ensure_ascii=False, separators=(',', ':')).encode()
  text += b' ' * (-len(text) % 8)
  digest, size = hashlib.sha256(), 8 + len(text) + end
  with storage.replacing(name, name.parent) as f:

    def add(data):
      digest.update(data)
      try:
        f.write(data)
      except OSError as e:
        raise errors.StorageError(
          'cannot write', where=name, got=e.strerror
        ) from e

    add(len(text).to_bytes(8, 'little') + text)
    for key, tensor in tensors.items():
      _add_tensor(add, key, tensor)
  return digest.hexdigest(), size


def _add_tensor(add, name, tensor):
  """Adds a tensor's bytes in C order, without a second copy of all of it."""
  array = tensor.read()
  if array.dtype != tensor.dtype or array.shape != tuple(tensor.shape):
    raise errors.CheckpointError(
      'tensor came as another than was announced',
      where=name,
      got=f'{array.dtype}{list(array.shape)}',
      expected=f'{tensor.dtype}{list(tensor.shape)}',
    )
  pieces = [array]
  if not array.flags.c_contiguous:
    rows = max(1, _PIECE * len(array) // array.nbytes)
    pieces = (array[n : n + rows] for n in range(0, len(array), rows))
  for piece in pieces:
    add(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
