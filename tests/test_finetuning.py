"""Fine-tuning as a user does it: from a trained workdir, on pairs."""

import json
import pydoc_data.topics
import shutil

import pytest

from t5x_lite import checkpoints
from t5x_lite import cli
from tests import runs


@pytest.fixture(scope='module')
def pretrained(tmp_path_factory):
  """A workdir of three steps of span corruption."""
  folder = tmp_path_factory.mktemp('pretrained')
  corpus = runs.write_corpus(folder)
  arguments = ['train', f'--corpus={corpus}', f'--workdir={folder / "run"}']
  assert cli.main(arguments + runs.options(Run__steps=3)) == 0
  return folder / 'run'


@pytest.fixture(scope='module')
def pairs(tmp_path_factory):
  """The topics of passages of Python's manual, as JSON lines."""
  file = tmp_path_factory.mktemp('pairs') / 'topics.jsonl'
  with file.open('w') as f:
    for topic, text in sorted(pydoc_data.topics.topics.items()):
      f.write(json.dumps({'inputs': text[:60], 'targets': topic}) + '\n')
  return file


@pytest.fixture
def tune(command, pairs, pretrained):
  """Fine-tunes in a workdir."""

  def run(workdir, code=0, path=pretrained, **settings):
    start = {'Run__start_from': '@Pretrained()', 'Pretrained__path': path}
    return command(
      'train',
      f'--corpus={pairs}',
      f'--workdir={workdir}',
      '--gin.Run.objective=@Supervised()',
      *runs.options(**(start if path else {}) | settings),
      code=code,
    )

  return run


def test_from_pretrained_cut_and_resumed(
  tune, command, pretrained, pairs, tmp_path
):
  """Ends like a run that is not cut, and needs the old one no more."""
  said = tune(tmp_path / 'whole')
  assert f'parameters start from {pretrained}/checkpoints/3' in said
  assert 'pairs are cut to 32 tokens' in said
  old = tmp_path / 'old'
  shutil.copytree(pretrained, old)
  said = tune(tmp_path / 'cut', path=old, Run__steps=2)
  assert f'parameters start from {old}/checkpoints/3' in said
  shutil.rmtree(old)
  said = tune(tmp_path / 'cut', path=old)
  assert 'going on from step 2' in said and 'start from' not in said
  runs.assert_same_state(tmp_path / 'cut', tmp_path / 'whole', 6)
  whole = runs.metrics(tmp_path / 'whole')
  assert whole[0]['step'] == 0 and whole[0]['split'] == 'validation'
  record = json.loads((tmp_path / 'whole' / 'config.json').read_text())
  assert record['start_from']['path'] == str(pretrained)
  # Where a run came from is what it is.
  said = tune(tmp_path / 'cut', code=2, path=pretrained, Run__steps=8)
  assert 'start_from.path' in said
  # All that works on a run works on this one.
  said = command('evaluate', f'--workdir={tmp_path / "whole"}')
  assert 'validation' in said and 'text_loss' in said
  said = command(
    'inspect',
    f'--corpus={pairs}',
    '--gin.Run.objective=@Supervised()',
    *runs.options(),
  )
  assert 'decoder_target_tokens' in said


def test_what_does_not_fit_is_told_before_anything_is_made(
  tune, pretrained, tmp_path
):
  said = tune(tmp_path / 'a', code=2, Transformer__mlp_dim=64)
  assert 'checkpoint to start from does not fit the model' in said
  assert 'Transformer.mlp_dim 32 there, 64 here' in said
  assert 'compiled' not in said and 'tokenised' not in said
  assert not checkpoints.Checkpoints.reader(tmp_path / 'a').steps()
  runs.assert_clean(said.replace('ConfigError', ''))


DECODER = {
  'Transformer__encoder_layers': 0,
  'Transformer__dropout': 0,
  'Run__steps': 2,
  'Checkpoints__every': 2,
}


@pytest.mark.parametrize('mask', ['causal', 'prefix'])
def test_a_decoder_alone_learns_pairs(tune, tmp_path, mask):
  said = tune(tmp_path, path=None, Transformer__mask=mask, **DECODER)
  assert 'held out at step 2' in said
  [first, *_] = runs.metrics(tmp_path)
  assert first['text_tokens'] > 0 and first['examples'] > 0


def test_gpt_from_its_language_model_to_classes(command, pretrained, tmp_path):
  """The class head alone is new; a text's label is measured."""
  corpus = pretrained.parent / 'my.txt'
  lm = DECODER | {'Data__lengths': "{'targets': 32}"}
  objective = '--gin.Run.objective=@CausalLM()'
  where = f'--workdir={tmp_path / "lm"}'
  command('train', f'--corpus={corpus}', where, objective, *runs.options(**lm))
  texts = tmp_path / 'texts.jsonl'
  with texts.open('w') as f:
    for topic, text in sorted(pydoc_data.topics.topics.items()):
      label = 'short' if len(topic) < 8 else 'long'
      f.write(json.dumps({'inputs': text[:20], 'targets': label}) + '\n')
  settings = DECODER | {
    'Data__lengths': "{'inputs': 32}",
    'Transformer__classes': 2,
    'Classification__labels': 'short,long',
    'Run__start_from': '@Pretrained()',
    'Pretrained__path': tmp_path / 'lm',
    'Pretrained__rules': "{'classes/kernel': None}",
  }
  objective = '--gin.Run.objective=@Classification()'
  said = command(
    'train',
    f'--corpus={texts}',
    f'--workdir={tmp_path / "tuned"}',
    objective,
    *runs.options(**settings),
  )
  assert '1 of ' in said and ' drawn anew' in said
  found = runs.metrics(tmp_path / 'tuned')
  for line in found:
    assert 0 <= line['class_accuracy'] <= 1 and line['class_loss'] > 0
  assert {x['split'] for x in found} == {'train', 'validation'}
  said = command(
    'inspect', f'--corpus={texts}', objective, *runs.options(**settings)
  )
  assert 'labels' in said
