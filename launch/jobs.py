"""What a job is: its spec, its name, and what is remembered of it here.

A job spec is an ml_collections config file, a Python file with a function
`get_config()`; `--config.zone=...` changes a field of it.
"""

import dataclasses
import importlib.util
import json
import os
import pathlib
import re

import ml_collections

from t5x_lite import accelerators
from t5x_lite import errors
from t5x_lite import storage
from t5x_lite.launch import fields

CONFIGS = pathlib.Path(__file__).parent / 'configs'
BACKENDS = 'tpu_vm', 'gke', 'slurm'
CAPACITIES = 'on_demand', 'spot', 'reserved'
# What these would end with again is not started again.
FINAL_CODES = (0, 1, 2, 3, 4, 5, errors.INTERRUPTED)
_NAME = re.compile(r'[a-z]([-a-z0-9]{0,38}[a-z0-9])?', re.ASCII)


def spec(**changes):
  """A job spec with its defaults, and these changes.

  Fields of a backend are in a group of its name, given as a dict.
  """
  made = ml_collections.ConfigDict(
    {
      'accelerator': '',  # such as v5e-256, 2xv5e-256 or h100-8
      'slices': 1,  # of TPUs; nodes of GPUs
      'recipe': '',  # that it is meant for, as a table of specs shows it
      'project': '',  # of Google Cloud; empty: the one of gcloud's own config
      'zone': '',
      'capacity': 'on_demand',  # or spot, or reserved
      'env': {},  # variables of each process; --config.env.NAME=value
      'files': (),  # taken along, into the folder where the command starts
      'shared_folders': (),  # that all machines have, such as a Filestore
      'restarts': 10,  # after a preemption or the loss of a machine
      'arrival_timeout': 900,  # seconds, for all processes to have started
      'delete_when_done': False,
      'tpu_vm': {
        'existing': '',  # a TPU VM that is there, instead of a new one
        'runtime': '',  # software of the VM; empty: the one for its kind
        'wheel': '',  # of t5x_lite; empty: made of this checkout
        'python': '',  # that has t5x_lite on the VMs; nothing is installed
        'service_account': '',
        'network': '',
        'subnetwork': '',
        'internal_ips': False,
        'wait': 24,  # hours for capacity
        'port': 8476,  # at which process 0 listens
      },
      'gke': {
        'image': '',  # that has t5x_lite, as launch/Dockerfile makes it
        'context': '',  # of kubectl; empty: the current one
        'namespace': 'default',
        'service_account': '',  # of Kubernetes
        'queue': '',  # of Kueue
        'grace': 300,  # seconds to save after a notice of preemption
        'reservation': '',
        'claim': '',  # PersistentVolumeClaim, mounted as the shared folder
      },
      'slurm': {
        'partition': '',
        'account': '',
        'qos': '',
        'constraint': '',
        'time': '24:00:00',
        'cpus': 0,  # of a node; 0: the whole node, shared with no other job
        'memory': '',  # of a node, such as 500G; 0, or a whole node: all
        'python': '',  # that has t5x_lite; empty: the one that launches
        'grace': 120,  # seconds to save before the time is over
        'setup': (),  # lines of bash before it, such as `module load cuda`
      },
    }
  )
  for name, value in changes.items():
    _set(made, name, value, f'spec({name}=...)')
  return made.lock()


def _set(config, name, value, where):
  """Sets `a.b` of a config, to a value or to what a text says."""
  top, (*groups, last) = config, name.split('.')
  if groups[:1] == ['env']:
    variable = name.partition('.')[2]
    text = str(value) if type(value) in (int, float) else value
    fields.check_variable(variable, text)
    with config.unlocked():
      config.env[variable] = text
    return
  for group in groups:
    inside = config.get(group)
    if not isinstance(inside, ml_collections.ConfigDict):
      raise _unknown(config, group, where)
    config = inside
  if isinstance(value, dict) and isinstance(
    config.get(last), ml_collections.ConfigDict
  ):
    for key, inner in value.items():
      _set(top, f'{name}.{key}', inner, where)
    return
  if isinstance(config.get(last), ml_collections.ConfigDict):
    raise errors.ConfigError(
      'a group of fields has no value itself',
      where=where,
      got=repr(value),
      fix=f'--config.{name}.FIELD=VALUE',
    )
  if last not in config:
    raise _unknown(config, last, where)
  config[last] = _typed(value, type(config[last]), where)


