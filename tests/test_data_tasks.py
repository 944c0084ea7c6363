"""Tasks of SeqIO as a user registers them, and every way they can be wrong."""

import dataclasses
import sys

import jax
import numpy as np
import pytest
import seqio
import tensorflow as tf

from t5x_lite import data
from t5x_lite import errors
from t5x_lite import evaluate
from t5x_lite import measures
from t5x_lite import models
from t5x_lite import partitioning
from t5x_lite import specs
from t5x_lite.data import task_metrics
from t5x_lite.data import vocabularies
from tests import tiny
from tests import topic_tasks

VOCABULARY = vocabularies.Bytes(extra_ids=100)
LENGTHS = {'inputs': 24, 'targets': 12}
MODEL = models.build(tiny.transformer(vocab_size=384))


def load(*names, limit=None, **settings):
  said = []
  spec = specs.Evaluation(tasks=names, **settings)
  found = data.tasks.load(spec, LENGTHS, VOCABULARY, limit, said.append)
  return *found, said


def task(name, **settings):
  [found], _, _ = load(name, **settings)
  return found


# -- reading ------------------------------------------------------------------


def test_examples_are_those_of_seqio():
  found = task('topics')
  own = seqio.get_mixture_or_task('topics').get_dataset(
    sequence_length=LENGTHS, split='validation', shuffle=False
  )
  for mine, wanted in zip(found.examples, tfds_numpy(own), strict=True):
    assert mine.keys() == wanted.keys()
    for name in wanted:
      np.testing.assert_array_equal(mine[name], wanted[name])
  assert len(found.examples) == 31
  assert found.examples[0]['inputs_pretokenized'].startswith(b'The "assert"')
  assert found.longest('inputs') == 24 and found.longest('targets') <= 12
  assert {x['targets'][-1] for x in found.examples} == {1}  # EOS after trim


def tfds_numpy(dataset):
  return list(dataset.as_numpy_iterator())


def test_a_batch_is_filled_up_with_nothing():
  found = task('topics', limit=5)
  batch = found.batch(tiny.transformer(), 3 + np.arange(4), 32, 16, 0)
  assert batch['encoder_input_tokens'].shape == (4, 32)
  assert (batch['decoder_segment_ids'].sum(1) > 0).tolist() == [
    True,
    True,
    False,
    False,
  ]
  last = found.examples[4]['targets']
  row = {name: values[1] for name, values in batch.items()}
  assert row['decoder_target_tokens'][: len(last)].tolist() == last.tolist()
  assert row['decoder_input_tokens'][0] == 0
  assert row['decoder_input_tokens'][1 : len(last)].tolist() == (
    last[:-1].tolist()
  )
  assert row['decoder_loss_weights'].sum() == len(last)


def test_mixtures_are_their_tasks_each_once():
  tasks, mixtures, said = load('topics', 'both_topics', 'some_topics')
  assert [x.name for x in tasks] == ['topics', 'topics_end']
  assert mixtures == {
    'both_topics': ['topics', 'topics_end'],
    'some_topics': ['topics'],
  }
  assert any('topics_train of some_topics has no split' in x for x in said)


def test_what_is_cut_is_told():
  def no_trim(dataset):
    return dataset.map(lambda x: x | {'inputs': tf.tile(x['inputs'], [3])})

  topic_tasks.add(
    'topics_long', preprocessors=[*topic_tasks.PREPROCESSORS, no_trim]
  )
  try:
    tasks, _, said = load('topics_long')
  finally:
    seqio.TaskRegistry.remove('topics_long')
  assert tasks[0].cut == 31 and tasks[0].longest('inputs') == 24
  assert '31 of 31 examples are cut to inputs 24, targets 12' in said[0]


def test_settings_tell_examples_apart():
  def settings(name, **options):
    return task(name, **options).settings()

  same = settings('topics')
  assert same == settings('topics')
  assert same['examples'] == 31
  for other in (
    settings('topics', limit=30),
    settings('topics_end'),
    settings('topics', lengths={'inputs': 20}),
    settings('topics', split='test'),
  ):
    assert other != same


