"""Mixtures: whose turn it is, and at what rates."""

import collections
import json

import numpy as np
import pytest

from t5x_lite import errors
from t5x_lite import fit
from t5x_lite import specs
from t5x_lite.data import mixing
from t5x_lite.data import mixtures
from t5x_lite.data import vocabularies
from tests import tiny

VOCABULARY = vocabularies.Bytes(20)
NAMES = ['a', 'b', 'c']


@pytest.mark.parametrize(
  'rates', [(1, 1, 1), (5, 3, 2), (1, 1000, 3), (0.3, 1e-4, 7.7)]
)
def test_rates_are_met(rates):
  count = 1_000_000
  found = mixing.Schedule(NAMES, rates, seed=3)
  part_B, number_B = found.at(np.arange(count) + 12_345)
  share = np.array(rates) / np.sum(rates)
  drawn = np.bincount(part_B, minlength=3)
  sigma = np.sqrt(count * share * (1 - share))
  assert (np.abs(drawn - count * share) < 5 * sigma).all()
  for n in range(3):  # each part's examples in turn, none twice
    np.testing.assert_array_equal(np.diff(number_B[part_B == n]), 1)


def test_a_place_does_not_hang_on_what_was_asked_before():
  places = np.array([7, 10**15 + 3, 2, 2**40, 7])
  one = mixing.Schedule(NAMES, (5, 3, 2), seed=1)
  whole = one.at(places)
  for n, place in enumerate(places):
    other = mixing.Schedule(NAMES, (5, 3, 2), seed=1).at(np.array([place]))
    assert [x[0] for x in other] == [x[n] for x in whole]


def test_turns_are_in_no_pattern():
  found = mixing.Schedule(NAMES[:2], (1, 1), seed=0)
  part_B, _ = found.at(np.arange(1 << 17))
  other_B, _ = mixing.Schedule(NAMES[:2], (1, 1), seed=1).at(np.arange(1 << 17))
  x, y = 2.0 * part_B - 1, 2.0 * other_B - 1
  bound = 5 / np.sqrt(len(x))
  assert abs((x * y).mean()) < bound  # of two seeds
  for lag in (1, 2, 3, 7):
    assert abs((x[lag:] * x[:-lag]).mean()) < bound


def test_a_part_too_rare_is_refused():
  with pytest.raises(errors.ConfigError, match='too rare at b') as e:
    mixing.Schedule(['a', 'b'], (1, 1e-8), seed=0)
  assert '1e-08 of the examples' in str(e.value)
  with pytest.raises(errors.ConfigError, match='too rare at b'):
    mixing.Schedule(['a', 'b'], (1e308, 1e-320), seed=0)
  found = mixing.Schedule(['a', 'b'], (1e308, 1e308), seed=0)
  assert found.shares.tolist() == [0.5, 0.5]


# -- of corpora ---------------------------------------------------------------


def corpora(folder, sizes=(400, 100, 7)):
  found = []
  for name, size in zip(NAMES, sizes, strict=True):
    file = folder / f'{name}.txt'
    file.write_text(
      '\n'.join(f'{name} {n:05d} ' + 'text of it ' * 3 for n in range(size))
    )
    found.append(str(file))
  return found


def a_run(parts, objective=None, lengths=None, batch_size=8, **fields):
  mixture = {
    name: fields.pop(name)
    for name in ('temperature', 'maximum')
    if name in fields
  }
  return tiny.run(
    model=tiny.transformer(vocab_size=384),
    objective=objective or specs.SpanCorruption(),
    data=specs.Data(
      mixture=specs.Mixture(parts=parts, **mixture),
      lengths=lengths or {'inputs': 32},
      **{'documents': specs.Isolated(), 'held_out': 0.1} | fields,
    ),
    batch_size=batch_size,
  )


def batches(run, split='train'):
  return tiny.batches(run, VOCABULARY, split)


@pytest.mark.parametrize('pack', [False, True])
def test_examples_come_at_the_rates(tmp_path, pack):
  paths = corpora(tmp_path)
  rates = dict(zip(paths, (1.0, 2.0, 1.0), strict=True))
  found = batches(a_run(rates, pack=pack, lengths={'inputs': 128}))
  shares = found.shares()
  for path, share in zip(paths, (0.25, 0.5, 0.25), strict=True):
    wanted, got = shares[path]
    assert wanted == pytest.approx(share)
    assert got == pytest.approx(share, rel=0.02)
  drawn = collections.Counter()
  for step in range(40):
    batch = found.at(step * 64, 64)
    ids = batch['encoder_segment_ids']
    first = batch['encoder_input_tokens'][:, 0]
    for letter, examples in zip(first, ids.max(1), strict=True):
      drawn[int(letter)] += int(examples)
  total = sum(drawn.values())
  if not pack:  # a first token may be masked
    names = VOCABULARY.encode('abc')
    found = np.array([drawn[int(x)] for x in names]) / total
    assert (np.abs(found / found.sum() - [0.25, 0.5, 0.25]) < 0.03).all()


def test_the_order_of_a_part_does_not_hang_on_the_others(tmp_path):
  a, b, c = corpora(tmp_path)

  def seen(parts):
    found = batches(a_run(parts))
    part_B, number_B = found._schedule.at(np.arange(4000))
    at = list(found.parts).index(a)
    assert number_B[part_B == at].tolist() == list(range((part_B == at).sum()))
    return found.parts[a].at(np.arange(600))

  one, other = seen({a: 1.0, b: 1.0}), seen({c: 9.0, a: 2.0, b: 0.5})
  for name, x in one.items():
    np.testing.assert_array_equal(x, other[name])


