"""How often each computation of a program runs.

XLA's own figures count the body of a loop once. On GPUs it notes the number of
turns; on TPUs it must be found from the integers that the condition compares:
they are followed through the loop, turn by turn.
"""

import re

_COUNTED = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_MOST_TURNS = 1_000_000
_SAME = 'copy', 'bitcast', 'convert', 'reshape', 'copy-done', 'copy-start'
_ARITHMETIC = {
  'add': lambda x, y: x + y,
  'subtract': lambda x, y: x - y,
  'multiply': lambda x, y: x * y,
  'maximum': max,
  'minimum': min,
}
_COMPARE = {
  'LT': lambda x, y: x < y,
  'LE': lambda x, y: x <= y,
  'GT': lambda x, y: x > y,
  'GE': lambda x, y: x >= y,
  'NE': lambda x, y: x != y,
  'EQ': lambda x, y: x == y,
}


class _Values:
  """Integers of one computation, as far as its parameters tell.

  Attributes:
    module: hlo.Module.
    computation: whose values they are.
    given: for each parameter the list of its elements' values, None if unknown.
  """

  def __init__(self, module, computation, given):
    self.module, self.computation, self.given = module, computation, given
    self.known = {}

  def of(self, name):
    """The integer, the list of a tuple's, or None."""
    if name not in self.known:
      self.known[name] = self._find(self.computation.ops[name])
    return self.known[name]

  def _find(self, op):
    if op.kind == 'constant':
      number = re.fullmatch(r'-?\d+', op.given)
      flag = {'true': 1, 'false': 0}.get(op.given)
      return int(op.given) if number else flag
    if op.kind == 'parameter':
      number = int(op.given)
      return self.given[number] if number < len(self.given) else None
    if op.kind == 'tuple':
      return [self.of(name) for name in op.operands]
    if op.kind == 'get-tuple-element':
      values = self.of(op.operands[0])
      return values[op.number('index')] if isinstance(values, list) else None
    if not op.arrays or op.array.size > 1:
      return None
    if op.kind in _SAME or op.kind in ('opt-barrier', 'optimization-barrier'):
      return self.of(op.operands[0])
    if op.kind in _ARITHMETIC or op.kind == 'compare':
      return self._arithmetic(op)
    if op.kind == 'fusion':
      called = self.module.computations[op.called['calls'][0]]
      given = [self.of(name) for name in op.operands]
      return _Values(self.module, called, given).of(called.root.name)
    return None

  def _arithmetic(self, op):
    x, y = (self.of(name) for name in op.operands)
    if not isinstance(x, int) or not isinstance(y, int):
      return None
    if op.kind == 'compare':
      direction = re.search(r'direction=(\w\w)', op.attributes)[1]
      return int(_COMPARE[direction](x, y))
    return _ARITHMETIC[op.kind](x, y)


def _turns(module, op, values):
  """Turns of a while, and what each element of its tuple is all the time.

  Returns:
    (turns or None, the list of integers that stay the same, else None).
  """
  condition = module.computations[op.called['condition'][0]]
  body = module.computations[op.called['body'][0]]
  start = values.of(op.operands[0])
  if not isinstance(start, list):
    start = [None] * len(op.arrays)
  now, turns, stays = list(start), 0, list(start)
  counted = _COUNTED.search(op.attributes)
  while turns < _MOST_TURNS:
    goes_on = _Values(module, condition, [now]).of(condition.root.name)
    if goes_on is None or not goes_on:
      break
    after = _Values(module, body, [now]).of(body.root.name)
    after = after if isinstance(after, list) else [None] * len(now)
    stays = [x if x == y else None for x, y in zip(stays, after)]
    # What no turn could tell is not asked for again.
    now, turns = after, turns + 1
  else:
    goes_on = None
  if counted:
    turns = int(counted[1])
  elif goes_on is None:
    turns = None
  return turns, stays


def count(module):
  """{computation: runs in one run of the program}, and the loops of no number.

  Both branches of a conditional count as run. A loop whose number of turns
  can't be told counts as one turn.

  Args:
    module: hlo.Module.

  Returns:
    ({name: runs}, {name of a loop: turns}, [names of loops without one]).
  """
  runs, turns, unknown = {}, {}, []

  def walk(computation, times, given):
    runs[computation.name] = runs.get(computation.name, 0) + times
    values = _Values(module, computation, given)
    for op in computation.ops.values():
      if op.kind == 'while':
        found, stays = _turns(module, op, values)
        if found is None:
          unknown.append(op.name)
        turns[op.name] = found = 1 if found is None else found
        walk(module.computations[op.called['body'][0]], times * found, [stays])
        condition = module.computations[op.called['condition'][0]]
        walk(condition, times * (found + 1), [stays])
      elif op.kind in ('conditional', 'call', 'async-start'):
        for names in op.called.values():
          for name in names:
            called = module.computations[name]
            walk(called, times, [values.of(x) for x in op.operands])

  walk(module.entry, 1, [])
  return runs, turns, unknown
