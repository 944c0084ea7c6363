"""Runs on mixtures: the same batches, whoever makes them and whatever stops it.

Three parts, several examples packed in a row, noise and dropout: what other
trainers leave out where they promise to go on exactly. `make parallel` and
`make faults` run the long ones.
"""

import json
import pydoc_data.topics

import pytest

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
  if processes == 1:
    process = runs.start(*arguments, JAX_NUM_CPU_DEVICES=str(devices))
  else:
    process = runs.launch(processes, *arguments, devices=devices)
  code, output = runs.finish(process)
  assert code == 0, output
  runs.assert_clean(output)
  return output


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
