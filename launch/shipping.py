"""What is copied to each VM of a job: a folder that is made here.

It stays in the private folder of the jobs, so that a job can be brought to new
VMs by any later command.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile

from t5x_lite import errors
from t5x_lite import storage
from t5x_lite.launch import calls
from t5x_lite.launch import gcloud
from t5x_lite.launch import jobs

PAUSE = 5, 60  # seconds before the first restart, and at most
EXTRAS = 'tpu,gcs'
_ROOT = pathlib.Path(__file__).parents[1]
_WORKER = pathlib.Path(__file__).with_name('worker.py')
_SOURCES = ('setup.py', 'README.md', 'gin', 'launch', 't5x_lite', 'tasks')
_WHEEL = re.compile(r't5x_lite-[\w.!+]+-[\w.]+-[\w.]+-[\w.]+\.whl', re.ASCII)
_OTHERS = ('gke', 'slurm')  # fields of other backends
_LEFT = ('t5x_lite', 'libtpu')  # jax[tpu] asks for the one that it fits


def home(name):
  """The folder of a job that is copied: it holds JOBS/NAME."""
  return pathlib.Path(jobs.root()) / name / gcloud.JOBS


def needs():
  """(Python version, extras) of an environment that is installed on a VM."""
  return ['.'.join(map(str, sys.version_info[:2])), EXTRAS]


def job_text(job, coordinator):
  """The job.json of a job, without its digest."""
  spec = job.spec
  kept = {
    'name': job.name,
    'backend': job.backend,
    'config': {k: v for k, v in job.config.items() if k not in _OTHERS},
    'command': job.command,
    'arguments': job.arguments,
    'env': dict(spec.env),
    'process_count': job.accelerator.processes,
    'coordinator': f'{coordinator}:{spec.tpu_vm.port}',
    'python': spec.tpu_vm.python,
    'wheel': '' if spec.tpu_vm.python else wheel_name(spec),
    'needs': needs(),
    'restarts': spec.restarts,
    'pause': list(PAUSE),
    'final_codes': list(jobs.FINAL_CODES),
  }
  return _lines(kept)


def _lines(kept):
  """A dict as JSON, a line for each of its fields."""
  lines = [f' {json.dumps(k)}: {json.dumps(v)}' for k, v in kept.items()]
  return '{\n' + ',\n'.join(lines) + '\n}\n'


# -- the wheel ----------------------------------------------------------------


def wheel_name(spec):
  if spec.tpu_vm.wheel:
    return os.path.basename(spec.tpu_vm.wheel)
  return f't5x_lite-{importlib.metadata.version("t5x_lite")}-py3-none-any.whl'


def check_wheel(spec):
  """Refuses a job for which there is no wheel, and none can be made."""
  given = spec.tpu_vm.wheel
  if spec.tpu_vm.python:
    if given:
      raise errors.ConfigError(
        'a wheel, and a Python into which nothing is installed',
        where='--config.tpu_vm.wheel',
        got=given,
        fix='leave out this, or --config.tpu_vm.python',
      )
    return
  if given:
    path = pathlib.Path(os.path.expanduser(given))
    if not path.is_file() or not _WHEEL.fullmatch(path.name):
      raise errors.ConfigError(
        'no such wheel',
        where='--config.tpu_vm.wheel',
        got=given,
        expected='a file t5x_lite-VERSION-py3-none-any.whl',
        fix='make wheel',
      )
  elif not (_ROOT / 'setup.py').is_file():
    raise errors.ConfigError(
      't5x_lite is installed here without its source: no wheel can be made',
      fix='--config.tpu_vm.wheel=FILE, or --config.tpu_vm.python=PATH of an'
      ' image that has it',
    )


def build_wheel(source, folder):
  """The argv that makes a wheel; the same of the same source."""
  return [
    'env',
    'SOURCE_DATE_EPOCH=1577836800',
    sys.executable,
    '-m',
    'pip',
    'wheel',
    '--quiet',
    '--disable-pip-version-check',
    '--no-deps',
    f'--wheel-dir={folder}',
    str(source),
  ]


def _wheel(spec, folder):
  """Puts the wheel into a folder."""
  if spec.tpu_vm.wheel:
    shutil.copy(os.path.expanduser(spec.tpu_vm.wheel), folder)
    return
  # Of a copy: what an earlier build left in the checkout would go along.
  with tempfile.TemporaryDirectory() as made:
    source = pathlib.Path(made) / 'source'
    source.mkdir()
    for name in _SOURCES:
      path = _ROOT / name
      if path.is_dir():
        shutil.copytree(
          path,
          source / name,
          ignore=shutil.ignore_patterns('__pycache__', '.*'),
        )
      else:
        shutil.copy(path, source)
    calls.run(build_wheel(source, folder), deadline=600, tries=2)
  if not (folder / wheel_name(spec)).is_file():
    found = ', '.join(path.name for path in folder.glob('*.whl'))
    raise errors.ConfigError(
      'the wheel of this checkout has another version than is installed here',
      got=found,
      expected=wheel_name(spec),
      fix='install it again: pip install --editable .',
    )


def constraints():
  """Lines of `name==version` for all that t5x_lite needs, as it is here."""
  found, waiting = {}, ['t5x_lite']
  while waiting:
    name = re.sub(r'[-_.]+', '-', waiting.pop()).lower()
    if name in found:
      continue
    try:
      part = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
      found[name] = None
      continue
    found[name] = part.version.partition('+')[0]
    for needed in part.requires or ():
      waiting.append(re.match(r'[\w.-]+', needed)[0])
  return ''.join(
    f'{name}=={version}\n'
    for name, version in sorted(found.items())
    if version and name.replace('-', '_') not in _LEFT
  )


# -- the folder ---------------------------------------------------------------


def beside(name):
  """Where the folder of a job is made, until it is whole."""
  return pathlib.Path(jobs.root()) / f'{name}.part' / gcloud.JOBS / name


@contextlib.contextmanager
def replaced(name):
  """An empty folder, which becomes that of a job once all is in it."""
  folder, target = beside(name), home(name).parent
  part = folder.parents[1]
  jobs.folder()  # private
  shutil.rmtree(part, ignore_errors=True)
  with storage.writing(folder):
    folder.mkdir(parents=True)
    yield folder
    shutil.rmtree(target, ignore_errors=True)
    part.rename(target)


def make(job):
  """Makes the folder of a job, but for the address of its process 0."""
  with replaced(job.name) as folder:
    (folder / 'files').mkdir()
    shutil.copy(_WORKER, folder)
    for name, content in job.files.items():
      path = folder / 'files' / name
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_bytes(content)
    if not job.spec.tpu_vm.python:
      _wheel(job.spec, folder)
      (folder / 'constraints.txt').write_text(constraints())


def is_made(job):
  """Whether there is the folder of a job; it is whole then."""
  return (home(job.name) / job.name).is_dir()


def address(job, coordinator):
  """Writes job.json, and gives the digest of the folder."""
  folder = home(job.name) / job.name
  text = job_text(job, coordinator)
  kept = json.loads(text)
  kept['config']['tpu_vm'].pop('wait')  # is of no account there
  digest = hashlib.sha256(_lines(kept).encode())
  for path in sorted(folder.rglob('*')):
    name = path.relative_to(folder).as_posix()
    if path.is_file() and name != 'job.json':
      digest.update(f'\0{name}\0'.encode() + path.read_bytes())
  named = digest.hexdigest()[:16]
  kept = {'digest': named} | json.loads(text)
  file = folder / 'job.json'
  file.touch(mode=0o600)  # here as on the VMs: its variables may be secrets
  file.write_text(_lines(kept))
  return named


def remove(job):
  shutil.rmtree(beside(job.name).parents[1], ignore_errors=True)
  shutil.rmtree(home(job.name).parent, ignore_errors=True)
