import dataclasses
import functools

import numpy as np
import pytest
from scipy import stats
import tiny

from t5x_lite import corruptions
from t5x_lite import errors
from t5x_lite import specs
from t5x_lite.corruptions import spans
from t5x_lite.data import batches as batches_lib
from t5x_lite.data import building
from t5x_lite.data import store
from t5x_lite.data import vocabularies

VOCABULARY = vocabularies.Bytes(extra_ids=20)


def make_store(folder, **texts):
  folder.mkdir()
  building.write(
    folder,
    list(texts.items()),
    VOCABULARY,
    lambda: {'fingerprint': 'f'},
  )
  return store.Store(folder)


def run(inputs=24, **changes):
  fields = dict(
    model=tiny.transformer(vocab_size=384),
    data=specs.Data(corpus='none', lengths={'inputs': inputs}, extra_ids=20),
  )
  return tiny.run(**fields | changes)


RAW = spans.raw_length(specs.SpanCorruption(), {'inputs': 24})  # 26


@pytest.fixture(scope='module')
def made(tmp_path_factory):
  rng = np.random.default_rng(0)
  folder = tmp_path_factory.mktemp('batches')
  text = ''.join(map(chr, rng.integers(97, 123, 9 * RAW + 5)))
  return make_store(folder / 's', train=text, validation=text[: 4 * RAW + 1])


def batches(made, split='train', **changes):
  return batches_lib.Batches(
    run(**changes), {run().data.corpus: made}, VOCABULARY, split
  )


def rows(batch):
  """Each row of a batch, as something that can be compared."""
  return list(
    zip(*(map(tuple, rows.tolist()) for rows in batch.values()), strict=True)
  )


def texts(batch):
  return [
    VOCABULARY.decode(spans.merge(inputs, targets, VOCABULARY))
    for inputs, targets in zip(
      batch['encoder_input_tokens'], batch['decoder_target_tokens'], strict=True
    )
  ]


def test_a_batch_is_a_function_of_the_position(made):
  whole = rows(batches(made).at(0, 64))
  for size in (1, 3, 16, 64):
    again = batches(made)
    cut = [rows(again.at(at, size)) for at in range(0, 64, size)]
    assert sum(cut, [])[:64] == whole
  assert rows(batches(made, seed=1).at(0, 64)) != whole
  far = rows(batches(made).at(2**50, 4))
  assert far == rows(batches(made).at(2**50 - 3, 7))[3:]


def test_each_example_comes_once_an_epoch_and_ends_with_the_ragged_one(made):
  train = batches(made)
  assert train.num_examples == 10  # nine whole ones, and one of five tokens
  whole = VOCABULARY.decode(made.split('train').rows([0], 9 * RAW + 5)[0])
  orders = []
  for epoch in range(20):
    found = texts(train.at(10 * epoch, 10))
    starts = [whole.index(text) for text in found]
    assert sorted(starts) == [i * RAW for i in range(10)]
    assert sorted(map(len, found)) == [5] + [RAW] * 9
    orders.append(tuple(starts))
  assert len(set(orders)) == 20


def test_noise_is_new_each_epoch(made):
  objective = specs.SpanCorruption(density=0.5)
  train = batches(made, objective=objective)
  n = train.num_examples
  noise = {}
  for epoch in range(5):
    batch = train.at(n * epoch, n)
    for row, text in zip(rows(batch), texts(batch), strict=True):
      noise.setdefault(text, set()).add(row)
  assert len(noise) == n
  assert sorted(map(len, noise.values()))[1:] == [5] * (n - 1)


def test_noise_obeys_the_law_through_the_whole_pipeline(made):
  objective = specs.SpanCorruption(density=0.5, mean_span=3.0)
  train = batches(made, objective=objective)
  batch = train.at(0, 4000)
  whole = batch['encoder_segment_ids'].sum(axis=1) == 24
  raw = spans.raw_length(objective, {'inputs': 24})
  noise, count = spans.span_counts(raw, 0.5, 3.0)
  marked = VOCABULARY.is_sentinel(batch['encoder_input_tokens'][whole])
  assert (marked.sum(axis=1) == count).all()
  first = marked.argmax(axis=1)  # visible tokens before the first span
  parts = np.arange(1, raw - noise - count + 2)
  visible = raw - noise
  # Parts of a uniform composition of `visible` into `count`.
  law = np.array(
    [
      _choose(visible - k - 1, count - 2) / _choose(visible - 1, count - 1)
      for k in parts
    ]
  )
  share = np.array([(first == k).mean() for k in parts])
  sigma = np.sqrt(law * (1 - law) / whole.sum())
  assert (np.abs(share - law) < 5 * sigma + 1e-12).all()


