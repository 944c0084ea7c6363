import itertools

import numpy as np
import pytest
from scipy import stats

from t5x_lite import corruptions
from t5x_lite import errors
from t5x_lite import specs
from t5x_lite.corruptions import features
from t5x_lite.corruptions import random_bits
from t5x_lite.corruptions import spans


class Vocabulary:
  """As T5's: 32,000 pieces and 100 sentinels."""

  pad_id, eos_id, sentinels, size = 0, 1, 100, 32100

  def sentinel(self, i):
    assert np.max(i, initial=0) < self.sentinels
    return self.size - 1 - i

  def is_sentinel(self, ids):
    return np.asarray(ids) >= self.size - self.sentinels


VOCABULARY = Vocabulary()


def draw(rows, seed=0):
  none = np.zeros(rows, int)
  return random_bits.Draw(seed, 'corruption', none, np.arange(rows))


# -- bits ---------------------------------------------------------------------


@pytest.mark.parametrize(
  'counter, key, words',
  [
    ('0 0 0 0', '0 0', '6627e8d5 e169c58d bc57ac4c 9b00dbd8'),
    (
      'ffffffff ffffffff ffffffff ffffffff',
      'ffffffff ffffffff',
      '408f276d 41c83b0e a20bc7c6 6d5451fd',
    ),
    (
      '243f6a88 85a308d3 13198a2e 03707344',
      'a4093822 299f31d0',
      'd16cfe09 94fdcceb 5001e420 24126ea1',
    ),
  ],
)
def test_philox_gives_the_known_answers_of_random123(counter, key, words):
  found = random_bits.philox(
    [np.array(int(word, 16)) for word in counter.split()],
    [int(word, 16) for word in key.split()],
  )
  assert [f'{int(word):08x}' for word in found] == words.split()


def test_bits_depend_on_the_example_and_not_on_the_batch():
  index = np.array([3, 2**33 + 3, 5])
  epoch = np.array([0, 0, 7])
  whole = random_bits.bits(1, 'corruption', epoch, index, 11)
  assert whole.shape == (3, 11) and whole.dtype == np.uint32
  for i in range(3):
    alone = random_bits.bits(1, 'corruption', epoch[i], index[i : i + 1], 6)
    np.testing.assert_array_equal(whole[i : i + 1, :6], alone)
  assert random_bits.bits(1, 'corruption', 0, index, 0).shape == (3, 0)


def test_bits_differ_by_seed_stream_epoch_and_index():
  streams = [
    random_bits.bits(seed, stream, epoch, np.array([index]), 64)
    for seed in (0, 1, 2**70)
    for stream in ('corruption', 'order')
    for epoch in (0, 1)
    for index in (0, 1, 2**32)
  ]
  for a, b in itertools.combinations(streams, 2):
    assert (a == b).sum() == 0


# -- lengths ------------------------------------------------------------------


@pytest.mark.parametrize(
  'inputs, density, mean_span, expected',
  [
    (128, 0.15, 3, (141, 29)),
    (256, 0.15, 3, (284, 58)),
    (512, 0.15, 3, (568, 114)),
    (1024, 0.15, 3, (1137, 229)),
    (2048, 0.15, 3, (2274, 456)),
    (512, 0.5, 3, (766, 512)),
    (512, 0.15, 8, (588, 100)),
    (512, 0.5, 8, (908, 512)),
    (512, 0.5, 32, (990, 512)),
  ],
)
def test_lengths_are_those_of_t5(inputs, density, mean_span, expected):
  assert spans.random_spans_lengths(inputs, density, mean_span) == expected


def test_halves_are_rounded_to_even():
  # 10 * .15 = 1.5 -> 2 tokens; 30 * .15 = 4.5 -> 4 tokens, 4/8 = .5 -> 0 spans,
  # of which there is at least one.
  noise, count = spans.span_counts([10, 30], 0.15, 8)
  assert noise.tolist() == [2, 4] and count.tolist() == [1, 1]


@pytest.mark.parametrize('density, mean_span', [(0.15, 3), (0.5, 1), (0.1, 32)])
def test_what_a_text_becomes_always_fits(density, mean_span):
  objective = specs.SpanCorruption(density=density, mean_span=mean_span)
  for inputs in range(3, 200):
    length = spans.raw_length(objective, {'inputs': inputs})
    lengths = np.arange(2, length + 1)
    noise, count = spans.span_counts(lengths, density, mean_span)
    assert (lengths - noise + count + 1 <= inputs).all(), inputs
    assert length >= inputs - 2


def test_targets_are_as_long_as_they_have_to_be_unless_given():
  objective = specs.SpanCorruption()
  for given, targets in (({}, 114), ({'targets': 120}, 120)):
    found = spans.feature_lengths(objective, {'inputs': 512} | given)
    assert found == {'inputs': 512, 'targets': targets}


