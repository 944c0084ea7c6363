"""The zip files of `torch.save`, without torch and without running a pickle.

`archive/data.pkl` is a dict of tensors, each a view on one of the storages
`archive/data/<key>`; see `torch_pickle`.
https://docs.pytorch.org/docs/stable/notes/serialization.html
"""

import functools
import struct
import zipfile

import numpy as np

from t5x_lite import errors
from t5x_lite import storage
from t5x_lite.interop import files
from t5x_lite.interop import shards
from t5x_lite.interop import torch_pickle
from t5x_lite.interop.tensors import Tensor

NAME = 'pytorch_model.bin'
_LARGEST = 1 << 25  # bytes of the pickle and of the list of a zip file


def read(path):
  """{name: Tensor} of a `pytorch_model.bin`; reads no tensor.

  Args:
    path: a file, or a folder with one or with an index and its files, local or
      remote.

  Raises:
    CheckpointError: there is none, or it holds anything but tensors by name.
  """
  path = storage.path(path)
  if not path.is_dir():
    return read_file(files.File(path))
  found = shards.read(path, NAME, read_file)
  if found is None:
    raise errors.CheckpointError(
      'no file of torch', where=path, expected=f'{NAME}, or {NAME}.index.json'
    )
  return found


def read_file(file):
  """{name: Tensor} of one files.File."""
  members = _members(file)
  data = [name for name in members if name.endswith('/data.pkl')]
  if len(data) != 1 or data[0].count('/') != 1:
    raise _refused(file, 'no single data.pkl in the zip file')
  folder = data[0].removesuffix('data.pkl')
  start, size = members[data[0]]
  if size > _LARGEST:
    raise _refused(file, f'a pickle of {size} bytes')
  order = members.get(f'{folder}byteorder')
  if order and file.read(order[0], min(order[1], 9)) != b'little':
    raise _refused(file, 'another order of bytes than little')
  try:
    views = torch_pickle.views(file.read(start, size))
  except ValueError as e:
    raise _refused(file, e) from None
  tensors = {}
  for name, view in views.items():
    at = members.get(f'{folder}data/{view.storage.key}')
    size = view.storage.count * view.storage.dtype.itemsize
    if at is None or at[1] != size:
      got = 'nothing' if at is None else f'{at[1]} bytes'
      raise _refused(file, f'{got} for the {size} bytes of {name!r}')
    tensors[name] = Tensor(
      view.storage.dtype,
      view.shape,
      functools.partial(_read_view, file, at[0], view),
    )
  return tensors


def _refused(file, got):
  return errors.CheckpointError(
    'not a dict of tensors saved by torch 1.6 or later',
    where=file.where,
    got=got,
    fix='convert it to safetensors with the program that made it',
  )


def _read_view(file, start, view):
  dtype = view.storage.dtype
  span = (view.span(),)
  flat = file.array(start + view.offset * dtype.itemsize, dtype, span)
  if dtype == np.bool_ and (flat.view(np.uint8) > 1).any():
    raise _refused(file, 'truth values above 1')
  strides = [n * dtype.itemsize for n in view.strides]
  # All that it reaches is in `flat`, by the definition of `span`.
  return np.lib.stride_tricks.as_strided(
    flat, view.shape, strides, writeable=False
  )


# -- the zip file -------------------------------------------------------------


class _Seekable:
  """A files.File as zipfile wants it, which reads no large part."""

  def __init__(self, file):
    self._file, self._at = file, 0

  def seekable(self):
    return True

  def tell(self):
    return self._at

  def seek(self, offset, whence=0):
    self._at = max(0, (0, self._at, self._file.size)[whence] + offset)
    return self._at

  def read(self, count=-1):
    left = max(0, self._file.size - self._at)
    count = left if count is None or count < 0 else min(count, left)
    if count > _LARGEST:
      raise _refused(self._file, f'a list of {count} bytes in the zip file')
    data = self._file.read(self._at, count)
    self._at += count
    return data


def _members(file):
  """{name: (where its bytes begin, how many)} of what is stored as it is."""
  try:
    with zipfile.ZipFile(_Seekable(file)) as archive:
      entries = sorted(archive.infolist(), key=lambda e: e.header_offset)
  # By the last it says that a file asks for a later version of the format.
  except (zipfile.BadZipFile, ValueError, NotImplementedError) as e:
    raise _refused(file, f'no zip file: {ascii(str(e))[1:-1]}') from None
  found, end = {}, 0
  for entry in entries:
    name = entry.orig_filename
    if (
      name in found
      or not name.isprintable()
      or '\\' in name
      or {'', '.', '..'} & set(name.split('/'))
    ):
      raise _refused(file, f'{ascii(name)} in the zip file')
    if (
      entry.compress_type != zipfile.ZIP_STORED
      or entry.compress_size != entry.file_size
      or entry.flag_bits & 0x2041  # encrypted, in one of three ways
    ):
      raise _refused(file, f'{name!r} compressed or encrypted')
    start, size = _data(file, entry), entry.file_size
    if entry.header_offset < end or start + size > file.size:
      raise _refused(file, f'{name!r} over others or over the end')
    end = start + size
    found[name] = start, size
  return found


def _data(file, entry):
  """Where the bytes of an entry begin, by its own header."""
  if not 0 <= entry.header_offset <= file.size - 30:
    raise _refused(file, f'{entry.filename!r} beyond the end')
  head = file.read(entry.header_offset, 30)
  if head[:4] != b'PK\3\4':
    raise _refused(file, f'no {entry.filename!r} where the zip file has it')
  return entry.header_offset + 30 + sum(struct.unpack('<2H', head[26:]))