@functools.cache
def _choose(n, k):
  if k == 0:
    return 1
  return 0 if n < k else _choose(n - 1, k - 1) + _choose(n - 1, k)


@pytest.mark.parametrize('size', [1, 2, 3, 5, 8])
def test_evaluation_reads_each_example_once(made, size):
  held_out = batches(made, 'validation')
  assert held_out.num_examples == 4  # one token is no example
  found = list(held_out.evaluation(size))
  assert {len(batch['encoder_segment_ids']) for batch in found} == {size}
  real = [batch['encoder_segment_ids'].any(axis=1) for batch in found]
  assert sum(map(sum, real)) == 4
  one = [row for batch in held_out.evaluation(1) for row in rows(batch)]
  many = [row for batch in found for row in rows(batch)]
  assert many[:4] == one
  for batch in found:
    empty = ~batch['encoder_segment_ids'].any(axis=1)
    for name, values in batch.items():
      assert (values[empty] == 0).all(), name


def test_evaluation_by_parts_of_a_batch(made):
  """A process may have rows that only fill up."""
  held_out = batches(made, 'validation')
  [whole] = held_out.evaluation(8)
  for part in np.split(np.arange(8), 4):
    [found] = held_out.evaluation(8, rows=part)
    for name, values in found.items():
      np.testing.assert_array_equal(values, whole[name][part])


def test_evaluation_is_alike_for_all_seeds(made):
  one, two = (
    [rows(b) for b in batches(made, 'validation', seed=seed).evaluation(4)]
    for seed in (0, 1)
  )
  assert one == two


def test_a_limited_evaluation_spreads_over_the_split(made):
  whole = VOCABULARY.decode(made.split('train').rows([0], 9 * RAW + 5)[0])
  [batch] = batches(made).evaluation(5, limit=5)
  starts = [whole.index(text) for text in texts(batch)]
  assert starts == [0, 2 * RAW, 4 * RAW, 6 * RAW, 8 * RAW]
  assert sum(1 for _ in batches(made).evaluation(5, limit=99)) == 2


def test_prefetching_changes_nothing(made):
  train = batches(made)
  stream = batches_lib.prefetch(train, 7, 4)
  for i in range(12):
    position, batch = next(stream)
    assert position == 7 + 4 * i and isinstance(position, int)
    assert rows(batch) == rows(train.at(position, 4))


def test_an_error_while_prefetching_reaches_the_reader(made):
  class Broken:
    def at(self, position, size, rows):
      if position >= 8:
        raise errors.DataError('shard is gone')
      return {'position': position}

  stream = batches_lib.prefetch(Broken(), 0, 4)
  assert next(stream) == (0, {'position': 0})
  assert next(stream) == (4, {'position': 4})
  with pytest.raises(errors.DataError, match='shard is gone'):
    next(stream)


def test_a_split_without_an_example_is_refused(tmp_path):
  made = make_store(tmp_path / 's', train='a')
  with pytest.raises(errors.DataError, match='got 1 tokens in 1 documents'):
    batches(made)
  with pytest.raises(errors.DataError, match='no such split'):
    batches(made, 'validation')
  two = make_store(tmp_path / 't', train='ab')
  assert texts(batches(two).at(0, 3)) == ['ab'] * 3


def test_a_vocabulary_larger_than_the_model_is_refused(made):
  # An id past the table reads the last row, or nothing, without a word.
  with pytest.raises(errors.ConfigError) as e:
    batches(made, model=tiny.transformer(vocab_size=256))
  message = str(e.value)
  assert 'has 279 ids > Transformer.vocab_size 256' in message
  assert message.endswith('fix: --gin.Transformer.vocab_size=384')
  batches(made, model=tiny.transformer(vocab_size=279))


def test_more_spans_than_sentinels_are_refused_before_training(made):
  with pytest.raises(errors.ConfigError, match='needs more sentinels'):
    batches(made, inputs=512)


def test_feature_lengths():
  spec = run(inputs=512)
  found = batches_lib.feature_lengths(spec)
  assert found == {'inputs': 512, 'targets': 114}
  assert type(spec.objective) in corruptions.OBJECTIVES


# -- other objectives and stacks ----------------------------------------------

DECODER = tiny.transformer(vocab_size=384, encoder_layers=0)
PREFIX = dataclasses.replace(DECODER, mask='prefix')


def of(made, objective, model=DECODER, split='train', seed=0, **lengths):
  return batches(
    made,
    split,
    objective=objective,
    model=model,
    seed=seed,
    data=specs.Data(corpus='none', lengths=lengths, extra_ids=20),
  )


