"""How each objective makes examples of text, on the host.

A module here offers, for its objective:
  MIN_LENGTH: tokens of the shortest text that makes an example;
  ENDS_DOCUMENTS: whether EOS stands behind each document of the text;
  check(objective, lengths, vocabulary): refuses what can't be trained. What can
    be a member of others takes `length`, the text's, where they set it;
  raw_length(objective, lengths, vocabulary): tokens of text that make one
    example;
  feature_lengths(objective, lengths): tokens of each feature, given or not;
  joint_length(objective, lengths): most tokens of inputs and targets together;
  sizes(objective, lengths_J, vocabulary): the most tokens of inputs, of targets
    and of both that texts of these lengths become, int [J, 3];
  examples(objective, tokens_BL, lengths_B, draw, vocabulary, lengths): rows of
    inputs int32 [B, L], their lengths [B], targets int32 [B, K], their lengths
    [B], where lengths are those of `feature_lengths` and draw(n) is uint32
    [B, n], the first n random words of each example.
`features` makes of such rows what a model reads.

An objective that learns from pairs of inputs and targets (PAIRS) has `check`,
`feature_lengths` and `joint_length`, and in place of the others:
  pair_widths(objective, lengths, vocabulary): tokens of inputs and of targets
    that are read, with their EOS;
  check_pairs(objective, pairs, vocabulary, where): refuses store.Pairs that
    can't be learned from;
  batch(objective, model, rows, vocabulary, width): the batch contract, of rows
    as above, for a specs.Transformer.
"""

from t5x_lite import specs
from t5x_lite.corruptions import causal
from t5x_lite.corruptions import classification
from t5x_lite.corruptions import denoisers
from t5x_lite.corruptions import prefix
from t5x_lite.corruptions import spans
from t5x_lite.corruptions import supervised

OBJECTIVES = {
  specs.CausalLM: causal,
  specs.PrefixLM: prefix,
  specs.SpanCorruption: spans,
  specs.Denoisers: denoisers,
  specs.Supervised: supervised,
  specs.Classification: classification,
}
PAIRS = {specs.Supervised, specs.Classification}
