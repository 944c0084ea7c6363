"""Examples in rows: documents apart, several examples in a row."""

import collections

import numpy as np
import pytest

from t5x_lite import data
from t5x_lite import errors
from t5x_lite import specs
from t5x_lite.data import index
from t5x_lite.data import packing
from t5x_lite.data import vocabularies
from tests import tiny

VOCABULARY = vocabularies.Bytes(20)
EOS = VOCABULARY.eos_id
RNG = np.random.default_rng(5)
WORDS = ['ab', 'cde', 'f', 'ghij', 'klmno', 'pqrstu']
LINES = [
  ' '.join(RNG.choice(WORDS, RNG.integers(1, 9))) for _ in range(300)
] + ['x']
OBJECTIVES = {
  'spans': specs.SpanCorruption(),
  'prefix': specs.PrefixLM(),
  'causal': specs.CausalLM(),
  'ul2': specs.Denoisers(
    members=(
      specs.Denoiser(objective=specs.SpanCorruption(), mode='R'),
      specs.Denoiser(objective=specs.PrefixLM(density=0.25), mode='S'),
    )
  ),
  'pairs': specs.Supervised(),
}
LENGTHS = {
  'spans': {'inputs': 96},
  'prefix': {'inputs': 96},
  'causal': {'targets': 96},
  'ul2': {'inputs': 98, 'targets': 96},
  'pairs': {'inputs': 96, 'targets': 24},
}


def a_run(folder, kind, lone=False, **fields):
  corpus = folder / ('pairs.jsonl' if kind == 'pairs' else 'lines.txt')
  if kind == 'pairs':
    rows = [f'{{"inputs": "{x}", "targets": "{x[:4]}"}}' for x in LINES]
    corpus.write_text('\n'.join(rows))
  else:
    corpus.write_text('\n'.join(LINES))
    fields = {'documents': specs.Isolated()} | fields
  fields = dict(lengths=LENGTHS[kind], document='line', pack=True) | fields
  if kind == 'pairs':
    fields['document'] = None
  layers = {'encoder_layers': 0, 'mask': 'prefix'} if lone else {}
  return tiny.run(
    model=tiny.transformer(vocab_size=384, **layers),
    objective=OBJECTIVES[kind],
    data=specs.Data(**{'corpus': str(corpus), 'held_out': 0.1} | fields),
  )


def batches(run, split='train'):
  return tiny.batches(run, VOCABULARY, split)


def segments(batch, side, name):
  """The tokens of each segment of each row, by (row, segment)."""
  found = {}
  for row, ids in enumerate(batch[f'{side}_segment_ids']):
    for n in range(1, ids.max() + 1):
      found[row, n] = batch[f'{side}_{name}'][row][ids == n]
  return found


CASES = [(kind, lone) for kind in OBJECTIVES for lone in (False, True)]
CASES.remove(('causal', False))  # has nothing for an encoder


@pytest.mark.parametrize('kind, lone', CASES)
def test_packed_examples_are_those_that_stand_alone(tmp_path, kind, lone):
  run = a_run(tmp_path, kind, lone)
  packed = batches(run)
  alone = batches(a_run(tmp_path, kind, lone, pack=False))
  [part], [single] = packed.parts.values(), alone.parts.values()
  assert part.examples == single.count > 150
  assert part.count < part.examples / 2
  rows = np.arange(part.count)
  batch = part.at(rows)
  order_B = data.order.permutation(part.count, run.seed, 0, rows)
  member_J, row_J = part._members(order_B)
  assert sorted(member_J) == list(range(part.examples))  # each once
  wanted = single._single(run.seed, np.zeros_like(member_J), member_J)
  sides = ('decoder',) if lone else ('encoder', 'decoder')
  for side in sides:
    for name in wanted:
      if not name.startswith(side) or 'segment' in name:
        continue
      name = name.removeprefix(f'{side}_')
      found = segments(batch, side, name)
      number = collections.Counter()
      for j, row in enumerate(row_J):
        number[row] += 1
        here = wanted[f'{side}_segment_ids'][j] > 0
        np.testing.assert_array_equal(
          found.pop((row, number[row]), np.empty(0)),
          wanted[f'{side}_{name}'][j][here],
          err_msg=f'{side}_{name}',
        )
      assert not found
  for name, x in batch.items():  # nothing where no segment is
    empty = batch[f'{name.split("_")[0]}_segment_ids'] == 0
    assert not x[empty].any(), name


