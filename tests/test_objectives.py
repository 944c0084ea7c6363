"""Language models, prefix LMs and mixtures of denoisers: laws and refusals."""

import numpy as np
import pytest
from scipy import stats

from t5x_lite import corruptions
from t5x_lite import errors
from t5x_lite import specs
from t5x_lite.corruptions import denoisers
from t5x_lite.corruptions import prefix
from t5x_lite.corruptions import random_bits
from t5x_lite.corruptions import spans
from t5x_lite.data import vocabularies

VOCABULARY = vocabularies.Bytes(extra_ids=100)
EOS = VOCABULARY.eos_id
ALL = [
  (specs.CausalLM(), {'targets': 40}),
  (specs.PrefixLM(), {'inputs': 40}),
  (specs.PrefixLM(density=0.25), {'inputs': 40}),
  (specs.SpanCorruption(), {'inputs': 40}),
  (specs.Denoisers(), {'inputs': 40, 'targets': 40}),
]
names = pytest.mark.parametrize(
  'objective, lengths', ALL, ids=lambda x: str(x)[:24].split('(')[0]
)


def module(objective):
  return corruptions.OBJECTIVES[type(objective)]


def draw(rows, seed=0, epoch=0):
  return random_bits.Draw(
    seed, 'corruption', np.full(rows, epoch), np.arange(rows)
  )


def texts(rows, length, seed=0):
  rng = np.random.default_rng(seed)
  return rng.integers(3, 200, (rows, length)).astype(np.int32)


def made(objective, lengths, rows=64, text=None, seed=0):
  """(texts, their lengths, rows) of whole texts, or of these lengths."""
  own = module(objective)
  raw = own.raw_length(objective, lengths, VOCABULARY)
  tokens = texts(rows, raw)
  text = np.full(rows, raw) if text is None else text
  lengths = own.feature_lengths(objective, lengths)
  return (
    tokens,
    text,
    own.examples(
      objective, tokens, text, draw(rows, seed), VOCABULARY, lengths
    ),
  )


# -- what holds for all of them -----------------------------------------------


@names
def test_all_that_a_text_becomes_fits_and_rows_are_padded(objective, lengths):
  own = module(objective)
  own.check(objective, lengths, VOCABULARY)
  raw = own.raw_length(objective, lengths, VOCABULARY)
  text = np.arange(400) % (raw - own.MIN_LENGTH + 1) + own.MIN_LENGTH
  _, _, (inputs, inputs_B, targets, targets_B) = made(
    objective, lengths, 400, text
  )
  full = own.feature_lengths(objective, lengths)
  assert inputs.shape[1] == full.get('inputs', 0)
  assert targets.shape[1] == full['targets']
  assert inputs.dtype == targets.dtype == np.int32
  assert (targets_B >= 1).all()
  assert (inputs_B + targets_B).max() <= own.joint_length(objective, lengths)
  for rows, count in ((inputs, inputs_B), (targets, targets_B)):
    assert (count <= rows.shape[1]).all()
    if rows.size and own is not corruptions.causal:
      assert (rows[np.arange(400), count - 1] == EOS).all()
      padding = np.arange(rows.shape[1]) >= count[:, None]
      assert (rows[padding] == VOCABULARY.pad_id).all()


@names
def test_an_example_depends_on_its_index_alone(objective, lengths):
  tokens, text, whole = made(objective, lengths, 32)
  own = module(objective)
  lengths = own.feature_lengths(objective, lengths)
  picked = np.array([31, 4, 17])
  some = own.examples(
    objective,
    tokens[picked],
    text[picked],
    random_bits.Draw(0, 'corruption', np.zeros(3, int), picked),
    VOCABULARY,
    lengths,
  )
  for one, other in zip(whole, some, strict=True):
    np.testing.assert_array_equal(one[picked], other)


# -- language models ----------------------------------------------------------


def test_a_language_model_says_the_whole_text():
  tokens, text, (inputs, inputs_B, targets, targets_B) = made(*ALL[0])
  assert inputs.shape == (64, 0) and not inputs_B.any()
  np.testing.assert_array_equal(targets, tokens)
  np.testing.assert_array_equal(targets_B, text)


# -- prefix LMs ---------------------------------------------------------------


