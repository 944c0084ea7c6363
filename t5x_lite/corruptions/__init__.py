"""How each objective makes examples of text, on the host.

A module here offers, for its objective:
  MIN_LENGTH: tokens of the shortest text that makes an example;
  check(objective, lengths, vocabulary): refuses what can't be trained;
  raw_length(objective, lengths): tokens of text that make one example;
  feature_lengths(objective, lengths): tokens of each feature, given or not;
  features(objective, tokens_BL, lengths_B, draw, vocabulary, lengths): a batch,
    where draw(n) is uint32 [B, n], the first n random words of each example.
"""

from t5x_lite import specs
from t5x_lite.corruptions import spans

OBJECTIVES = {
  specs.SpanCorruption: spans,
}
