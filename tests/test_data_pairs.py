"""Inputs and targets: of JSON lines and of SeqIO tasks, to batches."""

import collections
import json
import re
import sys
import types

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t5x_lite import config
from t5x_lite import data
from t5x_lite import errors
from t5x_lite import specs
from t5x_lite.data import building
from t5x_lite.data import pairs
from t5x_lite.data import vocabularies
from tests import tiny
from tests import topic_tasks

VOCABULARY = vocabularies.Bytes(extra_ids=100)
EOS = VOCABULARY.eos_id
WORDS = [
  ('one', 'eins'), ('two', 'zwei'), ('three', 'drei'), ('four', 'vier'),
  ('five', 'fünf'), ('six', ''), ('seventeen', 'siebzehn'), ('two', 'beide'),
]  # fmt: skip
LENGTHS = {'inputs': 12, 'targets': 6}


def ids(text):
  return VOCABULARY.encode(text).tolist()


def write(folder, lines=None, name='words.jsonl'):
  if lines is None:
    lines = [{'inputs': x, 'targets': y, 'n': 1} for x, y in WORDS]
  file = folder / name
  texts = [x if isinstance(x, str) else json.dumps(x) for x in lines]
  file.write_text('\n'.join(texts) + '\n')
  return str(file)


def a_run(model=None, objective=None, **fields):
  fields = {'lengths': LENGTHS, 'held_out': 0.0} | fields
  return tiny.run(
    model=tiny.transformer(vocab_size=384),
    objective=objective or specs.Supervised(),
    data=specs.Data(**fields),
  )


def store(run):
  return data.open_or_build(
    run.data, VOCABULARY, None, data.origin(run, VOCABULARY)
  )


def examples(run, split='train'):
  stores = {run.data.corpus or run.data.task: store(run)}
  return data.Batches(run, stores, VOCABULARY, split)


def rows(batch):
  """(inputs, targets) of each row, as lists of ids without padding."""
  return [
    (
      batch['encoder_input_tokens'][n][
        batch['encoder_segment_ids'][n] > 0
      ].tolist(),
      batch['decoder_target_tokens'][n][
        batch['decoder_loss_weights'][n] > 0
      ].tolist(),
    )
    for n in range(len(batch['encoder_input_tokens']))
  ]


def said(run):
  """What stops the making of examples."""
  with pytest.raises(errors.UserError) as found:
    examples(run)
  return str(found.value)


# -- JSON lines ---------------------------------------------------------------


def test_each_pair_once_an_epoch_in_another_order(tmp_path):
  found = examples(a_run(corpus=write(tmp_path)))
  assert found.num_examples == len(WORDS)
  wanted = [([*ids(x)[:11], EOS], [*ids(y)[:5], EOS]) for x, y in WORDS]
  epochs = [rows(found.at(8 * n, 8)) for n in range(3)]
  for epoch in epochs:
    assert sorted(epoch) == sorted(wanted)
  assert epochs[0] != epochs[1] != epochs[2]
  # Any place, with any neighbours and by any process.
  assert rows(found.at(5, 9)) == [*epochs[0][5:], *epochs[1][:6]]
  assert rows(found.at(0, 8, np.array([6, 2]))) == [epochs[0][6], epochs[0][2]]
  assert rows(next(found.evaluation(8))) == wanted


def test_the_batch_is_that_of_teacher_forcing(tmp_path):
  batch = next(examples(a_run(corpus=write(tmp_path))).evaluation(8))
  assert batch['encoder_input_tokens'].shape == (8, 12)
  assert batch['decoder_input_tokens'][0][:5].tolist() == [0, *ids('eins')]
  assert batch['decoder_target_tokens'][0].tolist() == [*ids('eins'), EOS, 0]
  assert batch['decoder_loss_weights'][0].tolist() == [1, 1, 1, 1, 1, 0]
  # An empty target is its EOS.
  assert batch['decoder_target_tokens'][5].tolist() == [EOS, 0, 0, 0, 0, 0]


