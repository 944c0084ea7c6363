"""Built-in tasks read a real TensorFlow dataset, and one that is made up."""

import json
import pathlib
import pydoc_data.topics
import re
import shlex

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from tensorflow_datasets.core import constants

from t5x_lite import errors
from t5x_lite import specs
from t5x_lite.data import builtin
from t5x_lite.data import tasks
from t5x_lite.data import vocabularies
from tests import runs

reading = builtin.package('tfds_reading')
t5 = builtin.package('t5')
LABELS = ('entailment', 'not_entailment')  # of RTE
SPLITS = {'train': range(0, 20), 'validation': range(20, 26), 'test': range(3)}


def example(number, split='train'):
  """Two passages of Python's manual, and whether they are of one topic."""
  texts = [text for _, text in sorted(pydoc_data.topics.topics.items())]
  first, same = texts[number], number % 2
  return {
    'sentence1': first[:20],
    'sentence2': first[20:40] if same else texts[-number - 1][20:40],
    'label': -1 if split == 'test' else same,
    'idx': number,
  }


def build(folder, examples=example, version='1.5.0'):
  """A dataset in the form of RTE's, as `tfds build` makes it."""

  class Glue(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    VERSION = tfds.core.Version(version)
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name='rte')]

    def _info(self):
      label = tfds.features.ClassLabel(names=LABELS)
      text = tfds.features.Text()
      features = {'sentence1': text, 'sentence2': text}
      features |= {'label': label, 'idx': tf.int32}
      features = tfds.features.FeaturesDict(features)
      return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
      return {split: self._generate_examples(split) for split in SPLITS}

    def _generate_examples(self, split):
      for number in SPLITS[split]:
        yield number, examples(number, split)

  Glue(data_dir=str(folder), config='rte').download_and_prepare()


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  found = tmp_path_factory.mktemp('tfds')
  build(found)
  return found


@pytest.fixture
def here(folder, monkeypatch):
  """TensorFlow Datasets looks there, as by TFDS_DATA_DIR."""
  monkeypatch.setattr(constants, 'DATA_DIR', str(folder))


START = (
  'train',
  '--gin_file=t5/quickstart',
  '--gin.Run.objective=@Supervised()',
  '--gin.Data.corpus=None',
  '--gin.Data.document=None',
  '--gin.Data.vocabulary=bytes',
)


def read(name, split='train'):
  return list(t5.DEFINITIONS[name]().read(split))


def test_a_real_dataset_of_whichever_version(here):
  rows = read('glue_rte_v002', 'validation')
  wanted = {
    'rte sentence1: {sentence1} sentence2: {sentence2}'.format(**x): LABELS[
      x['label']
    ]
    for x in map(example, SPLITS['validation'])
  }
  assert {x['inputs']: x['targets'] for x in rows} == wanted
  assert rows == read('glue_rte_v002', 'validation')
  assert {x['targets'] for x in read('glue_rte_v002', 'test')} == {'<unk>'}
  definition = t5.DEFINITIONS['glue_rte_v002']()
  assert definition.identity() == {'tfds': 'glue/rte/1.5.0'}


def test_a_newer_version_is_another_identity(tmp_path, monkeypatch):
  monkeypatch.setattr(constants, 'DATA_DIR', str(tmp_path))
  found = []
  for version in ('1.5.0', '1.11.0'):
    build(tmp_path, version=version)
    found.append(t5.DEFINITIONS['glue_rte_v002']().identity()['tfds'])
  assert found == ['glue/rte/1.5.0', 'glue/rte/1.11.0']


def shown():
  """The module of docs/tasks.md, and its commands."""
  page = pathlib.Path(__file__).parents[1] / 'docs/tasks.md'
  text = page.read_text().replace('\\\n', ' ')
  [module] = re.findall(r'```python\n(.*?)```', text, re.S)
  blocks = re.findall(r'```sh\n(.*?)```', text, re.S)
  return module, [
    shlex.split(x) for block in blocks for x in block.splitlines()
  ]


