import io
import json
import os
import pathlib
import pickle
import pickletools
import random
import shutil
import struct
import zipfile

import ml_dtypes
import numpy as np
import pytest

from t5x_lite import errors
from t5x_lite.interop import files
from t5x_lite.interop import torch_files
from t5x_lite.interop import torch_pickle

GOLDEN = pathlib.Path(__file__).parent / 'golden'
BIN = GOLDEN / 'torch.bin'  # by make_torch_files.py


def assert_golden(found):
  with np.load(GOLDEN / 'torch.npz') as wanted:
    assert found.keys() == set(wanted)
    for name, array in wanted.items():
      read = found[name].read()
      assert read.dtype == found[name].dtype
      assert read.shape == found[name].shape == array.shape
      assert name == f'as_{read.dtype}' or not name.startswith('as_')
      np.testing.assert_array_equal(read.astype(array.dtype), array)


# -- what torch wrote ---------------------------------------------------------


def test_a_state_dict_of_torch_is_read():
  """Of all dtypes, with views, tied and empty tensors, and attributes."""
  found = torch_files.read(BIN)
  assert_golden(found)
  assert found['as_bfloat16'].dtype == ml_dtypes.bfloat16
  base, turned = found['base'].read(), found['turned'].read()
  np.testing.assert_array_equal(base.transpose(2, 0, 1), turned)


def test_a_folder_with_one_is_read(tmp_path):
  shutil.copy(BIN, tmp_path / 'pytorch_model.bin')
  assert_golden(torch_files.read(tmp_path))


def test_a_folder_with_an_index_is_read(tmp_path):
  shutil.copy(BIN, tmp_path / 'one.bin')
  index = tmp_path / 'pytorch_model.bin.index.json'
  names = list(torch_files.read(BIN))
  index.write_text(json.dumps({'weight_map': dict.fromkeys(names, 'one.bin')}))
  assert_golden(torch_files.read(tmp_path))
  index.write_text('{"weight_map": {"base": "../one.bin"}}')
  with pytest.raises(errors.CheckpointError, match='not in its folder'):
    torch_files.read(tmp_path)


def test_a_folder_without_one_is_told(tmp_path):
  with pytest.raises(errors.CheckpointError, match='no file of torch'):
    torch_files.read(tmp_path)


def test_reading_opens_no_tensor(monkeypatch):
  found = torch_files.read(BIN)
  read = []
  monkeypatch.setattr(
    files.File,
    'array',
    lambda self, start, dtype, shape, old=files.File.array: (
      read.append(shape) or old(self, start, dtype, shape)
    ),
  )
  assert found['part'].read().shape == (2, 2)
  assert read == [(31,)]  # from the first number that it reaches to the last


# -- pickles that lie ---------------------------------------------------------


def save(file, data, members=(), compression=zipfile.ZIP_STORED):
  """A zip file as torch's, with any bytes for a pickle."""
  with zipfile.ZipFile(file, 'w', compression) as archive:
    archive.writestr('archive/data.pkl', data)
    for name, content in dict(members).items():
      archive.writestr(name, content)


class Calls:
  """Is pickled as a call."""

  def __init__(self, function, *arguments, **more):
    self.call = function, arguments, *more.values()

  def __reduce__(self):
    return self.call


class Plain:
  """Is pickled as an object with attributes."""

  def __init__(self):
    self.x = 1


def pickled(found, protocol=2):
  return pickle.dumps(found, protocol)


def attack(line):
  """Old pickles: text, of which each letter is an instruction."""
  return b'\x80\x02' + line


