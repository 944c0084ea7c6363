"""Built-in tasks with a run's vocabulary: all that a user's own task can do."""

import dataclasses
import functools
import json
import pydoc_data.topics
import sys

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t5x_lite import data
from t5x_lite import errors
from t5x_lite import specs
from t5x_lite.data import builtin
from t5x_lite.data import definitions
from t5x_lite.data import mixtures
from t5x_lite.data import seqio_vocabulary
from t5x_lite.data import tasks
from t5x_lite.data import vocabularies
from tests import runs
from tests import tiny
from tests import topic_tasks

BYTES = vocabularies.Bytes(extra_ids=100)
LENGTHS = {'inputs': 24, 'targets': 12}
SPLITS = {'train': (0, 40), 'validation': (40, 9), 'empty': (0, 0)}


def read(split, broken=None):
  first, count = SPLITS[split]
  topics = sorted(pydoc_data.topics.topics.items())[first : first + count]
  for number, (name, text) in enumerate(topics):
    if number == broken:
      raise errors.DataError('file is broken', where='line 5')
    yield {
      'inputs': f'topic: \u00e9 {text[:30]}',
      'targets': name,
      'answers': [name, name.upper()],
      'number': str(number),
    }


def postprocess(text, example=None, is_target=False):
  assert isinstance(example['number'], str)
  return example['answers'] if is_target else text


def exact_match(targets, predictions):
  found = [p in t for p, t in zip(predictions, targets, strict=True)]
  return {'exact_match': 100 * float(np.mean(found))}


def mean_score(targets, scores):
  assert len(targets) == len(scores)
  return {'mean_score': float(np.mean(scores))}


def define(name='name_topics', **changes):
  fields = {
    'splits': tuple(SPLITS),
    'read': read,
    'identity': lambda: {'manual': sys.version},
    'metrics': (exact_match, mean_score),
    'postprocess': postprocess,
  }
  return definitions.Definition(name=name, **fields | changes)


OFFERED = {
  'more_topics': {},
  'measured_topics': {'splits': ('validation',)},
  'name_topics': {},
  'plain_topics': {'postprocess': None, 'metrics': (mean_score,)},
  'broken_topics': {'read': functools.partial(read, broken=5)},
}
MIXTURES = {
  'builtin_topics': {'name_topics': None, 'plain_topics': 3},
  'builtin_partly': {
    'name_topics': None,
    'plain_topics': 0,
    'measured_topics': 5,
    'more_topics': 2.5,
  },
  'builtin_measured': {'plain_topics': 0, 'measured_topics': 5},
  'builtin_nested': {'builtin_topics': 1, 'topics': 2},
}


@pytest.fixture(autouse=True)
def offered(monkeypatch):
  """What is built in, in these tests; gone from SeqIO after each."""
  found = builtin.package('supervised')
  made = {x: functools.partial(define, x, **OFFERED[x]) for x in OFFERED}
  monkeypatch.setattr(found, 'DEFINITIONS', made)
  monkeypatch.setattr(found, 'MIXTURES', MIXTURES)
  yield
  for name in (*OFFERED, *MIXTURES):
    seqio.TaskRegistry.remove(name)
    seqio.MixtureRegistry.remove(name)


def load(*names, vocabulary=BYTES, **settings):
  spec = specs.Evaluation(tasks=names, **settings)
  return tasks.load(spec, LENGTHS, vocabulary, say=lambda line: None)


def test_what_is_read_is_tokens_of_the_runs_vocabulary():
  [task], _ = load('name_topics')
  wanted = list(read('validation'))
  assert len(task.examples) == len(wanted) == 9
  for example, row in zip(task.examples, wanted):
    for side in ('inputs', 'targets'):
      ids = [*BYTES.encode(row[side]), BYTES.eos_id][: LENGTHS[side]]
      assert example[side].tolist() == ids
      assert example[f'{side}_pretokenized'].decode() == row[side]
  assert task.predicts and task.cut == 9


