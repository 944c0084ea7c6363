"""What backends of `launch` share: job specs, names, what travels, calls."""

import json
import pathlib
import re
import sys
import time

import pytest

from t5x_lite import cli
from t5x_lite import errors
from t5x_lite import recipes
from t5x_lite.launch import bundle
from t5x_lite.launch import calls
from t5x_lite.launch import jobs
from t5x_lite.launch import submitting
from tests import runs

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
  monkeypatch.setenv('T5X_LITE_STATE', str(tmp_path / 'state'))


# -- job specs ----------------------------------------------------------------


@pytest.mark.parametrize('name', jobs.names())
def test_installed_specs_hold_their_recipe(name):
  config = jobs.load(name)
  assert config.recipe in recipes.names()
  accelerator = jobs.accelerator(config)
  options = cli.parse(['train', f'--gin_file={config.recipe}'])
  from t5x_lite import commands

  bundle.check_mesh(commands.load(options), accelerator)


def test_the_table_of_specs():
  """launch/README.md lists them all, as they are."""
  text = (ROOT / 'launch' / 'README.md').read_text()
  rows = re.findall(
    r'^\| `(\w+)` \| ([^|]+) \| ([^|]+) \| `([\w/]+)` \|', text, re.M
  )
  assert [row[0] for row in rows] == jobs.names()
  for name, what, capacity, recipe in rows:
    config = jobs.load(name)
    assert what == str(jobs.accelerator(config))
    assert capacity == config.capacity.replace('_', ' ')
    assert recipe == config.recipe


def test_fields_change_by_options():
  config = jobs.load(
    'v5e_256',
    [
      'zone=us-west1-c',
      'slices=2',
      'tpu_vm.internal_ips=True',
      'slurm.setup=a,b',
      'env.LIBTPU_INIT_ARGS=--xla_a=1 --xla_b=2',
    ],
  )
  assert (config.zone, config.slices) == ('us-west1-c', 2)
  assert config.tpu_vm.internal_ips is True
  assert config.slurm.setup == ('a', 'b')
  assert config.env.to_dict() == {'LIBTPU_INIT_ARGS': '--xla_a=1 --xla_b=2'}


@pytest.mark.parametrize(
  'override, said',
  [
    ('zonne=x', 'no such field of a job spec at --config.zonne'),
    ('zonne=x', 'did you mean zone?'),
    ('tpu_vm.wheeel=x', 'did you mean wheel?'),
    ('tpu_wm.wheel=x', 'did you mean tpu_vm?'),
    ('tpu_vm=x', 'a group of fields has no value itself'),
    ('slices=two', "got 'two', expected int"),
    ('restarts=-1', 'expected 0 to 1,000,000'),
    ('restarts=100000000000', 'wrong count'),
    ('arrival_timeout=0', 'expected 1 to'),
    ('tpu_vm.wait=0', 'at --config.tpu_vm.wait; got 0, expected 1 to'),
    (
      'slices=99999999999',
      'at --config.slices; got 99999999999, expected 1 to',
    ),
    ('slices=0', 'at --config.slices; got 0, expected 1 to 1,024'),
    ('slices=-1', 'at --config.slices; got -1, expected 1 to 1,024'),
    ('tpu_vm.port=0', 'at --config.tpu_vm.port; got 0, expected 1 to 65,535'),
    ('gke.grace=0', 'at --config.gke.grace; got 0, expected 1 to'),
    ('slurm.grace=-5', 'at --config.slurm.grace; got -5, expected 1 to'),
    ('accelerator=v5e-0', 'no slice of v5e has 0 chips'),
    ('accelerator=gpu-0', 'has one GPU at least at --config.accelerator'),
    ('accelerator=0xv5e-4', 'wrong count of slices at --config.accelerator'),
    ('env=A=1', 'fix: --config.env.FIELD=VALUE'),
    ('zone=us-west4', 'expected us-west4-a'),
    ('shared_folders=nfs', 'has a path from the root'),
    ('delete_when_done=maybe', 'expected True or False'),
    ('accelerator=v5e-255', 'at --config.accelerator'),
    ('accelerator=', 'no accelerator'),
    ('capacity=cheap', 'expected one of on_demand, spot, reserved'),
    ('zone=us-west4-a;rm -rf /', 'not a name at --config.zone'),
    ('project=$(id)', 'not a name at --config.project'),
    ('gke.image=a`b`', 'not a name at --config.gke.image'),
    ('slurm.partition=a\nb', 'not a name'),
    ('env.A B=1', 'not a variable of an environment'),
  ],
)
def test_wrong_fields(override, said):
  with pytest.raises(errors.ConfigError) as e:
    jobs.load('v5e_256', [override])
  assert said in str(e.value)


