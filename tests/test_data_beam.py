"""Stores made on Apache Beam are those that one machine makes."""

import importlib.util
import sys

import pytest

from t5x_lite.data import partition
from tests import test_data_building

needs_beam = pytest.mark.skipif(
  not importlib.util.find_spec('apache_beam'),
  reason='needs Apache Beam; run `make beam`',
)
pytestmark = [
  # Beam's own, as of 2.77.
  pytest.mark.filterwarnings('default'),
]
RUNNERS = [
  [],
  [
    '--direct_running_mode=multi_processing',
    '--direct_num_workers',
    '2',
  ],
]


@pytest.fixture
def corpus(tmp_path, monkeypatch):
  monkeypatch.setattr(partition, '_SMALLEST', 2000)
  lines = [f'{n} ' + 'word ' * (n % 30) for n in range(200)]
  (tmp_path / 'a.txt').write_text('\n'.join(lines))
  return tmp_path / 'a.txt'


def options(corpus, name):
  return [
    'cache',
    f'--corpus={corpus}',
    '--gin.Data.document=line',
    f'--gin.Data.store={corpus.parent / name}',
  ]


@needs_beam
@pytest.mark.parametrize('more', RUNNERS, ids=['memory', 'processes'])
def test_beam_makes_the_same_bytes(command, corpus, more):
  command(*options(corpus, 'here'))
  beam = ['--beam_runner=DirectRunner', *more]
  command(*options(corpus, 'beam'), *beam)
  [here], [there] = ((corpus.parent / x).iterdir() for x in ('here', 'beam'))
  found = test_data_building.content(there)
  assert found == test_data_building.content(here)
  assert len([x for x in found if x.startswith('train/tokens')]) > 5


@needs_beam
@pytest.mark.parametrize(
  'more, code', [(RUNNERS[0], 3), (RUNNERS[1], 6)], ids=['memory', 'processes']
)
def test_faults_on_beam_are_told_as_here(command, corpus, more, code):
  lines = 9000 * [b'{"text": "a"}'] + [b'{"text": 7}']
  path = corpus.with_suffix('.jsonl')
  path.write_bytes(b'\n'.join(lines))
  arguments = ['cache', f'--corpus={path}', f'--gin.Data.store={path.parent}/a']
  said = command(*arguments, '--beam_runner=DirectRunner', *more, code=code)
  told = said[said.index('t5x_lite: ') :]
  assert 'a.jsonl:9001; got int in it' in told
  assert 'Traceback' not in told


@needs_beam
def test_options_that_nobody_knows(command, corpus):
  beam = ['--beam_runner=DirectRunner', '--no_such_option=1']
  said = command(*options(corpus, 'a'), *beam, code=2)
  assert (
    'no such option, of t5x_lite or of Beam; got --no_such_option=1' in said
  )
  said = command(*options(corpus, 'a'), '--beam_runner=NoRunner', code=2)
  assert 'NoRunner' in said and 'DirectRunner' in said


def test_what_is_missing_comes_with_its_command(command, corpus, monkeypatch):
  monkeypatch.setitem(sys.modules, 'apache_beam', None)
  said = command(*options(corpus, 'a'), '--beam_runner=DirectRunner', code=2)
  assert 'needs Apache Beam' in said and 'pip install apache-beam' in said
  said = command(*options(corpus, 'a'), '--direct_num_workers=2', code=2)
  assert 'cache has no such option' in said
