"""The page for those who come from T5X: its commands run, its names exist."""

import pathlib
import re
import shlex

import pytest

from t5x_lite import cli
from t5x_lite import specs
from t5x_lite import train
from tests import runs
from tests import tiny

PAGE = (
  pathlib.Path(__file__).parents[1] / 'docs' / 'coming_from_t5x.md'
).read_text()


@pytest.mark.slow
def test_its_commands_run(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  runs.write_corpus(tmp_path)
  (tmp_path / 'in.txt').write_text('To be <extra_id_0>\n')
  [block] = re.findall(r'```sh\n(.*?)```', PAGE, re.S)
  commands = [shlex.split(line)[1:] for line in block.splitlines()]
  assert [name for name, *_ in commands] == [
    'recipes',
    'train',
    'inspect',
    'train',
    'evaluate',
    'infer',
  ]
  for command in commands:
    small = command[0] == 'train' and '--dry_run' not in command
    settings = runs.options(Run__steps=1) if small else []
    assert cli.main([*command, *settings]) == 0, command
  assert 'recipe' not in capsys.readouterr().err
  assert len((tmp_path / 'out.jsonl').read_text().splitlines()) == 1


def table(title):
  """The right column of a section's table."""
  section = PAGE[PAGE.index(f'## {title}') :].split('\n## ')[0]
  rows = re.findall(r'^\| (.*) \| (.*) \|$', section, re.M)
  return [right for _, right in rows[1:]]


def test_the_settings_it_names_exist():
  named = 0
  for cell in table('Bindings'):
    spec = None
    for name in re.findall(r'`([A-Za-z_.][\w.]*)', cell):
      head, _, field = name.rpartition('.')
      spec = head or spec
      if spec in specs.SPECS:
        assert field in specs.SPECS[spec].__dataclass_fields__, name
        named += 1
  assert named > 35


def test_the_features_it_names_are_those_of_a_batch():
  text = PAGE[PAGE.index('A batch has') : PAGE.index('Padding is')]
  features = set(re.findall(r'`(\w+)`', text))
  assert features == tiny.batch(1).keys()


@pytest.mark.parametrize('name', ['loss', 'accuracy', 'data/digest'])
def test_the_metrics_it_names_are_written(name):
  source = pathlib.Path(train.__file__).read_text()
  losses = pathlib.Path(train.__file__).with_name('losses.py').read_text()
  assert f'`{name}`' in PAGE
  assert f"'{name}'" in source + losses
