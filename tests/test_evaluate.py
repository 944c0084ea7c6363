"""Held-out measures against one example at a time, in float64 by hand."""

import functools
import math

import jax
import numpy as np
import pytest

from t5x_lite import corruptions
from t5x_lite import data
from t5x_lite import evaluate
from t5x_lite import models
from t5x_lite import partitioning
from t5x_lite import specs
from t5x_lite.data import building
from t5x_lite.data import vocabularies
from tests import tiny

VOCABULARY = vocabularies.Bytes(extra_ids=20)
RUN = tiny.run(tiny.transformer(vocab_size=384))
RAW = corruptions.OBJECTIVES[specs.SpanCorruption].raw_length(
  RUN.objective, RUN.data.lengths
)


@pytest.fixture(scope='module')
def batches(tmp_path_factory):
  """Batches of a validation split of so many examples, the last a short one."""
  folder = tmp_path_factory.mktemp('stores')
  letters = np.random.default_rng(0).integers(97, 123, 31 * RAW)
  text = ''.join(map(chr, letters))

  def make(count):
    path = folder / str(count)
    if not path.exists():
      path.mkdir()
      building.write(
        path,
        [('validation', text[: (count - 1) * RAW + 7])],
        VOCABULARY,
        lambda: {'fingerprint': 'f'},
      )
    found = data.Batches(
      RUN, {RUN.data.corpus: data.Store(path)}, VOCABULARY, 'validation'
    )
    assert found.num_examples == count
    return found

  return make


@pytest.fixture(scope='module')
def measured(batches):
  """(what measures given batches, the model's logits of one example)."""
  model = models.build(RUN.model)
  params = tiny.params(model)

  @functools.cache
  def made(devices, size):
    mesh = partitioning.make_mesh(RUN.mesh, jax.devices()[:devices])
    held_out = evaluate.HeldOut(model, batches(1), VOCABULARY, mesh, size)
    placed = jax.device_put(params, jax.NamedSharding(mesh, jax.P()))
    return mesh, held_out, placed

  def measure(batches, limit=None, devices=8, size=5):
    mesh, held_out, placed = made(devices, size)
    # 8 devices share rows evenly: a batch of 5 is filled up to 8.
    assert held_out.batch_size == -(-size // devices) * devices
    held_out.batches = batches
    with jax.set_mesh(mesh):
      return held_out(placed, limit)

  apply = jax.jit(model.apply)
  return measure, lambda batch: np.asarray(apply(params, batch), np.float64)


def one_by_one(batches, logits_of):
  """The metrics by their definitions, token by token."""
  gains, right, texts, kinds = [], [], [], []
  for batch in batches.evaluation(1):
    logits = logits_of(batch)[0]
    for row, token, weight in zip(
      logits,
      batch['decoder_target_tokens'][0],
      batch['decoder_loss_weights'][0],
      strict=True,
    ):
      if weight:
        gains.append(np.log(np.exp(row - row.max()).sum()) + row.max())
        gains[-1] -= row[token]
        right.append(row.argmax() == token)
        texts.append(3 <= token < 259)  # bytes; then sentinels, before EOS
        kinds.append(token)
  gains, right, texts = map(np.array, (gains, right, texts))
  words = np.array(kinds)[texts]
  share = np.array([(words == word).mean() for word in sorted(set(words))])
  return {
    'loss': gains.mean(),
    'accuracy': right.mean(),
    'text_loss': gains[texts].mean(),
    'text_accuracy': right[texts].mean(),
    'marker_loss': gains[~texts].mean(),
    'unigram_entropy': -(share * np.log(share)).sum(),
    'tokens': len(gains),
    'text_tokens': texts.sum(),
    'examples': batches.num_examples,
  }


@pytest.mark.parametrize('count', [1, 7, 8, 9, 31])
def test_t5x_741_each_example_is_counted_once(batches, measured, count):
  """Whatever fills up the last batch (T5X hung there, or counted it)."""
  measure, logits_of = measured
  wanted = one_by_one(batches(count), logits_of)
  for devices, size in ((8, 5), (8, 16), (1, 1), (1, 3), (1, 8)):
    got = measure(batches(count), devices=devices, size=size)
    assert list(got) == list(wanted)
    for name, value in wanted.items():
      assert got[name] == pytest.approx(value, rel=1e-6), (name, devices, size)
    for name in ('tokens', 'text_tokens', 'examples'):
      assert type(got[name]) is int and got[name] == wanted[name]
  assert 0 < got['text_tokens'] < got['tokens']


class Nothing:
  """Batches of a split without examples."""

  num_examples = 0

  def evaluation(self, size, limit=None, rows=None):
    return iter(())


def test_nothing_to_measure_gives_counts_alone(measured):
  found = measured[0](Nothing())
  assert found == {'tokens': 0, 'text_tokens': 0, 'examples': 0}
  assert set(found) <= set(evaluate.METRICS)


class SomeCount:
  """Batches of which every third target counts for nothing."""

  def __init__(self, batches):
    self.batches, self.num_examples = batches, batches.num_examples

  def evaluation(self, size, limit=None, rows=None):
    for batch in self.batches.evaluation(size, limit, rows):
      weights = batch['decoder_loss_weights'].copy()
      weights[:, ::3] = 0
      yield batch | {'decoder_loss_weights': weights}


def test_what_has_no_weight_is_not_counted(batches, measured):
  measure, logits_of = measured
  some = SomeCount(batches(7))
  got, wanted = measure(some), one_by_one(some, logits_of)
  assert got == pytest.approx(wanted, rel=1e-6)
  assert got['text_tokens'] < measure(batches(7))['text_tokens']


def test_limit(batches, measured):
  measure, _ = measured
  assert measure(batches(9), limit=3)['examples'] == 3
  assert measure(batches(9), limit=100) == measure(batches(9))


class OnlyEnds:
  """Batches whose targets are ends of sequences alone."""

  def __init__(self, batches):
    self.batches, self.num_examples = batches, batches.num_examples

  def evaluation(self, size, limit, rows):
    for batch in self.batches.evaluation(size, limit, rows):
      targets = np.full_like(batch['decoder_target_tokens'], 1)
      yield batch | {'decoder_target_tokens': targets}


def test_no_text_is_no_division_by_zero(batches, measured):
  found = measured[0](OnlyEnds(batches(1)))
  assert found['text_tokens'] == 0
  assert not found.keys() & {'text_loss', 'text_accuracy', 'unigram_entropy'}
  assert found['marker_loss'] == pytest.approx(found['loss'])


def test_rows_past_the_vocabulary_are_no_text(batches, measured):
  mesh = partitioning.make_mesh(RUN.mesh)
  model = models.build(RUN.model)
  held_out = evaluate.HeldOut(model, batches(1), VOCABULARY, mesh, 8)
  assert np.flatnonzero(held_out.is_text_V).tolist() == list(range(2, 259))
  assert len(held_out.is_text_V) == 384


@pytest.mark.parametrize(
  'counts, wanted',
  [
    ([0, 0], 0.0),
    ([5], 0.0),
    ([2, 2, 0, 4], 1.5 * math.log(2)),
    ([1, 3], -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))),
  ],
)
def test_entropy(counts, wanted):
  got = evaluate.entropy(np.array(counts))
  assert got == pytest.approx(wanted)
  assert f'{got:.4f}' == f'{wanted:.4f}'  # not -0.0000
