"""What chips exchange: kind, over which axes of the mesh, how many bytes.

Bytes are those that a chip sends where the members stand in a ring, which is
what XLA does on a torus: (n - 1) / n of what is gathered or scattered, and
twice that where all are to have the sum.
"""

import dataclasses
import math
import re

import numpy as np

from t5x_lite.planning import counting
from t5x_lite.planning import hlo

_CHANNEL = re.compile(r'channel_id=(\d+)')
_MESH = re.compile(
  r'replica_groups=mesh\[([^\]]*)\](?:, device_ids=\((.*?)\))? \{([^}]*)\}'
)
_IOTA = re.compile(
  r'replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?'
)
_LISTS = re.compile(
  r'(?:replica_groups|source_target_pairs)=\{(\{[\d,{} ]*\})\}'
)
# Between slices libtpu has the host send and receive, each device to its like.
_BETWEEN = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_MEETS = re.compile(r'_xla_host_transfer_rendezvous="([^"]+)"')
_AXIS = re.compile(r"'(\w+)'(?::\((\d+)\)(\d+))?")

_SENT = {  # by each of n, of so many bytes
  'all-gather': lambda payload, n: payload * (n - 1) / n,
  'reduce-scatter': lambda payload, n: payload * (n - 1) / n,
  'all-reduce': lambda payload, n: 2 * payload * (n - 1) / n,
  'all-to-all': lambda payload, n: payload * (n - 1) / n,
  'collective-permute': lambda payload, n: payload,
}


@dataclasses.dataclass(frozen=True)
class Collective:
  """One exchange.

  Attributes:
    kind: of hlo.EXCHANGES.
    groups: device numbers, [groups, members]; of a permutation its pairs.
    payload: bytes of the whole array: what is gathered, summed or turned.
    sent: bytes that each chip sends.
    start: the operation that starts it.
    done: the one that needs it finished; the same if nothing runs meanwhile.
    op: that tells its source.
    is_sliced: whether of a sum each member goes on with its share alone.
  """

  kind: str
  groups: np.ndarray
  payload: int
  sent: float
  start: str
  done: str
  op: object
  is_sliced: bool = False

  @property
  def members(self):
    return self.groups.shape[1]


def find(module, runs, slices):
  """{computation: the Collectives of one run of it, loops apart}.

  What the compiler cuts into pieces among fusions counts once, from the first
  piece to the last. Pieces may lie within a loop that runs meanwhile: they
  belong to the computation around it, which starts and ends them.

  Args:
    module: hlo.Module.
    runs: {computation: how often it runs}, as of loops.count.
    slices: of each device the number of its slice.
  """
  found, taken = {}, set()
  for name in sorted(runs, key=lambda name: runs[name]):
    own = _of_one(module, module.computations[name], slices)
    found[name] = [x for channel, x in own.items() if channel not in taken]
    taken |= {channel for channel in own if isinstance(channel, int)}
  return found


def _of_one(module, computation, slices):
  """{channel, or a name without one: Collective} of one computation."""
  found, devices = _between(computation, slices), len(slices)
  for outer in computation.ops.values():
    for place, op in _exchanges(module, computation, outer):
      channel = _CHANNEL.search(op.attributes)
      # Those of jax.shard_map share a number; pieces are always in fusions.
      whole = op is outer or _is_scattered(module, outer)
      key = outer.name if whole or not channel else int(channel[1])
      if key in found:
        first = found[key]
        found[key] = dataclasses.replace(first, done=outer.name)
      else:
        found[key] = _collective(module, place, op, outer, devices)
  ends = {}
  for op in computation.ops.values():
    for name in op.operands:
      if op.kind.endswith('-done'):
        ends[name] = op.name
  return {
    key: dataclasses.replace(x, done=ends.get(x.done, x.done))
    for key, x in found.items()
    if x.members > 1
  }


def _between(computation, slices):
  """{what both ends meet by: Collective} between slices."""
  numbers = sorted(set(slices.tolist()))
  groups = np.array([np.flatnonzero(slices == n) for n in numbers]).T
  found = {}
  for op in computation.ops.values():
    what, name = _BETWEEN.search(op.attributes), _MEETS.search(op.attributes)
    if op.kind == 'send' and what and name:
      n = len(numbers)
      kind_ = what[1].lower().replace('_', '-')
      kind_ = kind_ if kind_ in hlo.EXCHANGES else 'collective-permute'
      given = computation.ops[op.operands[0]].array.plain_bytes
      payload = given * n if kind_ == 'all-gather' else given
      sent = _SENT[kind_](payload, n)
      found[name[1]] = Collective(
        kind_, groups, payload, sent, op.name, op.name, op
      )
  receivers = {}
  for op in computation.ops.values():
    name = _MEETS.search(op.attributes)
    if op.kind == 'recv' and name:
      receivers[op.name] = name[1]
    elif op.kind == 'recv-done' and receivers.get(op.operands[0]) in found:
      key = receivers[op.operands[0]]
      found[key] = dataclasses.replace(found[key], done=op.name)
  return found


