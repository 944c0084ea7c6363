"""Checkpoints of T5X: its own, in msgpack and Zarr, and those of Orbax.

In a folder `checkpoint_<step>` there is

  its own     `checkpoint`, a tree in msgpack, whose leaves are arrays or specs
              of TensorStore that name an array of Zarr beside it
  Orbax, old  `[state/]checkpoint`, whose leaves name an array by
              'PLACEHOLDER://<name>'; or no such file, and arrays alone
  Orbax, new  the same in `state`, its arrays in an OCDBT

Parameters are under `target`, what the optimizer keeps of each is under
`state/param_states`, and the step is `state/step`. A leaf's array has the
leaf's path for a name, joined by dots.
"""

from concurrent import futures
import contextlib
import os
import re

from t5x_lite import errors
from t5x_lite import storage
from t5x_lite.interop import files
from t5x_lite.interop import folders
from t5x_lite.interop import messages
from t5x_lite.interop import ocdbt
from t5x_lite.interop import zarr
from t5x_lite.interop.tensors import Tensor

_STEP = re.compile(r'checkpoint_(\d{1,18})')
_PART = re.compile(r'[\w.-]{1,200}', re.ASCII)
_TREE = 'checkpoint'  # the file in msgpack
_VERSION = 3  # of T5X's own; before, bfloat16 was stored as uint16
_TREE_BYTES = 2 << 30
_PLACEHOLDER = 'PLACEHOLDER://'
_DRIVERS = 'file', 'gfile', 'gcs'  # where T5X wrote it to, not where it is now
_DEEPEST = 32  # levels of a tree
_THREADS = 16  # that ask a bucket for small files


def steps(folder):
  """The steps whose checkpoints are in a folder, in order."""
  found = map(_STEP.fullmatch, folders.names(folder))
  return sorted(int(match[1]) for match in found if match)


def is_t5x(folder):
  """Whether a folder is a checkpoint of T5X, or one of several.

  Tells it from what this project's trainer writes, which has a manifest of its
  own, and from TensorFlow's, whose file `checkpoint` is text.
  """
  names = set(folders.names(folder))
  if any(map(_STEP.fullmatch, names)):
    return True
  if 'manifest.json' in names:
    return False
  for inner in (storage.path(folder), storage.path(folder) / 'state'):
    names = set(folders.names(inner))
    if ocdbt.MANIFEST in names or any(x.startswith('target.') for x in names):
      return True
    if _TREE in names:
      with contextlib.suppress(errors.CheckpointError):  # empty, or no file
        return _is_map(files.File(inner / _TREE, inner).read(0, 1))
  return False


def read(folder, step=None):
  """The step and the parameters of a checkpoint.

  Args:
    folder: of a checkpoint, or of several `checkpoint_<step>`.
    step: of these; default: the latest.

  Returns:
    (step or None if it is not told, {name: Tensor}), with names such as
    'encoder/layers_0/attention/query/kernel'. No parameter is read yet.

  Raises:
    CheckpointError: there is none, or something in it can't be trusted.
    StorageError: the bucket is out of reach.
  """
  checkpoint = _Checkpoint(_locate(folder, step))
  return checkpoint.step(), checkpoint.tensors('target')


def slots(folder, step=None):
  """{name: Tensor} of what the optimizer keeps; arguments as of `read`."""
  checkpoint = _Checkpoint(_locate(folder, step))
  return checkpoint.tensors('state', 'param_states')


# -- which folder -------------------------------------------------------------


def _is_map(byte):
  return bool(byte) and (byte[0] >> 4 == 8 or byte[0] in (0xDE, 0xDF))


def _locate(folder, step):
  """The folder of one checkpoint."""
  folder = storage.absolute(folder)
  own = _STEP.fullmatch(folder.name)
  found = steps(folder)
  if found and not own:
    if step is not None and step not in found:
      raise errors.CheckpointError(
        'no such step', where=folder, got=step, expected=f'one of {found}'
      )
    # Step 0 counts: T5X itself did not find what had no other.
    folder /= f'checkpoint_{max(found) if step is None else step}'
    if storage.is_local(folder) and os.path.islink(folder):
      raise errors.CheckpointError('checkpoint is a link', where=folder)
  elif step is not None and not (own and int(own[1]) == step):
    raise errors.CheckpointError(
      'no such step', where=folder, got=step, expected='a folder of checkpoints'
    )
  return folder


# -- what is in it ------------------------------------------------------------