def test_the_split_is_uniform_as_t5_has_it():
  """`prefix_lm` of the t5 library: 1 to n - 1 tokens of a text of n."""
  rows = 100_000
  for length in (2, 3, 39):
    _, _, (_, inputs_B, _, targets_B) = made(
      specs.PrefixLM(), {'inputs': 40}, rows, np.full(rows, length)
    )
    assert (inputs_B + targets_B == length + 2).all()  # EOS ends both
    counts = np.bincount(inputs_B - 1, minlength=length)
    assert counts[0] == 0 and len(counts) == length
    if length > 2:
      assert stats.chisquare(counts[1:]).pvalue > 1e-3


def test_a_prefix_goes_on_in_the_targets():
  for objective, lengths in ALL[1:3]:
    tokens, _, rows = made(objective, lengths)
    for text, row, n, said, k in zip(tokens, *rows, strict=True):
      joined = [*row[: n - 1], *said[: k - 1]]
      assert joined == text.tolist()
      assert row[n - 1] == said[k - 1] == EOS


def test_lengths_of_a_prefix_lm():
  own = prefix
  # T5's chunk and its EOS fill the inputs; what is left over is targets.
  t5 = specs.PrefixLM()
  assert own.raw_length(t5, {'inputs': 512}) == 511
  assert own.feature_lengths(t5, {'inputs': 512})['targets'] == 511
  assert own.joint_length(t5, {'inputs': 512}) == 513
  quarter = specs.PrefixLM(density=0.25)
  assert own.raw_length(quarter, {'inputs': 512}) == 681  # 511 and 170
  assert own.feature_lengths(quarter, {'inputs': 512})['targets'] == 171
  for inputs in range(3, 100):
    for density in (0.01, 0.25, 0.5, 0.99):
      objective = specs.PrefixLM(density=density)
      raw = own.raw_length(objective, {'inputs': inputs})
      assert raw - own._said(raw, density) == inputs - 1 or raw == 2


def test_a_density_fixes_the_targets():
  _, _, (_, inputs_B, _, targets_B) = made(*ALL[2])
  assert set(inputs_B) == {40} and set(targets_B) == {14}
  short = np.array([2, 3, 10, 30])
  _, _, (_, _, _, targets_B) = made(*ALL[2], 4, short)
  assert (targets_B - 1).tolist() == [1, 1, 2, 8]  # halves go to even


# -- mixtures -----------------------------------------------------------------


def test_the_members_are_those_of_ul2():
  found = [
    (
      member.mode,
      getattr(member.objective, 'mean_span', None),
      member.objective.density,
    )
    for member in specs.Denoisers().members
  ]
  assert found == [
    ('[NLU]', 3, 0.15),
    ('[NLU]', 8, 0.15),
    ('[S2S]', None, 0.25),
    ('[NLG]', 3, 0.5),
    ('[NLG]', 8, 0.5),
    ('[NLG]', 64, 0.15),
    ('[NLG]', 64, 0.5),
  ]
  assert {member.rate for member in specs.Denoisers().members} == {1.0}


def member(objective, mode='', rate=1.0):
  return specs.Denoiser(objective=objective, mode=mode, rate=rate)


def test_members_are_drawn_by_their_rates():
  rates = [1.0, 2.5, 0.5, 4.0]
  mixture = specs.Denoisers(
    members=[member(specs.PrefixLM(), rate=rate) for rate in rates]
  )
  rows = 100_000
  found = denoisers.choose(mixture, draw(rows))
  counts = np.bincount(found, minlength=4)
  expected = rows * np.array(rates) / sum(rates)
  assert stats.chisquare(counts, expected).pvalue > 1e-3
  again = denoisers.choose(mixture, draw(rows, epoch=1))
  table = np.histogram2d(found, again, bins=4)[0]
  assert stats.chi2_contingency(table).pvalue > 1e-3  # new in each epoch


