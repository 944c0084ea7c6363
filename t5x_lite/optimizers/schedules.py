"""Learning rates by step."""

import math

import jax.numpy as jnp

DECAYS = {
  'constant': lambda spec, step, first, last: 1.0,
  'rsqrt': lambda spec, step, first, last: jnp.sqrt(
    first / jnp.maximum(step, first)
  ),
  'noam': lambda spec, step, first, last: jnp.sqrt(
    first / jnp.maximum(step + 1, first)
  ),
  'linear': lambda spec, step, first, last: _between(
    spec, 1 - _progress(step, first, last)
  ),
  'cosine': lambda spec, step, first, last: _between(
    spec, 0.5 + 0.5 * jnp.cos(math.pi * _progress(step, first, last))
  ),
}


def _progress(step, first, last):
  return jnp.clip((step - first) / max(last - first, 1), 0, 1)


def _between(spec, share):
  low = spec.end / spec.peak
  return low + (1 - low) * share


def learning_rate(spec, steps):
  """The rate of a step, a function of its number from 0.

  Rises as peak * (step + 1) / warmup, stays at the peak for `hold` steps and
  decays from there:

  - 'rsqrt' as peak * sqrt(first / step), where the decay starts at step
    `first`; for peak 0.01 and 10,000 steps of hold this is T5's
    1 / sqrt(max(step, 10,000));
  - 'noam' as peak * sqrt(warmup / t), where t = step + 1; for peak
    (embed_dim * warmup)^-0.5 this, with its warm-up, is embed_dim^-0.5 *
    min(t^-0.5, t * warmup^-1.5) of arXiv:1706.03762 section 5.3;
  - 'linear' and 'cosine' to `end`, at step `until` - 1 or at the last.

  Args:
    spec: specs.Schedule.
    steps: of the whole run.
  """
  first = max(spec.warmup + spec.hold, 1)
  last = (spec.until or steps) - 1

  def rate(step):
    rise = jnp.minimum(1.0, (step + 1) / max(spec.warmup, 1))
    decay = DECAYS[spec.decay](spec, step, first, last)
    return spec.peak * rise * decay

  return rate
