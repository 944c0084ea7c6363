"""T5's tasks: texts, metrics and mixtures are those of T5's own package."""

import json
import pathlib

import pytest

from t5x_lite import errors
from t5x_lite.data import builtin
from tests import t5_cases

GOLDEN = json.loads(
  (pathlib.Path(__file__).parent / 'golden/t5_tasks.json').read_text()
)
metrics = builtin.package('metrics')
answers = builtin.package('answers')
t5 = builtin.package('t5')
text = builtin.package('t5_text')


def preprocess(name):
  """The function of a task from examples to pairs."""
  return t5.DEFINITIONS[name]().read.args[1]


def made(name, examples):
  return [row for x in examples for row in preprocess(name)(x)]


def measured(name, rows):
  """The metrics of what `t5_cases.predictions` says."""
  definition = t5.DEFINITIONS[name]()
  rows = [row for row in rows if row['targets'] != '<unk>']
  targets = [row['targets'] for row in rows]
  postprocess = definition.postprocess or (lambda text, **_: text)
  compared = [
    [
      postprocess(
        x,
        example=row | {'targets_pretokenized': row['targets']},
        is_target=is_target,
      )
      for x, row in zip(texts, rows)
    ]
    for is_target, texts in (
      (True, targets),
      (False, t5_cases.predictions(targets)),
    )
  ]
  found = {}
  for metric in definition.metrics:
    found |= metric(*compared)
  return found


def same(found, wanted):
  assert found.keys() == wanted.keys()
  for name, value in wanted.items():
    assert isinstance(found[name], float)
    assert found[name] == pytest.approx(value, abs=1e-9, nan_ok=True), name


def check(name, examples, wanted):
  """Compares a task with what T5 makes of it."""
  rows = made(name, examples)
  assert [[x['inputs'], x['targets']] for x in rows] == wanted['pairs']
  same(measured(name, rows), wanted['metrics'])


@pytest.mark.parametrize('name', t5_cases.EXAMPLES)
def test_pairs_and_metrics_are_those_of_t5(name):
  check(name, t5_cases.EXAMPLES[name], GOLDEN['tasks'][name])


@pytest.mark.parametrize('name', t5_cases.METRICS)
def test_metrics_are_those_of_t5(name):
  _, targets, predictions = t5_cases.METRICS[name]
  same(getattr(metrics, name)(targets, predictions), GOLDEN['metrics'][name])


def test_every_task_is_compared():
  assert t5.DEFINITIONS.keys() - GOLDEN['tasks'].keys() == {'xsum'}


@pytest.mark.parametrize('name', GOLDEN['mixtures'])
def test_mixtures_are_those_of_t5(name):
  assert t5.MIXTURES[name] == GOLDEN['mixtures'][name]


def test_the_mixture_of_all_has_every_task_it_can_train_on():
  [mixture] = [t5.MIXTURES['supervised_proportional']]
  assert mixture.keys() < t5.DEFINITIONS.keys()
  assert mixture['glue_rte_v002'] == mixture['super_glue_rte_v102'] == 1245
  assert mixture['squad_v010_allanswers'] is None


def test_a_pronoun_that_is_not_where_it_should_be():
  """As T5 mends two examples of WSC: punctuation is set off, too."""

  def wsc(words, at, pronoun):
    example = {'text': words, 'span1_text': 'Ann', 'label': 1}
    example |= {'span2_text': pronoun, 'span2_index': at}
    [row] = text.wsc(example, only_right=True)
    return row['inputs']

  assert wsc('It fell. Ann said: "Take her," and left. ', 5, 'her') == (
    'wsc: It fell. Ann said: "Take *her* ," and left.'
  )
  assert wsc('it is Ann who wants to use it now', 6, 'it') == (
    'wsc: it is Ann who wants to use *it* now'
  )
  for at, pronoun, message in (
    (0, 'it', 'place of a pronoun.*got 0'),
    (9, 'it', 'place of a pronoun.*got 9, expected 1 to 3'),
    (1, 'they', 'pronoun is not in its text.*got they'),
  ):
    with pytest.raises(errors.DataError, match=message):
      wsc('Ann has it now', at, pronoun)