TOUCH = 'touch executed'
MEMO_BOMB = (
  b'\x80\x02]q\x00'
  + b''.join(
    b']q' + bytes([n]) + b'(' + (b'h' + bytes([n - 1])) * 200 + b'e'
    for n in range(1, 200)
  )
  + b'.'
)
HOSTILE = {
  'os.system': pickled(Calls(os.system, TOUCH)),
  'os.system inside a dict': pickled({'a': Calls(os.system, TOUCH)}),
  'os.system, protocol 0': pickled(Calls(os.system, TOUCH), 0),
  'os.system, protocol 4': pickled(Calls(os.system, TOUCH), 4),
  'eval': pickled(Calls(eval, f'__import__("os").system("{TOUCH}")')),
  'exec': pickled(Calls(exec, 'open("executed", "w")')),
  'open': pickled(Calls(open, 'executed', 'w')),
  'getattr': pickled(Calls(getattr, 'x', 'upper')),
  'nested calls': pickled(
    Calls(Calls, Calls(os.system, TOUCH), Calls(eval, '1'))
  ),
  'a call that makes a call': pickled(
    Calls(list, (Calls(os.system, TOUCH),)), 2
  ),
  'an object with attributes': pickled(Plain()),
  'state by BUILD of another': pickled(Calls(dict, state={'x': 1})),
  'attributes that are a tuple': attack(b'})b.'),
  'OrderedDict of a list': attack(b'ccollections\nOrderedDict\n(]tR.'),
  'attributes of a tuple': attack(b')}b.'),
  'attributes that are a call': attack(b'}cos\nsystem\nb.'),
  'INST': attack(b'(S"touch executed"\nios\nsystem\n.'),
  'OBJ': attack(b'(cos\nsystem\nS"touch executed"\no.'),
  'EXT1': attack(b'\x82\x01.'),
  'EXT4': attack(b'\x84\x01\0\0\0.'),
  'STACK_GLOBAL': attack(b'X\x02\0\0\0osX\x06\0\0\0system\x93.'),
  'NEWOBJ': attack(b'cbuiltins\nlist\n)\x81.'),
  'GLOBAL': attack(b'cos\nsystem\n.'),
  'GLOBAL of a module of torch': attack(b'ctorch.hub\nload\n.'),
  'GLOBAL by another way': attack(b'ctorch._utils\nos.system\n.'),
  'GLOBAL with spaces': attack(b'ctorch._utils _rebuild_tensor_v2\nx\n.'),
  'OrderedDict of a call': attack(
    b'ccollections\nOrderedDict\n(]cos\nsystem\natR.'
  ),
  'OrderedDict not called': attack(b'ccollections\nOrderedDict\n.'),
  'a call of text': attack(b'X\x01\0\0\0a)R.'),
  'a call with a list': attack(b'ccollections\nOrderedDict\n]R.'),
  'persistent text': attack(b'Pexecuted\n.'),
  'persistent, no tuple': attack(b'X\x01\0\0\0aQ.'),
  'persistent, unknown': attack(
    b'(X\x06\0\0\0moduleX\x01\0\0\0aX\x01\0\0\0bX\x01\0\0\0cK\x01tQ.'
  ),
  'bomb of memo': MEMO_BOMB,
  'bomb of duplicates': attack(b'X\x01\0\0\0a' + b'2' * 10000 + b'.'),
  'deep tuples': attack(b'K\x01' + b'\x85' * 10**5 + b'.'),
  'a name that is a tuple': attack(b'})K\x01s.'),
  'a name that commands a terminal': attack(b'}X\x04\0\0\0\x1b[2JK\x01s.'),
  'half an item': attack(b'}(X\x01\0\0\0au.'),
  'items of a list': attack(b'](X\x01\0\0\0aK\x01u.'),
  'elements of a dict': attack(b'}(K\x01e.'),
  'no stack': attack(b'u.'),
  'no mark': attack(b'K\x01t.'),
  'a mark in a tuple': attack(b'(\x85.'),
  'a mark for a result': attack(b'(.'),
  'two results': attack(b'}}.'),
  'no memo': attack(b'h\x05.'),
  'no end': attack(b'}'),
  'text beyond the end': attack(b'X\xff\xff\xff\x7fa.'),
  'number of 2 GB': attack(b'\x8b\xff\xff\xff\x7f.'),
  'number of a million digits': attack(b'I' + b'1' * 10**6 + b'\n.'),
  'nothing': b'',
  'noise': bytes(random.Random(0).randbytes(1000)),
  'a number': pickled(1),
  'a list': pickled([]),
  'a number by name': pickled({'a': 1}),
  'a dict by name': pickled({'model': {}}),
}


