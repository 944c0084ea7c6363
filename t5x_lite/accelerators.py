"""The names of accelerators, as their vendors and users write them.

Of TPUs v2 to v5p the number counts cores, two to a chip; of v5e and v6e it
counts chips. Hosts, shapes and labels are those of the Cloud TPU and Google
Kubernetes Engine documentation (TPU configurations; plan TPUs in GKE).
"""

import dataclasses
import math
import re

from t5x_lite import errors


@dataclasses.dataclass(frozen=True)
class _Kind:
  """A generation of TPUs.

  Attributes:
    cores: of a chip, where the number in a name counts cores; else 1.
    devices: of a chip, as JAX counts them.
    shapes: number of chips -> how they lie, the smallest first.
    alone: the most chips of one host that has no others.
    api: the prefix of its name for `gcloud --accelerator-type`.
    runtime: the software of its TPU VMs.
    label: what GKE calls it, if it has it.
  """

  cores: int
  devices: int
  shapes: dict[int, str]
  alone: int
  api: str
  runtime: str
  label: str | None


def _torus(*shapes):
  return {math.prod(map(int, shape.split('x'))): shape for shape in shapes}


_FLAT = _torus('2x2', '4x4', '4x8', '8x8', '8x16', '16x16')
_CUBES = _torus(
  '2x2x1', '2x2x2', '2x2x4', '2x4x4', '4x4x4', '4x4x8', '4x8x8', '8x8x8'
) | _torus('8x8x16', '8x16x16')
_LITE = {1: '1x1', 4: '2x2', 8: '2x4'} | _FLAT

KINDS = {
  'v2': _Kind(2, 2, _FLAT, 4, 'v2', 'tpu-ubuntu2204-base', None),
  'v3': _Kind(
    2,
    2,
    _FLAT | _torus('16x32', '32x32'),
    4,
    'v3',
    'tpu-ubuntu2204-base',
    'tpu-v3-slice',
  ),
  'v4': _Kind(
    2,
    1,
    _CUBES | _torus('4x4x12'),
    4,
    'v4',
    'tpu-ubuntu2204-base',
    'tpu-v4-podslice',
  ),
  'v5e': _Kind(
    1, 1, _LITE, 8, 'v5litepod', 'v2-alpha-tpuv5-lite', 'tpu-v5-lite-podslice'
  ),
  'v5p': _Kind(
    2,
    1,
    _CUBES | _torus('16x16x16', '16x16x24'),
    4,
    'v5p',
    'v2-alpha-tpuv5',
    'tpu-v5p-slice',
  ),
  'v6e': _Kind(1, 1, _LITE, 8, 'v6e', 'v2-alpha-tpuv6e', 'tpu-v6e-slice'),
}
GPUS = ('a100', 'b200', 'gpu', 'h100', 'h200', 'l4')  # `gpu`: of any kind
MOST_SLICES = 1024  # more than any data-centre network joined yet
_ALIASES = {'v5litepod': 'v5e', 'v5lite': 'v5e', 'trillium': 'v6e'}
_NAME = re.compile(r'(?:(\d{1,4})x)?([a-z]\w*?)-(\d{1,6})', re.ASCII)


@dataclasses.dataclass(frozen=True)
class Accelerator:
  """What a job runs on: slices of TPUs, or nodes of GPUs.

  Attributes:
    kind: v5e, h100 and so on.
    number: as in the name.
    slices: of TPUs; of GPUs nodes.
    chips: of a slice, or GPUs of a node.
    hosts: of a slice; each runs one process.
    shape: of a slice, such as 16x16; of GPUs None.
    devices: of the whole job, as JAX counts them.
  """

  kind: str
  number: int
  slices: int
  chips: int
  hosts: int
  shape: str | None
  devices: int

  @property
  def is_tpu(self):
    return self.kind in KINDS

  @property
  def name(self):
    """As users write it, slices apart."""
    return f'{self.kind}-{self.number}'

  @property
  def api_name(self):
    """As `gcloud` wants it."""
    return f'{KINDS[self.kind].api}-{self.number}'

  @property
  def runtime(self):
    return KINDS[self.kind].runtime

  @property
  def processes(self):
    return self.slices * self.hosts

  def __str__(self):
    if not self.is_tpu:
      nodes = f'{self.slices} nodes' if self.slices > 1 else '1 node'
      return f'{nodes} of {self.chips} GPU{"s" * (self.chips > 1)}'
    times = f'{self.slices} x ' if self.slices > 1 else ''
    cores = f'{self.number} cores: ' * (KINDS[self.kind].cores > 1)
    return (
      f'{times}{self.name} ({cores}{self.chips} chips, {self.shape},'
      f' {self.hosts} host{"s" * (self.hosts > 1)})'
    )


def names():
  """The names of all TPU slices."""
  return [
    f'{kind}-{chips * known.cores}'
    for kind, known in KINDS.items()
    for chips in sorted(known.shapes)
  ]


def parse(text, slices=1, where=None):
  """The Accelerator of a name such as v5e-256, v4-8, 2xv5e-256 or h100-8.

  Args:
    text: the name; NxNAME is N slices or nodes.
    slices: how many, where the name does not say it.
    where: of the name, for errors.

  Raises:
    ConfigError: there is none of that name.
  """
  found = _NAME.fullmatch(text.lower())
  kind = found and _ALIASES.get(found[2], found[2])
  if found and found[1] and slices not in (1, int(found[1])):
    raise errors.ConfigError(
      'two counts of slices', where=where, got=f'{text} and {slices} slices'
    )
  if not found or not (kind in KINDS or kind in GPUS):
    raise errors.ConfigError(
      'no such accelerator',
      where=where,
      got=repr(text),
      expected='a TPU slice such as v5e-256, or GPUs of a node such as h100-8',
      choices=[*names(), *(f'{gpu}-8' for gpu in GPUS)],
    )
  slices, number = int(found[1] or slices), int(found[3])
  if not 1 <= slices <= MOST_SLICES:
    raise errors.ConfigError(
      'wrong count of slices',
      where=where,
      got=f'{slices} x {kind}-{number}',
      expected=f'1 to {MOST_SLICES} slices',
    )
  if kind in GPUS and not number:
    raise errors.ConfigError(
      'a node has one GPU at least', where=where, got=repr(text)
    )
  if kind in GPUS:
    return Accelerator(kind, number, slices, number, 1, None, number * slices)
  known = KINDS[kind]
  chips = number // known.cores
  if number % known.cores or chips not in known.shapes:
    sizes = [n * known.cores for n in known.shapes]
    near = min(sizes, key=lambda n: (abs(math.log(n / max(number, 1))), n))
    counted = 'chips' if known.cores == 1 else 'cores'
    raise errors.ConfigError(
      f'no slice of {kind} has {number} {counted}',
      where=where,
      got=repr(text),
      expected='one of ' + ', '.join(map(str, sorted(sizes))),
      fix=f'{kind}-{near}',
    )
  hosts = 1 if chips <= known.alone else chips // 4
  return Accelerator(
    kind,
    number,
    slices,
    chips,
    hosts,
    known.shapes[chips],
    chips * known.devices * slices,
  )
