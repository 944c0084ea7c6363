"""Evaluation at the command line: in a run, and of what it saved."""

import json

import pytest

from t5x_lite import cli
from t5x_lite import results
from t5x_lite import train
from tests import runs

MODULE = '--task_module=tests.topic_tasks'


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """A workdir of steps 2 and 4 that was measured on a mixture."""
  folder = tmp_path_factory.mktemp('assess')
  corpus = runs.write_corpus(folder)
  options = runs.options(
    Run__steps=4,
    Checkpoints__every=2,
    Evaluation__every=2,
    Evaluation__tasks='both_topics',
    Evaluation__examples=5,
    Best__metric='both_topics/mean_score',
    Best__goal='max',
  )
  options.append('--gin.Checkpoints.best=@Best()')
  arguments = ['train', f'--corpus={corpus}', f'--workdir={folder}/run', MODULE]
  assert cli.main([*arguments, *options]) == 0
  return folder / 'run'


@pytest.fixture
def evaluate(trained, capsys):
  def run(*options, workdir=trained, code=0):
    capsys.readouterr()
    assert cli.main(['evaluate', f'--workdir={workdir}', *options]) == code
    return ''.join(capsys.readouterr())

  return run


@pytest.fixture
def copy(trained, tmp_path):
  """The same run, as if never measured after training."""
  (tmp_path / 'run').mkdir()
  (tmp_path / 'run' / 'checkpoints').symlink_to(trained / 'checkpoints')
  return tmp_path / 'run'


def result(workdir, name, step):
  return json.loads(
    (workdir / 'evaluation' / f'{name}-{step}.json').read_text()
  )


def test_a_run_measures_tasks_at_start_between_and_end(trained):
  lines = runs.metrics(trained)
  for name in ('validation', 'topics', 'topics_end', 'both_topics'):
    steps = [x['step'] for x in lines if x['split'] == name]
    assert steps == [0, 2, 4], name
  last = {x['split']: x for x in lines if x['step'] == 4}
  own = {'mean_score', 'exact_match', 'predicted'}
  assert last['topics'].keys() == own | {
    'step',
    'split',
    'loss',
    'token_accuracy',
    'tokens',
    'examples',
  }
  assert last['topics']['examples'] == 5
  mean = (last['topics']['loss'] + last['topics_end']['loss']) / 2
  assert last['both_topics']['loss'] == pytest.approx(mean)
  assert last['both_topics']['examples'] == 10
  assert 'exact_match' not in last['both_topics']  # topics_end has none
  assert (trained / 'tensorboard' / 'both_topics').is_dir()


def test_what_is_no_number_is_in_the_results(trained):
  folder = trained / 'evaluation'
  found = json.loads((folder / 'topics-0.json').read_text())
  assert type(found['metrics']['first']) is str
  assert len(found['metrics']['all']) == 5
  lines = (folder / 'topics-0.jsonl').read_text().splitlines()
  assert len(lines) == 5
  assert json.loads(lines[0])['targets'] == 'assert'
  assert json.loads(lines[0]).keys() == {
    'inputs',
    'targets',
    'prediction',
    'score',
  }


def test_t5x_415_and_defect_9_metrics_are_always_written(evaluate, copy):
  """T5X wrote none by default, and failed where the folder was missing."""
  said = evaluate(MODULE, workdir=copy)
  folder = copy / 'evaluation'
  found = json.loads((folder / 'metrics.json').read_text())
  assert found.keys() == {'validation', 'topics', 'topics_end', 'both_topics'}
  for name, steps in found.items():
    [(step, metrics)] = steps.items()
    assert step == '4'
    assert metrics == result(copy, name, 4)['metrics']
    assert f'{metrics["loss"]:.4f}' in said
  assert found['validation']['4']['examples'] > 100  # all of them
  assert found['topics']['4']['examples'] == 31
  assert len((folder / 'topics-4.jsonl').read_text().splitlines()) == 31
  assert str(folder / 'metrics.json') in said
  assert (folder / 'metrics.png').read_bytes().startswith(b'\x89PNG')
  assert f'drawn: {folder / "metrics.png"}' in said
  constants = json.loads((folder / 'constants.json').read_text())
  assert constants.keys() == {'topics', 'topics_end', 'both_topics'}
  assert constants['topics']['exact_match'] == pytest.approx(100 / 31)
  [row] = [x.split() for x in said.splitlines() if 'exact_match' in x]
  assert row[:4] == ['topics', 'exact_match', '31', f'{100 / 31:.4f}']


