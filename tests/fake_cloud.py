"""The fake `gcloud` of tests/fakes, as a test sees it."""

import contextlib
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import socket
import sys
import threading
import time

from t5x_lite.launch import jobs
from tests import impatient

FAKES = pathlib.Path(__file__).parent / 'fakes'


def spec(**changes):
  """The spec of a job on TPU VMs."""
  fields = {'accelerator': 'v5e-16', 'zone': 'us-west4-a'}
  return jobs.spec(**fields | changes)


def free_port():
  with socket.create_server(('127.0.0.1', 0)) as server:
    return server.getsockname()[1]


class Cloud:
  """A fake cloud in a folder, and the environment in which it is found."""

  def __init__(self, folder):
    self.folder = folder / 'cloud'
    self.folder.mkdir()
    self.port = free_port()
    # Of the many Pythons that are started, without what a wrapper might cost.
    programs = folder / 'bin'
    programs.mkdir()
    (programs / 'python3').symlink_to(sys._base_executable)
    self.environment = {
      'FAKE_CLOUD': str(self.folder),
      'FAKE_PYTHON': sys.executable,
      'PATH': f'{FAKES}:{programs}:{os.environ["PATH"]}',
      'T5X_LITE_STATE': str(folder / 'state'),
    }

  def plan(self, *faults):
    """Faults to come; see `fault` of the fake."""
    (self.folder / 'faults.json').write_text(json.dumps(faults))

  def calls(self, *words):
    """The calls so far, of such a group and verb."""
    file = self.folder / 'calls.jsonl'
    lines = file.read_text().splitlines() if file.exists() else []
    made = [json.loads(line)[2:] for line in lines]
    return [argv for argv in made if argv[: len(words)] == list(words)]

  def state(self):
    return json.loads((self.folder / 'state.json').read_text())

  @contextlib.contextmanager
  def changing(self):
    """Its state, to change, while no call does."""
    module = self._module()
    with module.state() as kept:
      yield kept

  def _module(self):
    with contextlib.ExitStack() as stack:
      old = os.environ.get('FAKE_CLOUD')
      os.environ['FAKE_CLOUD'] = str(self.folder)
      stack.callback(
        lambda: (
          os.environ.update(FAKE_CLOUD=old)
          if old
          else os.environ.pop('FAKE_CLOUD')
        )
      )
      loader = importlib.machinery.SourceFileLoader(
        'fake_gcloud', str(FAKES / 'gcloud')
      )
      spec = importlib.util.spec_from_loader('fake_gcloud', loader)
      module = importlib.util.module_from_spec(spec)
      sys.dont_write_bytecode = True
      loader.exec_module(module)
      return module

  def kill(self, path=None):
    """Ends what runs on a VM, a slice or all of them, as power loss would."""
    self._module().kill(str(path or self.folder / 'vms').rstrip('/'))

  def home(self, node, worker=0):
    return pathlib.Path(self.state()['nodes'][node]['home']) / str(worker)

  def preempt(self, name, node=None):
    """Google Cloud takes the TPUs of a request."""
    with self.changing() as kept:
      found = kept['nodes'][node or name]
      found['state'] = 'PREEMPTED'
      kept['queued'][name].update(now='SUSPENDED')
    self.kill(found['home'])

  def lose(self, node, worker):
    """A VM of a slice goes, and nobody says so; it may be `found` again."""
    with self.changing() as kept:
      kept['nodes'][node]['lost'].append(worker)
    self.kill(self.home(node, worker))

  def found(self, node, worker):
    with self.changing() as kept:
      kept['nodes'][node]['lost'].remove(worker)

  def launch(self, *words, **more):
    """A process of the launcher."""
    return impatient.start('launch', *words, **self.environment | more)


def when(ready, act, deadline=600):
  """Runs `act()` in a thread once `ready()` is true; joins by `.join()`."""

  def wait():
    until = time.monotonic() + deadline
    while time.monotonic() < until:
      with contextlib.suppress(OSError, ValueError, LookupError):
        if ready():
          thread.at = time.time()
          act()
          return
      time.sleep(0.02)

  thread = threading.Thread(target=wait, daemon=True)
  thread.at = None
  thread.start()
  return thread
