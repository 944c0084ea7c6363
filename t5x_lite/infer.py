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

VOCABULARY = 'vocabulary.model'  # in a workdir, what it was trained with
LONGEST = 16  # inputs, in lengths of training; attention grows with the square


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
    self.fingerprint = self._saver.fingerprint(self.step)
    self.vocabulary = data.load_vocabulary(self.run.data)
    self.mesh, self.model = lay_out(self.run)
    # On every device, so that each process of a run has all of it.
    everywhere = partitioning.replicated(self.mesh)
    jit = functools.partial(jax.jit, out_shardings=everywhere)
    self._greedy = jit(
      functools.partial(decoding.greedy, self.model),
      static_argnames=('length', 'num_ids'),
    )
    self._log_probs = jit(functools.partial(decoding.log_probs, self.model))
    self._logits = jit(self.model.apply)

  @functools.cached_property
  def params(self):
    return restore_params(self._saver, self.step, self.mesh, self.model)

  def tokens(self, text):
    """Token ids of a text, with EOS; `<extra_id_0>` is a blank.

    Raises:
      DataError: the text is too long, or names a sentinel that is none.
    """
    found = [
      *self.vocabulary.encode(text, sentinels=True),
      self.vocabulary.eos_id,
    ]
    most = LONGEST * self.run.data.lengths['inputs']
    if len(found) > most:
      raise errors.DataError(
        'text is too long for this model',
        where=repr(text[:40]),
        got=f'{len(found):,} tokens',
        expected=f'at most {most:,}, {LONGEST} times what it was trained on',
        fix='cut the line',
      )
    return found

  def encode(self, texts):
    """Token ids and segments [B, K] of texts; see `tokens`."""
    rows = [self.tokens(text) for text in texts]
    # Lengths in steps, so that few shapes are compiled.
    length = -(-max(map(len, rows)) // 64) * 64
    tokens, lengths = features.pad_rows(rows, length)
    return tokens, (np.arange(length) < lengths[:, None]).astype(np.int32)

  def _on_mesh(self, arrays, at_least=0):
    """Rows spread over the devices, filled up with copies of the last one.

    A copy ends when the row does; an empty row might be decoded without end.
    """
    count = max(len(next(iter(arrays.values()))), at_least)
    size = partitioning.fill_up(count, self.mesh)
    local = partitioning.local_rows(self.mesh, size)
    own = {name: x[np.minimum(local, len(x) - 1)] for name, x in arrays.items()}
    return partitioning.put_batch(own, self.mesh, size)

  def decode(self, tokens, segments, length, prompt=None, at_least=0):
    """Greedy tokens and their log probabilities, numpy [B, length].

    Args:
      tokens: of the inputs [B, K].
      segments: above 0 where they are real.
      length: most tokens to decode.
      prompt: what must come first [B, P]; -1 where free.
      at_least: how many rows to compute, so that few shapes are compiled.
    """
    if prompt is None:
      prompt = np.zeros((len(tokens), 0), np.int32)
    arrays = {'tokens_BK': tokens, 'segments_BK': segments, 'prompt_BP': prompt}
    with jax.set_mesh(self.mesh):
      found = self._greedy(
        self.params,
        **self._on_mesh(arrays, at_least),
        length=length,
        num_ids=self.vocabulary.size,
        eos_id=self.vocabulary.eos_id,
        start_id=self.vocabulary.pad_id,
      )
    return [x[: len(tokens)] for x in jax.device_get(found)]

  def predict(self, texts, length, at_least=0):
    """One dict for each text: prediction, score, tokens.

    The score is the log probability of the tokens up to and with the end, and
    `tokens` their number.
    """
    found = self.decode(*self.encode(texts), length, at_least=at_least)
    results = []
    for row, gains in zip(*found, strict=True):
      ends = np.flatnonzero(row == self.vocabulary.eos_id)
      end = ends[0] if ends.size else length
      results.append(
        {
          'prediction': self.vocabulary.decode(row[:end].tolist()),
          'score': float(gains.sum()),
          'tokens': int(min(end + 1, length)),
        }
      )
    return results

  def score(self, texts, targets, at_least=0):
    """One dict for each pair of texts: score, tokens.

    The score is the log probability of the target's tokens and its end, given
    the inputs, and `tokens` their number.
    """
    inputs, input_segments = self.encode(texts)
    wanted, segments = self.encode(targets)
    batch = features.encoder_decoder(
      inputs,
      input_segments.sum(1),
      wanted,
      segments.sum(1),
      self.vocabulary.pad_id,
    )
    with jax.set_mesh(self.mesh):
      gains = self._log_probs(self.params, self._on_mesh(batch, at_least))
    return [
      {'score': float(row.sum()), 'tokens': int(count)}
      for row, count in zip(jax.device_get(gains), segments.sum(1))
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
    source = [np.repeat(x, candidates, axis=0) for x in self.encode([text])]
    prefix, found = [], []
    for number in map(int, re.findall(r'<extra_id_(\d+)>', text)):
      prefix.append(vocabulary.sentinel(number))
      prompt = np.array([prefix], np.int32)
      first = self._next(source, prompt)
      # Whatever ends a blank at once leaves it empty: one candidate, not many.
      ends = np.flatnonzero(self._ends(np.arange(vocabulary.size)))
      others = ends[ends != ends[np.argmax(first[ends])]]
      first[others] = -np.inf
      starts = np.argsort(-first, kind='stable')[:candidates]
      prompts = np.concatenate(
        [np.repeat(prompt, candidates, 0), starts[:, None].astype(np.int32)],
        axis=1,
      )
      # The prompt's place is padded to a multiple, again for few shapes.
      total = -(-(prompts.shape[1] + length) // 32) * 32
      free = np.full((candidates, total), -1, np.int32)
      free[:, : prompts.shape[1]] = prompts
      tokens, log_probs = self.decode(*source, total, free)
      options = []
      for row, gains in zip(tokens, log_probs):
        begin = end = len(prefix)
        while end < begin + length and not self._ends(row[end]):
          end += 1
        chance = gains[begin : end + self._ends(row[end])].sum()
        span = [int(t) for t in row[begin:end]]
        options.append((float(np.exp(chance)), span))
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

  def _next(self, source, prompt):
    """Log probabilities of the token after a prompt, numpy [V]."""
    at = prompt.shape[1]
    decoder = np.zeros((1, -(-(at + 1) // 32) * 32), np.int32)
    decoder[:, 0] = self.vocabulary.pad_id
    decoder[:, 1 : at + 1] = prompt
    batch = {
      'encoder_input_tokens': source[0][:1],
      'encoder_segment_ids': source[1][:1],
      'decoder_input_tokens': decoder,
      'decoder_segment_ids': np.ones_like(decoder),
    }
    with jax.set_mesh(self.mesh):
      logits = self._logits(self.params, self._on_mesh(batch))
    logits = jax.device_get(logits)[0, at]
    # Ids past the vocabulary only pad the table.
    return np.array(jax.nn.log_softmax(logits))[: self.vocabulary.size]


def read_run(saver, step):
  """The specs.Run of a step, its vocabulary that of the workdir."""
  where = saver.folder / str(step)
  run = records.from_record(saver.read_record(step), where)
  kept = saver.folder.parent / VOCABULARY
  # The run's own copy, wherever the first one is now.
  if run.data.vocabulary != 'bytes' and kept.exists():
    spec = dataclasses.replace(run.data, vocabulary=str(kept))
    run = dataclasses.replace(run, data=spec)
  return run


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
