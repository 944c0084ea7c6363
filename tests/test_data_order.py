import collections
import itertools

import numpy as np
import pytest
from scipy import stats

from t5x_lite.data import order


def test_every_example_comes_once_an_epoch():
  for n in [*range(1, 201), 1000, 4096, 4097, 99_991]:
    found = order.permutation(n, 0, 3, np.arange(n))
    assert np.array_equal(np.sort(found), np.arange(n)), n


def test_a_place_does_not_depend_on_those_beside_it():
  n = 1000
  epochs = np.arange(n) % 7
  whole = order.permutation(n, 5, epochs, np.arange(n))
  for i in (0, 1, 999):
    alone = order.permutation(n, 5, int(epochs[i]), np.array([i]))
    assert alone.tolist() == [whole[i]]


def test_the_order_is_pinned():
  # A change here makes runs go on with other data than they began with.
  found = order.permutation(100, 0, 1, np.arange(8))
  assert found.tolist() == [82, 63, 99, 87, 26, 45, 47, 29]


def test_seeds_and_epochs_are_uncorrelated():
  n = 20_000
  orders = [
    order.permutation(n, seed, epoch, np.arange(n))
    for seed in (0, 1)
    for epoch in (0, 1, 2)
  ]
  orders.append(np.arange(n))
  for a, b in itertools.combinations(orders, 2):
    assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(n)
    assert (a == b).sum() < 10  # 1 of a Poisson law


@pytest.mark.parametrize('n', [2, 3, 4, 5])
def test_all_orders_of_few_are_equally_likely(n):
  epochs = 12_000
  found = order.permutation(
    n, 2, np.repeat(np.arange(epochs), n), np.tile(np.arange(n), epochs)
  ).reshape(epochs, n)
  counts = collections.Counter(map(tuple, found.tolist()))
  every = [counts[p] for p in itertools.permutations(range(n))]
  assert stats.chisquare(every).pvalue > 1e-4


def test_places_and_neighbours_are_uniform():
  n, epochs = 20, 8_000
  found = order.permutation(
    n, 3, np.repeat(np.arange(epochs), n), np.tile(np.arange(n), epochs)
  ).reshape(epochs, n)
  for place in (0, 7, 19):
    counts = np.bincount(found[:, place], minlength=n)
    assert stats.chisquare(counts).pvalue > 1e-4
  pairs = np.bincount(found[:, 0] * n + found[:, 1], minlength=n * n)
  assert stats.chisquare(pairs[pairs > 0]).pvalue > 1e-4
  assert (pairs > 0).sum() == n * (n - 1)
  shifts = np.bincount((found[:, 1] - found[:, 0]) % n, minlength=n)[1:]
  assert stats.chisquare(shifts).pvalue > 1e-4


def test_a_trillion_examples_take_no_memory():
  n = 10**12 + 39
  found = order.permutation(n, 0, 0, np.arange(n - 1000, n))
  assert len(set(found.tolist())) == 1000
  assert found.min() >= 0 and found.max() < n
  tenths = np.bincount(found * 10 // n, minlength=10)
  assert stats.chisquare(tenths).pvalue > 1e-4


def test_places_in_a_row_are_as_each_by_itself():
  # Those are found by windows, and kept.
  for n in (900, 1024, 2500, 10**9):
    for first in (0, 700, 1020, 2040):
      places = np.arange(first, min(first + 800, n))
      for epoch in (2, 3):
        # A last place of another epoch: nothing is kept.
        mixed = np.append(np.full(len(places), epoch), epoch + 1)
        alone = order.permutation(n, 4, mixed, np.append(places, 0))[:-1]
        for _ in range(2):
          found = order.permutation(n, 4, epoch, places)
          assert found.tolist() == alone.tolist()
          found += 1  # what is kept does not change with it
  assert order.permutation(9, 0, 0, []).tolist() == []
