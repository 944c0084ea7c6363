"""tokenizer.json as a vocabulary, and BERT's and GPT-2's kinds trained."""

import json
from pydoc_data import topics

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import normalizers
from tokenizers import pre_tokenizers
from tokenizers import processors
from tokenizers import trainers

from t5x_lite import data as package
from t5x_lite import errors
from t5x_lite import specs
from t5x_lite.data import tokenizer_files
from t5x_lite.data import tokenizer_json
from t5x_lite.data import vocabulary_files
from t5x_lite.data import vocabulary_training

NAMES = ('for', 'while', 'try', 'with', 'import', 'class', 'assert')
TEXT = '\n'.join(topics.topics[name] for name in NAMES)
# Byte-order mark, NUL, ligature, composed and not, joiners, right to left,
# line ends of Windows, noncharacter, full-width, emoji.
ODD = [
  '\ufeffa',
  'a\0b',
  'ﬁn',
  'é',
  'e\u0301',
  'क्\u200dष',
  '\u202eabc مرحبا שלום',
  'a\r\nb\r\n\r\n c',
  '\ufdd0 0 \ufdd0',
  '\u3000１２',
  '👩\u200d🚀',
  '天',
  '',
  '  a  ',
  'x' * 300,
]


def load(path, **fields):
  return vocabulary_files.load(
    specs.Data(
      corpus='none',
      lengths={'inputs': 9},
      **{'vocabulary': str(path), 'extra_ids': 20} | fields,
    )
  )


def _t5():
  """T5's kind: Unigram with sentinels, </s> in the vocabulary itself."""
  tokenizer = tokenizers.Tokenizer(models.Unigram())
  tokenizer.normalizer = normalizers.NFKC()
  tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme='always')
  tokenizer.decoder = decoders.Metaspace()
  special = ['<pad>', '</s>', '<unk>', '<extra_id_1>', '<extra_id_0>']
  trainer = trainers.UnigramTrainer(
    vocab_size=300, special_tokens=special, unk_token='<unk>'
  )
  tokenizer.post_processor = processors.TemplateProcessing(
    single='$A </s>', special_tokens=[('</s>', 1)]
  )
  return tokenizer, trainer


def _llama():
  """Llama's: one BPE over the whole text, spaces as ▁, bytes for the rest."""
  tokenizer = tokenizers.Tokenizer(
    models.BPE(unk_token='<unk>', fuse_unk=True, byte_fallback=True)
  )
  tokenizer.normalizer = normalizers.Sequence(
    [normalizers.Prepend('▁'), normalizers.Replace(' ', '▁')]
  )
  tokenizer.decoder = decoders.Sequence(
    [
      decoders.Replace('▁', ' '),
      decoders.ByteFallback(),
      decoders.Fuse(),
      decoders.Strip(' ', 1, 0),
    ]
  )
  special = ['<unk>', '<s>', '</s>', *(f'<0x{i:02X}>' for i in range(256))]
  trainer = trainers.BpeTrainer(
    vocab_size=600, special_tokens=special, max_token_length=9
  )
  return tokenizer, trainer


def _write(path, make):
  tokenizer, trainer = make()
  trainer.show_progress = False
  tokenizer.train_from_iterator(TEXT.split(), trainer)
  found = json.loads(tokenizer.to_str())
  bytes_ = [x for x in found['added_tokens'] if x['content'][:3] == '<0x']
  found['added_tokens'] = [x for x in found['added_tokens'] if x not in bytes_]
  path.parent.mkdir()
  path.write_text(json.dumps(found))


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A tokenizer.json of each kind, in folders of their own."""
  root = tmp_path_factory.mktemp('tokenizers')
  _write(root / 't5' / 'tokenizer.json', _t5)
  _write(root / 'llama' / 'tokenizer.json', _llama)
  for kind, size in (('wordpiece', 500), ('byte_bpe', 500)):
    vocabulary_training.train(
      [TEXT], size, root / kind / 'tokenizer.json', kind=kind, extra_ids=0
    )
  return root


KINDS = ('t5', 'llama', 'wordpiece', 'byte_bpe')


@pytest.fixture(params=KINDS)
def kind(request):
  return request.param


@pytest.fixture
def vocabulary(folder, kind):
  return load(folder / kind / 'tokenizer.json')


def bare(path):
  """The library's own tokenizer of a file, which takes all text for text."""
  found = tokenizers.Tokenizer.from_file(str(path))
  found.encode_special_tokens = True
  found.no_truncation()
  found.no_padding()
  return found