def _unknown(config, name, where):
  return errors.ConfigError(
    'no such field of a job spec',
    where=where,
    got=name,
    expected='one of ' + ', '.join(config),
    choices=list(config),
  )


def _typed(value, kind, where):
  """A value as a field takes it; text is read as one of that kind."""
  texts = {'True': True, 'true': True, 'False': False, 'false': False}
  try:
    if kind is bool and isinstance(value, str):
      return texts[value]
    if kind is int and isinstance(value, str):
      return int(value)
    if kind is tuple and isinstance(value, str):
      return tuple(part for part in value.split(',') if part)
    if kind is tuple and isinstance(value, list | tuple):
      return tuple(map(str, value))
  except (KeyError, ValueError):
    pass
  if type(value) is not kind:
    kinds = {bool: 'True or False', tuple: 'words with commas between'}
    raise errors.ConfigError(
      'wrong value in a job spec',
      where=where,
      got=repr(value),
      expected=kinds.get(kind, f'{kind.__name__}'),
    )
  return value


def names():
  """The names of the job specs that are installed."""
  return sorted(file.stem for file in CONFIGS.glob('[!_]*.py'))


def load(name, overrides=()):
  """The job spec of a file or an installed name, as a locked ConfigDict.

  The file is run: it is the user's own program.

  Args:
    name: a path, or one of `names()`.
    overrides: 'zone=us-west4-a' and the like.

  Raises:
    ConfigError: there is none, it fails, or a field is wrong.
  """
  file = pathlib.Path(os.path.expanduser(name))
  if not file.is_file() and file.name == name:  # not a path that is mistyped
    file = CONFIGS / f'{file.name.removesuffix(".py")}.py'
  if not name:
    raise errors.ConfigError(
      'no job spec is named',
      where='--config',
      expected='a Python file, or one of ' + ', '.join(names()),
    )
  if not file.is_file():
    here = file.parent == CONFIGS
    near = None if here else errors.nearest(file.stem, names())
    what = 'no such job spec' if here else 'no such file of a job spec'
    raise errors.ConfigError(
      'a folder is no job spec' if file.is_dir() else what,
      where='--config',
      got=name,
      expected='a Python file, or one of ' + ', '.join(names()),
      choices=names() if here else (),
      fix=near and f'--config={near}, which is installed',
    )
  try:
    loaded = importlib.util.spec_from_file_location('job_spec', file)
    module = importlib.util.module_from_spec(loaded)
    loaded.loader.exec_module(module)
    config = module.get_config()
  except errors.UserError as e:
    raise e.at(f'{file}: {e.where}') from None
  except (Exception, SystemExit) as e:
    raise errors.ConfigError(
      'job spec fails',
      where=file,
      got=f'{type(e).__name__}: {e}',
      expected='a function get_config() that returns launch.jobs.spec(...)',
    ) from e
  if not isinstance(config, ml_collections.ConfigDict) or (
    config.keys() != spec().keys()
  ):
    raise errors.ConfigError(
      'not a job spec',
      where=file,
      got=type(config).__name__,
      expected='what launch.jobs.spec(...) returns',
    )
  try:
    config = spec(**config.to_dict())  # which it may have gone around
  except errors.UserError as e:
    raise e.at(f'{file}: {e.where}') from None
  for override in overrides:
    field, _, value = override.partition('=')
    _set(config, field, value, f'--config.{field}')
  check(config)
  return config


