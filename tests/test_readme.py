"""The commands that the documents show are commands that work."""

import pathlib
import re
import shlex

import pytest

from t5x_lite import cli
from t5x_lite import commands
from t5x_lite import config
from t5x_lite import models
from t5x_lite import optimizers
from t5x_lite.launch import jobs

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [
  ROOT / 'README.md',
  ROOT / 'gin/README.md',
  ROOT / 'launch/README.md',
  *ROOT.glob('docs/*.md'),
]


def shown():
  """Every command line of our program, from blocks, tables and sentences."""
  for page in PAGES:
    text = page.read_text().replace('\\\n', ' ')
    blocks = re.findall(r'```sh\n(.*?)```', text, re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    lines += re.findall(r'`(t5x_lite [a-z]+ -[^`]*)`', text)
    for line in lines:
      for part in line.split('|'):
        if part.strip().startswith('t5x_lite '):
          yield pytest.param(part.strip(), id=f'{page.name}: {part.strip()}')


COMMANDS = list(shown())


def test_there_are_some():
  assert len(COMMANDS) > 8


@pytest.mark.parametrize('line', COMMANDS)
def test_easylm_59_commands_parse_and_their_recipes_load(line):
  """EasyLM#59: the documentation named flags that do not exist."""
  options = cli.parse(shlex.split(line)[1:])
  if getattr(options, 'config', None):
    jobs.load(options.config, options.config_bindings)
  options = getattr(options, 'started', options)
  files = getattr(options, 'gin_file', ())
  # Those in a workdir are made by the commands before.
  if options.command in cli.TAKES_RECIPE and files and files[0][:5] != 'runs/':
    commands.load(options)


def test_settings_in_the_table_exist():
  table = re.findall(r'^\|.*\|$', (ROOT / 'README.md').read_text(), re.M)
  bindings = re.findall(r'--gin\.(\S+?)[` ]', ' '.join(table))
  assert len(bindings) > 8
  config.load(['t5/quickstart'], bindings)


def test_recipes_in_the_page_load(tmp_path):
  [text] = re.findall(
    r'```gin\n(.*?)```', (ROOT / 'README.md').read_text(), re.S
  )
  (tmp_path / 'my.gin').write_text(text)
  run = config.load([tmp_path / 'my.gin'], ['Data.corpus=my.txt'])
  optimizers.build(run.optimizer, models.build(run.model).axes, run.steps)


def test_make_targets_exist():
  targets = set(
    re.findall(r'`?make ([a-z]+)', (ROOT / 'README.md').read_text())
  )
  rules = (ROOT / 'Makefile').read_text()
  for target in targets:
    assert re.search(rf'^{target}:', rules, re.M), target


def test_links_lead_somewhere():
  for page in PAGES:
    for link in re.findall(r'\]\(([^)]+)\)', page.read_text()):
      if '://' not in link:
        file, _, heading = link.partition('#')
        target = page.parent / file
        assert target.exists(), f'{page.name}: {link}'
        if heading:
          names = re.findall(r'^#+ (.*)$', target.read_text(), re.M)
          anchors = [name.lower().replace(' ', '-') for name in names]
          assert heading in anchors, f'{page.name}: {link}'


def test_seqio_223_metrics_in_the_page_are_those_written():
  """Named in docs/run_directory.md, and written by the code."""
  text = (ROOT / 'docs/run_directory.md').read_text()
  source = ''.join(
    (ROOT / 't5x_lite' / name).read_text()
    for name in (
      'loop.py',
      'measures.py',
      'train.py',
      'optimizers/__init__.py',
      'losses.py',
      'evaluate.py',
    )
  )
  section = text[text.index('## Metrics') : text.index('## Tasks')]
  names = set(re.findall(r'`([a-z_]+(?:/[a-z_]+)?)`', section))
  assert len(names) > 15
  for name in names:
    stem = name.removeprefix('text_')
    assert f"'{name}'" in source or f"'{stem}'" in source, name