@pytest.mark.parametrize('kind, lone', CASES)
def test_a_row_is_the_same_in_any_batch(tmp_path, kind, lone):
  found = batches(a_run(tmp_path, kind, lone))
  whole = found.at(40, 24)  # over the end of an epoch
  assert found.num_rows < 64 or kind in ('ul2', 'spans', 'prefix', 'pairs')
  for rows in ([5], [0, 23], np.arange(24)):
    for name, x in found.at(40, 24, np.array(rows)).items():
      np.testing.assert_array_equal(x, whole[name][rows], err_msg=name)


def test_rows_are_full(tmp_path):
  found = batches(a_run(tmp_path, 'causal', True))
  batch = found.at(0, found.num_rows)
  full = (batch['decoder_segment_ids'] > 0).mean()
  [note] = found.notes()
  assert full > 0.95 and f'decoder {full:.1%}' in note


def test_bins_are_made_once_and_others_for_other_lengths(tmp_path, monkeypatch):
  made = []
  real = index.Writer.close
  monkeypatch.setattr(
    index.Writer, 'close', lambda self: (made.append(1), real(self))
  )
  store = str(tmp_path / 'stores')
  run = a_run(tmp_path, 'causal', True, store=store)
  first = batches(run)
  assert len(made) == 2  # pieces and bins
  again = batches(run)
  assert len(made) == 2 and again.fingerprint == first.fingerprint
  lengths = {'targets': 64}
  other = batches(a_run(tmp_path, 'causal', True, store=store, lengths=lengths))
  assert len(made) == 4 and other.fingerprint != first.fingerprint


@pytest.mark.parametrize('kind', ['spans', 'causal'])
def test_pieces_are_the_documents_whole_and_apart(tmp_path, kind):
  lone = kind == 'causal'
  long = ' '.join(WORDS * 9)
  lines = [*LINES, long, long[:41], long[:43], 'y']
  run = a_run(tmp_path, kind, lone, pack=False, held_out=0.0)
  (tmp_path / 'lines.txt').write_text('\n'.join(lines))
  found = batches(run)
  [part] = found.parts.values()
  text = part._units
  least = 1 if lone else 2
  ids = [VOCABULARY.encode(line).tolist() + [EOS] * lone for line in lines]
  pieces = collections.deque()
  for first in range(part.count):
    start, length = text._places(np.array([first]))
    pieces.append(text._tokens.rows(start, int(length[0]))[0].tolist())
    assert least <= length[0] <= text._raw
  for one in ids:
    if len(one) < least:
      continue
    whole = []
    while len(whole) < len(one):
      whole += pieces.popleft()
    assert whole == one
  assert not pieces
  if not lone:
    [note] = found.notes()
    short = sum(len(one) < least for one in ids)
    assert f'{short} documents of fewer than 2 tokens' in note


def test_a_short_row_is_corrupted_alike_beside_a_long_one():
  """The draws of an example hang on nothing beside it."""
  from t5x_lite.corruptions import random_bits
  from t5x_lite.corruptions import spans

  lengths = np.array([90, 30, 61])
  draw = random_bits.Draw(3, 'corruption', np.zeros(3, int), np.arange(3))
  together = spans.noise_spans(lengths, 0.3, 3.0, draw)
  for n in range(3):
    alone = random_bits.Draw(3, 'corruption', np.zeros(1, int), np.array([n]))
    for x, y in zip(
      spans.noise_spans(lengths[n : n + 1], 0.3, 3.0, alone), together
    ):
      np.testing.assert_array_equal(x[0], y[n][: x.shape[1]])


