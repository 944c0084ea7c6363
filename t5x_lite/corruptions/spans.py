"""Span corruption, arXiv:1910.10683 section 3.1.4, for whole batches at once.

Masked spans leave the inputs, each for a sentinel; the targets are the spans,
each after its sentinel. Letters of shapes: B rows, L tokens of a row, K spans
of a row, S places where a row can be cut.
"""

import numpy as np

from t5x_lite import errors
from t5x_lite.corruptions import checks

MIN_LENGTH = 2  # the shortest text with something to mask and something to see
ENDS_DOCUMENTS = False  # T5 joins them with nothing between


def span_counts(lengths, density, mean_span):
  """Masked tokens and spans of texts of these lengths; halves go to even."""
  lengths = np.asarray(lengths)
  noise = np.round(lengths * density).astype(int).clip(1, lengths - 1)
  spans = np.round(noise / mean_span).astype(int).clip(1, None)
  return noise, np.minimum(spans, lengths - noise)


def random_spans_lengths(inputs_length, density, mean_span):
  """How much text fills `inputs_length`, and the length of its targets.

  T5's `random_spans_helper`, of which 512 inputs give 568 and 114. Both
  results count what the text becomes: sentinels and EOS included.

  Args:
    inputs_length: tokens of the inputs, after corruption.
    density: share of the tokens that are masked.
    mean_span: mean tokens in a masked span.

  Returns:
    (tokens of text, tokens of targets).
  """

  def corrupted(length):
    noise = round(length * density)
    spans = round(noise / mean_span)
    return length - noise + spans + 1, noise + spans + 1

  length = inputs_length - 1
  while corrupted(length + 1)[0] <= inputs_length:
    length += 1
  targets_length = corrupted(length)[1]
  if density == 0.5 and targets_length > inputs_length:
    return length - 1, targets_length - 1
  return length, targets_length


def _random_cuts(total_B, parts_B, bits_BS):
  """Ends of the parts of a uniformly random composition, [B, K].

  Cutting n things into k runs is choosing k - 1 of the n - 1 places between
  them: here the places of the smallest keys. Rows of fewer parts than K repeat
  their total.
  """
  places_S = np.arange(bits_BS.shape[1], dtype=np.uint64)
  # The place in the low bits makes keys distinct, so that the choice does not
  # hang on how a version of NumPy partitions.
  keys_BS = bits_BS.astype(np.uint64)
  keys_BS <<= np.uint64(32)
  keys_BS |= places_S
  if total_B.min() <= len(places_S):
    keys_BS[places_S >= (total_B - 1)[:, None]] = np.iinfo(np.uint64).max
  cuts = parts_B.max() - 1
  if not cuts:
    return total_B[:, None]
  keys_BS.partition(cuts - 1, axis=1)
  keys_BK = keys_BS[:, :cuts]
  if parts_B.min() <= cuts:
    keys_BK = np.sort(keys_BK, axis=1)
  ends_BK = np.empty((len(keys_BK), cuts + 1), int)
  ends_BK[:, :cuts] = (keys_BK & np.uint64(0xFFFFFFFF)) + np.uint64(1)
  ends_BK[:, cuts] = total_B
  if parts_B.min() <= cuts:
    surplus_BK = np.arange(cuts + 1) >= (parts_B - 1)[:, None]
    ends_BK = np.where(surplus_BK, total_B[:, None], ends_BK)
  ends_BK.sort(axis=1)
  return ends_BK


