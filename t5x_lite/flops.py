"""What a training step costs in operations, and what a chip can do.

The rule: matrix products only, each multiply-add two operations, backward
twice forward, nothing for what remat repeats. Attention logits and values of a
causal decoder are counted by half, since half of them are masked; the other
convention counts them whole, and both are reported.
"""

import time

import jax
import jax.numpy as jnp

from t5x_lite import chips


def forward(spec, inputs, targets, causal_share=0.5):
  """Operations of one example's forward pass.

  A window counts as what it shows of a row, prefixes and packing as nothing.

  Args:
    spec: specs.Transformer.
    inputs: encoder tokens.
    targets: tokens of the decoder, if there is one.
    causal_share: of the decoder's self-attention that is counted.
  """
  e = spec.embed_dim
  a = spec.num_heads * spec.head_dim
  shared = (spec.num_kv_heads or spec.num_heads) / spec.num_heads
  own = 2 * e * a * (1 + shared)  # query and out, key and value
  mlp = (3 if spec.gated else 2) * e * spec.mlp_dim

  def scores(length, share):
    """Of queries with keys and of weights with values, mean over layers."""
    seen = [
      length * min(length * share, window or length)
      for window in spec.windows or (0,)
    ]
    return 4 * a * sum(seen) / len(seen)

  total = 0
  if spec.encoder_layers:
    layer = 2 * inputs * (own + mlp) + scores(inputs, 1)
    total += layer * spec.encoder_layers
  if spec.decoder_layers:
    layer = 2 * targets * (own + mlp) + scores(targets, causal_share)
    if spec.encoder_layers:
      layer += 2 * targets * 2 * e * a  # query and out
      layer += 2 * inputs * 2 * e * a * shared
      layer += 4 * targets * inputs * a
    total += layer * spec.decoder_layers
  predicted = targets if spec.decoder_layers else inputs
  return total + 2 * predicted * e * spec.vocab_size


def train_step(spec, batch_size, inputs, targets):
  """Operations of a step: (causal attention halved, causal attention whole)."""
  return tuple(
    3 * batch_size * forward(spec, inputs, targets, share)
    for share in (0.5, 1.0)
  )


def of_run(run, widths):
  """As `train_step`, of a specs.Run whose rows have these tokens a stack."""
  lengths = [widths.get(side, 0) for side in ('encoder', 'decoder')]
  return train_step(run.model, run.batch_size, *lengths)


def peak(devices):
  """(operations a second of all these devices, how that is known)."""
  chip = chips.find(devices[0].device_kind)
  if chip:
    return chip.flops * len(devices), 'data sheet, bfloat16'
  device = jax.local_devices()[0]
  if devices[0].platform == 'cpu':  # simulated devices share one processor
    measured, count = measure(device, size=1024), 1  # enough to be at its peak
  else:
    measured, count = measure(device), len(devices)
  return measured * count, 'measured, float32 matrix product'


def measure(device, size=2048, repeats=3):
  """Operations a second of a float32 product of square matrices."""
  # A mesh of its own: the caller's may be of other devices.
  with jax.set_mesh(jax.make_mesh((1,), ('one',), devices=[device])):
    x = jnp.ones((size, size), jnp.float32)
    product = jax.jit(jnp.matmul)
    product(x, x).block_until_ready()
    best = float('inf')
    for _ in range(repeats):
      start = time.perf_counter()
      product(x, x).block_until_ready()
      best = min(best, time.perf_counter() - start)
  return 2 * size**3 / best
