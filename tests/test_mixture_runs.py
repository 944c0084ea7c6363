"""Runs on mixtures: the same batches, whoever makes them and whatever stops it.

Three parts, several examples packed in a row, noise and dropout: what other
trainers leave out where they promise to go on exactly. `make parallel` and
`make faults` run the long ones.
"""

import glob
import json
import os
import pydoc_data.topics
import random
import subprocess
import sys
import time

import numpy as np
import pytest

from t5x_lite import storage
from t5x_lite.data import index
from tests import runs

STEPS, EVERY = 12, 4
KINDS = ['text', 'pairs']


def write_parts(folder, kind, times=1):
  """Three parts; the last is so short that a run comes to it again and again.

  Returns:
    {path: rate}.
  """
  texts = '\n'.join(pydoc_data.topics.topics.values()).split('\n')
  lines = [line.strip() for line in texts if len(line.strip()) > 12]
  paths = {}
  for n, (part, rate) in enumerate([('a', 3.0), ('b', 2.0), ('c', 1.0)]):
    own = lines[n : 90 if part == 'c' else None : 3] * times
    if kind == 'pairs':
      file = folder / f'{part}.jsonl'
      rows = [
        {'inputs': line[:40], 'targets': line[::-5].strip()} for line in own
      ]
      file.write_text('\n'.join(map(json.dumps, rows)))
    else:
      file = folder / f'{part}.txt'
      file.write_text('\n'.join(own))
    paths[str(file)] = rate
  return paths


def options(parts, kind, **settings):
  """Those of `train` on a mixture."""
  own = {
    'text': {
      'Run__objective': '@SpanCorruption()',
      'Data__documents': '@Isolated()',
      'Data__document': "'line'",
      'Data__lengths': "{'inputs': 160}",
    },
    'pairs': {
      'Run__objective': '@Supervised()',
      'Data__lengths': "{'inputs': 96, 'targets': 24}",
    },
  }[kind]
  all_ = {
    'Data__mixture': '@Mixture()',
    'Mixture__parts': parts,
    'Data__pack': True,
    'Run__steps': STEPS,
    'Checkpoints__every': EVERY,
    'Evaluation__every': EVERY,
  }
  return runs.options(**all_ | own | settings)


def train(workdir, parts, kind, processes=1, devices=1, **settings):
  arguments = (
    'train',
    '--gin_file=t5/bytes',
    f'--workdir={workdir}',
    *options(parts, kind, **settings),
  )
  return runs.complete(processes, devices, *arguments)


def digests(workdir):
  return [
    line['data/digest']
    for line in runs.metrics(workdir)
    if line['split'] == 'train'
  ]


# -- other processes and devices ----------------------------------------------


@pytest.fixture(scope='module', params=KINDS)
def undisturbed(request, tmp_path_factory):
  """(kind, parts, workdir of a run that nothing disturbs)."""
  folder = tmp_path_factory.mktemp(request.param)
  parts = write_parts(folder, request.param)
  said = train(folder / 'run', parts, request.param, devices=2)
  assert said.count('examples are packed in') == 3
  found = digests(folder / 'run')
  assert len(set(found)) == len(found) == STEPS
  return request.param, parts, folder / 'run'


@pytest.mark.parallel
@pytest.mark.parametrize(
  'legs',
  [
    [(1, 2), (2, 1), (4, 1)],
    [(1, 8), (1, 4), (1, 2)],
  ],
  ids=str,
)
def test_maxtext_3673_a_packed_mixture_goes_on_by_others(
  undisturbed, tmp_path, legs
):
  """maxtext PR#3673: to go on by other hosts, neither packing nor mixtures.

  And maxtext#1760, by other processes at all. Legs are (processes, devices of
  each).
  """
  kind, parts, whole = undisturbed
  for n, (processes, devices) in enumerate(legs, 1):
    train(tmp_path, parts, kind, processes, devices, Run__steps=EVERY * n)
    assert digests(tmp_path) == digests(whole)[: EVERY * n]
  for split in ('train', 'validation'):
    runs.assert_same_metrics(tmp_path, whole, split)


@pytest.mark.parallel
def test_maxtext_954_the_place_in_a_mixture_is_small(undisturbed):
  """maxtext PR#954: iterators' states were huge; that of a shuffle, 1 GB."""
  _, parts, whole = undisturbed
  assert runs.steps(whole) == [EVERY, 2 * EVERY, STEPS]
  sizes = set()
  for step in runs.steps(whole):
    folder = whole / 'checkpoints' / str(step) / 'position'
    files = [f for f in folder.rglob('*') if f.is_file()]
    [found] = [
      json.loads(f.read_text()) for f in files if 'examples' in f.read_text()
    ]
    assert found['examples'] == 8 * step
    sizes.add(sum(f.stat().st_size for f in files))
  assert max(sizes) < 1024 < 1 << 16


# -- kills --------------------------------------------------------------------

_MAKER = """
import sys
import numpy as np
from t5x_lite import storage
from t5x_lite.data import index

class Store:
  folder = storage.path(sys.argv[1])

def make(writer):
  for n in range(4):
    writer.append('numbers', np.arange(1 << 19) * 7 + n)
    print(n, flush=True)
    sys.stdin.readline()
  writer.counts = {'n': 4}

print(index.open_or_make(Store, 'bins', {'a': 1}, make).digest)
"""