@pytest.mark.parametrize('mask', ['causal', 'prefix'])
def test_a_decoder_alone_reads_inputs_and_targets_in_one_row(tmp_path, mask):
  run = a_run(corpus=write(tmp_path))
  model = tiny.transformer(encoder_layers=0, mask=mask, vocab_size=384)
  found = examples(tiny.replace(run, model=model))
  batch = next(found.evaluation(8))
  first = {name: x[0].tolist() for name, x in batch.items()}
  text = [*ids('one'), EOS, *ids('eins'), EOS]
  assert first['decoder_input_tokens'][:9] == [0, *text[:-1]]
  assert first['decoder_target_tokens'][:9] == text
  assert first['decoder_loss_weights'] == [0] * 4 + [1] * 5 + [0] * 9
  if mask == 'prefix':
    assert first['decoder_bidirectional_mask'] == [1] * 5 + [0] * 13
  else:
    assert 'decoder_bidirectional_mask' not in first
  assert 'encoder_input_tokens' not in first


def test_what_is_too_long_is_cut_before_its_eos_and_told(tmp_path):
  run = a_run(corpus=write(tmp_path), lengths={'inputs': 4, 'targets': 3})
  found = examples(run)
  last = rows(next(found.evaluation(8)))[6]
  assert last == ([*ids('sev'), EOS], [*ids('si'), EOS])
  assert list(found.notes()) == [
    'inputs of 4 of 8 pairs are cut to 4 tokens; Data.lengths sets it',
    'targets of 7 of 8 pairs are cut to 3 tokens; Data.lengths sets it',
  ]
  assert not list(
    examples(
      a_run(corpus=write(tmp_path), lengths={'inputs': 10, 'targets': 9})
    ).notes()
  )


def test_a_prefix_goes_before_the_inputs(tmp_path):
  prefix = 'translate English to German: '
  run = a_run(
    corpus=write(tmp_path), prefix=prefix, lengths=LENGTHS | {'inputs': 50}
  )
  first = rows(next(examples(run).evaluation(8)))[0]
  assert first == ([*ids(prefix + 'one'), EOS], [*ids('eins'), EOS])
  plain = a_run(corpus=run.data.corpus)
  assert store(run).folder != store(plain).folder


def test_fields_by_other_names_and_a_delimiter_between_inputs(tmp_path):
  lines = [
    {'a': 'x', 'b': 'yz', 'label': 'no'},
    {'a': '', 'b': '', 'label': ''},
  ]
  run = a_run(corpus=write(tmp_path, lines), pair=('a', 'b', 'label'))
  found = rows(next(examples(run).evaluation(2)))
  between = VOCABULARY.sentinel(1)
  assert found == [
    ([*ids('x'), between, *ids('yz'), EOS], [*ids('no'), EOS]),
    ([between, EOS], [EOS]),
  ]
  assert config.load(
    ['t5/bytes'], ['Data.corpus=x', 'Data.pair=a,b,label']
  ).data.pair == ('a', 'b', 'label')


def test_equal_inputs_are_held_out_together(tmp_path):
  lines = [{'inputs': f'{n % 40}', 'targets': f'{n}'} for n in range(200)]
  run = a_run(corpus=write(tmp_path, lines), held_out=0.3)
  splits = {}
  for split in ('train', 'validation'):
    found = examples(run, split)
    splits[split] = rows(next(found.evaluation(found.num_examples)))
  texts = {
    split: {tuple(x) for x, _ in found} for split, found in splits.items()
  }
  assert not texts['train'] & texts['validation']
  assert sum(map(len, splits.values())) == 200
  assert 0.1 < len(splits['validation']) / 200 < 0.5
  # A share too small for any: the one of the lowest hash, with all its targets.
  run = a_run(corpus=run.data.corpus, held_out=1e-9)
  assert examples(run, 'validation').num_examples == 5


def test_a_vocabulary_of_pairs_is_made_of_both_sides(tmp_path):
  run = a_run(corpus=write(tmp_path))
  texts = collections.Counter(pairs.texts(run))
  assert texts == collections.Counter([x for pair in WORDS for x in pair])


