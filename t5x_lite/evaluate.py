"""Teacher-forced measures on documents that training never saw."""

import json

import jax
import jax.numpy as jnp
import numpy as np

from t5x_lite import losses
from t5x_lite import partitioning
from t5x_lite import storage


def make_eval_step(model, is_text_V):
  """A function (params, batch) -> {name: sum}, to be jitted.

  Args:
    model: models.Model.
    is_text_V: true for the tokens that stand for text, false for sentinels,
      end and padding.
  """

  def eval_step(params, batch):
    logits_BLV = model.apply(params, batch)
    targets_BL = batch['decoder_target_tokens']
    weights_BL = batch['decoder_loss_weights']
    sums = {}
    text_BL = weights_BL * jnp.asarray(is_text_V)[targets_BL]
    for prefix, counted_BL in (('', weights_BL), ('text_', text_BL)):
      _, weight, found = losses.cross_entropy(
        logits_BLV, targets_BL, counted_BL
      )
      sums[f'{prefix}tokens'] = weight
      sums[f'{prefix}loss'] = found['loss']
      sums[f'{prefix}accuracy'] = found['accuracy']
    return sums

  return eval_step


class HeldOut:
  """Measures a model on the validation split of a run's data.

  Metrics, per target token: loss and accuracy over all of them; text_loss and
  text_accuracy over those that stand for text, marker_loss over sentinels and
  end; unigram_entropy, the least loss on the same text tokens of any model that
  ignores context; tokens and text_tokens, their counts; examples.
  """

  def __init__(self, model, batches, vocabulary, mesh, batch_size):
    self.batches, self.mesh = batches, mesh
    # Rows that fill up a batch count for nothing: it may be larger than asked.
    shards = partitioning.batch_shards(mesh.shape)
    self.batch_size = -(-batch_size // shards) * shards
    ids = np.arange(vocabulary.size)
    is_text = ~vocabulary.is_sentinel(ids) & ~np.isin(
      ids, [vocabulary.eos_id, vocabulary.pad_id]
    )
    # Rows of the embedding past the vocabulary stand for nothing.
    padding = model.spec.vocab_size - vocabulary.size
    self.is_text_V = np.pad(is_text, (0, padding))
    self._step = jax.jit(
      make_eval_step(model, self.is_text_V),
      out_shardings=partitioning.replicated(mesh),
    )

  def __call__(self, params, limit=None):
    """The metrics over at most `limit` examples, each counted once."""
    sums, counts, examples = {}, np.zeros(len(self.is_text_V), np.int64), 0
    local = partitioning.local_rows(self.mesh, self.batch_size)
    for batch in self.batches.evaluation(self.batch_size, limit, local):
      found = self._step(
        params, partitioning.put_batch(batch, self.mesh, self.batch_size)
      )
      counted = batch['decoder_loss_weights'] > 0
      targets = batch['decoder_target_tokens'][counted]
      counts += np.bincount(targets, minlength=len(counts))
      examples += int(np.sum(np.any(batch['encoder_segment_ids'] > 0, axis=1)))
      for name, value in jax.device_get(found).items():
        sums[name] = sums.get(name, 0.0) + float(value)
    tokens, text = sums['tokens'], sums['text_tokens']
    marker_loss = sums['loss'] - sums['text_loss']
    return {
      'loss': sums['loss'] / max(tokens, 1),
      'accuracy': sums['accuracy'] / max(tokens, 1),
      'text_loss': sums['text_loss'] / max(text, 1),
      'text_accuracy': sums['text_accuracy'] / max(text, 1),
      'marker_loss': marker_loss / max(tokens - text, 1),
      'unigram_entropy': entropy(counts[self.is_text_V]),
      'tokens': int(tokens),
      'text_tokens': int(text),
      'examples': examples,
    }


def save(workdir, step, metrics):
  """Writes what was measured at a step, and returns the file."""
  folder = storage.make_folder(storage.path(workdir) / 'evaluation')
  file = folder / f'validation-{step}.json'
  text = json.dumps({'step': step} | metrics, indent=2)
  storage.write_text(file, f'{text}\n')
  return file


def entropy(counts):
  """Entropy, in nats, of drawing one of these counted things."""
  share = counts[counts > 0] / counts.sum()
  return float(np.sum(share * np.log(1 / share)))
