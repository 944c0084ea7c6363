"""A model that is a table: logits by the last two tokens and the input."""

import jax.numpy as jnp
import numpy as np

START, EOS = 0, 1


class Table:
  """What `decoding` asks of a model; its cache is all tokens so far."""

  def start(self, params, batch, length):
    tokens_BP = batch['decoder_input_tokens']
    cache = {
      'inputs': jnp.asarray(batch['inputs']),
      'tokens': jnp.pad(
        jnp.where(batch['decoder_segment_ids'] > 0, tokens_BP, 0),
        ((0, 0), (1, length)),
      ),
      'index': jnp.asarray(tokens_BP.shape[1], jnp.int32),
    }
    return self._logits(params, cache), cache

  def step(self, params, cache, tokens_R):
    index = cache['index'] + 1
    tokens = cache['tokens'].at[:, index].set(tokens_R)
    cache = cache | {'tokens': tokens, 'index': index}
    return self._logits(params, cache), cache

  def _logits(self, params, cache):
    tokens, index = cache['tokens'], cache['index']
    return jnp.asarray(params)[
      cache['inputs'], tokens[:, index - 1], tokens[:, index]
    ]

  def reorder(self, cache, rows_R):
    return {k: x if k == 'index' else x[rows_R] for k, x in cache.items()}

  def repeat(self, cache, n):
    return {
      k: x if k == 'index' else jnp.repeat(x, n, axis=0)
      for k, x in cache.items()
    }


def params(inputs, vocab, seed=0, scale=1.5):
  """Logits [inputs, vocab, vocab, vocab + 1], the last of them the likeliest.

  That id is past the vocabulary, as rows that pad an embedding are.
  """
  rng = np.random.default_rng(seed)
  logits = scale * rng.standard_normal((inputs, vocab, vocab, vocab + 1))
  logits[..., -1] = 3
  return logits.astype(np.float32)


def batch(inputs, prompts=None):
  """Prompts, of the start token by default, at the right of their rows."""
  prompts = prompts or [[]] * len(inputs)
  width = 1 + max(map(len, prompts))
  tokens = np.full((len(inputs), width), 3, np.int32)  # what padding hides
  segments = np.zeros_like(tokens)
  for n, prompt in enumerate(prompts):
    tokens[n, width - len(prompt) - 1 :] = [START, *prompt]
    segments[n, width - len(prompt) - 1 :] = 1
  return {
    'inputs': np.asarray(inputs, np.int32),
    'decoder_input_tokens': tokens,
    'decoder_segment_ids': segments,
  }


def chances(params, which, before):
  """Log probabilities, in float64, of the token after [start, ...]."""
  last = [0, START, *before][-2:]
  logits = params[which, last[0], last[1]].astype(np.float64)
  return logits - np.log(np.exp(logits).sum())
