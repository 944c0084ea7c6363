"""What lies in a chip's memory when most does, and who put it there.

Buffers are followed through the program in the order of its schedule: what an
operation makes is there from then until nothing needs it any more. What XLA
computes in place (updates of slices, the arrays that a loop carries, results
that take the place of donated arguments) takes no room of its own.
"""

import dataclasses
import re

from t5x_lite.planning import counting
from t5x_lite.planning import hlo

_NAMES_IT = {  # the result is the operand itself
  'bitcast',
  'opt-barrier',
  'optimization-barrier',
  'add-dependency',
  'copy-done',
  'slice-done',
  'async-done',
  'all-gather-done',
  'all-reduce-done',
  'collective-permute-done',
  'send-done',
}
_NAMES = 'get-tuple-element', 'tuple', 'bitcast'  # these use nothing
_SAME = 'bitcast', 'copy', 'reshape', 'convert', 'copy-start', 'copy-done'
_IN_PLACE = {'dynamic-update-slice', 'scatter', 'while'}
# Of operands and results, numbered through, which lie in one place.
_SHARED = '"aliasing_operands":'
_INDICES = re.compile(r'"indices":\[([^\]]*)\]')


@dataclasses.dataclass(eq=False)
class Buffer:
  """A place in memory.

  Attributes:
    bytes: of it; 0 outside HBM.
    op: what made it.
    array: what it holds.
    parameter: number of the program's argument that it is, or None.
    writer: what first wrote into it, if `op` only took the room.
  """

  bytes: int
  op: hlo.Op
  array: hlo.Array
  parameter: int | None = None
  writer: hlo.Op | None = None

  @property
  def maker(self):
    """Who is to be named for it."""
    return self.writer or self.op


@dataclasses.dataclass(frozen=True)
class Peak:
  """The moment when most memory is in use.

  Attributes:
    bytes: in use, arguments included.
    buffers: what lies there, the largest first.
    at: the operation that runs then.
  """

  bytes: int
  buffers: list[Buffer]
  at: hlo.Op


def peak(module):
  """The Peak of an hlo.Module."""
  entry = module.entry
  given = {}
  for op in entry.parameters:
    array = op.array
    size = array.bytes if array.space == hlo.HBM else 0
    given[op.name] = [Buffer(size, op, array, int(op.given))]
  results = [None] * len(entry.root.arrays)
  for index, number in module.aliases.items():
    results[index] = given[entry.parameters[number].name][0]
  base = [b for found in given.values() for b in found]
  found = _Walk(module, entry, given, results).run()
  buffers = base + found.buffers
  buffers.sort(key=lambda b: -b.bytes)
  return Peak(sum(b.bytes for b in buffers), buffers, found.at)


