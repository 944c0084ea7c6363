"""Predictions of a saved model, against its teacher-forced probabilities."""

import jax
import numpy as np
import pytest

from t5x_lite import checkpoints
from t5x_lite import errors
from t5x_lite import infer
from t5x_lite import models
from t5x_lite import partitioning
from t5x_lite import record
from t5x_lite import specs
from tests import tiny

EOS, SENTINEL = 1, 278  # of bytes with 20 sentinels, downward from 278
SIZE = 279
LENGTH = 8
SENTINELS = 20  # each as an ender leaves a blank empty: one candidate
TEXTS = ['one', '', 'a longer line: ' + 'z' * 60, 'to be <extra_id_0>', 'déjà']


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  """A run directory with steps 2 and 4 of an untrained model.

  Its table has more rows than there are bytes and sentinels, and those past
  the vocabulary are likely; so are the end and sentinels, so that spans end.
  """
  run = tiny.run(
    tiny.transformer(vocab_size=384, encoder_layers=1, decoder_layers=1)
  )
  model = models.build(run.model)
  folder = tmp_path_factory.mktemp('run')
  with checkpoints.Checkpoints(folder, specs.Checkpoints()) as saver:
    for step in (2, 4):
      params = tiny.params(model, seed=step)
      kernel = params['logits']['kernel']
      kernel[:, SIZE:] *= 3
      kernel[:, [EOS, *range(SENTINEL - 4, SENTINEL + 1)]] *= 2.5
      saver.save(step, {'params': params}, {'examples': 0}, record.record(run))
  return folder


@pytest.fixture(scope='module')
def predictor(workdir):
  return infer.Predictor(workdir)


@pytest.fixture(scope='module')
def chances(predictor):
  """Log probabilities of each next token, by the whole model each time."""
  apply = jax.jit(predictor.model.apply)

  def found(text, before):
    tokens = np.array([predictor.tokens(text)], np.int32)
    decoder = np.zeros((1, 64), np.int32)
    decoder[0, 1 : len(before) + 1] = before
    batch = {
      'encoder_input_tokens': tokens,
      'encoder_segment_ids': np.ones_like(tokens),
      'decoder_input_tokens': decoder,
      'decoder_segment_ids': np.ones_like(decoder),
    }
    logits = np.asarray(apply(predictor.params, batch), np.float64)
    logits = logits[0, len(before)]
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())

  return found


def greedy_by_hand(chances, text, length):
  """(tokens before the end, score) by the whole model for each token."""
  tokens, score = [], 0.0
  for _ in range(length):
    log_p = chances(text, tokens)
    token = int(np.argmax(log_p[:SIZE]))
    score += log_p[token]
    if token == EOS:
      break
    tokens.append(token)
  return tokens, score


def test_predictions_and_their_scores(predictor, chances):
  """Each line as if it were alone, in the order of the input."""
  found = predictor.predict(TEXTS, LENGTH)
  ended = 0
  for text, example in zip(TEXTS, found, strict=True):
    tokens, score = greedy_by_hand(chances, text, LENGTH)
    assert example['prediction'] == predictor.vocabulary.decode(tokens)
    assert example['score'] == pytest.approx(score, abs=1e-3)
    assert example['tokens'] == min(len(tokens) + 1, LENGTH)
    ended += len(tokens) < LENGTH
  assert ended  # in some row before the others


def test_scores_of_given_targets(predictor, chances):
  """The sum over the target's tokens and its end, whatever else is scored."""
  targets = ['', 'b', '<extra_id_1>né', 'c' * 70, 'b']
  found = predictor.score(TEXTS, targets)
  for text, target, result in zip(TEXTS, targets, found, strict=True):
    tokens = predictor.tokens(target)
    assert result['tokens'] == len(tokens)
    if len(tokens) < 64:  # as many as `chances` takes
      wanted = sum(
        chances(text, tokens[:n])[token] for n, token in enumerate(tokens)
      )
      assert result['score'] == pytest.approx(wanted, abs=1e-3)
  [alone] = predictor.score(TEXTS[3:4], targets[3:4])
  assert alone['score'] == pytest.approx(found[3]['score'], rel=1e-5)


