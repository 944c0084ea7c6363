"""Classes of texts, with the language model's loss beside the class's.

Radford et al., "Improving language understanding by generative pre-training",
2018. A row is start, text, extract; the class is read at extract, the last. Two
texts have a delimiter between them. These three tokens, which GPT adds to its
vocabulary, are the first three sentinels here: no pretraining of a language
model reads them, so that they are as random as GPT's when fine-tuning begins.
"""

import functools

import numpy as np

from t5x_lite import errors
from t5x_lite.corruptions import checks

START, DELIMITER, EXTRACT = 0, 1, 2  # sentinels
_READ = 1 << 16  # pairs that are checked at once


def check(objective, lengths, vocabulary):
  """Refuses what can't be trained."""
  checks.names(objective, lengths, ['inputs'], ['inputs'])
  checks.end(vocabulary)
  if lengths['inputs'] < 3:
    raise errors.ConfigError(
      "Data.lengths['inputs'] is too short for Classification",
      got=lengths['inputs'],
      expected='3 or more: start, text and extract',
    )
  if vocabulary.sentinels <= EXTRACT:
    raise errors.ConfigError(
      'Classification needs three sentinels: start, delimiter, extract',
      got=f'{vocabulary.sentinels} sentinels',
      fix='--gin.Data.extra_ids=100',
    )
  said = [x.tolist() for x in vocabulary.encode_batch(list(objective.labels))]
  if any(said.count(tokens) > 1 for tokens in said):
    raise errors.ConfigError(
      'two labels are the same tokens',
      where='Classification.labels',
      got=list(objective.labels),
    )


def check_model(objective, model):
  """Refuses a specs.Transformer that can't say so many classes."""
  if model.classes != len(objective.labels):
    raise errors.ConfigError(
      'Transformer.classes is not the number of Classification.labels',
      got=f'{model.classes} for {len(objective.labels)} labels',
      fix=f'--gin.Transformer.classes={len(objective.labels)}',
    )
  if model.encoder_layers or model.mask != 'causal':
    raise errors.ConfigError(
      'Classification is of a decoder alone that sees no later token',
      got=f'Transformer.encoder_layers {model.encoder_layers}, '
      f"mask '{model.mask}'",
      fix='take Supervised, or --gin.Transformer.encoder_layers=0 '
      '--gin.Transformer.mask=causal',
    )


def feature_lengths(objective, lengths):
  """The length of a row."""
  del objective
  return dict(lengths)


def joint_length(objective, lengths):
  """The length of a row."""
  del objective
  return lengths['inputs']


@functools.lru_cache(maxsize=8)  # asked for with each batch
def _labels(objective, vocabulary):
  """Tokens of each label with EOS, 0 behind it: int32 [C, K]."""
  rows = [
    [*tokens, vocabulary.eos_id]
    for tokens in vocabulary.encode_batch(list(objective.labels))
  ]
  # One more place, in which a longer target differs from all.
  labels_CK = np.zeros((len(rows), max(map(len, rows)) + 1), np.int32)
  for row, tokens in zip(labels_CK, rows, strict=True):
    row[: len(tokens)] = tokens
  return labels_CK


def pair_widths(objective, lengths, vocabulary):
  """Tokens of text and EOS, and of the longest label and one more."""
  return lengths['inputs'] - 1, _labels(objective, vocabulary).shape[1]


def _classes(objective, targets_BK, targets_B, vocabulary):
  """Which label each row of targets is, or -1: int32 [B]."""
  labels_CK = _labels(objective, vocabulary)
  rows_BK = targets_BK.copy()
  last_B = rows_BK[np.arange(len(rows_BK)), np.maximum(targets_B - 1, 0)]
  # A task need not end its targets.
  open_B = np.flatnonzero(
    (last_B != vocabulary.eos_id) & (targets_B < rows_BK.shape[1])
  )
  rows_BK[open_B, targets_B[open_B]] = vocabulary.eos_id
  same_BC = (rows_BK[:, None] == labels_CK).all(-1)
  return np.where(same_BC.any(1), same_BC.argmax(1), -1).astype(np.int32)


def check_pairs(objective, pairs, vocabulary, where):
  """Refuses targets that are no label."""
  width = _labels(objective, vocabulary).shape[1]
  for start in range(0, pairs.num_pairs, _READ):
    index = np.arange(start, min(start + _READ, pairs.num_pairs))
    _, _, *targets = pairs.pairs(index, (1, width))
    strange = np.flatnonzero(_classes(objective, *targets, vocabulary) < 0)
    if strange.size:
      tokens = pairs.pairs(index[strange[:1]], (1, 64))[2][0]
      raise errors.DataError(
        'targets are none of Classification.labels',
        where=f'{where}, pair {index[strange[0]]}',
        got=repr(vocabulary.decode(tokens)),
        expected=' or '.join(map(repr, objective.labels)),
        choices=objective.labels,
      )


def batch(objective, model, rows, vocabulary, width):
  """Start, text and extract, the text as targets, and labels.

  Returns:
    As `corruptions`, with int32 `labels` [B] and float32 `label_weights` [B].
  """
  del model
  text_BL, text_B, targets_BK, targets_B = rows
  each = np.arange(len(text_BL))
  ended_B = text_BL[each, np.maximum(text_B - 1, 0)] == vocabulary.eos_id
  text_B = np.minimum(text_B - (ended_B & (text_B > 0)), width - 2)
  places_X = np.arange(width)
  # What is said: the text and extract. What is read: start before it.
  said_BX = np.zeros((len(each), width), np.int32)
  said_BX[:, : text_BL.shape[1]] = text_BL
  said_BX[each, text_B] = vocabulary.sentinel(EXTRACT)
  counts_BX = places_X <= text_B[:, None]
  said_BX *= counts_BX
  read_BX = np.roll(said_BX, 1, axis=1)
  read_BX[:, 0] = vocabulary.sentinel(START)
  segments_BX = (places_X <= text_B[:, None] + 1).astype(np.int32)
  return {
    'decoder_input_tokens': read_BX,
    'decoder_target_tokens': said_BX,
    'decoder_loss_weights': counts_BX.astype(np.float32),
    'decoder_segment_ids': segments_BX,
    'decoder_positions': places_X.astype(np.int32) * segments_BX,
    'labels': _classes(objective, targets_BK, targets_B, vocabulary),
    'label_weights': np.ones(len(each), np.float32),
  }
