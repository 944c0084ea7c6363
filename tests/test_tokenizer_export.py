"""Vocabularies as Hugging Face's tokenizer files, by its own library."""

import io
import json
import random

import pytest
import sentencepiece
import tokenizers

from t5x_lite import specs
from t5x_lite.data import sentencepieces
from t5x_lite.data import vocabulary_files
from t5x_lite.data import vocabulary_training
from t5x_lite.interop import tokenizers as exported
from t5x_lite.interop import unicode_tables
from tests import test_tokenizer_json as made

# Beside letters: what normalizers, bytes, joiners and screens treat in ways of
# their own, and combining marks in and out of their canonical order.
CHARACTERS = (
  'abAB 019.,;!?<>[]/#\n\r\t\0\x01\x7f\x85\xa0éß½ﬁﬃ～１Å\u212b'
  'e\u0301\u0323\u0302\u0327\u0308ậ天😀\u200d\u200b\ufeff\u2028\u202e\u3000'
  'משहم가\u1100\u1161\u11a8▁Ġ\ufffd'
)
MODELS = {
  'unigram': {},
  'unknown': {'byte_fallback': False},
  'bpe': {'model_type': 'bpe'},
  'llama': {
    'model_type': 'bpe',
    'normalization_rule_name': 'identity',
    'remove_extra_whitespaces': False,
  },
  'as_it_is': {'normalization_rule_name': 'identity'},
  'folded': {'normalization_rule_name': 'nmt_nfkc_cf'},
  'no_prefix': {'add_dummy_prefix': False},
  'spaces': {
    'normalization_rule_name': 'nfkc',
    'remove_extra_whitespaces': False,
  },
  'phrases': {'split_by_whitespace': False},
}
JSON = ('t5', 'llama', 'wordpiece', 'byte_bpe')
KINDS = ('bytes', 'bytes_0', *MODELS, *(f'{kind}_json' for kind in JSON))
QUICK = (
  *('bytes', 'bytes_0', 'unigram', 'as_it_is', 'llama'),
  *('llama_json', 'byte_bpe_json'),
)
SPACES = (' ', '▁', 'a▁', ' ▁a', 'a ▁ b ', '\x01 a', 'a \x01 b', ' <0x41>')
SPECIAL = ('</s>', '<s>', '<pad>', '<unk>', '[SEP]', '[PAD]', '[UNK]')

folder = made.folder


def load(path, **fields):
  return vocabulary_files.load(
    specs.Data(
      corpus='none', lengths={'inputs': 9}, vocabulary=str(path), **fields
    )
  )


def train(path, **options):
  writer = io.BytesIO()
  said = dict(vocab_size=600, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(made.TEXT.splitlines()),
    model_writer=writer,
    minloglevel=3,
    **said | {'byte_fallback': True} | options,
  )
  path.write_bytes(writer.getvalue())
  return path


def vocabulary_of(kind, folder, models):
  """A vocabulary of one of KINDS; `make oracle` has them all."""
  if kind.startswith('bytes'):
    return load('bytes', extra_ids=0 if kind == 'bytes_0' else 100)
  if kind in MODELS:
    path = models / f'{kind}.model'
    if not path.exists():
      train(path, **MODELS[kind])
    return load(path)
  return load(folder / kind.removesuffix('_json'), extra_ids=20)


@pytest.fixture(scope='module')
def models(tmp_path_factory):
  return tmp_path_factory.mktemp('models')


@pytest.fixture(params=QUICK)
def kind(request):
  return request.param


@pytest.fixture
def vocabulary(kind, folder, models):
  return vocabulary_of(kind, folder, models)


def texts(count):
  """As many texts, none of which reads like a special token."""
  draw = random.Random(1)
  whole = [*made.ODD, *SPACES, *made.TEXT.splitlines()[:200]]
  whole += [f'  {text}  x' for text in whole]
  while len(whole) < count:
    whole.append(''.join(draw.choices(CHARACTERS, k=draw.randrange(1, 50))))
  return [x for x in whole if not any(name in x for name in SPECIAL)]


def prompts(count, sentinels):
  """Texts of words, with sentinels between, before and behind them."""
  draw = random.Random(2)
  words = sorted({*made.TEXT.split()}) + ['天', '(é', '\n', ' ', '  ', '']
  for _ in range(count):
    parts = [draw.choice(words) + draw.choice(' ') for _ in range(9)]
    for at in draw.sample(range(9), draw.randrange(1, 4)):
      parts[at] = f'<extra_id_{draw.randrange(sentinels)}>' + draw.choice(
        ('', ' ')
      )
    yield ''.join(parts)


def alike(ids, other):
  """Whether ids are the same, or the other way of two that score the same.

  SentencePiece adds scores in float32, so that which of `--` and `-` comes
  first in `---` hangs on all that stands before.
  """
  return sorted(ids) == sorted(other)


