"""What each operation of a program costs: arithmetic, memory's bytes.

Matrix products appear as convolutions on TPUs, as dots or calls of cuBLAS on
GPUs; they are found within fusions, too.
"""

import dataclasses
import json
import math
import re

from t5x_lite.planning import hlo

# What moves nothing: names for what is there, or the ends of what was started.
FREE = {
  'parameter',
  'constant',
  'tuple',
  'get-tuple-element',
  'bitcast',
  'while',
  'conditional',
  'call',
  'opt-barrier',
  'optimization-barrier',
  'after-all',
  'send',
  'send-done',
  'recv',
  'recv-done',
  'partition-id',
  'replica-id',
  'add-dependency',
  'copy-done',
  'slice-done',
  'async-done',
  'call-done',
  'async-update',
}
_LABELS = re.compile(r'dim_labels=(\w+)_(\w+)->(\w+)')
_WINDOW = re.compile(r'window=\{([^}]*)\}')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_SPLASH = re.compile(r'splash_mha_(fwd|dkv|dq)')
_SPLASH_PRODUCTS = {'fwd': 2, 'dq': 3, 'dkv': 4}  # of [queries, keys, head]


@dataclasses.dataclass(frozen=True)
class Work:
  """What one run of an operation costs.

  Attributes:
    flops: of matrix products, a multiply-add as two.
    bytes: that HBM gives and takes.
  """

  flops: int
  bytes: int


def target(op):
  """Whom a custom call calls."""
  found = _TARGET.search(op.attributes)
  return found[1] if found else ''


def work(module, computation, op, attended=1.0):
  """The Work of one operation, with all that it fuses, but not of loops.

  Args:
    module: hlo.Module.
    computation: where it stands.
    op: hlo.Op.
    attended: share of all pairs that an attention kernel computes.
  """
  return Work(
    flops(module, computation, op, attended),
    0 if op.kind in FREE else moved(module, computation, op),
  )


def flops(module, computation, op, attended=1.0):
  """Of the matrix products of an operation and of what it fuses."""
  if op.kind == 'convolution':
    return _convolution(computation, op)
  if op.kind == 'dot':
    left = computation.ops[op.operands[0]].array
    summed = [left.dims[i] for i in op.numbers('lhs_contracting_dims')]
    return 2 * op.array.size * math.prod(summed)
  if op.kind == 'custom-call':
    return _custom(computation, op, attended)
  if op.kind == 'fusion':
    inner = module.computations[op.called['calls'][0]]
    return sum(flops(module, inner, x, attended) for x in inner.ops.values())
  return 0


def _convolution(computation, op):
  left, kernel = (computation.ops[name].array for name in op.operands)
  labels = [list(text) for text in _LABELS.search(op.attributes).groups()]
  of_left, of_kernel, of_out = labels
  found = _WINDOW.search(op.attributes)
  window = dict(x.split('=') for x in found[1].split()) if found else {}

  def each(name, default):
    return window[name].split('x') if name in window else [default] * rank

  digits = sorted(x for x in of_out if x.isdigit())
  rank = len(digits)
  pairs = 1
  fields = (
    each('pad', '0_0'),
    each('stride', '1'),
    each('lhs_dilate', '1'),
    each('rhs_dilate', '1'),
  )
  for digit, pad, *steps in zip(digits, *fields):
    stride, spread, apart = map(int, steps)
    size = left.dims[of_left.index(digit)]
    low = int(pad.split('_')[0])
    pairs *= _pairs(
      op.array.dims[of_out.index(digit)],
      kernel.dims[of_kernel.index(digit)],
      size,
      (low, stride, spread, apart),
    )
  rows = op.array.dims[of_out.index('b')] * op.array.dims[of_out.index('f')]
  return 2 * rows * kernel.dims[of_kernel.index('i')] * pairs


