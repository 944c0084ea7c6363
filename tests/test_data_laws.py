"""Laws that the batches of a mixture obey, from the store to the rows.

Each example once an epoch, orders that have nothing to do with each other, and
draws of noise that are all equally likely.
"""

import collections
import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
from scipy import stats

from t5x_lite import specs
from t5x_lite.corruptions import spans
from t5x_lite.data import mixing
from t5x_lite.data import order
from t5x_lite.data import vocabularies
from tests import tiny

VOCABULARY = vocabularies.Bytes(20)
LETTERS = 'abcdefghijklmnopqrstuvwxyz'
# Of these lengths 6, 6 and 4 tokens are masked, in 3, 3 and 2 spans.
LENGTHS = 16, 17, 12
NOISE = specs.SpanCorruption(density=0.375, mean_span=2.0)
SIGMAS = 5


def text(part, n, length):
  """A document that is like no other and tells its number."""
  words = f'{part}{n:06d}'
  return words + LETTERS[: length - len(words)]


def number(document):
  return int(document[1:7])


def a_run(paths, objective, lengths, seed=0, **fields):
  return tiny.run(
    model=tiny.transformer(vocab_size=384),
    objective=objective,
    data=specs.Data(
      mixture=specs.Mixture(parts=paths),
      lengths=lengths,
      pack=True,
      **{'held_out': 0.1, 'document': 'line'} | fields,
    ),
    seed=seed,
  )


