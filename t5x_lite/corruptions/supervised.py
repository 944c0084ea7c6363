"""Text to text: inputs and targets as they are."""

from t5x_lite.corruptions import checks
from t5x_lite.corruptions import features


def check(objective, lengths, vocabulary):
  """Refuses what can't be trained."""
  needed = ['inputs', 'targets']
  checks.names(objective, lengths, needed, needed)
  checks.end(vocabulary)


def feature_lengths(objective, lengths):
  """The lengths of inputs and targets."""
  del objective
  return dict(lengths)


def joint_length(objective, lengths):
  """Most tokens of inputs and targets together."""
  del objective
  return lengths['inputs'] + lengths['targets']


def pair_widths(objective, lengths, vocabulary):
  """Tokens of inputs and of targets."""
  del objective, vocabulary
  return lengths['inputs'], lengths['targets']


def check_pairs(objective, pairs, vocabulary, where):
  """Any pair will do."""


def batch(objective, model, rows, vocabulary, width):
  """See `corruptions`."""
  del objective
  return features.of_stack(model, rows, vocabulary.start_id, width)
