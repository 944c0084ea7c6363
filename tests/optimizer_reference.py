"""Optimizers of one tensor in numpy, each written out from its paper.

Each takes the parameter, float64, its gradient and the learning rate at each
step, and gives the parameter after them.
"""

import numpy as np


def rms(x):
  return np.sqrt(np.mean(np.square(x)))


def adam_steps(grads, beta1, beta2, epsilon):
  """The steps of arXiv:1412.6980 algorithm 1, before the rate."""
  first = second = 0.0
  for t, grad in enumerate(grads, start=1):
    first = beta1 * first + (1 - beta1) * grad
    second = beta2 * second + (1 - beta2) * grad**2
    unbiased = first / (1 - beta1**t), second / (1 - beta2**t)
    yield unbiased[0] / (np.sqrt(unbiased[1]) + epsilon)


def adamw(
  param,
  grads,
  rates,
  *,
  beta1=0.9,
  beta2=0.999,
  epsilon=1e-8,
  weight_decay=0.0,
  rms_scaled=False,
):
  """arXiv:1711.05101 algorithm 2, and nanoT5's scaling of its step."""
  for rate, step in zip(
    rates, adam_steps(grads, beta1, beta2, epsilon), strict=True
  ):
    scale = max(1e-3, rms(param)) if rms_scaled else 1.0
    param = param - rate * (scale * step + weight_decay * param)
  return param


def lamb(
  param,
  grads,
  rates,
  *,
  beta1=0.9,
  beta2=0.999,
  epsilon=1e-6,
  weight_decay=0.0,
  adapts=True,
):
  """arXiv:1904.00962 algorithm 2, with the bias correction of its version 1."""
  for rate, step in zip(
    rates, adam_steps(grads, beta1, beta2, epsilon), strict=True
  ):
    step = step + weight_decay * param
    norms = np.linalg.norm(param), np.linalg.norm(step)
    trust = norms[0] / norms[1] if adapts and all(norms) else 1.0
    param = param - rate * trust * step
  return param


def sgd(
  param, grads, rates, *, momentum=None, nesterov=False, weight_decay=0.0
):
  """As torch has it, with decay of the parameter, not of the gradient."""
  total = 0.0
  for grad, rate in zip(grads, rates, strict=True):
    step = total = (momentum or 0.0) * total + grad
    if nesterov:
      step = grad + momentum * total
    param = param - rate * (step + weight_decay * param)
  return param