@pytest.mark.parametrize(
  'text, said',
  [
    (None, 'no such file of a job spec'),
    ('def get_config(): return 3', 'not a job spec'),
    ('import sys; sys.exit(3)', 'job spec fails'),
    ('x = 1', "has no attribute 'get_config'"),
    ('def get_config(:', 'SyntaxError'),
    (
      'from t5x_lite.launch import jobs\n'
      'def get_config(): return jobs.spec(zonne="a")',
      'did you mean zone?',
    ),
  ],
)
def test_files_that_are_no_job_spec(tmp_path, text, said):
  file = tmp_path / 'v5e_255.py'
  if text is not None:
    file.write_text(text)
  with pytest.raises(errors.ConfigError) as e:
    jobs.load(str(file))
  assert said in str(e.value)


@pytest.mark.parametrize(
  'change, said',
  [
    ('c.restarts = None', 'got None, expected int'),
    ('c.restarts = 2.5', 'got 2.5, expected int'),
    ('c.slices = True', 'got True, expected int'),
    ('c.zone = None', 'got None, expected str'),
    ('c.slurm = "x"', 'a group of fields has no value itself'),
    ('c.slurm.more = 1', 'no such field'),
    ('c.slurm.time = 30', 'got 30, expected str'),
    ('c.shared_folders = [None]', 'a path from the root'),
    ('c.env.A = None', "got 'A=None'"),
    ('c.env["A B"] = "x"', 'not a variable'),
  ],
)
def test_specs_that_go_around_their_types(tmp_path, change, said):
  file = tmp_path / 'mine.py'
  file.write_text(
    'from t5x_lite.launch import jobs\n'
    'def get_config():\n'
    '  c = jobs.spec(accelerator="gpu-1")\n'
    '  with c.unlocked(), c.ignore_type():\n'
    f'    {change}\n'
    '  return c\n'
  )
  with pytest.raises(errors.ConfigError) as e:
    jobs.load(str(file))
  assert said in str(e.value)


def test_a_path_is_no_installed_name(tmp_path):
  """A mistyped one must not launch another job."""
  with pytest.raises(errors.ConfigError) as e:
    jobs.load(f'{tmp_path}/v5e_256.py')
  assert str(e.value).startswith(
    'no such file of a job spec at --config; got /'
  )
  assert str(e.value).endswith('fix: --config=v5e_256, which is installed')


def test_a_spec_of_ones_own(tmp_path):
  file = tmp_path / 'mine.py'
  file.write_text(
    'from t5x_lite.launch import jobs\n'
    'def get_config():\n'
    "  return jobs.spec(accelerator='v4-8', gke=dict(grace=30))\n"
  )
  config = jobs.load(str(file), ['gke.namespace=us'])
  assert (config.gke.grace, config.gke.namespace) == (30, 'us')
  with pytest.raises(AttributeError):
    config.other = 1


# -- names --------------------------------------------------------------------


@pytest.mark.parametrize(
  'name',
  ['', 'A', '1a', 'a_b', 'a-', 'a b', 'a;b', '$(a)', 'a' * 41, 'a\n', '../a']
  + ['a`id`', "a'b", 'a"b', 'a|b', 'a&b', 'a>b', 'a*', 'a?', '-a', 'ä'],
)
def test_names_that_no_cloud_takes(name):
  with pytest.raises(errors.ConfigError, match='not a name of a job'):
    jobs.check_name(name)


def test_the_right_name_is_offered():
  with pytest.raises(errors.ConfigError, match='fix: --name=my-run-2'):
    jobs.check_name('My_Run.2')


def test_jobs_are_remembered():
  job = jobs.Job(
    'a', 'gke', jobs.load('v4_8').to_dict(), ['train'], {}, {'n': 1}
  )
  job.save()
  assert jobs.known() == ['a']
  assert jobs.find('a') == job
  assert jobs.find('a').accelerator.name == 'v4-8'
  assert jobs.find('b') is None
  (jobs.folder() / 'a.json').write_text('{"name": ')
  with pytest.raises(errors.ConfigError, match='damaged'):
    jobs.find('a')
  for kept in (
    {'name': 'a', 'backend': 'gke', 'config': {}, 'command': []},
    {'name': 'a', 'backend': 'xx', 'config': job.config, 'command': []},
    {'name': 'b', 'backend': 'gke', 'config': job.config, 'command': []},
    [],
  ):
    (jobs.folder() / 'a.json').write_text(json.dumps(kept))
    with pytest.raises(errors.ConfigError, match='damaged'):
      jobs.find('a')
  said = []
  submitting.listing(said.append)
  assert 'damaged' in said[0]
  job.forget()
  assert jobs.known() == []


