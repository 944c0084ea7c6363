"""What a training step costs in operations, and what a chip can do.

The rule: matrix products only, each multiply-add two operations, backward
twice forward, nothing for what remat repeats. Attention logits and values of a
causal decoder are counted by half, since half of them are masked; the other
convention counts them whole, and both are reported.
"""

import time

import jax
import jax.numpy as jnp


def forward(spec, inputs, targets, causal_share=0.5):
  """Operations of one example's forward pass.

  Args:
    spec: specs.Transformer.
    inputs: encoder tokens.
    targets: decoder tokens.
    causal_share: of the decoder's self-attention that is counted.
  """
  e = spec.embed_dim
  a = spec.num_heads * spec.head_dim
  mlp = (3 if spec.gated else 2) * e * spec.mlp_dim
  encoder = 2 * inputs * (4 * e * a + mlp) + 4 * inputs**2 * a
  decoder = (
    2 * targets * (6 * e * a + mlp)  # own projections, cross query and out
    + 2 * inputs * 2 * e * a  # keys and values of the encoder
    + 4 * targets**2 * a * causal_share
    + 4 * targets * inputs * a
  )
  head = 2 * targets * e * spec.vocab_size
  return encoder * spec.encoder_layers + decoder * spec.decoder_layers + head


def train_step(spec, batch_size, inputs, targets):
  """Operations of a step: (causal attention halved, causal attention whole)."""
  return tuple(
    3 * batch_size * forward(spec, inputs, targets, share)
    for share in (0.5, 1.0)
  )


# Dense bfloat16 peaks of one JAX device, from the vendors' data sheets.
PEAKS = {
  'TPU v3': 61.5e12,  # a core is a device
  'TPU v4': 275e12,
  'TPU v5 lite': 197e12,
  'TPU v5e': 197e12,
  'TPU v5': 459e12,
  'TPU v5p': 459e12,
  'TPU v6 lite': 918e12,
  'TPU v6e': 918e12,
  'NVIDIA A100': 312e12,
  'NVIDIA H100 PCIe': 756e12,
  'NVIDIA H100': 989e12,
  'NVIDIA H200': 989e12,
}


def peak(devices):
  """(operations a second of all these devices, how that is known)."""
  kind = devices[0].device_kind
  for name in sorted(PEAKS, key=len, reverse=True):
    if kind.startswith(name):
      return PEAKS[name] * len(devices), 'data sheet, bfloat16'
  measured = measure(jax.local_devices()[0])
  # Simulated devices share one processor.
  count = 1 if devices[0].platform == 'cpu' else len(devices)
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