def test_t5x_defect_22_all_checkpoints_are_measured(evaluate, copy):
  """And those that were are not again, unless they are told to be."""
  evaluate('--step=2', '--tasks=topics', MODULE, workdir=copy)
  said = evaluate('--step=all', MODULE, workdir=copy)
  for name, already in (('validation', 1), ('topics', 1), ('topics_end', 0)):
    assert said.count(f'{name} at step 2 is measured already') == already
    assert said.count(f'measured {name} at step 4: ') == 1
  found = json.loads((copy / 'evaluation' / 'metrics.json').read_text())
  assert {tuple(steps) for steps in found.values()} == {('2', '4')}
  table = said[said.index('validation  loss') :].splitlines()
  assert table[1].startswith('2 ') and table[2].startswith('4 ')
  assert f'{found["validation"]["2"]["loss"]:.4f}' in table[1]
  before = (copy / 'evaluation' / 'topics-2.json').stat().st_mtime_ns
  assert evaluate('--step=all', MODULE, workdir=copy).count('already') == 6
  assert (copy / 'evaluation' / 'topics-2.json').stat().st_mtime_ns == before


def test_an_evaluation_that_was_killed_goes_on(evaluate, copy, monkeypatch):
  """After the results of one task, before those of the next."""
  save = results.save

  def killed(workdir, name, *more):
    if name == 'topics_end':
      raise KeyboardInterrupt
    return save(workdir, name, *more)

  monkeypatch.setattr(results, 'save', killed)
  evaluate(MODULE, workdir=copy, code=130)
  monkeypatch.setattr(results, 'save', save)
  said = evaluate(MODULE, workdir=copy)
  assert said.count('already') == 2 and said.count('measured topics_end') == 1
  assert result(copy, 'both_topics', 4)['metrics']['examples'] == 40


def test_other_settings_are_measured_anew(evaluate, copy):
  for count in (3, 7):
    options = MODULE, '--tasks=topics', f'--examples={count}'
    assert 'already' not in evaluate(*options, workdir=copy)
    for name in ('validation', 'topics'):
      assert result(copy, name, 4)['metrics']['examples'] == count


def test_the_size_of_a_batch_changes_nothing(evaluate, copy):
  evaluate(MODULE, workdir=copy)
  names = 'validation', 'topics', 'topics_end', 'both_topics'
  wanted = {name: result(copy, name, 4)['metrics'] for name in names}
  said = evaluate(MODULE, '--batch_size=48', '--force', workdir=copy)
  assert 'already' not in said
  for name in names:
    found = result(copy, name, 4)['metrics']
    for metric, value in wanted[name].items():
      if type(value) is not str:
        value = pytest.approx(value, rel=1e-5)
      assert found[metric] == value, (name, metric)


def test_a_checkpoint_trained_anew_is_measured_anew(
  evaluate, trained, tmp_path
):
  for name, step in (('a', 4), ('b', 2)):
    folder = tmp_path / 'run' / 'checkpoints'
    folder.mkdir(parents=True, exist_ok=True)
    (folder / '7').unlink(missing_ok=True)
    (folder / '7').symlink_to(trained / 'checkpoints' / str(step))
    said = evaluate('--tasks=', workdir=tmp_path / 'run')
    assert 'measured validation at step 7' in said, name


