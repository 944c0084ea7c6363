"""A model in one file or in several with an index, as Hugging Face has it."""

from t5x_lite import errors
from t5x_lite import storage
from t5x_lite.interop import files


def read(folder, name, read_one):
  """{name: Tensor} of the file `name` in a folder, or of those of its index.

  Args:
    folder: local or remote.
    name: of the file if there is one, which is taken before an index, as
      transformers does.
    read_one: gives the Tensors of a files.File.

  Returns:
    None if neither is there.

  Raises:
    CheckpointError: a file is malformed; or they and the index do not hold
      just the same names.
  """
  folder = storage.path(folder)
  if (folder / name).exists():
    return read_one(files.inside(folder, name, folder))
  index = folder / f'{name}.index.json'
  if not index.exists():
    return None
  where = _read_index(index, folder)
  found = {}
  for shard in dict.fromkeys(where.values()):
    tensors = read_one(files.inside(folder, shard, index))
    wanted = {tensor for tensor, file in where.items() if file == shard}
    for fault, names in (
      ('a tensor of the index is not in its file', wanted - tensors.keys()),
      ('a tensor is not in the index as of this file', tensors.keys() - wanted),
    ):
      if names:
        raise errors.CheckpointError(
          fault,
          where=folder / shard,
          got=f'{min(names)!r}'
          + (f' and {len(names) - 1} more' if len(names) > 1 else ''),
        )
    found |= tensors
  return {tensor: found[tensor] for tensor in where}


def _read_index(index, folder):
  """{tensor: file} of an index."""
  where = files.read_json(folder, index.name).get('weight_map')
  if not isinstance(where, dict) or not all(
    isinstance(shard, str) for shard in where.values()
  ):
    raise errors.CheckpointError(
      'index names no files',
      where=index,
      expected='{"weight_map": {tensor: file, ...}}',
    )
  return where
