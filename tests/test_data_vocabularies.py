import io
from pydoc_data import topics

import numpy as np
import pytest
import sentencepiece

from t5x_lite import errors
from t5x_lite import specs
from t5x_lite.data import sentencepieces
from t5x_lite.data import vocabulary_files
from t5x_lite.data import vocabulary_training

TEXT = ''.join(
  topics.topics[name] for name in ('for', 'while', 'try', 'with', 'import')
).splitlines()
# NUL, ligature, composed and decomposed, joiner, right-to-left override, emoji.
ODD = [
  'a\0b',
  'ﬁn',
  'é',
  'e\u0301',
  'क्\u200dष',
  '\u202eabc',
  '👩\u200d🚀',
  '天',
]


def data(**fields):
  return specs.Data(corpus='none', lengths={'inputs': 9}, **fields)


def train(path, size=420, **options):
  return vocabulary_training.train(
    TEXT, size, path, **{'extra_ids': 20} | options
  )


@pytest.fixture(scope='module')
def model(tmp_path_factory):
  path = tmp_path_factory.mktemp('vocabulary') / 'a.model'
  train(path)
  return path


@pytest.fixture(scope='module')
def bare(tmp_path_factory):
  """A model without sentinels, and without padding: pad_id is -1."""
  path = tmp_path_factory.mktemp('vocabulary') / 'bare.model'
  writer = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(TEXT),
    model_writer=writer,
    vocab_size=400,
    byte_fallback=True,
    minloglevel=3,
  )
  path.write_bytes(writer.getvalue())
  return path


# -- bytes --------------------------------------------------------------------


def test_bytes_are_those_of_byt5():
  vocabulary = vocabulary_files.load(data(extra_ids=0))
  assert vocabulary.size == 259
  ids = (vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id)
  assert ids == (0, 1, 2)
  assert vocabulary.encode('aé\n').tolist() == [100, 198, 172, 13]
  # The sentinels are byte values that UTF-8 never has.
  assert vocabulary.sentinel_ids.tolist() == list(range(258, 247, -1))
  assert not vocabulary.is_sentinel(vocabulary.encode('\U0010ffff')).any()


def test_bytes_with_extra_ids():
  vocabulary = vocabulary_files.load(data())
  assert (vocabulary.size, vocabulary.sentinels) == (359, 100)
  assert vocabulary.sentinel(0) == 358
  assert vocabulary.sentinel(np.array([1, 99])).tolist() == [357, 259]


@pytest.mark.parametrize('text', [*ODD, '', 'naïve\r\nline\ttab'])
def test_seqio_415_bytes_round_trip(text):
  vocabulary = vocabulary_files.load(data())
  assert vocabulary.decode(vocabulary.encode(text)) == text


def test_pieces_of_bytes_are_safe_to_print():
  vocabulary = vocabulary_files.load(data())
  pieces = [vocabulary.piece(i) for i in range(vocabulary.size)]
  assert pieces[:4] == ['<pad>', '</s>', '<unk>', '<0x00>']
  assert pieces[3 + ord('a')] == 'a' and pieces[3 + 27] == '<0x1B>'
  assert pieces[-1] == '<extra_id_0>'
  assert all(piece.isprintable() for piece in pieces)


# -- sentinels in text --------------------------------------------------------


@pytest.fixture(params=['bytes', 'trained', 'bare'])
def vocabulary(request, model, bare):
  name = {'bytes': 'bytes', 'trained': str(model), 'bare': str(bare)}
  return vocabulary_files.load(
    data(vocabulary=name[request.param], extra_ids=20)
  )


def test_sentinels_of_a_prompt(vocabulary):
  text = 'She sees<extra_id_0> tonight<extra_id_19>, and nobody'
  ids = vocabulary.encode(text, sentinels=True)
  marked = vocabulary.is_sentinel(ids)
  expected = [vocabulary.sentinel(0), vocabulary.sentinel(19)]
  assert ids[marked].tolist() == expected
  assert vocabulary.decode(ids) == text