def noise_spans(lengths_B, density, mean_span, draw):
  """Where the masked spans of texts of these lengths start and end.

  Visible and masked tokens are each cut into as many runs, all ways equally
  likely, and the runs alternate: visible first, masked last.

  Args:
    lengths_B: tokens of each text, at least 2.
    density: share of the tokens that are masked.
    mean_span: mean tokens in a masked span.
    draw: n -> uint32 [B, n], random words of each row.

  Returns:
    starts and ends, [B, K]; rows of fewer than K spans go on with empty ones
    at their end.
  """
  noise_B, spans_B = span_counts(lengths_B, density, mean_span)
  visible_B = lengths_B - noise_B
  slots = noise_B.max() - 1, visible_B.max() - 1
  words_BS = draw(sum(slots))
  noise_BS, visible_BS = words_BS[:, : slots[0]], words_BS[:, slots[0] :]
  if (noise_B < noise_B.max()).any():
    # Each row has its visible words behind its own noise, whatever is beside.
    places_BS = np.arange(slots[1]) + noise_B[:, None] - 1
    visible_BS = np.take_along_axis(words_BS, places_BS, axis=1)
  noise_BK = _random_cuts(noise_B, spans_B, noise_BS)
  visible_BK = _random_cuts(visible_B, spans_B, visible_BS)
  starts_BK = visible_BK.copy()
  starts_BK[:, 1:] += noise_BK[:, :-1]
  return starts_BK, visible_BK + noise_BK


def _runs(tokens_BL, from_BK, size_BK):
  """Runs of the tokens of all rows, end to end.

  Args:
    tokens_BL: tokens.
    from_BK: where in all of them each run starts.
    size_BK: tokens of each.

  Returns:
    tokens [J], and where there each run has its last one, [B, K].
  """
  end_BK = size_BK.cumsum().reshape(size_BK.shape)
  shift_BK = from_BK - end_BK + size_BK
  from_J = shift_BK.ravel().repeat(size_BK.ravel())
  from_J += np.arange(len(from_J))
  return tokens_BL.ravel()[from_J], end_BK - 1


def _fill(rows, width, counts_B, flat, pad_id):
  """Rows of `counts_B` values each, taken from `flat` in turn, then padding."""
  filled_BL = np.full((rows, width), pad_id, np.int32)
  if rows and (counts_B == counts_B[0]).all():  # as good as always, and faster
    filled_BL[:, : counts_B[0]] = flat.reshape(rows, counts_B[0])
  else:
    filled_BL[np.arange(width) < counts_B[:, None]] = flat
  return filled_BL


def corrupt(tokens_BL, lengths_B, starts_BK, ends_BK, vocabulary, widths):
  """Inputs and targets for given spans.

  Args:
    tokens_BL: texts, as token ids.
    lengths_B: tokens of each.
    starts_BK: first tokens of the spans, in order, at least one token apart.
    ends_BK: tokens after the spans; empty spans count as none.
    vocabulary: has `sentinel(i)`, `eos_id` and `pad_id`.
    widths: tokens of inputs and targets rows, enough for the longest.

  Returns:
    inputs int32 [B, widths[0]], their lengths [B], targets int32
    [B, widths[1]], their lengths [B]. EOS ends both.
  """
  rows, width = tokens_BL.shape
  masked_BK = starts_BK < ends_BK
  row_J, span_J = np.nonzero(masked_BK)
  sentinel_J = vocabulary.sentinel(span_J)
  begin_B1 = width * np.arange(rows)[:, None]  # of rows in all the tokens

  # What is seen: from the end of a span, or the start of the text, to the start
  # of the next, or the end of the text; and the sentinel.
  from_BK = np.concatenate([np.zeros_like(begin_B1), ends_BK], axis=1)
  to_BK = np.concatenate([starts_BK, lengths_B[:, None]], axis=1)
  to_BK[:, :-1] += masked_BK
  flat, last_BK = _runs(tokens_BL, begin_B1 + from_BK, to_BK - from_BK)
  flat[last_BK[:, :-1][masked_BK]] = sentinel_J
  inputs_B = (to_BK - from_BK).sum(axis=1)
  inputs_BL = _fill(rows, widths[0], inputs_B, flat, vocabulary.pad_id)

  # What is masked, each span after its sentinel.
  from_BK, size_BK = begin_B1 + starts_BK - 1, ends_BK - starts_BK + 1
  size_BK[~masked_BK] = 0
  flat, last_BK = _runs(tokens_BL, from_BK, size_BK)
  flat[(last_BK - size_BK + 1)[masked_BK]] = sentinel_J
  targets_B = size_BK.sum(axis=1)
  targets_BL = _fill(rows, widths[1], targets_B, flat, vocabulary.pad_id)

  inputs_BL[np.arange(rows), inputs_B] = vocabulary.eos_id
  targets_BL[np.arange(rows), targets_B] = vocabulary.eos_id
  return inputs_BL, inputs_B + 1, targets_BL, targets_B + 1


