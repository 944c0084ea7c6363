"""What a training step takes of a device, from shapes alone.

Parameters, the optimizer's state and the batch are exact; gradients are as the
parameters; what forward keeps is read off the traced loss. How compilers lay
that out and overlap it is a model, fitted to what XLA's own analysis says of
compiled steps; `ERROR` is how far it was off.
"""

import dataclasses

import jax
import jax.numpy as jnp

from t5x_lite import chips
from t5x_lite import data
from t5x_lite import flops
from t5x_lite import partitioning
from t5x_lite import train
from t5x_lite.data import shapes
from t5x_lite.planning import tracing

# Of the total, in the cases of tests/test_planning_analytic.py.
ERROR = 0.1
SIDES = 'decoder', 'encoder'  # in the order of backward
FAMILIES = {
  'parameters': 'in float32',
  'optimizer': 'its state',
  'batch': 'tokens',
  'gradients': 'in float32, and those of earlier microbatches',
  'weights': 'copies of parameters, cast for the arithmetic',
  'collectives': 'parameters of the head or one layer, gathered over fsdp',
  'activations': 'what forward keeps for backward',
  'layer': 'what one layer takes while its backward runs',
  'logits': 'in float32, and what the loss keeps of them',
}


@dataclasses.dataclass(frozen=True)
class Estimate:
  """What a step takes of each device.

  Attributes:
    moments: {moment of a step: {family of FAMILIES: bytes}}.
    flops: operations by the rule of `flops`: causal attention halved, whole.
  """

  moments: dict[str, dict[str, int]]
  flops: tuple[float, float]

  @property
  def moment(self):
    """When most is taken."""
    return max(self.moments, key=lambda name: sum(self.moments[name].values()))

  @property
  def families(self):
    """{family: bytes} of that moment."""
    return self.moments[self.moment]

  @property
  def total(self):
    """Bytes of that moment."""
    return sum(self.families.values())


def mesh_of(sizes, platform, device_kind=''):
  """An AbstractMesh, for which no device is needed.

  Args:
    sizes: {axis: size}, as of partitioning.check_mesh.
    platform: 'tpu', 'gpu' or 'cpu'.
    device_kind: as JAX calls the device.
  """
  return jax.sharding.AbstractMesh(
    tuple(sizes.values()),
    tuple(sizes),
    abstract_device=jax.sharding.AbstractDevice(device_kind, None, platform),
  )


def mesh_on(sizes, accelerator):
  """The same, of chips that have figures: an accelerators.Accelerator."""
  platform = 'tpu' if accelerator.is_tpu else 'gpu'
  kind = chips.CHIPS[accelerator.kind].device_kinds[0]
  return mesh_of(sizes, platform, kind)


def estimate(run, mesh):
  """The Estimate of a run's train step.

  Args:
    run: specs.Run.
    mesh: jax.sharding.Mesh, or an AbstractMesh as of `mesh_of`.
  """
  mesh = getattr(mesh, 'abstract_mesh', mesh)
  step = _Step(run, mesh)
  counted = flops.of_run(run, data.widths(run))
  return Estimate(
    moments=dict(step.moments()),
    flops=tuple(n / mesh.size for n in counted),
  )