def loaded(path):
  return tokenizers.Tokenizer.from_file(str(path / 'tokenizer.json'))


def test_ids_are_ours(vocabulary, tmp_path):
  notes = exported.write(tmp_path, vocabulary, ends_with_eos=True)
  assert 'gives our ids for all of 1,000 texts' in notes[0]
  theirs = loaded(tmp_path)
  whole = texts(600)
  given = theirs.encode_batch(whole)
  ties = 0
  for text, ids, other in zip(
    whole, vocabulary.encode_batch(whole), given, strict=True
  ):
    ids = [*ids.tolist(), vocabulary.eos_id]
    assert alike(ids, other.ids), ascii(text)
    ties += ids != other.ids
  for text in prompts(100, vocabulary.sentinels):
    ids = vocabulary.encode(text, sentinels=True).tolist()
    other = theirs.encode(text, add_special_tokens=False).ids
    assert alike(ids, other), ascii(text)
    ties += ids != other
    if vocabulary.unk_id not in ids:
      shown = theirs.decode(ids, skip_special_tokens=False)
      assert shown == vocabulary.decode(ids)
  assert ties < 15


def test_a_prompt_has_no_end(vocabulary, tmp_path):
  exported.write(tmp_path, vocabulary, ends_with_eos=False, model_max_length=77)
  ids = vocabulary.encode('the class').tolist()
  assert loaded(tmp_path).encode('the class').ids == ids
  config = json.loads((tmp_path / 'tokenizer_config.json').read_text())
  assert config['padding_side'] == 'left'
  assert config['model_max_length'] == 77
  names = [f'<extra_id_{i}>' for i in range(vocabulary.sentinels)]
  assert config['additional_special_tokens'] == names


def test_spiece_is_the_model_before_sentinels(models, tmp_path):
  vocabulary = vocabulary_of('unigram', None, models)
  exported.write(tmp_path, vocabulary, ends_with_eos=True)
  base = (models / 'unigram.model').read_bytes()
  found = sentencepieces.read(tmp_path / 'spiece.model')
  assert (
    found.SerializeToString()
    == type(found).FromString(base).SerializeToString()
  )
  config = json.loads((tmp_path / 'tokenizer_config.json').read_text())
  assert (config['tokenizer_class'], config['extra_ids']) == (
    'T5Tokenizer',
    100,
  )
  # A model that brings its sentinels keeps them.
  path = tmp_path / 'own.model'
  vocabulary_training.train([made.TEXT], 500, path, extra_ids=9)
  exported.write(tmp_path, load(path), ends_with_eos=True)
  assert sentencepieces.read(tmp_path / 'spiece.model').pieces[-1].piece == (
    '<extra_id_0>'
  )
  config = json.loads((tmp_path / 'tokenizer_config.json').read_text())
  assert config['extra_ids'] == 0


def test_what_no_tokenizer_json_says_is_told(tmp_path):
  path = train(tmp_path / 'a.model', treat_whitespace_as_suffix=True)
  (tmp_path / 'out').mkdir()
  notes = exported.write(tmp_path / 'out', load(path), ends_with_eos=True)
  assert 'use SentencePiece itself' in notes[0]
  names = sorted(x.name for x in (tmp_path / 'out').iterdir())
  assert names == [
    'special_tokens_map.json',
    'spiece.model',
    'tokenizer_config.json',
  ]


def test_other_ids_are_told(models, tmp_path, monkeypatch):
  """As where accents are lost by the library's own way with the table."""
  plain = lambda table: unicode_tables_of(table)[-3:-2]
  unicode_tables_of = unicode_tables.normalizers
  vocabulary = vocabulary_of('unigram', None, models)
  monkeypatch.setattr(unicode_tables, 'normalizers', plain)
  notes = exported.write(tmp_path, vocabulary, ends_with_eos=True)
  assert 'our ids for 9' in notes[0] and 'gives others for' in notes[1]


def test_a_table_is_read_as_sentencepiece_reads_it(models, tmp_path):
  vocabulary = vocabulary_of('unigram', None, models)
  normalizer = vocabulary.model.normalizer_spec
  found = unicode_tables.table(normalizer.precompiled_charsmap)
  theirs = sentencepiece.SentencePieceNormalizer(
    model_proto=vocabulary.model.SerializeToString()
  )
  draw = random.Random(0)
  for one in draw.sample(sorted(found), 2000):
    expected = f'▁a{found[one]}a'.replace('  ', ' ').replace(' ', '▁')
    assert theirs.normalize(f'a{one}a') == expected, ascii(one)
  for broken in (b'', b'\xff' * 9, normalizer.precompiled_charsmap[:5000]):
    with pytest.raises(ValueError, match='no table of a normalizer'):
      unicode_tables.table(broken)