def merge(inputs, targets, vocabulary):
  """The text that inputs and targets came from, as a list of token ids.

  Both end at their EOS. A sentinel without a span in the targets stands for
  nothing; of two spans with the same sentinel the first counts.
  """
  spans, span = {}, []
  for token in targets:
    if token == vocabulary.eos_id:
      break
    if vocabulary.is_sentinel(token):
      span = []
      spans.setdefault(int(token), span)
    else:
      span.append(int(token))
  merged = []
  for token in inputs:
    if token == vocabulary.eos_id:
      break
    if vocabulary.is_sentinel(token):
      merged += spans.get(int(token), [])
    else:
      merged.append(int(token))
  return merged


# -- the objective ------------------------------------------------------------


def check(objective, lengths, vocabulary, length=None):
  """Refuses what can't be trained; see `corruptions`."""
  checks.names(objective, lengths, ['inputs'], ['inputs', 'targets'])
  length = length or raw_length(objective, lengths)
  checks.inputs(objective, lengths, length, MIN_LENGTH)
  noise, spans = span_counts(length, objective.density, objective.mean_span)
  if round(noise / objective.mean_span) > spans:
    raise errors.ConfigError(
      'SpanCorruption asks for more spans than there are visible tokens',
      got=f'{length - noise} visible tokens of {length}',
      expected=f'{round(noise / objective.mean_span)} or more',
      fix='lower SpanCorruption.density or raise SpanCorruption.mean_span',
    )
  found = feature_lengths(objective, lengths)
  checks.targets(objective, found, targets_length(objective, length))
  checks.end(vocabulary)
  if spans > vocabulary.sentinels:
    raise errors.ConfigError(
      'SpanCorruption needs more sentinels than the vocabulary has',
      got=f'{vocabulary.sentinels} sentinels',
      expected=f'{spans}, one for each masked span of {length} tokens',
      fix='raise Data.extra_ids or SpanCorruption.mean_span, or lower '
      "Data.lengths['inputs']",
    )


def targets_length(objective, length):
  """Most targets, with EOS, of texts of at most this length."""
  noise, spans = span_counts(length, objective.density, objective.mean_span)
  return int(noise + spans) + 1


def feature_lengths(objective, lengths):
  """The lengths of inputs and targets; unless given, targets just fit."""
  length = raw_length(objective, lengths)
  return {'targets': targets_length(objective, length)} | lengths


def joint_length(objective, lengths):
  """Most tokens of inputs and targets together."""
  length = raw_length(objective, lengths)
  _, spans = span_counts(length, objective.density, objective.mean_span)
  return int(length + 2 * spans) + 2


def sizes(objective, lengths_J, vocabulary):
  """Tokens that texts of these lengths become; see `corruptions`."""
  del vocabulary
  noise_J, spans_J = span_counts(
    lengths_J, objective.density, objective.mean_span
  )
  targets_J = noise_J + spans_J + 1
  inputs_J = lengths_J - noise_J + spans_J + 1
  return np.column_stack([inputs_J, targets_J, inputs_J + targets_J])


def raw_length(objective, lengths, vocabulary=None):
  """Tokens of text that make one example.

  T5's count; where that holds so few tokens that T5 rounds to no span at all,
  less by the one that a sentinel takes.
  """
  del vocabulary
  density, mean_span = objective.density, objective.mean_span
  length, _ = random_spans_lengths(lengths['inputs'], density, mean_span)
  while length >= MIN_LENGTH:
    noise, spans = span_counts(length, density, mean_span)
    if length - noise + spans + 1 <= lengths['inputs']:
      break
    length -= 1
  return length


def examples(objective, tokens_BL, lengths_B, draw, vocabulary, lengths):
  """Rows with masked spans; see `corruptions`."""
  starts_BK, ends_BK = noise_spans(
    lengths_B, objective.density, objective.mean_span, draw
  )
  widths = lengths['inputs'], lengths['targets']
  return corrupt(tokens_BL, lengths_B, starts_BK, ends_BK, vocabulary, widths)
