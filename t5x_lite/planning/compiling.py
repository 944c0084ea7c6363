"""Programs compiled for chips that are not there, kept on disk."""

import contextlib
import dataclasses
import gzip
import hashlib
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import zlib

import numpy as np

from t5x_lite import errors
from t5x_lite import installation
from t5x_lite import record
from t5x_lite import storage
from t5x_lite.planning import hlo

# What a program hangs on: settings that don't count, code and flags that do.
_IRRELEVANT = 'steps', 'seed', 'log_every', 'evaluation', 'checkpoints'
_CODE = (
  't5x_lite/nn/',
  't5x_lite/optimizers/',
  't5x_lite/specs/',
  't5x_lite/data/shapes.py',
  't5x_lite/losses.py',
  't5x_lite/models.py',
  't5x_lite/partitioning.py',
  't5x_lite/chips.py',
  't5x_lite/planning/compiler.py',
  't5x_lite/planning/targets.py',
  't5x_lite/train.py',
)
_FLAGS = 'XLA_FLAGS', 'LIBTPU_INIT_ARGS'
_FAST = {'exec_time_optimization_effort': -1.0}
_COMPILERS = {'tpu': ('libtpu', 'tpu'), 'cuda': ('jax_cuda12_plugin', 'gpu')}
_UNREADABLE = OSError, EOFError, ValueError, KeyError, zlib.error
_MAKING, _OLD = '.making-', 86_400  # seconds
_LAST = 12  # lines of a compiler that failed


@dataclasses.dataclass(frozen=True)
class Compiled:
  """A program, or why there is none.

  Attributes:
    module: hlo.Module, or None if it needs too much memory.
    memory: {argument_size: bytes, ...} as the compiler tells it.
    too_much: {needed, available} bytes, or None.
    mesh: {axis: size}.
    coords: places of the devices in their slices, or None.
    slices: of the devices.
    seconds: that compiling took, wall clock.
    cpu_seconds: of all cores.
    rss: bytes of the process at most.
    cached: whether it was on disk.
  """

  module: hlo.Module | None
  memory: dict
  too_much: dict | None
  mesh: dict
  coords: np.ndarray | None
  slices: np.ndarray
  seconds: float
  cpu_seconds: float
  rss: int
  cached: bool


def request(run, accelerator, fast=False):
  """What the compiler is asked for, in plain values.

  Args:
    run: specs.Run.
    accelerator: accelerators.Accelerator.
    fast: whether it is to hurry, and its program may be slow and large.
  """
  settings = {
    k: v for k, v in record.record(run).items() if k not in _IRRELEVANT
  }
  settings['steps'] = run.steps and 1000
  arguments = {}
  if accelerator.is_tpu:
    platform, topology = 'tpu', f'{accelerator.kind}:{accelerator.shape}'
    if accelerator.kind == 'v4':  # else it has two devices to a chip
      arguments['chip_config_name'] = 'megacore'
    if accelerator.chips == 1:
      arguments['chips_per_host_bounds'] = [1, 1, 1]
    if accelerator.slices > 1:
      arguments['num_slices'] = accelerator.slices
  else:
    platform = 'cuda'
    topology = f'{accelerator.slices}x{accelerator.name}'
    if without_cudnn(run):
      settings['model'] = settings['model'] | {'attention': 'chunked'}
  return {
    'record': settings,
    'platform': platform,
    'topology': topology,
    'arguments': arguments,
    'options': _FAST if fast and accelerator.is_tpu else {},
  }


def without_cudnn(run):
  """Whether attention is compiled for GPUs otherwise than it would run.

  Which of cuDNN's kernels fits is asked of a library that needs the GPU.
  """
  return run.model.attention in ('auto', 'fused')


