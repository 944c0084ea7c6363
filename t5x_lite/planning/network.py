"""How long chips take to exchange what a program makes them exchange.

TPUs of a slice stand in a torus: along each of its sides a ring of both
directions if the side is closed, else a line. Slices, and nodes of GPUs, are
joined by the data-centre network. A hop costs a microsecond (How to Scale Your
Model, 2025).
"""

import dataclasses
import math

import numpy as np

from t5x_lite import chips

HOP = 1e-6  # seconds
# Bytes that a member sends on a ring, of what is gathered, summed or turned.
_FACTORS = {
  'all-gather': 1,
  'reduce-scatter': 1,
  'all-reduce': 2,
  'all-to-all': 1,
  'collective-permute': 1,
}


@dataclasses.dataclass(frozen=True)
class Network:
  """The chips of a mesh and what joins them.

  Attributes:
    chip: chips.Chip.
    slices: of each device, in the order of the mesh: its slice or node.
    coords: its place in the slice, [devices, dimensions].
    shape: sides of a slice.
  """

  chip: chips.Chip
  slices: np.ndarray
  coords: np.ndarray
  shape: tuple[int, ...]

  @classmethod
  def of(cls, chip, slices, coords):
    """Of the devices of a mesh, in its order.

    Args:
      chip: chips.Chip.
      slices: number of each device's slice.
      coords: its place there; None for GPUs, which are told by their numbers.
    """
    if coords is None or not chip.dimensions:
      numbers = np.arange(len(slices))
      at = (numbers % chip.domain)[:, None]
      return cls(chip, numbers // chip.domain, at, (chip.domain,))
    coords = np.asarray(coords)[:, : chip.dimensions]
    shape = tuple(int(n) + 1 for n in coords.max(axis=0))
    return cls(chip, np.asarray(slices), coords, shape)

  def crosses(self, groups):
    """Whether members of a group are in several slices."""
    slices = self.slices[groups]
    return bool((slices != slices[:, :1]).any())

  def seconds(self, collective):
    """(seconds within slices, seconds between them, sides that it uses)."""
    groups, kind = collective.groups, collective.kind
    if kind == 'collective-permute':
      return self._permute(collective)
    members = groups[0]
    many = len(set(self.slices[members].tolist()))
    within = len(members) // many
    factor = _FACTORS[kind]
    between = 0.0
    if many > 1:
      share = collective.payload / within
      sent = factor * share * (many - 1) / many
      between = sent / (self.chip.dcn_bandwidth or math.inf)
    if within == 1:
      return 0.0, between, ()
    inside = members[self.slices[members] == self.slices[members[0]]]
    bandwidth, hops, sides = self._ring(inside)
    sent = factor * collective.payload * (within - 1) / within
    if kind == 'all-to-all' and self.chip.dimensions:
      # On a ring a row travels a quarter of it on the mean, not once around.
      sent *= within / 4
    return sent / bandwidth + factor * hops * HOP, between, sides

  def _ring(self, members):
    """(bytes a second that a member sends, hops, sides of the torus)."""
    chip = self.chip
    link = chip.link_bandwidth / chip.chip_devices
    if not chip.dimensions:
      return link * chip.links, 1, (0,)
    link *= chips.LINK_REACHED
    closed = chip.rings(self.shape)
    bandwidth, hops, sides = 0.0, 0, []
    for side, (size, ring) in enumerate(zip(self.shape, closed)):
      at = np.unique(self.coords[members, side])
      if len(at) < 2:
        continue
      step = int(np.diff(at).min())
      whole = len(at) * step == size
      # Where each stride passes over others' chips, they share the links.
      bandwidth += link * (2 if ring and whole else 1) / step
      hops += len(at) * step // (2 if ring and whole else 1)
      sides.append(side)
    if not sides:  # two devices of a chip
      return link * chip.links, 1, ()
    return bandwidth, hops, tuple(sides)

  def _permute(self, collective):
    pairs = collective.groups
    bytes_ = collective.payload
    if self.crosses(pairs):
      between = bytes_ / (self.chip.dcn_bandwidth or math.inf)
      return 0.0, between, ()
    if not self.chip.dimensions:
      link = self.chip.link_bandwidth * self.chip.links
      return bytes_ / link + HOP, 0.0, (0,)
    apart = np.abs(self.coords[pairs[:, 0]] - self.coords[pairs[:, 1]])
    closed = np.array(self.chip.rings(self.shape))
    around = np.where(closed, np.array(self.shape) - apart, apart)
    hops = np.minimum(apart, around)
    most = max(int(hops.sum(axis=1).max()), 1)
    sides = tuple(int(i) for i in np.flatnonzero(hops.any(axis=0)))
    link = self.chip.link_bandwidth / self.chip.chip_devices
    return (
      bytes_ * most / (link * chips.LINK_REACHED) + most * HOP,
      0.0,
      sides,
    )