@pytest.mark.slow
def test_the_page_on_tasks_is_true(here, command, tmp_path, monkeypatch):
  """Its commands run; what is trained on is built in, and a user's own."""
  monkeypatch.chdir(tmp_path)
  module, lines = shown()
  (tmp_path / 'my_tasks.py').write_text(module)
  build, train, measure, train_own, measure_own = lines
  assert build == ['tfds', 'build', 'glue/rte']  # as `here` has done
  small = [x for x in runs.options(Run__steps=2) if 'lengths' not in x]
  small += [f'--gin.Transformer.{x}coder_layers=1' for x in ('en', 'de')]
  assert 'tokenised glue_rte_v002' in command(*train[1:], *small)
  # What differs from that one is its data.
  assert 'my_topics' in command(*train_own[1:], *small, '--dry_run')
  # Both at once, which compile one program.
  assert measure[:-1] == measure_own[:-2]
  tasks = ','.join(x[3].partition('=')[2] for x in (measure, measure_own))
  said = command(*measure[1:3], f'--tasks={tasks}', measure_own[-1])
  assert 'accuracy' in said and 'exact_match' in said
  folder = tmp_path / 'runs/rte/evaluation'
  counts = {'loss', 'token_accuracy', 'tokens', 'examples'}
  for name, metric, examples in (
    ('glue_rte_v002', 'accuracy', len(SPLITS['validation'])),
    ('my_topics', 'exact_match', 20),
  ):
    found = json.loads((folder / f'{name}-2.json').read_text())['metrics']
    assert found.keys() == counts | {metric}
    assert found['examples'] == examples


def test_the_page_names_what_is_built_in():
  page = pathlib.Path(__file__).parents[1] / 'docs/tasks.md'
  named = set(re.findall(r'`(\w+)`', page.read_text()))
  assert t5.DEFINITIONS.keys() | t5.MIXTURES.keys() <= named
  like = {x for x in named if re.search(r'_v\d{3}|_proportional$', x)}
  assert like <= t5.DEFINITIONS.keys() | t5.MIXTURES.keys()


def test_hidden_labels_are_predicted_and_not_measured(here):
  spec = specs.Evaluation(tasks=('glue_rte_v002',), split='test')
  lengths = {'inputs': 96, 'targets': 16}
  vocabulary = vocabularies.Bytes(extra_ids=100)
  [task], _ = tasks.load(spec, lengths, vocabulary)
  said = np.array([[*vocabulary.encode('entailment'), 1]] * 3)
  found, lines = task.measure(said, np.zeros(3))
  assert found == {}
  assert {x['prediction'] for x in lines} == {'entailment'}


# -- what goes wrong ----------------------------------------------------------


@pytest.mark.parametrize('name', t5.DEFINITIONS)
def test_a_dataset_that_is_not_there_is_named(name, monkeypatch, tmp_path):
  monkeypatch.setattr(constants, 'DATA_DIR', str(tmp_path))
  definition = t5.DEFINITIONS[name]()
  dataset = definition.read.args[0]
  with pytest.raises(errors.DataError) as e:
    next(definition.read(definition.splits[0]))
  assert f'fix: `tfds build {dataset}`' in str(e.value)
  assert 'TFDS_DATA_DIR' in str(e.value)


def test_a_run_on_a_dataset_that_is_not_there(command, monkeypatch, tmp_path):
  monkeypatch.setattr(constants, 'DATA_DIR', str(tmp_path))
  settings = ['--gin.Data.task=glue_rte_v002', f'--workdir={tmp_path / "run"}']
  said = command(*START, *settings, *runs.options(), code=3)
  assert '`tfds build glue/rte`' in said and len(said.splitlines()) < 3


def test_examples_that_are_not_as_they_should_be(monkeypatch, tmp_path):
  monkeypatch.setattr(constants, 'DATA_DIR', str(tmp_path))
  build(tmp_path)
  rows = reading.read('glue/rte', 'train', lambda x: [x['no such thing']])
  with pytest.raises(errors.DataError) as e:
    list(rows)
  assert "glue/rte train, example 0; got KeyError: 'no such thing'" in str(
    e.value
  )
  with pytest.raises(errors.DataError, match='label is none.*got 1.*0 to 0'):
    list(
      reading.read(
        'glue/rte',
        'train',
        lambda x: builtin.package('t5_text').fields(x, 'a', (), ('one',)),
      )
    )
  for file in tmp_path.glob('glue/rte/*/*train.tfrecord*'):
    file.write_bytes(file.read_bytes()[:-9])
  with pytest.raises(errors.DataError, match='to its end at glue/rte train'):
    read('glue_rte_v002')


@pytest.mark.parametrize(
  'name', ['glue_stsb_v002', 'super_glue_record_v102', 'squad_v010_allanswers']
)
def test_fields_are_those_of_the_dataset(name):
  """TensorFlow Datasets' own declaration of them, with random texts."""
  with tfds.testing.mock_data(num_examples=2):
    rows = read(name)
  assert rows and all({'inputs', 'targets'} <= x.keys() for x in rows)
