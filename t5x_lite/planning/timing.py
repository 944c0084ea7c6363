"""Predicts how long a program takes: a roofline, along its schedule.

An operation takes as long as its arithmetic or its memory's bytes do, whichever
is longer; what is exchanged meanwhile is hidden until something needs it. These
are predictions from published peaks, not measurements; docs/plan.md has what
they are wrong by where a measurement is known.
"""

import collections
import dataclasses

from t5x_lite.planning import collectives
from t5x_lite.planning import counting


@dataclasses.dataclass(frozen=True)
class Rates:
  """What is reached of a chip's peaks.

  Attributes:
    flops: share of the peak of matrix products.
    bandwidth: share of HBM's.
    overhead: seconds of an operation beside.
  """

  flops: float = 0.9
  bandwidth: float = 0.8
  overhead: float = 1e-6


@dataclasses.dataclass
class Times:
  """Seconds of a step, and what they are spent on.

  Attributes:
    total: of the step.
    compute: of operations that wait for arithmetic.
    memory: of operations that wait for HBM.
    exposed: when all wait for an exchange.
    ici: of all exchanges within slices, hidden or not.
    dcn: of all between slices.
    overhead: of starting operations.
  """

  total: float = 0.0
  compute: float = 0.0
  memory: float = 0.0
  exposed: float = 0.0
  ici: float = 0.0
  dcn: float = 0.0
  overhead: float = 0.0

  def add(self, other, times):
    for field in dataclasses.fields(self):
      value = getattr(self, field.name) + times * getattr(other, field.name)
      setattr(self, field.name, value)


class Clock:
  """The times of an hlo.Module on some chips.

  Attributes:
    module: hlo.Module.
    turns: {name of a loop: its turns}.
    exchanges: as of collectives.find.
    network: network.Network.
    rates: Rates.
    attended: as of counting.work.
  """

  def __init__(
    self, module, turns, exchanges, network, rates=None, attended=1.0
  ):
    self.module, self.turns, self.network = module, turns, network
    self.exchanges, self.rates = exchanges, rates or Rates()
    self.attended = attended

  def step(self):
    """The Times of one step."""
    return self._of(self.module.entry)

  def operation(self, computation, op):
    """(seconds, 'compute', 'memory' or None) of one operation by itself."""
    work = counting.work(self.module, computation, op, self.attended)
    chip, rates = self.network.chip, self.rates
    arithmetic = work.flops / (chip.flops * rates.flops)
    memory = work.bytes / (chip.hbm_bandwidth * rates.bandwidth)
    if not arithmetic and not memory:
      return 0.0, None
    if arithmetic >= memory:
      return arithmetic, 'compute'
    return memory, 'memory'

  def _of(self, computation):
    found = Times()
    starts = collections.defaultdict(list)
    for x in self.exchanges.get(computation.name, ()):
      starts[x.start].append(x)
    ends = {}  # operation: when what it needs has arrived
    free = collections.Counter()  # side of the torus: from when on
    now = 0.0
    for op in computation.ops.values():
      if op.kind in ('while', 'conditional', 'call'):
        inner, times = self._inner(op)
        found.add(inner, times)
        now += inner.total * times
        continue
      for x in starts[op.name]:
        ici, dcn, sides = self.network.seconds(x)
        found.ici += ici
        found.dcn += dcn
        used = [*sides, *(['dcn'] if dcn else [])]
        begin = max([now, *(free[side] for side in used)])
        end = begin + ici + dcn
        for side in used:
          free[side] = end
        ends[x.done] = max(ends.get(x.done, 0.0), end)
      if not op.kind.endswith(('-start', '-done')) and not collectives.kind(op):
        seconds, why = self.operation(computation, op)
        if why:
          now += seconds + self.rates.overhead
          found.overhead += self.rates.overhead
          setattr(found, why, getattr(found, why) + seconds)
      wait = ends.pop(op.name, 0.0) - now
      if wait > 0:
        now += wait
        found.exposed += wait
    found.total = now
    return found

  def _inner(self, op):
    """(Times, how often) of what an operation calls."""
    roles = op.called
    if op.kind == 'while':
      body = self.module.computations[roles['body'][0]]
      return self._of(body), self.turns[op.name]
    names = [name for names in roles.values() for name in names]
    all_ = [self._of(self.module.computations[name]) for name in names]
    return max(all_, key=lambda t: t.total), 1
