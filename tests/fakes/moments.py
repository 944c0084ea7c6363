"""What a workdir holds at a moment, as the fakes and the tests note it."""

import json
import pathlib
import time


def read(workdir):
  """A dict of what is there now.

  at: seconds since 1970.
  step: the last that `metrics.jsonl` tells of, or 0.
  saved: the newest step whose save is finished, or 0.
  saving: whether there is a save that is not, under way or torn.
  """
  workdir = pathlib.Path(workdir)
  found = {'at': time.time(), 'step': 0}
  metrics = workdir / 'metrics.jsonl'
  if metrics.exists():
    *lines, _ = metrics.read_text().split('\n')  # whole ones
    found['step'] = max([json.loads(line)['step'] for line in lines] or [0])
  names = [file.name for file in (workdir / 'checkpoints').glob('*')]
  found['saved'] = max([int(n) for n in names if n.isdigit()] or [0])
  found['saving'] = any('.orbax-checkpoint-tmp' in name for name in names)
  return found