def test_t5x_250_rows_lie_as_in_training(predictor, monkeypatch):
  """T5X placed the batches of inference by a path of its own, and failed."""
  wanted = partitioning.batch_sharding(predictor.mesh)
  assert predictor.mesh.size == 8
  seen = []

  def decode(params, batch, examples_B, length, **_):
    for x in (*batch.values(), examples_B):
      assert x.sharding.is_equivalent_to(wanted, x.ndim)
      assert {len(s.data) for s in x.addressable_shards} == {1}
    for x in jax.tree.leaves(params):
      seen.append(x.sharding.is_fully_replicated)
    return np.ones((8, 1, length)), np.zeros((8, 1, length)), np.zeros((8, 1))

  monkeypatch.setattr(predictor, '_decode', decode)
  assert len(predictor.predict(TEXTS, LENGTH)) == len(TEXTS)
  assert not all(seen)  # each device holds a share of the parameters too


def test_beams_and_their_order(predictor, chances):
  """Each result's score is the model's own, and the first are the best."""
  how = specs.Beam(beams=3, returned=3, length_penalty=1.0, penalty='hf')
  for example in predictor.predict(TEXTS, LENGTH, how):
    ranks = [option['penalized'] for option in example['predictions']]
    assert ranks == sorted(ranks, reverse=True) and len(set(ranks)) == 3
    for option in example['predictions']:
      rank = option['score'] / option['tokens']
      assert option['penalized'] == pytest.approx(rank, rel=1e-5)
  [best] = predictor.predict(TEXTS[:1], LENGTH, specs.Beam(beams=3))
  tokens = predictor.tokens(best['prediction'])
  score = sum(
    chances(TEXTS[0], tokens[:n])[token]
    for n, token in enumerate(tokens[: best['tokens']])
  )
  assert best['score'] == pytest.approx(score, abs=1e-3)
  greedy = predictor.predict(TEXTS, LENGTH)
  alone = specs.Beam(beams=3, length_penalty=0.0, penalty='hf')
  for one, beam in zip(greedy, predictor.predict(TEXTS, LENGTH, alone)):
    assert beam['score'] >= one['score'] - 1e-4


def test_samples_hang_on_the_seed_and_the_number_of_the_line(predictor):
  """Whatever else is in the batch, on however many devices."""
  how = specs.Sample(samples=2, temperature=2.0, seed=5)
  found = predictor.predict(TEXTS, LENGTH, how, [9, 7, 5, 3, 1])
  again = predictor.predict(TEXTS[::-1][:3], LENGTH, how, [1, 3, 5])
  for example, other in zip(found[::-1], again):
    for one, two in zip(example['predictions'], other['predictions']):
      assert one['prediction'] == two['prediction']
      assert one['score'] == pytest.approx(two['score'], rel=1e-4)
    assert example['predictions'][0] != example['predictions'][1]
  assert found != predictor.predict(TEXTS, LENGTH, how, [1, 3, 5, 7, 9])
  same = predictor.predict(['one'] * 8, LENGTH, how, temperatures=[0, *[1] * 7])
  [greedy] = predictor.predict(['one'], LENGTH)
  zero, *rest = [
    [option['prediction'] for option in example['predictions']]
    for example in same
  ]
  assert zero == [greedy['prediction']] * 2
  assert len({tuple(options) for options in rest}) == 7


@pytest.mark.parametrize('count', [1, 8, 9])
def test_rows_that_fill_up_a_batch_are_cut(predictor, count):
  texts = (TEXTS * 2)[:count]
  found = predictor.predict(texts, LENGTH, at_least=11)
  wanted = predictor.predict(TEXTS, LENGTH)
  assert len(found) == count
  for example, other in zip(found, wanted * 2):
    assert example['prediction'] == other['prediction']
    assert example['score'] == pytest.approx(other['score'], rel=1e-5)


