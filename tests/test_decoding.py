"""Decoding, exact: against sequences counted out and against the exact law."""

import dataclasses
import functools
import itertools

import jax
import numpy as np
import pytest

from t5x_lite import decoding
from t5x_lite import errors
from t5x_lite import specs
from tests import table_model
from tests.table_model import EOS

VOCAB = 5
TABLE = table_model.Table()
COUNTED = []  # an item for each step of a Counting model


class Counting(table_model.Table):
  def step(self, params, cache, tokens_R):
    jax.debug.callback(lambda: COUNTED.append(1))
    return super().step(params, cache, tokens_R)


@functools.partial(
  jax.jit, static_argnames=('spec', 'length', 'num_ids', 'model')
)
def run(params, batch, spec, length, num_ids=VOCAB, model=TABLE, **rows):
  return decoding.decode(
    model, params, batch, spec, length, num_ids, EOS, **rows
  )


def decode(*args, **kwargs):
  found = [np.asarray(x) for x in run(*args, **kwargs)]
  jax.effects_barrier()
  return found


def cut(row):
  """The tokens of a row to and with its end."""
  row = row.tolist()
  return row[: row.index(EOS) + 1] if EOS in row else row


def penalty(spec, tokens):
  base = (5 + tokens) / 6 if spec.penalty == 't5' else tokens
  return base**spec.length_penalty


def score(params, which, prompt, sequence):
  """The log probability of each token of a sequence."""
  before = [*prompt]
  gains = []
  for token in sequence:
    gains.append(table_model.chances(params, which, before)[token])
    before.append(token)
  return gains


# -- greedy -------------------------------------------------------------------


@pytest.mark.parametrize('spec', [specs.Greedy(), specs.Sample(temperature=0)])
def test_greedy_takes_the_likeliest_of_the_vocabulary(spec):
  params = table_model.params(6, VOCAB)
  prompts = [[], [2], [4, 3, 2], [2, 2], [3], [4]]
  batch = table_model.batch(range(6), prompts)
  tokens, log_probs, scores = decode(params, batch, spec, 6)
  assert tokens.shape == log_probs.shape == (6, 1, 6) and scores.shape == (6, 1)
  lengths = set()
  for n, prompt in enumerate(prompts):
    wanted = []
    while len(wanted) < 6 and EOS not in wanted:
      chances = table_model.chances(params, n, prompt + wanted)
      wanted.append(int(np.argmax(chances[:VOCAB])))
    assert cut(tokens[n, 0]) == wanted
    assert not tokens[n, 0, len(wanted) :].any()
    gains = score(params, n, prompt, wanted)
    gains += [0] * (6 - len(wanted))
    np.testing.assert_allclose(log_probs[n, 0], gains, atol=1e-5)
    assert scores[n, 0] == pytest.approx(sum(gains), abs=1e-5)
    lengths.add(len(wanted))
  assert len(lengths) > 1


@pytest.mark.parametrize(
  'spec', [specs.Greedy(), specs.Beam(), specs.Sample(samples=2)]
)
def test_rows_that_are_done_take_no_more_steps(spec):
  """Rows that fill up a batch are done from the start."""
  params = np.zeros((2, VOCAB, VOCAB, VOCAB + 1), np.float32)
  params[0, :, :, 2] = 50  # input 0 never ends
  params[1, :, 2, EOS] = params[1, :, 0, 2] = 50  # input 1 after two tokens
  for active, wanted in (([1, 1, 1], 8), ([0, 1, 1], 1)):
    COUNTED.clear()
    found = decode(
      params,
      table_model.batch([0, 1, 1]),
      spec,
      9,
      model=Counting(),
      active_B=np.array(active, bool),
    )
    assert len(COUNTED) == wanted
    assert cut(found[0][1, 0]) == [2, EOS]


# -- beams --------------------------------------------------------------------

# Each with another width and another number of results.
RULES = [
  specs.Beam(penalty=name, length_penalty=alpha, beams=beams, returned=best)
  for name, widths in (
    ('t5', [(3, 1), (1, 1), (4, 4), (2, 2)]),
    ('hf', [(2, 2), (4, 4), (3, 1), (1, 1)]),
  )
  for alpha, (beams, best) in zip((0.6, 0.0, 2.0, -0.7), widths)
]


