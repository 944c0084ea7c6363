"""What it costs to begin, and to go on at any place, does not grow with data.

The stores here are synthetic: their arrays are functions of the index.
"""

import json
import time
import tracemalloc

import numpy as np
import pytest

from t5x_lite import data
from t5x_lite import specs
from t5x_lite import storage
from t5x_lite.data import arrays
from t5x_lite.data import index
from t5x_lite.data import order
from t5x_lite.data import packing
from t5x_lite.data import store
from t5x_lite.data import units
from t5x_lite.data import vocabularies
from tests import tiny

VOCABULARY = vocabularies.Bytes(100)
MEAN = 500  # tokens of a document
LEAST, MOST = 10**4, 10**8


class Numbers:
  """An arrays.Array that nothing is stored of."""

  block = arrays.BLOCK

  def __init__(self, length, at, dtype=np.int64):
    self._length, self._at, self._dtype = length, at, dtype
    self.found = 0  # that were read

  def __len__(self):
    return self._length

  def read(self, starts_B, length):
    index_BL = np.asarray(starts_B)[:, None] + np.arange(length)
    self.found += index_BL.size
    found_BL = self._at(index_BL).astype(self._dtype)
    found_BL[index_BL >= self._length] = 0
    return found_BL


def scatter(n, below):
  """Numbers that look random, of whole numbers."""
  return (n * 2654435761 >> 7) % below


def start_of(n):
  """Where document n starts, each some 500 tokens behind the one before."""
  return n * MEAN + np.where(n > 0, scatter(n, 300), 0)


def start_of_side(n):
  """Where inputs and targets of pairs start in turn."""
  return n // 2 * 60 + n % 2 * 40 + np.where(n > 0, scatter(n, 15), 0)


