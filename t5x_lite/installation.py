"""What is installed: the versions and the code that a run's numbers hang on.

All of it is found without importing it, in a few hundredths of a second.
"""

import contextlib
import hashlib
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import pathlib
import platform

import t5x_lite

COMPILING = (  # what a compiled step hangs on
  'jax',
  'jaxlib',
  'libtpu',
  'jax-cuda12-plugin',
  'jax-cuda12-pjrt',
  'nvidia-cudnn-cu12',
  'jax-cuda13-plugin',
  'jax-cuda13-pjrt',
  'nvidia-cudnn-cu13',
  'flax',
  'optax',
)
_PACKAGES = (
  *COMPILING,
  'orbax-checkpoint',
  'numpy',
  'ml_dtypes',
  'tensorstore',
  'grain',
  'array_record',
  'seqio',
  'tensorflow',
  'tensorflow-datasets',
  'sentencepiece',
  'tokenizers',
  'pyarrow',
)


def versions():
  """{package: version} of those that are installed, and of Python."""
  found = {
    't5x_lite': t5x_lite.__version__,
    'Python': '.'.join(platform.python_version_tuple()[:2]),
  }
  for name in _PACKAGES:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      found[name] = importlib.metadata.version(name)
  return found


def code(modules=()):
  """{file: digest} of this program, and of modules that register tasks.

  Args:
    modules: names, as of --task_module. What else they import is not followed.

  Returns:
    Names as in an installed package, in order, with a short SHA-256 of each.
  """
  package = pathlib.Path(__file__).resolve().parent
  files = _named('t5x_lite', package, '**/*.py')
  for name in ('tasks', 'launch'):  # in the package, or a checkout beside it
    inside = package / name
    folder = inside if inside.is_dir() else package.parent / name
    files |= _named(f't5x_lite/{name}', folder, '**/*.py')
  for module in modules:
    files |= _of_module(*module.split('.'))
  return {
    name: hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    for name, file in sorted(files.items())
  }


def digest(files):
  """One short digest of `code`."""
  text = ''.join(f'{name} {found}\n' for name, found in files.items())
  return hashlib.sha256(text.encode()).hexdigest()[:12]


def _named(prefix, folder, pattern):
  root = pathlib.Path(folder)
  return {
    f'{prefix}/{file.relative_to(root).as_posix()}': file
    for file in root.glob(pattern)
    if file.is_file()
  }


def _of_module(top, *rest):
  """The file of a module, or those of the folder of its package."""
  finder = importlib.machinery.PathFinder
  try:
    # The current folder comes first, as when they are imported.
    spec = finder.find_spec(top, [os.getcwd()]) or importlib.util.find_spec(top)
  except (ImportError, ValueError):
    spec = None
  if spec is None or top == 't5x_lite':
    return {}  # to be told when it is imported; or among ours
  files = {}
  for folder in spec.submodule_search_locations or ():
    parts = rest
    if not pathlib.Path(folder, *parts).is_dir():
      parts = rest[:-1]
    files |= _named(
      '/'.join((top, *parts)), pathlib.Path(folder, *parts), '*.py'
    )
  if not files and (spec.origin or '').endswith('.py'):
    files[f'{top}.py'] = pathlib.Path(spec.origin)
  return files