class _Step:
  """The parts of a step and when they live."""

  def __init__(self, run, mesh):
    self.run, self.mesh = run, mesh
    self.platform = mesh.abstract_device.platform
    chip = chips.find(mesh.abstract_device.device_kind)
    self.vmem = (chip and chip.vmem) or 0
    _, optimizer, state = train.layout(run, mesh)
    self.params = {n: self._bytes(x) for n, x in state['params'].items()}
    self.state = self._bytes(state['opt_state']) + 4  # and the step's number
    trained = optimizer.trained(state['params'])
    self.gradients = {n: self._bytes(x) for n, x in trained.items()}
    self.batch = shapes.batch(run)
    sharding = partitioning.batch_sharding(mesh)
    self.tokens = self._bytes(
      [
        jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
        for x in self.batch.values()
      ]
    )
    self._trace()

  def _bytes(self, tree):
    """Of the arrays of a tree, on one device."""
    return sum(
      self._size(x.sharding.shard_shape(x.shape), x.dtype.itemsize)
      for x in jax.tree.leaves(tree)
    )

  def _size(self, shape, itemsize):
    return tracing.size(shape, itemsize, self.platform == 'tpu')

  def _trace(self):
    """Sorts what forward keeps."""
    run, mesh = self.run, self.mesh
    rows = run.batch_size // run.microbatches
    where = mesh, rows, data.widths(run)
    spec = tracing.local(run.model, *where)
    kernels = tracing.kernels(run.model, *where)
    rows //= partitioning.batch_shards(mesh.shape)
    batch = {
      name: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype)
      for name, x in self.batch.items()
    }

    def kept(**changes):
      model = dataclasses.replace(spec, **changes)
      found = tracing.kept(
        dataclasses.replace(run, model=model),
        batch,
        self.platform,
        mesh.size == 1,
      )
      return [x for x in found if x.reach]

    def site(x):
      if x.reach & tracing.MEMORY:
        return 'cross'
      return 'decoder' if x.reach & tracing.DECODER else 'encoder'

    def size(x):
      shape, fused = x.shape, kernels[site(x)] == 'splash'
      # That kernel alone has each head's values in lanes.
      if fused and len(shape) > 3 and shape[-1] == spec.head_dim:
        shape = *shape[:-1], -(-shape[-1] // 128) * 128
      return self._size(shape, x.itemsize) // mesh.shape['sequence']

    def of(side, found):
      first = side == 'encoder'
      return [x for x in found if (site(x) == 'encoder') == first]

    def total(found):
      return sum(size(x) for x in found)

    found = kept()
    is_logits = lambda x: x.shape[-1:] == (spec.vocab_size,)
    self.logits = total(x for x in found if is_logits(x))
    found = [x for x in found if not is_logits(x)]
    turn = len(spec.windows) or 1
    turns = {side: getattr(spec, f'{side}_layers') // turn for side in SIDES}
    self.kept = {
      side: total(x for x in of(side, found) if x.shape[:1] == (n,))
      for side, n in turns.items()
    }
    # Before the layers and behind them.
    self.around = total(found) - sum(self.kept.values())
    # One turn of them: what a layer has where nothing is computed again.
    layers = {f'{side}_layers': turn for side, n in turns.items() if n}
    found = [x for x in kept(remat='none', **layers) if x.shape[:1] == (1,)]
    self.layer = {}
    for side, n in turns.items():
      layer = [(size(x) // turn, x.itemsize) for x in of(side, found)]
      each = self.kept[side] // (n * turn or 1)
      self.layer[side] = self._backward(layer, each)

  def _backward(self, layer, kept):
    """Bytes of one layer's backward, for what it keeps without remat.

    What is `kept` of it is there already. What is too large for a TPU's vector
    memory comes once more, as a gradient; the largest is made in float32, once.

    Args:
      layer: pairs of bytes, of a whole array and of each of its elements.
      kept: bytes.
    """
    sizes = [n for n, _ in layer]
    if self.run.model.remat == 'none':
      return max(sizes, default=0)
    again = max((n for n in sizes if n >= self.vmem), default=0)
    wide = max((2 * n for n, itemsize in layer if itemsize == 2), default=0)
    return max(sum(sizes) + again - kept - self.vmem, wide)

  def moments(self):
    """(moment, {family: bytes}) of what can be the most."""
    run, spec = self.run, self.run.model
    gradients, many = self.gradients, run.microbatches > 1
    every = sum(gradients.values())
    always = {
      'parameters': sum(self.params.values()),
      'optimizer': self.state,
      'batch': self.tokens,
    }
    narrow = jnp.dtype(spec.dtype).itemsize / 4
    narrow = narrow if narrow < 1 else 0
    casts = {n: int(x * narrow) for n, x in self.params.items()}
    # XLA takes them out of the scan over layers, and of that over microbatches.
    hoisted = sum(casts.get(side, 0) for side in SIDES)
    hoisted += sum(casts.values()) if many else 0
    shares = {name: self.mesh.shape[name] for name in partitioning.AXES}
    head = 'logits' if 'logits' in gradients else 'token_embedder'
    whole = spec.embed_dim * spec.vocab_size // shares['tensor']
    earlier = every if many else 0
    first = gradients.get(head, 0)
    # Of a table that makes logits as well, XLA shares the gradient out itself,
    # and has that of the logits as an array, unless in vector memory.
    tied = head != 'logits'
    gradient = self.logits // 2 if tied and shares['fsdp'] > 1 else 0
    gradient = gradient if gradient > self.vmem else 0
    live = always | {
      'weights': hoisted,
      'collectives': 2 * whole if shares['fsdp'] > 1 else 0,
      'activations': sum(self.kept.values()) + self.around,
    }
    yield (
      'loss',
      live | {'gradients': earlier, 'logits': self.logits + gradient},
    )
    # What all devices add up their own to.
    partial = 0 if self.mesh.size == shares['tensor'] else 4 * whole
    yield (
      'backward of the head',
      live | {'gradients': earlier + partial + first, 'logits': self.logits},
    )
    # XLA takes its time with that, and keeps the smaller: what comes in or out.
    # A tied one waits for what the lookups of tokens add, if it is large.
    done = max(partial, first)
    late = self.logits < done or (tied and self.logits > self.vmem)
    done = 0 if late else done
    kept = dict(self.kept)
    for side in SIDES:
      layers = getattr(spec, f'{side}_layers')
      if not layers:
        continue
      gathered = self.params.get(side, 0) * (narrow or 1) * shares['fsdp']
      done += gradients.get(side, 0)
      yield (
        f'backward of the {side}',
        always
        | {
          'gradients': earlier + done,
          'weights': hoisted,
          'collectives': int(gathered / layers) if shares['fsdp'] > 1 else 0,
          'activations': sum(kept.values()) + self.around,
          'layer': self.layer[side],
          'logits': self.logits if late else 0,
        },
      )
      kept[side] = 0
    yield ('update', always | {'gradients': earlier + every})
