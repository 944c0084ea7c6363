"""What the pickle of a `torch.save` says, without running it.

A pickle is a program for a stack machine that can name any function and call
it. Here `pickletools` reads it, which executes nothing, and only those
instructions count that write down a dict of tensors. What they build are dicts,
lists, tuples, text, numbers and the tuples below, and nothing grows but by the
bytes read: so no process of its own has to keep it in.
"""

import math
import pickletools
import struct
from typing import NamedTuple
import warnings

import ml_dtypes
import numpy as np

_DICT = 'collections.OrderedDict'
_TENSOR = 'torch._utils._rebuild_tensor_v2'
_STORAGES = {
  'torch.DoubleStorage': np.float64,
  'torch.FloatStorage': np.float32,
  'torch.HalfStorage': np.float16,
  'torch.BFloat16Storage': ml_dtypes.bfloat16,
  'torch.LongStorage': np.int64,
  'torch.IntStorage': np.int32,
  'torch.ShortStorage': np.int16,
  'torch.CharStorage': np.int8,
  'torch.ByteStorage': np.uint8,
  'torch.BoolStorage': np.bool_,
}


class _Global(NamedTuple):
  """A name in the pickle; nothing is looked up by it."""

  name: str


class Storage(NamedTuple):
  """Numbers that tensors share."""

  dtype: np.dtype
  key: str
  count: int


class View(NamedTuple):
  """A tensor: numbers `offset + sum(index * stride)` of a storage."""

  storage: Storage
  offset: int
  shape: tuple
  strides: tuple

  def span(self):
    """Numbers from the first that it reaches to the last."""
    if 0 in self.shape:
      return 0
    return 1 + sum(
      (n - 1) * m for n, m in zip(self.shape, self.strides, strict=True)
    )


class _Refused(ValueError):
  """Why a pickle is no dict of tensors, in words."""


_MARK = object()


def views(data):
  """{name: View} that a pickle writes down.

  Raises:
    ValueError: it says anything else; in words.
  """
  stack, memo = [], {}
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')  # of escapes in what is refused
      for code, argument, _ in pickletools.genops(data):
        _step(code.name, argument, stack, memo)
    [found] = stack
  except _Refused:
    raise
  except (ValueError, LookupError, TypeError, OverflowError, struct.error):
    raise _Refused('a damaged pickle') from None
  if type(found) is not dict:
    raise _Refused(f'a {type(found).__name__} and not a dict')
  for name, view in found.items():
    if type(view) is not View:
      raise _Refused(f'a {type(view).__name__} as {name!r}')
    if not (name and name.isprintable()):
      raise _Refused(f'the name {ascii(name)}')
  return found


def _step(code, argument, stack, memo):
  """Does what one instruction says, if a dict of tensors needs it."""
  match code:
    case 'PROTO' | 'STOP':
      pass
    case 'MARK':
      stack.append(_MARK)
    case 'NONE' | 'BININT' | 'BININT1' | 'BININT2' | 'LONG1' | 'BINUNICODE':
      stack.append(argument)
    case 'NEWTRUE' | 'NEWFALSE':
      stack.append(code == 'NEWTRUE')
    case 'GLOBAL':
      stack.append(_global(argument))
    case 'BINPUT' | 'LONG_BINPUT':
      memo[argument] = stack[-1]
    case 'BINGET' | 'LONG_BINGET':
      stack.append(memo[argument])
    case 'EMPTY_DICT':
      stack.append({})
    case 'EMPTY_LIST':
      stack.append([])
    case 'EMPTY_TUPLE':
      stack.append(())
    case 'TUPLE1' | 'TUPLE2' | 'TUPLE3':
      stack.append(tuple(_pop(stack, int(code[-1]))))
    case 'TUPLE':
      stack.append(tuple(_since_mark(stack)))
    case 'APPEND':
      _extend(_pop(stack, 1), stack[-1])
    case 'APPENDS':
      _extend(_since_mark(stack), stack[-1])
    case 'SETITEM':
      _set(_pop(stack, 2), stack[-1])
    case 'SETITEMS':
      _set(_since_mark(stack), stack[-1])
    case 'BINPERSID':
      stack.append(_persistent(*_pop(stack, 1)))
    case 'REDUCE':
      stack.append(_call(*_pop(stack, 2)))
    case 'BUILD':
      _attributes(*_pop(stack, 1), stack[-1])
    case _:
      raise _Refused(f'the instruction {code} in a pickle')


def _since_mark(stack):
  """Removes and returns what came after the last mark."""
  at = len(stack) - 1
  while stack[at] is not _MARK:  # raises IndexError if there is none
    at -= 1
  found = stack[at + 1 :]
  del stack[at:]
  return found


def _pop(stack, count):
  found = stack[-count:]
  if len(found) < count:
    raise IndexError
  del stack[-count:]
  return found


def _global(argument):
  """`module name`, as pickletools has it, as a name that may be used."""
  name = argument.replace(' ', '.', 1)
  if name not in (_DICT, _TENSOR, *_STORAGES):
    raise _Refused(f'{ascii(name)} in a pickle')
  return _Global(name)


def _set(pairs, target):
  if type(target) is not dict or len(pairs) % 2:
    raise _Refused('items of what is no dict')
  for key, value in zip(pairs[::2], pairs[1::2], strict=True):
    if type(key) is not str:
      raise _Refused(f'a {type(key).__name__} as a name')
    target[key] = value


def _extend(items, target):
  if type(target) is not list:
    raise _Refused('elements of what is no list')
  target.extend(items)


def _persistent(identity):
  """The storage that torch's persistent identity stands for."""
  if type(identity) is not tuple or len(identity) != 5:
    raise _Refused('an object from outside')
  kind, of, key, _, count = identity
  if (
    kind != 'storage'
    or type(of) is not _Global
    or of.name not in _STORAGES
    or type(key) is not str
    or not _is_count(count)
  ):
    raise _Refused('an object from outside')
  return Storage(np.dtype(_STORAGES[of.name]), key, count)


def _call(function, arguments):
  """What a call of one of the two names writes down."""
  if type(function) is not _Global or type(arguments) is not tuple:
    raise _Refused('a call of what is no function')
  if function.name == _DICT and not arguments:
    return {}
  if function.name == _TENSOR and 6 <= len(arguments) <= 7:
    return _view(*arguments[:4])
  raise _Refused(f'a call of {function.name} with {len(arguments)} arguments')


def _view(source, offset, shape, strides):
  if (
    type(source) is not Storage
    or not _is_count(offset)
    or type(shape) is not tuple
    or type(strides) is not tuple
    or len(shape) != len(strides)
    or len(shape) > 64
    or not all(map(_is_count, shape + strides))
  ):
    raise _Refused('a tensor of wrong layout')
  view = View(source, offset, shape, strides)
  # One number seen many times is how a small file would fill the memory.
  most = 2**48 if 0 in shape else source.count
  if (
    offset + view.span() > source.count
    or math.prod(n or 1 for n in shape) > most
  ):
    raise _Refused(f'a tensor {list(shape)} beyond its {source.count} numbers')
  return view


def _is_count(n):
  return type(n) is int and 0 <= n < 2**62


def _attributes(state, target):
  """`_metadata` of a state_dict is an attribute; it tells of no tensor."""
  if type(target) is not dict or type(state) is not dict:
    raise _Refused('an object with attributes')
