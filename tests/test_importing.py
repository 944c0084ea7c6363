"""What `import` reads in which order, what it refuses, and what it leaves."""

import json
import pathlib
import shutil
import string
import sys

import pytest

from t5x_lite import cli
from t5x_lite import config
from t5x_lite import infer
from t5x_lite import models
from t5x_lite import pretrained
from t5x_lite.data import tokenizer_files
from t5x_lite.data import vocabulary_files
from t5x_lite.interop import digests
from t5x_lite.interop import names

GOLDEN = pathlib.Path(__file__).parent / 'golden' / 'huggingface'
LETTERS = {letter: n for n, letter in enumerate(string.ascii_lowercase[:22])}


@pytest.fixture
def gpt(tmp_path):
  """A folder of OpenAI's GPT, which has no end of texts."""
  source = tmp_path / 'gpt'
  shutil.copytree(GOLDEN / 'gpt', source)
  (source / 'vocab.json').write_text(json.dumps(LETTERS | {'<unk>': 22}))
  (source / 'merges.txt').write_text('#version: 0.2\n')
  return source


def import_(source, *options):
  workdir = source.parent / 'run'
  return cli.main(['import', str(source), f'--workdir={workdir}', *options])


def refused(capsys, code, source, *options):
  capsys.readouterr()
  there = (source.parent / 'run').exists()
  assert import_(source, *options) == code
  said = capsys.readouterr().err
  assert 'Traceback' not in said and len(said.splitlines()) <= 12
  assert (source.parent / 'run').exists() == there
  return said


END = '--special_token=eos=<unk>'


def test_a_token_that_no_file_tells_is_named(gpt, capsys):
  assert END in refused(capsys, 2, gpt)
  assert "'<unnk>'" in refused(capsys, 2, gpt, '--special_token=eos=<unnk>')
  assert import_(gpt, END) == 0
  made = infer.Predictor(gpt.parent / 'run')
  assert made.vocabulary.eos_id == 22
  assert made.vocabulary.encode('a b').tolist()[:1] == [22]


def test_a_vocabulary_is_made_once_and_before_the_weights(gpt, monkeypatch):
  told = []

  def note(module, name):
    own = getattr(module, name)
    monkeypatch.setattr(
      module, name, lambda *args: told.append(name) or own(*args)
    )

  note(tokenizer_files, 'make')
  note(vocabulary_files, 'load')
  note(names, 'to_ours')
  assert import_(gpt, END) == 0
  assert told == ['make', 'to_ours']


def test_digests_are_compared_where_weights_are_read(gpt, capsys):
  digests.write_rest(gpt)
  file = gpt / 'model.safetensors'
  data = bytearray(file.read_bytes())
  data[-1] ^= 1
  file.write_bytes(data)
  assert cli.main(['weights', str(gpt)]) == 0
  assert 'not compared with its digests.json' in capsys.readouterr().out
  for more in (['--values'], [f'--diff={GOLDEN}/gpt']):
    assert cli.main(['weights', str(gpt), *more]) == 4
    assert 'file is damaged' in capsys.readouterr().err
  assert 'file is damaged' in refused(capsys, 4, gpt, END)


def test_runs_of_ours_need_no_import(gpt, capsys):
  assert import_(gpt, END) == 0
  run = gpt.parent / 'run'
  for source, kind in (
    (run, 'a run'),
    (run / 'checkpoints', 'the checkpoints of a run'),
    (run / 'checkpoints' / '0', 'a checkpoint of a run'),
  ):
    assert cli.main(['import', str(source), f'--workdir={gpt}/x']) == 4
    said = capsys.readouterr().err
    assert f'{kind} of t5x_lite, which needs no import' in said
    assert f'infer --workdir={run}`' in said
  assert not (gpt / 'x').exists()
  # A folder of Hugging Face may have a `checkpoints` of its own.
  (gpt / 'checkpoints').mkdir()
  shutil.rmtree(run)
  assert import_(gpt, END) == 0


def test_ids_of_another_vocabulary_are_told(gpt, capsys):
  config = json.loads((gpt / 'config.json').read_text())
  config |= {'eos_token_id': [3, 22], 'bos_token_id': 5}
  (gpt / 'config.json').write_text(json.dumps(config))
  other = gpt.parent / 'other'
  assert import_(gpt, END) == 0
  shutil.copytree(gpt.parent / 'run' / 'vocabulary', other)
  shutil.rmtree(gpt.parent / 'run')
  capsys.readouterr()
  options = [f'--vocabulary={other}', '--special_token=eos=<unk>']
  assert import_(gpt, *options) == 0
  said = capsys.readouterr().out
  assert 'bos_token_id 5, and the vocabulary 22, which' in said
  assert 'eos_token_id' not in said
  shutil.rmtree(gpt.parent / 'run')
  said = refused(capsys, 3, gpt, *options, '--extra_ids=1')
  assert 'at most 23, the rows' in said and 'fix: --extra_ids=0' in said


def test_hf_20907_easylm_62_an_encoder_comes_and_goes(gpt, capsys, monkeypatch):
  """T5EncoderModel, which says nothing itself, by no library of others.

  transformers#20907, t5x#198; EasyLM#62: its export needed one transformers.
  """
  for name in ('transformers', 'torch', 'safetensors', 'huggingface_hub'):
    monkeypatch.setitem(sys.modules, name, None)
  assert import_(gpt, END) == 0
  vocabulary, run = gpt.parent / 'run' / 'vocabulary', gpt.parent / 'encoder'
  arguments = ['import', f'{GOLDEN}/t5_encoder', f'--workdir={run}', END]
  assert cli.main([*arguments, f'--vocabulary={vocabulary}']) == 0
  assert '--gin.Transformer.decoder_layers=N' in capsys.readouterr().out
  out = f'--output={gpt.parent}/out'
  served = ['export', f'--workdir={run}', out, '--format=stablehlo']
  for command in (['infer', f'--workdir={run}'], served):
    assert cli.main(command) == 2
    assert 'an encoder alone' in capsys.readouterr().err
  assert cli.main(['export', f'--workdir={run}', out]) == 0
  same = ['weights', f'{gpt.parent}/out', f'--diff={GOLDEN}/t5_encoder']
  assert cli.main(same) == 0
  said = json.loads((gpt.parent / 'out' / 'config.json').read_text())
  assert said['architectures'] == ['T5EncoderModel']
  # Its recipe gives it a new decoder.
  assert (
    cli.main(
      [
        'train',
        f'--gin_file={run}/recipe.gin',
        f'--corpus={gpt}/*.json',
        f'--workdir={gpt}/no',
      ]
    )
    == 2
  )
  assert 'decoder_layers=N' in capsys.readouterr().err
  bindings = ["Data.corpus='x'", 'Transformer.decoder_layers=2']
  made = config.load([f'{run}/recipe.gin'], bindings)
  start = pretrained.Pretrained(made, models.build(made.model))
  assert start.sources['decoder/final_norm/scale'] is None
  assert start.sources['encoder/final_norm/scale']
