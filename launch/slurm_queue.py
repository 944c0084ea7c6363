"""What SLURM knows of a job: in its queue, or in its accounts."""

import dataclasses
import pathlib
import re
import time

from t5x_lite import errors
from t5x_lite.launch import answers
from t5x_lite.launch import calls
from t5x_lite.launch import slurm_script

_FORMAT = '%i|%T|%r|%D|%M|%Z'  # of squeue; what _LIVE takes
_ENDED = 'JobIDRaw,State,ExitCode,NNodes,Elapsed,WorkDir'  # of sacct
# Number, state, and four more fields of which the folder is the last.
_LIVE = re.compile(r'(\d+)\|([A-Z_]+)\|(.*?)\|(.*?)\|(.*?)\|(.+)', re.ASCII)
_KEPT = re.compile(
  r'(\d+)\|([A-Z_]+[^|]*)\|(\d+:\d+)\|(.*?)\|(.*?)\|(.+)', re.ASCII
)
_NUMBER = re.compile(r'(\d+)(;[-\w]+)?', re.ASCII)  # ID;CLUSTER of sbatch
_RUNNING = 'RUNNING', 'COMPLETING', 'SIGNALING', 'STAGE_OUT', 'SUSPENDED'
_WAITING = 'PENDING', 'CONFIGURING', 'REQUEUED', 'REQUEUE_HOLD', 'SPECIAL_EXIT'
FAULTS = (
  calls.Fault(
    ('invalid partition',),
    'SLURM has no such partition',
    '--config.slurm.partition=NAME; sinfo --summarize lists them',
  ),
  calls.Fault(
    ('invalid account',),
    'this account may not use this partition, or is none',
    '--config.slurm.account=NAME; sacctmgr show associations user=YOU has them',
  ),
  calls.Fault(
    ('invalid qos',),
    'there is no such QOS for you',
    '--config.slurm.qos=NAME; sacctmgr show qos lists them',
  ),
  calls.Fault(
    ('invalid feature',),
    'no node has this constraint',
    '--config.slurm.constraint=NAME; sinfo --Format=features lists them',
  ),
  calls.Fault(
    ('invalid generic resource',),
    'no node has GPUs of this kind',
    '--config.accelerator=gpu-8 takes any; sinfo --Format=gres lists them',
  ),
  calls.Fault(
    ('requested node configuration is not available',),
    'no node has as many GPUs, CPUs or as much memory',
    'sinfo --Format=nodehost,gres,cpus,memory shows what they have',
  ),
  calls.Fault(
    ('memory specification can not be satisfied',),
    'no node has as much memory',
    '--config.slurm.memory=0 takes all that there is',
  ),
  calls.Fault(
    ('time limit',),
    'it asks for more time than it may',
    '--config.slurm.time=TIME; sinfo --Format=partition,time has the limits',
  ),
  calls.Fault(
    ('violates accounting/qos policy', 'qosmax', 'qosgrp', 'assocgrp'),
    'a limit of your account or QOS stands in the way',
    'smaller --config.slices or .slurm.time, or another .slurm.qos',
  ),
  calls.Fault(
    ('permission denied', 'not permitted'),
    'SLURM does not permit it',
    'ask who runs the cluster for access to the partition and account',
  ),
  calls.Fault(
    (
      'unable to contact slurm controller',
      'socket timed out',
      'connection refused',
      'zero bytes were transmitted',
      'resource temporarily unavailable',
    ),
    'the SLURM controller does not answer',
    'wait and give the same command again; scontrol ping shows it',
    passes=True,
  ),
)
CALL = {'deadline': 60, 'faults': FAULTS}
_NO_ACCOUNTS = calls.Fault(('accounting storage is disabled',), 'no accounts')
# Why a job waits or how it ended, by the beginning of SLURM's word for it.
_REASONS = {
  'Priority': 'others are before it',
  'Resources': 'it waits for nodes to be free',
  'BeginTime': 'SLURM lets a restart wait for some minutes',
  'ReqNodeNotAvail': 'nodes that it needs are down or reserved',
  'PartitionTimeLimit': 'the partition does not give as much time:'
  ' --config.slurm.time',
  'PartitionNodeLimit': 'the partition does not give as many nodes',
  'Partition': 'the partition takes no jobs now',
  'QOS': 'a limit of your QOS is reached',
  'Assoc': 'a limit of your account is reached',
  'MaxCpuPerAccount': 'a limit of your account is reached',
  'Dependency': 'it waits for another job',
  'JobHeld': 'it is held: scontrol release frees it',
  'BadConstraints': 'no node can be as it asks',
  'launch failed': 'a node failed to start it: scontrol release tries again',
}
_ENDS = {
  'TIMEOUT': 'its time was over before it had saved: --config.slurm.grace',
  'OUT_OF_MEMORY': 'a node had too little memory: --config.slurm.memory=0 takes'
  ' all, smaller --gin.Run.batch_size or more microbatches need less',
  'CANCELLED': 'it was cancelled; the same launch goes on from what it saved',
  'NODE_FAIL': 'a node failed, and SLURM did not start it again',
  'PREEMPTED': 'it was preempted, and SLURM did not start it again',
  'BOOT_FAIL': 'a node did not start',
  'DEADLINE': 'its deadline was over',
}


