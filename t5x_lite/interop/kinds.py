"""Folders that `import` does not take, and what to do with them instead."""

from t5x_lite import errors
from t5x_lite.interop import folders
from t5x_lite.interop import stablehlo


def refuse_other(source):
  """Raises if a path is no folder, or one that this project wrote.

  Args:
    source: an absolute path of storage.

  Raises:
    CheckpointError: it is not there, or no folder of others.
  """
  if not source.exists():
    raise errors.CheckpointError('nothing is there', where=source)
  if not source.is_dir():
    raise errors.CheckpointError(
      'not a folder', where=source, fix=f'name the folder: {source.parent}'
    )
  names = set(folders.names(source))
  if stablehlo.ABOUT in names:
    raise errors.CheckpointError(
      'a model that was exported for serving, not to be read again',
      where=source,
      expected='what `export` writes without --format=stablehlo',
      fix="serve it by its serve.py, or export its run's weights again",
    )
  above, weights = source.parent, ('model.', 'model-', 'pytorch_model')
  if {'manifest.json', 'state'} <= names:
    raise _own(source, 'a checkpoint of a run', above.parent)
  if source.name == 'checkpoints' and any(map(str.isdigit, names)):
    raise _own(source, 'the checkpoints of a run', above)
  if 'checkpoints' in names and not any(x.startswith(weights) for x in names):
    raise _own(source, 'a run', source)


def _own(source, what, workdir):
  return errors.CheckpointError(
    f'{what} of t5x_lite, which needs no import',
    where=source,
    fix=f'`t5x_lite infer --workdir={workdir}`, or train on from it: '
    '--gin.Run.start_from=@Pretrained() '
    f'--gin.Pretrained.path={workdir}',
  )
