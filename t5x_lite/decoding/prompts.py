"""What a model reads before it writes."""

import numpy as np

from t5x_lite.corruptions import features

_STEP = (
  32  # lengths of prefixes are multiples of it, so that few shapes compile
)


def batch(model, inputs, width, start_id, prefixes=None):
  """Inputs as `Model.start` takes them.

  An encoder reads the inputs, and a decoder alone reads them behind the start
  token. Then come tokens that each sequence must begin with.

  Args:
    model: specs.Transformer.
    inputs: token ids of each row.
    width: of the widest row, or more.
    start_id: what the decoder reads first; None for nothing: a decoder alone
      begins with its inputs, of which there must be some.
    prefixes: token ids that each row's sequence begins with; None for none.

  Returns:
    A dict of int32 arrays.
  """
  prefixes = prefixes or [()] * len(inputs)
  longest = max(map(len, prefixes))
  room = 1 + -(-longest // _STEP) * _STEP
  found = {}
  if model.encoder_layers:
    tokens_BK, lengths_B = features.pad_rows(inputs, width)
    places_K = np.arange(width, dtype=np.int32)
    real_BK = places_K < lengths_B[:, None]
    found = {
      'encoder_input_tokens': tokens_BK,
      'encoder_segment_ids': real_BK.astype(np.int32),
      'encoder_positions': np.where(real_BK, places_K, 0),
    }
    rows = [[start_id, *prefix] for prefix in prefixes]
  else:
    room += width
    start = [] if start_id is None else [start_id]
    rows = [[*start, *row, *prefix] for row, prefix in zip(inputs, prefixes)]
  tokens_BP = np.zeros((len(rows), room), np.int32)
  segments_BP = np.zeros_like(tokens_BP)
  for n, row in enumerate(rows):
    tokens_BP[n, room - len(row) :] = row
    segments_BP[n, room - len(row) :] = 1
  return found | {
    'decoder_input_tokens': tokens_BP,
    'decoder_segment_ids': segments_BP,
  }
