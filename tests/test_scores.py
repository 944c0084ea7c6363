"""What one answer to all would get, a mixture in one number, a picture."""

import json
import types

import numpy as np
import pytest

from t5x_lite import measures
from t5x_lite import results
from t5x_lite import scores
from t5x_lite.data import tasks
from t5x_lite.data import vocabularies
from t5x_lite.tasks import fetch
from t5x_lite.tasks import fetched

BYTES = vocabularies.Bytes(extra_ids=100)
LENGTHS = {'inputs': 64, 'targets': 16}
REVIEWS = {
  'pos.txt': ''.join(f'\u597d{chr(0x4E00 + n)}\n' for n in range(300)),
  'neg.txt': ''.join(f'\u574f{chr(0x4E00 + n)}\n' for n in range(200)),
}
QUIZ = {
  'index': '/quiz/a:what:is\n',
  'a': ''.join(f'q {chr(97 + n % 26) * (1 + n // 26)}:x\n' for n in range(300)),
}


@pytest.fixture
def data(tmp_path_factory, monkeypatch):
  folder = tmp_path_factory.mktemp('data')
  monkeypatch.setenv('T5X_LITE_DATA', str(folder))
  for name, files in (('zh_reviews', REVIEWS), ('quiz', QUIZ)):
    texts = [('by hand', x, text.encode()) for x, text in files.items()]
    fetch.write(name, fetched.THINGS[name], texts, folder, folder)


def load(name, limit=None):
  task = tasks.find(name, 'Evaluation.tasks', BYTES)
  return tasks.Task(task, 'validation', LENGTHS, BYTES, limit)


def test_a_constant_answer_is_the_most_frequent_target(data):
  task = load('zh_sentiment')
  said = [x['targets'].tolist() for x in task.examples]
  most = max(map(said.count, said))
  assert 0 < most < len(said)
  accuracy = 100 * most / len(said)
  assert task.constant() == {'accuracy': pytest.approx(accuracy)}
  assert load('quiz_closed_book').constant() == {'em': 100.0, 'f1': 100.0}


def test_a_metric_that_fails_of_a_constant_answer_has_none(data, monkeypatch):
  task = load('zh_sentiment')
  [(kind, metric)] = task._metrics
  monkeypatch.setattr(task, '_metrics', [('SCORE', metric)])
  assert task.constant() == {}

  class Fails:
    def from_model_output(self, *_):
      raise KeyError('not of this')

  monkeypatch.setattr(task, '_metrics', [(kind, Fails())])
  assert task.constant() == {}


def test_the_score_of_a_mixture_is_a_mean_of_means():
  one = {'loss': 9.0, 'tokens': 5, 'examples': 3, 'f1': 40.0, 'accuracy': 60.0}
  two = {'loss': 8.0, 'token_accuracy': 0.1, 'em': 10.0, 'told': 'text'}
  assert measures.own(one) == {'f1': 40.0, 'accuracy': 60.0}
  assert measures.score([one, two]) == {'score': 30.0}
  assert measures.score([one, {'loss': 3.0}]) == {}


def test_constants_of_several_calls_are_kept(tmp_path):
  assert results.constants(tmp_path) == {}
  results.save_constants(tmp_path, {'a': {'f1': 1.0}, 'b': {'f1': 2.0}})
  results.save_constants(tmp_path, {'b': {'f1': float('nan')}})
  results.save_constants(tmp_path, {})
  found = results.constants(tmp_path)
  assert found.keys() == {'a', 'b'} and found['a'] == {'f1': 1.0}
  assert np.isnan(found['b']['f1'])
  (tmp_path / 'evaluation' / 'constants.json').write_text('{"a"')
  assert results.constants(tmp_path) == {}


@pytest.mark.parametrize('per_cent', [True, False])
def test_only_a_mixture_of_metrics_of_100_has_a_score(per_cent):
  made = object.__new__(measures.Measures)
  made.mixtures = {'both': ['a', 'b']}
  made._tasks = {
    'a': types.SimpleNamespace(per_cent=True, constant=lambda: {'f1': 20.0}),
    'b': types.SimpleNamespace(
      per_cent=per_cent, constant=lambda: {'f1': 30.0, 'em': 40.0}
    ),
  }
  wanted = {'f1': 25.0} | ({'score': 27.5} if per_cent else {})
  assert made.constants()['both'] == wanted


# -- the picture --------------------------------------------------------------


def save(workdir, found):
  folder = workdir / 'evaluation'
  folder.mkdir(exist_ok=True)
  (folder / 'metrics.json').write_text(json.dumps(found))


def test_nothing_measured_is_no_picture(tmp_path):
  assert scores.plot(tmp_path) is None
  save(tmp_path, {'validation': {'3': {'loss': 2.0}}})
  assert scores.plot(tmp_path) is None


@pytest.mark.parametrize('steps', [1, 3])
@pytest.mark.parametrize('names', [1, 4])
def test_pictures_of_any_number_of_tasks_and_steps(tmp_path, steps, names):
  metrics = {'loss': 'nan', 'examples': 3, 'f1': 45.0, 'count': 3000, 'x': 'y'}
  found = {
    name: {str(step): metrics for step in range(steps)}
    for name in ['validation', *'abcd'[:names]]
  }
  save(tmp_path, found)
  results.save_constants(tmp_path, {'a': {'f1': 30.0, 'count': float('inf')}})
  assert scores.plot(tmp_path) == tmp_path / 'evaluation' / 'metrics.png'
  bars = scores._bars(results.measured(tmp_path), results.constants(tmp_path))
  assert [bar[1:3] for bar in bars] == [(45.0, 30.0)] + [(45.0, None)] * (
    names - 1
  )


def test_bars_of_other_steps_say_so(tmp_path):
  save(
    tmp_path, {'a': {'3': {'f1': 1.0}}, 'b': {'3': {'f1': 1}, '9': {'f1': 2}}}
  )
  bars = scores._bars(results.measured(tmp_path), {})
  assert [bar[:2] for bar in bars] == [
    ('a f1, step 3', 1.0),
    ('b f1, step 9', 2),
  ]
