"""Vocabularies of others, completed or as tokenizer.json; SeqIO's own ids."""

import io
import json
from pydoc_data import topics

import pytest
import sentencepiece

from t5x_lite import cli
from t5x_lite import specs
from t5x_lite.data import sentencepieces
from t5x_lite.data import vocabularies
from t5x_lite.data import vocabulary_conversion
from t5x_lite.data import vocabulary_files

TEXT = ''.join(topics.topics[name] for name in ('for', 'while', 'try', 'with'))
LLAMA = {  # as Llama's was trained
  'model_type': 'bpe',
  'normalization_rule_name': 'identity',
  'remove_extra_whitespaces': False,
  'byte_fallback': True,
  'vocab_size': 500,
}


def load(path, **fields):
  fields = {'vocabulary': str(path), 'extra_ids': 20} | fields
  return vocabulary_files.load(
    specs.Data(corpus='none', lengths={'inputs': 9}, **fields)
  )


def train(path, **options):
  writer = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(TEXT.splitlines()),
    model_writer=writer,
    minloglevel=3,
    **options,
  )
  path.write_bytes(writer.getvalue())
  return path


@pytest.fixture(scope='module')
def llama(tmp_path_factory):
  return train(tmp_path_factory.mktemp('llama') / 'a.model', **LLAMA)


@pytest.fixture
def convert(capsys):
  def run(path, output, *words):
    code = cli.main(
      ['vocab', f'--convert={path}', f'--output={output}', *words]
    )
    said = capsys.readouterr()
    return code, said.out + said.err

  return run


def test_what_a_model_lacks_is_added(convert, llama, tmp_path):
  code, said = convert(llama, tmp_path / 'b.model', '--extra_ids=9')
  assert code == 0 and '10 pieces added: <pad> to <extra_id_0>' in said
  before, after = load(llama, extra_ids=0), load(tmp_path / 'b.model')
  assert before.pad_id == before.bos_id == 1
  assert (after.size, after.pad_id, after.eos_id) == (510, 500, 2)
  assert after.sentinel_ids.tolist() == list(range(509, 500, -1))
  for text in TEXT.splitlines():
    assert after.encode(text).tolist() == before.encode(text).tolist()
  _, said = convert(tmp_path / 'b.model', tmp_path / 'c.model')
  assert '0 pieces added' in said
  whole = (tmp_path / 'b.model').read_bytes()
  assert (tmp_path / 'c.model').read_bytes() == whole


def test_a_model_without_an_end_gets_one(convert, tmp_path):
  path = train(tmp_path / 'a.model', vocab_size=200, eos_id=-1)
  assert load(path).eos_id == -1
  assert convert(path, tmp_path / 'b.model')[0] == 0
  vocabulary = load(tmp_path / 'b.model')
  assert vocabulary.piece(vocabulary.eos_id) == '</s>'
  ids = [*vocabulary.encode('for'), vocabulary.eos_id, vocabulary.pad_id]
  assert vocabulary.decode(ids) == 'for'


def test_bpe_of_plain_text_is_a_tokenizer_json(convert, llama, tmp_path):
  code, said = convert(llama, tmp_path / 'made')
  assert code == 0 and 'the same ids' in said
  vocabulary = load(tmp_path / 'made')
  assert convert(llama, tmp_path / 'b.model')[0] == 0
  before = load(tmp_path / 'b.model')
  assert vocabulary.size == before.size
  assert vocabulary.sentinel_ids.tolist() == before.sentinel_ids.tolist()
  for name in ('pad_id', 'eos_id', 'unk_id', 'bos_id'):
    assert getattr(vocabulary, name) == getattr(before, name), name
  marked = 'try<extra_id_0> the\nwith <extra_id_3>天'
  for text in (marked, '', ' ', 'a  b ', *TEXT.splitlines()):
    for sentinels in (False, True):
      ids = before.encode(text, sentinels).tolist()
      assert vocabulary.encode(text, sentinels).tolist() == ids
      assert vocabulary.decode(ids) == before.decode(ids)