# -- ids ----------------------------------------------------------------------


def test_ids_are_those_of_the_library(folder, kind, vocabulary):
  theirs = bare(folder / kind / 'tokenizer.json')
  texts = [*ODD, *TEXT.splitlines()[:50], 'The river' * 9]
  for text, ids in zip(texts, vocabulary.encode_batch(texts), strict=True):
    expected = theirs.encode(text, add_special_tokens=False).ids
    assert ids.tolist() == expected
    assert ids.dtype == np.int32


@pytest.mark.parametrize(
  'kind, ids',
  [
    ('t5', (0, 1, 2, -1)),
    ('llama', (1, 2, 0, 1)),  # it pads with what begins a text
    ('wordpiece', (0, 3, 1, 2)),
    ('byte_bpe', (0, 0, -1, -1)),  # <|endoftext|> is all there is
  ],
)
def test_special_ids_are_said_by_names(vocabulary, kind, ids):
  found = vocabulary.pad_id, vocabulary.eos_id
  assert (*found, vocabulary.unk_id, vocabulary.bos_id) == ids


def test_sentinels_are_those_it_has_or_the_last_ids(folder):
  assert load(folder / 't5').sentinel_ids.tolist() == [4, 3]
  vocabulary = load(folder / 'byte_bpe')
  assert vocabulary.size == 520
  assert vocabulary.sentinel_ids.tolist() == list(range(519, 499, -1))
  assert vocabulary.piece(519) == '<extra_id_0>'
  assert load(folder / 'byte_bpe', extra_ids=0).size == 500


@pytest.mark.parametrize(
  'text', ['</s>', '[SEP] [UNK]', '<|endoftext|>', '<s>']
)
def test_text_is_never_a_special_token(vocabulary, text):
  # The Unigram model of the library takes `</s>` in a text for the end of it.
  ids = vocabulary.encode(f'a {text} <extra_id_0> b')
  special = {vocabulary.pad_id, vocabulary.eos_id, vocabulary.bos_id}
  assert not special & set(ids.tolist())
  assert not vocabulary.is_sentinel(ids).any()
  if vocabulary.unk_id in ids:  # a character that was not in the text
    assert 'unk' not in vocabulary.piece(ids[1])


def test_what_a_file_asks_for_is_not_done(folder, kind, tmp_path):
  """Nothing is added, cut or filled up, nor dropped out of merges."""
  content = json.loads((folder / kind / 'tokenizer.json').read_text())
  tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
  tokenizer.enable_truncation(4)
  tokenizer.enable_padding(length=64)
  changed = json.loads(tokenizer.to_str())
  if 'merges' in changed['model']:
    changed['model']['dropout'] = 0.9
  (tmp_path / 'tokenizer.json').write_text(json.dumps(changed))
  ours, before = load(tmp_path), load(folder / kind / 'tokenizer.json')
  text = 'The quick brown fox jumps over the lazy dog'
  assert ours.encode(text).tolist() == before.encode(text).tolist()
  assert ours.eos_id not in ours.encode(text)


def test_a_prompt_is_encoded_as_in_training(vocabulary):
  # As the rest of a text goes on behind a masked span, so behind a sentinel.
  whole = vocabulary.encode('the statement is executed').tolist()
  head = vocabulary.encode('the statement').tolist()
  text = 'the statement <extra_id_0> is executed'
  ids = vocabulary.encode(text, sentinels=True).tolist()
  assert ids == [*head, vocabulary.sentinel(0), *whole[len(head) :]]
  first = vocabulary.encode('<extra_id_1> is', sentinels=True)
  assert first[0] == vocabulary.sentinel(1)
  spaced = text.replace(' <', '<')
  assert vocabulary.encode(spaced, sentinels=True).tolist() == ids


def test_controls_say_nothing_and_sentinels_read(vocabulary, kind):
  ids = vocabulary.encode('the class<extra_id_1> for', sentinels=True)
  ids = [*ids, vocabulary.eos_id, vocabulary.pad_id]
  space = ' ' * (kind == 'wordpiece')
  assert vocabulary.decode(ids) == f'the class{space}<extra_id_1> for'
  assert vocabulary.decode([]) == ''