def search(params, which, prompt, spec, length):
  """The same search in plain Python, to the full length: [(score, tokens)]."""
  k = spec.beams
  live, ended, cut_off = [(0.0, [])], [], []
  for n in range(1, length + 1):
    options = []
    for total, tokens in live:
      chances = table_model.chances(params, which, prompt + tokens)
      options += [
        (total + chances[token], [*tokens, token]) for token in range(VOCAB)
      ]
    options = sorted(options, key=lambda o: -o[0])[: 2 * k]
    for rank, (total, tokens) in enumerate(options):
      result = total / penalty(spec, n), tokens
      if tokens[-1] == EOS or n == length:
        if spec.penalty == 't5':
          (ended if tokens[-1] == EOS else cut_off).append(result)
        elif rank < k:
          ended.append(result)
    live = [option for option in options if option[1][-1] != EOS][:k]
  best_first = lambda results: sorted(results, key=lambda r: -r[0])
  return (best_first(ended) + best_first(cut_off))[: spec.returned]


def assert_found(found, params, prompts, wanted):
  for n, (prompt, results) in enumerate(zip(prompts, wanted, strict=True)):
    for i, (value, sequence) in enumerate(results):
      tokens, log_probs, scores = (x[n, i] for x in found)
      assert cut(tokens) == sequence
      assert not tokens[len(sequence) :].any()
      assert scores == pytest.approx(value, rel=1e-5)
      gains = score(params, n, prompt, sequence)
      np.testing.assert_allclose(log_probs[: len(gains)], gains, atol=1e-5)
      assert not log_probs[len(gains) :].any()


@pytest.mark.parametrize(
  'spec, length', [(RULES[0], 1), (RULES[4], 2), *((r, 5) for r in RULES)]
)
def test_beams_of_all_prefixes_find_the_best_of_all_sequences(spec, length):
  """Against every sequence there is, counted out."""
  params = table_model.params(3, VOCAB, seed=length)
  prompts = [[], [2, 4], [3]]
  every = VOCAB * (VOCAB - 1) ** (length - 1)
  wide = dataclasses.replace(spec, beams=every, returned=3)
  found = decode(params, table_model.batch(range(3), prompts), wide, length)
  wanted = []
  for n, prompt in enumerate(prompts):
    results = []
    for size in range(1, length + 1):
      for sequence in itertools.product(range(VOCAB), repeat=size):
        ended = sequence[-1] == EOS
        if EOS not in sequence[:-1] and (ended or size == length):
          gains = score(params, n, prompt, sequence)
          first = ended or spec.penalty == 'hf'
          value = sum(gains) / penalty(spec, size)
          results.append((not first, -value, [*sequence]))
    results.sort()
    wanted.append([(-value, sequence) for _, value, sequence in results[:3]])
  assert_found(found, params, prompts, wanted)


@pytest.mark.parametrize('spec', RULES, ids=str)
def test_few_beams_find_what_a_plain_search_finds(spec):
  """Which never ends early: so whoever ends a search early must be right."""
  params = table_model.params(32, VOCAB, seed=spec.beams)
  prompts = [[], [2], [3, 4], [4, 4, 4]] * 8
  batch = table_model.batch(range(32), prompts)
  wanted = [
    search(params, n, prompt, spec, length=7)
    for n, prompt in enumerate(prompts)
  ]
  assert_found(decode(params, batch, spec, 7), params, prompts, wanted)


def test_one_beam_without_a_penalty_is_greedy_but_for_its_end():
  """Where the greedy sequence ends, nothing that goes on is likelier."""
  params = table_model.params(8, VOCAB, scale=6)
  batch = table_model.batch(range(8))
  found = decode(params, batch, specs.Greedy(), 8)
  one = specs.Beam(beams=1, length_penalty=0.0, penalty='hf')
  beams = decode(params, batch, one, 8)
  assert np.array_equal(found[0], beams[0])


