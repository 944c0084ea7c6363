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
  segments_BL = (positions_L < lengths_B[:, None]).astype(np.int32)
  return segments_BL, segments_BL * positions_L


def _shifted(tokens_BL, start_id):
  """What a decoder reads when it is to say these tokens."""
  shifted_BL = np.empty_like(tokens_BL)
  shifted_BL[:, :1] = start_id
  shifted_BL[:, 1:] = tokens_BL[:, :-1]
  return shifted_BL


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
  return {
    'encoder_input_tokens': inputs_BL,
    'encoder_segment_ids': encoder_segments_BL,
    'encoder_positions': encoder_positions_BL,
    'decoder_input_tokens': _shifted(targets_BK, start_id),
    'decoder_target_tokens': targets_BK,
    'decoder_loss_weights': decoder_segments_BK.astype(np.float32),
    'decoder_segment_ids': decoder_segments_BK,
    'decoder_positions': decoder_positions_BK,
  }


def decoder_only(
  inputs_BL, inputs_B, targets_BK, targets_B, start_id, prefix, width=None
):
  """A batch for teacher forcing of a decoder alone, targets behind inputs.

  Args:
    inputs_BL: int32, what comes first, and costs no loss.
    inputs_B: how much of each row of it counts.
    targets_BK: int32, what the decoder is to say.
    targets_B: how much of each row of it counts.
    start_id: what the decoder reads first; None for nothing: the first token
      of a row, an input, is read and never said.
    prefix: whether to mark what may see all of the inputs: the start and the
      inputs, up to where the first target is said.
    width: of the rows, enough for all; default: L + K.

  Returns:
    A dict of int32 arrays [B, width], and float32 `decoder_loss_weights`, 1 on
    targets.
  """
  width = width or inputs_BL.shape[1] + targets_BK.shape[1]
  segments_BX, positions_BX = _row_features(inputs_B + targets_B, width)
  tokens_BX = np.full(segments_BX.shape, start_id or 0, np.int32)
  # Both masks go row by row, and in a row inputs come first.
  counts_BX = np.concatenate(
    [
      np.arange(rows.shape[1]) < lengths_B[:, None]
      for rows, lengths_B in ((inputs_BL, inputs_B), (targets_BK, targets_B))
    ],
    axis=1,
  )
  both_BX = np.concatenate([inputs_BL, targets_BK], axis=1)
  tokens_BX[segments_BX > 0] = both_BX[counts_BX]
  places_X = np.arange(width)
  said_BX = (segments_BX > 0) & (places_X >= inputs_B[:, None])
  batch = {
    'decoder_input_tokens': _shifted(tokens_BX, start_id or 0),
    'decoder_target_tokens': tokens_BX,
    'decoder_loss_weights': said_BX.astype(np.float32),
    'decoder_segment_ids': segments_BX,
    'decoder_positions': positions_BX,
  }
  if prefix:
    seen_BX = (segments_BX > 0) & (places_X <= inputs_B[:, None])
    batch['decoder_bidirectional_mask'] = seen_BX.astype(np.int32)
  if start_id is None:
    batch = {name: x_BX[:, 1:] for name, x_BX in batch.items()}
    later_BX = batch['decoder_segment_ids'] > 0
    batch['decoder_positions'] -= later_BX.astype(np.int32)
  return batch


def of_stack(model, rows, start_id, width=None):
  """A batch for a model's stack.

  Args:
    model: specs.Transformer.
    rows: inputs [B, L], their lengths, targets [B, K], their lengths.
    start_id: what the decoder reads first.
    width: of the rows of a decoder alone; default: L + K.
  """
  if model.encoder_layers:
    return encoder_decoder(*rows, start_id)
  return decoder_only(*rows, start_id, model.mask == 'prefix', width)


def pack(batch, row_J, widths):
  """A batch of several examples a row, which do not see each other.

  Segments of a row are numbered from 1, as its examples stand; positions start
  again in each.

  Args:
    batch: the batch contract, of an example a row.
    row_J: the row that each example goes to, in rising order from 0.
    widths: tokens of a row of each stack, 'encoder' and 'decoder', enough for
      all that goes there.

  Returns:
    As `batch`, with zeros where nothing is.
  """
  rows = int(row_J[-1]) + 1
  first_J = np.searchsorted(row_J, row_J)  # the first example of its row
  packed = {}
  for side, width in widths.items():
    here_JL = batch[f'{side}_segment_ids'] > 0
    length_J = here_JL.sum(1)
    before_J = np.cumsum(length_J) - length_J  # tokens of all examples before
    start_J = before_J - before_J[first_J]
    to_T = np.repeat(row_J * width + start_J - before_J, length_J)
    to_T += np.arange(len(to_T))
    for name, x_JL in batch.items():
      if name.startswith(side):
        flat = np.zeros(rows * width, x_JL.dtype)
        if name.endswith('_segment_ids'):
          flat[to_T] = np.repeat(np.arange(len(row_J)) - first_J + 1, length_J)
        else:
          flat[to_T] = x_JL[here_JL]
        packed[name] = flat.reshape(rows, width)
  return packed
