"""Jobs on GPU nodes of a SLURM cluster, by sbatch and its kin.

The script of a job, its log and its files lie in `.t5x_lite_jobs/NAME` of the
folder from which it is launched: SLURM users launch from a folder that all
nodes share, and the workdir may be on gs://, where no script can start.
"""

import os
import pathlib
import re
import time

from t5x_lite import errors
from t5x_lite.launch import beginning
from t5x_lite.launch import calls
from t5x_lite.launch import jobs
from t5x_lite.launch import leaving
from t5x_lite.launch import plans
from t5x_lite.launch import slurm_queue
from t5x_lite.launch import slurm_script
from t5x_lite.launch import standing

SHARED = ('/',)  # SLURM users launch from what all nodes see
UNREAD = ('delete_when_done',)
OWN = ()
READ = 1.0  # seconds between two looks at the log
LOOK = 15.0  # and at the queue, which thousands may ask
_TIME = re.compile(r'(?:(\d+)-)?(\d+(?::\d+){0,2})', re.ASCII)
_UNKNOWN = {'capacity': 'on_demand', 'zone': '', 'project': ''}
forget = jobs.Job.forget
_RANK = re.compile(r'^ *(\d+): ?')  # as `srun --label` writes it


def check_place(config, accelerator):
  """Refuses what no job of SLURM can be found by.

  Raises:
    ConfigError: TPUs, spot capacity or a zone.
  """
  if accelerator.is_tpu:
    raise errors.ConfigError(
      'launch slurm is for GPU nodes',
      where='--config.accelerator',
      got=accelerator.name,
      expected='GPUs of a node such as gpu-8 or h100-8',
      fix='launch tpu_vm or launch gke for TPUs',
    )
  for field, usual in _UNKNOWN.items():
    if config[field] != usual:
      raise errors.ConfigError(
        f'SLURM has no {field}',
        where=f'--config.{field}',
        got=config[field],
        fix='choose by --config.slurm.partition, .qos or .constraint',
      )


def check(config, accelerator):
  """Refuses what SLURM does not have.

  Raises:
    ConfigError: of `check_place`, or a time that is none.
  """
  check_place(config, accelerator)
  limit = _seconds(config.slurm.time)
  if 0 < limit <= config.slurm.grace:  # 0: none
    raise errors.ConfigError(
      'the time is over before there is any to train in',
      where='--config.slurm.time',
      got=config.slurm.time,
      expected=f'more than the {config.slurm.grace} seconds in which it saves',
      fix='--config.slurm.time=HOURS:MINUTES:SECONDS, or a smaller'
      ' --config.slurm.grace',
    )


def _seconds(text):
  """A time limit as SLURM reads it."""
  found = _TIME.fullmatch(text)
  if not found:
    raise errors.ConfigError(
      'not a time limit',
      where='--config.slurm.time',
      got=repr(text),
      expected='HOURS:MINUTES:SECONDS, DAYS-HOURS or minutes',
    )
  days, parts = found[1], list(map(int, found[2].split(':')))
  if days is None and len(parts) < 3:
    parts.insert(0, 0)  # minutes, with seconds or without
  hours, minutes, seconds = (*parts, 0, 0)[:3]
  return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds


def folder(job):
  """Where the script, files and log of a Job lie, or will lie."""
  kept = job.state.get('folder')
  return pathlib.Path(kept or pathlib.Path.cwd() / '.t5x_lite_jobs' / job.name)


def plan(job):
  """The files and the call that start a Job."""
  place = folder(job)
  script = plans.File(
    'the batch script',
    str(place / slurm_script.NAME),
    slurm_script.script(job),
  )
  taken = [
    plans.File(
      'taken along',
      str(place / slurm_script.FILES / name),
      plans.text(content),
    )
    for name, content in job.files.items()
  ]
  call = plans.Call('puts it in the queue', slurm_script.sbatch(place))
  return [script, *taken, call]


def submit(job, follow, say):
  """Puts a Job in the queue, unless it is there, and follows it."""
  place, found = folder(job), slurm_queue.find(job, say)
  here = found and pathlib.Path(found.folder) == place
  if found and found.is_live:
    if not here:
      raise errors.ConfigError(
        'a SLURM job of this name is in the queue, from another folder',
        where=f'--name={job.name}',
        got=found.folder,
        fix='launch from the folder above that, or take another --name',
      )
    if 'id' not in job.state:
      _check_script(job, place, found)
    job.state |= {'folder': str(place), 'id': found.id}
    beginning.begin(job)
    job.save()
    say(standing.going_on(job, found.words))
  else:
    if here:
      say(standing.replaced(job, found.words))
    _submit(job, place, say)
  if not follow:
    say(f'{job.name} is launched; {leaving.ways(job)}')
    return 0
  return watch(job, say)


def _check_script(job, place, found):
  """Refuses to go on with a job of which nothing is remembered, if it differs.

  What runs is known by its script alone.
  """
  script = place / slurm_script.NAME
  old = script.read_text().splitlines() if script.exists() else []
  new = slurm_script.script(job).splitlines()
  if old != new:
    lines = [line.strip(' \\') for line in new if line not in old]
    got = ' | '.join(lines) or 'less than it has'
    raise standing.unlike(job, got, f'{script}, as it is {found.words}')