def test_one_process_looks_after_a_job(monkeypatch):
  """Two who follow would each ask for new TPUs when some are taken."""
  job = jobs.Job('a', 'gke', jobs.load('v4_8').to_dict(), ['train'])
  job.save()
  monkeypatch.setattr(submitting.gke, 'watch', lambda job, say: 0)
  watch = cli.parse(['launch', 'watch', 'a'])
  assert submitting.act(watch, print) == 0
  with (
    submitting._alone(job),
    pytest.raises(errors.StorageError, match='another process launches or'),
  ):
    submitting.act(watch, print)


# -- what travels -------------------------------------------------------------


def made(*argv, spec='v5e_256', overrides=()):
  from t5x_lite import commands

  started = cli.parse(argv)
  config = jobs.load(spec, overrides)
  run = commands.load(started) if argv[0] == 'train' else None
  bundle.check_paths(started, config, jobs.accelerator(config))
  return bundle.make(argv, started, run, config)


def test_an_installed_recipe_travels_by_name():
  argv = ['train', '--gin_file=t5/1_1_small', '--workdir=gs://b/run']
  assert made(*argv) == (argv, {})


def test_ones_own_recipe_travels_with_what_it_includes(tmp_path):
  (tmp_path / 'inner').mkdir()
  (tmp_path / 'inner' / 'deep.gin').write_text('Run.steps = 7\n')
  (tmp_path / 'inner' / 'mine.gin').write_text(
    "include 't5/1_1_small'\ninclude 'deep.gin'  # and more\n"
  )
  (tmp_path / 'my own.gin').write_text("include 'inner/mine.gin'\n# end\n")
  given = str(tmp_path / 'my own.gin')
  command, files = made('train', '--gin_file', given, '--workdir=gs://b/run')
  assert command == [
    'train',
    '--gin_file',
    'recipe_0_my_own.gin',
    '--workdir=gs://b/run',
  ]
  assert files == {
    'recipe_0_my_own.gin': b"include 't5/1_1_small'\nRun.steps = 7\n\n\n# end\n"
  }


def test_vocabulary_tasks_and_files_travel(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'my.model').write_bytes(b'\0model')
  (tmp_path / 'my_tasks.py').write_text('X = 1\n')
  (tmp_path / 'more').mkdir()
  (tmp_path / 'more' / 'deep.py').write_text('Y = 1\n')
  (tmp_path / 'notes.txt').write_text('n')
  command, files = made(
    'train',
    '--gin_file=t5/1_1_small',
    '--gin.Data.vocabulary=my.model',
    '--task_module=my_tasks',
    '--task_module=more.deep',
    '--workdir=gs://b/run',
    overrides=['files=notes.txt'],
  )
  assert command[-1] == '--gin.Data.vocabulary=my.model'
  assert files == {
    'my.model': b'\0model',
    'my_tasks.py': b'X = 1\n',
    'more/deep.py': b'Y = 1\n',
    'notes.txt': b'n',
  }


@pytest.mark.parametrize(
  'argv, overrides, said',
  [
    (['--workdir=runs/a'], [], '--workdir is local, and 64 machines'),
    (['--workdir=runs/a'], ['accelerator=v5e-4'], 'gone with the machine'),
    (['--workdir=/nfs/a'], ['shared_folders=/nfs2'], 'or a path in /nfs2'),
    (['--workdir=/nfs/../a'], ['shared_folders=/nfs'], 'is local'),
    ([], [], 'no --workdir'),
    (
      ['--workdir=gs://b/a', '--corpus=texts/*.txt'],
      [],
      'cannot read this corpus at Data.corpus; got texts/*.txt',
    ),
    (['--workdir=gs://b/a', '--task_module=no_such'], [], 'no such module'),
    (['--workdir=gs://b/a'], ['files=no_such'], 'no such file to take along'),
    (
      ['--workdir=gs://b/a'],
      ['files=README.md,launch/README.md'],
      'of one name',
    ),
    (
      ['--workdir=gs://b/a', '--gin.Data.vocabulary=/no/such.model'],
      [],
      'no such vocabulary here',
    ),
  ],
)
def test_what_the_machines_would_not_find(argv, overrides, said):
  with pytest.raises(errors.ConfigError) as e:
    made('train', '--gin_file=t5/1_1_small', *argv, overrides=overrides)
  assert said in str(e.value)


def test_shared_folders_are_the_same_everywhere():
  argv = 'train', '--gin_file=t5/bytes', '--corpus=/nfs/a.txt'
  command, _ = made(
    *argv, '--workdir=/nfs/run', overrides=['shared_folders=/nfs']
  )
  assert command[-1] == '--workdir=/nfs/run'


