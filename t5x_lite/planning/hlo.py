"""Reads the text of a compiled program: computations, operations, arrays.

The text is XLA's HLO as `jax.stages.Compiled.as_text` prints it, in the order
of its schedule. XLA has no reader of it in Python, and JAX's own cost figures
count the body of a loop once.
"""

import dataclasses
import functools
import math
import re

_BITS = {'pred': 8, 's4': 4, 'u4': 4, 'token': 0, 'opaque': 0}
_ARRAY = re.compile(r'(\w+)\[([^\]]*)\](?:\{([^}]*)\})?')
_TILE = re.compile(r'\(([\d,]+)\)')
_SPACE = re.compile(r'S\((\d+)\)')
_HEADER = re.compile(r'(ENTRY )?%([\w.-]+) \(.*\{$')
_END = re.compile(r'\}(, execution_thread="\w+")?$')  # of a computation
_NAME = re.compile(r'%([\w.-]+)')
_OP = re.compile(r'  (ROOT )?%([\w.-]+) = ')
_KIND = re.compile(r'\s*([a-z][\w-]*)\(')
_CALLED = re.compile(
  r'(calls|to_apply|body|condition|branch_computations|called_computations)='
  r'(\{[^}]*\}|%[\w.-]+)'
)
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_FRAME = re.compile(r'stack_frame_id=(\d+)')
_ALIAS = re.compile(r'\{([\d, ]*)\}: \((\d+), \{([\d, ]*)\}')

_SERVES_ALL = 't5x_lite/nn/products.py'  # who asked for a product says more
HBM, VMEM = 0, 1  # memory spaces of a TPU; others are flags and scalars
EXCHANGES = (  # kinds of operations
  'all-gather',
  'reduce-scatter',
  'all-reduce',
  'all-to-all',
  'collective-permute',
)


@functools.cache
def bits(dtype):
  """Of one number in memory: bf16 has 16."""
  if dtype in _BITS:
    return _BITS[dtype]
  return int(re.search(r'\d+', dtype)[0])


@dataclasses.dataclass(frozen=True)
class Array:
  """What an operation makes, as it lies in memory.

  Attributes:
    dtype: as HLO names it, such as bf16.
    dims: its shape.
    bytes: with what tiles pad.
    space: of memory; HBM is 0.
  """

  dtype: str
  dims: tuple[int, ...]
  bytes: int
  space: int

  @property
  def size(self):
    return math.prod(self.dims)

  @property
  def plain_bytes(self):
    """Without padding."""
    return math.ceil(self.size * bits(self.dtype) / 8)

  def __str__(self):
    return f'{self.dtype}[{",".join(map(str, self.dims))}]'


