"""Prefix language modeling: a text up to some place, and how it goes on.

As `prefix_lm` of the t5 library: the prefix of a text of n tokens has 1 to
n - 1 of them, all equally likely, and EOS ends both parts. Where a density is
given, so much of each text is targets, as in UL2's S-denoiser.
"""

import numpy as np

from t5x_lite.corruptions import checks
from t5x_lite.corruptions import random_bits

MIN_LENGTH = 2  # one token to see and one to say
ENDS_DOCUMENTS = False


def _said(lengths, density):
  """Targets, without EOS, of texts that are split by a density."""
  lengths = np.asarray(lengths)
  return np.round(lengths * density).astype(int).clip(1, lengths - 1)


def check(objective, lengths, vocabulary, length=None):
  """Refuses what can't be trained; see `corruptions`."""
  checks.names(objective, lengths, ['inputs'], ['inputs', 'targets'])
  length = length or raw_length(objective, lengths)
  checks.inputs(objective, lengths, length, MIN_LENGTH)
  found = feature_lengths(objective, lengths)
  checks.targets(objective, found, targets_length(objective, length))
  checks.end(vocabulary)


def raw_length(objective, lengths, vocabulary=None):
  """Tokens of text that make one example.

  The whole text and EOS fit in the inputs, T5's rule; with a density, the part
  of it that is inputs does.
  """
  del vocabulary
  length = lengths['inputs'] - 1
  if objective.density and length >= MIN_LENGTH:
    while length + 1 - _said(length + 1, objective.density) < lengths['inputs']:
      length += 1
  return length


def targets_length(objective, length):
  """Most targets, with EOS, of texts of at most this length."""
  if objective.density:
    return int(_said(length, objective.density)) + 1
  return length


def feature_lengths(objective, lengths):
  """The lengths of inputs and targets; unless given, targets just fit."""
  length = raw_length(objective, lengths)
  return {'targets': targets_length(objective, length)} | lengths


def sizes(objective, lengths_J, vocabulary):
  """Most tokens that texts of these lengths become; see `corruptions`."""
  del vocabulary
  inputs_J = targets_J = lengths_J
  if objective.density:
    targets_J = _said(lengths_J, objective.density) + 1
    inputs_J = lengths_J + 2 - targets_J
  return np.column_stack([inputs_J, targets_J, lengths_J + 2])


def joint_length(objective, lengths):
  """Most tokens of inputs and targets together."""
  return raw_length(objective, lengths) + 2


def examples(objective, tokens_BL, lengths_B, draw, vocabulary, lengths):
  """Rows split in two; see `corruptions`."""
  if objective.density:
    prefix_B = lengths_B - _said(lengths_B, objective.density)
  else:
    prefix_B = 1 + random_bits.uniform(draw(2), lengths_B - 1)
  places_L = np.arange(tokens_BL.shape[1])
  rows = []
  for name, begin_B, end_B in (
    ('inputs', np.zeros_like(prefix_B), prefix_B),
    ('targets', prefix_B, lengths_B),
  ):
    size_B = end_B - begin_B
    row_BL = np.full(
      (len(tokens_BL), lengths[name]), vocabulary.pad_id, np.int32
    )
    part_BL = (places_L >= begin_B[:, None]) & (places_L < end_B[:, None])
    row_BL[np.arange(lengths[name]) < size_B[:, None]] = tokens_BL[part_BL]
    row_BL[np.arange(len(row_BL)), size_B] = vocabulary.eos_id
    rows += [row_BL, size_B + 1]
  return tuple(rows)