class _Walk:
  """One computation: which buffer each name means, and until when.

  Attributes:
    module: hlo.Module.
    computation: that is followed.
    given: {parameter: its buffers}, which live all the time.
    results: for each array of the result the buffer that it must lie in, or
      None for one of its own.
  """

  def __init__(self, module, computation, given, results):
    self.module, self.computation = module, computation
    self.places = dict(given)
    self.kept = {id(b) for found in given.values() for b in found}
    self.kept |= {id(b) for b in results if b is not None}
    self.wanted = {}  # (name, array): the buffer that it is to lie in
    self._want(computation.root, results)

  def _want(self, op, buffers):
    """Where an operation's arrays must lie, and so what they are made in."""
    ops = self.computation.ops
    if op.kind == 'tuple':
      at = 0
      for name in op.operands:
        width = len(ops[name].arrays)
        self._want(ops[name], buffers[at : at + width])
        at += width
      return
    for i, buffer in enumerate(buffers):
      if buffer is not None:
        self.wanted[op.name, i] = buffer
    if op.kind in _NAMES_IT or op.kind in ('dynamic-update-slice', 'scatter'):
      self._want(ops[op.operands[0]], buffers[:1])
    elif op.kind == 'while':
      self._want(ops[op.operands[0]], buffers)
    elif op.kind == 'get-tuple-element':
      of = ops[op.operands[0]]
      whole = [None] * len(of.arrays)
      whole[of.element(op.number('index'))] = buffers
      if of.kind != 'parameter':
        self._want(of, whole)
    else:
      for i, name in self._sources(op):
        if i < len(buffers) and buffers[i] is not None and not ops[name].widths:
          self._want(ops[name], [buffers[i]])

  def _sources(self, op):
    """(result, operand) of what lies in the place of an operand.

    On TPUs the compiler tells; else it is what a fusion updates in place.
    """
    for text in _INDICES.findall(op.attributes.partition(_SHARED)[2]):
      first, *others = (int(n) for n in re.findall(r'\d+', text))
      for n in others:
        if first < len(op.operands) <= n:
          yield n - len(op.operands), op.operands[first]
    if op.kind != 'fusion':
      return
    inner = self.module.computations[op.called['calls'][0]]
    for i, root in enumerate(counting.roots(inner)):
      if root.kind not in ('dynamic-update-slice', 'scatter'):
        continue
      base = inner.ops[root.operands[0]]
      while base.kind == 'bitcast':
        base = inner.ops[base.operands[0]]
      if base.kind == 'parameter':
        yield i, op.operands[int(base.given)]

  def run(self):
    """The Peak within, of what is made here."""
    ops = list(self.computation.ops.values())
    inner = {}  # operation: the Peak of what it calls
    for op in ops:
      if op.name not in self.places:
        self.places[op.name] = self._make(op)
      if op.kind in ('while', 'conditional', 'call'):
        inner[op.name] = self._within(op)
    last = {}
    for n, op in enumerate(ops):
      if op.kind not in _NAMES:
        for name in op.operands:
          for b in self.places[name]:
            last[id(b)] = n
      for b in self.places[op.name]:
        last[id(b)] = max(last.get(id(b), n), n)
    for b in self.places[self.computation.root.name]:
      last[id(b)] = len(ops)
    live, best, most = {}, Peak(-1, [], ops[0]), -1
    ends = {}
    now = 0
    for n, op in enumerate(ops):
      for b in self.places[op.name]:
        if id(b) not in live and id(b) not in self.kept and b.bytes:
          live[id(b)] = b
          ends.setdefault(last[id(b)], []).append(b)
          now += b.bytes
      extra = inner.get(op.name)
      total = now + (extra.bytes if extra else 0)
      if total > most:
        most = total
        buffers = [*live.values(), *(extra.buffers if extra else [])]
        best = Peak(total, buffers, extra.at if extra else op)
      for b in ends.pop(n, []):
        del live[id(b)]
        now -= b.bytes
    return best

  def _make(self, op):
    """The buffers of what an operation makes."""
    places, ops = self.places, self.computation.ops
    if op.kind in _NAMES_IT and op.operands:
      found = places[op.operands[0]]
      if op.kind.endswith('-done'):
        # Of (what is read, what is written, flags): the second.
        return self._second(ops[op.operands[0]], found, len(op.arrays))
      return found
    if op.kind == 'tuple':
      return [b for name in op.operands for b in places[name]]
    if op.kind == 'get-tuple-element':
      of = ops[op.operands[0]]
      return places[of.name][of.element(op.number('index'))]
    if op.kind in _IN_PLACE:
      found = places[op.operands[0]][: len(op.arrays)]
      if op.kind != 'while':
        self._write(found[0], op)
      return found
    made = []
    shared = dict(self._sources(op))
    for i, array in enumerate(op.arrays):
      if (op.name, i) in self.wanted:
        made.append(self._write(self.wanted[op.name, i], op))
      elif i in shared:
        made.append(self._write(places[shared[i]][0], op))
      else:
        size = array.bytes if array.space == hlo.HBM else 0
        made.append(Buffer(size, op, array))
    if op.kind.endswith('-start') and op.widths:
      # The first element is the operand itself.
      operands = [b for name in op.operands for b in places[name]]
      width = op.widths[0]
      made[:width] = operands[:width]
    return made

  def _write(self, buffer, op):
    """Notes who fills what was an empty room."""
    empty = buffer.op.kind in ('custom-call', 'broadcast')
    if empty and buffer.writer is None and buffer.op is not op and op.op_name:
      buffer.writer = _written(self.module, self.computation, op)
    return buffer

  def _second(self, op, found, count):
    if len(op.widths) > 1:
      return found[op.element(1)][:count]
    return found[:count]

  def _within(self, op):
    """The Peak of what a loop or a call makes beside what it is given."""
    best = Peak(0, [], op)
    roles = 'body', 'calls', 'to_apply', 'branch_computations'
    names = [name for role in roles for name in op.called.get(role, ())]
    for k, name in enumerate(names):
      called = self.module.computations[name]
      results = list(self.places[op.name])
      if op.kind == 'while':
        given = {called.parameters[0].name: results}
      else:
        # A conditional's first operand says which branch has the next ones.
        first = 1 + k if op.kind == 'conditional' else 0
        given = {
          parameter.name: self.places[operand]
          for parameter, operand in zip(
            called.parameters, op.operands[first:], strict=False
          )
        }
      found = _Walk(self.module, called, given, results).run()
      if found.bytes > best.bytes:
        best = found
    return best


def _written(module, computation, op):
  """What an update in place writes: who made that, or the update itself."""
  at, outer, operands = op, computation, None
  while True:
    if at.kind == 'fusion':
      computation = module.computations[at.called['calls'][0]]
      operands = at.operands
      roots = counting.roots(computation)
      at = next((r for r in roots if r.kind == 'dynamic-update-slice'), None)
      if at is None:
        return op
    if at.kind == 'dynamic-update-slice':
      at = computation.ops[at.operands[1]]
    elif at.kind in _SAME:
      at = computation.ops[at.operands[0]]
    elif at.kind == 'parameter' and operands is not None:
      at = outer.ops[operands[int(at.given)]]
      computation, operands = outer, None
      if at.kind == 'fusion':
        return at if at.op_name else op
    else:
      return at if at.op_name else op