def check(config):
  """Refuses what no machine could be asked for, or a shell might run."""
  if not config.accelerator:
    raise errors.ConfigError(
      'no accelerator', fix='--config.accelerator=v5e-256, or another'
    )
  if config.capacity not in CAPACITIES:
    raise errors.ConfigError(
      'no such capacity',
      where='--config.capacity',
      got=config.capacity,
      expected='one of ' + ', '.join(CAPACITIES),
      choices=CAPACITIES,
    )
  groups = [('', config)] + [
    (f'{name}.', value)
    for name, value in config.items()
    if isinstance(value, ml_collections.ConfigDict) and name != 'env'
  ]
  for prefix, group in groups:
    for name, value in group.items():
      fields.check_field(name, value, f'--config.{prefix}{name}')
  # After its count of slices, which it would be blamed for.
  accelerators.parse(config.accelerator, config.slices, '--config.accelerator')
  for name, value in config.env.items():
    fields.check_variable(name, value)


def check_name(name, where='--name'):
  """Refuses what Google Cloud, Kubernetes or a file system might not take."""
  if not _NAME.fullmatch(name):
    fixed = re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')
    raise errors.ConfigError(
      'not a name of a job',
      where=where,
      got=ascii(name),
      expected='a letter, then letters, digits and -, 40 at most, all small',
      fix=f'{where}={fixed}' if _NAME.fullmatch(fixed) else None,
    )
  return name


def accelerator(config):
  return accelerators.parse(config.accelerator, config.slices)


@dataclasses.dataclass
class Job:
  """A job, as it is remembered on the machine that launched it.

  Attributes:
    name: of the job, and of what is made for it in the cloud.
    backend: tpu_vm, gke or slurm.
    config: the job spec, as plain JSON.
    command: the command that each process runs, after `python -m t5x_lite`.
    files: name -> text or bytes of what is taken along; not remembered.
    state: what the backend knows of it, as plain JSON.
  """

  name: str
  backend: str
  config: dict
  command: list[str]
  files: dict[str, bytes] = dataclasses.field(default_factory=dict)
  state: dict = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    # As it comes back from a file, where a tuple is a list.
    self.config = json.loads(json.dumps(self.config))

  @property
  def spec(self):
    return ml_collections.ConfigDict(self.config).lock()

  @property
  def accelerator(self):
    return accelerator(self.spec)

  @property
  def arguments(self):
    """What follows `python -m t5x_lite` in each process, but for its place."""
    return [
      *self.command,
      f'--device_count={self.accelerator.devices}',
      f'--initialization_timeout={self.spec.arrival_timeout}',
    ]

  def save(self):
    """Remembers the job, whole or not at all."""
    kept = {
      field: getattr(self, field)
      for field in ('name', 'backend', 'config', 'command', 'state')
    }
    text = json.dumps(kept, indent=2) + '\n'
    storage.write_text(folder() / f'{self.name}.json', text)

  def forget(self):
    (folder() / f'{self.name}.json').unlink(missing_ok=True)


def root():
  """Where the folder of the jobs is, or would be."""
  state = os.environ.get('T5X_LITE_STATE') or os.path.join(
    os.environ.get('XDG_STATE_HOME') or os.path.expanduser('~/.local/state'),
    't5x_lite',
  )
  return storage.path(state) / 'jobs'


def folder():
  """The private folder of the jobs that were launched here."""
  return storage.make_private(root(), 'T5X_LITE_STATE')


def known():
  """The names of the jobs that were launched here."""
  return sorted(file.name[: -len('.json')] for file in folder().glob('*.json'))


def find(name):
  """The Job of a name that was launched here, or None."""
  check_name(name, 'NAME')
  file = folder() / f'{name}.json'
  if not file.exists():
    return None
  try:
    job = Job(**json.loads(file.read_text()))
    known_fields = set(job.config) == set(spec())
    if job.name != name or not known_fields or job.backend not in BACKENDS:
      raise ValueError('another job, or of another version')
    check(job.spec)
    return job
  except (ValueError, TypeError, AttributeError, errors.ConfigError) as e:
    raise errors.ConfigError(
      'what is remembered of a job is damaged',
      where=file,
      got=f'{type(e).__name__}: {e}',
      fix='delete it, and name the job by --backend and --config',
    ) from None
