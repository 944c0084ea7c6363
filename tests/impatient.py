"""The command line with short pauses, as the tests of `launch tpu_vm` use it.

python -m tests.impatient launch ...
"""

import sys

from t5x_lite import cli
from t5x_lite.launch import following
from t5x_lite.launch import queueing
from t5x_lite.launch import shipping
from t5x_lite.launch import tpu_vm
from t5x_lite.launch import vms

PAUSES = [
  (following, 'LOOK', 1.0),
  (following, 'PAUSE', 0.2),
  (queueing, 'POLL', 0.05),
  (shipping, 'PAUSE', (0.2, 2)),
  (vms, 'PAUSE', 0.1),
  (tpu_vm, 'SAVING', 60.0),
]

if __name__ == '__main__':
  for module, name, value in PAUSES:
    setattr(module, name, value)
  sys.exit(cli.main())