def test_a_search_ends_when_nothing_better_can_come():
  """Not at the first end, and not at the full length either."""
  params = np.full((1, VOCAB, VOCAB, VOCAB + 1), -30, np.float32)
  params[0, :, 0, [2, 3]] = np.log([0.7, 0.3])[:, None]
  params[0, :, 2, [EOS, 4]] = np.log([0.4, 0.6])[:, None]
  params[0, :, 4, [EOS, 4]] = np.log([0.9, 0.1])[:, None]
  params[0, :, 3, 3] = 0
  for alpha, steps in ((0.0, 2), (1.0, 39)):
    COUNTED.clear()
    spec = specs.Beam(beams=2, length_penalty=alpha, penalty='hf')
    found = decode(params, table_model.batch([0]), spec, 40, model=Counting())
    assert len(COUNTED) == steps
    if alpha == 0:
      assert cut(found[0][0, 0]) == [2, 4, EOS]


# -- sampling -----------------------------------------------------------------

N = 4000
LOGITS = np.array([1.0, 0.2, 1.0, -0.5, 0.2, 0.2, -3.0], np.float32)


def law(temperature, top_k, top_p):
  """The exact law of a token, in float64."""
  logits = LOGITS.astype(np.float64) / temperature
  order = np.argsort(-logits, kind='stable')
  order = order[: top_k or len(logits)]
  shares = np.exp(logits[order]) / np.exp(logits[order]).sum()
  kept = [0]
  while shares[kept].sum() < top_p - 1e-9:
    kept.append(len(kept))
  found = np.zeros(len(logits))
  found[order[kept]] = shares[kept] / shares[kept].sum()
  return found


@pytest.mark.parametrize(
  'temperature, top_k, top_p',
  [
    (1.0, 0, 1.0),
    (0.5, 0, 1.0),
    (3.0, 0, 1.0),
    (1.0, 1, 1.0),
    (1.0, 2, 1.0),
    (1.0, 4, 1.0),  # one of three equals is out, another in
    (1.0, 100, 1.0),
    (1.0, 0, 0.01),
    (1.0, 0, 0.5),
    (1.0, 0, 0.7),
    (2.0, 0, 0.9),
    (1.0, 5, 0.8),  # 0.8 of the five, not of all
    (0.7, 3, 0.99),
  ],
)
def test_samples_follow_the_law(temperature, top_k, top_p):
  """Chi-square, of one token and of two after each other."""
  keys = jax.vmap(jax.random.key)(np.arange(N))
  rows = np.broadcast_to(LOGITS, (N, len(LOGITS)))
  heat = np.full(N, temperature, np.float32)
  drawn = np.asarray(decoding.sampling.draw(keys, rows, heat, top_k, top_p))
  counts = np.bincount(drawn, minlength=len(LOGITS))
  wanted = N * law(temperature, top_k, top_p)
  assert not counts[wanted == 0].any()
  chi2 = ((counts - wanted) ** 2 / np.maximum(wanted, 1e-9))[wanted > 0].sum()
  freedom = (wanted > 0).sum() - 1
  assert chi2 < freedom + 5 * np.sqrt(2 * freedom) + 1e-9


def test_sequences_are_drawn_with_their_probability():
  """Every sequence of three tokens, and its frequency."""
  params = table_model.params(1, VOCAB, scale=0.7)[..., :VOCAB]
  spec = specs.Sample(samples=N)
  tokens, log_probs, scores = decode(params, table_model.batch([0]), spec, 3)
  counts = {}
  for row, gains in zip(tokens[0], log_probs[0], strict=True):
    sequence = tuple(cut(row))
    counts[sequence] = counts.get(sequence, 0) + 1
    wanted = score(params, 0, [], sequence)
    np.testing.assert_allclose(gains[: len(wanted)], wanted, atol=1e-5)
  np.testing.assert_allclose(scores, log_probs.sum(-1), rtol=1e-5)
  every = [
    sequence
    for size in (1, 2, 3)
    for sequence in itertools.product(range(VOCAB), repeat=size)
    if EOS not in sequence[:-1] and (sequence[-1] == EOS or size == 3)
  ]
  expected = [N * np.exp(sum(score(params, 0, [], s))) for s in every]
  assert sum(expected) == pytest.approx(N)
  chi2 = sum((counts.get(s, 0) - e) ** 2 / e for s, e in zip(every, expected))
  freedom = len(every) - 1
  assert abs(chi2 - freedom) < 5 * np.sqrt(2 * freedom)


