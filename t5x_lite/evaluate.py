"""What a model is measured by: held-out documents, and tasks of SeqIO.

The device adds up each row alone. Rows are added here, in float64 and in the
order of the examples: neither batches nor devices nor processes change a sum.
"""

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
import jax.numpy as jnp
import numpy as np

from t5x_lite import decoding
from t5x_lite import errors
from t5x_lite import losses
from t5x_lite import partitioning

HELD_OUT = 'validation'  # what the held-out documents go by
_MEANS = ('loss', 'accuracy', 'text_loss', 'text_accuracy', 'marker_loss')
_COUNTS = ('tokens', 'text_tokens', 'examples')
METRICS = (*_MEANS, 'unigram_entropy', *_COUNTS)  # of held-out documents
_STEP = 32  # lengths of tasks are multiples of it, so that few shapes compile


def make_eval_step(model, is_text_V):
  """A function (params, batch) -> (sums of each row, counts), to be jitted.

  Args:
    model: models.Model.
    is_text_V: true for the tokens that stand for text, false for sentinels,
      end and padding.

  Returns:
    The function; its results are {name: [B]}, of which `real` tells the rows
    that hold an example, and how often each text token was a target, int32 [V].
  """

  def eval_step(params, batch):
    logits_BLV = model.apply(params, batch)
    targets_BL = batch['decoder_target_tokens']
    weights_BL = batch['decoder_loss_weights']
    rows = {'real': jnp.any(batch['decoder_segment_ids'] > 0, axis=1)}
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


def on_all(mesh):
  """Where a result lies that every process is to read."""
  return NamedSharding(mesh, PartitionSpec())