@pytest.mark.parametrize('text', ODD)
def test_bytes_round_trip(folder, text):
  vocabulary = load(folder / 'byte_bpe')
  assert vocabulary.decode(vocabulary.encode(text)) == text


def test_unknown_letters_are_counted(folder):
  for kind in ('t5', 'wordpiece'):
    vocabulary = load(folder / kind)
    assert vocabulary.unk_id in vocabulary.encode('天')
    assert vocabulary_training.quality(vocabulary, ['天']).unknown > 0
  for kind in ('llama', 'byte_bpe'):
    assert load(folder / kind).unk_id not in load(folder / kind).encode('天')


def test_pieces_are_safe_to_print(vocabulary):
  assert all(vocabulary.piece(i).isprintable() for i in range(vocabulary.size))


def test_a_long_text_is_cut_without_loss(vocabulary, kind, monkeypatch):
  text = TEXT[:9000] + ' e\u0301 a  b   '
  whole = vocabulary.encode(text)
  calls = []
  ids = vocabulary._ids
  monkeypatch.setattr(
    vocabulary, '_ids', lambda *args: calls.append(1) or ids(*args)
  )
  for longest in (40, 333, 1000):
    monkeypatch.setattr(tokenizer_json, '_LONGEST', longest)
    assert vocabulary.encode(text).tolist() == whole.tolist()
  assert (len(calls) > 9) == (kind != 'llama')  # its merges may cross spaces


def test_half_of_a_surrogate_pair_is_refused(vocabulary):
  with pytest.raises(errors.DataError, match='half of a surrogate pair.*ud800'):
    vocabulary.encode('ab\ud800c')


# -- what the files say -------------------------------------------------------


def edit(folder, kind, tmp_path, change=None, **beside):
  """A copy of a tokenizer, changed, with files beside it."""
  content = json.loads((folder / kind / 'tokenizer.json').read_text())
  if change:
    content = change(content) or content
  path = tmp_path / 'tokenizer.json'
  path.write_text(json.dumps(content))
  for name, settings in beside.items():
    (tmp_path / f'{name}.json').write_text(json.dumps(settings))
  return path


def test_the_files_beside_it_say_what_is_special(folder, tmp_path):
  path = edit(
    folder,
    'wordpiece',
    tmp_path,
    special_tokens_map={'eos_token': {'content': '[MASK]'}},
    tokenizer_config={'pad_token': '[UNK]', 'eos_token': '[CLS]'},
  )
  for where in (path, tmp_path):
    vocabulary = load(where)
    assert vocabulary.piece(vocabulary.eos_id) == '[MASK]'
    assert vocabulary.piece(vocabulary.pad_id) == '[UNK]'
    assert vocabulary.piece(vocabulary.bos_id) == '[CLS]'
  vocabulary = load(path, special_tokens={'eos': '[SEP]', 'pad': '[MASK]'})
  assert vocabulary.piece(vocabulary.eos_id) == '[SEP]'
  assert vocabulary.piece(vocabulary.pad_id) == '[MASK]'


def _unnamed(content):
  for token in content['added_tokens']:
    token['content'] = token['content'].replace('endoftext', 'stop')
  vocab = content['model']['vocab']
  vocab['<|stop|>'] = vocab.pop('<|endoftext|>')


def test_an_unsaid_end_is_asked_for(folder, tmp_path):
  path = edit(folder, 'byte_bpe', tmp_path, _unnamed)
  with pytest.raises(errors.ConfigError) as e:
    load(path)
  assert "these special tokens: '<|stop|>'" in str(e.value)
  assert "Data.special_tokens = {'eos': '<|stop|>'}" in str(e.value)
  assert load(path, special_tokens={'eos': '<|stop|>'}).eos_id == 0
  with pytest.raises(errors.ConfigError, match=r'did you mean <\|stop\|>'):
    load(path, special_tokens={'eos': '<|stopp|>'})


def test_special_tokens_of_other_vocabularies(tmp_path):
  with pytest.raises(errors.ConfigError, match='bytes has its own'):
    load('bytes', special_tokens={'eos': 'a'})
  model = tmp_path / 'a.model'
  vocabulary_training.train([TEXT], 400, model, extra_ids=5)
  assert load(model, special_tokens={'eos': '<pad>'}).eos_id == 0
  with pytest.raises(errors.ConfigError, match='did you mean </s>'):
    load(model, special_tokens={'eos': '</S>'})


