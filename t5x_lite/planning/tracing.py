"""What forward keeps for backward, read off the traced loss.

The model is traced as one device has it: with its share of the rows, the heads,
the feed-forward width and the vocabulary. Nothing is computed or compiled.
"""

import dataclasses
import functools
import math

import jax

from t5x_lite import models
from t5x_lite import optimizers
from t5x_lite import partitioning
from t5x_lite import train
from t5x_lite.nn.kernels import choice

# Bits: what an array depends on. What a decoder makes of the encoder's result
# alone, the keys and values of its attention to that, is MEMORY besides. Masks
# of dropout, of keys alone, are as what they are for.
WEIGHTS, ENCODER, DECODER, MEMORY = 0, 1, 2, 4
_KEYS = 8


@dataclasses.dataclass(frozen=True)
class Kept:
  """An array that lives from forward to backward.

  Attributes:
    shape: on one device, but for what fsdp and sequence share.
    itemsize: bytes of an element.
    reach: 0 of parameters alone; else bits of ENCODER, DECODER and MEMORY.
  """

  shape: tuple
  itemsize: int
  reach: int


def size(shape, itemsize, tiled):
  """Bytes of an array; `tiled` as TPUs lay it out.

  One axis is then filled up to 128 lanes and another to 8 rows, of the last
  three those that take the least.
  """
  if not tiled or len(shape) < 2:
    return math.prod(shape) * itemsize

  def fill(lane, row):
    filled = list(shape)
    filled[lane] = -(-shape[lane] // 128) * 128
    filled[row] = -(-shape[row] // 8) * 8
    return math.prod(filled)

  last = range(len(shape) - min(len(shape), 3), len(shape))
  return min(fill(i, j) for i in last for j in last if i != j) * itemsize


def local(spec, mesh, rows, lengths):
  """The specs.Transformer of which a device computes all.

  Args:
    spec: specs.Transformer.
    mesh: jax.sharding.AbstractMesh with the devices' platform.
    rows: of a microbatch, over all devices.
    lengths: tokens of a row of each stack.
  """

  def share(size, axis):
    for name in partitioning.RULES[axis]:
      if size % mesh.shape[name] == 0:
        size //= mesh.shape[name]
    return size

  heads = share(spec.num_heads, 'heads')
  groups = spec.num_kv_heads and share(spec.num_kv_heads, 'heads')
  return dataclasses.replace(
    spec,
    attention=_attention(spec, mesh, rows, lengths),
    num_heads=heads,
    num_kv_heads=groups and math.gcd(groups, heads),
    mlp_dim=share(spec.mlp_dim, 'mlp'),
    vocab_size=share(spec.vocab_size, 'vocab'),
  )


def kernels(spec, mesh, rows, lengths):
  """{site: name of what computes that attention}; arguments as of `local`."""
  place = choice.Place(mesh.abstract_device.platform, dict(mesh.shape))
  sites = choice.sites(spec, rows, lengths)
  return {n: choice.choose(spec, x, place).kernel for n, x in sites.items()}


def _attention(spec, mesh, rows, lengths):
  """The kernel to trace, where it must be another than one device would take.

  cuDNN's can't be traced without it, and keeps what the chunked one keeps; a
  length that is shared out has no fused kernel.
  """
  chosen = kernels(spec, mesh, rows, lengths).values()
  if 'cudnn' in chosen:
    return 'chunked'
  if mesh.shape['sequence'] > 1:
    return 'chunked' if 'chunked' in chosen else 'plain'
  return spec.attention


def kept(run, batch, platform, alone=False):
  """What the loss of a batch keeps for its gradient.

  Args:
    run: specs.Run, of a `local` model.
    batch: {feature: jax.ShapeDtypeStruct}, a device's rows.
    platform: of the device, which chooses its kernels.
    alone: whether it is the only one.

  Returns:
    A tuple of Kept.
  """
  shapes = tuple((name, x.shape, x.dtype) for name, x in batch.items())
  settings = (
    run.model,
    run.optimizer,
    bool(run.z_loss),
    bool(run.label_smoothing),
    jax.config.jax_default_matmul_precision,  # kernels are chosen by it
  )
  return _kept(_Run(run), settings, shapes, platform, alone)


class _Run:
  """A run that a cache takes as it is: what counts are the settings."""

  def __init__(self, run):
    self.run = run

  def __eq__(self, other):
    return isinstance(other, _Run)

  def __hash__(self):
    return 0


@functools.lru_cache(maxsize=256)
def _kept(holder, settings, shapes, platform, alone):
  del settings
  run = holder.run
  model = models.build(run.model)
  optimizer = optimizers.build(run.optimizer, model.axes, run.steps)
  loss = train.make_loss(run, model, optimizer)
  batch = {
    name: jax.ShapeDtypeStruct(shape, dtype) for name, shape, dtype in shapes
  }
  [rows, *_] = {shape[0] for _, shape, _ in shapes}
  keys_B = jax.eval_shape(lambda: train.dropout_keys(0, 0, rows))

  def forward(batch, keys_B, params):
    trained = optimizer.trained(params)
    fn = lambda x: loss(x, params, batch, None, keys_B)
    _, backward, _ = jax.vjp(fn, trained, has_aux=True)
    return jax.tree.leaves(backward)

  # Arithmetic differs on one device: else of several, which share nothing.
  axes = *partitioning.AXES, 'others'
  device = jax.sharding.AbstractDevice(platform, None, platform)
  mesh = jax.sharding.AbstractMesh(
    (1,) * len(partitioning.AXES) + (1 if alone else 2,),
    axes,
    abstract_device=device,
  )
  with jax.sharding.use_abstract_mesh(mesh):
    jaxpr = jax.make_jaxpr(forward)(batch, keys_B, model.abstract).jaxpr
  bits = [ENCODER if name.startswith('encoder') else DECODER for name in batch]
  bits = [bit for _, bit in sorted(zip(batch, bits))] + [_KEYS]
  bits += [WEIGHTS] * (len(jaxpr.invars) - len(bits))
  given = set(jaxpr.invars)
  found = {}
  for var, reach in zip(jaxpr.outvars, _reach(jaxpr, bits), strict=True):
    if isinstance(var, jax.extend.core.Var) and var not in given:
      shape, dtype = var.aval.shape, var.aval.dtype
      found[var] = Kept(shape, dtype.itemsize, reach & ~_KEYS)
  return tuple(found.values())


def _reach(jaxpr, bits):
  """Of each output the bits of all inputs that it depends on."""
  reach = dict(zip(jaxpr.invars, bits, strict=True))

  def read(var):
    return reach.get(var, 0) if isinstance(var, jax.extend.core.Var) else 0

  for equation in jaxpr.eqns:
    own = [read(var) for var in equation.invars]
    inner = equation.params.get('jaxpr', equation.params.get('call_jaxpr'))
    inner = getattr(inner, 'jaxpr', inner)
    if equation.primitive.name == 'scan':
      found = _reach_of_scan(equation, inner, own)
    elif inner is not None and len(inner.invars) == len(own):
      found = _reach(inner, own)
    else:
      found = [functools.reduce(int.__or__, own, 0)] * len(equation.outvars)
    reach.update(zip(equation.outvars, found, strict=False))
  return [read(var) for var in jaxpr.outvars]


def _reach_of_scan(equation, body, own):
  """The same of a scan: what a turn leaves, the next one reads."""
  # How its arguments are divided goes by other names with each version of JAX:
  # those of each turn alone have an axis more than its body has.
  last, count = (
    sum(a.aval.ndim == b.aval.ndim for a, b in zip(outer, inner, strict=True))
    for outer, inner in (
      (equation.invars, body.invars),
      (equation.outvars, body.outvars),
    )
  )
  first = last - count
  while True:
    found = _reach(body, own)
    carried = found[:count]
    grown = [a | b for a, b in zip(own[first:last], carried, strict=True)]
    if grown == own[first:last]:
      in_decoder = any(bits & DECODER for bits in own)
      alone = DECODER if in_decoder else ENCODER
      found = [alone if x == _KEYS else x & ~_KEYS for x in found]
      return [x | MEMORY if in_decoder and x == ENCODER else x for x in found]
    own = [*own[:first], *grown, *own[last:]]