def test_encoding_marks_blanks_and_ends(predictor):
  assert predictor.tokens('a<extra_id_1>') == [97 + 3, SENTINEL - 1, EOS]
  assert predictor.tokens('') == [EOS]
  assert len(predictor.tokens('x' * 64)) == 65
  with pytest.raises(errors.DataError, match='no such sentinel'):
    predictor.tokens('<extra_id_20>')


def fill_by_hand(chances, text, numbers, candidates, length):
  """Probabilities as products, a token at a time: [[(p, tokens), ...], ...]."""

  def ends(token):
    return token == EOS or 259 <= token < SIZE

  before, found = [], []
  for number in numbers:
    before.append(SENTINEL - number)
    first = chances(text, before)[:SIZE].copy()
    enders = [token for token in range(SIZE) if ends(token)]
    enders.remove(max(enders, key=lambda token: first[token]))
    first[enders] = -np.inf  # an empty blank is one candidate
    options = []
    for token in np.argsort(-first)[:candidates]:
      tokens, p = [], 1.0
      token = int(token)
      while True:
        log_p = chances(text, before + tokens)
        p *= np.exp(log_p[token])
        if ends(token):
          break
        tokens.append(token)
        if len(tokens) == length:
          token = int(np.argmax(chances(text, before + tokens)[:SIZE]))
          if ends(token):
            p *= np.exp(chances(text, before + tokens)[token])
          break
        token = int(np.argmax(chances(text, before + tokens)[:SIZE]))
      options.append((p, tokens))
    options.sort(key=lambda option: -option[0])
    found.append(options)
    before += options[0][1]
  return found


@pytest.mark.parametrize(
  'text, numbers, length',
  [
    ('to be <extra_id_0> to be', [0], 5),
    ('<extra_id_0> and <extra_id_1> of <extra_id_2>', [0, 1, 2], 2),
    ('the number counts <extra_id_3>', [3], 3),
  ],
)
def test_blanks(predictor, chances, text, numbers, length):
  found = predictor.fill(text, candidates=4, length=length)
  wanted = fill_by_hand(chances, text, numbers, 4, length)
  assert [blank['blank'] for blank in found] == [
    f'<extra_id_{number}>' for number in numbers
  ]
  for blank, options in zip(found, wanted, strict=True):
    got = [c['probability'] for c in blank['candidates']]
    assert got == sorted(got, reverse=True)
    np.testing.assert_allclose(got, [p for p, _ in options], rtol=1e-3)
    assert [c['text'] for c in blank['candidates']] == [
      predictor.vocabulary.decode(tokens).strip() for _, tokens in options
    ]


def test_no_blank(predictor):
  assert predictor.fill('nothing to fill in', candidates=2) == []


def test_more_candidates_than_tokens(predictor, monkeypatch):
  def decode(inputs, length, prefixes):
    assert len(inputs) == len(prefixes) == SIZE - SENTINELS
    shape = len(inputs), 1, length
    return np.zeros(shape, np.int32), np.zeros(shape), np.zeros(shape[:2])

  monkeypatch.setattr(predictor, 'decode', decode)
  [blank] = predictor.fill('<extra_id_0>', candidates=1000)
  assert len(blank['candidates']) == SIZE - SENTINELS


def test_t5x_defect_10_the_latest_step_of_a_workdir(workdir, predictor):
  assert predictor.step == 4
  older = infer.Predictor(workdir, step=2)
  assert older.step == 2
  same = jax.tree.map(np.array_equal, older.params, predictor.params)
  assert not any(jax.tree.leaves(same))
  with pytest.raises(errors.CheckpointError, match=r'one of \[2, 4\]'):
    infer.Predictor(workdir, step=3)


def test_no_checkpoint(tmp_path):
  with pytest.raises(errors.CheckpointError, match='no checkpoint'):
    infer.Predictor(tmp_path)


def test_a_text_beyond_all_bounds_is_refused(predictor):
  """Attention over it would take memory with the square of its length."""
  most = infer.LONGEST * predictor.run.data.lengths['inputs']
  predictor.tokens('x' * (most - 1))
  with pytest.raises(errors.DataError, match='too long.*xxx'):
    predictor.predict(['short', 'x' * most], LENGTH)
