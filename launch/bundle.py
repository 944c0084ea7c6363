"""What a job takes along: its command, and the files which that names.

Recipes of the user's own travel with what they include, a vocabulary and the
modules of tasks as files; they lie in the folder where the command starts, and
the command names them there.
"""

import os
import pathlib
import re

from t5x_lite import data
from t5x_lite import errors
from t5x_lite import partitioning
from t5x_lite import recipes
from t5x_lite import storage

MOST = 64 * 2**20  # bytes of all files together
_INCLUDE = re.compile(r"""^\s*include\s+(['"])(.+?)\1\s*(#.*)?$""")


def make(argv, started, run, config):
  """(the command as the machines run it, {file name: bytes}).

  Args:
    argv: the command and its options, as the user gave them.
    started: the same, parsed.
    run: specs.Run, or None of a command that takes no recipe.
    config: the job spec.

  Raises:
    ConfigError: it names what no machine but this one has.
  """
  command, files = list(argv), {}
  for n, name in enumerate(getattr(started, 'gin_file', ())):
    path = recipes.find(name, pathlib.Path())
    if recipes.is_installed(path) or not storage.is_local(path):
      continue
    kept = f'recipe_{n}_{_plain(path.name)}'
    files[kept] = _recipe(path).encode()
    _replace(command, '--gin_file', name, kept)
  for name in getattr(started, 'task_module', ()):
    files |= _module(name)
  for name in config.files:
    _take(files, pathlib.Path(name).name, name, '--config.files')
  if run is not None:
    command += _vocabulary(run, files, config)
    _check_corpus(run, config)
    if run.start_from is not None:
      path = run.start_from.path
      _check_shared(path, config, 'start from this', 'Pretrained.path')
  size = sum(map(len, files.values()))
  if size > MOST:
    raise errors.ConfigError(
      'a job takes too much along',
      got=f'{size:,} bytes in {len(files)} files',
      expected=f'{MOST:,} at most',
      fix='put what is large on gs://',
    )
  return command, files


def check_paths(started, config, accelerator):
  """Refuses a workdir, input or output that not all machines share."""
  for option in ('workdir', 'input', 'output'):
    path = getattr(started, option, None)
    if path in (None, '-') and option != 'workdir':
      continue
    if not path:
      raise errors.ConfigError(
        'no --workdir', fix='--workdir=gs://BUCKET/runs/NAME'
      )
    if is_shared(path, config):
      continue
    if config.shared_folders:
      expected = 'gs://..., or a path in ' + ', '.join(config.shared_folders)
    else:
      expected = 'gs://BUCKET/..., or a path in --config.shared_folders'
    full = os.path.abspath(os.path.expanduser(path))
    if is_shared(full, config):
      raise errors.ConfigError(
        f'--{option} must be a full path: the machines start elsewhere',
        got=path,
        fix=f'--{option}={full}',
      )
    many = accelerator.processes > 1
    raise errors.ConfigError(
      f'--{option} is local, and '
      + (
        f'{accelerator.processes} machines are to share it'
        if many
        else 'is gone with the machine'
      ),
      got=path,
      expected=expected,
    )


def is_shared(path, config):
  """Whether a path is the same on all machines."""
  if not storage.is_local(path):
    return True
  path = os.path.normpath(os.path.expanduser(path))
  return any(
    path.startswith(os.path.join(os.path.normpath(folder), ''))
    for folder in config.shared_folders
  )


def check_mesh(run, accelerator):
  """Refuses a mesh, or a batch, that the accelerator can't be cut into."""
  slices = accelerator.slices if accelerator.is_tpu else 1
  shape = partitioning.check_mesh(run.mesh, accelerator.devices, slices)
  partitioning.check_batch(shape, run.batch_size, run.microbatches, slices)


def _plain(name):
  return re.sub(r'[^\w.-]', '_', name)


def _replace(command, option, old, new):
  """Gives an option another value, in whichever way it was written."""
  for n, word in enumerate(command):
    if word == f'{option}={old}':
      command[n] = f'{option}={new}'
      return
    if word == option and command[n + 1 : n + 2] == [old]:
      command[n + 1] = new
      return
  raise AssertionError(option)


def _recipe(path):
  """The text of a recipe, with what it includes of the user's own in place."""
  lines = []
  for line in recipes.read(path).splitlines():
    found = _INCLUDE.match(line)
    if found:
      inner = recipes.find(found[2], path.parent)
      if not recipes.is_installed(inner) and storage.is_local(inner):
        lines.append(_recipe(inner))
        continue
    lines.append(line)
  return '\n'.join(lines) + '\n'


def _take(files, kept, name, where):
  """Takes a file along, unless there is another by the name it is kept by."""
  content = _read(name, where)
  if files.get(kept, content) != content:
    raise errors.ConfigError(
      'two files of one name are taken along',
      where=where,
      got=name,
      fix='rename one',
    )
  files[kept] = content


def _read(name, where):
  path = pathlib.Path(os.path.expanduser(name))
  if not path.is_file():
    raise errors.ConfigError(
      'no such file to take along', where=where, got=name
    )
  if path.stat().st_size > MOST:
    raise errors.ConfigError(
      'a file is too large to take along',
      where=path,
      got=f'{path.stat().st_size:,} bytes',
      expected=f'{MOST:,} at most',
      fix='put it on gs://',
    )
  return path.read_bytes()


def _module(name):
  """The files of a module in the current folder: itself, or its package."""
  top = name.split('.')[0]
  if pathlib.Path(f'{top}.py').is_file():
    return {f'{top}.py': _read(f'{top}.py', '--task_module')}
  if pathlib.Path(top).is_dir():
    return {
      str(file): _read(file, '--task_module')
      for file in sorted(pathlib.Path(top).rglob('*.py'))
    }
  raise errors.ConfigError(
    'no such module in this folder',
    where=f'--task_module={name}',
    expected=f'{top}.py or {top}/',
    fix='launch from the folder that it lies in',
  )


def _vocabulary(run, files, config):
  """The options by which the machines find a vocabulary that is a file here."""
  name = run.data.vocabulary
  if name == 'bytes' or is_shared(name, config):
    return []
  if not os.path.isfile(os.path.expanduser(name)):
    raise errors.ConfigError(
      'no such vocabulary here or on the machines of the job',
      where='Data.vocabulary',
      got=name,
      expected='gs://BUCKET/..., or a file, which is taken along',
    )
  kept = _plain(os.path.basename(name))
  _take(files, kept, name, 'Data.vocabulary')
  return [f'--gin.Data.vocabulary={kept}']


def _check_corpus(run, config):
  """Refuses a corpus that lies on this machine alone."""
  for source in data.corpora.local_names(run.data):
    _check_shared(source, config, 'read this corpus', 'Data.corpus')


def _check_shared(path, config, what, where):
  """Refuses a path that lies on this machine alone."""
  if not is_shared(path, config):
    full = os.path.abspath(os.path.expanduser(path))
    raise errors.ConfigError(
      f'the machines of the job cannot {what}',
      where=where,
      got=path,
      expected='gs://BUCKET/..., or a path in --config.shared_folders',
      fix=f'name it {full}'
      if is_shared(full, config)
      else f'gcloud storage cp --recursive {path} gs://BUCKET/',
    )
