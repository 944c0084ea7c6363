"""What a chip of each accelerator can do, by published figures.

Of a JAX device, as jax.devices() counts them: TPU v3 has two to a chip. Its
network is the chip's. Sources, by the letters behind the figures:

D: the vendor's data sheet or page of the chip (Cloud TPU documentation, 2026;
   NVIDIA's data sheets of A100 2021, H100 2022, H200 2023 and HGX B200 2024).
B: How to Scale Your Model, 2025, chapters on TPUs and GPUs.
J: jax 0.10.2, jax/_src/pallas/mosaic/tpu_info.py, 2025.
P: Jouppi et al., TPU v4, arXiv:2304.01433, table 4, 2023.
Q: Jouppi et al., A Domain Specific Supercomputer, CACM 63(7), table 3, 2020.
E: what compilers and drivers say themselves, as users report it.
X: descriptions of GPUs for XLA's compiler (xla/backends/gpu/target_config),
   2026: what the driver says.
"""

import dataclasses
import os

from t5x_lite import errors

_GIB = 2**30
_MIB = 2**20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
  """One kind of chip.

  Attributes:
    kind: as in the name of an accelerator: v5e, h100.
    device_kinds: how JAX's name of the device begins.
    flops: dense bfloat16 operations a second.
    int8: the same of int8; None: not published.
    fp8: the same of float8; None: not published, or done as bfloat16.
    hbm: bytes of memory, as the vendor states them.
    hbm_usable: bytes of it that programs get; of GPUs all that the driver
      shows, of which JAX takes a share: `available`.
    hbm_bandwidth: bytes a second.
    links: of a chip to its neighbours, or to the switch of its node.
    link_bandwidth: bytes a second and direction of one link.
    domain: chips that links join at most.
    dimensions: of the torus; 0: a switch joins all with all.
    ring: a side of so many chips is closed; of a 3-D torus a multiple, and all
      sides must be.
    dcn_bandwidth: bytes a second and direction of a chip into the data-centre
      network; None: not published.
    host_chips: that share a host and its network cards.
    chip_devices: JAX devices that share a chip and its links.
    clock: cycles a second.
    vmem: bytes of vector memory; of GPUs None.
  """

  kind: str
  device_kinds: tuple[str, ...]
  flops: float
  int8: float | None = None
  fp8: float | None = None
  hbm: int
  hbm_usable: int
  hbm_bandwidth: float
  links: int
  link_bandwidth: float
  domain: int
  dimensions: int = 0
  ring: int | None = None
  dcn_bandwidth: float | None
  host_chips: int
  chip_devices: int = 1
  clock: float
  vmem: int | None = None

  @property
  def host_bandwidth(self):
    """Bytes a second and direction of a host into the data-centre network."""
    return self.dcn_bandwidth and self.dcn_bandwidth * self.host_chips

  @property
  def networks(self):
    """What joins chips of a slice or node, and what slices or nodes."""
    return ('ici', 'dcn') if self.dimensions else ('nvlink', 'network')

  def available(self, environ=None):
    """Bytes of memory that JAX takes.

    Args:
      environ: variables of a run; default: those of this process.
    """
    if self.dimensions:
      return self.hbm_usable
    return int(self.hbm_usable * gpu_share(environ))

  def rings(self, shape):
    """Which sides of a slice are closed, for a shape such as (8, 16)."""
    if self.dimensions == 3:  # by optical switches, between whole cubes
      closed = all(side % self.ring == 0 for side in shape)
      return tuple(closed for side in shape)
    return tuple(side == self.ring for side in shape)


# Variables that say what share of a GPU's memory JAX takes, the old one last.
SHARE = 'XLA_CLIENT_MEM_FRACTION', 'XLA_PYTHON_CLIENT_MEM_FRACTION'
_SHARE = 0.75  # GpuAllocatorConfig of XLA, 2026
# What is reached of a TPU link's nominal bandwidth: 45 of 50 GB/s, 90 of 100.
LINK_REACHED = 0.9  # B

