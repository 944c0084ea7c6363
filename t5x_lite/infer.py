"""Predictions and scores of a trained model, from texts."""

import dataclasses
import functools
import re

import jax
import numpy as np

from t5x_lite import best
from t5x_lite import checkpoints
from t5x_lite import data
from t5x_lite import decoding
from t5x_lite import errors
from t5x_lite import models
from t5x_lite import partitioning
from t5x_lite import record as records
from t5x_lite import specs
from t5x_lite.corruptions import features

LONGEST = 16  # inputs, in lengths of training; attention grows with the square
_STEP = 64  # lengths of inputs are multiples of it


class Predictor:
  """A trained model, by its workdir.

  Attributes:
    run: the recipe it was trained with.
    step: of the checkpoint.
    fingerprint: tells this checkpoint from all others.
    vocabulary: its vocabulary.
    mesh: all devices; the rows of a batch are spread over them.
    model: models.Model.
    params: its parameters, read when they are first used.
  """

  def __init__(self, workdir, step=None):
    self._saver = checkpoints.Checkpoints.reader(workdir)
    self.step = best.find(self._saver, step)
    self.run = read_run(self._saver, self.step)
    if not self.run.model.decoder_layers:
      raise errors.ConfigError(
        'an encoder alone says nothing by itself',
        where=workdir,
        fix='train it on with --gin.Transformer.decoder_layers=N',
      )
    self.fingerprint = self._saver.fingerprint(self.step)
    self.vocabulary = data.load_vocabulary(self.run.data)
    alone = not self.run.model.encoder_layers
    self._starts = self.run.data.prompt_start or not alone
    self._start_id = self.vocabulary.start_id if self._starts else None
    self.mesh, self.model = lay_out(self.run)
    # On every device, so that each process of a run has all of it.
    everywhere = partitioning.replicated(self.mesh)
    jit = functools.partial(jax.jit, out_shardings=everywhere)
    self._decode = jit(
      functools.partial(decoding.decode, self.model),
      static_argnames=('spec', 'length', 'num_ids', 'eos_id'),
    )
    self._log_probs = jit(functools.partial(decoding.log_probs, self.model))
    self._next = jit(lambda *args: self.model.start(*args, length=0)[0])

  @functools.cached_property
  def params(self):
    return restore_params(self._saver, self.step, self.mesh, self.model)

  def tokens(self, text, room=0):
    """Token ids of a text as inputs; `<extra_id_0>` is a blank.

    They end with EOS, unless the model was trained to go on with texts.

    Args:
      text: a str.
      room: tokens that are to follow.

    Raises:
      DataError: the text is too long, or names a sentinel that is none.
    """
    found = self.vocabulary.encode(text, sentinels=True)
    found = [int(token) for token in found]
    if not isinstance(self.run.objective, specs.CausalLM):
      found.append(self.vocabulary.eos_id)
    return self._checked(found, text, room)

  def targets(self, text):
    """Token ids of a text as targets, with EOS; raises as `tokens`."""
    found = self.vocabulary.encode(text, sentinels=True)
    found = [*(int(token) for token in found), self.vocabulary.eos_id]
    return self._checked(found, text)

  def _checked(self, tokens, text, room=0):
    """The tokens, if they are not too many."""
    if not tokens and not self._starts:
      raise errors.DataError(
        'this model has no token to start a text with',
        got='no text',
        expected='a prompt',
      )
    trained, model = max(self.run.data.lengths.values()), self.run.model
    most = LONGEST * trained
    rule = f'at most {most:,}, {LONGEST} times what it was trained on'
    if isinstance(model.position, specs.Learned):
      # A decoder alone reads the inputs, and what follows, behind its start.
      ahead = 0 if model.encoder_layers else 1 + room
      if model.position.length - ahead < most:
        most = model.position.length - ahead
        rule = f'at most {most:,}: it has {model.position.length:,} positions'
    if len(tokens) > most:
      raise errors.DataError(
        'text is too long for this model',
        where=repr(text[:40]),
        got=f'{len(tokens):,} tokens',
        expected=rule,
        fix='cut the line',
      )
    return tokens

  def _on_mesh(self, arrays, at_least=0):
    """Rows spread over the devices, filled up with copies of the last one.

    A copy ends when the row does; an empty row might be decoded without end.
    """
    count = max(len(next(iter(arrays.values()))), at_least)
    size = partitioning.fill_up(count, self.mesh)
    local = partitioning.local_rows(self.mesh, size)
    own = {name: x[np.minimum(local, len(x) - 1)] for name, x in arrays.items()}
    return partitioning.put_batch(own, self.mesh, size)

  def decode(
    self,
    inputs,
    length,
    how=specs.Greedy(),  # noqa: B008
    prefixes=None,
    numbers=None,
    temperatures=None,
    at_least=0,
  ):
    """Sequences for each row of inputs: `decoding.decode`, as numpy.

    Args:
      inputs: token ids of each row.
      length: most tokens to decode.
      how: specs.Greedy, Beam or Sample.
      prefixes: token ids that each row's sequence begins with, which are not
        decoded; None for none.
      numbers: of the rows, by which their samples differ; by default from 0 on.
      temperatures: for `Sample`, one for each row; None for that of `how`.
      at_least: how many rows to compute, so that few shapes are compiled.
    """
    arrays = decoding.prompts.batch(
      self.run.model, inputs, _width(inputs), self._start_id, prefixes
    )
    if numbers is None:
      numbers = range(len(inputs))
    rows = {'examples_B': np.asarray(numbers, np.uint32)}
    if temperatures is not None:
      rows['temperature_B'] = np.asarray(temperatures, np.float32)
    with jax.set_mesh(self.mesh):
      found = self._decode(
        self.params,
        self._on_mesh(arrays, at_least),
        spec=how,
        length=length,
        num_ids=self.vocabulary.size,
        eos_id=self.vocabulary.eos_id,
        **self._on_mesh(rows, at_least),
      )
    return [x[: len(inputs)] for x in jax.device_get(found)]

  def predict(
    self,
    texts,
    length,
    how=specs.Greedy(),  # noqa: B008
    numbers=None,
    temperatures=None,
    at_least=0,
  ):
    """One dict for each text: prediction, score, tokens.

    The score is the log probability of the tokens up to and with the end, and
    `tokens` their number. Of beams there is `penalized`, too, which they are
    ranked by. Where `how` gives several sequences, the dict has `predictions`,
    a list of such dicts.

    Args:
      texts: inputs.
      length: most tokens to predict.
      how: specs.Greedy, Beam or Sample.
      numbers: as for `decode`.
      temperatures: as for `decode`.
      at_least: as for `decode`.
    """
    decoding.check(how, self.vocabulary.size)
    rows = [self.tokens(text, length) for text in texts]
    found = self.decode(
      rows, length, how, None, numbers, temperatures, at_least
    )
    results = []
    for sequences in zip(*found, strict=True):
      options = []
      for row, gains, rank in zip(*sequences, strict=True):
        ends = np.flatnonzero(row == self.vocabulary.eos_id)
        end = ends[0] if ends.size else length
        option = {
          'prediction': self.vocabulary.decode(row[:end].tolist()),
          'score': float(gains.sum()),
          'tokens': int(min(end + 1, length)),
        }
        if isinstance(how, specs.Beam):
          option['penalized'] = float(rank)
        options.append(option)
      several = how.sequences > 1
      results.append({'predictions': options} if several else options[0])
    return results

  def score(self, texts, targets, at_least=0):
    """One dict for each pair of texts: score, tokens.

    The score is the log probability of the target's tokens and its end, given
    the inputs, and `tokens` their number.
    """
    rows = [self.targets(text) for text in targets]
    inputs = [
      self.tokens(text, len(row)) for text, row in zip(texts, rows, strict=True)
    ]
    batch = features.of_stack(
      self.run.model,
      (
        *features.pad_rows(inputs, _width(inputs)),
        *features.pad_rows(rows, _width(rows)),
      ),
      self._start_id,
    )
    with jax.set_mesh(self.mesh):
      gains = self._log_probs(self.params, self._on_mesh(batch, at_least))
    return [
      {'score': float(found.sum()), 'tokens': len(row)}
      for found, row in zip(jax.device_get(gains), rows)
    ]

  def fill(self, text, candidates, length=16):
    """What may stand in each blank of a text.

    The blanks before a blank are filled by their best candidate. A candidate
    begins with one of the likeliest tokens and goes on greedily to the next
    sentinel or the end, and its probability includes that it ends there, unless
    `length` cuts it off.

    Args:
      text: with `<extra_id_0>`, `<extra_id_1>`, ... for blanks.
      candidates: how many for each.
      length: most tokens in a blank.

    Returns:
      [{'blank': name, 'candidates': [{'text', 'probability'}, ...]}, ...]
    """
    vocabulary = self.vocabulary
    candidates = min(candidates, vocabulary.size - vocabulary.sentinels)
    source = self.tokens(text)
    prefix, found = [], []
    for number in map(int, re.findall(r'<extra_id_(\d+)>', text)):
      prefix.append(vocabulary.sentinel(number))
      first = self._after(source, prefix)
      # Whatever ends a blank at once leaves it empty: one candidate, not many.
      ends = np.flatnonzero(self._ends(np.arange(vocabulary.size)))
      others = ends[ends != ends[np.argmax(first[ends])]]
      first[others] = -np.inf
      starts = np.argsort(-first, kind='stable')[:candidates].tolist()
      tokens, log_probs, _ = self.decode(
        [source] * candidates,
        length,
        prefixes=[[*prefix, start] for start in starts],
      )
      options = []
      for start, row, gains in zip(starts, tokens[:, 0], log_probs[:, 0]):
        span, chance = [start, *row.tolist()], [first[start], *gains]
        end = 0
        while end < length and not self._ends(span[end]):
          end += 1
        chance = sum(chance[: end + bool(self._ends(span[end]))])
        options.append((float(np.exp(chance)), span[:end]))
      options.sort(key=lambda option: -option[0])
      found.append(
        {
          'blank': f'<extra_id_{number}>',
          'candidates': [
            {'text': vocabulary.decode(span).strip(), 'probability': p}
            for p, span in options
          ],
        }
      )
      prefix += options[0][1]
    return found

  def _ends(self, tokens):
    """Which tokens end a blank: sentinels and the end of the sequence."""
    vocabulary = self.vocabulary
    return (tokens == vocabulary.eos_id) | vocabulary.is_sentinel(tokens)

  def _after(self, inputs, prefix):
    """Log probabilities of the token after a prefix, numpy [V]."""
    batch = decoding.prompts.batch(
      self.run.model,
      [inputs],
      _width([inputs]),
      self._start_id,
      [prefix],
    )
    with jax.set_mesh(self.mesh):
      logits = self._next(self.params, self._on_mesh(batch))
    logits = jax.device_get(logits)[0]
    # Ids past the vocabulary only pad the table.
    return np.array(jax.nn.log_softmax(logits))[: self.vocabulary.size]


def _width(rows):
  """Room for the longest row, in steps, so that few shapes are compiled."""
  return max(1, -(-max(map(len, rows)) // _STEP)) * _STEP


def read_run(saver, step):
  """The specs.Run of a step, its vocabulary that of the workdir."""
  where = saver.folder / str(step)
  run = records.from_record(saver.read_record(step), where)
  kept = data.kept_vocabulary(run.data, saver.folder.parent)
  return dataclasses.replace(run, data=kept)


def lay_out(run):
  """(mesh, model) of a run, on the devices that are here."""
  # Whatever it was trained on; each of these devices holds a share.
  mesh = partitioning.make_mesh(specs.Mesh(data=1, fsdp=-1))
  return mesh, models.build(run.model)


def restore_params(saver, step, mesh, model):
  """The parameters of a step."""
  shapes = jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
    model.abstract,
    partitioning.shardings(model.abstract, model.axes, mesh),
  )
  return saver.restore_params(step, shapes)
