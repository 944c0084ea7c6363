"""When a job begins to be: what was refused is not remembered as launched."""

import contextlib

from t5x_lite.launch import calls


def is_begun(job):
  """Whether anything was made for a Job, or may have been."""
  return bool(job.state.get('begun'))


def begin(job):
  """Remembers that something is there for a Job."""
  if not is_begun(job):
    job.state['begun'] = True
    job.save()


@contextlib.contextmanager
def making(job):
  """Around the call that makes something, which may be refused."""
  before = is_begun(job)
  begin(job)
  try:
    yield
  except calls.CallError as e:
    if not e.passes:  # else it may have been heard
      job.state['begun'] = before
    raise