class Store:
  """As store.Store, with so many documents or pairs, and what is made of them.

  An array is as it would be; only the members of bins are spread otherwise.
  """

  def __init__(self, count, pairs, fingerprint='f'):
    self.count, self.fingerprint = count, fingerprint
    name, at = ('pairs', start_of_side) if pairs else ('documents', start_of)
    starts = Numbers(2 * count if pairs else count, at)
    tokens = Numbers(
      count * (60 if pairs else MEAN), lambda n: 3 + scatter(n, 200)
    )
    self.arrays = {'tokens': tokens, name: starts}
    self._split = (store.Pairs if pairs else store.Tokens)(
      None, {'arrays': self.arrays, 'unknown': 0}
    )

  def has(self, split):
    return split == 'train'

  def split(self, name):
    assert name == 'train'
    return self._split

  def content(self):
    return 'c'

  def index(self, name, settings):
    """As index.Index, once it is made."""
    found, count = object.__new__(index.Index), self.count
    found.digest, found.counts, found.arrays = name, {}, {}
    if name == 'pieces':
      found.counts = {'pieces': 2 * count, 'short': 7}
      found.arrays = {
        'starts': Numbers(2 * count, lambda n: n * (MEAN // 2)),
        'lengths': Numbers(
          2 * count, lambda n: 50 + scatter(n, 200), np.uint32
        ),
      }
    elif name == 'pairs':
      found.counts = {'inputs': 3, 'targets': 5}
    elif name == 'bins':
      examples = 2 * count if 'documents' in self.arrays else count
      bins = -(-examples // 3)
      found.counts = {'bins': bins} | dict.fromkeys(
        settings['widths'], 100 * bins
      )
      found.arrays = {
        'starts': Numbers(bins, lambda n: 3 * n),
        'members': Numbers(examples, lambda n: n * 999_983 % examples),
      }
    return found


@pytest.fixture(autouse=True)
def synthetic(monkeypatch):
  """Stores of Numbers, and indices of theirs that need not be made."""
  real_array, real_index = arrays.Array, index.open_or_make
  monkeypatch.setattr(
    arrays,
    'Array',
    lambda folder, x: x if isinstance(x, Numbers) else real_array(folder, x),
  )
  monkeypatch.setattr(
    index,
    'open_or_make',
    lambda store, name, settings, make: (
      store.index(name, settings)
      if isinstance(store, Store)
      else real_index(store, name, settings, make)
    ),
  )


TEXT = dict(lengths={'inputs': 300, 'targets': 70}, held_out=0.0)
KINDS = {
  'chunks': (specs.SpanCorruption(), TEXT),
  'ended chunks': (specs.CausalLM(), {'lengths': {'targets': 300}}),
  'pieces': (specs.SpanCorruption(), TEXT | {'documents': specs.Isolated()}),
  'packed pieces': (
    specs.SpanCorruption(),
    {
      'lengths': {'inputs': 900, 'targets': 210},
      'documents': specs.Isolated(),
      'pack': True,
    },
  ),
  'pairs': (specs.Supervised(), {'lengths': {'inputs': 60, 'targets': 30}}),
  'packed pairs': (
    specs.Supervised(),
    {'lengths': {'inputs': 180, 'targets': 90}, 'pack': True},
  ),
}


def begin(kind, count, parts=3):
  """(Batches of a mixture, its stores)."""
  objective, fields = KINDS[kind]
  layers = {'encoder_layers': 0} if kind == 'ended chunks' else {}
  run = tiny.run(
    model=tiny.transformer(vocab_size=384, **layers),
    objective=objective,
    data=specs.Data(
      mixture=specs.Mixture(
        parts={f'{n}.jsonl': 1.0 + n for n in range(parts)}
      ),
      **fields,
    ),
  )
  pairs = isinstance(objective, specs.Supervised)
  stores = {name: Store(count, pairs, name) for name in data.parts(run)}
  found = data.Batches(run, stores, VOCABULARY, 'train')
  assert len(list(found.notes())) >= parts * ('pack' in fields)
  return found, stores


def first_and_far(kind, count):
  """Makes the first batch, and one of a far step."""
  found, stores = begin(kind, count)
  for position in (0, 10**12 + 11):
    batch = found.at(position, 16)
    assert (batch['decoder_loss_weights'].sum(axis=1) > 0).all()
  return found, stores


def seconds(fn, *arguments, tries=3):
  """CPU time of the fastest of some tries."""
  best = float('inf')
  for _ in range(tries):
    order._window.cache_clear()
    began = time.process_time()
    fn(*arguments)
    best = min(best, time.process_time() - began)
  return best


@pytest.mark.parametrize('kind', KINDS)
def test_start_and_memory_stay_flat(kind):
  """From 10^4 to 10^8 documents or pairs of each part of a mixture."""
  first_and_far(kind, LEAST)  # imports
  peaks, read, times = [], [], []
  for count in (LEAST, MOST):
    times.append(seconds(first_and_far, kind, count))
    tracemalloc.start()
    try:
      _, stores = first_and_far(kind, count)
      peaks.append(tracemalloc.get_traced_memory()[1])
    finally:
      tracemalloc.stop()
    read.append(
      sum(x.found for one in stores.values() for x in one.arrays.values())
    )
  assert read[1] <= 3 * read[0]  # numbers of the store
  assert peaks[1] <= 1.5 * peaks[0] + 2e6
  assert times[1] <= 3 * times[0] + 0.05


@pytest.mark.parametrize('kind', KINDS)
def test_any_step_is_found_within_a_second(kind):
  """Of 10^12 tokens, or as many as there are in 10^10 pairs."""
  found, _ = begin(kind, 2 * 10**9)
  for step in (10**6 + 1, 10**9 + 7, 10**12 + 3):
    assert seconds(found.at, step * 16, 16, tries=1) < 1


def test_a_corpus_of_many_shards_is_opened_in_no_more_memory(tmp_path):
  """Of 3 * 10^10 tokens, whose files have no content here."""
  length, shards = 1 << 26, 500
  size = length * 2 + 12345
  entries = []
  for n in range(shards):
    file = tmp_path / f'tokens.arrayrecord-{n:05d}-of-{shards:05d}'
    with open(file, 'wb') as f:
      f.truncate(size)
    entries.append({'file': file.name, 'length': length, 'bytes': size})
  entry = {'dtype': '<u2', 'block': arrays.BLOCK, 'shards': entries}
  tracemalloc.start()
  try:
    found = arrays.Array(storage.path(tmp_path), entry)
    grown = tracemalloc.get_traced_memory()[0]
  finally:
    tracemalloc.stop()
  assert len(found) == shards * length
  assert grown < 2000 * shards


@pytest.mark.parametrize('kind', ['text', 'pairs'])
def test_bins_are_made_in_memory_that_does_not_grow(
  tmp_path, monkeypatch, kind
):
  """Once, a window at a time; opening them again is at once."""
  window = 1 << 12
  monkeypatch.setattr(arrays, 'BLOCK', window // 32)
  monkeypatch.setattr(packing, 'WINDOW', window)
  monkeypatch.setattr(units, '_READ', window)
  objective, fields = KINDS[f'packed {dict(text="pieces").get(kind, kind)}']
  run = tiny.run(
    model=tiny.transformer(vocab_size=384),
    objective=objective,
    data=specs.Data(corpus='none', **fields),
  )

  def made(count, name):
    folder = storage.make_folder(tmp_path / name)
    one = Store(count, kind == 'pairs')
    real = type(
      'Made',
      (),
      {
        'folder': folder,
        'fingerprint': 'f',
        'split': lambda _, split: one.split(split),
        'content': lambda _: 'c',
      },
    )()
    return data.Batches(run, {'none': real}, VOCABULARY, 'train')

  peaks = []
  for count in (2 * window, 8 * window):
    tracemalloc.start()
    try:
      found = made(count, f'{count}')
      peaks.append(tracemalloc.get_traced_memory()[1])
    finally:
      tracemalloc.stop()
  assert found.num_examples >= 8 * window
  assert peaks[1] < 1.5 * peaks[0]
  again = seconds(made, count, f'{count}')
  assert again < 0.2
  [part] = found.parts.values()
  members = part._bins.arrays['members'].read([0], part.examples)[0]
  np.testing.assert_array_equal(np.sort(members), np.arange(part.examples))


def test_maxtext_954_the_place_in_data_of_any_size_is_small():
  """maxtext PR#954: what was kept of the data grew with its buffers."""
  found, _ = begin('packed pieces', MOST)
  position = {'examples': 10**15, 'fingerprint': found.fingerprint}
  assert len(json.dumps(position)) < 200 < 1 << 16