@pytest.mark.parametrize(
  'lines, what',
  [
    (['{"inputs": 3, "targets": "x"}'], "no text in field 'inputs'.*:1.*int"),
    (['{"inputs": "x"}'], "no text in field 'targets'.*fields 'inputs'.*pair="),
    (['', '[]'], r'not an object.*:2.*expected {"inputs": "...", "targets"'),
    (['{"inputs": '], 'not a line of JSON'),
    ([''], 'no pair to train on.*got none'),
  ],
)
def test_wrong_lines(tmp_path, lines, what):
  text = said(a_run(corpus=write(tmp_path, lines)))
  assert re.search(what, text), text


def test_wrong_corpora(tmp_path):
  text = said(a_run(corpus=write(tmp_path, name='words.txt')))
  assert 'corpus has no pairs of inputs and targets' in text
  text = said(
    a_run(
      corpus=write(tmp_path, 3 * [{'inputs': 'a', 'targets': 'b'}]),
      held_out=0.1,
    )
  )
  assert 'no pair to train on' in text and '3 pairs, all of the same' in text


@pytest.mark.parametrize(
  'fields, what',
  [
    ({}, 'none of Data.corpus, Data.task and Data.mixture is set'),
    ({'corpus': 'a', 'task': 'b'}, 'Data.corpus and Data.task are both set'),
    ({'corpus': 'a', 'pair': ('x',)}, 'wrong value for Data.pair'),
    ({'task': 'a', 'prefix': 'b: '}, 'Data.prefix is of a corpus'),
  ],
)
def test_wrong_settings(fields, what):
  with pytest.raises(errors.ConfigError, match=what):
    specs.Data(lengths=LENGTHS, **fields)


def test_lengths_that_are_not_those_of_pairs(tmp_path):
  file = write(tmp_path)
  text = said(a_run(corpus=file, lengths={'inputs': 3}))
  assert "no 'targets', which Supervised needs" in text


def test_pairs_survive_a_store_that_was_cut(tmp_path):
  run = a_run(corpus=write(tmp_path))
  found = store(run)
  [file] = (found.folder / 'train').glob('pairs.*')
  with open(file, 'r+b') as f:
    f.truncate(10)
  with pytest.raises(errors.DataError, match='tokenised corpus is damaged'):
    store(run)


# -- tasks --------------------------------------------------------------------


def make(name, train=20, validation=7, **changes):
  splits = {'train': (0, train)}
  if validation:
    splits['validation'] = (train, validation)

  def dataset(split, shuffle_files, seed=None):
    first, count = splits[split]
    return topic_tasks.examples(split, shuffle_files, seed, count, first)

  source = seqio.FunctionDataSource(dataset, splits=list(splits))
  topic_tasks.add(name, **{'source': source} | changes)


@pytest.fixture
def registered():
  """Adds tasks that are gone after the test."""
  names = []

  def add(name, **changes):
    names.append(name)
    make(name, **changes)

  yield add
  for name in names:
    seqio.TaskRegistry.remove(name)


def task_run(name='pairs', **fields):
  return a_run(task=name, **{'lengths': {'inputs': 24, 'targets': 12}} | fields)


def prefixed(dataset):
  return dataset.map(lambda x: x | {'inputs': 'topic: ' + x['inputs']})


def test_a_users_task_trains_unchanged(registered):
  registered('pairs', preprocessors=[prefixed, *topic_tasks.PREPROCESSORS])
  run = task_run()
  for split, count in (('train', 20), ('validation', 7)):
    own = seqio.get_mixture_or_task('pairs').get_dataset(
      sequence_length=run.data.lengths, split=split, shuffle=False
    )
    wanted = [
      (x['inputs'].tolist(), x['targets'].tolist())
      for x in own.as_numpy_iterator()
    ]
    found = examples(run, split)
    assert found.num_examples == count == len(wanted)
    assert rows(next(found.evaluation(count))) == wanted
  assert VOCABULARY.decode(wanted[0][0]).startswith('topic: ')
  # Its own lengths make other tokens of it.
  shorter = task_run(lengths={'inputs': 8, 'targets': 12})
  assert store(shorter).folder != store(run).folder