def test_a_sentinel_in_a_corpus_is_text(vocabulary):
  text = 'She sees <extra_id_0> tonight'
  ids = vocabulary.encode(text)
  assert not vocabulary.is_sentinel(ids).any()
  assert vocabulary.decode(ids) == text
  [batch] = vocabulary.encode_batch([text])
  assert batch.tolist() == ids.tolist()


def test_an_unknown_sentinel_is_refused(vocabulary):
  with pytest.raises(errors.DataError, match='got <extra_id_20>'):
    vocabulary.encode('a<extra_id_20>b', sentinels=True)


def test_controls_say_nothing(vocabulary):
  ids = vocabulary.encode('the river')
  padded = [*ids, vocabulary.eos_id, vocabulary.pad_id]
  assert vocabulary.decode(padded).strip() == 'the river'
  assert vocabulary.decode([]) == ''


# -- SentencePiece ------------------------------------------------------------


def test_transformers_14282_sentinels_of_t5_are_32099_downward(bare):
  # transformers#14282: 32100, 32101, ... were trained on instead. T5's model
  # has 32,000 pieces and none of the sentinels.
  proto = sentencepieces.read(bare)
  while len(proto.pieces) < 32000:
    proto.pieces.add(piece=f'filler{len(proto.pieces)}', score=-99)
  vocabulary = sentencepieces.SentencePiece(proto, 100)
  assert vocabulary.size == 32100
  assert vocabulary.sentinel(np.arange(3)).tolist() == [32099, 32098, 32097]
  assert vocabulary.sentinel(99) == 32000
  assert vocabulary.piece(32099) == '<extra_id_0>'


def test_a_trained_model_has_its_ids_in_place(model):
  vocabulary = vocabulary_files.load(data(vocabulary=str(model), extra_ids=7))
  assert vocabulary.size == 420  # its own sentinels, not seven more
  assert vocabulary.sentinel_ids.tolist() == list(range(419, 399, -1))
  ids = (vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id)
  assert ids == (0, 1, 2)
  plain = sentencepiece.SentencePieceProcessor(model_file=str(model))
  assert plain.get_piece_size() == 420 and plain.bos_id() == -1
  assert plain.encode('<extra_id_3>')[-1] == 416  # other tools see them too


def test_a_model_without_padding_pads_with_its_bos(bare):
  vocabulary = vocabulary_files.load(data(vocabulary=str(bare)))
  plain = sentencepiece.SentencePieceProcessor(model_file=str(bare))
  assert plain.pad_id() == -1
  assert vocabulary.pad_id == plain.bos_id() == 1
  assert vocabulary.eos_id == plain.eos_id() == 2


def test_a_prompt_is_encoded_as_in_training(vocabulary):
  # No stray space before a sentinel, and none made up after it.
  text = 'She paints<extra_id_0> at noon, and no<extra_id_1>body'
  spaced = text.replace('<extra_id_0>', ' <extra_id_0>')
  ids = vocabulary.encode(text, sentinels=True)
  if isinstance(vocabulary, sentencepieces.SentencePiece):
    assert vocabulary.encode(spaced, sentinels=True).tolist() == ids.tolist()
    first = vocabulary.encode('<extra_id_0> at noon', sentinels=True)
    assert first[0] == vocabulary.sentinel(0)
  assert vocabulary.decode(ids) == text


@pytest.mark.parametrize('text', ODD)
def test_byte_fallback_says_everything(model, text):
  vocabulary = vocabulary_files.load(data(vocabulary=str(model)))
  ids = vocabulary.encode(text)
  assert vocabulary.unk_id not in ids
  normal = sentencepiece.SentencePieceProcessor(model_file=str(model))
  assert vocabulary.decode(ids) == normal.normalize(text).strip('▁')


def test_a_long_text_is_cut_without_loss(model, monkeypatch):
  vocabulary = vocabulary_files.load(data(vocabulary=str(model)))
  text = '  '.join(TEXT) + ' ' + 'x' * 300
  whole = vocabulary.encode(text)
  for longest in (40, 97, 250):
    monkeypatch.setattr(sentencepieces, '_LONGEST', longest)
    assert vocabulary.encode(text).tolist() == whole.tolist()


