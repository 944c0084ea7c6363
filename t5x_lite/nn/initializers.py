"""Initial values of parameters, as the published systems draw them."""

import math

import jax

from t5x_lite import specs

zeros = jax.nn.initializers.zeros
ones = jax.nn.initializers.ones
normal = jax.nn.initializers.normal


def uniform(limit):
  return lambda key, shape, dtype: jax.random.uniform(
    key, shape, dtype, -limit, limit
  )


def truncated_normal(std):
  """A normal cut at two deviations and widened to keep its deviation."""
  cut = 0.87962566103423978  # the deviation of a unit normal so cut
  return jax.nn.initializers.truncated_normal(std / cut)


def _fan_in(spec, role, inputs, outputs, depth):
  del outputs, depth
  if role == 'embedding':
    return normal(1.0)
  std = 1 / math.sqrt(inputs)
  if role in ('mlp', 'logits'):
    return truncated_normal(std)
  if role == 'query' and not spec.scale_attention:
    std /= math.sqrt(spec.head_dim)  # in place of scaled attention logits
  return normal(std)


def _normal(spec, role, inputs, outputs, depth):
  del role, inputs, outputs
  std = spec.init.std
  return normal(std / math.sqrt(depth) if spec.init.depth_scaled else std)


def _glorot(spec, role, inputs, outputs, depth):
  del spec, depth
  if role == 'embedding':
    return normal(1 / math.sqrt(outputs))
  return uniform(math.sqrt(6 / (inputs + outputs)))


INITS = {specs.FanIn: _fan_in, specs.Normal: _normal, specs.Glorot: _glorot}


def weights(spec, role, inputs, outputs, depth=1):
  """The initialiser of a kernel or a table.

  Args:
    spec: specs.Transformer.
    role: 'embedding', 'query', 'attention', 'mlp' or 'logits'.
    inputs: values that are summed up for one of the result.
    outputs: values of the result.
    depth: how many such results are added to the stream, where it is one.
  """
  return INITS[type(spec.init)](spec, role, inputs, outputs, depth)