def test_a_task_without_validation_has_some_held_out(registered):
  registered('pairs', validation=0)
  run = task_run(held_out=0.3)
  counts = [examples(run, x).num_examples for x in ('train', 'validation')]
  assert sum(counts) == 20 and min(counts) > 0


def test_levanter_633_other_python_is_another_store(
  registered, tmp_path, monkeypatch
):
  """A store is made anew when the file of a task's functions has changed."""
  module = types.ModuleType('users_own')
  module.__file__ = str(tmp_path / 'users_own.py')
  monkeypatch.setitem(sys.modules, 'users_own', module)

  def shout(dataset):
    return dataset.map(lambda x: x | {'inputs': tf.strings.upper(x['inputs'])})

  shout.__module__ = 'users_own'
  registered('pairs', preprocessors=[shout, *topic_tasks.PREPROCESSORS])
  folders = []
  for text in ('one', 'two', 'one'):
    (tmp_path / 'users_own.py').write_text(text)
    folders.append(store(task_run()).folder)
  assert folders[0] == folders[2] != folders[1]


def test_other_examples_of_the_same_python_are_another_fingerprint(registered):
  registered('pairs')
  run = task_run()
  first = examples(run)
  # What the task reads is not among what its name hangs on.
  building.storage.path(store(run).folder).rmtree()
  found = store(run)
  assert examples(run).fingerprint == first.fingerprint
  manifest = found.manifest
  manifest['splits']['train']['arrays']['tokens']['shards'][0]['sha256'] = 'x'
  assert found.content() != data.Store(found.folder).content()


@pytest.mark.parametrize(
  'name, what',
  [
    ('nothing', 'no such task or mixture at Data.task'),
    ('both_topics', 'Data.task is a mixture'),
    ('topics', 'task has no such split.*got train'),
    ('topics_other_vocabulary', 'vocabulary of a task is not that of the run'),
    ('topics_no_targets', 'task has no targets'),
  ],
)
def test_wrong_tasks(name, what):
  with pytest.raises(errors.ConfigError, match=what):
    data.origin(task_run(name), VOCABULARY)


def test_a_task_that_breaks_while_it_is_read(registered):
  registered('pairs', preprocessors=[topic_tasks.breaks])
  assert 'cannot read a task at pairs' in said(task_run())


def test_a_task_is_no_text(registered):
  registered('pairs')
  run = tiny.run(
    model=tiny.transformer(vocab_size=384),
    data=specs.Data(task='pairs', lengths={'inputs': 24}),
  )
  with pytest.raises(
    errors.ConfigError, match='SpanCorruption learns from text'
  ):
    data.check(run, VOCABULARY)
  with pytest.raises(errors.ConfigError, match='a task has its vocabulary'):
    next(pairs.texts(task_run()))


def test_rows_are_as_wide_as_the_longest_needs(tmp_path):
  """Also where all inputs or all targets of them are empty, without an EOS."""
  found = examples(a_run(corpus=write(tmp_path), store=str(tmp_path / 'st')))
  pairs = found.parts[next(iter(found.parts))]._units._pairs
  inputs, inputs_B, targets, targets_B = pairs.pairs([0, 3], (12, 6), True)
  assert inputs.shape == (2, 5) and targets.shape == (2, 5)  # and their EOS
  assert inputs_B.tolist() == [4, 5] and targets_B.tolist() == [5, 5]
  wide = pairs.pairs([0, 3], (12, 6))
  assert (wide[0][:, :5] == inputs).all() and not wide[0][:, 5:].any()
  pairs.bounds = lambda index_B: np.zeros((len(index_B), 3), int)
  empty = pairs.pairs([0, 3], (12, 6), True)
  assert empty[0].shape == empty[2].shape == (2, 1)
  assert not empty[1].any() and not empty[3].any()