def test_random_preprocessors_give_the_same_each_time():
  settings = task('topics_random').settings()
  assert settings == task('topics_random').settings()
  assert settings != task('topics').settings()


# -- what does not fit --------------------------------------------------------

WRONG = {
  'unknown name': (['tpics'], {}, errors.ConfigError, 'did you mean topics?'),
  'no such split': (
    ['topics'],
    {'split': 'tset'},
    errors.ConfigError,
    'validation.*did you mean test?',
  ),
  'no such split in a mixture': (
    ['both_topics'],
    {'split': 'dev'},
    errors.ConfigError,
    'no such split at both_topics; got dev',
  ),
  'no targets': (
    ['topics_no_targets'],
    {},
    errors.ConfigError,
    'no targets at topics_no_targets; got features inputs',
  ),
  'other vocabulary': (
    ['topics_other_vocabulary'],
    {},
    errors.ConfigError,
    'got 287 ids.*expected 359 ids',
  ),
  'no vocabulary': (
    ['topics_no_vocabulary'],
    {},
    errors.ConfigError,
    'got 359 ids, end 1, and None',
  ),
  'no examples': (
    ['topics_empty'],
    {},
    errors.DataError,
    "split 'validation' of a task has no example at topics_empty",
  ),
  'ids that are none': (
    ['topics_beyond'],
    {},
    errors.DataError,
    'topics_beyond, example 0; got ids 301 to 41., expected 0 to 358',
  ),
  'preprocessor that fails': (
    ['topics_breaks'],
    {},
    errors.DataError,
    'cannot read a task at topics_breaks; got KeyError',
  ),
  'metric that asks for more': (
    ['topics_aux'],
    {},
    errors.ConfigError,
    'topics_aux; got prediction_with_aux',
  ),
  'metric of other arguments': (
    ['topics_misnamed'],
    {},
    errors.ConfigError,
    "topics_misnamed; got .'targets', 'guesses'",
  ),
  'unknown length': (
    ['topics'],
    {'lengths': {'input': 8}},
    errors.ConfigError,
    'did you mean inputs?',
  ),
}


@pytest.mark.parametrize('case', WRONG)
def test_a_wrong_task_is_one_message(case):
  names, settings, kind, said = WRONG[case]
  with pytest.raises(kind, match=said):
    load(*names, **settings)


@pytest.mark.parametrize('name', ['validation', 'train'])
def test_a_task_by_the_name_of_a_split_is_refused(name):
  topic_tasks.add(name)
  try:
    with pytest.raises(errors.ConfigError, match='name of a split'):
      load(name)
  finally:
    seqio.TaskRegistry.remove(name)


def test_nothing_is_loaded_for_no_task():
  assert load() == ([], {}, [])


# -- modules ------------------------------------------------------------------


def test_a_module_of_the_current_folder_is_run(tmp_path, monkeypatch):
  (tmp_path / 'mine').mkdir()
  (tmp_path / 'mine' / 'tasks_of_mine.py').write_text('RAN = True')
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, 'path', list(sys.path))
  said = []
  data.tasks.import_modules(['mine.tasks_of_mine'], said.append)
  assert sys.modules['mine.tasks_of_mine'].RAN
  assert said == [
    f'tasks of mine.tasks_of_mine: {tmp_path}/mine/tasks_of_mine.py'
  ]


@pytest.mark.parametrize(
  'name, said',
  [
    ('no_such_module', 'no such module at --task_module=no_such_module'),
    ('json.no_such', 'no such module'),
    ('failing', 'module fails.*got ZeroDivisionError: division by zero'),
    ('needing', "module fails.*got ModuleNotFoundError: .*'not_installed'"),
    ('', "not the name of a module at --task_module; got ''"),
    ('..', 'not the name of a module'),
    ('a/b.py', 'not the name of a module.*expected words with dots'),
  ],
)
def test_a_module_that_does_not_run(tmp_path, monkeypatch, name, said):
  (tmp_path / 'failing.py').write_text('1 / 0')
  (tmp_path / 'needing.py').write_text('import not_installed')
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, 'path', list(sys.path))
  with pytest.raises(errors.ConfigError, match=said):
    data.tasks.import_modules([name], print)


