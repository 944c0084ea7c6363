"""What a model is measured by: held-out documents, and tasks of SeqIO.

The device adds up each row alone. Rows are added here, in float64 and in the
order of the examples: neither batches nor devices nor processes change a sum.
"""

import jax
import jax.numpy as jnp
import numpy as np

from t5x_lite import decoding
from t5x_lite import losses
from t5x_lite import partitioning
from t5x_lite import processes

_MEANS = ('loss', 'accuracy', 'text_loss', 'text_accuracy', 'marker_loss')
COUNTS = ('tokens', 'text_tokens', 'examples')
CLASSES = ('class_loss', 'class_accuracy')  # of texts that have a label
METRICS = (*_MEANS, 'unigram_entropy', *COUNTS)  # of held-out documents
OF_ALL_TASKS = ('loss', 'token_accuracy', 'tokens', 'examples')
_STEP = 32  # lengths of tasks are multiples of it, so that few shapes compile


def make_eval_step(model, is_text_V):
  """A function (params, batch) -> (sums of each row, counts), to be jitted.

  Args:
    model: models.Model.
    is_text_V: true for the tokens that stand for text, false for sentinels,
      end and padding.

  Returns:
    The function; its results are {name: [B]} and how often each text token was
    a target, int32 [V].
  """

  def eval_step(params, batch):
    rows = {}
    if 'labels' in batch:
      logits_BLV, classes_BC = model.classify(params, batch)
      _, rows = losses.classes(
        classes_BC, batch['labels'], batch['label_weights'], axis=1
      )
    else:
      logits_BLV = model.apply(params, batch)
    targets_BL = batch[f'{model.side}_target_tokens']
    weights_BL = batch[f'{model.side}_loss_weights']
    text_BL = weights_BL * jnp.asarray(is_text_V)[targets_BL]
    for prefix, counted_BL in (('', weights_BL), ('text_', text_BL)):
      _, weight_B, found = losses.cross_entropy(
        logits_BLV, targets_BL, counted_BL, axis=1
      )
      rows[f'{prefix}tokens'] = weight_B
      rows[f'{prefix}loss'] = found['loss']
      rows[f'{prefix}accuracy'] = found['accuracy']
    counts_V = jnp.zeros(len(is_text_V), jnp.int32)
    return rows, counts_V.at[targets_BL].add(text_BL.astype(jnp.int32))

  return eval_step


def joined(batches, count):
  """{name: float64 [N]} of the rows of batches, without those that fill up."""
  return {
    name: np.concatenate([rows[name] for rows in batches])[:count].astype(float)
    for name in (batches[0] if batches else ())
  }


class HeldOut:
  """Measures a model on the validation split of a run's data.

  Metrics, per target token: loss and accuracy over all of them; text_loss and
  text_accuracy over those that stand for text, marker_loss over sentinels and
  end; unigram_entropy, the least loss on the same text tokens of any model that
  ignores context; tokens and text_tokens, their counts; examples. A mean over
  nothing is left out. Of texts with labels also class_loss and class_accuracy,
  per example.
  """

  def __init__(self, model, batches, vocabulary, mesh, batch_size):
    self.batches, self.mesh = batches, mesh
    self.class_metrics = CLASSES if model.spec.classes else ()
    # Rows that fill up a batch count for nothing: it may be larger than asked.
    self.batch_size = partitioning.fill_up(batch_size, mesh)
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

  def num_examples(self, limit=None):
    """How many examples are measured."""
    return min(limit or self.batches.num_examples, self.batches.num_examples)

  def __call__(self, params, limit=None):
    """The metrics over at most `limit` examples, each counted once."""
    examples = self.num_examples(limit)
    found, counts = [], np.zeros(len(self.is_text_V), np.int64)
    local = partitioning.local_rows(self.mesh, self.batch_size)
    for batch in self.batches.evaluation(self.batch_size, limit, local):
      batch = partitioning.put_batch(batch, self.mesh, self.batch_size)
      rows, counts_V = jax.device_get(self._step(params, batch))
      found.append(rows)
      counts += counts_V
    sums = {name: x_N.sum() for name, x_N in joined(found, examples).items()}
    tokens, text = sums.get('tokens', 0), sums.get('text_tokens', 0)
    if text < tokens:
      sums['marker_loss'] = sums['loss'] - sums['text_loss']
    weights = dict(zip(_MEANS, (tokens, tokens, text, text, tokens - text)))
    metrics = {
      name: float(sums[name] / weight)
      for name, weight in weights.items()
      if weight
    }
    for name in self.class_metrics:
      metrics[name] = float(sums[name] / examples)
    if text:
      metrics['unigram_entropy'] = entropy(counts)
    return metrics | dict(zip(COUNTS, (int(tokens), int(text), examples)))