def test_t5x_defect_1_an_array_of_temperatures_gives_independent_samples():
  """T5X drew all eight rows by one key."""
  params = np.zeros((1, 30, 30, 30), np.float32)
  params[..., EOS] = -50
  batch = table_model.batch([0] * 8)
  for temperature in (np.ones(8), np.linspace(0.5, 2, 8)):
    found = decode(
      params,
      batch,
      specs.Sample(),
      6,
      num_ids=30,
      temperature_B=temperature.astype(np.float32),
    )
    assert len({tuple(row) for row in found[0][:, 0]}) == 8


def test_each_row_by_its_own_temperature():
  """0 is greedy beside rows that are not; each as if all had it."""
  params = table_model.params(4, VOCAB, scale=0.5)
  batch = table_model.batch(range(4))
  heat = np.array([0, 1, 5, 0], np.float32)
  spec = specs.Sample(samples=20)
  mixed = decode(params, batch, spec, 5, temperature_B=heat)
  greedy = decode(params, batch, specs.Greedy(), 5)
  for row in (0, 3):
    assert (mixed[0][row] == greedy[0][row]).all()
  for row in (1, 2):
    alone = decode(
      params, batch, specs.Sample(samples=20, temperature=heat[row].item()), 5
    )
    assert np.array_equal(mixed[0][row], alone[0][row])
    assert len({tuple(tokens) for tokens in mixed[0][row]}) > 5


def test_draws_hang_on_seed_example_and_number_alone():
  """Not on the batch, the order of its rows or how many samples there are."""
  params = table_model.params(6, VOCAB, scale=0.3)
  batch = table_model.batch(range(6), [[], [2], [3, 3], [], [2, 4], [4]])
  places = np.arange(6)
  whole = decode(
    params, batch, specs.Sample(samples=3), 6, examples_B=places + 100
  )
  again = decode(
    params,
    {name: x[::-1][:4] for name, x in batch.items()},
    specs.Sample(samples=5),
    6,
    examples_B=places[::-1][:4] + 100,
  )
  assert np.array_equal(whole[0][::-1][:4], again[0][:, :3])
  for other in (
    decode(params, batch, specs.Sample(samples=3), 6, examples_B=places),
    decode(
      params, batch, specs.Sample(samples=3, seed=1), 6, examples_B=places + 100
    ),
  ):
    assert not np.array_equal(whole[0], other[0])
  assert len({tuple(row) for row in whole[0][0]}) == 3


# -- what can't be ------------------------------------------------------------


@pytest.mark.parametrize(
  'make, said',
  [
    (lambda: specs.Sample(temperature=-1.0), 'Sample.temperature.*>= 0'),
    (lambda: specs.Sample(temperature=float('nan')), 'Sample.temperature'),
    (lambda: specs.Sample(top_p=0.0), 'Sample.top_p.*> 0 and <= 1'),
    (lambda: specs.Sample(top_p=2.0), 'Sample.top_p.*> 0 and <= 1'),
    (lambda: specs.Sample(top_k=-1), 'Sample.top_k.*>= 0'),
    (lambda: specs.Sample(samples=0), 'Sample.samples.*>= 1'),
    (lambda: specs.Beam(beams=0), 'Beam.beams.*>= 1'),
    (lambda: specs.Beam(length_penalty=float('inf')), 'Beam.length_penalty'),
    (lambda: specs.Beam(penalty='gnmt'), "Beam.penalty.*'t5' or 'hf'"),
    (lambda: specs.Beam(beams=2, returned=3), 'Beam.returned.*3 of 2'),
    (
      lambda: specs.Evaluation(decoding=specs.Sample(samples=2)),
      'Evaluation.decoding.*Sample of 2',
    ),
    (lambda: decoding.check(specs.Beam(beams=6), 5), 'Beam.beams.*at most 5'),
    (lambda: decoding.check(specs.Sample(top_k=6), 5), 'Sample.top_k.*most 5'),
  ],
)
def test_wrong_settings(make, said):
  with pytest.raises(errors.ConfigError, match=said):
    make()