# -- vocabularies -------------------------------------------------------------


def test_seqios_sentencepiece_is_ours(tmp_path):
  texts = [text for _, text in topic_tasks.TOPICS]
  path = tmp_path / 'my.model'
  ours = data.vocabulary_training.train(texts, 500, path)
  features = {
    name: seqio.Feature(seqio.SentencePieceVocabulary(str(path), 0))
    for name in ('inputs', 'targets')
  }
  topic_tasks.add('topics_pieces', output_features=features)
  try:
    spec = specs.Evaluation(tasks='topics_pieces')
    [found], _ = data.tasks.load(spec, LENGTHS, ours)
    first = ours.encode(found.examples[0]['targets_pretokenized'].decode())
    assert found.examples[0]['targets'].tolist() == [*first, ours.eos_id]
    with pytest.raises(errors.ConfigError, match='got 500 ids.*359 ids'):
      data.tasks.load(spec, LENGTHS, VOCABULARY)
  finally:
    seqio.TaskRegistry.remove('topics_pieces')


# -- measuring ----------------------------------------------------------------


@pytest.fixture(scope='module')
def params():
  """Parameters by which the end is likely, so that predictions end."""
  found = tiny.params(MODEL)
  found['logits']['kernel'][:, 359:] *= 3  # rows that stand for nothing
  found['logits']['kernel'][:, 1] *= 3
  return found


GREEDY = specs.Greedy()


def measure(params, name, devices=1, size=4, how=GREEDY, **settings):
  tasks, _, _ = load(name, **settings)
  mesh = partitioning.make_mesh(specs.Mesh(), jax.devices()[:devices])
  made = evaluate.Tasks(MODEL, tasks, VOCABULARY, mesh, size, how)
  placed = jax.device_put(params, jax.NamedSharding(mesh, jax.P()))
  with jax.set_mesh(mesh):
    return made(placed, tasks[0])


def by_hand(params, name, **settings):
  """The loss, right tokens, scores and predictions, one example at a time."""
  apply = jax.jit(MODEL.apply)

  def log_p(example, before):
    """Of what follows the start and these tokens, [13, V]."""
    decoder = np.zeros((1, 13), np.int32)
    decoder[0, 1 : len(before) + 1] = before
    inputs = np.zeros((1, 24), np.int32)
    inputs[0, : len(example['inputs'])] = example['inputs']
    batch = {
      'encoder_input_tokens': inputs,
      'encoder_segment_ids': (inputs > 0).astype(np.int32),
      'decoder_input_tokens': decoder,
      'decoder_segment_ids': np.ones_like(decoder),
    }
    logits = np.asarray(apply(params, batch), np.float64)[0]
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

  scores, right, predictions = [], [], []
  for example in task(name, **settings).examples:
    targets = example['targets']
    gains = log_p(example, targets)[np.arange(len(targets)), targets]
    scores.append(gains.sum())
    likeliest = log_p(example, targets)[: len(targets)].argmax(-1)
    right += (likeliest == targets).tolist()
    found = []
    while len(found) < 12 and 1 not in found:
      found.append(int(log_p(example, found)[len(found), :359].argmax()))
    predictions.append(topic_tasks.VOCABULARY.decode(found))
  return np.array(scores), np.mean(right), predictions


