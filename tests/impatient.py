"""The command line with short pauses, as tests of `launch` use it.

python tests/impatient.py launch ...
"""

import os
import subprocess
import sys

from t5x_lite import cli
from t5x_lite.launch import following
from t5x_lite.launch import gke
from t5x_lite.launch import queueing
from t5x_lite.launch import shipping
from t5x_lite.launch import slurm
from t5x_lite.launch import tpu_vm
from t5x_lite.launch import vms

PAUSES = [
  (following, 'LOOK', 1.0),
  (following, 'PAUSE', 0.2),
  (queueing, 'POLL', 0.05),
  (shipping, 'PAUSE', (0.2, 2)),
  (vms, 'PAUSE', 0.1),
  (tpu_vm, 'SAVING', 60.0),
  (gke, 'LOOK', 0.5),
  (slurm, 'READ', 0.1),
  (slurm, 'LOOK', 0.5),
]


def start(*words, **environment):
  """A process of it."""
  return subprocess.Popen(
    [sys.executable, '-P', __file__, *map(str, words)],
    env=os.environ | environment,
    stdin=subprocess.DEVNULL,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )


def hurry(patch):
  """Has this process wait as little."""
  for module, name, value in PAUSES:
    patch.setattr(module, name, value)


if __name__ == '__main__':
  for module, name, value in PAUSES:
    setattr(module, name, value)
  sys.exit(cli.main())