def maker(folder):
  """A process that makes an index, a step for each line that it is given."""
  return subprocess.Popen(
    [sys.executable, '-c', _MAKER, str(folder)],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  )


def test_an_index_whose_maker_is_killed_is_made_by_the_next(tmp_path):
  class Store:
    folder = storage.path(tmp_path / 'undisturbed')

  def make(writer):
    for n in range(4):
      writer.append('numbers', np.arange(1 << 19) * 7 + n)
    writer.counts = {'n': 4}

  wanted = index.open_or_make(Store, 'bins', {'a': 1}, make)
  folder = tmp_path / 'killed'
  folder.mkdir()
  first, second = maker(folder), maker(folder)
  # One makes it, the other waits for it; who is first, nobody knows.
  while not (left := glob.glob(f'{folder}/.bins-*')):
    time.sleep(0.01)
  [file] = (storage.cache_dir() / 'locks').glob('killed-bins-*')
  while not (words := file.read_text().split()):
    time.sleep(0.01)
  if int(words[1]) != first.pid:
    first, second = second, first
  for n in range(2):
    assert first.stdout.readline() == f'{n}\n'
    if not n:
      print(file=first.stdin, flush=True)
  os.utime(left[0], (0, 0))  # killed long ago, for who comes next
  first.kill()
  first.communicate()
  assert not glob.glob(f'{folder}/bins-*')  # nothing that looks whole
  second.stdout.readline()
  third = glob.glob(f'{folder}/.bins-*')
  second.kill()
  second.communicate()
  assert left[0] not in third and len(third) == 1
  output, _ = maker(folder).communicate('\n' * 4, timeout=60)
  assert output.split()[-1] == wanted.digest
  made = index.Index(storage.path(glob.glob(f'{folder}/bins-*')[0]))
  numbers = [x.arrays['numbers'].read([0], 4 << 19) for x in (made, wanted)]
  np.testing.assert_array_equal(*numbers)
  assert made.counts == {'n': 4}


def test_an_index_that_another_machine_made_first_is_taken(tmp_path):
  """One that shares the folder, but not the lock."""

  class Store:
    folder = storage.path(tmp_path)

  def make(writer, rival=False):
    writer.append('numbers', np.arange(10))
    if not rival:
      [ours] = tmp_path.glob('.bins-*')
      with storage.publish(tmp_path / ours.name.split('.')[1]) as scratch:
        other = index.Writer(scratch)
        make(other, rival=True)
        other.close()

  found = index.open_or_make(Store, 'bins', {}, make)
  assert found.arrays['numbers'].read([0], 10)[0].tolist() == list(range(10))
  assert not list(tmp_path.glob('.bins-*'))


LONG = dict(Run__steps=30, Checkpoints__every=5, Evaluation__every=10)


def appears(process, pattern, before):
  """Waits for another file of a cache, or for the end of a process."""
  while process.poll() is None and set(glob.glob(pattern)) <= before:
    time.sleep(0.001)


@pytest.mark.faults
@pytest.mark.parametrize('kind', KINDS)
def test_ten_kills_of_a_packed_mixture(tmp_path, kind):
  """While its stores, pieces and bins are made, and while it trains."""
  parts = write_parts(tmp_path, kind, times=20)

  def start(name):
    return runs.start(
      'train',
      '--gin_file=t5/bytes',
      f'--workdir={tmp_path}/{name}',
      *options(parts, kind, **LONG),
      T5X_LITE_CACHE=f'{tmp_path}/{name}-cache',
    )

  code, output = runs.finish(start('undisturbed'))
  assert code == 0, output
  draw = random.Random(kind)
  stores = f'{tmp_path}/run-cache/stores'
  looked = 'pieces' if kind == 'text' else 'pairs'
  planned = [
    (f'{stores}/.a-*', draw.uniform(0, 0.5)),
    (f'{stores}/.[bc]-*', draw.uniform(0, 0.5)),
    (f'{stores}/*/.{looked}-*', 0.0),
    (f'{stores}/*/.bins-*', 0.0),
    (f'{stores}/*/.bins-*', draw.uniform(0, 0.3)),
    (f'{stores}/*/.bins-*', draw.uniform(0, 0.3)),
  ]
  steps = sorted(draw.sample(range(1, 30), 4))
  planned += [(step, draw.uniform(0, 0.2)) for step in steps]
  codes, whole = [], []
  for when, delay in planned:
    before = set() if isinstance(when, int) else set(glob.glob(when))
    process = start('run')
    if isinstance(when, int):
      runs.wait_for(process, when)
    else:
      appears(process, when, before)
    time.sleep(delay)
    process.kill()
    codes.append(runs.finish(process)[0])
    whole.append(len(glob.glob(f'{stores}/*/bins-*/manifest.json')))
  assert codes.count(137) >= 9 and set(codes) <= {0, 137}
  assert whole[3] < 3 and whole[-1] == 3  # bins were killed in the making
  code, output = runs.finish(start('run'))
  assert code == 0, output
  runs.assert_same_state(tmp_path / 'run', tmp_path / 'undisturbed', 30)
  found = digests(tmp_path / 'run')
  assert found == digests(tmp_path / 'undisturbed') and len(found) == 30
  assert runs.metrics(tmp_path / 'run') == runs.metrics(
    tmp_path / 'undisturbed'
  )