@pytest.mark.parametrize('split', ['train', 'empty'])
def test_without_tensorflow_the_same_is_read(split, monkeypatch):
  monkeypatch.setattr(builtin, '_ROWS', 7)
  task = tasks.find('name_topics', 'here', BYTES)
  wanted = task.get_dataset(split=split, shuffle=False).as_numpy_iterator()
  for mine, own in zip(builtin.examples(task, split), wanted, strict=True):
    assert mine.keys() == own.keys()
    for name, value in own.items():
      assert type(mine[name]) is type(value)
      np.testing.assert_array_equal(mine[name], value)
      if isinstance(value, np.ndarray):
        assert mine[name].dtype == value.dtype


def predicted(texts):
  """What a model says, int32 [N, L]."""
  rows = [[*BYTES.encode(text), BYTES.eos_id] for text in texts]
  longest = max(map(len, rows))
  return np.array([row + [0] * (longest - len(row)) for row in rows])


def test_metrics_see_texts_and_lists_of_texts():
  [task], _ = load('name_topics')
  right = [x['targets'] for x in read('validation')]
  metrics, lines = task.measure(predicted(right), np.zeros(9))
  assert metrics == {'exact_match': 100, 'mean_score': 0}
  assert lines[0]['prediction'] == lines[0]['targets']
  loud = [x.upper() for x in right[:8]]
  metrics, _ = task.measure(predicted([*loud, 'wrong']), np.ones(9))
  assert metrics['exact_match'] == pytest.approx(100 * 8 / 9)


def test_mixtures_and_their_rates():
  found, mixtures = load('builtin_topics', 'plain_topics')
  assert [x.name for x in found] == ['name_topics', 'plain_topics']
  assert mixtures == {'builtin_topics': ['name_topics', 'plain_topics']}
  mixture = tasks.find('builtin_topics', 'here', BYTES)
  rates = {x.name: mixture.get_rate(x) for x in seqio.get_subtasks(mixture)}
  assert rates == {'name_topics': 40, 'plain_topics': 3}


def of_mixture(name):
  run = a_run()
  spec = dataclasses.replace(run.data, task=None, mixture=name)
  return dataclasses.replace(run, data=spec)


def test_what_is_for_evaluation_is_not_trained_on():
  run = of_mixture('builtin_partly')
  assert [*data.parts(run, BYTES)] == ['more_topics', 'name_topics']
  counts = {'more_topics': 7, 'name_topics': 40}
  rates = mixtures.rates(run, counts, BYTES)
  assert rates == {'more_topics': 2.5, 'name_topics': 40}
  _, measured = load('builtin_partly')
  assert len(measured['builtin_partly']) == 4
  with pytest.raises(errors.ConfigError, match='got builtin_measured'):
    data.parts(of_mixture('builtin_measured'), BYTES)


def test_a_mixture_of_mixtures_and_of_a_users_tasks():
  nested = tasks.find('builtin_nested', 'here', BYTES)
  names = sorted(x.name for x in seqio.get_subtasks(nested))
  assert names == ['name_topics', 'plain_topics', 'topics']


def test_another_vocabulary_replaces_a_task():
  def size(vocabulary):
    [task], _ = load('name_topics', vocabulary=vocabulary)
    return task.examples[0]['inputs'].size, vocabulary.size

  first = tasks.find('name_topics', 'here', BYTES)
  assert tasks.find('name_topics', 'here', BYTES) is first
  assert size(BYTES) == (24, 359)
  assert size(vocabularies.Bytes(extra_ids=7)) == (24, 266)
  assert size(BYTES) == (24, 359)
  mixtures = [
    tasks.find('builtin_topics', 'here', vocabularies.Bytes(extra_ids=n))
    for n in (7, 8)
  ]
  sizes = [
    {x.output_features['inputs'].vocabulary.vocab_size for x in mixture.tasks}
    for mixture in mixtures
  ]
  assert sizes == [{266}, {267}]


def test_a_registered_name_hides_one_that_is_built_in():
  topic_tasks.add('name_topics')
  said = []
  found = tasks.find('name_topics', 'here', BYTES, said.append)
  assert found.source.splits == ('validation', 'test')
  assert 'name_topics' in said[0] and 'built in' in said[0]
  mixture = tasks.find('builtin_topics', 'here', BYTES)
  assert found in mixture.tasks and builtin.definition(found) is None


