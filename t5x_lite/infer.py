"""Predictions of a trained model: text lines in, JSON lines out."""

import dataclasses
import functools
import itertools
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

VOCABULARY = 'vocabulary.model'  # in a workdir, what it was trained with
LONGEST = 16  # inputs, in lengths of training; attention grows with the square


class Predictor:
  """A trained model, by its workdir.

  Attributes:
    run: the recipe it was trained with.
    step: of the checkpoint.
    vocabulary: its vocabulary.
  """

  def __init__(self, workdir, step=None):
    self.run, self.step, self.mesh, self.model, self.params = restore(
      workdir, step
    )
    self.vocabulary = data.load_vocabulary(self.run.data)
    self._greedy = jax.jit(
      functools.partial(decoding.greedy, self.model),
      static_argnames=('length', 'num_ids'),
    )
    self._logits = jax.jit(self.model.apply)

  def encode(self, texts):
    """Token ids and segments [B, K] of texts; `<extra_id_0>` is a blank."""
    rows = [
      [*self.vocabulary.encode(text, sentinels=True), self.vocabulary.eos_id]
      for text in texts
    ]
    most = LONGEST * self.run.data.lengths['inputs']
    for text, row in zip(texts, rows, strict=True):
      if len(row) > most:
        raise errors.DataError(
          'text is too long for this model',
          where=repr(text[:40]),
          got=f'{len(row):,} tokens',
          expected=f'at most {most:,}, {LONGEST} times what it was trained on',
          fix='cut the line',
        )
    # Lengths in steps, so that few shapes are compiled.
    length = -(-max(map(len, rows)) // 64) * 64
    tokens = np.zeros((len(rows), length), np.int32)
    segments = np.zeros_like(tokens)
    for n, row in enumerate(rows):
      tokens[n, : len(row)], segments[n, : len(row)] = row, 1
    return tokens, segments

  def decode(self, tokens, segments, length, prompt=None):
    """Greedy tokens and their log probabilities, numpy [B, length]."""
    if prompt is None:
      prompt = np.zeros((len(tokens), 0), np.int32)
    with jax.set_mesh(self.mesh):
      found = self._greedy(
        self.params,
        tokens,
        segments,
        length=length,
        num_ids=self.vocabulary.size,
        eos_id=self.vocabulary.eos_id,
        prompt_BP=prompt,
        start_id=self.vocabulary.pad_id,
      )
    return jax.device_get(found)

  def predict(self, texts, length):
    """One dict for each text: inputs, prediction, score.

    The score is the log probability of the tokens up to and with the end.
    """
    tokens, log_probs = self.decode(*self.encode(texts), length)
    eos = self.vocabulary.eos_id
    return [
      {
        'inputs': text,
        'prediction': self.vocabulary.decode(
          [int(t) for t in itertools.takewhile(lambda t: t != eos, row)]
        ),
        'score': float(gains.sum()),
      }
      for text, row, gains in zip(texts, tokens, log_probs)
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
      logits = self._logits(self.params, batch)[0, at]
    # Ids past the vocabulary only pad the table.
    return np.array(jax.nn.log_softmax(logits))[: self.vocabulary.size]


def restore(workdir, step=None):
  """(run, step, mesh, model, params) of a workdir's checkpoint.

  Args:
    workdir: of the run.
    step: as best.find takes it.
  """
  with checkpoints.Checkpoints.reader(workdir) as saver:
    step = best.find(saver, step)
    run = read_run(saver, step)
    mesh, model = lay_out(run)
    params = restore_params(saver, step, mesh, model)
  return run, step, mesh, model, params


def read_run(saver, step):
  """The specs.Run of a step, its vocabulary that of the workdir."""
  run = records.from_record(saver.read_record(step))
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