# -- the law ------------------------------------------------------------------


def masks(length, density, mean_span, rows, seed=0):
  starts, ends = spans.noise_spans(
    np.full(rows, length), density, mean_span, draw(rows, seed)
  )
  places = np.arange(length)
  return sum(
    (starts[:, [k]] <= places) & (places < ends[:, [k]])
    for k in range(starts.shape[1])
  ).astype(bool)


def runs(mask):
  return [len(list(run)) for _, run in itertools.groupby(mask)]


def test_all_compositions_are_equally_likely():
  rows = 200_000
  found = masks(12, 0.5, 2.0, rows)  # 6 masked of 12, in 3 spans
  words, counts = np.unique(found @ (1 << np.arange(12)), return_counts=True)
  # Two compositions of 6 into 3: C(5, 2) ways each.
  parts = [p for p in itertools.product(range(1, 5), repeat=3) if sum(p) == 6]
  expected = set()
  for visible in parts:
    for noise in parts:
      flags = []
      for v, n in zip(visible, noise, strict=True):
        flags += [0] * v + [1] * n
      expected.add(sum(flag << i for i, flag in enumerate(flags)))
  assert set(words.tolist()) == expected and len(expected) == 100
  assert stats.chisquare(counts).pvalue > 1e-4
  exact = np.array([[word >> i & 1 for i in range(12)] for word in expected])
  share = exact.mean(axis=0)
  deviation = np.sqrt(rows * share * (1 - share)) + 1e-9
  assert (np.abs(found.sum(axis=0) - rows * share) < 5 * deviation).all()


def test_masks_start_visible_and_end_masked_with_exact_counts():
  found = masks(568, 0.15, 3.0, 2000)
  assert not found[:, 0].any() and found[:, -1].all()
  assert (found.sum(axis=1) == 85).all()
  for mask in found[:200]:
    assert len(runs(mask)) == 2 * 28
  lengths = np.concatenate([runs(mask)[1::2] for mask in found])
  assert lengths.mean() == 85 / 28
  # A part of a uniform composition of 85 into 28 is k with probability
  # C(84 - k, 26) / C(84, 27).
  k = np.arange(1, 9)
  law = stats.hypergeom.pmf(0, 84, 27, k - 1) * 27 / (84 - k + 1)
  counts = np.array([(lengths == i).sum() for i in k])
  assert np.abs(counts / len(lengths) - law).max() < 0.005


def test_short_texts_mask_their_end():
  found = masks(20, 0.15, 3.0, 50)
  assert (found == (np.arange(20) >= 17)).all()
  assert (masks(2, 0.15, 3.0, 5) == [False, True]).all()


def test_rows_of_any_length_share_a_batch():
  lengths = np.array([568, 2, 20, 568, 97])
  tokens = np.random.default_rng(0).integers(3, 32000, (5, 568), np.int32)
  objective, widths = specs.SpanCorruption(), {'inputs': 512, 'targets': 114}
  whole = features.encoder_decoder(
    *spans.examples(objective, tokens, lengths, draw(5), VOCABULARY, widths), 0
  )
  for row, length in enumerate(lengths):
    text = spans.merge(
      whole['encoder_input_tokens'][row],
      whole['decoder_target_tokens'][row],
      VOCABULARY,
    )
    assert text == tokens[row, :length].tolist()
    noise, count = spans.span_counts(length, 0.15, 3.0)
    read = whole['encoder_segment_ids'][row].sum()
    said = whole['decoder_segment_ids'][row].sum()
    assert (read, said) == (length - noise + count + 1, noise + count + 1)


# -- examples -----------------------------------------------------------------


def test_the_poem():
  text = (
    '明月几时有，把酒问青天，不知天上宫阙，今夕是何年。我欲乘风归去，'
    '唯恐琼楼玉宇，高处不胜寒；起舞弄清影，何似在人间。'
  )
  starts = np.array([[6, 14, 27, 41, 47]])
  ends = starts + [2, 4, 2, 3, 1]

  class Characters(Vocabulary):
    pad_id, eos_id, sentinels, size = 0, 1, 5, 0x110005

  tokens = np.array([[ord(character) for character in text]], np.int32)
  inputs, inputs_length, targets, targets_length = spans.corrupt(
    tokens, np.array([len(text)]), starts, ends, Characters(), (60, 30)
  )

  def shown(ids):
    return ''.join(
      f'[M{0x110004 - id_}]'
      if id_ >= 0x110000
      else '[END]'
      if id_ == 1
      else chr(id_)
      for id_ in ids
    )

  assert len(text) == 57
  assert shown(inputs[0, : inputs_length[0] - 1]) == (
    '明月几时有，[M0]问青天，不知[M1]，今夕是何年。我欲[M2]归去，'
    '唯恐琼楼玉宇，高处[M3]；起舞[M4]清影，何似在人间。'
  )
  assert shown(targets[0, : targets_length[0]]) == (
    '[M0]把酒[M1]天上宫阙[M2]乘风[M3]不胜寒[M4]弄[END]'
  )
  merged = spans.merge(inputs[0], targets[0], Characters())
  assert ''.join(map(chr, merged)) == text