@dataclasses.dataclass(frozen=True)
class Found:
  """A job as SLURM shows it.

  Attributes:
    name: of the job.
    id: its number, as text.
    state: SLURM's word, such as PENDING.
    reason: why it waits, or ''.
    nodes: how many it has or asks for.
    time: how long it has run, as SLURM writes it.
    folder: of its script and log.
    code: its exit code as a shell tells it, once it has ended.
  """

  name: str
  id: str
  state: str
  reason: str
  nodes: str
  time: str
  folder: str
  code: int = 0

  @property
  def is_live(self):
    return self.state in _RUNNING or self.is_waiting

  @property
  def is_waiting(self):
    return self.state in _WAITING

  @property
  def advice(self):
    return _ENDS.get(self.state)

  def __str__(self):
    return f'{self.name} (SLURM job {self.id}): {self.shown}'

  @property
  def words(self):
    return f'SLURM job {self.id}, {self.shown}'

  @property
  def shown(self):
    """Its state, with why it waits or how long it runs."""
    text = self.state
    nodes = f'{self.nodes} node{"s" * (self.nodes != "1")}'
    if self.is_waiting:
      text += f' for {nodes}'
      if self.reason not in ('', 'None'):
        text += f', {self.reason}'
      for start, words in _REASONS.items():
        if self.reason.startswith(start):
          return f'{text}: {words}'
      return text
    text += f' on {nodes}, {self.time}'
    return text if self.is_live else f'{text}, exit code {self.code}'


def find(job, say=None):
  """The newest Found of a Job's name among the user's own, or None."""
  argv = ['squeue', '--me', f'--name={job.name}', '--noheader']
  text = calls.run([*argv, f'--format={_FORMAT}'], say=say, **CALL)
  rows = _rows('squeue', text, _LIVE)
  live = [Found(job.name, *row, _folder(at)) for *row, at in rows]
  live = [found for found in live if found.is_live]
  return max(live, key=lambda f: int(f.id)) if live else _ended(job, say)


def _ended(job, say):
  """A job that is no longer in the queue, by SLURM's accounts."""
  argv = ['sacct', '--noheader', '--parsable2', '--allocations']
  argv += [f'--name={job.name}', '--starttime=now-30days']
  faults = (_NO_ACCOUNTS, *FAULTS)
  try:
    text = calls.run(
      [*argv, f'--format={_ENDED}'], deadline=60, faults=faults, say=say
    )
  except calls.CallError as e:
    if e.fault is not _NO_ACCOUNTS:
      raise
    return _unaccounted(job)
  rows = _rows('sacct', text, _KEPT)
  if 'id' in job.state:
    rows = [row for row in rows if row[0] == job.state['id']]
  if not rows:
    return _unaccounted(job)
  number, state, code, nodes, elapsed, folder = max(
    rows, key=lambda row: int(row[0])
  )
  status, _, signal = code.partition(':')
  code = 128 + int(signal) if int(signal or 0) else int(status)
  state = state.split()[0]  # CANCELLED by 1000
  if not code and state != 'COMPLETED':
    code = errors.DeviceError.exit_code
  place = _folder(folder)
  return Found(job.name, number, state, '', nodes, elapsed, place, code)


def _rows(program, text, pattern):
  """The fields of each line of a table.

  A line that is none, such as a warning, is left out beside one that is; alone
  it may stand for a job, and one that is not seen would be started twice.

  Raises:
    CallError: there are lines, and none of them is of the table.
  """
  found = [pattern.fullmatch(line) for line in text.splitlines()]
  rows = [match.groups() for match in found if match]
  if text.strip() and not rows:
    raise answers.misread(program, text)
  return rows


def _folder(started):
  """Of the script and log of a job, by that in which it starts."""
  return str(pathlib.Path(started).parent)


def _unaccounted(job):
  """A job of which SLURM keeps no account: what its script has left."""
  if 'id' not in job.state:
    return None
  code = left(job.state['folder'])
  if code is None:
    code = errors.DeviceError.exit_code
  return Found(
    job.name,
    job.state['id'],
    'ENDED',
    '',
    str(job.accelerator.slices),
    'no account of it',
    job.state['folder'],
    code,
  )


def left(folder):
  """The exit code that the script of a job has left, or None."""
  try:
    text = (pathlib.Path(folder) / slurm_script.EXIT_CODE).read_text()
    return int(text)
  except (FileNotFoundError, ValueError):  # cut short, by a disk that is full
    return None


def restarts(number):
  """How often SLURM has started a job again."""
  text = calls.run(['scontrol', 'show', 'job', number], **CALL)
  found = re.search(r'\bRestarts=(\d+)', text)
  return int(found[1]) if found else 0


def submit(job, argv, say):
  """The number of the job that a call of sbatch puts in the queue.

  A call that fails after SLURM took the job is not repeated.
  """
  for pause in (5, 10, None):
    try:
      text = calls.run(argv, tries=1, **CALL)
    except calls.CallError as e:
      if not e.passes or pause is None:
        raise
      say(f'{e.what}; trying again in {pause} s')
      time.sleep(pause)
      found = find(job, say)
      if found and found.is_live:
        return found.id
    else:
      found = [_NUMBER.fullmatch(line.strip()) for line in text.splitlines()]
      numbers = [match[1] for match in found if match]
      if not numbers:
        raise answers.misread('sbatch', text)
      return numbers[-1]  # notes of the cluster may be before it
  raise AssertionError(argv)
