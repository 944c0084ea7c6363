"""The vocabulary of a Hugging Face folder; hostile ones are refused."""

import json
import os
import random
import re

import pytest
import tokenizers
from tokenizers import models as library
from tokenizers import normalizers
from tokenizers import pre_tokenizers
from tokenizers import trainers

from t5x_lite import errors
from t5x_lite import specs
from t5x_lite import storage
from t5x_lite.data import sentencepieces
from t5x_lite.data import vocabulary_files
from t5x_lite.interop import tokenizer_folders
from t5x_lite.interop import tokenizers as exported
from tests import test_tokenizer_export as made
from tests import test_tokenizer_json

folder, models = made.folder, made.models


def write(path, **files):
  """A folder of JSON files, of text or bytes where such are given."""
  path.mkdir(parents=True, exist_ok=True)
  for name, content in files.items():
    file = path / name.replace('__', '.')
    if isinstance(content, bytes):
      file.write_bytes(content)
    elif isinstance(content, str):
      file.write_text(content)
    else:
      file.write_text(json.dumps(content))
  return path


def find(path, output, **options):
  """What a folder has; its files are written as `import` does."""
  found = tokenizer_folders.find(path, **options)
  for name, content in found.files.items():
    (output / name).parent.mkdir(parents=True, exist_ok=True)
    (output / name).write_bytes(content)
  return found


def merges(folder):
  """GPT-2's two files, of a trained tokenizer.json."""
  content = json.loads((folder / 'byte_bpe/tokenizer.json').read_text())
  lines = [' '.join(pair) for pair in content['model']['merges']]
  text = '\n'.join(['#version: 0.2', *lines, ''])
  return {'vocab__json': content['model']['vocab'], 'merges__txt': text}


def gpt():
  """OpenAI GPT's two files: pieces that end words say so."""
  tokenizer = tokenizers.Tokenizer(
    library.BPE(unk_token='<unk>', end_of_word_suffix='</w>')
  )
  tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  trainer = trainers.BpeTrainer(
    vocab_size=500,
    special_tokens=['<unk>'],
    end_of_word_suffix='</w>',
    show_progress=False,
  )
  tokenizer.train_from_iterator(test_tokenizer_json.TEXT.split('\n'), trainer)
  model = json.loads(tokenizer.to_str())['model']
  lines = [' '.join(pair) for pair in model['merges']]
  text = '\n'.join(['#version: 0.2', *lines, ''])
  return {'vocab__json': model['vocab'], 'merges__txt': text}


@pytest.mark.parametrize(
  'kind, end', [*((kind, True) for kind in made.QUICK), ('unigram', False)]
)
def test_what_we_write_we_find(kind, end, folder, models, tmp_path):
  vocabulary = made.vocabulary_of(kind, folder, models)
  (tmp_path / 'out').mkdir()
  exported.write(tmp_path / 'out', vocabulary, ends_with_eos=end)
  found = find(tmp_path / 'out', tmp_path / 'in')
  again = found.vocabulary
  for name in ('size', 'pad_id', 'eos_id', 'unk_id', 'bos_id'):
    assert getattr(again, name) == getattr(vocabulary, name), name
  assert again.sentinel_ids.tolist() == vocabulary.sentinel_ids.tolist()
  for text in made.texts(300):
    assert again.encode(text).tolist() == vocabulary.encode(text).tolist()
  if not kind.endswith('_json'):
    assert again.fingerprint == vocabulary.fingerprint
  # The run needs nothing else.
  data = specs.Data(
    corpus='none',
    lengths={'inputs': 9},
    vocabulary=str(tmp_path / 'in' / found.name) if found.files else found.name,
    extra_ids=found.extra_ids,
    special_tokens=found.special_tokens,
  )
  kept = vocabulary_files.kept(data, storage.path(tmp_path / 'in'))
  assert vocabulary_files.load(kept).fingerprint == again.fingerprint


def test_gpt2s_two_files_are_a_tokenizer_json(folder, tmp_path):
  """Its class has an end that no file names."""
  path = write(
    tmp_path / 'a', **merges(folder), config__json={'model_type': 'gpt2'}
  )
  found = find(path, tmp_path / 'in')
  expected = made.load(folder / 'byte_bpe', extra_ids=0)
  assert found.special_tokens == {'eos': '<|endoftext|>'}
  assert found.vocabulary.eos_id == expected.eos_id
  assert found.vocabulary.size == expected.size
  for text in made.texts(300):
    ids = expected.encode(text).tolist()
    assert found.vocabulary.encode(text).tolist() == ids
  assert 'made of vocab.json and merges.txt' in found.notes[0]