def entropy(counts):
  """Entropy, in nats, of drawing one of these counted things."""
  share = counts[counts > 0] / counts.sum()
  return float(np.sum(share * np.log(1 / share)))


# -- tasks --------------------------------------------------------------------


class Tasks:
  """Measures a model on tasks; their rows share one shape, compiled once.

  Metrics: whatever a task's own functions return, from predictions or
  from scores, the log probability of a target; and always, per target token,
  loss and token_accuracy, with the counts tokens and examples. Where a task
  has a metric of such a name, it is the task's.
  """

  def __init__(self, model, tasks, vocabulary, mesh, batch_size, how):
    """Allocates nothing.

    Args:
      model: models.Model.
      tasks: of data.tasks.
      vocabulary: theirs and the model's.
      mesh: of the parameters.
      batch_size: examples at once, at most.
      how: to predict: specs.Greedy, Beam or Sample.
    """
    decoding.check(how, vocabulary.size)
    self.mesh, self._start_id = mesh, vocabulary.start_id
    self._spec = model.spec
    most = max((len(task.examples) for task in tasks), default=1)
    self.batch_size = partitioning.fill_up(min(batch_size, most), mesh)
    longest = [
      max((task.longest(name) for task in tasks), default=1)
      for name in ('inputs', 'targets')
    ]
    self._widths = [max(1, -(-length // _STEP)) * _STEP for length in longest]
    is_text_V = np.ones(model.spec.vocab_size, bool)
    self._step = jax.jit(
      make_eval_step(model, is_text_V),
      out_shardings=partitioning.replicated(mesh),
    )

    def predict(params, batch, first, count, length):
      # Rows that fill up a batch end at once, or they might never.
      rows_B = jnp.arange(self.batch_size)
      tokens_BNL, _, _ = decoding.decode(
        model,
        params,
        batch,
        how,
        length,
        vocabulary.size,
        vocabulary.eos_id,
        examples_B=first + rows_B,
        active_B=rows_B < count,
      )
      return tokens_BNL[:, 0]

    self._predict = jax.jit(
      predict,
      static_argnames='length',
      out_shardings=partitioning.replicated(mesh),
    )

  def __call__(self, params, task):
    """(metrics, a dict for each example) of a task, metrics as plain JSON.

    The dicts are for process 0, which writes them.
    """
    examples, length = len(task.examples), task.lengths['targets']
    local = partitioning.local_rows(self.mesh, self.batch_size)
    measured, predictions = [], []
    for start in range(0, examples, self.batch_size):
      places = start + local
      batch = task.batch(self._spec, places, *self._widths, self._start_id)
      here = partitioning.put_batch(batch, self.mesh, self.batch_size)
      measured.append(jax.device_get(self._step(params, here)[0]))
      if task.predicts:
        rows = [
          task.examples[n]['inputs'] if n < examples else ()
          for n in start + local
        ]
        prompts = decoding.prompts.batch(
          self._spec, rows, self._widths[0], self._start_id
        )
        here = partitioning.put_batch(prompts, self.mesh, self.batch_size)
        found_BL = self._predict(params, here, start, examples - start, length)
        predictions.append(jax.device_get(found_BL))
    found = joined(measured, examples)
    tokens = int(found['tokens'].sum())
    metrics = {
      'loss': float(found['loss'].sum() / max(tokens, 1)),
      'token_accuracy': float(found['accuracy'].sum() / max(tokens, 1)),
      'tokens': tokens,
      'examples': examples,
    }
    predicted = np.concatenate(predictions)[:examples] if predictions else None
    lines = None

    def measure():
      nonlocal lines
      own, lines = task.measure(predicted, -found['loss'])
      return own

    # Functions of the user's own need not give all processes the same.
    return metrics | processes.first(measure), lines


def is_number(value):
  return isinstance(value, (int, float)) and not isinstance(value, bool)