def test_a_part_that_ends_starts_again_in_another_order(tmp_path):
  """maxtext#571: nothing runs dry, and each example comes once an epoch."""
  a, _, c = corpora(tmp_path)
  run = a_run({a: 1.0, c: 1.0}, specs.CausalLM(), {'targets': 64}, held_out=0.0)
  model = tiny.transformer(vocab_size=384, encoder_layers=0)
  found = batches(tiny.replace(run, model=model))
  orders = []
  for epoch in range(3):
    rows = found.parts[c].at(np.arange(7) + 7 * epoch)
    orders.append([bytes(x) for x in rows['decoder_target_tokens']])
  assert orders[0] != orders[1] != orders[2]
  assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])
  batch = found.at(10**6, 32)
  assert (batch['decoder_loss_weights'].sum(1) > 0).all()


def test_temperature_and_maximum_are_t5s(tmp_path):
  paths = corpora(tmp_path)
  run = a_run(dict.fromkeys(paths), temperature=2.0, maximum=300)
  counts = dict(zip(paths, (400, 100, 7), strict=True))
  found = mixtures.rates(run, counts)
  rates = np.array(list(found.values()))
  assert rates * 300**0.5 == pytest.approx([300**0.5, 10.0, 7**0.5])
  run = a_run(dict.fromkeys(paths), temperature=1e-3)
  assert list(mixtures.rates(run, counts).values()) == [1.0, 0.0, 0.0]


def test_rows_of_a_batch_are_the_same_for_any_process(tmp_path):
  paths = corpora(tmp_path)
  found = batches(a_run(dict.fromkeys(paths, 1.0), pack=True))
  whole = found.at(160, 16)
  for rows in ([3], [0, 15, 7], list(range(8))):
    for name, x in found.at(160, 16, np.array(rows)).items():
      np.testing.assert_array_equal(x, whole[name][rows])


def test_held_out_documents_of_all_parts_are_measured_once(tmp_path):
  a, b, _ = corpora(tmp_path)
  run = a_run({a: 1.0, b: 3.0}, lengths={'inputs': 64})
  found = batches(run, 'validation')
  texts = []
  for batch in found.evaluation(8):
    for inputs, targets, ids in zip(
      batch['encoder_input_tokens'],
      batch['decoder_target_tokens'],
      batch['encoder_segment_ids'],
      strict=True,
    ):
      if ids.any():
        texts.append(bytes(inputs) + bytes(targets))
  counts = [part.examples for part in found.parts.values()]
  assert len(texts) == len(set(texts)) == found.num_examples == sum(counts)
  assert min(counts) > 0


@pytest.mark.parametrize(
  'parts, more, what',
  [
    ({}, {}, 'Mixture.parts is empty'),
    ({'a': 1.0, 'b': None}, {}, 'some of Mixture.parts have a rate'),
    ({'a': 1.0}, {'temperature': 2.0}, 'of parts without a rate'),
    ({'a': -1.0}, {}, 'wrong value for Mixture.parts'),
    ({'a': 'x'}, {}, 'wrong value for Mixture.parts'),
  ],
)
def test_wrong_mixtures_are_refused(parts, more, what):
  with pytest.raises(errors.ConfigError, match=what):
    specs.Mixture(parts=parts, **more)


def test_an_empty_part_is_named(tmp_path):
  a, b, _ = corpora(tmp_path)
  (tmp_path / 'b.txt').write_text('\n \n')
  with pytest.raises(errors.DataError, match='no text') as e:
    batches(a_run({a: 1.0, b: 1.0}))
  assert b in str(e.value)


def test_pairs_are_mixed_too(tmp_path):
  paths = []
  for name in 'pq':
    file = tmp_path / f'{name}.jsonl'
    rows = [{'inputs': f'{name}{n}', 'targets': name * 3} for n in range(50)]
    file.write_text('\n'.join(map(json.dumps, rows)))
    paths.append(str(file))
  run = a_run(
    dict(zip(paths, (1.0, 3.0), strict=True)),
    specs.Supervised(),
    {'inputs': 24, 'targets': 12},
    documents=specs.Concat(),
    pack=True,
  )
  batch = batches(run).at(0, 1024)  # a block: the rates are exact in it
  p, q = VOCABULARY.encode('pq')
  found = batch['decoder_target_tokens']
  assert (found == q).sum() / (found == p).sum() == pytest.approx(3, rel=0.01)
  assert batch['encoder_segment_ids'].max() == 3
  for row, ids in zip(found, batch['decoder_segment_ids'], strict=True):
    assert not {int(p), int(q)} <= set(row[ids > 0].tolist())


def test_the_order_in_which_parts_are_named_changes_nothing(tmp_path):
  a, b, c = corpora(tmp_path)
  one = batches(a_run({a: 1.0, b: 2.0, c: 3.0}))
  other = batches(a_run({c: 3.0, a: 1.0, b: 2.0}))
  assert one.fingerprint == other.fingerprint
  for name, x in one.at(40, 16).items():
    np.testing.assert_array_equal(x, other.at(40, 16)[name])


def test_a_part_by_two_spellings_is_refused(tmp_path):
  a, _, _ = corpora(tmp_path)
  again = f'{tmp_path}/./a.txt'
  with pytest.raises(errors.ConfigError, match='two parts .* are the same'):
    batches(a_run({a: 1.0, again: 1.0}))


def test_a_missing_part_is_named_as_such(tmp_path):
  a, _, _ = corpora(tmp_path)
  run = a_run({a: 1.0, f'{tmp_path}/d.txt': 1.0})
  with pytest.raises(errors.DataError, match='no such corpus') as e:
    fit.open_stores(run, VOCABULARY, print)
  assert 'a part of Data.mixture' in str(e.value) and 'd.txt' in str(e.value)