def test_levanter_633_fingerprints_tell_what_ids_depend_on(folder, tmp_path):
  """Levanter PR#633: a cache of another tokenizer was used without a word."""
  first = load(folder / 'byte_bpe').fingerprint
  assert load(folder / 'byte_bpe' / 'tokenizer.json').fingerprint == first

  def merges(content):
    found = content['model']['merges']
    found[-1], found[-2] = found[-2], found[-1]

  changes = [
    dict(change=merges),
    dict(change=lambda x: x | {'normalizer': {'type': 'NFC'}}),
    dict(special_tokens_map={'pad_token': 'the'}),
  ]
  found = {first, load(folder / 'byte_bpe', extra_ids=3).fingerprint}
  for i, changed in enumerate(changes):
    (tmp_path / str(i)).mkdir()
    path = edit(folder, 'byte_bpe', tmp_path / str(i), **changed)
    found.add(load(path).fingerprint)
  assert len(found) == 5
  # How texts are shown, and how many tokens a model takes, is no part of it.
  same = edit(
    folder,
    'byte_bpe',
    tmp_path,
    lambda x: x | {'decoder': None, 'truncation': None},
    tokenizer_config={'model_max_length': 7},
  )
  assert load(same).fingerprint == first


# -- broken files -------------------------------------------------------------


def _without(*names):
  def change(content):
    part = content
    for name in names[:-1]:
      part = part[name]
    del part[names[-1]]

  return change


def _set(value, *names):
  def change(content):
    part = content
    for name in names[:-1]:
      part = part[name]
    part[names[-1]] = value

  return change


BROKEN = {
  'no model': (_without('model'), "expected one with a 'model'"),
  'no merges': (_without('model', 'merges'), 'BPE model without merges'),
  'no vocab': (_without('model', 'vocab'), 'BPE model without vocab'),
  'empty vocab': (_set({}, 'model', 'vocab'), 'got an empty vocabulary'),
  'vocab of another kind': (_set([], 'model', 'vocab'), 'without vocab'),
  'another model': (_set('Tekken', 'model', 'type'), "model of type 'Tekken'"),
  'a merge of nothing': (_set([['a']], 'model', 'merges'), 'tokenizer.json'),
  'a merge unheard of': (
    _set([['qzx', 'jj']], 'model', 'merges'),
    'out of vocabulary',
  ),
  'an id without reason': (
    _set(1 << 31, 'model', 'vocab', 'zz'),
    'expected few gaps',
  ),
  'a negative id': (_set(-1, 'model', 'vocab', 'zz'), 'cannot use'),
  'a wrong normalizer': (_set({'type': 'X'}, 'normalizer'), 'cannot use'),
  'a list': (lambda _: [1], 'expected a JSON object'),
  'special tokens of no text': (
    _set([{'id': 0}], 'added_tokens'),
    'tokenizer.json',
  ),
  'special tokens with other ids': (
    _set(77, 'added_tokens', 0, 'id'),
    "'<|endoftext|>' is 77, expected the id 0",
  ),
  'letters left out': (_set(None, 'pre_tokenizer'), 'nothing for 𐎀'),
}


@pytest.mark.parametrize('name', BROKEN)
def test_a_broken_tokenizer_is_refused(folder, tmp_path, name):
  change, match = BROKEN[name]
  with pytest.raises(errors.DataError) as e:
    load(edit(folder, 'byte_bpe', tmp_path, change))
  assert match in str(e.value) and str(tmp_path) in str(e.value)


@pytest.mark.parametrize(
  'content', [b'', b'\x93NUMPY', b'[' * 100_000, b'{"model": 1', b'null']
)
def test_what_is_no_json_is_refused(tmp_path, content):
  path = tmp_path / 'tokenizer.json'
  path.write_bytes(content)
  with pytest.raises(errors.DataError, match='is not a tokenizer.json'):
    load(path)