_TABLE = (
  Chip(
    kind='v3',
    device_kinds=('TPU v3',),
    flops=61.5e12,  # D: 123 of a chip
    hbm=16 * _GIB,  # D
    hbm_usable=int(15.48 * _GIB),  # E
    hbm_bandwidth=450e9,  # D: 900 of a chip
    links=4,  # Q
    link_bandwidth=82e9,  # Q: 656 Gbit/s
    domain=1024,  # D
    dimensions=2,  # D
    ring=32,  # D: of the whole pod
    dcn_bandwidth=None,
    host_chips=4,  # D
    chip_devices=2,  # D
    clock=0.94e9,  # P
    vmem=16 * _MIB,  # J
  ),
  Chip(
    kind='v4',
    device_kinds=('TPU v4',),
    flops=275e12,  # D
    int8=275e12,  # D
    hbm=32 * _GIB,  # D
    hbm_usable=int(30.75 * _GIB),  # E
    hbm_bandwidth=1200e9,  # D
    links=6,  # P
    link_bandwidth=50e9,  # P
    domain=4096,  # D
    dimensions=3,  # D
    ring=4,  # B
    dcn_bandwidth=6.25e9,  # B
    host_chips=4,  # D
    clock=1.05e9,  # P
    vmem=32 * _MIB,  # J: 16 of each core; P has 128 more, of common memory
  ),
  Chip(
    kind='v5e',
    device_kinds=('TPU v5 lite', 'TPU v5e'),
    flops=197e12,  # D
    int8=393e12,  # D
    hbm=16 * _GIB,  # D
    hbm_usable=int(15.75 * _GIB),  # E
    hbm_bandwidth=819e9,  # D
    links=4,  # D
    link_bandwidth=50e9,  # D: 400 of a chip, both directions
    domain=256,  # D
    dimensions=2,  # D
    ring=16,  # B
    dcn_bandwidth=3.125e9,  # D: two cards of 100 Gbit/s to a host; B
    host_chips=8,  # D
    clock=1.5e9,  # B
    vmem=128 * _MIB,  # J, B
  ),
  Chip(
    kind='v5p',
    device_kinds=('TPU v5p', 'TPU v5'),
    flops=459e12,  # D
    int8=918e12,  # J, B
    hbm=96 * _GIB,  # B; D rounds what programs get, 95
    hbm_usable=int(95.74 * _GIB),  # E
    hbm_bandwidth=2765e9,  # D
    links=6,  # B
    link_bandwidth=100e9,  # D: 1200 of a chip, both directions
    domain=8960,  # D; a job may have 6144
    dimensions=3,  # D
    ring=4,  # B
    dcn_bandwidth=6.25e9,  # D: 50 Gbit/s; B
    host_chips=4,  # D
    clock=1.75e9,  # of the peak: 8 products of 128 x 128 a cycle
    vmem=128 * _MIB,  # J: 64 of each core
  ),
  Chip(
    kind='v6e',
    device_kinds=('TPU v6 lite', 'TPU v6e'),
    flops=918e12,  # D
    int8=1836e12,  # D
    hbm=32 * _GIB,  # D
    hbm_usable=int(31.25 * _GIB),  # E
    hbm_bandwidth=1638e9,  # D
    links=4,  # D
    link_bandwidth=100e9,  # D: 800 of a chip, both directions
    domain=256,  # D
    dimensions=2,  # D
    ring=16,  # B
    dcn_bandwidth=12.5e9,  # B
    host_chips=8,  # D
    clock=1.75e9,  # of the peak: 4 products of 256 x 256 a cycle
    vmem=128 * _MIB,  # J
  ),
  Chip(
    kind='a100',  # SXM, 80 GB
    device_kinds=('NVIDIA A100',),
    flops=312e12,  # D
    int8=624e12,  # D
    hbm=80 * _GIB,  # D
    hbm_usable=85_100_068_864,  # X
    hbm_bandwidth=2039e9,  # D
    links=12,  # B
    link_bandwidth=25e9,  # B
    domain=8,  # B
    dcn_bandwidth=25e9,  # D: DGX A100, a card of 200 Gbit/s to each
    host_chips=8,  # D
    clock=1.41e9,  # D, X
  ),
  Chip(
    kind='h100-pcie',
    device_kinds=('NVIDIA H100 PCIe',),
    flops=756e12,  # D
    int8=1513e12,  # D
    fp8=1513e12,  # D
    hbm=80 * _GIB,  # D
    hbm_usable=84_942_979_072,  # X, of SXM
    hbm_bandwidth=2000e9,  # D
    links=12,  # D: a bridge joins two
    link_bandwidth=25e9,  # D
    domain=2,  # D
    dcn_bandwidth=None,  # servers differ
    host_chips=8,  # D
    clock=1.755e9,  # D
  ),
  Chip(
    kind='h100',  # SXM, 80 GB
    device_kinds=('NVIDIA H100',),
    flops=989e12,  # D
    int8=1979e12,  # D
    fp8=1979e12,  # D
    hbm=80 * _GIB,  # D
    hbm_usable=84_942_979_072,  # X
    hbm_bandwidth=3350e9,  # D
    links=18,  # B
    link_bandwidth=25e9,  # B
    domain=8,  # B
    dcn_bandwidth=50e9,  # B: DGX H100, a card of 400 Gbit/s to each
    host_chips=8,  # B
    clock=1.98e9,  # X
  ),
  Chip(
    kind='h200',
    device_kinds=('NVIDIA H200',),
    flops=989e12,  # D
    int8=1979e12,  # D
    fp8=1979e12,  # D
    hbm=141 * _GIB,  # D
    hbm_usable=int(139.8 * _GIB),  # E; X has the data sheet's
    hbm_bandwidth=4800e9,  # D
    links=18,  # B
    link_bandwidth=25e9,  # B
    domain=8,  # B
    dcn_bandwidth=50e9,  # D: DGX H200, as of H100
    host_chips=8,  # D
    clock=1.98e9,  # X
  ),
  Chip(
    kind='b200',
    device_kinds=('NVIDIA B200',),
    flops=2250e12,  # D
    int8=4500e12,  # D
    fp8=4500e12,  # D
    hbm=180 * _GIB,  # D
    hbm_usable=191_514_411_008,  # X
    hbm_bandwidth=8000e9,  # D; X has 7672
    links=18,  # B
    link_bandwidth=50e9,  # B
    domain=8,  # B
    dcn_bandwidth=50e9,  # D: DGX B200, a card of 400 Gbit/s to each
    host_chips=8,  # D
    clock=1.965e9,  # X
  ),
)
CHIPS = {chip.kind: chip for chip in _TABLE}


