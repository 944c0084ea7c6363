"""The batch script of a SLURM job: what its first node runs.

SLURM sends TERM to the script before the time is over; the script hands it on
to all ranks, so that they save at one step, and has SLURM start it again.
"""

import pathlib
import shlex
import sys

from t5x_lite.launch import jobs

NAME = 'job.sh'
FILES = 'files'  # where the ranks start, with what the job takes along
LOG = 'log.txt'
EXIT_CODE = 'exit_code'  # written once it has ended for good
_WAIT = 120  # seconds for the other ranks to end once one has ended

_BODY = """\
restarts={restarts}  # at most
told= stopping=

tell() {{  # by scancel: on TERM srun itself would kill its ranks
  heard=1
  [ "$told" ] || scancel --signal=TERM "$SLURM_JOB_ID"
  told=1
}}
trap tell TERM
trap 'stopping=1; tell' USR1  # by `t5x_lite launch stop`

rm -f "$place/{exit_code}"
{srun} &
while :; do
  heard=
  wait $!; code=$?
  [ "$heard" ] || break  # else it was a signal that ended the wait
done

case $code in
  {final}) ;;  # it would end so again
  *)
    used=${{SLURM_RESTART_COUNT:-0}}
    if [ "$stopping" ]; then
      echo "t5x_lite: stopped as asked, with code $code"
    elif [ "$used" -ge "$restarts" ]; then
      echo "t5x_lite: ended with code $code, and $used restarts are used up"
    else
      echo "t5x_lite: ended with code $code; restart $((used + 1)) of $restarts"
      scontrol requeue "$SLURM_JOB_ID" && exit $code
    fi
    ;;
esac
echo $code > "$place/{exit_code}.new"  # whole or not at all
mv -f "$place/{exit_code}.new" "$place/{exit_code}"
exit $code
"""


def script(job):
  """The text of the script of a Job.

  Options that are words are in it; `sbatch` is told the folder, which is a path
  and may have any character. It starts beside the job's files, not among them:
  one may be called as the script or the log are.
  """
  lines = ['#!/bin/bash']
  lines += [f'#SBATCH --{option}' for option in options(job)]
  lines += ['', 'place=${PWD%/*}', 'export PYTHONUNBUFFERED=1']
  lines += job.config['slurm']['setup']
  final = '|'.join(map(str, jobs.FINAL_CODES))
  body = _BODY.format(
    restarts=job.config['restarts'],
    exit_code=EXIT_CODE,
    final=final,
    srun=' \\\n  '.join([shlex.join(srun(job)), shlex.join(command(job))]),
  )
  return '\n'.join(lines) + '\n\n' + body


def options(job):
  """The options of `sbatch` that are the same wherever the job lies."""
  asked, accelerator = job.config['slurm'], job.accelerator
  kind = '' if accelerator.kind == 'gpu' else f'{accelerator.kind}:'
  made = [
    f'job-name={job.name}',
    f'nodes={accelerator.slices}',
    'ntasks-per-node=1',
    f'gpus-per-node={kind}{accelerator.chips}',
  ]
  if asked['cpus']:
    made.append(f'cpus-per-task={asked["cpus"]}')
  else:  # else a rank would get one core, and little memory
    made.append('exclusive')
  memory = asked['memory'] or (None if asked['cpus'] else '0')
  made += [
    f'{option}={value}'
    for option, value in {
      'mem': memory,
      'time': asked['time'],
      'partition': asked['partition'],
      'account': asked['account'],
      'qos': asked['qos'],
      'constraint': asked['constraint'],
    }.items()
    if value
  ]
  return [
    *made,
    f'output=../{LOG}',
    'open-mode=append',  # a restart goes on with the same log
    'requeue',
    f'signal=B:TERM@{asked["grace"]}',
  ]


def srun(job):
  """The call that starts the ranks, one on each node.

  The first that ends must not kill the others, which may still save: ranks end
  one another by themselves, and the wait is for what is stuck.
  """
  # Not exported: some names mean something to bash, or to the script itself.
  env = [f'{n}={v}' for n, v in job.config['env'].items()]
  argv = ['srun', '--label', '--kill-on-bad-exit=0', f'--wait={_WAIT}']
  cpus = job.config['slurm']['cpus']
  argv += [f'--cpus-per-task={cpus}'] if cpus else []
  return ['env', *env, *argv] if env else argv


def command(job):
  """What each rank runs."""
  python = job.config['slurm']['python'] or sys.executable
  several = ['--multiprocess'] if job.accelerator.processes > 1 else []
  return [python, '-m', 't5x_lite', *job.arguments, *several]


def sbatch(folder):
  """The call that submits the script in a folder."""
  folder = pathlib.Path(folder)
  place = f'--chdir={folder / FILES}'
  return ['sbatch', '--parsable', place, str(folder / NAME)]