def test_too_much_to_take_along(tmp_path, monkeypatch):
  monkeypatch.setattr(bundle, 'MOST', 10)
  (tmp_path / 'a').write_bytes(b'x' * 6)
  (tmp_path / 'b').write_bytes(b'x' * 6)
  argv = 'train', '--gin_file=t5/1_1_small', '--workdir=gs://b/a'
  with pytest.raises(errors.ConfigError, match='takes too much along'):
    made(*argv, overrides=[f'files={tmp_path}/a,{tmp_path}/b'])
  (tmp_path / 'c').write_bytes(b'x' * 11)
  with pytest.raises(errors.ConfigError, match='file is too large'):
    made(*argv, overrides=[f'files={tmp_path}/c'])


# -- calls --------------------------------------------------------------------

FAULTS = (
  calls.Fault(('quota',), 'there is no quota left', 'ask for more'),
  calls.Fault(('reset by peer',), 'the line was cut', passes=True),
)


def python(code):
  return [sys.executable, '-c', code]


def test_a_call_returns_what_it_prints_and_no_shell_sees_it():
  argv = [*python('import sys; print(sys.argv[1:])'), '$(id); `ls` *']
  assert calls.run(argv, deadline=30) == "['$(id); `ls` *']\n"
  assert calls.shown(['a', 'b c', '$d']) == "a 'b c' '$d'"


def test_a_fault_that_is_known_is_told_in_our_words():
  argv = python('import sys; sys.exit("ERROR: Quota exceeded")')
  with pytest.raises(calls.CallError) as e:
    calls.run(argv, deadline=30, faults=FAULTS)
  assert str(e.value) == (
    'there is no quota left; got ERROR: Quota exceeded; fix: ask for more'
  )
  assert e.value.fault is FAULTS[0]
  assert e.value.exit_code == 6


def test_what_may_pass_is_tried_again(tmp_path):
  code = f"""
import pathlib, sys
seen = pathlib.Path({str(tmp_path / 'seen')!r})
seen.write_text(seen.read_text() + 'x' if seen.exists() else 'x')
if len(seen.read_text()) < 3:
  sys.exit('Connection reset by peer')
print('done')
"""
  said = []
  kept = dict(deadline=30, faults=FAULTS, pause=0.01, say=said.append)
  assert calls.run(python(code), **kept) == 'done\n'
  assert said == [
    'the line was cut; trying again (2 of 3)',
    'the line was cut; trying again (3 of 3)',
  ]
  (tmp_path / 'seen').unlink()
  with pytest.raises(calls.CallError, match='the line was cut'):
    calls.run(python(code), **kept | {'tries': 2})


def test_who_watches_outlasts_what_passes():
  answers, said = [True, True, False], []

  def ask():
    if answers.pop(0):
      error = calls.CallError('the line was cut')
      error.passes = True
      raise error
    return 'done'

  assert calls.outlast(ask, said.append, pause=0) == 'done'
  assert said == ['the line was cut: the job goes on, and is asked for again']
  answers[:] = [True]
  with pytest.raises(calls.CallError):
    calls.outlast(ask, said.append, seconds=-1)


def test_a_call_has_a_deadline():
  with pytest.raises(calls.CallError, match='did not end within 0.2 s'):
    calls.run(
      python('import time; time.sleep(60)'), deadline=0.2, tries=2, pause=0.01
    )


def test_what_a_call_started_ends_with_it(tmp_path):
  script = tmp_path / 'call'
  script.write_text(f'#!/bin/sh\nsleep 60 & echo $! > {tmp_path}/pid; wait\n')
  script.chmod(0o755)
  with pytest.raises(calls.CallError, match='did not end'):
    calls.run([script], deadline=1, tries=1)
  pid = (tmp_path / 'pid').read_text().strip()
  until = time.monotonic() + 20
  while runs.is_alive(pid):
    assert time.monotonic() < until  # it would sleep for a minute
    time.sleep(0.01)


def test_a_program_that_may_not_be_run(tmp_path):
  (tmp_path / 'tool').write_text('')
  with pytest.raises(errors.ConfigError, match='may not be run'):
    calls.run([tmp_path / 'tool'], deadline=1)


def test_codes_match_as_they_are():
  faults = (calls.Fault(('INTERNAL',), 'it failed', passes=True),)
  error = calls.failed(['x'], 1, 'internal IPs need a router', faults)
  assert error.fault is None
  assert calls.failed(['x'], 1, 'INTERNAL: oops', faults).passes


def test_a_program_that_is_not_there():
  with pytest.raises(errors.ConfigError, match='no program no_such_program'):
    calls.run(['no_such_program'], deadline=1)


def test_an_unknown_fault_is_shown_as_it_is():
  with pytest.raises(calls.CallError, match='failed; got exit code 3'):
    calls.run(python('raise SystemExit(3)'), deadline=30)


def test_jobs_forget_what_travels():
  job = jobs.Job('a', 'gke', jobs.load('v4_8').to_dict(), ['x'], {'f': b'1'})
  job.save()
  kept = json.loads((jobs.folder() / 'a.json').read_text())
  assert 'files' not in kept
