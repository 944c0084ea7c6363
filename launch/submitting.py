"""The commands of `t5x_lite launch`, whatever runs the job."""

import contextlib
import os

from t5x_lite import errors
from t5x_lite import storage
from t5x_lite.launch import beginning
from t5x_lite.launch import bundle
from t5x_lite.launch import gke
from t5x_lite.launch import jobs
from t5x_lite.launch import plans
from t5x_lite.launch import slurm
from t5x_lite.launch import tpu_vm

# Each has check, plan, submit, status, logs, watch, stop, delete and forget;
# SHARED are the folders of this machine that those of a job see anyway, UNREAD
# the fields of a job spec that are of no account there.
BACKENDS = {'tpu_vm': tpu_vm, 'gke': gke, 'slurm': slurm}


def submit(options, run, say):
  """Launches a command, and follows it unless told to leave.

  Args:
    options: of `launch`; `start` is the command, and `started` the same parsed.
    run: its specs.Run, or None of a command that takes no recipe.
    say: prints a line.

  Returns:
    The exit code of the job; 0 if it is not followed.
  """
  backend = BACKENDS[options.where]
  config = _load(options.where, options)
  accelerator = jobs.accelerator(config)
  started = options.started
  backend.check(config, accelerator)
  shared = config.copy_and_resolve_references()
  shared.shared_folders = (*config.shared_folders, *backend.SHARED)
  bundle.check_paths(started, shared, accelerator)
  if run is not None:
    bundle.check_mesh(run, accelerator)
  command, files = bundle.make(options.start, started, run, shared)
  job = jobs.Job(
    _name(options, started),
    options.where,
    config.to_dict(),
    command,
    files,
  )
  if options.dry_run:
    say(f'{job.name} on {accelerator}; nothing is done')
    plans.show(backend.plan(job), say)
    return 0
  old = jobs.find(job.name)
  if old is not None and beginning.is_begun(old):
    _check_same(old, job)
    job.state = old.state
    say(f'{job.name} was launched here before: going on with it')
  with _alone(job):
    job.save()
    try:
      return backend.submit(job, not options.detach, say)
    finally:
      if not beginning.is_begun(job):
        backend.forget(job)


def _load(where, options):
  """The job spec, of which no option is in vain."""
  for binding in options.config_bindings:
    field = binding.partition('=')[0]
    group = field.partition('.')[0]
    if group in {*BACKENDS, *BACKENDS[where].UNREAD} - {where}:
      raise errors.ConfigError(
        f'launch {where} does not read this field of a job spec',
        got=f'--config.{field}',
        fix='leave it out',
      )
  return jobs.load(options.config, options.config_bindings)


def _check_same(old, new):
  """Refuses to go on with a job as if it were another."""
  one, other = _what(old), _what(new)
  differ = [name for name in one if one[name] != other[name]]
  if differ:
    raise errors.ConfigError(
      'another job of this name was launched here',
      where=f'--name={new.name}',
      got='one that differs in ' + ', '.join(differ),
      fix=f'another --name; or t5x_lite launch delete {new.name}',
    )


def _what(job):
  """What a job is: not for how long it is tried."""
  config = job.config | {'restarts': None}
  config['tpu_vm'] = config['tpu_vm'] | {'wait': None}
  return {'where it runs': job.backend, 'its command': job.command} | {
    f'--config.{field}': value for field, value in config.items()
  }


@contextlib.contextmanager
def _alone(job):
  """Keeps a second one out, who would start the same again."""
  with contextlib.ExitStack() as stack:
    try:
      stack.enter_context(storage.lock(jobs.folder() / f'{job.name}.lock'))
    except errors.StorageError as e:
      raise errors.StorageError(
        'another process launches or watches this job',
        where=job.name,
        got=e.got,
        fix=f't5x_lite launch logs or status {job.name}; or end the other',
      ) from None
    yield


def _name(options, started):
  if options.name is not None:
    return jobs.check_name(options.name)
  path = started.workdir.rstrip('/')
  return jobs.check_name(os.path.basename(path), '--name')


def act(options, say):
  """status, logs, watch, stop or delete, of a job that was launched."""
  asked = options.backend or options.config or options.config_bindings
  if options.name is None:
    if asked:
      raise errors.ConfigError(
        'no NAME: without one, status lists what was launched here',
        got='--backend, --config or --config.FIELD',
        fix='t5x_lite launch status NAME with them asks for one job',
      )
    return listing(say)
  job = jobs.find(options.name)
  if job is None:
    job = _elsewhere(options)
  elif asked:
    raise errors.ConfigError(
      'the job was launched here: where it runs is known',
      where=options.name,
      got='--backend, --config or --config.FIELD',
      fix=f't5x_lite launch {options.where} {options.name}; what it runs on is'
      ' changed by the launch command alone',
    )
  backend = BACKENDS[job.backend]
  verb = getattr(backend, options.where)
  more = {'force': options.force} if options.where == 'delete' else {}
  alone = options.where == 'watch'
  with _alone(job) if alone else contextlib.nullcontext():
    return verb(job, say=say, **more) or 0


def _elsewhere(options):
  """A Job that another machine launched, by its name and spec alone."""
  if not (options.backend and options.config):
    raise errors.ConfigError(
      'no job of this name was launched here',
      got=options.name,
      choices=jobs.known(),
      fix=f'name where it runs: --backend={options.backend or "tpu_vm"}'
      ' --config=NAME, and what else it was launched with of --config.FIELD',
    )
  config = _load(options.backend, options)
  BACKENDS[options.backend].check(config, jobs.accelerator(config))
  return jobs.Job(options.name, options.backend, config.to_dict(), [])


def listing(say):
  """The jobs that were launched here."""
  names = jobs.known()
  if not names:
    say(f'no job was launched here, says {jobs.folder()}')
  for name in names:
    try:
      job = jobs.find(name)
      say(f'{job.name}  {job.backend}  {job.accelerator}')
    except errors.ConfigError as e:
      say(f'{name}  {e}')
  return 0