@functools.cache
def _array(dtype, dims, layout):
  dims = tuple(int(n.replace('<=', '')) for n in dims.split(',') if n)
  order, _, rest = (layout or '').partition(':')
  padded = [dims[int(i)] for i in order.split(',') if i] if order else []
  tile = _TILE.match(rest[1:]) if rest.startswith('T') else None
  sizes = list(map(int, tile[1].split(','))) if tile else []
  # A tile covers the innermost axes; an array of fewer is one row of it.
  for i, n in enumerate(reversed(sizes)):
    if i < len(padded):
      padded[i] = -(-padded[i] // n) * n
    else:
      padded.append(n if i == 0 else 1)
  space = _SPACE.search(rest)
  total = math.prod(padded or dims) * bits(dtype)
  return Array(dtype, dims, math.ceil(total / 8), int(space[1]) if space else 0)


def _arrays(text):
  """The arrays of a type, tuples within tuples laid flat."""
  return tuple(_array(*found) for found in _ARRAY.findall(text))


def _close(text, start):
  """The place after the bracket that closes the one at `start`."""
  depth = 0
  for i in range(start, len(text)):
    if text[i] in '([{':
      depth += 1
    elif text[i] in ')]}':
      depth -= 1
      if not depth:
        return i + 1
  raise ValueError(f'no end of {text[start : start + 60]!r}')


@dataclasses.dataclass(frozen=True)
class Op:
  """One operation.

  Attributes:
    name: unique in its computation.
    kind: the opcode.
    arrays: what it makes, tuples laid flat.
    widths: arrays of each element, if that is a tuple.
    operands: names.
    given: the text between its brackets.
    attributes: the text behind them.
  """

  name: str
  kind: str
  arrays: tuple[Array, ...]
  widths: tuple[int, ...]
  operands: tuple[str, ...]
  given: str
  attributes: str

  @property
  def array(self):
    return self.arrays[0]

  @functools.cached_property
  def called(self):
    """{'body': names of computations} that it runs."""
    return {
      role: tuple(_NAME.findall(names))
      for role, names in _CALLED.findall(self.attributes)
    }

  def element(self, index):
    """The slice of the arrays that an element of the tuple has."""
    start = sum(self.widths[:index])
    return slice(start, start + self.widths[index])

  @property
  def op_name(self):
    """Where it is in the traced program, such as jit(step)/while/body/add."""
    found = _OP_NAME.search(self.attributes)
    return found[1] if found else ''

  @property
  def frame(self):
    found = _FRAME.search(self.attributes)
    return int(found[1]) if found else 0

  def number(self, name, default=None):
    """The integer of an attribute, such as index=3."""
    found = re.search(rf'\b{name}=(\d+)', self.attributes)
    return int(found[1]) if found else default

  def numbers(self, name):
    """The integers of an attribute, such as dimensions={0,1}."""
    found = re.search(rf'\b{name}=\{{([\d,]*)\}}', self.attributes)
    return [int(n) for n in found[1].split(',') if n] if found else []


@dataclasses.dataclass(frozen=True)
class Computation:
  """Operations in the order of their schedule."""

  name: str
  ops: dict[str, Op]
  root: Op

  @functools.cached_property
  def parameters(self):
    """In the order of their numbers."""
    found = [op for op in self.ops.values() if op.kind == 'parameter']
    return sorted(found, key=lambda op: int(op.given))


@dataclasses.dataclass(frozen=True)
class Module:
  """A program.

  Attributes:
    computations: by name.
    entry: the computation that is run.
    frames: {stack frame: (file, line, function, its parent)}.
    aliases: {index of a result: number of the parameter whose place it takes}.
  """

  computations: dict[str, Computation]
  entry: Computation
  frames: dict[int, tuple]
  aliases: dict[int, int]

  def source(self, op):
    """file:line of an operation: the innermost that says what it is for."""
    frame, first = op.frame, ''
    while frame in self.frames:
      file, line, function, frame = self.frames[frame]
      if '/t5x_lite/' in file:
        file = file[file.rindex('/t5x_lite/') + 1 :]
        first = first or f'{file}:{line}'
        if file != _SERVES_ALL and function != 'Dense.__call__':
          return f'{file}:{line}'
    return first


def parse(text):
  """The Module of a text.

  Raises:
    ValueError: it is not such a text.
  """
  computations, entry, current, ops, root = {}, None, None, {}, None
  for line in text.splitlines():
    if current is None:
      header = _HEADER.match(line)
      if header:
        current, ops, root = header[2], {}, None
        entry = current if header[1] else entry
    elif _END.match(line):
      computations[current] = Computation(
        current, ops, root or next(reversed(ops.values()))
      )
      current = None
    elif line.startswith('  '):
      op, is_root = _op(line)
      ops[op.name] = op
      root = op if is_root else root
  if entry is None:
    raise ValueError('a text of HLO has no entry')
  first = text[: text.index('\n')]
  return Module(
    computations, computations[entry], _frames(text), _aliases(first)
  )


def _op(line):
  head = _OP.match(line)
  if not head:
    raise ValueError(f'not an operation of HLO: {line[:200]!r}')
  start = head.end()
  if line[start] == '(':
    end = _close(line, start)
    widths = _widths(line[start + 1 : end - 1])
  else:
    widths = ()
    end = _ARRAY.match(line, start).end()
  kind = _KIND.match(line, end)
  after = _close(line, kind.end() - 1)
  given = line[kind.end() : after - 1]
  names = kind[1] not in ('parameter', 'constant')
  operands = _NAME.findall(given) if names else ()
  op = Op(
    head[2],
    kind[1],
    _arrays(line[start:end]),
    widths,
    tuple(operands),
    given,
    line[after:],
  )
  return op, bool(head[1])


def _widths(text):
  """How many arrays each element of a tuple has."""
  widths, at = [], 0
  while at < len(text):
    if text[at] == '(':
      end = _close(text, at)
      widths.append(len(_arrays(text[at:end])))
    elif found := _ARRAY.match(text, at):
      end = found.end()
      widths.append(1)
    else:  # a comma, a space, or the number of what follows, in a comment
      end = text.index('*/', at) + 2 if text.startswith('/*', at) else at + 1
    at = end
  return tuple(widths)


def _aliases(first):
  start = first.find('input_output_alias={')
  if start < 0:
    return {}
  start = first.index('{', start)
  found = _ALIAS.findall(first[start : _close(first, start)])
  return {int(out or 0): int(number) for out, number, _ in found}


def _frames(text):
  """The tables of files, functions, places and frames at its head."""
  tables, table = {}, None
  for line in text.splitlines():
    if line in ('FileNames', 'FunctionNames', 'FileLocations', 'StackFrames'):
      table = tables.setdefault(line, {})
    elif line.startswith(('%', 'ENTRY')):
      break
    elif table is not None and line:
      number, _, rest = line.partition(' ')
      if number.isdigit():
        table[int(number)] = rest
  if 'StackFrames' not in tables:
    return {}

  def fields(line):
    return {k: int(v) for k, v in re.findall(r'(\w+)=(\d+)', line)}

  places = {
    n: (
      tables['FileNames'][x['file_name_id']].strip('"'),
      x['line'],
      tables['FunctionNames'][x['function_name_id']].strip('"'),
    )
    for n, x in (
      (n, fields(line)) for n, line in tables['FileLocations'].items()
    )
  }
  frames = {n: fields(line) for n, line in tables['StackFrames'].items()}
  return {
    # Parents are numbered from 1 for none.
    n: (*places[x['file_location_id']], x.get('parent_frame_id', 1) - 1)
    for n, x in frames.items()
  }