def test_gpts_two_files_need_an_end(tmp_path):
  path = write(
    tmp_path / 'a', **gpt(), config__json={'model_type': 'openai-gpt'}
  )
  with pytest.raises(errors.ConfigError, match='does not say which token ends'):
    find(path, tmp_path / 'in')
  found = find(path, tmp_path / 'in', special_tokens={'eos': '<unk>'})
  ids = found.vocabulary.encode('The Class').tolist()
  assert ids == found.vocabulary.encode('the  class').tolist()
  assert found.vocabulary.decode(ids).strip() == 'the class'


def test_t5s_sentinels_are_the_last_ids(models, tmp_path):
  made.vocabulary_of('unigram', None, models)
  data = (models / 'unigram.model').read_bytes()
  for said, count in (({}, 100), ({'extra_ids': 7}, 7)):
    path = write(
      tmp_path / 'a',
      spiece__model=data,
      tokenizer_config__json={'tokenizer_class': 'T5Tokenizer'} | said,
      config__json={'pad_token_id': 0, 'eos_token_id': 1},
    )
    found = find(path, tmp_path / 'in')
    assert found.extra_ids == count and found.special_tokens is None
    assert found.vocabulary.sentinel(0) == 599 + count
    assert (tmp_path / 'in/vocabulary.model').read_bytes() == data
  assert find(path, tmp_path / 'in', extra_ids=3).vocabulary.size == 603


def test_a_model_that_lacks_tokens_is_not_read(models, tmp_path):
  """Tokens that were added later stand in tokenizer.json alone."""
  vocabulary = made.vocabulary_of('unigram', None, models)
  path = write(tmp_path / 'a')
  exported.write(path, vocabulary, ends_with_eos=True)
  assert find(path, tmp_path / 'in').name == 'vocabulary.model'
  content = json.loads((path / 'tokenizer.json').read_text())
  later = content['added_tokens'][-1] | {'id': 700, 'content': '<|later|>'}
  content['added_tokens'].append(later)
  write(path, tokenizer__json=content)
  found = find(path, tmp_path / 'in')
  assert found.name == 'vocabulary' and found.vocabulary.size == 701


def test_byt5_has_no_files(tmp_path):
  path = write(
    tmp_path / 'a',
    tokenizer_config__json={'tokenizer_class': 'ByT5Tokenizer'},
  )
  found = find(path, tmp_path / 'in')
  assert found[:3] == ('bytes', 0, None)
  assert found.vocabulary.sentinel(0) == 258
  assert 'from 259 upward' in found.notes[0]


def marian(path, models):
  """A folder of Marian: its ids are none of its SentencePiece model's."""
  made.vocabulary_of('unigram', None, models)
  data = (models / 'unigram.model').read_bytes()
  pieces = [
    x.piece for x in sentencepieces.read(models / 'unigram.model').pieces
  ]
  names = [x for x in pieces if x not in ('</s>', '<unk>', '<pad>')]
  random.Random(3).shuffle(names)
  names = ['</s>', '<unk>', *names, '<pad>']
  last = len(names) - 1
  return write(
    path,
    config__json={'model_type': 'marian', 'decoder_start_token_id': last}
    | {'eos_token_id': 0, 'pad_token_id': last},
    source__spm=data,
    target__spm=data,
    vocab__json={name: i for i, name in enumerate(names)},
  )


def test_marians_two_models_that_are_one(models, tmp_path):
  found = find(marian(tmp_path / 'a', models), tmp_path / 'in')
  plain = made.vocabulary_of('unigram', None, models)
  ids = json.loads((tmp_path / 'a' / 'vocab.json').read_text())
  ours = found.vocabulary
  known = ours.eos_id, ours.unk_id, ours.pad_id, ours.start_id
  assert known == (0, 1, 599, 599)
  for text in made.texts(300):
    wanted = [ids[plain._plain.id_to_piece(int(i))] for i in plain.encode(text)]
    assert ours.encode(text).tolist() == wanted
    assert ours.decode(wanted) == plain.decode(plain.encode(text))
  kept = tmp_path / 'in' / 'vocabulary.model'
  again = sentencepieces.SentencePiece(sentencepieces.read(kept), 0)
  assert again.fingerprint == ours.fingerprint


@pytest.mark.parametrize(
  'change, said',
  [
    (lambda ids: ids.pop('e'), "1 pieces without an id, such as 'e'"),
    (lambda ids: ids.update({'>>fr<<': 600}), "such as '>>fr<<'"),
    (lambda ids: ids.update({'a': 0}), 'are not 0 to 599'),
    (lambda ids: ids.update({'a': 'b'}), 'are not 0 to 599'),
    (lambda ids: ids.update({'x y': ids.pop('<pad>')}), 'no <pad>'),
    (None, 'cut text in two ways'),
  ],
)
def test_marians_that_is_none_of_ours_is_told(models, tmp_path, change, said):
  path = marian(tmp_path / 'a', models)
  if change:
    ids = json.loads((path / 'vocab.json').read_text())
    change(ids)
    write(path, vocab__json=ids)
  else:
    made.vocabulary_of('bpe', None, models)
    write(path, target__spm=(models / 'bpe.model').read_bytes())
  with pytest.raises(errors.DataError, match=re.escape(said)):
    find(path, tmp_path / 'in')


