"""AutoTokenizer of transformers gives our ids, from the files that we write.

Run by `make oracle`. Everything is made here, nothing is downloaded.
"""

import pytest

from t5x_lite.interop import tokenizer_folders
from t5x_lite.interop import tokenizers as exported
from tests import test_tokenizer_export as made
from tests import test_tokenizer_import as imported

transformers = pytest.importorskip(
  'transformers', reason='needs transformers; run `make oracle`'
)

pytestmark = pytest.mark.oracle

folder, models = made.folder, made.models


@pytest.fixture(params=made.KINDS)
def kind(request):
  return request.param


@pytest.fixture
def both(kind, folder, models, tmp_path, monkeypatch):
  """A vocabulary, and what AutoTokenizer makes of its files."""
  monkeypatch.setenv('HF_HUB_OFFLINE', '1')
  vocabulary = made.vocabulary_of(kind, folder, models)
  exported.write(tmp_path, vocabulary, ends_with_eos=True, model_max_length=64)
  theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
  assert theirs.is_fast and theirs.model_max_length == 64
  return vocabulary, theirs


def test_ids_and_texts_are_ours(both):
  vocabulary, theirs = both
  assert len(theirs) == vocabulary.size
  whole, ties = made.texts(2500), 0
  given = theirs(whole)['input_ids']
  for text, ids, other in zip(
    whole, vocabulary.encode_batch(whole), given, strict=True
  ):
    ids = [*ids.tolist(), vocabulary.eos_id]
    assert made.alike(ids, other), ascii(text)
    ties += ids != other
    if vocabulary.unk_id not in ids:
      shown = theirs.decode(other, skip_special_tokens=True)
      assert shown == vocabulary.decode(other), ascii(text)
  assert ties < 30


def test_prompts_are_ours(both):
  vocabulary, theirs = both
  for text in made.prompts(500, vocabulary.sentinels):
    ids = vocabulary.encode(text, sentinels=True).tolist()
    other = theirs(text)['input_ids']
    assert made.alike([*ids, vocabulary.eos_id], other), ascii(text)
    if vocabulary.unk_id not in ids:
      assert theirs.decode(ids) == vocabulary.decode(ids)


def test_special_tokens_are_ours(both):
  vocabulary, theirs = both
  assert theirs.eos_token_id == vocabulary.eos_id
  assert theirs.pad_token_id == vocabulary.pad_id
  for role in ('unk', 'bos'):
    ours = getattr(vocabulary, f'{role}_id')
    other = getattr(theirs, f'{role}_token_id')
    assert other == (None if ours < 0 else ours), role
  names = theirs.additional_special_tokens
  ids = theirs.convert_tokens_to_ids(names)
  assert ids == vocabulary.sentinel_ids.tolist()


def test_batches_are_filled_up(both):
  vocabulary, theirs = both
  batch = theirs(['the class', 'the'], padding=True)
  assert [*batch] == ['input_ids', 'attention_mask']
  long, short = batch['input_ids']
  assert len(long) == len(short)
  count = sum(batch['attention_mask'][1])
  assert short[count:] == [vocabulary.pad_id] * (len(short) - count)
  cut = theirs('the class ' * 200, truncation=True)['input_ids']
  assert len(cut) == 64 and cut[-1] == vocabulary.eos_id


@pytest.mark.parametrize('kind', ['unigram', 'unknown', 'bpe'])
def test_the_slow_class_reads_spiece(both, tmp_path):
  vocabulary, _ = both
  theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, use_fast=False)
  assert not theirs.is_fast
  assert theirs.convert_tokens_to_ids('<extra_id_0>') == vocabulary.sentinel(0)
  for text in made.texts(500):
    ids = [*vocabulary.encode(text).tolist(), vocabulary.eos_id]
    assert made.alike(theirs(text)['input_ids'], ids), ascii(text)


# -- folders that transformers wrote ------------------------------------------


def _gpt2(folder, models, path):
  imported.write(path, **imported.merges(folder))
  return transformers.GPT2Tokenizer.from_pretrained(path)


def _gpt(folder, models, path):
  imported.write(path, **imported.gpt())
  fast = transformers.OpenAIGPTTokenizerFast.from_pretrained(path)
  write = fast.save_pretrained
  fast.save_pretrained = lambda path: write(path, legacy_format=True)
  return fast


def _t5(folder, models, path):
  made.vocabulary_of('unigram', folder, models)
  return transformers.T5Tokenizer(
    str(models / 'unigram.model'), extra_ids=30, legacy=True
  )


def _llama(folder, models, path):
  made.train(
    path / 'tokenizer.model', **made.MODELS['llama'], bos_id=3, pad_id=-1
  )
  return transformers.LlamaTokenizer.from_pretrained(path, legacy=True)


def _byt5(folder, models, path):
  return transformers.ByT5Tokenizer()


def _marian(folder, models, path):
  imported.marian(path, models)
  files = [str(path / x) for x in ('source.spm', 'target.spm', 'vocab.json')]
  return transformers.MarianTokenizer(*files)


def _bert(folder, models, path):
  exported.write(
    path, made.load(folder / 'wordpiece', extra_ids=0), ends_with_eos=True
  )
  return transformers.AutoTokenizer.from_pretrained(path)


FOLDERS = (_gpt2, _gpt, _t5, _llama, _byt5, _marian, _bert)


# Marian's class asks for a library that it does not use for ids.
@pytest.mark.filterwarnings('ignore:Recommended. pip install sacremoses')
@pytest.mark.parametrize('make', FOLDERS)
def test_folders_of_transformers_give_their_ids(make, folder, models, tmp_path):
  for name in ('a', 'saved'):
    (tmp_path / name).mkdir()
  theirs = make(folder, models, tmp_path / 'a')
  theirs.save_pretrained(tmp_path / 'saved')
  special = {'eos': '<unk>'} if make is _gpt else None
  found = tokenizer_folders.find(tmp_path / 'saved', special_tokens=special)
  ours = found.vocabulary
  if make not in (_gpt, _byt5, _gpt2):
    assert ours.size == len(theirs)
  if make is not _gpt:
    assert ours.eos_id == (theirs.eos_token_id or theirs.sep_token_id or 0)
  if make is _t5:
    first = theirs.convert_tokens_to_ids('<extra_id_0>')
    assert ours.sentinel(0) == first
  for text in made.texts(2000):
    other = theirs(text, add_special_tokens=False)['input_ids']
    assert made.alike(ours.encode(text).tolist(), other), ascii(text)
