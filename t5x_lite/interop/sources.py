"""The tensors at a path, whatever wrote them."""

import numpy as np

from t5x_lite import errors
from t5x_lite import pretrained
from t5x_lite import specs
from t5x_lite import storage
from t5x_lite.interop import folders
from t5x_lite.interop import safetensors
from t5x_lite.interop import t5x
from t5x_lite.interop import torch_files
from t5x_lite.interop.tensors import Tensor

_TORCH = ('.bin', '.pt', '.pth')
_KINDS = (
  'a run or a step of one, a checkpoint of T5X, or a file or a folder of '
  'safetensors'
)


def open_source(path, torch_files_too=False):
  """What kind of weights are at a path, and these, unread.

  Args:
    path: a file or a folder, local or remote.
    torch_files_too: whether a file of `torch.save` may be opened.

  Returns:
    (the kind in words, {name: Tensor}), with the names of the format.

  Raises:
    CheckpointError: there is nothing of a known kind, or it is damaged.
    ConfigError: there are files of torch, and they may not be opened.
  """
  path = storage.absolute(path)
  if not path.is_dir():
    if path.suffix in _TORCH:
      return _torch(path, torch_files_too)
    return 'safetensors', safetensors.read(path)
  if _is_ours(path):
    return _ours(path)
  if _has(path, safetensors.NAME):
    return 'safetensors', safetensors.read(path)
  if t5x.is_t5x(path):
    step, tensors = t5x.read(path)
    return 'T5X' + f', step {step}' * (step is not None), tensors
  if _has(path, torch_files.NAME):
    return _torch(path, torch_files_too)
  raise errors.CheckpointError('no weights', where=path, expected=_KINDS)


def of_step(saver, step):
  """{path: Tensor} of the parameters of a step of ours.

  All files of its state are read once, to check them.

  Args:
    saver: checkpoints.Checkpoints.
    step: a committed step.
  """
  folders.Folder(saver.folder / str(step))  # raises if a link is in it
  readers = saver.read_params(step)
  return {
    path: Tensor(np.dtype(array.dtype), tuple(array.shape), readers[path])
    for path, array in saver.stored_params(step).items()
  }


def _has(folder, name):
  return (folder / name).exists() or (folder / f'{name}.index.json').exists()


def _is_ours(folder):
  return (folder / 'checkpoints').is_dir() or (
    folder.parent.name == 'checkpoints' and folder.name.isdigit()
  )


def _ours(folder):
  saver, step = pretrained.locate(specs.Pretrained(path=str(folder)))
  return f'a run of t5x_lite, step {step}', of_step(saver, step)


def _torch(path, allowed):
  if not allowed:
    raise errors.ConfigError(
      'weights are in a file of torch, which holds a program',
      where=path,
      expected='safetensors',
      fix='--torch_files, to read it without running the program',
    )
  return 'a file of torch', torch_files.read(path)
