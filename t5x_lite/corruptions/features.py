"""What the model reads: the batch contract, from rows of tokens."""

import numpy as np


def pad_rows(rows, length):
  """Rows of tokens as int32 [B, length], and their lengths [B]."""
  tokens_BL = np.zeros((len(rows), length), np.int32)
  for n, row in enumerate(rows):
    tokens_BL[n, : len(row)] = row
  return tokens_BL, np.array([len(row) for row in rows], np.int32)


def _row_features(lengths_B, width):
  """Segment ids and positions [B, L] of rows that hold one example each."""
  positions_L = np.arange(width, dtype=np.int32)
  valid_BL = positions_L < lengths_B[:, None]
  return valid_BL.astype(np.int32), np.where(valid_BL, positions_L, 0)


def encoder_decoder(inputs_BL, inputs_B, targets_BK, targets_B, start_id):
  """A batch for teacher forcing.

  Args:
    inputs_BL: int32, what the encoder reads.
    inputs_B: how much of each row of it counts.
    targets_BK: int32, what the decoder is to say.
    targets_B: how much of each row of it counts.
    start_id: what the decoder reads first.

  Returns:
    A dict of int32 arrays, and float32 `decoder_loss_weights`.
  """
  encoder_segments_BL, encoder_positions_BL = _row_features(
    inputs_B, inputs_BL.shape[1]
  )
  decoder_segments_BK, decoder_positions_BK = _row_features(
    targets_B, targets_BK.shape[1]
  )
  shifted_BK = np.empty_like(targets_BK)
  shifted_BK[:, 0] = start_id
  shifted_BK[:, 1:] = targets_BK[:, :-1]
  return {
    'encoder_input_tokens': inputs_BL,
    'encoder_segment_ids': encoder_segments_BL,
    'encoder_positions': encoder_positions_BL,
    'decoder_input_tokens': shifted_BK,
    'decoder_target_tokens': targets_BK,
    'decoder_loss_weights': decoder_segments_BK.astype(np.float32),
    'decoder_segment_ids': decoder_segments_BK,
    'decoder_positions': decoder_positions_BK,
  }