def test_fingerprints_tell_vocabularies_apart(model, bare):
  found = [
    vocabulary_files.load(data(**fields)).fingerprint
    for fields in (
      {},
      {'extra_ids': 0},
      {'vocabulary': str(model)},
      {'vocabulary': str(bare)},
      {'vocabulary': str(bare), 'extra_ids': 3},
    )
  ]
  assert len(set(found)) == 5
  again = vocabulary_files.load(data(vocabulary=str(model))).fingerprint
  assert again == found[2]


@pytest.mark.parametrize('cut', ['empty', 'garbage', 'cut', 'between fields'])
def test_a_broken_model_is_refused(model, tmp_path, cut):
  whole = model.read_bytes()
  proto = sentencepieces.read(model)
  proto.ClearField('normalizer_spec')
  path = tmp_path / 'b.model'
  path.write_bytes(
    {
      'empty': b'',
      'garbage': b'not a model' * 300,
      'cut': whole[:-30],
      'between fields': proto.SerializeToString(),
    }[cut]
  )
  with pytest.raises(errors.DataError) as e:
    vocabulary_files.load(data(vocabulary=str(path)))
  assert f'at {path}; got {path.stat().st_size} bytes, sha256 ' in str(e.value)


def test_a_missing_model_is_named_with_its_neighbour(model, tmp_path):
  near = str(model).replace('a.model', 'aa.model')
  with pytest.raises(errors.DataError, match=f'did you mean {model}'):
    vocabulary_files.load(data(vocabulary=near))
  with pytest.raises(errors.DataError, match='did you mean bytes'):
    vocabulary_files.load(data(vocabulary='byte'))
  with pytest.raises(errors.DataError, match='is a folder'):
    vocabulary_files.load(data(vocabulary=str(tmp_path)))


# -- training -----------------------------------------------------------------


def test_training_is_repeatable(model, tmp_path):
  train(tmp_path / 'again.model')
  assert (tmp_path / 'again.model').read_bytes() == model.read_bytes()


def test_training_reads_a_bounded_sample():
  kept = vocabulary_training._sample(range(100_000), 50, seed=0)
  assert len(kept) == 50 and kept == sorted(kept)
  assert 30_000 < np.mean(kept) < 70_000
  assert kept != vocabulary_training._sample(range(100_000), 50, seed=1)
  assert vocabulary_training._sample(range(9), 50, seed=0) == list(range(9))


def test_training_leaves_no_long_line_out():
  # SentencePiece drops what is over 4,192 bytes without a word.
  words = ['ever', 'and'] * 4000
  lines = list(vocabulary_training._sentences([' '.join(words), '天' * 5000]))
  assert max(len(line.encode()) for line in lines) <= 4000
  assert ''.join(lines) == ' '.join(words) + '天' * 5000


@pytest.mark.parametrize(
  'size, options, match',
  [
    (9000, {}, r'got 9000, expected \d+ or less; fix: a size of \d+'),
    (285, {}, r'got 285, expected \d+ or more; fix: a size of \d+'),
    (100, {}, 'got 100, expected 280 or more: 20 sentinels, 256 bytes'),
  ],
)
def test_a_size_that_does_not_fit_is_refused(tmp_path, size, options, match):
  path = tmp_path / 'c.model'
  with pytest.raises(errors.DataError, match=match) as e:
    train(path, size, **options)
  assert not path.exists()
  if '\\d' in match:  # what it offers works
    fits = int(str(e.value).split('a size of ')[1].split(',')[0])
    assert train(path, fits).size == fits


def test_training_on_nothing_is_refused(tmp_path):
  with pytest.raises(errors.DataError, match='no text'):
    vocabulary_training.train(
      [' ', ''], 400, tmp_path / 'd.model', extra_ids=20
    )


def test_bpe_without_byte_fallback(tmp_path):
  vocabulary = train(tmp_path / 'e.model', 150, kind='bpe', byte_fallback=False)
  assert vocabulary.size == 150
  assert vocabulary.unk_id in vocabulary.encode('天')
