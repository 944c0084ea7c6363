"""Language modeling: the text is the targets, and there are no inputs."""

import numpy as np

from t5x_lite.corruptions import checks

MIN_LENGTH = 1
ENDS_DOCUMENTS = True


def check(objective, lengths, vocabulary):
  """Refuses what can't be trained."""
  checks.names(objective, lengths, ['targets'], ['targets'])
  checks.end(vocabulary)


def raw_length(objective, lengths, vocabulary=None):
  """Tokens of text that make one example: all that are said."""
  del objective, vocabulary
  return lengths['targets']


def feature_lengths(objective, lengths):
  """The length of the targets."""
  del objective
  return dict(lengths)


def sizes(objective, lengths_J, vocabulary):
  """Tokens that texts of these lengths become; see `corruptions`."""
  del objective, vocabulary
  return np.column_stack([np.zeros_like(lengths_J), lengths_J, lengths_J])


def joint_length(objective, lengths):
  """Most tokens of an example."""
  del objective
  return lengths['targets']


def examples(objective, tokens_BL, lengths_B, draw, vocabulary, lengths):
  """Rows without inputs; see `corruptions`."""
  del objective, draw, vocabulary, lengths
  none_B = np.zeros_like(lengths_B)
  return tokens_BL[:, :0], none_B, tokens_BL, lengths_B