def test_every_cut_of_a_file_is_refused(folder, tmp_path):
  whole = (folder / 't5' / 'tokenizer.json').read_bytes()
  path = tmp_path / 'tokenizer.json'
  for size in range(0, len(whole) - 1, len(whole) // 20):
    path.write_bytes(whole[:size])
    with pytest.raises(errors.DataError, match='got .* bytes; .*whole JSON'):
      load(path)


def test_a_file_without_end_is_refused(folder, tmp_path, monkeypatch):
  monkeypatch.setattr(tokenizer_files, '_LARGEST', 1000)
  with pytest.raises(errors.DataError, match='expected 1,000 or less'):
    load(folder / 't5')


def test_places_without_a_tokenizer_are_named(folder, tmp_path):
  (tmp_path / 'vocab.txt').write_text('[PAD]')
  with pytest.raises(errors.DataError, match='without a tokenizer.json.*vocab'):
    load(tmp_path)
  near = folder / 't5' / 'tokeniser.json'
  with pytest.raises(errors.DataError, match='did you mean .*tokenizer.json'):
    load(near)
  path = edit(folder, 't5', tmp_path, special_tokens_map={'eos_token': '<end>'})
  with pytest.raises(errors.DataError, match="got '<end>' as its eos token"):
    load(path)


# -- a run's own copy ---------------------------------------------------------


def test_a_run_keeps_all_of_its_vocabulary(folder, kind, tmp_path):
  source = tmp_path / 'source'
  source.mkdir()
  path = edit(folder, kind, source)
  data = specs.Data(
    corpus='none',
    lengths={'inputs': 9},
    vocabulary=str(path),
    extra_ids=7,
    special_tokens={'pad': {'byte_bpe': 'the', 't5': '▁the'}.get(kind, 'a')},
  )
  vocabulary = package.load_vocabulary(data)
  work = tmp_path / 'work'
  work.mkdir()
  (work / vocabulary_files.MODEL).write_text('of a start before')
  package.keep_vocabulary(data, vocabulary, work)
  path.unlink()
  kept = package.kept_vocabulary(data, work)
  assert kept.vocabulary == str(work / 'vocabulary')
  again = package.load_vocabulary(kept)
  assert again.fingerprint == vocabulary.fingerprint
  assert (again.pad_id, again.eos_id) == (vocabulary.pad_id, vocabulary.eos_id)
  # Other programs find the same special tokens there.
  bytes_ = specs.Data(corpus='none', lengths={'inputs': 9})
  assert package.kept_vocabulary(bytes_, work) == bytes_


# -- training -----------------------------------------------------------------


@pytest.mark.parametrize('kind', ['wordpiece', 'byte_bpe'])
def test_training_is_repeatable(tmp_path, kind):
  # The library's own trainer of WordPiece numbers its letters by chance.
  found = set()
  for i in range(3):
    path = tmp_path / f'{i}.json'
    vocabulary = vocabulary_training.train([TEXT], 600, path, kind=kind)
    assert vocabulary.size == 600 and vocabulary.sentinels == 100
    assert vocabulary.sentinel(0) == 599
    found.add(path.read_bytes())
  assert len(found) == 1


@pytest.mark.parametrize('kind', ['wordpiece', 'byte_bpe'])
@pytest.mark.parametrize('size', [60, 1 << 20])
def test_a_size_that_does_not_fit_is_refused(tmp_path, kind, size):
  path = tmp_path / 'a.json'
  train = lambda size: vocabulary_training.train(
    [TEXT], size, path, kind=kind, extra_ids=10
  )
  with pytest.raises(errors.DataError, match=f'got {size}, expected') as e:
    train(size)
  assert not path.exists()
  fits = int(str(e.value).split('expected ')[1].split()[0])
  assert train(fits).size == fits


def test_lowercase_is_berts(tmp_path):
  path = tmp_path / 'a.json'
  train = lambda lowercase: vocabulary_training.train(
    [TEXT], 300, path, kind='wordpiece', extra_ids=0, lowercase=lowercase
  )
  small, large = train(True), train(False)
  ids = small.encode('The Café').tolist()
  assert ids == small.encode('the cafe').tolist()
  assert large.encode('The').tolist() != large.encode('the').tolist()


def test_quality_counts_bytes(folder):
  vocabulary = load(folder / 'byte_bpe')
  found = vocabulary_training.quality(vocabulary, ['天天', 'é'])
  tokens = sum(map(len, vocabulary.encode_batch(['天天', 'é'])))
  assert found == (8 / tokens, 0.0)
