"""Live against T5's own package: texts and metrics of random examples.

T5_PYTHON names the Python of an environment that has it; how to make one says
golden/make_t5_tasks.py.
"""

import json
import os
import pathlib
import subprocess

import pytest
from test_t5_tasks import GOLDEN
from test_t5_tasks import check

from tests import t5_cases

ROOT = pathlib.Path(__file__).parents[1]
pytestmark = [
  pytest.mark.oracle,
  pytest.mark.skipif(
    'T5_PYTHON' not in os.environ,
    reason='T5_PYTHON names no Python that has t5==0.9.4',
  ),
]


def ask(file, *seed):
  script = ROOT / 'tests/golden/make_t5_tasks.py'
  command = [os.environ['T5_PYTHON'], str(script), str(file), *seed]
  subprocess.run(command, check=True, cwd=ROOT)
  return json.loads(file.read_text())


def test_the_golden_file_is_what_it_says(tmp_path):
  assert ask(tmp_path / 'found.json') == GOLDEN


@pytest.mark.parametrize('seed', range(3))
def test_random_examples(tmp_path, seed):
  found = ask(tmp_path / 'found.json', str(seed))['tasks']
  for name, examples in t5_cases.random_examples(seed).items():
    check(name, examples, found[name])