def test_ends_are_said_by_ids_of_the_model(folder, tmp_path):
  content = json.loads((folder / 'byte_bpe/tokenizer.json').read_text())
  test_tokenizer_json._unnamed(content)
  path = write(tmp_path / 'a', tokenizer__json=content)
  with pytest.raises(errors.ConfigError, match='does not say which token ends'):
    find(path, tmp_path / 'in')
  write(path, generation_config__json={'eos_token_id': [0, 9]})
  found = find(path, tmp_path / 'in')
  assert found.special_tokens == {'eos': '<|stop|>'}
  assert found.vocabulary.eos_id == 0


REFUSED = {
  'nothing': ({}, 'got no tokenizer class, and no files'),
  'ids of its own': (
    {
      'tokenizer_config__json': {'tokenizer_class': 'XLMRobertaTokenizer'},
      'tokenizer__model': b'',
    },
    'XLMRoberta tokenizer class, and tokenizer.model, tokenizer_config.json',
  ),
  'no model': (
    {'config__json': {'model_type': 't5'}, 'spiece__model': b'no'},
    'not a SentencePiece model',
  ),
  'sentinels without number': (
    {
      'tokenizer_config__json': {
        'tokenizer_class': 'T5Tokenizer',
        'extra_ids': 'many',
      },
      'spiece__model': b'',
    },
    "extra_ids = 'many'",
  ),
  'more sentinels than memory': (
    {
      'tokenizer_config__json': {
        'tokenizer_class': 'T5Tokenizer',
        'extra_ids': 1 << 60,
      },
      'spiece__model': b'',
    },
    'extra_ids = 1152921504606846976',
  ),
  'no JSON': ({'config__json': b'\x93NUMPY'}, 'not a JSON object'),
  'deep JSON': ({'tokenizer_config__json': '[' * 100_000}, 'not a JSON object'),
  'a list': ({'config__json': []}, 'a JSON list'),
  'a tokenizer of nothing': ({'tokenizer__json': {'model': 3}}, 'not a token'),
  'merges of three': (
    {
      'config__json': {'model_type': 'gpt2'},
      'vocab__json': {'a': 0},
      'merges__txt': 'a b\na b c\n',
    },
    "merges.txt:2; got 'a b c'",
  ),
  'merges of bytes': (
    {
      'config__json': {'model_type': 'gpt2'},
      'vocab__json': {'a': 0},
      'merges__txt': b'\xff\xfe',
    },
    'no UTF-8 text',
  ),
  'pieces without ids': (
    {
      'config__json': {'model_type': 'gpt2'},
      'vocab__json': {'a': 'b'},
      'merges__txt': '',
    },
    'a piece has no id',
  ),
  'merges unheard of': (
    {
      'config__json': {'model_type': 'gpt2'},
      'vocab__json': {'a': 0},
      'merges__txt': 'q z\n',
    },
    'out of vocabulary',
  ),
}


@pytest.mark.parametrize('name', REFUSED)
def test_what_is_no_vocabulary_is_refused(name, tmp_path):
  files, match = REFUSED[name]
  with pytest.raises(errors.DataError, match=re.escape(match)):
    find(write(tmp_path / 'a', **files), tmp_path / 'in')


def test_links_out_of_the_folder_are_refused(folder, tmp_path):
  path, secret = write(tmp_path / 'a'), folder / 'byte_bpe/tokenizer.json'
  (path / 'tokenizer.json').symlink_to(secret)
  with pytest.raises(errors.DataError, match='link out of its folder'):
    find(path, tmp_path / 'in')
  (path / 'tokenizer.json').unlink()
  (path / 'tokenizer.json').symlink_to('nowhere')
  with pytest.raises(errors.DataError, match='not a file|cannot read file'):
    find(path, tmp_path / 'in')
  # A link within it is no harm.
  (path / 'nowhere').write_bytes(secret.read_bytes())
  assert find(path, tmp_path / 'in').vocabulary.size == 500


def test_what_is_no_file_is_refused(tmp_path, monkeypatch):
  path = write(tmp_path / 'a')
  os.mkfifo(path / 'tokenizer.json')
  with pytest.raises(errors.DataError, match='not a file|cannot read file'):
    find(path, tmp_path / 'in')
  monkeypatch.setattr(tokenizer_folders, '_LARGEST', 10)
  path = write(tmp_path / 'b', config__json={'model_type': 'gpt2'})
  with pytest.raises(errors.DataError, match='got 22 bytes, expected 10 or'):
    find(path, tmp_path / 'in')