def test_metrics_are_those_of_one_example_at_a_time(params):
  """Whatever the batch and the devices, and for both kinds of metrics."""
  scores, accuracy, predictions = by_hand(params, 'topics', limit=9)
  names = [name for name, _ in topic_tasks.TOPICS[:9]]
  tokens = sum(min(len(name) + 1, 12) for name in names)
  assert len(set(predictions)) > 1
  for devices, size in ((1, 1), (1, 4), (8, 4)):
    found, lines = measure(params, 'topics', devices, size, limit=9)
    assert found['examples'] == 9 and found['tokens'] == tokens
    assert found['loss'] == pytest.approx(-scores.sum() / tokens, rel=1e-6)
    assert found['token_accuracy'] == pytest.approx(accuracy, rel=1e-9)
    assert found['mean_score'] == pytest.approx(scores.mean(), rel=1e-6)
    assert found['all'] == pytest.approx(scores, rel=1e-5)
    assert found['exact_match'] == 0 and found['predicted'] == 9
    assert found['first'] == predictions[0].lower()
    assert [line['prediction'] for line in lines] == predictions
    assert [line['targets'] for line in lines] == names
    assert lines[0]['inputs'].startswith('The "assert" statement\n***')
    assert [line['score'] for line in lines] == pytest.approx(scores, rel=1e-5)


def test_beams_and_draws_are_predictions_too(params):
  """Beams are at least as likely; draws are the same on other devices."""

  def told(how, devices=1, size=4):
    _, lines = measure(params, 'topics', devices, size, how=how, limit=9)
    return [line['prediction'] for line in lines]

  greedy = told(GREEDY)
  assert told(specs.Beam(beams=1, length_penalty=0.0)) == greedy
  sample = specs.Sample(temperature=3.0)
  assert told(sample) == told(sample, 8, 8) != greedy


def test_a_right_prediction_matches(params):
  """Postprocessed predictions meet postprocessed targets, in order."""
  found = task('topics', limit=3)
  rows = np.zeros((3, 12), np.int32)
  for n in (0, 2):
    rows[n, : len(found.examples[n]['targets'])] = found.examples[n]['targets']
  metrics, _ = found.measure(rows, np.zeros(3))
  assert metrics['exact_match'] == pytest.approx(200 / 3)


def test_without_metrics_there_are_loss_and_accuracy(params):
  found, lines = measure(params, 'topics_bare')
  assert list(found) == ['loss', 'token_accuracy', 'tokens', 'examples']
  assert list(lines[0]) == ['inputs', 'targets', 'score']


@pytest.mark.parametrize(
  'name, said',
  [
    ('topics_fails', "topics_fails; got KeyError: 'no such thing'"),
    ('topics_twice', 'one name at topics_twice; got all, mean_score'),
  ],
)
def test_a_metric_that_fails_is_named(params, name, said):
  with pytest.raises(errors.DataError, match=said):
    measure(params, name, limit=2)


def test_metric_objects(params):
  """Those of SeqIO's newer way, which see the examples themselves."""

  @dataclasses.dataclass(frozen=True)
  class Counts:
    model_output_type = seqio.metrics.ModelOutputType.PREDICTION

    def from_model_output(self, inputs, model_output, features, target_field):
      assert target_field == 'targets' and 'targets' in features
      self.seen.append((len(inputs), model_output.shape))
      return self

    seen = []

    def compute(self):
      return {'seen': self.seen[0][0]}

  topic_tasks.add('topics_objects', metric_fns=[], metric_objs=[Counts()])
  try:
    found, _ = measure(params, 'topics_objects', limit=3)
  finally:
    seqio.TaskRegistry.remove('topics_objects')
  assert found['seen'] == 3 and Counts.seen == [(3, (3, 12))]


@pytest.mark.parametrize(
  'value, wanted',
  [
    (np.float32(0.5), 0.5),
    (np.arange(2), [0, 1]),
    (jax.numpy.ones(()), 1.0),
    (seqio.metrics.Scalar(3), 3),
    (seqio.metrics.Text('a'), 'a'),
    (b'caf\xc3\xa9', 'café'),
    ((1, {2: None}), [1, {'2': None}]),
    (True, True),
    ({1}, '{1}'),
  ],
)
def test_values_are_plain(value, wanted):
  found = task_metrics.plain(value)
  assert found == wanted and type(found) is type(wanted)


def test_a_mixture_is_the_mean_of_its_tasks():
  found = measures.mean(
    [
      {'loss': 1.0, 'examples': 3, 'text': 'a', 'own': 1.0},
      {'loss': 4.0, 'examples': 4, 'text': 'b'},
    ]
  )
  assert found == {'loss': 2.5, 'examples': 7}
