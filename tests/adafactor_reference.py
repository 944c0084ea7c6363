"""Adafactor of one matrix in numpy, with T5X's semantics, arXiv:1804.04235.

Differences of T5X from the paper: the second moment's decay is
1 - (step + 1)^-0.8 with steps from 0, so that the first step keeps nothing;
whether a matrix is factored depends on its size; the first moment is that of
the whole step, learning rate included.
"""

import numpy as np

FACTORED_FROM = 128  # both sides must be at least so long
TINY = 1e-30  # added to squared gradients


def rms(x):
  return np.sqrt(np.mean(np.square(x)))


def clip_by_global_norm(grads, largest):
  """Scales a list of gradients so that their joint norm is at most this."""
  norm = np.sqrt(sum(np.sum(np.square(g)) for g in grads))
  return [g * min(1.0, largest / norm) for g in grads]


def run(
  param,
  grads,
  rates,
  *,
  decay_rate=0.8,
  clip_threshold=1.0,
  parameter_scale=True,
  min_scale=1e-3,
  max_scale=None,
  factored=True,
  beta1=None,
  weight_decay=0.0,
  weight_decay_power=1.0,
):
  """The parameter after a step for each of these gradients and rates.

  Args:
    param: a matrix or vector, float64.
    grads: its gradient at each step.
    rates: the learning rate at each step.
    decay_rate: exponent of the second moment's decay.
    clip_threshold: largest root mean square of an update.
    parameter_scale: whether rates are relative to the parameter's scale.
    min_scale: least such scale.
    max_scale: largest, or None.
    factored: False keeps whole second moments.
    beta1: decay of the first moment, or None.
    weight_decay: share of the parameter that goes at each step, times a power
      of the rate.
    weight_decay_power: that power, T5X's weight_decay_rate_lr_exponent.
  """
  matrix = param.ndim == 2 and min(param.shape) >= FACTORED_FROM
  row = column = whole = moment = 0.0
  for step, (grad, rate) in enumerate(zip(grads, rates, strict=True)):
    keep = 1 - (step + 1.0) ** -decay_rate
    square = grad**2 + TINY
    if factored and matrix:
      row = keep * row + (1 - keep) * square.mean(axis=1)
      column = keep * column + (1 - keep) * square.mean(axis=0)
      second = np.outer(row, column) / row.mean()
    else:
      second = whole = keep * whole + (1 - keep) * square
    update = grad / np.sqrt(second)
    update = update / max(1.0, rms(update) / clip_threshold)
    scale = max(rms(param), min_scale) if parameter_scale else 1.0
    if parameter_scale and max_scale is not None:
      scale = min(scale, max_scale)
    update = rate * scale * update
    if beta1 is not None:
      update = moment = beta1 * moment + (1 - beta1) * update
    shrink = 1 - weight_decay * rate**weight_decay_power
    param = shrink * param - update
  return param
