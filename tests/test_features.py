"""Batches of a decoder alone, against SeqIO's own converters."""

import types

import numpy as np
import pytest

from t5x_lite.corruptions import features

EXAMPLES = [
  ([9, 4, 6, 1], [3, 9, 1]),
  ([7, 8, 5, 2, 11, 12, 1], [4, 1]),
  ([1], [3, 9, 4, 8, 1]),
  ([], [5, 6, 1]),
]
LENGTHS = {'inputs': 8, 'targets': 6}


def batch(examples=EXAMPLES, prefix=True, width=None, start_id=0):
  rows = []
  for side, name in enumerate(('inputs', 'targets')):
    found = [example[side] for example in examples]
    tokens = np.zeros((len(found), LENGTHS[name]), np.int32)
    for row, values in zip(tokens, found, strict=True):
      row[: len(values)] = values
    rows += [tokens, np.array([len(values) for values in found])]
  return features.decoder_only(*rows, start_id, prefix, width)


def converted(converter, examples, names, lengths):
  """What SeqIO makes of examples, each row of its own."""
  import tensorflow as tf

  found = tf.data.Dataset.from_generator(
    lambda: ({name: x[name] for name in names} for x in examples),
    output_types=dict.fromkeys(names, tf.int32),
    output_shapes={name: [None] for name in names},
  )
  rows = list(converter(found, lengths).as_numpy_iterator())
  return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def prefix_lm(examples):
  import seqio

  return converted(
    seqio.PrefixLMFeatureConverter(pack=False),
    [dict(zip(LENGTHS, example, strict=True)) for example in examples],
    ['inputs', 'targets'],
    LENGTHS,
  )


def test_a_prefix_lm_reads_what_seqio_gives_it():
  ours, theirs = batch(), prefix_lm(EXAMPLES)
  assert ours.pop('decoder_segment_ids').sum(axis=1).tolist() == [7, 9, 6, 3]
  places = np.arange(14)
  positions = ours.pop('decoder_positions')
  expected = np.where(places < [[7], [9], [6], [3]], places, 0)
  np.testing.assert_array_equal(positions, expected)
  theirs['decoder_bidirectional_mask'] = theirs.pop('decoder_causal_attention')
  assert ours.keys() == theirs.keys()
  for name, rows in theirs.items():
    np.testing.assert_array_equal(ours[name], rows, name)
    weights = name == 'decoder_loss_weights'
    assert ours[name].dtype == (np.float32 if weights else np.int32), name


def test_a_language_model_reads_what_seqio_gives_it():
  import seqio

  said = [[3, 9, 1], [4, 1], [5, 6, 7, 8, 9, 1]]
  theirs = converted(
    seqio.LMFeatureConverter(pack=False),
    [{'targets': targets} for targets in said],
    ['targets'],
    {'targets': 6},
  )
  ours = batch([([], targets) for targets in said], prefix=False, width=6)
  assert 'decoder_bidirectional_mask' not in ours
  for name, rows in theirs.items():
    np.testing.assert_array_equal(ours[name], rows, name)


def test_t5x_defect_22_a_pad_id_inside_inputs_costs_no_loss():
  """SeqIO takes the exclusive or of two masks, one of them by token ids."""
  examples = [([9, 0, 6, 1], [3, 9, 1]), ([0, 0, 1], [0, 5, 1])]
  theirs = prefix_lm(examples)['decoder_loss_weights']
  assert theirs[0].tolist()[:8] == [0, 1, 0, 0, 1, 1, 1, 0]
  assert theirs[1].tolist()[:7] == [1, 1, 0, 0, 1, 1, 0]
  ours = batch(examples)
  weights = ours['decoder_loss_weights']
  assert weights[0].tolist()[:8] == [0, 0, 0, 0, 1, 1, 1, 0]
  assert weights[1].tolist()[:7] == [0, 0, 0, 1, 1, 1, 0]
  assert ours['decoder_segment_ids'].sum(axis=1).tolist() == [7, 6]


def test_the_row_of_a_decoder_may_be_as_narrow_as_its_examples():
  wide, narrow = batch(), batch(width=9)
  for name, rows in narrow.items():
    np.testing.assert_array_equal(rows, wide[name][:, :9], name)


def test_the_start_comes_first_and_belongs_to_the_prefix():
  found = batch(start_id=7)
  assert (found['decoder_input_tokens'][:, 0] == 7).all()
  # As many as there are inputs, and one: an empty prefix leaves the start.
  prefix = found['decoder_bidirectional_mask']
  assert prefix.sum(axis=1).tolist() == [5, 8, 2, 1]
  assert (prefix == np.sort(prefix, axis=1)[:, ::-1]).all()


def test_a_row_that_fills_up_holds_nothing():
  for name, rows in batch([([5], [6]), ([], [])]).items():
    assert rows[0].any() and not rows[1].any(), name


@pytest.mark.parametrize('mask', ['causal', 'prefix'])
@pytest.mark.parametrize('encoder_layers', [0, 2])
def test_a_stack_gets_the_batch_that_it_reads(encoder_layers, mask):
  model = types.SimpleNamespace(encoder_layers=encoder_layers, mask=mask)
  rows = np.full((1, 3), 5), np.array([2]), np.full((1, 4), 6), np.array([3])
  found = features.of_stack(model, rows, 0)
  assert ('encoder_input_tokens' in found) == bool(encoder_layers)
  alone = not encoder_layers
  assert found['decoder_input_tokens'].shape == (1, 7 if alone else 4)
  has_prefix = 'decoder_bidirectional_mask' in found
  assert has_prefix == (alone and mask == 'prefix')
