"""What one who follows a job is told at parting."""

from t5x_lite import errors
from t5x_lite.launch import calls

DELETED = calls.Fault((), 'the job was deleted elsewhere, and is left so')


def ways(job):
  """The commands that look after a job, in words."""
  return f't5x_lite launch watch, status, logs or stop {job.name}'


def left(job, say):
  """Tells one who leaves a running job how to find it; his exit code."""
  say(f'{job.name} goes on without us; {ways(job)}')
  return errors.INTERRUPTED


def deleted(job, why=None):
  """The CallError of a job that somebody deleted while it was followed."""
  error = calls.CallError(
    DELETED.what,
    where=job.name,
    got=why,
    fix='the command by which it was launched, to go on from what it saved',
  )
  error.fault = DELETED
  return error