@pytest.mark.parametrize(
  'options, reason',
  [
    ({'model_type': 'unigram'}, 'a model that is not BPE'),
    ({'normalization_rule_name': 'nmt_nfkc'}, "normalization 'nmt_nfkc'"),
    ({'remove_extra_whitespaces': True}, 'double spaces that become one'),
    ({'treat_whitespace_as_suffix': True}, 'spaces at the ends of words'),
    ({'user_defined_symbols': ['<sep>']}, 'pieces of its user'),
  ],
)
def test_what_merges_can_not_say_is_refused(convert, tmp_path, options, reason):
  path = train(tmp_path / 'a.model', **LLAMA | options)
  code, said = convert(path, tmp_path / 'made')
  assert code == 3 and f'got {reason}' in said
  assert not (tmp_path / 'made').exists()


def test_other_ids_are_noticed(llama, tmp_path, monkeypatch, convert):
  merges = vocabulary_conversion.merges
  reverse = lambda model: merges(model)[::-1]
  monkeypatch.setattr(vocabulary_conversion, 'merges', reverse)
  code, said = convert(llama, tmp_path / 'made')
  assert code == 3 and 'got other ids of ' in said


def test_a_tokenizer_json_gets_sentinels(convert, llama, tmp_path):
  assert convert(llama, tmp_path / 'one', '--extra_ids=0')[0] == 0
  code, said = convert(tmp_path / 'one', tmp_path / 'two', '--extra_ids=7')
  assert code == 0 and '508 pieces, 7 of them sentinels' in said
  one, two = load(tmp_path / 'one', extra_ids=7), load(tmp_path / 'two')
  assert one.sentinel_ids.tolist() == two.sentinel_ids.tolist()
  content = json.loads((tmp_path / 'two/tokenizer.json').read_text())
  assert content['added_tokens'][-1]['content'] == '<extra_id_0>'
  assert content['added_tokens'][-1]['id'] == two.size - 1
  code, said = convert(tmp_path / 'two', tmp_path / 'b.model')
  assert code == 3 and 'no SentencePiece model gives the ids' in said


def test_nothing_to_convert_is_said(convert, llama, tmp_path):
  for output in ('b.model', 'made'):
    code, said = convert(f'{llama}s', tmp_path / output)
    assert code == 3 and f'did you mean {llama}?' in said
  (tmp_path / 'c.model').write_bytes(b'no model')
  code, said = convert(tmp_path / 'c.model', tmp_path / 'd.model')
  assert code == 3 and 'is not a SentencePiece model' in said


def test_kinds_have_their_own_files(capsys, tmp_path):
  for kind, name in (('bpe', 'a.json'), ('wordpiece', 'a.model')):
    output = f'--output={tmp_path / name}'
    assert cli.main(['vocab', '--corpus=x', f'--kind={kind}', output]) == 2
    assert f'--output of {kind} is a ' in capsys.readouterr().err


def test_ids_are_those_of_seqio(llama):
  """Of SentencePieceVocabulary and ByteVocabulary, with any extra ids."""
  import seqio

  texts = ['', 'a\0b', 'e\u0301', '\ufeffa\r\n', '\u202e天', '👩\u200d🚀']
  texts += TEXT.splitlines()[:30]
  model = sentencepieces.read(llama)
  for extra_ids in (0, 28, 100):
    for ours, theirs in (
      (
        sentencepieces.SentencePiece(model, extra_ids),
        seqio.SentencePieceVocabulary(str(llama), extra_ids),
      ),
      (vocabularies.Bytes(extra_ids), seqio.ByteVocabulary(extra_ids)),
    ):
      assert (ours.size, ours.eos_id, ours.unk_id) == (
        theirs.vocab_size,
        theirs.eos_id,
        theirs.unk_id,
      )
      ids = [x.tolist() for x in ours.encode_batch(texts)]
      assert ids == [theirs.encode(text) for text in texts]
      for i in range(extra_ids):
        assert ours.sentinel(i) == ours.size - 1 - i


def test_transformers_14199_a_vocabulary_without_sentinels_is_refused(
  llama, capsys, tmp_path
):
  """transformers#14199: spans were deleted instead of masked."""
  (tmp_path / 'my.txt').write_text(TEXT)
  code = cli.main(
    [
      'train',
      f'--corpus={tmp_path}/my.txt',
      f'--workdir={tmp_path}/run',
      f'--gin.Data.vocabulary={llama}',
      '--gin.Data.extra_ids=0',
      '--gin.Transformer.vocab_size=512',
    ]
  )
  said = capsys.readouterr().err
  assert code == 2 and 'more sentinels than the vocabulary has' in said