def _pairs(outputs, taps, size, steps):
  """(output, tap) whose input is there, and is neither padding nor a hole."""
  low, stride, spread, apart = steps
  last = (size - 1) * spread
  total = 0
  for tap in range(taps):
    # The input at o * stride + tap * apart - low is to lie in 0..last.
    shift = tap * apart - low
    first_out = max(0, -(shift // stride))  # ceil(-shift / stride)
    last_out = min(outputs - 1, (last - shift) // stride)
    if last_out < first_out:
      continue
    if spread == 1:
      total += last_out - first_out + 1
    else:
      total += sum(
        (o * stride + shift) % spread == 0
        for o in range(first_out, last_out + 1)
      )
  return total


def _custom(computation, op, attended):
  name = target(op)
  if name.startswith('__cublas'):
    config = json.loads(
      op.attributes[op.attributes.index('backend_config=') :].partition('=')[2]
    )
    gemm = config.get('gemm_backend_config', config)
    numbers = gemm['dot_dimension_numbers']['lhs_contracting_dimensions']
    left = computation.ops[op.operands[0]].array
    return 2 * op.array.size * math.prod(left.dims[int(i)] for i in numbers)
  if name == 'tpu_custom_call' and op.name.startswith('online-softmax'):
    return _online(computation, op)
  kernel = _SPLASH.match(op.name) if name == 'tpu_custom_call' else None
  if kernel:
    return round(attended * _splash(computation, op, kernel[1]))
  return 0


def _online(computation, op):
  """Of libtpu's own softmax with the values: logits [..., Q, K] come first."""
  logits = computation.ops[op.operands[0]].array
  return 2 * op.array.size * logits.dims[-1]


def _splash(computation, op, name):
  """Of JAX's splash attention, as if no block were skipped.

  Its operands are, after small tables of blocks, queries [B, H, Q, D] and keys
  [B, G, K, D]; without a batch, the same without B.
  """
  arrays = [computation.ops[x].array for x in op.operands]
  q, k = [
    a
    for a in arrays
    if len(a.dims) >= 3
    and a.dtype[:2] != 's3'
    and a.dims[-1] >= 32
    and a.dtype in ('bf16', 'f32', 'f16')
  ][:2]
  return 2 * _SPLASH_PRODUCTS[name] * q.size * k.dims[-2]


def moved(module, computation, op):
  """Bytes of HBM that an operation reads and writes.

  What a fusion slices is read as the slice, what it updates in place is written
  as the update.
  """
  if op.kind in ('dynamic-slice', 'slice', 'gather'):
    return _read(op.arrays) + _read(op.arrays)
  if op.kind == 'dynamic-update-slice':
    return 2 * computation.ops[op.operands[1]].array.bytes
  if op.kind.endswith('-start'):
    # (what is read, what is written, flags)
    return _read(op.arrays)
  operands = [computation.ops[name] for name in op.operands]
  if op.kind != 'fusion':
    return sum(_read(x.arrays) for x in operands) + _read(op.arrays)
  return _fused(module, op, operands)


def _fused(module, op, operands):
  inner = module.computations[op.called['calls'][0]]
  end = target(inner.root)
  if end == 'AsyncCollectiveDone':  # an exchange counts where it starts
    return 0
  if end == 'AsyncCollectiveStart':
    return _read(op.arrays)
  # Others make a piece of one beside their own work, and hand it on.
  carries = 'output_to_operand_aliasing=' in op.attributes
  total = 0
  for x, parameter in zip(operands, inner.parameters, strict=True):
    own = not (carries and _is_exchanged(inner, parameter))
    if own and any(a.space == hlo.HBM for a in x.arrays):
      total += _used(module, inner, parameter)
  for root, array in zip(roots(inner), op.arrays):
    own = not (carries and root.kind in (*hlo.EXCHANGES, 'parameter'))
    if own and array.space == hlo.HBM:
      total += _written(inner, root, array)
  return total


def _is_exchanged(computation, op):
  """Whether nothing but an exchange uses it."""
  users = [x for x in computation.ops.values() if op.name in x.operands]
  return {x.kind for x in users} <= {*hlo.EXCHANGES, 'tuple'}


def moved_of(module, op, operand):
  """Bytes that an operation reads of one of its operands."""
  if op.kind == 'dynamic-slice':
    return op.array.bytes
  if op.kind != 'fusion':
    return sum(a.bytes for a in operand.arrays)
  inner = module.computations[op.called['calls'][0]]
  return sum(
    _used(module, inner, parameter)
    for name, parameter in zip(op.operands, inner.parameters, strict=True)
    if name == operand.name
  )


def _read(arrays):
  return sum(a.bytes for a in arrays if a.space == hlo.HBM)


def roots(computation):
  """What makes each array of a result, through bitcasts."""
  root = computation.root
  names = root.operands if root.kind == 'tuple' else [root.name]
  found = []
  for name in names:
    op = computation.ops[name]
    while op.kind in ('bitcast', 'copy') and op.operands:
      op = computation.ops[op.operands[0]]
    found.append(op)
  return found


def _written(computation, root, array):
  if root.kind == 'dynamic-update-slice':
    return computation.ops[root.operands[1]].array.bytes
  return array.bytes


def _used(module, computation, op):
  """Bytes that are read of an array, if only slices of it are."""
  total = 0
  for user in computation.ops.values():
    if op.name not in user.operands:
      continue
    first = user.operands[0] == op.name
    if user.kind in ('dynamic-slice', 'slice', 'gather') and first:
      total += user.array.bytes
    elif user.kind == 'dynamic-update-slice' and first:
      continue
    elif user.kind in ('bitcast', 'get-tuple-element'):
      total += _used(module, computation, user)
    elif user.kind == 'fusion':
      inner = module.computations[user.called['calls'][0]]
      for name, parameter in zip(user.operands, inner.parameters):
        if name == op.name:
          total += _used(module, inner, parameter)
    else:
      return sum(a.bytes for a in op.arrays)
  return min(total, sum(a.bytes for a in op.arrays))