@pytest.mark.parametrize('kinds', [1, 2])
def test_bins_hold_all_and_no_more_than_there_is_room(kinds):
  rng = np.random.default_rng(kinds)
  for room in ((30,), (7,)) if kinds == 1 else ((30, 9), (5, 40)):
    sizes = rng.integers(0, np.array(room) + 1, (500, kinds))
    bin_J = packing.pack(sizes, room)
    assert set(bin_J) == set(range(bin_J.max() + 1))
    for kind in range(kinds):
      assert np.bincount(bin_J, sizes[:, kind]).max() <= room[kind]
    least = np.ceil((sizes.sum(0) / room).max())
    assert bin_J.max() + 1 <= max(least * 1.6, 1)


def least_bins(size_J, room):
  """A bound that no packing is below (Martello and Toth 1990, L2)."""
  found = 0
  for small in range(room // 2 + 1):
    alone = (size_J > room - small).sum()
    large_N = size_J[(size_J > room / 2) & (size_J <= room - small)]
    rest = size_J[(size_J >= small) & (size_J <= room / 2)].sum()
    over = rest - (room - large_N).sum()
    more = max(0, int(np.ceil(over / room)))
    found = max(found, alone + len(large_N) + more)
  return found


@pytest.mark.parametrize('mean', [40, 150, 300, 500])
@pytest.mark.parametrize('kinds', [1, 2])
def test_bins_are_nearly_as_few_as_can_be(kinds, mean):
  """Texts of any length, cut to a row: the longer, the emptier it must be."""
  rng = np.random.default_rng(mean)
  length = rng.lognormal(np.log(mean), 0.5, 5000)
  sizes = np.column_stack([length, 3 + length / 20])[:, :kinds]
  room = (512, 128)[:kinds]
  sizes = np.minimum(np.maximum(sizes, 1), room).astype(int)
  bins = packing.pack(sizes, room).max() + 1
  least = max(map(least_bins, sizes.T, room))
  assert bins <= 1.01 * least
  if mean < 100:
    assert (sizes.sum(0) / np.multiply(bins, room)).max() > 0.95


def test_best_fit_is_exact_where_it_can_be():
  assert packing.pack([[6], [4], [5], [5], [10]], (10,)).max() + 1 == 3


@pytest.mark.parametrize(
  'kind, fields, what',
  [
    ('pairs', {'documents': specs.Isolated()}, 'Data.documents is of text'),
    ('spans', {'documents': specs.Concat()}, 'Data.pack has nothing to pack'),
  ],
)
def test_what_can_not_be_packed_is_refused(tmp_path, kind, fields, what):
  with pytest.raises(errors.ConfigError, match=what):
    batches(a_run(tmp_path, kind, **fields))


@pytest.mark.parametrize('pack', [False, True])
def test_pieces_that_make_no_example_are_refused(tmp_path, pack):
  """Of five tokens cut to two, a piece has one, which can't be corrupted."""
  fields = {'documents': specs.Isolated(), 'lengths': {'inputs': 3}}
  with pytest.raises(errors.ConfigError, match='too short for pieces'):
    batches(a_run(tmp_path, 'spans', pack, **fields))


def test_a_label_of_a_row_is_not_packed(tmp_path):
  run = tiny.replace(
    a_run(tmp_path, 'pairs', True, lengths={'inputs': 48}),
    objective=specs.Classification(labels=('a', 'b')),
  )
  model = tiny.replace(run.model, classes=2, mask='causal')
  with pytest.raises(errors.ConfigError, match='one label a row'):
    batches(tiny.replace(run, model=model))


def test_an_index_that_was_changed_is_refused(tmp_path):
  run = a_run(tmp_path, 'causal', True, store=str(tmp_path / 'st'))
  batches(run)
  [file] = (tmp_path / 'st').glob('*/bins-*/manifest.json')
  text = file.read_text()
  for bad in (
    text.replace('"bins": ', '"bins": 1'),
    text[: len(text) // 2],
    '{}',
    '',
  ):
    file.write_text(bad)
    with pytest.raises(errors.DataError, match='is damaged at') as e:
      batches(run)
    assert e.value.exit_code == 3 and f'delete {file.parent}' in str(e.value)
  file.unlink()  # the arrays without it
  with pytest.raises(errors.StorageError, match='delete that folder'):
    batches(run)