def gpu_share(environ=None):
  """The share of a GPU's memory that JAX takes, at most 1.

  As jaxlib 0.10.2 reads it (xla_client.generate_pjrt_gpu_plugin_options). A
  pool that grows, XLA_PYTHON_CLIENT_PREALLOCATE=false, has the same limit;
  without a pool, XLA_PYTHON_CLIENT_ALLOCATOR=platform, there is none.

  Args:
    environ: variables of a run; default: those of this process.

  Raises:
    ConfigError: the share is no number above 0, or is given twice.
  """
  environ = os.environ if environ is None else environ
  given = {name: environ[name] for name in SHARE if environ.get(name)}
  if len(given) > 1:
    raise errors.ConfigError(
      "the share of a GPU's memory is set twice",
      got=' and '.join(f'{name}={text}' for name, text in given.items()),
      expected=f'{SHARE[0]} alone: the other is deprecated',
    )
  share = _SHARE
  for name, text in given.items():
    try:
      share = float(text)
    except ValueError:
      share = 0.0
    if not share > 0:
      raise errors.ConfigError(
        'not a share of memory', where=name, got=text, expected='such as 0.9'
      )
  no_pool = environ.get('XLA_PYTHON_CLIENT_ALLOCATOR', '').lower() == 'platform'
  return 1.0 if no_pool else min(share, 1.0)


def find(device_kind):
  """The Chip of JAX's name of a device, or None."""
  names = {name: chip for chip in _TABLE for name in chip.device_kinds}
  for name in sorted(names, key=len, reverse=True):
    if device_kind.startswith(name):
      return names[name]
  return None
