"""Learning rates, each against its formula."""

import math

import numpy as np
import pytest

from t5x_lite import errors
from t5x_lite import specs
from t5x_lite.optimizers import schedules


def rates(steps, at, **choices):
  rate = schedules.learning_rate(specs.Schedule(**choices), steps)
  return [float(rate(step)) for step in at]


def test_t5_schedule():
  at = [0, 1, 9_999, 10_000, 10_001, 40_000, 1_000_000]
  got = rates(1_000_001, at, peak=0.01, hold=10_000)
  expected = [1 / math.sqrt(max(step, 10_000)) for step in at]
  np.testing.assert_allclose(got, expected, rtol=1e-6)
  assert got[-1] == pytest.approx(0.001)


def test_warmup_wastes_no_step():
  got = rates(100, range(6), peak=0.2, warmup=4, decay='constant')
  np.testing.assert_allclose(got, [0.05, 0.1, 0.15, 0.2, 0.2, 0.2], rtol=1e-6)


ENDS = {'end': 0.05}


@pytest.mark.parametrize(
  'decay, ends, share',
  [
    ('rsqrt', {}, lambda t: math.sqrt(10 / (10 + 90 * t))),
    ('linear', ENDS, lambda t: 1 - 0.9 * t),
    ('linear', ENDS | {'until': 56}, lambda t: 1 - 0.9 * min(2 * t, 1)),
    ('cosine', ENDS, lambda t: 0.1 + 0.9 * (1 + math.cos(math.pi * t)) / 2),
    ('constant', {}, lambda t: 1.0),
  ],
  ids=['rsqrt', 'linear', 'linear until', 'cosine', 'constant'],
)
def test_decays_start_at_the_hold_and_end_at_the_last_step(decay, ends, share):
  at = [7, 10, 11, 40, 55, 99, 100]
  got = rates(101, at, peak=0.5, warmup=4, hold=6, decay=decay, **ends)
  expected = [0.5 * share(max(step - 10, 0) / 90) for step in at]
  np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize('embed_dim, warmup', [(512, 4000), (1024, 10)])
def test_noam(embed_dim, warmup):
  """arXiv:1706.03762 section 5.3, with its steps from 1."""
  at = [0, 1, warmup - 2, warmup - 1, warmup, 100_000]
  peak = (embed_dim * warmup) ** -0.5
  got = rates(10, at, peak=peak, warmup=warmup, decay='noam')
  expected = [
    embed_dim**-0.5 * min((step + 1) ** -0.5, (step + 1) * warmup**-1.5)
    for step in at
  ]
  np.testing.assert_allclose(got, expected, rtol=1e-6)
  assert max(got) == got[3] == pytest.approx(peak)


@pytest.mark.parametrize(
  'choices, words',
  [
    (dict(decay='noam'), 'Schedule.warmup 0'),
    (dict(decay='noam', warmup=5, hold=1), 'Schedule.hold 1'),
    (dict(decay='rsqrt', end=0.1), 'Schedule.end'),
    (dict(decay='constant', until=7), 'Schedule.until'),
  ],
)
def test_what_a_decay_does_not_use_is_refused(choices, words):
  with pytest.raises(errors.ConfigError, match=words):
    specs.Schedule(peak=1.0, **choices)


@pytest.mark.parametrize('decay', ['rsqrt', 'linear', 'cosine', 'constant'])
def test_schedule_is_finite_at_its_edges(decay):
  for steps, warmup, hold in [(1, 0, 0), (1, 5, 5), (2, 1, 0), (2, 2, 0)]:
    got = rates(
      steps, [0, 1, 2], peak=1.0, warmup=warmup, hold=hold, decay=decay
    )
    assert np.all(np.isfinite(got)) and 0 < got[0] <= 1