def test_an_unknown_name_lists_both_kinds():
  with pytest.raises(errors.ConfigError) as e:
    tasks.find('plain_topcis', 'Data.task', BYTES)
  for word in ('plain_topcis', 'mean plain_topics?', 'topics_end', 'broken_'):
    assert word in str(e.value)
  with pytest.raises(errors.ConfigError, match='mean topics_end?'):
    tasks.find('topics_ned', 'Data.task', BYTES)


def test_what_a_reader_says_arrives_whole():
  for broken in (0, 5):
    definition = functools.partial(
      define, 'broken_topics', read=functools.partial(read, broken=broken)
    )
    builtin.package('supervised').DEFINITIONS['broken_topics'] = definition
    seqio.TaskRegistry.remove('broken_topics')
    with pytest.raises(errors.DataError) as e:
      load('broken_topics')
    assert str(e.value) == 'file is broken at line 5'


@pytest.mark.parametrize(
  'rows, message',
  [
    ([{'inputs': 'a'}], 'differ in their entries.*got inputs'),
    ([{'inputs': 'a', 'targets': 'b'}] * 2 + [{'inputs': 'a'}], 'expected inp'),
    ([], "split 'validation' of a task has no example"),
  ],
)
def test_readers_that_go_wrong(rows, message, monkeypatch):
  made = functools.partial(define, read=lambda split: iter(rows), metrics=())
  monkeypatch.setitem(
    builtin.package('supervised').DEFINITIONS, 'name_topics', made
  )
  with pytest.raises(errors.DataError, match=message):
    load('name_topics')


def redefine(**changes):
  """Another task by the name of name_topics."""
  made = functools.partial(define, **changes)
  builtin.package('supervised').DEFINITIONS['name_topics'] = made
  seqio.TaskRegistry.remove('name_topics')


def a_run():
  lengths = {'inputs': 64, 'targets': 32}
  return tiny.run(
    model=tiny.transformer(vocab_size=384),
    objective=specs.Supervised(),
    data=specs.Data(task='name_topics', lengths=lengths),
  )


def test_it_is_stored_and_read():
  run = a_run()
  origin = data.origin(run, BYTES)
  store = data.open_or_build(run.data, BYTES, None, origin)
  for split in ('train', 'validation'):
    found = data.Batches(run, {'name_topics': store}, BYTES, split)
    wanted = list(read(split))
    assert found.num_examples == len(wanted)
    batch = next(found.evaluation(len(wanted)))
    for stack, side in (
      ('encoder_input', 'inputs'),
      ('decoder_target', 'targets'),
    ):
      rows = batch[f'{stack}_tokens']
      texts = [BYTES.decode(row[row > 1]) for row in rows]
      assert texts == [x[side] for x in wanted]


def test_another_source_or_other_code_is_another_store():
  def identity(**changes):
    redefine(**changes)
    return json.dumps(data.origin(a_run(), BYTES).identity())

  first = identity()
  assert 'manual' in first and 'test_data_builtin' in first
  assert first == identity() != identity(identity=lambda: {'manual': 2})
  assert first != identity(read=functools.partial(read, broken=3))


def test_the_wrapped_vocabulary_is_the_same_in_tensorflow():
  for own in (BYTES, vocabularies.Bytes(extra_ids=0)):
    wrapped = seqio_vocabulary.wrapped(own)
    assert (
      wrapped
      == seqio_vocabulary.wrapped(own)
      != seqio_vocabulary.wrapped(vocabularies.Bytes(extra_ids=3))
    )
    assert wrapped.vocab_size == own.size
    for text in ('', 'nul\0', 'b\u00e9e <extra_id_0> \U0001f600', 'x' * 3000):
      ids = own.encode(text).tolist()
      assert wrapped.encode(text) == ids
      assert wrapped.encode_tf(tf.constant(text)).numpy().tolist() == ids
      ends = [*ids, own.eos_id, 70]
      assert wrapped.decode(ends) == own.decode(ids)
      found = wrapped.decode_tf(tf.constant(ends)).numpy().decode()
      assert found == own.decode(ids)


def test_to_ask_what_there_is_loads_no_library():
  code = (
    'import sys; from t5x_lite.data import builtin; builtin.names();'
    'print({"tensorflow", "seqio", "tensorflow_datasets", "sklearn"}'
    ' & set(sys.modules))'
  )
  assert runs.printed(code).strip() == 'set()'