def test_a_member_obeys_its_law_whoever_else_is_drawn():
  """What chooses the member does not choose its spans or its split."""
  mixture = specs.Denoisers(
    members=[
      member(specs.PrefixLM(), 'a'),
      member(specs.SpanCorruption(density=0.5, mean_span=3.0), 'bc'),
    ]
  )
  lengths = {'inputs': 24, 'targets': 24}
  tokens, text, (inputs, inputs_B, targets, targets_B) = made(
    mixture, lengths, 60_000
  )
  [raw] = set(text.tolist())
  split = inputs[:, 0] == VOCABULARY.encode('a')[0]
  mode = VOCABULARY.encode('bc')
  assert (inputs[~split, :2] == mode).all()
  assert 0.49 < split.mean() < 0.51
  counts = np.bincount(inputs_B[split] - 2, minlength=raw)
  assert counts[0] == 0 and stats.chisquare(counts[1:]).pvalue > 1e-3
  noise, count = spans.span_counts(raw, 0.5, 3.0)
  assert set(inputs_B[~split]) == {raw - noise + count + 1 + 2}
  assert set(targets_B[~split]) == {noise + count + 1}
  marked = VOCABULARY.is_sentinel(inputs[~split])
  first = marked.argmax(axis=1) - 2  # visible tokens before the first span
  law = {
    k: np.prod([raw - noise - k - i for i in range(1, count - 1)])
    for k in range(1, raw - noise - count + 2)
  }
  counts = np.array([(first == k).sum() for k in law])
  law = np.array(list(law.values()))
  assert counts.sum() == (~split).sum()
  expected = counts.sum() * law / law.sum()
  assert stats.chisquare(counts, expected).pvalue > 1e-3
  for row in np.flatnonzero(~split)[:50]:
    merged = spans.merge(inputs[row, 2:], targets[row], VOCABULARY)
    assert merged == tokens[row].tolist()


def test_a_member_draws_other_words_than_the_choice():
  mixture = specs.Denoisers(members=[member(specs.PrefixLM())])
  _, _, (_, inputs_B, _, _) = made(mixture, {'inputs': 40, 'targets': 40}, 400)
  alone = made(*ALL[1], 400)[2][1]
  assert (inputs_B == alone).mean() < 0.1


def test_all_members_take_texts_of_one_length():
  lengths = {'inputs': 512, 'targets': 512}
  raw = denoisers.raw_length(specs.Denoisers(), lengths, VOCABULARY)
  # That of R, the least: 512 less five bytes of a mode, and of those 85 spans.
  assert raw == spans.raw_length(specs.SpanCorruption(), {'inputs': 507})
  assert raw == 562
  # At its own length, 766, X would need 128 sentinels (T5X's defect 17).
  assert VOCABULARY.sentinels == 100
  denoisers.check(specs.Denoisers(), lengths, VOCABULARY)


# -- refusals -----------------------------------------------------------------


@pytest.mark.parametrize(
  'objective, lengths, match',
  [
    (specs.CausalLM(), {'inputs': 8}, "no 'targets', which CausalLM needs"),
    (
      specs.CausalLM(),
      {'inputs': 8, 'targets': 8},
      "that CausalLM does not have.*got inputs.*fix.*{'targets': n}",
    ),
    (specs.PrefixLM(), {'targets': 8}, "no 'inputs', which PrefixLM needs"),
    (specs.PrefixLM(), {'inputs': 2}, 'too short for PrefixLM.*3 or more'),
    (
      specs.PrefixLM(),
      {'inputs': 9, 'targets': 7},
      'expected 8 or more for 9 inputs.*leave it out',
    ),
    (
      specs.PrefixLM(density=0.5),
      {'inputs': 9, 'target': 7},
      'got target; did you mean targets',
    ),
    (specs.Denoisers(), {'inputs': 40}, "no 'targets', which Denoisers needs"),
    (
      specs.Denoisers(),
      {'inputs': 7, 'targets': 40},
      'too short for Denoisers.*8 or more, 5 of them a mode',
    ),
    (
      specs.Denoisers(),
      {'inputs': 40, 'targets': 9},
      "expected 26 or more for 40 inputs.*fix: .*'targets': 26",
    ),
  ],
)
def test_lengths_that_do_not_do_are_refused(objective, lengths, match):
  with pytest.raises(errors.ConfigError, match=f'(?s){match}'):
    module(objective).check(objective, lengths, VOCABULARY)


@names
def test_a_vocabulary_without_an_end_is_refused(objective, lengths):
  bare = vocabularies.Bytes(extra_ids=100)
  bare.eos_id = -1
  with pytest.raises(errors.ConfigError, match='no end-of-sequence'):
    module(objective).check(objective, lengths, bare)


def test_a_member_that_can_not_be_is_named():
  few = vocabularies.Bytes(extra_ids=3)
  lengths = {'inputs': 64, 'targets': 64}
  with pytest.raises(errors.ConfigError, match='needs more sentinels') as e:
    denoisers.check(specs.Denoisers(), lengths, few)
  assert 'Denoisers.members[3]' in str(e.value)  # half of it in short spans


def test_a_mixture_of_nothing_is_refused():
  with pytest.raises(errors.ConfigError, match='members is empty'):
    specs.Denoisers(members=())
  with pytest.raises(errors.ConfigError, match='expected list of Denoiser'):
    specs.Denoisers(members=(specs.PrefixLM(),))
