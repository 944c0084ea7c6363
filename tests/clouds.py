"""A cloud of fake programs, and what tests ask of a launch through it."""

import contextlib
import json
import os
import pathlib
import re
import shlex
import signal
import stat
import sys

from t5x_lite import cli
from tests import runs

FAKES = pathlib.Path(__file__).parent / 'fakes'
STEPS = 12  # of a small training, which saves every third


class Cloud:
  """A folder in which the fake programs keep what they know."""

  def __init__(self, folder, patch):
    """Puts the fakes first on the path."""
    self.folder = folder / 'cloud'
    self.folder.mkdir()
    python = folder / 'bin' / 'python3'  # no slow shim of another
    python.parent.mkdir()
    python.symlink_to(os.path.realpath(sys.executable))
    patch.setenv('FAKE_CLOUD', str(self.folder))
    patch.setenv('PATH', f'{FAKES}:{python.parent}:{os.environ["PATH"]}')
    patch.setenv('T5X_LITE_STATE', str(folder / 'state'))
    patch.setenv('PYTHONWARNINGS', 'ignore')
    patch.chdir(folder)

  def plan(self, **faults):
    (self.folder / 'faults.json').write_text(json.dumps(faults))

  def calls(self, program=None):
    """The argument lists of what was called, in order."""
    file = self.folder / 'calls.jsonl'
    lines = file.read_text().splitlines() if file.exists() else []
    found = [json.loads(line) for line in lines]
    return [argv for argv in found if program in (None, argv[0])]

  def read(self, name):
    return json.loads((self.folder / name).read_text())

  def end(self):
    """Ends what the fakes have started."""
    file = self.folder / 'groups'
    for line in file.read_text().splitlines() if file.exists() else []:
      with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(int(line), signal.SIGKILL)


def launched(capsys, *arguments, code=0):
  """What a command of the program prints, in this process."""
  capsys.readouterr()
  found = cli.main([str(argument) for argument in arguments])
  out, err = capsys.readouterr()
  text = out + err
  assert found == code, text
  assert 'Traceback' not in text
  return text


def worker(folder, body):
  """A python that runs this instead of what it is given."""
  file = folder / 'worker'
  file.write_text(
    f'#!/usr/bin/env -S python3 -SE\nimport os, sys, time\n{body}\n'
  )
  file.chmod(file.stat().st_mode | stat.S_IXUSR)
  return file


def check_recovery(cloud, said, every):
  """It goes on from the last save that was finished when all had ended.

  Args:
    cloud: Cloud, with an event and `saves`.
    said: what the followed job has printed.
    every: steps between saves.

  Returns:
    (steps made twice, seconds from the event to the first step after it).
  """
  steps = [int(n) for n in re.findall(r'^\[0\] step (\d+)/', said, re.M)]
  found = {what: (float(at), int(n)) for _, what, at, n in cloud.calls('event')}
  (back, _), (_, finished) = found.pop('recovered'), found.pop('ended')
  ((struck, saved),) = found.values()
  begun = resumed(said)
  assert saved <= begun == finished
  lost = len(steps) - len(set(steps))
  assert lost <= 2 * every  # a save waits for the one before it
  return lost, back - struck


def resumed(said):
  """The step from which a job that was started again went on."""
  found = re.search(r'^\[0\] going on from step (\d+) ', said, re.M)
  return int(found[1]) if found else 0  # nothing was saved yet


def training(corpus, workdir):
  """The arguments of a small training."""
  return [
    'train',
    f'--corpus={corpus}',
    f'--workdir={workdir}',
    *runs.options(Mesh__data=2, Run__steps=STEPS),
  ]


def undisturbed(corpus):
  """The workdir of the same training without a cluster."""
  workdir = corpus.parent / 'undisturbed'
  runs.complete(2, 1, *training(corpus, workdir))
  return workdir


def check_fault(cloud, event, saves, train, direct):
  """A training that is disturbed ends as one that is not.

  Args:
    cloud: Cloud.
    event: of its plan.
    saves: the folder of checkpoints.
    train: does it, and gives its workdir and what was said.
    direct: the workdir of one that nothing disturbs.
  """
  cloud.plan(events=[event], saves=str(saves))
  workdir, said = train()
  runs.assert_same_state(workdir, direct, STEPS)
  assert runs.metrics(workdir) == runs.metrics(direct)
  lost, seconds = check_recovery(cloud, said, every=3)
  assert not (lost and event['do'] == 'preempt')
  print(f'{event["do"]}: {lost} steps made again, {seconds:.1f} s')


def check_page(page, backend, count, say, shown):
  """The commands of a page parse, and what they launch shows something."""
  found = commands(page)
  assert len(found) == count
  for argv in found:
    if argv[2] == backend:
      words = [word for word in argv[3:] if word != '--dry_run']
      assert shown in say(backend, '--dry_run', *words)
    else:
      cli.parse(argv[1:])


def commands(page):
  """The commands of ours on a page of docs/, as argument lists."""
  text = (FAKES.parents[1] / 'docs' / page).read_text()
  blocks = re.findall(r'^ *```sh\n(.*?)```', text, re.M | re.S)
  lines = '\n'.join(blocks).replace('\\\n', ' ').splitlines()
  return [shlex.split(line) for line in lines if line.strip()]