def fill_up(batch_size, mesh):
  """The least number of rows, from a batch size on, that the mesh can share."""
  shards = partitioning.batch_shards(mesh.shape)
  return -(-batch_size // shards) * shards


def real_rows(batches_of_rows):
  """{name: float64 [N]} of the rows that hold an example, in their order."""
  kept = [
    {name: x_B[rows['real']] for name, x_B in rows.items()}
    for rows in batches_of_rows
  ]
  return {
    name: np.concatenate([rows[name] for rows in kept]).astype(np.float64)
    for name in (kept[0] if kept else ())
  }


class HeldOut:
  """Measures a model on the validation split of a run's data.

  Metrics, per target token: loss and accuracy over all of them; text_loss and
  text_accuracy over those that stand for text, marker_loss over sentinels and
  end; unigram_entropy, the least loss on the same text tokens of any model that
  ignores context; tokens and text_tokens, their counts; examples. A mean over
  nothing is left out.
  """

  def __init__(self, model, batches, vocabulary, mesh, batch_size):
    self.batches, self.mesh = batches, mesh
    # Rows that fill up a batch count for nothing: it may be larger than asked.
    self.batch_size = fill_up(batch_size, mesh)
    ids = np.arange(vocabulary.size)
    is_text = ~vocabulary.is_sentinel(ids) & ~np.isin(
      ids, [vocabulary.eos_id, vocabulary.pad_id]
    )
    # Rows of the embedding past the vocabulary stand for nothing.
    padding = model.spec.vocab_size - vocabulary.size
    self.is_text_V = np.pad(is_text, (0, padding))
    self._step = jax.jit(
      make_eval_step(model, self.is_text_V), out_shardings=on_all(mesh)
    )

  def __call__(self, params, limit=None):
    """The metrics over at most `limit` examples, each counted once."""
    found, counts = [], np.zeros(len(self.is_text_V), np.int64)
    for batch in self.batches.evaluation(self.batch_size, limit):
      rows, counts_V = jax.device_get(
        self._step(params, partitioning.put_batch(batch, self.mesh))
      )
      found.append(rows)
      counts += counts_V
    sums = {name: x_N.sum() for name, x_N in real_rows(found).items()}
    tokens, text = sums.get('tokens', 0), sums.get('text_tokens', 0)
    if text < tokens:
      sums['marker_loss'] = sums['loss'] - sums['text_loss']
    weights = dict(zip(_MEANS, (tokens, tokens, text, text, tokens - text)))
    metrics = {
      name: float(sums[name] / weight)
      for name, weight in weights.items()
      if weight
    }
    if text:
      metrics['unigram_entropy'] = entropy(counts)
    totals = tokens, text, sums.get('real', 0)
    return metrics | dict(zip(_COUNTS, map(int, totals)))


def entropy(counts):
  """Entropy, in nats, of drawing one of these counted things."""
  share = counts[counts > 0] / counts.sum()
  return float(np.sum(share * np.log(1 / share)))


# -- tasks --------------------------------------------------------------------


class Tasks:
  """Measures a model on tasks; their rows share one shape, compiled once.

  Metrics: whatever a task's own functions return, from greedy predictions or
  from scores, the log probability of a target; and always, per target token,
  loss and token_accuracy, with the counts tokens and examples.
  """

  def __init__(self, model, tasks, vocabulary, mesh, batch_size):
    """Allocates nothing.

    Args:
      model: models.Model.
      tasks: of data.tasks.
      vocabulary: theirs and the model's.
      mesh: of the parameters.
      batch_size: examples at once, at most.
    """
    self.mesh, self._start_id = mesh, vocabulary.pad_id
    most = max((len(task.examples) for task in tasks), default=1)
    self.batch_size = fill_up(min(batch_size, most), mesh)
    self._widths = [
      max((-(-task.longest(name) // _STEP) * _STEP for task in tasks), default=1)
      for name in ('inputs', 'targets')
    ]
    is_text_V = np.ones(model.spec.vocab_size, bool)
    self._step = jax.jit(
      make_eval_step(model, is_text_V), out_shardings=on_all(mesh)
    )

    def predict(params, batch, length):
      # Rows that fill up a batch end at once, or they would never.
      real_B = jnp.any(batch['encoder_segment_ids'] > 0, axis=1)
      ends_B = jnp.where(real_B, -1, vocabulary.eos_id)
      return decoding.greedy(
        model,
        params,
        batch['encoder_input_tokens'],
        batch['encoder_segment_ids'],
        length,
        vocabulary.size,
        vocabulary.eos_id,
        ends_B[:, None],
        vocabulary.pad_id,
      )[0]

    self._predict = jax.jit(
      predict, static_argnames='length', out_shardings=on_all(mesh)
    )

  def __call__(self, params, task):
    """(metrics, a dict for each example) of a task, metrics as plain JSON."""
    rows, predictions = [], []
    for start in range(0, len(task.examples), self.batch_size):
      batch = task.batch(start, self.batch_size, *self._widths, self._start_id)
      here = partitioning.put_batch(batch, self.mesh)
      rows.append(jax.device_get(self._step(params, here)[0]))
      if task.predicts:
        found_BL = self._predict(params, here, task.lengths['targets'])
        predictions.append(jax.device_get(found_BL)[rows[-1]['real']])
    found = real_rows(rows)
    tokens = found['tokens'].sum()
    metrics = {
      'loss': float(found['loss'].sum() / tokens),
      'token_accuracy': float(found['accuracy'].sum() / tokens),
      'tokens': int(tokens),
      'examples': len(task.examples),
    }
    scores_N = -found['loss']
    own, lines = task.measure(
      np.concatenate(predictions) if task.predicts else None, scores_N
    )
    return metrics | own, lines


def mean(found):
  """Metrics of a mixture: means over its tasks of what all of them have.

  Args:
    found: the metrics of each task.
  """
  shared = [
    name for name in found[0] if all(is_number(x.get(name)) for x in found)
  ]
  return {
    name: sum(x[name] for x in found) / (1 if name in _COUNTS else len(found))
    for name in shared
  }


def is_number(value):
  return isinstance(value, (int, float)) and not isinstance(value, bool)


# -- all of it ----------------------------------------------------------------


class Measures:
  """All that a run is measured by, by name: held-out documents and tasks."""

  def __init__(self, model, held_out, tasks, mixtures, vocabulary, mesh, size):
    """Allocates nothing.

    Args:
      model: models.Model.
      held_out: the Batches of held-out documents, or None.
      tasks: of data.tasks.
      mixtures: {name: names of its tasks}.
      vocabulary: the run's.
      mesh: of the parameters.
      size: examples at once.
    """
    self.mixtures = mixtures
    self._tasks = {task.name: task for task in tasks}
    self._measure = Tasks(model, tasks, vocabulary, mesh, size)
    self._held_out = None
    if held_out is not None:
      self._held_out = HeldOut(model, held_out, vocabulary, mesh, size)
    self.names = [HELD_OUT] * (held_out is not None) + list(self._tasks)

  def __call__(self, name, params, limit=None):
    """(metrics, lines or None) of one of `names`; tasks have their limit."""
    if name == HELD_OUT:
      return self._held_out(params, limit), None
    return self._measure(params, self._tasks[name])

  def settings(self, name, limit=None):
    """What a result depends on besides the parameters, as plain JSON."""
    if name == HELD_OUT:
      batches = self._held_out.batches
      count = min(limit or batches.num_examples, batches.num_examples)
      return {'examples': count, 'data': batches.fingerprint}
    return self._tasks[name].settings()

  def means(self, found):
    """{mixture: metrics} from {task: metrics}."""
    return {
      name: mean([found[task] for task in tasks])
      for name, tasks in self.mixtures.items()
    }

  def check(self, best):
    """Refuses a specs.Best (or None) of what is never measured."""
    if best is None:
      return
    where, _, metric = best.metric.partition('/')
    sources = [*self.names, *self.mixtures]
    known = METRICS if where == HELD_OUT else ()
    names = [f'{source}/...' for source in sources if source != HELD_OUT]
    if HELD_OUT in sources:
      names = [f'{HELD_OUT}/{name}' for name in METRICS] + names
    if where not in sources or (known and metric not in known):
      raise errors.ConfigError(
        'nothing measures Best.metric',
        got=best.metric,
        expected=f'one of {", ".join(names)}' if names else 'held-out documents'
        ' or Evaluation.tasks, but there are none',
        choices=names,
      )