def test_the_best_step_by_a_task(evaluate, trained, copy):
  lines = runs.metrics(trained)
  scores = {
    x['step']: x['mean_score'] for x in lines if x['split'] == 'both_topics'
  }
  best = max((2, 4), key=scores.get)
  said = evaluate('--step=best', '--tasks=', workdir=copy)
  assert f'validation at step {best}' in said


def test_the_tasks_of_a_run_need_their_module(evaluate, monkeypatch):
  import seqio

  monkeypatch.setattr(seqio.TaskRegistry, 'names', lambda: ())
  monkeypatch.setattr(seqio.MixtureRegistry, 'names', lambda: ())
  said = evaluate(code=2)
  assert 'got both_topics' in said and '--task_module' in said
  assert 'registered (none is) or built in' in said


def test_a_wrong_task_stops_a_run_before_it_compiles(
  trained, tmp_path, capsys, monkeypatch
):
  for method in ('compile_step', 'init'):
    monkeypatch.setattr(
      train.Program, method, lambda *_: pytest.fail('compiled something')
    )
  corpus = trained.parent / 'my.txt'
  arguments = ['train', f'--corpus={corpus}', f'--workdir={tmp_path}', MODULE]
  for settings, said in (
    ({'Evaluation__tasks': 'topcs'}, 'did you mean topics?'),
    ({'Evaluation__tasks': "['topics', 'topics_empty']"}, 'no example'),
    (
      {'Evaluation__tasks': 'topics', 'Evaluation__split': 'dev'},
      'got dev, expected one of test, validation',
    ),
  ):
    assert cli.main([*arguments, *runs.options(**settings)]) in (2, 3)
    assert said in capsys.readouterr().err


# -- files --------------------------------------------------------------------


def test_results_are_found_by_their_settings(tmp_path):
  metrics = {'loss': 1.5, 'worst': float('inf'), 'none': float('nan'), 't': 'x'}
  results.save(tmp_path, 'a:b', 3, metrics, {'examples': 2})
  found = results.find(tmp_path, 'a:b', 3, {'examples': 2})
  assert found.pop('none') != metrics.pop('none')  # not-a-number is not itself
  assert found == metrics
  assert results.find(tmp_path, 'a:b', 3, {'examples': 3}) is None
  assert results.find(tmp_path, 'a:b', 4, {'examples': 2}) is None


@pytest.mark.parametrize('text', ['', '{"metrics": ', '[]', '{"metrics": 3}'])
def test_a_result_that_cannot_be_read_is_measured_anew(tmp_path, text):
  results.save(tmp_path, 'a', 3, {'loss': 1.5}, {})
  results.save(tmp_path, 'a', 4, {'loss': 2.5}, {})
  (tmp_path / 'evaluation' / 'a-3.json').write_text(text)
  assert results.find(tmp_path, 'a', 3, {}) is None
  results.gather(tmp_path)
  found = json.loads(results.file(tmp_path).read_text())
  assert found == {'a': {'4': {'loss': 2.5}}}


def test_tables():
  one = {3: {'a': {'loss': 1.5, 'text': 'two\nlines', 'all': [1]}}}
  assert results.tables(one, {}) == [
    [
      ('name', 'metric', 'examples', 'constant', 'value'),
      ('a', 'loss', '-', '-', '1.5000'),
      ('a', 'text', '-', '-', "'two\\nlines'"),
    ]
  ]
  many = {
    30: {'a': {'loss': 1.5, 'examples': 3}, 'b': {'own': 12345}},
    4: {'a': {'loss': 2.5, 'new': 1.0}},
  }
  assert results.tables(many, {'b': {'own': 12.0}}) == [
    [('a', 'loss', 'new'), ('4', '2.5000', '1.0000'), ('30', '1.5000', '-')],
    [('b', 'own'), ('30', '12,345'), ('constant', '12.0000')],
  ]
