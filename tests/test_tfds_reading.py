"""Built-in tasks read a real TensorFlow dataset, and one that is made up."""

import json
import pydoc_data.topics

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
LABELS = ('not_entailment', 'entailment')  # of WNLI
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
  """A dataset in the form of WNLI's, as `tfds build` makes it."""

  class Glue(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    VERSION = tfds.core.Version(version)
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name='wnli')]

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

  Glue(data_dir=str(folder), config='wnli').download_and_prepare()


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
  rows = read('glue_wnli_v002', 'validation')
  wanted = {
    'wnli sentence1: {sentence1} sentence2: {sentence2}'.format(**x): LABELS[
      x['label']
    ]
    for x in map(example, SPLITS['validation'])
  }
  assert {x['inputs']: x['targets'] for x in rows} == wanted
  assert rows == read('glue_wnli_v002', 'validation')
  assert {x['targets'] for x in read('glue_wnli_v002', 'test')} == {'<unk>'}
  definition = t5.DEFINITIONS['glue_wnli_v002']()
  assert definition.identity() == {'tfds': 'glue/wnli/1.5.0'}


def test_a_newer_version_is_another_identity(tmp_path, monkeypatch):
  monkeypatch.setattr(constants, 'DATA_DIR', str(tmp_path))
  found = []
  for version in ('1.5.0', '1.11.0'):
    build(tmp_path, version=version)
    found.append(t5.DEFINITIONS['glue_wnli_v002']().identity()['tfds'])
  assert found == ['glue/wnli/1.5.0', 'glue/wnli/1.11.0']


def test_trained_on_and_evaluated(here, command, tmp_path):
  run = tmp_path / 'run'
  lengths = "{'inputs': 96, 'targets': 16}"
  said = command(
    *START,
    '--gin.Data.task=glue_wnli_v002',
    f'--workdir={run}',
    *runs.options(
      Run__steps=3,
      Data__lengths=lengths,
      Transformer__encoder_layers=1,
      Transformer__decoder_layers=1,
    ),
  )
  assert 'tokenised glue_wnli_v002' in said
  assert runs.metrics(run)[-1]['step'] == 3
  said = command('evaluate', f'--workdir={run}', '--tasks=glue_wnli_v002')
  assert 'accuracy' in said
  file = run / 'evaluation' / 'glue_wnli_v002-3.json'
  found = json.loads(file.read_text())['metrics']
  own = {'loss', 'token_accuracy', 'tokens', 'examples'}
  assert found.keys() == own | {'accuracy'}
  assert found['examples'] == len(SPLITS['validation'])


def test_hidden_labels_are_predicted_and_not_measured(here):
  spec = specs.Evaluation(tasks=('glue_wnli_v002',), split='test')
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
  rows = reading.read('glue/wnli', 'train', lambda x: [x['no such thing']])
  with pytest.raises(errors.DataError) as e:
    list(rows)
  assert "glue/wnli train, example 0; got KeyError: 'no such thing'" in str(
    e.value
  )
  with pytest.raises(errors.DataError, match='label is none.*got 1.*0 to 0'):
    list(
      reading.read(
        'glue/wnli',
        'train',
        lambda x: builtin.package('t5_text').fields(x, 'a', (), ('one',)),
      )
    )
  for file in tmp_path.glob('glue/wnli/*/*train.tfrecord*'):
    file.write_bytes(file.read_bytes()[:-9])
  with pytest.raises(errors.DataError, match='to its end at glue/wnli train'):
    read('glue_wnli_v002')


@pytest.mark.parametrize(
  'name', ['glue_stsb_v002', 'super_glue_record_v102', 'squad_v010_allanswers']
)
def test_fields_are_those_of_the_dataset(name):
  """TensorFlow Datasets' own declaration of them, with random texts."""
  with tfds.testing.mock_data(num_examples=2):
    rows = read(name)
  assert rows and all({'inputs', 'targets'} <= x.keys() for x in rows)
