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
import time

from t5x_lite import cli
from tests import fake_cloud
from tests import impatient
from tests import recovery
from tests import runs

FAKES = pathlib.Path(__file__).parent / 'fakes'
STEPS, EVERY = 20, 5  # of a small training, and between its saves


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


def recovered(cloud, said):
  """The Recovery of a followed job with one event."""
  found = {what: noted for _, what, noted in cloud.calls('event')}
  moments = {what: recovery.Moment(**noted) for what, noted in found.items()}
  back, ended = moments.pop('recovered'), moments.pop('ended')
  (struck,) = moments.values()
  return recovery.Recovery(struck, ended, recovery.begun(said), back.at)


def training(corpus, workdir, devices=2):
  """The arguments of a small training."""
  return [
    'train',
    f'--corpus={corpus}',
    f'--workdir={workdir}',
    *runs.options(
      Mesh__data=devices, Run__steps=STEPS, Checkpoints__every=EVERY
    ),
  ]


def undisturbed(corpus, devices=2):
  """The workdir of the same training by two processes without a cluster."""
  workdir = corpus.parent / f'undisturbed-{devices}'
  runs.complete(2, devices // 2, *training(corpus, workdir, devices))
  return workdir


def check_fault(cloud, said, workdir, direct):
  """A training that was disturbed has ended as one that was not.

  Args:
    cloud: Cloud, with one event.
    said: what was followed of it since.
    workdir: its own, and
    direct: that of one that nothing disturbs.

  Returns:
    recovery.Recovery.
  """
  runs.assert_same_state(workdir, direct, STEPS)
  assert runs.metrics(workdir) == runs.metrics(direct)
  found = recovered(cloud, said)
  found.check(EVERY)
  return found


def lose_launcher(cloud, workdir, *arguments):
  """Launches a training, and kills the launcher once there are steps."""
  process = impatient.start('launch', *arguments)
  killed = fake_cloud.when(
    lambda: recovery.Moment.of(workdir).step >= 1, process.kill
  )
  said, _ = process.communicate(timeout=240)
  killed.join(timeout=10)
  assert process.returncode == -signal.SIGKILL, said
  assert not cloud.calls('event'), said  # it goes on alone, before it is struck


def await_event(cloud, name):
  """Waits until something has happened to the job."""
  await_true(lambda: name in [what for _, what, _ in cloud.calls('event')])


def await_true(ready, seconds=120):
  until = time.monotonic() + seconds
  while not ready():
    assert time.monotonic() < until
    time.sleep(0.05)


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
