"""Data that are taken as they come."""

import json

import numpy as np
import pytest

from t5x_lite import data
from t5x_lite import errors
from t5x_lite import specs
from t5x_lite.data import vocabularies
from tests import tiny

VOCABULARY = vocabularies.Bytes(20)
LINES = [f'line {n} of a text' for n in range(50)]


def a_run(folder, objective=None, lone=False, **fields):
  lengths = {'targets': 24} if lone else {'inputs': 24}
  if isinstance(objective, specs.Supervised):
    corpus = folder / 'a.jsonl'
    rows = [{'inputs': x, 'targets': x[5:8]} for x in LINES]
    corpus.write_text('\n'.join(map(json.dumps, rows)))
    lengths = {'inputs': 12, 'targets': 4}
  else:
    corpus = folder / 'a.txt'
    corpus.write_text('\n'.join(LINES))
  layers = {'encoder_layers': 0} if lone else {}
  fields = {'corpus': str(corpus), 'held_out': 0.2, 'lengths': lengths} | fields
  return tiny.run(
    model=tiny.transformer(vocab_size=384, **layers),
    objective=objective or specs.SpanCorruption(),
    data=specs.Data(**{'stream': True} | fields),
  )


def batches(run, split='train'):
  return tiny.batches(run, VOCABULARY, split)


KINDS = [
  (specs.SpanCorruption(), False),
  (specs.PrefixLM(), True),
  (specs.CausalLM(), True),
  (specs.Supervised(), False),
]


@pytest.mark.parametrize('objective, lone', KINDS)
def test_any_place_is_what_it_is_on_the_way(tmp_path, objective, lone):
  run = a_run(tmp_path, objective, lone)
  if lone and not isinstance(objective, specs.CausalLM):
    run = tiny.replace(run, data=tiny.replace(run.data, lengths={'inputs': 24}))
  found = batches(run)
  whole = [found.at(8 * n, 8) for n in range(30)]  # several passes
  for step in (29, 3, 3, 17, 0):
    for name, x in found.at(8 * step, 8).items():
      np.testing.assert_array_equal(x, whole[step][name])
  shares = batches(run)
  for step in range(5):  # a process makes its own rows alone
    rows = np.array([1, 6])
    for name, x in shares.at(8 * step, 8, rows).items():
      np.testing.assert_array_equal(x, whole[step][name][rows])


def test_a_pass_is_the_text_in_its_order(tmp_path):
  run = a_run(tmp_path, specs.CausalLM(), True, held_out=0.0)
  tokens = batches(run).at(0, 60)['decoder_target_tokens'].ravel()
  wanted = np.concatenate(
    [[*VOCABULARY.encode(line), VOCABULARY.eos_id] for line in LINES]
  )
  np.testing.assert_array_equal(tokens[: len(wanted)], wanted)
  np.testing.assert_array_equal(
    tokens[len(wanted) :], wanted[: len(tokens) - len(wanted)]
  )


def test_what_is_held_out_is_what_a_store_holds_out(tmp_path):
  found = []
  for stream in (True, False):
    run = a_run(tmp_path, specs.Supervised(), stream=stream)
    part = batches(run, 'validation')
    assert 0 < part.num_examples < 25
    found.append(next(part.evaluation(32)))
  for name, x in found[0].items():
    np.testing.assert_array_equal(x, found[1][name])


def test_measures_read_no_more_than_they_want(tmp_path):
  run = a_run(tmp_path, specs.Supervised())
  run = tiny.replace(run, evaluation=specs.Evaluation(examples=3))
  assert batches(run, 'validation').num_examples == 3


def test_a_stream_says_what_it_can_not_promise(tmp_path):
  notes = list(batches(a_run(tmp_path)).notes())
  assert any('not shuffled' in note for note in notes)


def test_streams_are_mixed_at_their_rates(tmp_path):
  paths = []
  for name in 'ab':
    (tmp_path / f'mix_{name}.txt').write_text(f'{name * 400}\n' * 9)
    paths.append(str(tmp_path / f'mix_{name}.txt'))
  run = a_run(tmp_path, specs.CausalLM(), True, held_out=0.0)
  parts = dict(zip(paths, (1.0, 3.0), strict=True))
  spec = tiny.replace(run.data, corpus=None, mixture=specs.Mixture(parts=parts))
  batch = batches(tiny.replace(run, data=spec)).at(1024, 1024)
  a, b = VOCABULARY.encode('ab')
  tokens = batch['decoder_target_tokens']
  assert (tokens == b).sum() / (tokens == a).sum() == pytest.approx(3, rel=0.02)


@pytest.mark.parametrize(
  'fields, what',
  [
    ({'documents': specs.Isolated()}, 'Isolated.* needs to know all'),
    ({'documents': specs.Isolated(), 'pack': True}, 'Data.pack needs'),
    (
      {'corpus': None, 'mixture': specs.Mixture(parts={'a': None})},
      'without rates needs',
    ),
  ],
)
def test_what_needs_an_index_is_refused(tmp_path, fields, what):
  with pytest.raises(errors.ConfigError, match=what):
    data.check(a_run(tmp_path, **fields), VOCABULARY)


def test_an_empty_stream_ends_with_a_message(tmp_path):
  run = a_run(tmp_path)
  (tmp_path / 'a.txt').write_text(' \n\n ')
  with pytest.raises(errors.DataError, match="'train' has no example"):
    batches(run).at(0, 4)


def test_another_file_is_another_stream(tmp_path):
  run = a_run(tmp_path)
  first = batches(run).fingerprint
  assert batches(run).fingerprint == first
  (tmp_path / 'a.txt').write_text('\n'.join([*LINES, 'one more']))
  other = batches(run).fingerprint
  (tmp_path / 'a.txt').rename(tmp_path / 'b.txt')
  spec = tiny.replace(run.data, corpus=str(tmp_path / 'b.txt'))
  third = batches(tiny.replace(run, data=spec)).fingerprint
  assert len({first, other, third}) == 3