def _exchanges(module, computation, op):
  """(where it stands, an exchange) of an operation and what it calls."""
  if kind(op):
    yield computation, op
  elif op.kind in ('fusion', 'async-start'):
    for name in op.called.get('calls', ()):
      inner = module.computations[name]
      for x in inner.ops.values():
        yield from _exchanges(module, inner, x)


def kind(op):
  """Which of hlo.EXCHANGES an operation is or starts, or None."""
  name = op.kind.removesuffix('-start')
  if op.kind == 'async-start' or name not in hlo.EXCHANGES:
    return None
  return name


def _collective(module, computation, op, outer, devices):
  what = kind(op)
  groups = members(op.attributes, devices)
  operands = [computation.ops[name] for name in op.operands]
  given = sum(a.plain_bytes for x in operands for a in x.arrays)
  n = groups.shape[1]
  payload = given * n if what == 'all-gather' else given
  if what == 'all-reduce' and _is_scattered(module, outer):
    what = 'reduce-scatter'
  sent = _SENT[what](payload, n)
  sliced = what == 'all-reduce' and op is outer
  return Collective(
    what,
    groups,
    payload,
    sent,
    outer.name,
    outer.name,
    op,
    sliced and 2 * _read(module, computation, op) <= payload,
  )


_PASSES_ON = 'get-tuple-element', 'copy-start', 'copy-done', 'bitcast'


def _read(module, computation, op):
  """Bytes of a sum that whoever reads most of it reads, if slices of it."""
  most = 0
  for user in computation.ops.values():
    if op.name not in user.operands:
      continue
    if user.kind in _PASSES_ON:
      most = max(most, _read(module, computation, user))
    else:
      most = max(most, counting.moved_of(module, user, op))
  return most


def _is_scattered(module, op):
  """Whether a fusion sums up and keeps each member's share alone."""
  if op.kind != 'fusion' or 'kind=kCustom' not in op.attributes:
    return False
  inner = module.computations[op.called['calls'][0]]
  return any(x.kind == 'dynamic-slice' for x in inner.ops.values())


def members(attributes, devices):
  """Device numbers of the groups of an exchange, [groups, members].

  XLA writes them in three ways: as axes of a mesh, as a number turned around,
  as lists.
  """
  if found := _MESH.search(attributes):
    return _of_mesh(*found.groups())
  if found := _IOTA.search(attributes):
    shape, sizes, turned = (
      [int(n) for n in (x or '').split(',') if n] for x in found.groups()
    )
    ids = np.arange(math.prod(sizes)).reshape(sizes)
    return (ids.transpose(turned) if turned else ids).reshape(shape)
  if found := _LISTS.search(attributes):
    lists = re.findall(r'\{([\d, ]*)\}', found[1])
    return np.array([[int(n) for n in x.split(',') if n] for x in lists])
  if re.search(r'replica_groups=(?!\{\})', attributes):
    raise ValueError(f'groups of an unknown kind: {attributes[:300]}')
  return np.arange(devices)[None]


def _of_mesh(sizes, order, axes):
  names = re.findall(r"'(\w+)'=(\d+)", sizes)
  shape = [int(n) for _, n in names]
  ids = np.arange(math.prod(shape))
  iota = re.search(r'\[([\d,]+)\](?:T\(([\d,]+)\))?', order or '')
  if iota:
    dims = [int(n) for n in iota[1].split(',')]
    ids = ids.reshape(dims)
    if iota[2]:
      ids = ids.transpose([int(n) for n in iota[2].split(',')])
  # An axis may be used in part: 'axis':(before)size cuts it in three.
  parts, chosen = [], []
  used = [(name, pre, n) for name, pre, n in _AXIS.findall(axes)]
  for name, size in names:
    cuts = sorted((int(p), int(n)) for a, p, n in used if a == name and n)
    whole = any(a == name and not n for a, _, n in used)
    if whole or not cuts:
      chosen += [len(parts)] * whole
      parts.append(int(size))
      continue
    done = 1
    for before, n in cuts:
      parts += [before // done, n]
      chosen.append(len(parts) - 1)
      done = before * n
    parts.append(int(size) // done)
  rest = [i for i in range(len(parts)) if i not in chosen]
  ids = ids.reshape(parts).transpose(rest + chosen)
  return ids.reshape(-1, math.prod(parts[i] for i in chosen))


def axes(groups, mesh_shape):
  """Names of the mesh's axes along which members of a group differ.

  Args:
    groups: as of Collective.
    mesh_shape: {axis: size}.
  """
  sizes = list(mesh_shape.values())
  places = np.array(np.unravel_index(groups, sizes))
  differ = (places != places[:, :, :1]).any(axis=(1, 2))
  return tuple(name for name, d in zip(mesh_shape, differ, strict=True) if d)


def overlapped(module, computation, collective):
  """Whether matrix products run between its start and its end."""
  names = list(computation.ops)
  start, done = (names.index(x) for x in (collective.start, collective.done))
  between = [computation.ops[name] for name in names[start + 1 : done]]
  return any(
    op.kind == 'while' or counting.flops(module, computation, op)
    for op in between
  )