def _submit(job, place, say):
  log = place / slurm_script.LOG
  shown = log.stat().st_size if log.exists() else 0
  job.state |= {'folder': str(place), 'shown': shown}
  job.state.pop('id', None)
  job.save()
  *files, call = plan(job)
  (place / slurm_script.FILES).mkdir(parents=True, exist_ok=True)
  for file in files:
    path = pathlib.Path(file.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    plans.write(file, private=path.name == slurm_script.NAME)
  (place / slurm_script.EXIT_CODE).unlink(missing_ok=True)
  with beginning.making(job):
    job.state['id'] = slurm_queue.submit(job, call.argv, say)
  job.save()
  say(f'{job.name} is SLURM job {job.state["id"]}; its files and log are in')
  say(f'{place}, which its nodes must see')


def where(job):
  """The folder of a Job, in words."""
  return str(folder(job)) if 'folder' in job.state else 'the queue of SLURM'


def stands(job, say=None):
  """The Standing of a Job, or None."""
  found = slurm_queue.find(job, say)
  if found is None:
    return None
  return standing.Standing(found.words, found.is_live)


def is_there(job, say):
  """Whether SLURM knows a job of its name."""
  return slurm_queue.find(job, say) is not None


def clear(job, say):
  """Takes away what would stand in the way of another: nothing does."""


def status(job, say):
  """Says how a Job is, and the last line that it printed."""
  found = _find(job, say)
  say(str(found))
  if found.is_live:
    restarts = slurm_queue.restarts(found.id)
    if restarts:
      say(f'started again {restarts} of {job.config["restarts"]} times')
  log = pathlib.Path(found.folder) / slurm_script.LOG
  if not log.exists():
    say(f'no log yet: {log}')
    return
  with log.open('rb') as f:
    f.seek(max(0, log.stat().st_size - 4000))
    lines = f.read().decode(errors='replace').splitlines()
  say(f'its log: {log}, and at its end')
  for line in lines[-1:]:
    say(ranked(line))


def logs(job, say):
  """Says all that a Job has printed so far."""
  log = pathlib.Path(_place(job, say)) / slurm_script.LOG
  if not log.exists():
    say(f'nothing was printed yet: {log}')
  _Log(log, 0).show(say)


def watch(job, say):
  """Says what a Job prints from where it was last followed, to its end.

  SLURM itself starts it again; nothing is lost if this ends.

  Returns:
    The exit code of the job.
  """
  place = _place(job, say)
  log = _Log(place / slurm_script.LOG, job.state.get('shown', 0))
  ended = place / slurm_script.EXIT_CODE
  said, look = None, 0.0
  try:
    while True:
      log.show(say)
      if time.monotonic() >= look or ended.exists():
        found = calls.outlast(lambda: _find(job, say), say)
        if _is_forgotten(job):
          raise leaving.deleted(job)
        if found.state + found.reason != said:
          said = found.state + found.reason
          say(str(found))
        if not found.is_live:
          log.show(say)
          return _code(found, place, say)
        _remember(job, log)
        look = time.monotonic() + LOOK
      time.sleep(READ)
  except KeyboardInterrupt:
    return leaving.left(job, say)
  finally:
    _remember(job, log)


def stop(job, say):
  """Lets a Job save and end, and not be started again."""
  found = _find(job, say)
  if not found.is_live:
    say(f'{found}: there is nothing to stop')
  elif found.is_waiting:
    calls.run(['scancel', found.id], **slurm_queue.CALL)
    say(f'{found}: taken out of the queue')
  else:
    # The script tells its ranks; USR1 says that it must not be started again.
    argv = ['scancel', '--signal=USR1', '--batch', found.id]
    calls.run(argv, **slurm_queue.CALL)
    say(f'{job.name} saves and ends: t5x_lite launch watch {job.name}')


def delete(job, force, say):
  """Cancels a Job and forgets it; its files and log stay."""
  found = slurm_queue.find(job, say)
  if found and found.is_live:
    if not (force or found.is_waiting):
      raise errors.ConfigError(
        'the job runs, and what it has not saved would be lost',
        got=str(found),
        fix=f't5x_lite launch stop {job.name}, or delete --force',
      )
    calls.run(['scancel', found.id], **slurm_queue.CALL)
    say(f'{job.name}: SLURM job {found.id} is cancelled')
  job.forget()
  place = found.folder if found else folder(job)
  if os.path.exists(place):
    say(f'its files and log stay in {place}')
  else:
    say(f'{job.name} is forgotten')


class _Log:
  """A growing log, shown line by line from a place on."""

  def __init__(self, path, at):
    """Shows the file from byte `at` on."""
    self.path, self.at = path, at

  def show(self, say):
    """Says the lines that are whole by now."""
    try:
      with self.path.open('rb') as f:
        size = os.fstat(f.fileno()).st_size
        f.seek(self.at if self.at <= size else 0)
        for line in f:
          if not line.endswith(b'\n'):
            break
          self.at = f.tell()
          say(ranked(line.decode(errors='replace').rstrip('\n')))
    except FileNotFoundError:
      pass


def ranked(line):
  """A line of the log, with its rank as other places of `launch` show it."""
  return _RANK.sub(r'[\1] ', line)


def _is_forgotten(job):
  """Whether a job that was launched here was deleted since, by another."""
  return bool(job.command) and job.name not in jobs.known()


def _remember(job, log):
  """Keeps how far the log was shown, if the job is remembered here."""
  fresh = job.command and job.state.get('shown') != log.at
  if fresh and not _is_forgotten(job):
    job.state['shown'] = log.at
    job.save()


def _find(job, say):
  found = slurm_queue.find(job, say)
  if found is None:
    raise errors.DeviceError(
      f'SLURM knows no job named {job.name}',
      fix=f'its log may be in {folder(job)}; t5x_lite launch slurm starts it',
    )
  return found


def _place(job, say):
  """The folder of a Job, which SLURM knows if we do not."""
  if 'folder' in job.state:
    return folder(job)
  return pathlib.Path(_find(job, say).folder)


def _code(found, place, say):
  """The exit code of a job that has ended."""
  code = slurm_queue.left(place)
  if code is None:
    code = found.code
  if code and found.advice:
    say(found.advice)
  return code