def test_a_language_model_reads_documents_with_their_ends(tmp_path):
  documents = ['first', 'the second', '3', 'and the last one']
  made = tmp_path / 's'
  made.mkdir()
  building.write(
    made,
    [('train', text) for text in documents],
    VOCABULARY,
    lambda: {'fingerprint': 'f'},
  )
  made = store.Store(made)
  whole = [
    id_ for text in documents for id_ in [*VOCABULARY.encode(text).tolist(), 1]
  ]
  train = of(made, specs.CausalLM(), targets=8)
  assert train.num_examples == -(-len(whole) // 8)
  for epoch in range(3):
    n = train.num_examples
    batch = train.at(n * epoch, n)
    said = [
      row[weights > 0].tolist()
      for row, weights in zip(
        batch['decoder_target_tokens'],
        batch['decoder_loss_weights'],
        strict=True,
      )
    ]
    assert sorted(map(tuple, said)) == sorted(
      tuple(whole[i : i + 8]) for i in range(0, len(whole), 8)
    )
  shifted = batch['decoder_input_tokens']
  assert (shifted[:, 0] == 0).all()
  assert (shifted[:, 1:] == batch['decoder_target_tokens'][:, :-1]).all()
  assert 'encoder_input_tokens' not in batch
  assert 'decoder_bidirectional_mask' not in batch


def joined(batch):
  """Inputs and targets of the rows of a decoder alone, without EOS."""
  for row, weights, segments in zip(
    batch['decoder_target_tokens'],
    batch['decoder_loss_weights'],
    batch['decoder_segment_ids'],
    strict=True,
  ):
    said = weights > 0
    yield row[(segments > 0) & ~said][:-1], row[said][:-1]


def test_splits_are_uniform_through_the_whole_pipeline(made):
  train = of(made, specs.PrefixLM(), PREFIX, inputs=24)
  assert train.num_examples == 11  # of 23 tokens, the last of 9
  batch = train.at(0, 11_000)
  assert batch['decoder_input_tokens'].shape == (11_000, 25)
  whole = VOCABULARY.decode(made.split('train').rows([0], 9 * RAW + 5)[0])
  found = [VOCABULARY.decode([*a, *b]) for a, b in joined(batch)]
  assert {whole.index(text) for text in found} == {23 * i for i in range(11)}
  long = np.array([len(text) == 23 for text in found])
  assert long.mean() == 10 / 11
  split = np.array([len(a) for a, _ in joined(batch)])
  for rows, length in ((long, 23), (~long, 9)):
    counts = np.bincount(split[rows], minlength=length)
    assert counts[0] == 0 and len(counts) == length
    assert stats.chisquare(counts[1:]).pvalue > 1e-3
  # The start, the inputs and their EOS see each other.
  prefix = batch['decoder_bidirectional_mask'].sum(axis=1)
  np.testing.assert_array_equal(prefix, split + 2)


@pytest.mark.parametrize(
  'objective, lengths',
  [
    (specs.PrefixLM(), {'inputs': 24}),
    (specs.SpanCorruption(density=0.4), {'inputs': 24}),
    (specs.Denoisers(), {'inputs': 24, 'targets': 24}),
  ],
)
def test_stacks_differ_in_nothing_but_the_layout(made, objective, lengths):
  two = of(made, objective, tiny.transformer(vocab_size=384), **lengths)
  both, alone = two.at(5, 40), of(made, objective, **lengths).at(5, 40)
  prefix = of(made, objective, PREFIX, **lengths).at(5, 40)
  mask = prefix.pop('decoder_bidirectional_mask')
  for name, values in alone.items():
    np.testing.assert_array_equal(values, prefix[name])
  for row in range(40):
    inputs = both['encoder_input_tokens'][row]
    inputs = inputs[both['encoder_segment_ids'][row] > 0]
    said = both['decoder_target_tokens'][row]
    said = said[both['decoder_loss_weights'][row] > 0]
    whole = alone['decoder_target_tokens'][row]
    end = len(inputs) + len(said)
    assert whole[:end].tolist() == [*inputs, *said]
    assert alone['decoder_segment_ids'][row].sum() == end
    weights = alone['decoder_loss_weights'][row]
    assert weights.tolist() == [0] * len(inputs) + [1] * len(said) + [0] * (
      len(whole) - end
    )
    assert mask[row].sum() == len(inputs) + 1


def test_a_mixture_through_the_whole_pipeline(made):
  members = [
    specs.Denoiser(objective=specs.PrefixLM(), mode='a', rate=3.0),
    specs.Denoiser(objective=specs.SpanCorruption(), mode='b'),
  ]
  train = of(
    made, specs.Denoisers(members=members), PREFIX, inputs=24, targets=24
  )
  rows_ = 20_000
  batch = train.at(0, rows_)
  first = batch['decoder_target_tokens'][:, 0]
  assert set(first) == {*VOCABULARY.encode('ab')}
  share = (first == VOCABULARY.encode('a')[0]).mean()
  assert abs(share - 0.75) < 5 * np.sqrt(0.75 * 0.25 / rows_)
  # Each example meets both, and is the same text in both.
  whole = VOCABULARY.decode(made.split('train').rows([0], 9 * RAW + 5)[0])
  found = {'a': set(), 'b': set()}
  for inputs, said in joined(batch):
    mode = VOCABULARY.decode(inputs[:1])
    text = [*inputs[1:], *said]
    if mode == 'b':
      text = spans.merge([*inputs[1:], 1], [*said, 1], VOCABULARY)
    found[mode].add(whole.index(VOCABULARY.decode(text)))
  assert found['a'] == found['b'] and len(found['a']) == train.num_examples
  seeds = [
    of(
      made,
      specs.Denoisers(members=members),
      PREFIX,
      inputs=24,
      targets=24,
      seed=seed,
    ).at(0, 50)
    for seed in (0, 1)
  ]
  assert rows(seeds[0]) != rows(seeds[1])


def test_widths_are_those_of_the_batches(made):
  for model in (tiny.transformer(vocab_size=384), DECODER):
    for objective, lengths in (
      (specs.PrefixLM(), {'inputs': 24}),
      (specs.SpanCorruption(), {'inputs': 24, 'targets': 20}),
      (specs.Denoisers(), {'inputs': 24, 'targets': 20}),
    ):
      data = specs.Data(corpus='none', lengths=lengths, extra_ids=20)
      spec = run(model=model, objective=objective, data=data)
      batch = batches_lib.Batches(
        spec, {spec.data.corpus: made}, VOCABULARY, 'train'
      ).at(0, 2)
      assert batches_lib.widths(spec) == {
        side: batch[f'{side}_segment_ids'].shape[1]
        for side in ('encoder', 'decoder')
        if f'{side}_segment_ids' in batch
      }
  data = specs.Data(corpus='none', lengths={'targets': 24}, extra_ids=20)
  spec = run(model=DECODER, objective=specs.CausalLM(), data=data)
  assert batches_lib.widths(spec) == {'decoder': 24}


def test_what_a_stack_can_not_be_trained_to_do_is_refused(made):
  encoder = tiny.transformer(vocab_size=384, decoder_layers=0)
  with pytest.raises(errors.ConfigError, match='an encoder alone'):
    of(made, specs.PrefixLM(), encoder, inputs=24)
  two = tiny.transformer(vocab_size=384)
  with pytest.raises(errors.ConfigError, match='nothing for an encoder'):
    of(made, specs.CausalLM(), two, targets=24)
  for length, model in ((24, two), (25, DECODER)):
    position = specs.Learned(length=length)
    model = dataclasses.replace(model, position=position)
    of(made, specs.PrefixLM(), model, inputs=24)
    position = specs.Learned(length=length - 1)
    model = dataclasses.replace(model, position=position)
    with pytest.raises(errors.ConfigError, match=f'got {length} tokens'):
      of(made, specs.PrefixLM(), model, inputs=24)


def test_maxtext_914_571_no_process_runs_dry(made):
  """The shards of some hosts ended sooner; weights and loss slid to 0."""
  endless = batches(made)
  assert endless.num_examples == 10
  for position in range(0, 120, 4):  # 12 epochs, whose ends fall amid batches
    whole = endless.at(position, 4)
    shares = [endless.at(position, 4, np.array(n)) for n in ([0, 1], [2, 3])]
    assert [row for share in shares for row in rows(share)] == rows(whole)
    assert (whole['decoder_loss_weights'].sum(axis=1) > 0).all()
  held_out = batches(made, 'validation')  # 4 examples, in batches of 3
  shares = [
    list(held_out.evaluation(3, rows=np.array(n))) for n in ([0, 1], [2])
  ]
  assert [len(found) for found in shares] == [2, 2]
  weights = sum(
    batch['decoder_loss_weights'].sum() for found in shares for batch in found
  )
  [whole] = held_out.evaluation(4)
  assert weights == whole['decoder_loss_weights'].sum()


def test_maxtext_4756_loss_weights_are_0_or_1(made):
  """Segment ids, 1, 2, 3, ..., were taken for weights."""
  for batch in (
    batches(made).at(0, 40),
    *batches(made, 'validation').evaluation(3),
  ):
    segments = batch['decoder_segment_ids']
    np.testing.assert_array_equal(
      batch['decoder_loss_weights'], (segments > 0).astype(np.float32)
    )