def batches(run, split='train'):
  return tiny.batches(run, VOCABULARY, split)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Parts of 500, 200 and 40 documents, and the same as pairs."""
  found = tmp_path_factory.mktemp('laws')
  for part, count in (('a', 500), ('b', 200), ('c', 40)):
    texts = [text(part, n, LENGTHS[n % 3]) for n in range(count)]
    (found / f'{part}.txt').write_text('\n'.join(texts))
    rows = [
      {'inputs': x, 'targets': x[:7] * (n % 3)} for n, x in enumerate(texts)
    ]
    (found / f'{part}.jsonl').write_text('\n'.join(map(json.dumps, rows)))
  return found


def text_run(folder, objective=NOISE, lengths=None, **fields):
  paths = {f'{folder}/{part}.txt': r for part, r in zip('abc', (3.0, 2.0, 1.0))}
  return a_run(
    paths,
    objective,
    lengths or {'inputs': 48, 'targets': 34},
    documents=specs.Isolated(),
    **fields,
  )


def pairs_run(folder, **fields):
  paths = {
    f'{folder}/{part}.jsonl': r for part, r in zip('abc', (3.0, 2.0, 1.0))
  }
  lengths = {'inputs': 60, 'targets': 40}
  return a_run(
    paths, specs.Supervised(), lengths, **fields | {'document': None}
  )


def gathered(found, position, size, processes):
  """A batch of several processes, each of which made its rows alone."""
  shares = np.array_split(np.arange(size), processes)
  made = [found.at(position, size, rows) for rows in shares]
  return {name: np.concatenate([x[name] for x in made]) for name in made[0]}


def examples(batch):
  """Inputs and targets of each segment of each row, in turn."""
  for inputs, ids, targets, target_ids in zip(
    batch['encoder_input_tokens'],
    batch['encoder_segment_ids'],
    batch['decoder_target_tokens'],
    batch['decoder_segment_ids'],
    strict=True,
  ):
    assert ids.max() == target_ids.max() > 0
    for n in range(1, ids.max() + 1):
      yield inputs[ids == n], targets[target_ids == n]


# -- each example once an epoch -----------------------------------------------


@pytest.mark.parametrize('kind', ['text', 'pairs'])
def test_each_example_comes_once_an_epoch(folder, kind):
  """Of packed and mixed rows that 1, 2, 3 and 4 processes made in turn.

  maxtext#571: what an epoch is was not clear with many epochs and hosts.
  """
  found = batches((text_run if kind == 'text' else pairs_run)(folder))
  seen = collections.defaultdict(list)
  for step in range(90):
    batch = gathered(found, step * 8, 8, 1 + step % 4)
    for inputs, targets in examples(batch):
      if kind == 'text':
        whole = VOCABULARY.decode(spans.merge(inputs, targets, VOCABULARY))
      else:
        whole = VOCABULARY.decode(inputs[:-1])
        assert VOCABULARY.decode(targets[:-1]) == whole[:7] * (
          number(whole) % 3
        )
      assert whole == text(whole[0], number(whole), len(whole))
      seen[whole[0]].append(whole)
  for part, rows in zip('abc', found.parts.values(), strict=True):
    count = rows.examples
    starts = range(0, len(seen[part]), count)
    epochs = [seen[part][n : n + count] for n in starts]
    assert len(epochs) > (8 if part == 'c' else 1)
    every = set(epochs[0])
    assert len(every) == count
    *whole, last = epochs
    for epoch in whole:
      assert sorted(epoch) == sorted(every)
    assert len(set(last)) == len(last) and set(last) <= every
    assert all(a != b for a, b in itertools.pairwise(whole))


@pytest.mark.parametrize('run_of', [text_run, pairs_run])
def test_maxtext_914_held_out_examples_of_a_mixture_count_once(folder, run_of):
  """maxtext#914: some hosts ran dry, and the weights slid to 0."""
  found = batches(run_of(folder), 'validation')
  [whole] = found.evaluation(found.num_examples)
  wanted = whole['decoder_loss_weights'].sum(axis=1)
  assert wanted.min() > 0 and len(wanted) > 40
  for processes in (1, 2, 4):
    shares = [
      list(found.evaluation(8, rows=rows))
      for rows in np.array_split(np.arange(8), processes)
    ]
    steps = -(-found.num_examples // 8)
    assert [len(share) for share in shares] == [steps] * processes
    weights = [
      batch['decoder_loss_weights'].sum(axis=1)
      for step in zip(*shares, strict=True)
      for batch in step
    ]
    weights = np.concatenate(weights)
    np.testing.assert_array_equal(weights[: len(wanted)], wanted)
    assert not weights[len(wanted) :].any()


# -- orders -------------------------------------------------------------------


def assert_uncorrelated(orders):
  """Ranks of the same things in some orders, each against each other."""
  found = np.corrcoef([stats.rankdata(x) for x in orders])
  found -= np.eye(len(orders))
  assert np.abs(found).max() < SIGMAS / math.sqrt(len(orders[0]) - 1)


@pytest.mark.parametrize('n', [37, 1000, 1023, 4096, 4097, 99_991])
def test_orders_of_epochs_and_seeds_are_uncorrelated(n):
  places = np.arange(n)
  orders = [places]
  for seed, epoch in itertools.product((0, 1, '0 a', '0 b'), (0, 1, 2)):
    orders.append(order.permutation(n, seed, epoch, places))
  assert_uncorrelated(orders)


def test_packed_rows_of_epochs_seeds_and_parts_are_uncorrelated(tmp_path):
  """As they are read off the rows: the first example of each."""
  orders, count = [], 3000
  paths = {}
  for part in 'pq':
    rows = [
      {'inputs': text(part, n, 7 + n % 9), 'targets': ''} for n in range(count)
    ]
    file = tmp_path / f'{part}.jsonl'
    file.write_text('\n'.join(map(json.dumps, rows)))
    paths[str(file)] = 1.0
  lengths = {'inputs': 32, 'targets': 8}
  for seed in (0, 1):
    run = a_run(paths, specs.Supervised(), lengths, seed, document=None)
    for rows in batches(run).parts.values():
      for epoch in range(2):
        batch = rows.at(np.arange(rows.count) + epoch * rows.count)
        firsts = [
          number(VOCABULARY.decode(x[:7]))
          for x in batch['encoder_input_tokens']
        ]
        assert len(set(firsts)) == len(firsts) > 900
        orders.append(stats.rankdata(firsts))
  least = min(map(len, orders))  # the parts hold out others
  orders.append(np.arange(least))
  assert_uncorrelated([x[:least] for x in orders])


# -- rates --------------------------------------------------------------------


def test_any_rates_are_met():
  rng, draws = np.random.default_rng(3), 1_000_000
  for parts in (2, 7, 40, 150):
    for _ in range(5):
      rates = np.exp(rng.normal(0, 1.5, parts))
      found = mixing.Schedule(range(parts), rates, 0)
      share = rates / rates.sum()
      drawn = found.counts / found.size * draws
      sigma = np.sqrt(draws * share * (1 - share))
      assert (np.abs(drawn - draws * share) < SIGMAS * sigma).all()


def test_examples_of_packed_rows_come_at_the_rates(folder):
  """Rows of a part hold more or fewer examples, and are drawn to make up."""
  found = batches(text_run(folder))
  draws = 400_000
  part_B, number_B = found._schedule.at(np.arange(draws) + 10**9)
  drawn = []
  for n, rows in enumerate(found.parts.values()):
    starts = rows._bins.arrays['starts'].read([0], rows.count)[0]
    per_row = np.diff(np.append(starts, rows.examples))
    epoch_B, place_B = np.divmod(number_B[part_B == n], rows.count)
    drawn.append(
      sum(
        per_row[
          order.permutation(
            rows.count, rows._seed, int(epoch), place_B[epoch_B == epoch]
          )
        ].sum()
        for epoch in np.unique(epoch_B)[:50]
      )
      + per_row.sum() * max(len(np.unique(epoch_B)) - 50, 0)
    )
  total, share = sum(drawn), np.array([3, 2, 1]) / 6
  assert total > 10**6
  sigma = np.sqrt(total * share * (1 - share))
  assert (np.abs(np.array(drawn) - total * share) < SIGMAS * sigma).all()


# -- noise --------------------------------------------------------------------


def compositions(total, parts):
  """How many ways there are to cut a row of things into runs."""
  return math.comb(total - 1, parts - 1)


def assert_uniform(counts, kinds):
  """A chi-square of all that could be drawn, as a normal at 5 sigma."""
  total = sum(counts.values())
  assert len(counts) <= kinds and total > 20 * kinds
  expected = total / kinds
  found = np.zeros(kinds)
  found[: len(counts)] = list(counts.values())
  statistic = ((found - expected) ** 2 / expected).sum()
  spread = math.sqrt(2 * (kinds - 1))
  assert abs(statistic - (kinds - 1)) < SIGMAS * spread, statistic


def runs_between(tokens):
  """Tokens in front of each sentinel but behind the one before."""
  [places] = np.nonzero(VOCABULARY.is_sentinel(tokens))
  np.testing.assert_array_equal(
    tokens[places], VOCABULARY.sentinel(np.arange(len(places)))
  )
  return np.diff(places, prepend=-1) - 1


def noise_of(inputs, targets):
  """(visible runs, masked runs) of an example, as tuples."""
  assert inputs[-1] == targets[-1] == VOCABULARY.eos_id
  assert VOCABULARY.is_sentinel(inputs[-2])  # what is masked comes last
  visible = runs_between(inputs)
  masked = np.append(runs_between(targets)[1:], 0)
  masked[-1] = len(targets) - 1 - len(masked) - masked[:-1].sum()
  return tuple(visible.tolist()), tuple(masked.tolist())


def test_all_ways_to_mask_an_example_are_equally_likely(folder):
  """Of packed rows of a mixture, by epoch, whatever lies beside."""
  found = batches(text_run(folder))
  drawn = collections.defaultdict(collections.Counter)
  of_text = collections.defaultdict(list)
  for step in range(170):
    for inputs, targets in examples(found.at(step * 64, 64)):
      way = noise_of(inputs, targets)
      length = sum(map(sum, way))
      drawn[length][way] += 1
      whole = VOCABULARY.decode(spans.merge(inputs, targets, VOCABULARY))
      of_text[whole].append(way)
  for length, (masked, count) in zip(LENGTHS, ((6, 3), (6, 3), (4, 2))):
    visible = length - masked
    kinds = compositions(visible, count) * compositions(masked, count)
    assert_uniform(drawn[length], kinds)
    # From epoch to epoch an example is masked as if for the first time.
    ways = [x for t, x in of_text.items() if len(t) == length]
    again = sum(a == b for x in ways for a, b in itertools.pairwise(x))
    tries = sum(len(x) - 1 for x in ways)
    sigma = math.sqrt(tries / kinds * (1 - 1 / kinds))
    assert abs(again - tries / kinds) < SIGMAS * sigma, length


UL2 = specs.Denoisers(
  members=tuple(
    specs.Denoiser(objective=objective, mode=mode, rate=rate)
    for objective, mode, rate in (
      (NOISE, 'R', 1.0),
      (specs.PrefixLM(density=0.25), 'S', 2.0),
      (dataclasses.replace(NOISE, mean_span=3.0), 'X', 0.5),
    )
  )
)


def test_ul2_members_come_at_their_rates(folder):
  lengths = {'inputs': 64, 'targets': 64}
  found = batches(text_run(folder, UL2, lengths))
  modes = VOCABULARY.encode('RSX').tolist()
  drawn, pairs, before = collections.Counter(), collections.Counter(), {}
  for step in range(60):
    for inputs, targets in examples(found.at(step * 64, 64)):
      member = modes.index(inputs[0])
      drawn[member] += 1
      if member != 1:
        whole = spans.merge(inputs[1:], targets, VOCABULARY)
        whole = VOCABULARY.decode(whole)
      else:
        whole = VOCABULARY.decode([*inputs[1:-1], *targets[:-1]])
      if whole in before:
        pairs[before[whole], member] += 1
      before[whole] = member
  share = np.array([1, 2, 0.5]) / 3.5
  total = sum(drawn.values())
  assert total > 5000
  for n, p in enumerate(share):
    sigma = math.sqrt(total * p * (1 - p))
    assert abs(drawn[n] - total * p) < SIGMAS * sigma
  # And an epoch's member does not hang on that of the epoch before.
  total = sum(pairs.values())
  for (a, b), count in pairs.items():
    p = share[a] * share[b]
    assert abs(count - total * p) < SIGMAS * math.sqrt(total * p * (1 - p))
