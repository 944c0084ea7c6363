"""Metrics of built-in tasks where T5's own package gives no answer."""

import math
import random
import sys

import numpy as np
import pytest
import sacrebleu
import sklearn.metrics

from t5x_lite import errors
from t5x_lite.data import builtin
from t5x_lite.data import task_metrics

metrics = builtin.package('metrics')
answers = builtin.package('answers')
text = builtin.package('t5_text')
CHINESE = ['\u6211\u5011\u4eca\u5929\u53bb\u516c\u5712\u3002', '\u4f60\u597d']
SAID = ['\u6211\u4eca\u5929\u53bb\u516c\u5712\u3002', '\u4f60\u597d']


# -- texts --------------------------------------------------------------------


def test_chinese_is_measured_by_characters():
  found = metrics.chinese_bleu(CHINESE, SAID)['bleu']
  own = sacrebleu.corpus_bleu(SAID, [CHINESE], tokenize='zh').score
  assert found == own > 20
  assert metrics.bleu(CHINESE, SAID)['bleu'] < found
  assert metrics.chrf(CHINESE, CHINESE) == {'chrf': 100}


def test_several_references_of_unequal_number():
  targets = [['the cat sat down', 'a cat sat down'], ['one single reference']]
  said = ['a cat sat down', 'one single reference']
  assert metrics.bleu(targets, said)['bleu'] == pytest.approx(100)
  assert metrics.chrf(targets, said)['chrf'] == pytest.approx(100)
  assert metrics.bleu([x[:1] for x in targets], said)['bleu'] < 90


def test_rouge_is_the_same_each_time_and_leaves_chance_alone():
  rng = random.Random(0)
  words = ['the', 'cat', 'sat', 'on', 'a', 'mat', 'with', 'its', 'hat']
  lines = [' '.join(rng.choices(words, k=8)) for _ in range(60)]
  np.random.seed(7)
  wanted = np.random.random()
  np.random.seed(7)
  first = metrics.rouge(lines[:30], lines[30:])
  assert np.random.random() == wanted
  np.random.seed(8)
  assert metrics.rouge(lines[:30], lines[30:]) == first
  assert 0 < first['rouge2'] < first['rougeLsum'] < first['rouge1'] < 100


def test_nothing_said_is_measured():
  """Empty predictions of all kinds are wrong, not errors."""
  nothing = [''] * 3
  for metric in (metrics.bleu, metrics.chrf, metrics.rouge):
    assert set(metric(['one', 'two words', 'a . b'], nothing).values()) == {0}
  found = metrics.squad([['one'], ['two'], ['three']], nothing)
  assert found == {'em': 0, 'f1': 0}
  assert metrics.sequence_accuracy(['a', 'b', ''], nothing) == {
    'sequence_accuracy': pytest.approx(100 / 3)
  }
  for number in ('', 'four', '1,5'):
    assert answers.number(number) == -1
  assert answers.label('', ('a', 'b')) == -1
  assert answers.referent('the', {'targets_pretokenized': 'a'}) == -1


# -- labels -------------------------------------------------------------------


def test_macro_f1_of_texts():
  targets, said = ['a', 'b', 'b', 'c'], ['a', 'b', 'no such', 'b']
  # a: 1; b: precision 1/2, recall 1/2; c: 0.
  assert metrics.macro_f1(targets, said) == {'macro_f1': pytest.approx(50)}


@pytest.mark.parametrize(
  'said, candidate, right',
  [
    ('Bob', "Bob's hat", 0),
    ("The Bob's", "Bob's hat", 1),
    ('the fuzzy bunny', 'Bunny', 1),
    ('bunny', 'a fuzzy bunny', 1),
    ('bunny', 'a fuzzy dog', 0),
    ('his ', 'his dog', -1),
  ],
)
def test_a_referent_is_told_by_its_words(said, candidate, right):
  assert answers.referent(said, {'targets_pretokenized': candidate}) == right


def test_hidden_labels_do_not_count():
  measure = metrics.labelled(metrics.accuracy)
  assert measure([1, -1, 0], [1, 1, 1]) == {'accuracy': 50}
  assert measure([-1, -1], [0, -1]) == {}
  assert measure.needs == 'sklearn'


def test_one_sided_labels_are_measured_without_a_word():
  """Nothing of a class is no warning, which would be an error here."""
  assert metrics.f1([0, 0], [0, 0]) == {'f1': 0}
  assert metrics.f1([1, 0], [7, -1]) == {'f1': 0}
  assert metrics.matthews([1, 1], [1, 1]) == {'matthews_corrcoef': 0}
  assert metrics.mean_f1(3)([0, 1], [0, 1]) == {
    'mean_3class_f1': pytest.approx(200 / 3)
  }
  said = [0, 1, 1, 0, 1]
  assert metrics.matthews([0, 1, 0, 0, 1], said)['matthews_corrcoef'] == (
    pytest.approx(
      100 * sklearn.metrics.matthews_corrcoef([0, 1, 0, 0, 1], said)
    )
  )


@pytest.mark.parametrize(
  'targets, said',
  [([1.0, 2.0], [3.0, 3.0]), ([1.0, math.nan], [1.0, 2.0]), ([1.0], [2.0])],
)
def test_a_correlation_that_is_none_is_not_a_number(targets, said):
  assert math.isnan(metrics.pearson(targets, said)['pearson_corrcoef'])
  assert math.isnan(metrics.spearman(targets, said)['spearman_corrcoef'])


def test_a_similarity_that_is_not_a_number():
  """T5's rule: it is said as such, and makes the correlation one."""
  pair = {'sentence1': 'a', 'sentence2': 'b', 'label': math.nan}
  [row] = text.stsb(pair)
  assert row['targets'] == 'nan'
  assert math.isnan(answers.number('nan'))


# -- what goes wrong ----------------------------------------------------------


def test_a_package_that_is_missing_is_named(monkeypatch):
  monkeypatch.setitem(sys.modules, 'rouge_score', None)
  for attempt in (
    lambda: task_metrics.check_needs(metrics.rouge, 'cnn_dailymail_v002'),
    lambda: metrics.rouge(['a'], ['a']),
  ):
    with pytest.raises(errors.ConfigError) as e:
      attempt()
    assert 'got rouge_score' in str(e.value)
    assert "pip install 't5x_lite[tasks]'" in str(e.value)


def test_every_metric_says_what_it_needs():
  """So that what is missing stops a run before it starts."""
  t5 = builtin.package('t5')
  for name, make in t5.DEFINITIONS.items():
    for metric in make().metrics:
      if metric not in (
        metrics.squad,
        metrics.record,
        metrics.multirc_exact_match,
      ):
        assert metric.needs, name


def test_a_question_without_an_answer():
  with pytest.raises(errors.DataError, match='has no answer'):
    metrics.squad([['a'], []], ['a', 'b'])
  question = {'question': 'q', 'context': 'c', 'answers': {'text': []}}
  with pytest.raises(errors.DataError, match='has no answer; got q'):
    list(text.squad(question))