def example(tokens, inputs=128, targets=29, rows=1):
  tokens = np.asarray(tokens, np.int32)[None].repeat(rows, 0)
  found = spans.examples(
    specs.SpanCorruption(),
    tokens,
    np.full(rows, tokens.shape[1]),
    draw(rows),
    VOCABULARY,
    {'inputs': inputs, 'targets': targets},
  )
  return features.encoder_decoder(*found, VOCABULARY.pad_id)


def test_sentinels_count_down_from_the_last_id():
  # transformers#14282 trained on 32100, 32101, ... instead.
  batch = example(np.arange(3, 144))
  for name in ('encoder_input_tokens', 'decoder_target_tokens'):
    [row] = batch[name]
    assert row[row >= 32000].tolist() == list(range(32099, 32092, -1))


def test_transformers_12755_token_zero_in_a_text_is_a_token():
  # transformers#12755 counted tokens > 0 and failed hours into a run.
  text = np.arange(3, 144)
  text[::3] = 0
  batch = example(text, rows=64)
  assert (batch['encoder_segment_ids'] == 1).all()
  assert (batch['decoder_loss_weights'] == 1).all()
  for row in range(64):
    merged = spans.merge(
      batch['encoder_input_tokens'][row],
      batch['decoder_target_tokens'][row],
      VOCABULARY,
    )
    assert merged == text.tolist()


def test_batches_keep_the_contract():
  batch = example(np.arange(3, 100), rows=3)  # 97 tokens of 141
  for name, rows in batch.items():
    width = 128 if name.startswith('encoder') else 29
    weights = name == 'decoder_loss_weights'
    assert rows.shape == (3, width), name
    assert rows.dtype == (np.float32 if weights else np.int32), name
  for side, tokens in (('encoder', 'input'), ('decoder', 'target')):
    real = batch[f'{side}_segment_ids'] > 0
    length = real.sum(axis=1)
    places = np.arange(real.shape[1])
    assert (real == (places < length[:, None])).all()
    assert (batch[f'{side}_positions'] == np.where(real, places, 0)).all()
    rows = batch[f'{side}_{tokens}_tokens']
    assert (rows[np.arange(3), length - 1] == 1).all()  # EOS
    assert (rows[~real] == 0).all()
  said = batch['decoder_target_tokens']
  assert (batch['decoder_input_tokens'][:, 1:] == said[:, :-1]).all()
  assert (batch['decoder_input_tokens'][:, 0] == 0).all()
  weights = batch['decoder_loss_weights']
  assert (weights == (batch['decoder_segment_ids'] > 0)).all()


# -- refusals -----------------------------------------------------------------


def refuse(match, lengths, vocabulary=VOCABULARY, **fields):
  objective = specs.SpanCorruption(**fields)
  module = corruptions.OBJECTIVES[type(objective)]
  with pytest.raises(errors.ConfigError, match=match):
    module.check(objective, lengths, vocabulary)


def test_t5x_defect_17_more_spans_than_sentinels_are_refused():
  # T5X (defect 17) makes ids that collide with those of text.
  lengths = {'inputs': 4096, 'targets': 2048}
  refuse('got 100 sentinels, expected 227, one for each', lengths)
  spans.check(specs.SpanCorruption(mean_span=8.0), lengths, VOCABULARY)


def test_transformers_14199_a_vocabulary_without_sentinels_is_refused():
  # transformers#14199: "no masking, just deletes tokens".
  bare = Vocabulary()
  bare.sentinels = 0
  refuse('got 0 sentinels', {'inputs': 128, 'targets': 29}, bare)


def test_a_vocabulary_without_eos_is_refused():
  bare = Vocabulary()
  bare.eos_id = -1
  refuse('no end-of-sequence', {'inputs': 128, 'targets': 29}, bare)


@pytest.mark.parametrize(
  'match, lengths, fields',
  [
    ('expected 114 or more for 512', {'inputs': 512, 'targets': 113}, {}),
    ("has no 'inputs'", {'targets': 114}, {}),
    ('did you mean inputs', {'inputs': 9, 'targets': 9, 'input': 9}, {}),
    ('expected 3 or more', {'inputs': 2, 'targets': 9}, {}),
    ('expected 3 or more', {'inputs': 1, 'targets': 9}, {}),
    (
      'got 31 visible tokens of 307, expected 276',
      {'inputs': 308, 'targets': 600},
      {'density': 0.9, 'mean_span': 1.0},
    ),
  ],
)
def test_lengths_that_do_not_do_are_refused(match, lengths, fields):
  refuse(match, lengths, **fields)