class _Checkpoint:
  """One checkpoint, of whichever layout."""

  def __init__(self, path):
    self._folder = folders.Folder(path)
    if any(name.startswith('state/') for name in self._folder.sizes):
      self._folder = folders.Folder(path / 'state')
    self.where, names = self._folder.where, self._folder.sizes
    self._store = self._folder
    if ocdbt.MANIFEST in names:
      self._store = ocdbt.Store(self._folder)
    self._leaves = self._from_file() if _TREE in names else self._from_names()
    if not any(path[0] == 'target' for path in self._leaves):
      raise errors.CheckpointError(
        'no checkpoint of T5X',
        where=self.where,
        expected=f'parameters under `target`, in a file `{_TREE}`, in folders '
        'target.* or in an OCDBT',
      )

  def _from_file(self):
    file = self.where / _TREE
    data = self._folder.read(_TREE, _TREE_BYTES).data
    if not _is_map(data[:1]):
      raise errors.CheckpointError(
        'not a checkpoint in msgpack',
        where=file,
        got='one of TensorFlow, such as Mesh TensorFlow writes'
        if bytes(data[:5]) == b'model'
        else None,
        fix='convert it with T5X, or take one that is',
      )
    tree = messages.read(data, file)
    version = tree.get('version', _VERSION)
    if version != _VERSION:
      raise errors.CheckpointError(
        'checkpoint is of another version',
        where=file,
        got=ascii(version),
        expected=f'{_VERSION}: before, bfloat16 was stored as uint16',
        fix='restore and save it with T5X',
      )
    for name in ('optimizer', '_optimizer'):
      tree = tree[name] if isinstance(tree.get(name), dict) else tree
    return dict(_flatten(tree, (), file))

  def _from_names(self):
    """Leaves by the arrays that there are: each names itself."""
    found = {}
    for file in self._store.sizes:
      name, _, last = file.rpartition('/')
      if last == '.zarray':
        path = tuple(name.split('.'))
        _check_path(path, self.where)
        path = path[1:] if path[0] in ('optimizer', '_optimizer') else path
        found[path] = f'{_PLACEHOLDER}{name}'
    return found

  def step(self):
    """As it is stored, or else by the folder's name, or None."""
    found = self._leaves.get(('state', 'step'))
    if isinstance(found, int):
      return found
    if found is not None:
      value = self._tensor(('state', 'step'), found)
      if value.dtype.kind in 'iu' and value.count == 1:
        return int(value.read().item())
    path = self.where.parent if self.where.name == 'state' else self.where
    match = _STEP.fullmatch(path.name)
    return int(match[1]) if match else None

  def tensors(self, *above):
    """{name: Tensor} of the leaves under a path."""
    n = len(above)
    leaves = [
      (path, leaf)
      for path, leaf in self._leaves.items()
      if path[:n] == above and leaf is not None
    ]
    with futures.ThreadPoolExecutor(_THREADS) as pool:
      found = list(pool.map(lambda pair: self._tensor(*pair), leaves))
    return {'/'.join(path[n:]): x for (path, _), x in zip(leaves, found)}

  def _tensor(self, path, leaf):
    """The Tensor of a leaf: itself, or the array that it names."""
    where = f'{self.where}: {"/".join(path)}'
    if not isinstance(leaf, Tensor):
      name, spec = _name_of(leaf, where)
      found = zarr.tensor(self._store, name)
      _check_spec(spec, found, where)
      leaf = found
    if path[0] == 'target' and leaf.dtype == 'uint16':
      raise errors.CheckpointError(
        'parameter of uint16',
        where=where,
        expected='a floating type: before version 3 bfloat16 was stored so',
        fix='restore and save it with T5X',
      )
    return leaf


def _flatten(tree, path, file):
  if len(path) > _DEEPEST:
    raise errors.CheckpointError(
      'tree is too deep', where=file, expected=f'at most {_DEEPEST} levels'
    )
  for name, value in tree.items():
    inner = *path, name
    _check_path(inner, file)
    if isinstance(value, dict) and not {'driver', 'kvstore'} <= value.keys():
      yield from _flatten(value, inner, file)
    else:
      yield inner, value


def _check_path(path, where):
  for name in path:
    if not _PART.fullmatch(name) or name in ('.', '..'):
      raise errors.CheckpointError(
        'wrong name in a checkpoint',
        where=where,
        got=ascii(name),
        expected='letters, digits, and any of _.-',
      )


def _name_of(leaf, where):
  """(name of the array that a leaf means, its spec), or refuses it."""
  name, spec, expected = None, {}, 'an array or the name of one'
  if isinstance(leaf, str) and leaf.startswith(_PLACEHOLDER):
    name = leaf.removeprefix(_PLACEHOLDER)
  elif isinstance(leaf, dict):
    spec, store = leaf, leaf['kvstore']
    if leaf['driver'] != 'zarr':
      expected = "driver 'zarr'"
    elif not isinstance(store, dict) or store.get('driver') not in _DRIVERS:
      expected = f'a kvstore by one of {", ".join(_DRIVERS)}'
    else:
      name = store.get('path', leaf.get('path'))  # there before 2022
      name = name.removesuffix('/') if isinstance(name, str) else ''
  if name is not None and (not _PART.fullmatch(name) or name in ('.', '..')):
    leaf, name, expected = name, None, 'the name of a folder beside it'
  if name is None:
    raise errors.CheckpointError(
      'no array of this checkpoint',
      where=where,
      got=ascii(leaf),
      expected=expected,
    )
  return name, spec


def _check_spec(spec, found, where):
  """Compares what a spec says of an array with what is stored."""
  metadata = spec.get('metadata')
  metadata = metadata if isinstance(metadata, dict) else {}
  shape = metadata.get('shape', list(found.shape))
  dtypes = {found.dtype.name, found.dtype.str, '|' + found.dtype.str[1:]}
  for dtype in (spec.get('dtype'), metadata.get('dtype')):
    if shape != list(found.shape) or dtype not in (None, *dtypes):
      raise errors.CheckpointError(
        'array is not what the checkpoint says',
        where=where,
        got=f'{found.dtype}{list(found.shape)}',
        expected=ascii(f'{dtype or found.dtype}{shape}')[1:-1],
      )
