"""Hugging Face's way to T5's examples: what its Flax script's collator does.

`FlaxDataCollatorForT5MLM` is in no release of transformers, only among its
examples; this is its algorithm written anew. Rows of equal length are in memory
already. The masked runs of each row are drawn by shuffling, row by row; then
the whole batch is put together by masks.
"""

import numpy as np


def _run_lengths(rng, total, runs):
  """A random composition of `total` into `runs` parts, by a shuffle."""
  begins = np.zeros(total - 1, np.int64)
  begins[: runs - 1] = 1
  rng.shuffle(begins)
  part = np.cumsum(np.concatenate([[0], begins]))
  return np.bincount(part, minlength=runs)


def _mask(rng, length, density, mean_span):
  """One row's masked tokens, bool [length]."""
  noise = min(max(round(length * density), 1), length - 1)
  runs = max(round(min(noise, length - noise) / mean_span), 1)
  lengths = np.empty(2 * runs, np.int64)
  lengths[0::2] = _run_lengths(rng, length - noise, runs)
  lengths[1::2] = _run_lengths(rng, noise, runs)
  flips = np.zeros(length, np.int64)
  flips[np.cumsum(lengths)[:-1]] = 1
  return np.cumsum(flips) % 2 == 1


def _sentinels(mask_BL, size):
  """First masked tokens' sentinels, -1 at other masked ones, else 0."""
  mask_BL = mask_BL.astype(np.int64)
  first_BL = mask_BL - np.roll(mask_BL, 1, axis=1) * mask_BL
  first_BL[:, 0] = mask_BL[:, 0]
  ids_BL = np.where(first_BL > 0, size - np.cumsum(first_BL, axis=1), 0)
  return ids_BL - (mask_BL - first_BL)


def _joined(tokens_BL, sentinels_BL, eos_id):
  """Rows with sentinels for tokens, those at -1 left out, and EOS."""
  rows = len(tokens_BL)
  whole_BL = np.where(sentinels_BL != 0, sentinels_BL, tokens_BL)
  kept_BL = whole_BL[whole_BL >= 0].reshape(rows, -1)
  ends_B1 = np.full((rows, 1), eos_id, kept_BL.dtype)
  return np.concatenate([kept_BL, ends_B1], axis=1)


def collate(rng, rows, density, mean_span, size, pad_id, eos_id):
  """A batch of rows of one length.

  Args:
    rng: np.random.Generator.
    rows: dicts with int `input_ids` [L].
    density: share of the tokens that are masked.
    mean_span: mean tokens in a masked span.
    size: of the vocabulary, whose last id is the first sentinel.
    pad_id: what the decoder reads first.
    eos_id: ends inputs and targets.

  Returns:
    input_ids, labels and decoder_input_ids, a dict.
  """
  tokens_BL = np.array([row['input_ids'] for row in rows])
  width = tokens_BL.shape[1]
  mask_BL = np.array([_mask(rng, width, density, mean_span) for _ in rows])
  inputs = _joined(tokens_BL, _sentinels(mask_BL, size), eos_id)
  labels = _joined(tokens_BL, _sentinels(~mask_BL, size), eos_id)
  shifted = np.zeros_like(labels)
  shifted[:, 1:] = labels[:, :-1]
  shifted[:, 0] = pad_id
  return {'input_ids': inputs, 'labels': labels, 'decoder_input_ids': shifted}
