"""Each command of docs/weights.md does what it says."""

import os
import pathlib
import re
import subprocess
import sys

import jax
import pytest

from t5x_lite import cli
from t5x_lite import models
from tests import exact
from tests import runs
from tests import t5x_files
from tests import tiny

PAGE = pathlib.Path(__file__).parents[1] / 'docs' / 'weights.md'
LINES = [
  line
  for block in re.findall(r'```sh\n(.*?)```', PAGE.read_text(), re.S)
  for line in block.replace('\\\n', ' ').splitlines()
]
SAYS = {
  '--shard_size': 'a T5ForConditionalGeneration',
  '--format=stablehlo': 'is in exports/served',
  'serve.py': '[[',
  'import exports': 'train it: t5x_lite train',
  'infer': '"prediction"',
  'recipe.gin': 'parameters start from',
  'import t5x': 'are in',
  '--values': 'not finite',
  '--diff': 'tensors are equal',
}


@pytest.mark.slow
def test_commands_in_order(tmp_path):
  runs.write_corpus(tmp_path)
  arguments = ['train', f'--corpus={tmp_path}/my.txt']
  arguments += [f'--workdir={tmp_path}/runs/mine', *runs.options(Run__steps=2)]
  assert cli.main(arguments) == 0
  model = models.build(tiny.transformer(vocab_size=384))
  params = exact.flatten(model.init(jax.random.key(0)))
  t5x_files.write(tmp_path / 't5x', 1000000, t5x_files.to_t5x(params))
  said = ''
  for line in LINES:
    line = re.sub(r'\bpython\b', sys.executable, line)
    line = line.replace('t5x_lite ', f'{sys.executable} -m t5x_lite ', 1)
    done = subprocess.run(
      ['bash', '-euc', line],
      cwd=tmp_path,
      env=os.environ | {'JAX_NUM_CPU_DEVICES': '1'},
      capture_output=True,
      text=True,
    )
    assert done.returncode == 0, f'{line}\n{done.stdout}{done.stderr}'
    assert 'Traceback' not in done.stderr
    for words, wanted in SAYS.items():
      if words in line:
        assert wanted in done.stdout, line
    said += done.stdout
  assert all(any(words in line for line in LINES) for words in SAYS)