def key(asked):
  """A name for all that a compiled program hangs on."""
  versions = installation.versions()
  code = installation.code()
  facts = {
    'request': asked,
    'versions': {
      k: v for k, v in versions.items() if k in installation.COMPILING
    },
    'flags': {k: os.environ.get(k, '') for k in _FLAGS},
    'code': {k: v for k, v in code.items() if k.startswith(_CODE)},
  }
  text = json.dumps(facts, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def folder():
  """Where programs are kept."""
  return storage.make_private(storage.cache_dir() / 'plans')


def compile(run, accelerator, fast=False):  # noqa: A001
  """The Compiled train step of a run; from disk if it was compiled before.

  Raises:
    ConfigError: no compiler for these chips is installed.
    DeviceError: the compiler failed.
    StorageError: the folder of programs can't be written.
  """
  asked = request(run, accelerator, fast)
  kept = home(run, accelerator, fast)
  with contextlib.suppress(*_UNREADABLE):
    return _read(kept)
  shutil.rmtree(kept, ignore_errors=True)  # what is there is of no use
  _check_compiler(asked['platform'])
  _compile(asked, kept)
  return dataclasses.replace(_read(kept), cached=False)


def _read(kept):
  """The Compiled in a folder.

  Raises:
    OSError, EOFError, ValueError, KeyError: it is not there whole.
  """
  facts = json.loads((kept / 'facts.json').read_text())
  text = None
  if not facts.get('too_much'):
    text = gzip.decompress((kept / 'program.hlo.gz').read_bytes()).decode()
  return read(facts, text)


def is_kept(run, accelerator, fast=False):
  """Whether a program was compiled before."""
  return (home(run, accelerator, fast) / 'facts.json').exists()


def home(run, accelerator, fast=False):
  """The folder that a program is kept in, or will be."""
  return pathlib.Path(folder()) / key(request(run, accelerator, fast))


def read(facts, text, cached=True):
  """The Compiled of what the compiler wrote.

  Args:
    facts: in facts.json.
    text: of the program, or None.
    cached: whether it was there before.
  """
  coords = facts['coords']
  return Compiled(
    None if text is None else hlo.parse(text),
    facts.get('memory', {}),
    facts.get('too_much'),
    facts['mesh'],
    None if coords[0] is None else np.array(coords),
    np.array(facts['slices']),
    facts['seconds'],
    facts['cpu_seconds'],
    facts['rss'],
    cached,
  )


def has_compiler(platform):
  """Whether the package that compiles for a platform is installed."""
  return importlib.util.find_spec(_COMPILERS[platform][0]) is not None


def _check_compiler(platform):
  module, extra = _COMPILERS[platform]
  if not has_compiler(platform):
    raise errors.ConfigError(
      f'no compiler for {platform} is installed',
      expected=f'the package of {module}',
      fix=f"pip install 't5x_lite[{extra}]', or --analytic for what can be "
      'told without it',
    )


def _compile(asked, home):
  """Runs the compiler, and puts what it wrote in its place as a whole."""
  for left in home.parent.glob(f'{_MAKING}*'):  # by whoever was killed
    with contextlib.suppress(OSError):
      if time.time() - left.stat().st_mtime > _OLD:
        shutil.rmtree(left)
  with _keeping(home.parent):
    made = pathlib.Path(tempfile.mkdtemp(dir=home.parent, prefix=_MAKING))
  try:
    with _keeping(home.parent):
      (made / 'request.json').write_text(json.dumps(asked))
      (made / 'log').touch()
    command = [sys.executable, '-m', 't5x_lite.planning.compiler']
    command += [str(made / 'request.json'), str(made)]
    with (
      open(made / 'log', 'wb') as log,
      subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=log, stderr=log
      ) as process,
    ):
      try:
        code = process.wait()
      finally:
        process.kill()
    if code == errors.StorageError.exit_code:
      raise _unwritten(home.parent)
    if code:
      raise _failed(code, (made / 'log').read_text(errors='replace'))
    with _keeping(home.parent):
      try:
        made.rename(home)
      except OSError:
        if not (home / 'facts.json').exists():  # else another did it meanwhile
          raise
  finally:
    shutil.rmtree(made, ignore_errors=True)


@contextlib.contextmanager
def _keeping(folder):
  """Around what writes there."""
  try:
    yield
  except OSError as e:
    raise _unwritten(folder, e.strerror) from e


def _unwritten(folder, why=None):
  free = shutil.disk_usage(folder).free
  return errors.StorageError(
    'cannot keep what is compiled',
    where=folder,
    got=f'{why or "no room or no right to write"}, {free / 2**20:.0f} MiB free',
    fix='free some, or choose another folder by T5X_LITE_CACHE or '
    'XDG_CACHE_HOME',
  )


def _failed(code, log):
  said = [line for line in log.splitlines() if line.strip()]
  how = f'signal {-code}' if code < 0 else f'exit code {code}'
  signs = 'Fatal', 'Check failed', 'Error:'
  told = [x for x in said if any(sign in x for sign in signs)]
  cause = (told or said or [''])[-1]
  error = errors.DeviceError(
    f'the compiler failed ({how})', got=cause.strip()[:400] or None
  )
  for line in said[-_LAST:]:
    error.add_note(f'  {line[:200]}')
  return error
