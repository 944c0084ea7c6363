"""A tiny run on real text, by the command line."""

import dataclasses
import json
import os
import pathlib
import pydoc_data.topics
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest

from t5x_lite import checkpoints
from t5x_lite import partitioning
from t5x_lite import record
from t5x_lite import specs
from t5x_lite import train

SMALL = {
  'Transformer.encoder_layers': 2,
  'Transformer.decoder_layers': 2,
  'Transformer.embed_dim': 32,
  'Transformer.mlp_dim': 32,
  'Transformer.num_heads': 2,
  'Transformer.head_dim': 16,
  'Transformer.dropout': 0.1,
  'Data.lengths': "{'inputs': 32, 'targets': 8}",
  'Run.batch_size': 8,
  'Run.steps': 6,
  'Run.log_every': 1,
  'Checkpoints.every': 3,
  'Evaluation.examples': 16,
}
EXIT_CODES = {signal.SIGINT: 130, signal.SIGKILL: 137, signal.SIGTERM: 143}


def write_corpus(folder):
  """A file of Python's own documentation, and its name."""
  file = folder / 'my.txt'
  file.write_text('\n\n'.join(pydoc_data.topics.topics.values()))
  return file


def options(**settings):
  """Options for the small run, with settings such as Run__steps=3."""
  changes = {k.replace('__', '.'): v for k, v in settings.items()}
  return [f'--gin.{name}={value}' for name, value in (SMALL | changes).items()]


def start(*arguments, **environment):
  """A process of the program, on one device unless told otherwise."""
  return subprocess.Popen(
    [sys.executable, '-m', 't5x_lite', *map(str, arguments)],
    env=os.environ | {'JAX_NUM_CPU_DEVICES': '1'} | environment,
    stdin=subprocess.DEVNULL,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )


def launch(processes, *arguments, devices=1):
  """A process of `launch local`."""
  return start(
    'launch',
    'local',
    f'--processes={processes}',
    f'--devices={devices}',
    *arguments,
  )


def complete(processes, devices, *arguments):
  """What a command says that so many processes run to its end."""
  if processes == 1:
    process = start(*arguments, JAX_NUM_CPU_DEVICES=str(devices))
  else:
    process = launch(processes, *arguments, devices=devices)
  code, output = finish(process)
  assert code == 0, output
  assert_clean(output)
  return output


def printed(code):
  """What a new Python prints, for what must not have been imported before."""
  done = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  return done.stdout


def wait_for(process, step):
  """Reads a run's lines up to one of this step or a later one."""
  for line in process.stdout:
    word, _, rest = line.partition(' ')
    if word == 'step' and int(rest.split('/')[0]) >= step:
      return


def finish(process):
  """(exit code as a shell tells it, output) of a process."""
  output, _ = process.communicate(timeout=240)
  code = process.returncode
  return 128 - code if code < 0 else code, output


def is_alive(pid):
  """Whether there is such a process, and it has not ended."""
  try:
    return pathlib.Path(f'/proc/{pid}/stat').read_text().split()[2] != 'Z'
  except OSError:
    return False


def steps(workdir):
  return checkpoints.Checkpoints.reader(workdir).steps()


def saved(workdir, step):
  """(state by path as numpy, position) of a step."""
  reader = checkpoints.Checkpoints.reader(workdir)
  run = record.from_record(reader.read_record(step))
  run = dataclasses.replace(run, mesh=specs.Mesh())
  mesh = partitioning.make_mesh(run.mesh, jax.devices()[:1])
  program = train.Program.build(run, mesh)
  state, position = reader.restore(step, program.abstract_state)
  leaves = jax.tree_util.tree_leaves_with_path(state)
  arrays = {partitioning.path_name(p): np.asarray(x) for p, x in leaves}
  return arrays, position


def metrics(workdir):
  """The lines of metrics.jsonl, without what hangs on the clock."""
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  return [
    {
      name: value
      for name, value in json.loads(line).items()
      if not name.startswith(('timing/', 'perf/'))
    }
    for line in lines
  ]


def assert_same_state(workdir, undisturbed, step):
  """The same bits of state, and the same place in the data."""
  found, position = saved(workdir, step)
  wanted, wanted_position = saved(undisturbed, step)
  assert found.keys() == wanted.keys()
  for name, array in wanted.items():
    assert array.dtype == found[name].dtype, name
    assert array.tobytes() == found[name].tobytes(), name
  assert position == wanted_position


def assert_clean(output):
  """No traceback, from this program or from a library."""
  assert 'Traceback' not in output and 'Error' not in output, output


def assert_same_metrics(workdir, undisturbed, split, tolerance=1e-5):
  """The same numbers of each step, and the same digests of its batch."""
  found, wanted = (
    [line for line in metrics(folder) if line['split'] == split]
    for folder in (workdir, undisturbed)
  )
  assert wanted
  for one, other in zip(found, wanted, strict=True):
    assert one.keys() == other.keys()
    assert one.get('data/digest') == other.get('data/digest')
    for name, value in other.items():
      if not isinstance(value, str):
        assert one[name] == pytest.approx(value, rel=tolerance), name
