"""Vocabularies of every kind in runs, and docs/vocabularies.md as it stands."""

import json
import pathlib
import re
import shlex
import shutil

import pytest

from t5x_lite import cli
from t5x_lite import commands
from t5x_lite import data
from t5x_lite import infer
from tests import runs

SHORT = {
  'Run__steps': 1,
  'Transformer__vocab_size': 512,
  'Transformer__encoder_layers': 1,
  'Transformer__decoder_layers': 1,
}
PAGE = pathlib.Path(__file__).parents[1] / 'docs/vocabularies.md'


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  return runs.write_corpus(tmp_path_factory.mktemp('text'))


@pytest.mark.slow
def test_the_page_does_what_it_says(command, corpus, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  shutil.copy(corpus, 'my.txt')
  text = PAGE.read_text().replace('\\\n', ' ')
  blocks = re.findall(r'```sh\n(.*?)```', text, re.S)
  lines = [line for block in blocks for line in block.splitlines()]
  assert len(lines) == 7
  for line in lines:
    program, *words = shlex.split(line)
    assert program == 't5x_lite'
    if words[0] == 'train':
      run = commands.load(cli.parse(words))
      data.check(run, data.load_vocabulary(run.data))
      continue
    said = command(*words)
    if '--corpus=my.txt' in words:
      assert re.search(r'on held-out text: \d\.\d\d bytes per token', said)
      assert '0.00% of the tokens unknown' in said


@pytest.fixture(scope='module')
def made(tmp_path_factory, corpus):
  """A tokenizer.json made by the command."""
  path = tmp_path_factory.mktemp('vocabulary') / 'tokenizer.json'
  words = [f'--corpus={corpus}', f'--output={path}', '--size=500']
  assert cli.main(['vocab', *words, '--kind=byte_bpe']) == 0
  return path


@pytest.fixture
def train(command, corpus):
  def run(workdir, vocabulary, code=0, **settings):
    settings = SHORT | settings
    return command(
      'train',
      f'--corpus={corpus}',
      f'--workdir={workdir}',
      f'--gin.Data.vocabulary={vocabulary}',
      *runs.options(**settings),
      code=code,
    )

  return run


@pytest.fixture
def folder(made, tmp_path):
  """A tokenizer.json, and a file beside it that says what pads."""
  folder = tmp_path / 'vocabulary'
  folder.mkdir()
  shutil.copy(made, folder)
  settings = json.dumps({'pad_token': '\u0120the'})
  (folder / 'special_tokens_map.json').write_text(settings)
  return folder


@pytest.mark.slow
def test_levanter_633_a_run_keeps_to_its_vocabulary(train, folder, tmp_path):
  """Levanter PR#633: a cache of another tokenizer was used without a word."""
  train(tmp_path / 'run', folder)
  file = folder / 'tokenizer.json'
  content = json.loads(file.read_text())
  merges = content['model']['merges']
  merges[0], merges[1] = merges[1], merges[0]
  file.write_text(json.dumps(content))
  said = train(tmp_path / 'run', folder, Run__steps=2, code=3)
  assert 'corpus or vocabulary changed since the checkpoint' in said
  # Without the files, and elsewhere, it has all that it needs.
  shutil.rmtree(folder)
  shutil.move(tmp_path / 'run', tmp_path / 'moved')
  predictor = infer.Predictor(tmp_path / 'moved')
  vocabulary = predictor.vocabulary
  assert vocabulary.piece(vocabulary.pad_id) == '\u0120the'
  ids = predictor.tokens('The try<extra_id_0> statement')
  assert ids[-1] == vocabulary.eos_id
  assert vocabulary.decode(ids) == 'The try<extra_id_0> statement'


WRONG = {
  'larger than the embedding': (
    '{made}',
    {'Transformer__vocab_size': 300},
    2,
    ['500 ids', 'vocab_size 300', 'vocab_size=512'],
  ),
  'missing': ('{folder}/no/tokenizer.json', {}, 3, ['no such vocabulary']),
  'a folder of something else': ('{folder}', {}, 3, ['without a tokenizer']),
  'garbage': ('{folder}/noise.json', {}, 3, ['noise.json', '3,000 bytes']),
  'empty': ('{folder}/empty.json', {}, 3, ['empty.json', '0 bytes']),
  'cut': ('{folder}/cut.json', {}, 3, ['cut.json', 'whole JSON']),
  'no special tokens': (
    '{folder}/none.json',
    {},
    2,
    ['none.json', 'special tokens: none', 'Data.special_tokens'],
  ),
  'an end that is none': (
    '{made}',
    {'Data__special_tokens': "{'eos': '<end>'}"},
    2,
    ["'<end>'", 'Data.special_tokens'],
  ),
  'a role that is none': (
    '{made}',
    {'Data__special_tokens': "{'end': 'a'}"},
    2,
    ['Data.special_tokens', "'pad' or 'eos' or 'bos'"],
  ),
  'special tokens of bytes': (
    'bytes',
    {'Data__special_tokens': "{'eos': 'a'}"},
    2,
    ['bytes has its own'],
  ),
}


@pytest.mark.parametrize('name', WRONG)
def test_a_wrong_vocabulary_is_one_message(train, made, tmp_path, name):
  vocabulary, settings, code, words = WRONG[name]
  whole = made.read_text()
  content = json.loads(whole)
  content['added_tokens'] = []
  content['model']['vocab'].pop('<|endoftext|>')
  (tmp_path / 'none.json').write_text(json.dumps(content))
  (tmp_path / 'cut.json').write_text(whole[:4000])
  (tmp_path / 'empty.json').write_text('')
  (tmp_path / 'noise.json').write_bytes(b'\x93\x00\xff' * 1000)
  vocabulary = vocabulary.format(made=made, folder=tmp_path)
  said = train(tmp_path / 'run', vocabulary, code, **settings)
  assert said.count('\n') == 1 and 'Traceback' not in said
  assert all(word in said for word in words), said
  assert not (tmp_path / 'run').exists()