@pytest.mark.parametrize('case', HOSTILE)
def test_a_hostile_pickle_runs_nothing_and_is_refused(
  tmp_path, monkeypatch, case
):
  monkeypatch.chdir(tmp_path)
  save('a.bin', HOSTILE[case])
  with pytest.raises(errors.CheckpointError, match='not a dict of') as e:
    torch_files.read('a.bin')
  assert 'a.bin' in str(e.value)
  assert str(e.value).isprintable()
  assert len(str(e.value)) < 1000
  assert os.listdir() == ['a.bin']


def test_the_attacks_would_work(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for case in ('os.system', 'eval', 'INST', 'OBJ'):
    pickle.loads(HOSTILE[case])
    os.unlink('executed')


@pytest.mark.parametrize(
  'case, told',
  [
    ('os.system', r"'\w+\.system' in a pickle"),
    ('eval', r"'\w+\.eval' in a pickle"),
    ('open', r"'\w+\.open' in a pickle"),
    ('GLOBAL', r"'os\.system' in a pickle"),
    ('GLOBAL of a module of torch', r"'torch\.hub\.load' in a pickle"),
    ('INST', 'the instruction STRING'),
    ('OBJ', r"'os\.system' in a pickle"),
    ('EXT1', 'the instruction EXT1'),
    ('STACK_GLOBAL', 'the instruction STACK_GLOBAL'),
    ('NEWOBJ', r"'builtins\.list' in a pickle"),
  ],
)
def test_a_hostile_pickle_is_refused_by_name(case, told):
  with pytest.raises(ValueError, match=told):
    torch_pickle.views(HOSTILE[case])


@pytest.mark.parametrize(
  'name, told',
  [
    (b'K\1', 'a int as a name'),
    (b')', 'a tuple as a name'),
    (b'X\0\0\0\0', "the name ''"),
    (b'X\4\0\0\0\x1b[2J', r"the name '\\x1b\[2J'"),
  ],
)
def test_a_tensor_has_a_name_that_can_be_printed(name, told):
  with pytest.raises(ValueError, match=told):
    torch_pickle.views(tensor_pickle().replace(b'X\1\0\0\0a', name, 1))


def tensor_pickle(
  storage=('storage', 'c', '0', 'cpu', 4),
  offset=0,
  shape=(2, 2),
  strides=(2, 1),
):
  """A pickle of {'a': a tensor}, instruction by instruction."""

  def put(value):
    match value:
      case 'c':
        return b'ctorch\nFloatStorage\n'
      case str():
        return b'X' + struct.pack('<I', len(value)) + value.encode()
      case bool():
        return b'\x88' if value else b'\x89'
      case float():
        return b'G' + struct.pack('>d', value)
      case int():
        data = pickle.encode_long(value)
        return b'\x8a' + bytes([len(data)]) + data
      case tuple():
        return b'(' + b''.join(map(put, value)) + b't'
    return None

  return (
    b'\x80\x02}X\x01\0\0\0actorch._utils\n_rebuild_tensor_v2\n('
    + put(storage)
    + b'Q'
    + put(offset)
    + put(shape)
    + put(strides)
    + b'\x89ccollections\nOrderedDict\n)RtRs.'
  )


NUMBERS = np.arange(4, dtype=np.float32)
MEMBERS = {'archive/data/0': NUMBERS.tobytes()}


def test_the_pickles_of_the_next_test_are_right_but_for_one_thing(tmp_path):
  save(tmp_path / 'a.bin', tensor_pickle(), MEMBERS)
  found = torch_files.read(tmp_path / 'a.bin')['a'].read()
  np.testing.assert_array_equal(found, NUMBERS.reshape(2, 2))


@pytest.mark.parametrize(
  'wrong',
  [
    {'offset': 1},
    {'offset': -1},
    {'offset': True},
    {'offset': 0.0},
    {'offset': 2**70},
    {'shape': (2, 3)},
    {'shape': (-1, -1)},
    {'shape': (2,)},
    {'shape': 4},
    {'shape': (True, True)},
    {'shape': (2**40, 2**40), 'strides': (0, 0)},  # one number, often
    {'shape': (3, 2), 'strides': (1, 1)},
    {'shape': (0, 2**61), 'strides': (1, 1)},
    {'shape': (1,) * 65, 'strides': (1,) * 65},
    {'strides': (3, 1)},
    {'strides': (-2, 1)},
    {'strides': (2, 2**70)},
    {'strides': (2, 1, 1)},
    {'storage': ('storage', 'c', '1', 'cpu', 4)},
    {'storage': ('storage', 'c', '../0', 'cpu', 4)},
    {'storage': ('storage', 'c', '0', 'cpu', 5)},
    {'storage': ('storage', 'c', '0', 'cpu', -4)},
    {'storage': ('storage', 'c', '0', 'cpu', 2**50)},
    {'storage': ('storage', 'c', 0, 'cpu', 4)},
    {'storage': ('storage', 'x', '0', 'cpu', 4)},
    {'storage': ('module', 'c', '0', 'cpu', 4)},
    {'storage': ('storage', 'c', '0', 'cpu')},
  ],
  ids=str,
)
def test_a_tensor_that_its_storage_does_not_hold_is_refused(tmp_path, wrong):
  save(tmp_path / 'a.bin', tensor_pickle(**wrong), MEMBERS)
  with pytest.raises(errors.CheckpointError, match='not a dict of'):
    torch_files.read(tmp_path / 'a.bin')


def test_mutated_pickles_are_refused_or_hold_plain_tensors():
  with zipfile.ZipFile(BIN) as archive:
    data = archive.read('torch/data.pkl')
  draw, refused = random.Random(0), 0
  for _ in range(3000):
    spoilt = bytearray(data)
    for _ in range(draw.choice([1, 2, 5])):
      at = draw.randrange(len(spoilt))
      match draw.randrange(3):
        case 0:
          spoilt[at] = draw.randrange(256)
        case 1:
          spoilt[at : at + draw.randrange(1, 9)] = b''
        case 2:
          spoilt[at:at] = ord(draw.choice(pickletools.opcodes).code), 1
    try:
      found = torch_pickle.views(bytes(spoilt))
    except ValueError:
      refused += 1
      continue
    for view in found.values():
      assert type(view) is torch_pickle.View
      assert view.offset + view.span() <= view.storage.count
  assert 1500 < refused < 3000


# -- zip files that lie -------------------------------------------------------


def entry(name='archive/data/0', **fields):
  found = zipfile.ZipInfo(name)
  for key, value in fields.items():
    setattr(found, key, value)
  return found


@pytest.mark.parametrize(
  'name',
  ['../x', '/x', 'archive/../x', 'archive//x', 'archive/\x1b[2J', 'a\\b', 'x/'],
)
def test_a_zip_file_names_what_is_in_it_alone(tmp_path, name):
  save(tmp_path / 'a.bin', tensor_pickle(), MEMBERS | {name: b''})
  with pytest.raises(errors.CheckpointError, match='in the zip file'):
    torch_files.read(tmp_path / 'a.bin')


def test_a_compressed_zip_file_is_refused_unpacked(tmp_path):
  bomb = {'archive/data/0': bytes(10**8)}
  save(tmp_path / 'a.bin', tensor_pickle(), bomb, zipfile.ZIP_DEFLATED)
  with pytest.raises(errors.CheckpointError, match='compressed'):
    torch_files.read(tmp_path / 'a.bin')


def spoil(file, find, replace, last=True):
  """Replaces bytes of a file, where they are found last or first."""
  data = file.read_bytes()
  at = data.rindex(find) if last else data.index(find)
  file.write_bytes(data[:at] + replace + data[at + len(find) :])


def test_a_name_twice_in_a_zip_file_is_refused(tmp_path):
  save(tmp_path / 'a.bin', tensor_pickle(), MEMBERS | {'archive/data/1': b''})
  spoil(tmp_path / 'a.bin', b'archive/data/1', b'archive/data/0')
  with pytest.raises(errors.CheckpointError, match='in the zip file'):
    torch_files.read(tmp_path / 'a.bin')


def central(file, name):
  """Where the list at the end of a zip file tells of an entry."""
  return file.read_bytes().rindex(name) - 46


@pytest.mark.parametrize(
  'at, form, value, told',
  [
    (8, '<H', 1, 'encrypted'),
    (8, '<H', 0x2000, 'encrypted'),
    (10, '<H', 8, 'compressed'),
    (10, '<H', 99, 'compressed'),
    (20, '<L', 17, 'compressed'),
    (24, '<L', 17, 'compressed'),
    (42, '<L', 0, 'over others'),
    (42, '<L', 2**31, 'beyond the end'),
    (42, '<L', 31, 'where the zip file has it'),
  ],
)
def test_a_zip_file_whose_list_lies_is_refused(tmp_path, at, form, value, told):
  file = tmp_path / 'a.bin'
  save(file, tensor_pickle(), MEMBERS)
  data = bytearray(file.read_bytes())
  struct.pack_into(form, data, central(file, b'archive/data/0') + at, value)
  file.write_bytes(data)
  with pytest.raises(errors.CheckpointError, match=told):
    torch_files.read(file)


def test_sizes_are_bounded_by_the_file(tmp_path):
  file = tmp_path / 'a.bin'
  save(file, tensor_pickle(), MEMBERS)
  data = bytearray(file.read_bytes())
  at = central(file, b'archive/data/0')
  struct.pack_into('<LL', data, at + 20, 2**31, 2**31)
  file.write_bytes(data)
  with pytest.raises(errors.CheckpointError, match='over the end'):
    torch_files.read(file)


@pytest.mark.parametrize(
  'data',
  [b'', b'PK', b'\x80\x02' + b'x' * 100, b'PK\5\6' + bytes(18), b'x' * 100],
)
def test_what_is_no_zip_file_is_refused(tmp_path, data):
  """Nor are those of torch before 1.6, which are nothing but pickles."""
  (tmp_path / 'a.bin').write_bytes(data)
  with pytest.raises(errors.CheckpointError, match='not a dict of'):
    torch_files.read(tmp_path / 'a.bin')


def test_a_list_larger_than_memory_is_refused_unread(tmp_path):
  file = tmp_path / 'a.bin'
  with file.open('wb') as f:
    f.truncate(3 * 10**9)  # takes no room
    f.seek(0, io.SEEK_END)
    size = 2 * 10**9
    f.write(struct.pack('<4s4H2LH', b'PK\5\6', 0, 0, 1, 1, size, 10**9, 0))
  with pytest.raises(errors.CheckpointError, match='a list of 2000000000'):
    torch_files.read(file)


@pytest.mark.parametrize(
  'members, told',
  [
    ({'archive/byteorder': b'big'}, 'order of bytes'),
    ({'other/data.pkl': b''}, 'no single data.pkl'),
  ],
)
def test_other_archives_are_refused(tmp_path, members, told):
  save(tmp_path / 'a.bin', tensor_pickle(), MEMBERS | members)
  with pytest.raises(errors.CheckpointError, match=told):
    torch_files.read(tmp_path / 'a.bin')


def test_truncated_files_are_refused(tmp_path):
  data = BIN.read_bytes()
  file = tmp_path / 'a.bin'
  for size in range(0, len(data), 37):
    file.write_bytes(data[:size])
    with pytest.raises(errors.CheckpointError):
      torch_files.read(file)


def test_a_truth_value_is_0_or_1(tmp_path):
  data = tensor_pickle().replace(b'FloatStorage', b'BoolStorage')
  for numbers in (b'\0\1\1\0', b'\0\2\1\0'):
    save(tmp_path / 'a.bin', data, {'archive/data/0': numbers})
    found = torch_files.read(tmp_path / 'a.bin')['a']
    if 2 not in numbers:
      assert found.read().tolist() == [[False, True], [True, False]]
  with pytest.raises(errors.CheckpointError, match='truth values'):
    found.read()


def test_a_pickle_larger_than_any_model_needs_is_refused(tmp_path):
  save(tmp_path / 'a.bin', bytes((1 << 25) + 1))
  with pytest.raises(errors.CheckpointError, match='pickle of 33554433 bytes'):
    torch_files.read(tmp_path / 'a.bin')
