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
from t5x_lite.launch import standing
from t5x_lite.launch import tpu_vm
from t5x_lite.planning import fitting

# Each has check and check_place, which is of what finds a job, where, plan,
# submit, stands, is_there, clear, status, logs, watch, stop, delete and forget;
# SHARED are the folders of this machine that those of a job see anyway, UNREAD
# the fields of a job spec that are of no account there, OWN those that only who
# follows a job reads: they may change as it runs.
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
    environ = dict(os.environ) | config.env.to_dict()
    fitting.check(run, accelerator, environ)
  command, files = bundle.make(options.start, started, run, shared)
  job = jobs.Job(
    _name(options, started),
    options.where,
    config.to_dict(),
    command,
    files,
    {'files': standing.digests(files)},
  )
  if options.dry_run:
    say(f'{job.name} on {accelerator}; nothing is done')
    plans.show(backend.plan(job), say)
    return 0
  old = jobs.find(job.name)
  if old is not None and not beginning.is_begun(old):
    old = None
  differ = old and _check_change(old, job, say)
  with _alone(job):
    if old:
      job.state = old.state | job.state
    if differ:
      backend.clear(old, say)
      say(standing.changed(job, differ))
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


def _check_change(old, new, say):
  """How a job differs from the one that was launched by its name before.

  Raises:
    ConfigError: that one is there, and cannot change so.
  """
  if old.backend != new.backend:
    raise errors.ConfigError(
      'a job of this name was launched elsewhere',
      where=f'--name={new.name}',
      got=new.backend,
      expected=old.backend,
      fix=f'another --name; or first t5x_lite launch delete {new.name}',
    )
  backend = BACKENDS[new.backend]
  differ = standing.differences(old, new, backend.UNREAD)
  own = [f'--config.{field}' for field in backend.OWN]
  if all(d.field in own for d in differ):
    return []
  found = backend.stands(old, say)
  standing.check(old, new, found, [d for d in differ if d.field not in own])
  return differ


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
  asked = (
    options.backend or options.config_bindings or options.config is not None
  )
  if options.name is None:
    if asked:
      raise errors.ConfigError(
        'no NAME: without one, status lists what was launched here',
        got='--backend, --config or --config.FIELD',
        fix='t5x_lite launch status NAME with them asks for one job',
      )
    return listing(say)
  job = jobs.find(options.name)
  remembered = job is not None
  if not remembered:
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
  if not remembered and not backend.is_there(job, say):
    raise errors.ConfigError(
      f'there is no such job, here or in {backend.where(job)}',
      got=job.name,
      choices=jobs.known(),
      fix='t5x_lite launch status lists those that were launched here',
    )
  verb = getattr(backend, options.where)
  more = {'force': options.force} if options.where == 'delete' else {}
  alone = options.where == 'watch'
  with _alone(job) if alone else contextlib.nullcontext():
    return verb(job, say=say, **more) or 0


def _elsewhere(options):
  """A Job that another machine launched, by its name and spec alone."""
  if not options.backend or options.config is None:
    raise errors.ConfigError(
      'no job of this name was launched here',
      got=options.name,
      choices=jobs.known(),
      fix=f'name where it runs: --backend={options.backend or "tpu_vm"}'
      ' --config=NAME, and what else it was launched with of --config.FIELD',
    )
  config = _load(options.backend, options)
  BACKENDS[options.backend].check_place(config, jobs.accelerator(config))
  return jobs.Job(options.name, options.backend, config.to_dict(), [])


def listing(say):
  """Says the jobs that were launched here, and how each is."""
  names = jobs.known()
  if not names:
    say(f'no job was launched here, says {jobs.folder()}')
  for name in names:
    say(_line(name))
  return 0


def _line(name):
  """A job, where it is and how, or why that is not known."""
  try:
    job = jobs.find(name)
  except (errors.UserError, OSError) as e:
    return f'{name}  {e}'
  if job is None:
    return f'{name}  was deleted just now'
  backend = BACKENDS[job.backend]
  where = f'{name}  {job.backend}  {job.accelerator}  {backend.where(job)}'
  try:
    found = backend.stands(job)
  except errors.UserError as e:
    return f'{where}  not known how: {e}'
  return f'{where}  {found.state if found else "nothing is there"}'
