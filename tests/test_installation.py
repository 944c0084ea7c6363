"""What of an installation is compared between processes."""

import importlib.metadata
import sys
import time

import pytest

from t5x_lite import cli
from t5x_lite import commands
from t5x_lite import errors
from t5x_lite import installation
from t5x_lite import joining
from t5x_lite import processes
from t5x_lite.processes import meeting


def test_all_of_the_program_is_code_and_quickly_read():
  began = time.process_time()
  found = installation.code()
  assert time.process_time() - began < 0.1
  for name in ('train.py', 'nn/attention.py', 'tasks/__init__.py'):
    assert f't5x_lite/{name}' in found
  assert 't5x_lite/launch/local.py' in found
  assert list(found) == sorted(found)
  assert installation.digest(found) == installation.digest(installation.code())


def test_modules_of_tasks_are_code_and_are_not_run(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'inner').mkdir()
  for name in ('my_own', 'inner/one', 'inner/two'):
    (tmp_path / f'{name}.py').write_text('raise SystemExit')

  def own(*modules):
    found = installation.code(modules)
    return {k: v for k, v in found.items() if not k.startswith('t5x_lite/')}

  assert list(own('my_own')) == ['my_own.py']
  assert list(own('inner.one')) == ['inner/one.py', 'inner/two.py']
  assert own('no_such', 'sys', 't5x_lite.tasks') == {}
  assert not {'my_own', 'inner'} & set(sys.modules)
  before = installation.code(['my_own'])
  (tmp_path / 'my_own.py').write_text('raise  SystemExit')
  after = installation.code(['my_own'])
  assert before['my_own.py'] != after['my_own.py']
  assert installation.digest(before) != installation.digest(after)


@pytest.fixture
def facts(monkeypatch):
  """A function that gives what a process would tell the others."""
  told = []
  monkeypatch.setattr(processes, 'join', lambda _, facts: told.append(facts))
  monkeypatch.setattr('t5x_lite.preflight.check_devices', lambda _: None)
  place = '--coordinator_address=here:9 --process_count=2 --process_index=1'

  def tell(*words):
    words = 'train', '--corpus=my.txt', *place.split(), *words
    options = cli.parse(list(words))
    joining.meet(options, commands.load(options))
    return told.pop()

  return tell


def difference(*facts):
  with pytest.raises(errors.DeviceError) as wrong:
    meeting.compare(
      {name: dict(enumerate(f.get(name) for f in facts)) for name in facts[0]}
    )
  return wrong.value.what


def test_other_versions_are_named(facts, monkeypatch):
  before, version = facts(), importlib.metadata.version
  changed = {'flax': '0.0.1', 'jaxlib': '0.0.2'}
  monkeypatch.setattr(
    importlib.metadata, 'version', lambda n: changed.get(n) or version(n)
  )
  assert difference(before, facts()) == (
    'processes differ in the version of jaxlib and in 1 more (the version of'
    ' flax)'
  )


def test_other_code_is_named(facts, monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'my_own.py').write_text('')
  before = facts('--task_module=my_own')
  (tmp_path / 'my_own.py').write_text('x = 1')
  assert (
    difference(before, facts('--task_module=my_own'))
    == 'processes differ in the code of my_own.py'
  )


def test_another_recipe_is_named_by_its_settings(facts):
  said = difference(facts(), facts('--gin.Run.steps=7'))
  assert said.startswith('processes differ in steps and')
