import dataclasses
import itertools
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import textwrap
import tracemalloc

import numpy as np
import pytest
import safetensors as library
from safetensors import numpy as library_numpy

from t5x_lite import errors
from t5x_lite.interop import digests
from t5x_lite.interop import files
from t5x_lite.interop import publishing
from t5x_lite.interop import safetensors
from t5x_lite.interop import tensors

DTYPES = [np.dtype(dtype) for dtype in safetensors.DTYPES.values()]
FLOAT32 = dict(dtype='F32', shape=[1], data_offsets=[0, 4])


def samples(dtypes=DTYPES):
  """Arrays of every dtype: two axes, none, and no numbers at all."""
  bits = np.random.default_rng(0)
  found = {}
  for dtype in dtypes:
    array = (2 * bits.random((3, 3))).astype(dtype)
    found |= {
      f'{dtype}/matrix': array,
      f'{dtype}/scalar': np.asarray(array[1, 1]),
      f'{dtype}/empty': array[:0],
    }
  return found


def held(arrays):
  return {name: tensors.held(array) for name, array in arrays.items()}


def assert_same(found, wanted):
  """Tensors give just these arrays, bit for bit."""
  assert found.keys() == wanted.keys()
  for name, array in wanted.items():
    read = found[name].read()
    assert read.dtype == found[name].dtype == array.dtype, name
    assert read.shape == found[name].shape == array.shape, name
    assert read.tobytes() == array.tobytes(), name


def container(header, data=b''):
  """A file with this header: bytes, text, or what is written as JSON."""
  if not isinstance(header, (bytes, str)):
    header = json.dumps(header)
  text = header if isinstance(header, bytes) else header.encode()
  return len(text).to_bytes(8, 'little') + text + data


@dataclasses.dataclass
class Memory:
  """What files.File does, of bytes in memory."""

  data: bytes
  where: str = 'memory'

  @property
  def size(self):
    return len(self.data)

  def read(self, start, count):
    return self.data[start : start + count]

  def array(self, start, dtype, shape):
    size = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer(self.data[start : start + size], dtype).reshape(shape)


# -- written and read ---------------------------------------------------------


@pytest.mark.parametrize('shard_size', [10**9, 200])
def test_every_dtype_and_shape_comes_back(tmp_path, shard_size):
  wanted = samples()
  safetensors.write(tmp_path, held(wanted), shard_size)
  assert_same(safetensors.read(tmp_path), wanted)
  names = {file.name for file in tmp_path.iterdir()}
  assert ('model.safetensors' in names) == (shard_size > 200)


@pytest.mark.parametrize('shard_size', [10**9, 200])
def test_the_library_reads_the_same(tmp_path, shard_size):
  wanted = samples()
  safetensors.write(tmp_path, held(wanted), shard_size)
  found = {}
  for file in tmp_path.glob('*.safetensors'):
    for name, entry in library.deserialize(file.read_bytes()):
      found[name] = entry
  assert found.keys() == wanted.keys()
  for name, array in wanted.items():
    assert found[name]['shape'] == list(array.shape)
    assert safetensors.DTYPES[found[name]['dtype']] == array.dtype
    assert found[name]['data'] == array.tobytes()


def test_what_the_library_writes_is_read_and_written_byte_for_byte(tmp_path):
  wanted = samples()
  file = tmp_path / 'theirs.safetensors'
  library_numpy.save_file(wanted, file, {'format': 'pt'})
  assert_same(dict(sorted(safetensors.read(file).items())), wanted)
  for dtype in DTYPES:  # they sort by dtype, and then by name
    few = dict(sorted(samples([dtype]).items()))
    folder = tmp_path / str(dtype)
    folder.mkdir()
    safetensors.write(folder, held(few))
    ours = (folder / 'model.safetensors').read_bytes()
    assert ours == library_numpy.save(few, {'format': 'pt'})


def test_headers_and_tensors_are_aligned(tmp_path):
  safetensors.write(tmp_path, held({'a': np.zeros(1, np.int8)} | samples()))
  data = (tmp_path / 'model.safetensors').read_bytes()
  count = int.from_bytes(data[:8], 'little')
  assert count % 8 == 0
  header = json.loads(data[8 : 8 + count])
  assert header.pop('__metadata__') == {'format': 'pt'}
  for entry in header.values():
    width = np.dtype(safetensors.DTYPES[entry['dtype']]).itemsize
    assert entry['data_offsets'][0] % width == 0


def test_shards_and_their_index_are_as_hugging_face_has_them(tmp_path):
  arrays = {f'layer.{n}': np.full(100, n, np.float32) for n in range(5)}
  arrays['large'] = np.zeros(500, np.float32)  # has a file to itself
  safetensors.write(tmp_path, held(arrays), 800, {'more': 'text'})
  index = json.loads((tmp_path / 'model.safetensors.index.json').read_text())
  assert index['metadata'] == {'total_size': 4000}
  assert list(index['weight_map'].items()) == [
    ('layer.0', 'model-00001-of-00004.safetensors'),
    ('layer.1', 'model-00001-of-00004.safetensors'),
    ('layer.2', 'model-00002-of-00004.safetensors'),
    ('layer.3', 'model-00002-of-00004.safetensors'),
    ('layer.4', 'model-00003-of-00004.safetensors'),
    ('large', 'model-00004-of-00004.safetensors'),
  ]
  assert sorted(file.name for file in tmp_path.iterdir()) == [
    'digests.json',
    *sorted(set(index['weight_map'].values())),
    'model.safetensors.index.json',
  ]
  for file in tmp_path.glob('*.safetensors'):
    with library.safe_open(file, 'np') as f:
      assert f.metadata() == {'format': 'pt', 'more': 'text'}


def test_one_tensor_larger_than_a_file_may_be_is_in_one(tmp_path):
  safetensors.write(tmp_path, held({'large': np.zeros(500)}), 1000)
  names = sorted(file.name for file in tmp_path.iterdir())
  assert names == ['digests.json', 'model.safetensors']


@pytest.mark.parametrize('piece', [1, 1000, 1 << 26])
def test_other_layouts_are_written_in_c_order(tmp_path, monkeypatch, piece):
  monkeypatch.setattr(safetensors, '_PIECE', piece)
  array = np.arange(600.0).reshape(10, 20, 3)
  wanted = {
    'turned': array.T,
    'strided': array[::-2, :, 1],
    'fortran': np.asfortranarray(array[0]),
  }
  safetensors.write(tmp_path, held(wanted))
  assert_same(safetensors.read(tmp_path), wanted)


def test_other_layouts_are_not_copied_whole(tmp_path, monkeypatch):
  monkeypatch.setattr(safetensors, '_PIECE', 1 << 16)
  wanted = held({'turned': np.ones((1000, 1000)).T})
  tracemalloc.start()
  safetensors.write(tmp_path, wanted)
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert peak < 10**6  # of 8


def test_one_tensor_at_a_time_is_read_and_held(tmp_path):
  alive, log = set(), []

  class Counted(np.ndarray):
    def __del__(self):
      alive.discard(id(self))

  def make(n):
    array = np.full((2, 3), n, np.float32).view(Counted)
    alive.add(id(array))
    log.append((n, len(alive)))
    return array

  lazy = {
    str(n): tensors.Tensor(np.dtype(np.float32), (2, 3), lambda n=n: make(n))
    for n in range(9)
  }
  safetensors.write(tmp_path, lazy, 50)
  assert [n for n, _ in log] == list(range(9))  # once each, in order
  assert max(count for _, count in log) == 1


def test_reading_opens_no_more_than_headers(tmp_path, monkeypatch):
  arrays = {str(n): np.full(1000, n, np.float32) for n in range(10)}
  safetensors.write(tmp_path, held(arrays))
  (tmp_path / 'digests.json').unlink()
  read = []
  monkeypatch.setattr(
    files.File,
    'array',
    lambda self, start, dtype, shape, old=files.File.array: (
      read.append(np.dtype(dtype).itemsize * int(np.prod(shape)))
      or old(self, start, dtype, shape)
    ),
  )
  found = safetensors.read(tmp_path)
  assert sum(read) < 1000
  read.clear()
  assert found['7'].read()[0] == 7
  assert read == [4000]


@pytest.mark.parametrize('name', ['', '__metadata__', 'a\x1b[31m', 'a\n'])
def test_names_that_could_not_be_read_are_not_written(tmp_path, name):
  with pytest.raises(errors.CheckpointError, match='no name of a tensor'):
    safetensors.write(tmp_path, held({name: np.zeros(1)}))
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('dtype', ['complex128', '>f4', 'U3', 'float128'])
def test_types_without_a_name_are_not_written(tmp_path, dtype):
  with pytest.raises(errors.CheckpointError, match='has no name for the type'):
    safetensors.write(tmp_path, held({'a': np.zeros(1, dtype)}))


@pytest.mark.parametrize('array', [np.zeros(3), np.zeros(2, np.float32)])
def test_a_tensor_that_is_another_than_it_said_is_refused(tmp_path, array):
  wrong = tensors.Tensor(np.dtype(np.float32), (3,), lambda: array)
  with pytest.raises(errors.CheckpointError, match='came as another .* at a;'):
    safetensors.write(tmp_path, {'a': wrong})
  assert not list(tmp_path.iterdir())


def test_no_room_is_told_and_leaves_nothing(tmp_path):
  """In a process of its own, whose files may not grow beyond 4 KB."""
  code = f"""
    import resource, signal, numpy as np
    from t5x_lite import errors
    from t5x_lite.interop import safetensors, tensors
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    try:
      held = tensors.held(np.zeros(9999))
      safetensors.write({str(tmp_path)!r}, {{'a': held}})
    except errors.StorageError as e:
      print(e)
  """
  told = subprocess.check_output(
    [sys.executable, '-c', textwrap.dedent(code)], text=True
  )
  assert 'cannot write' in told
  assert 'File too large' in told
  assert not list(tmp_path.iterdir())


# -- files that lie -----------------------------------------------------------

HUGE = [2**40, 2**40]
HOSTILE = {
  'empty': b'',
  'seven bytes': b'\0' * 7,
  'header beyond the file': (100).to_bytes(8, 'little') + b'{}',
  'header of 2^63 bytes': (2**63).to_bytes(8, 'little') + b'{}',
  'header of -1 bytes': b'\xff' * 8 + b'{}',
  'no header': container(''),
  'no JSON': container('{"a":'),
  'more than JSON': container('{} {}'),
  'JSON, but a list': container([1, 2]),
  'JSON, but text': container('"abc"'),
  'spaces before': container('  {}'),
  'no UTF-8': container(b'{"\xff": 1}'),
  'UTF-16': container('{}'.encode('utf-16')),
  'mark of byte order': container(b'\xef\xbb\xbf{}'),
  'half a surrogate': container(
    b'{"\\ud800":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b'1234'
  ),
  'not a number': container('{"a": NaN}'),
  'a million brackets': container('{"a":' + '[' * 10**6),
  'a number of a million digits': container('{"a":' + '1' * 10**6 + '}'),
  'a key twice': container(
    json.dumps({'a': FLOAT32, 'b': FLOAT32}).replace('b', 'a'), b'1234'
  ),
  'a field twice': container(
    '{"a":{"dtype":"F32","dtype":"I32","shape":[1],"data_offsets":[0,4]}}',
    b'1234',
  ),
  'metadata of numbers': container({'__metadata__': {'a': 1}}),
  'metadata of no names': container({'__metadata__': ['a']}),
  'no name': container({'': FLOAT32}, b'1234'),
  'a name that commands a terminal': container({'\x1b[2J': FLOAT32}, b'1234'),
  'entry is a list': container({'a': [1]}),
  'entry without shape': container({'a': {'dtype': 'F32'}}),
  'entry with more': container({'a': FLOAT32 | {'b': 1}}, b'1234'),
  'dtype unknown': container({'a': FLOAT32 | {'dtype': 'F4'}}, b'1234'),
  'dtype is a list': container({'a': FLOAT32 | {'dtype': ['F32']}}, b'1234'),
  'shape is a number': container({'a': FLOAT32 | {'shape': 1}}, b'1234'),
  'shape of -1': container({'a': FLOAT32 | {'shape': [-1]}}, b'1234'),
  'shape of -1 x -1': container({'a': FLOAT32 | {'shape': [-1, -1]}}, b'1234'),
  'shape of -0': container(
    '{"a":{"dtype":"F32","shape":[-0],"data_offsets":[0,0]}}'
  ),
  'shape of 1.0': container({'a': FLOAT32 | {'shape': [1.0]}}, b'1234'),
  'shape of true': container({'a': FLOAT32 | {'shape': [True]}}, b'1234'),
  'shape of text': container({'a': FLOAT32 | {'shape': ['1']}}, b'1234'),
  'shape of 65 axes': container({'a': FLOAT32 | {'shape': [1] * 65}}, b'1234'),
  'shape of 2^80': container({'a': FLOAT32 | {'shape': HUGE}}, b'1234'),
  'shape of 0 x 2^80': container(
    {'a': FLOAT32 | {'shape': [0, *HUGE], 'data_offsets': [0, 0]}}
  ),
  'shape of 2^64': container({'a': FLOAT32 | {'shape': [2**64]}}, b'1234'),
  'size too small': container({'a': FLOAT32 | {'shape': [2]}}, b'1234'),
  'size too large': container({'a': FLOAT32 | {'shape': []}}, b'12345678'),
  'offsets negative': container(
    {'a': FLOAT32 | {'data_offsets': [-4, 0]}}, b'1234'
  ),
  'offsets turned': container(
    {'a': FLOAT32 | {'data_offsets': [4, 0]}}, b'1234'
  ),
  'offsets of three': container(
    {'a': FLOAT32 | {'data_offsets': [0, 2, 4]}}, b'1234'
  ),
  'offsets of 0.0': container(
    {'a': FLOAT32 | {'data_offsets': [0.0, 4]}}, b'1234'
  ),
  'offsets beyond the file': container({'a': FLOAT32}, b'123'),
  'bytes before the first': container(
    {'a': FLOAT32 | {'data_offsets': [1, 5]}}, b'12345'
  ),
  'bytes after the last': container({'a': FLOAT32}, b'12345'),
  'bytes between two': container(
    {'a': FLOAT32, 'b': FLOAT32 | {'data_offsets': [5, 9]}}, b'123456789'
  ),
  'two at one place': container({'a': FLOAT32, 'b': FLOAT32}, b'1234'),
  'one over another': container(
    {'a': FLOAT32, 'b': FLOAT32 | {'data_offsets': [2, 6]}}, b'123456'
  ),
}


@pytest.mark.parametrize('case', HOSTILE)
def test_a_hostile_file_is_refused(tmp_path, case):
  file = tmp_path / 'model.safetensors'
  file.write_bytes(HOSTILE[case])
  for path in (file, tmp_path):
    with pytest.raises(errors.CheckpointError) as e:
      safetensors.read(path)
    assert str(file) in str(e.value)
    assert str(e.value).isprintable()
    assert len(str(e.value)) < 1000


def test_a_header_beyond_the_limit_is_refused_unread(tmp_path):
  file = tmp_path / 'a.safetensors'
  with file.open('wb') as f:
    f.write((100_000_001).to_bytes(8, 'little'))
    f.truncate(200_000_000)  # takes no room
  with pytest.raises(errors.CheckpointError, match='at most 100000000'):
    safetensors.read(file)


def test_a_truth_value_is_0_or_1(tmp_path):
  file = tmp_path / 'a.safetensors'
  entry = dict(dtype='BOOL', shape=[2], data_offsets=[0, 2])
  file.write_bytes(container({'a': entry}, b'\1\2'))
  with pytest.raises(errors.CheckpointError, match='a byte above 1'):
    safetensors.read(file)['a'].read()


@pytest.mark.parametrize('size', [0, 100, 5000])
def test_a_file_that_changes_meanwhile_is_told(tmp_path, size):
  safetensors.write(tmp_path, held({'a': np.ones(999, np.float32)}))
  found = safetensors.read(tmp_path)
  os.truncate(tmp_path / 'model.safetensors', size)
  with pytest.raises(errors.CheckpointError, match='changed while it was read'):
    found['a'].read()


@pytest.mark.parametrize(
  'seeds',
  [
    pytest.param(range(1), id='6,000'),
    pytest.param(range(1, 167), id='1,000,000', marks=pytest.mark.slow),
  ],
)
def test_mutated_headers_are_refused_or_read_as_the_library_does(seeds):
  for seed in seeds:
    mutate_headers(random.Random(seed))


def mutate_headers(draw):
  arrays = samples([np.dtype(x) for x in ('int8', 'bfloat16', 'float32')])
  base = library_numpy.save(arrays, {'format': 'pt'})
  count = int.from_bytes(base[:8], 'little')
  header, data = base[8 : 8 + count], base[8 + count :]
  marks = [b'0', b'9', b'-', b'.', b'[', b']', b'{', b'}', b'"', b',', b':']
  refused = 0
  for n in range(6000):
    text = bytearray(header)
    for _ in range(draw.choice([1, 1, 2, 5])):
      at = draw.randrange(len(text))
      match draw.randrange(4):
        case 0:
          text[at] = draw.randrange(256)
        case 1:
          text[at : at + draw.randrange(1, 9)] = b''
        case 2:
          text[at:at] = draw.choice(marks)
        case 3:  # a digit by another
          digits = [i for i, c in enumerate(text) if chr(c).isdigit()]
          text[draw.choice(digits)] = ord(draw.choice('0123456789'))
    whole = container(bytes(text), data)
    if n % 10 == 0:
      whole = base[: draw.randrange(len(base))]
    try:
      found = safetensors.read_file(Memory(whole))
      read = {name: tensor.read() for name, tensor in found.items()}
    except errors.CheckpointError:
      refused += 1
      continue
    theirs = dict(library.deserialize(whole))
    assert theirs.keys() == read.keys()
    for name, array in read.items():
      assert theirs[name]['data'] == array.tobytes()
      assert theirs[name]['shape'] == list(array.shape)
  assert 3000 < refused < 6000  # renamed ones may be read


# -- folders that lie ---------------------------------------------------------


@pytest.fixture
def sharded(tmp_path):
  """A folder of two shards, `a` in the first and `b` in the second."""
  folder = tmp_path / 'model'
  folder.mkdir()
  arrays = {name: np.full(100, ord(name), np.float32) for name in 'ab'}
  safetensors.write(folder, held(arrays), 400)
  (folder / 'digests.json').unlink()
  return folder


ONE, TWO = (f'model-0000{n}-of-00002.safetensors' for n in (1, 2))


def reindex(folder, weight_map):
  (folder / 'model.safetensors.index.json').write_text(
    json.dumps({'metadata': {}, 'weight_map': weight_map})
  )


@pytest.mark.parametrize(
  'name',
  [
    '../outside.safetensors',
    '/etc/passwd',
    'x/../../outside.safetensors',
    './' + ONE,
    '',
    '.',
    '..',
    'x//y',
    'x\\y',
    'x\ny',
    'x\0y',
    'gs://bucket/x.safetensors',
  ],
)
def test_an_index_names_files_of_its_folder_alone(sharded, name):
  (sharded.parent / 'outside.safetensors').write_bytes(
    (sharded / TWO).read_bytes()
  )
  reindex(sharded, {'a': ONE, 'b': name})
  with pytest.raises(errors.CheckpointError, match='not in its folder'):
    safetensors.read(sharded)


def test_a_file_of_an_index_that_is_missing_is_told(sharded):
  (sharded / TWO).unlink()
  with pytest.raises(errors.CheckpointError, match=f'{TWO}; got No such file'):
    safetensors.read(sharded)


@pytest.mark.parametrize(
  'index',
  [
    b'',
    b'[]',
    b'{}',
    b'{"weight_map": []}',
    b'{"weight_map": {"a": 1}}',
    b'{"weight_map": {"a": "x", "a": "y"}}',
    b'\xff',
  ],
)
def test_an_index_of_another_form_is_refused(sharded, index):
  (sharded / 'model.safetensors.index.json').write_bytes(index)
  with pytest.raises(errors.CheckpointError, match=r'index\.json'):
    safetensors.read(sharded)


@pytest.mark.parametrize(
  'weight_map, told',
  [
    ({'a': ONE, 'b': TWO, 'c': TWO}, "is not in its file .* 'c'"),
    ({'a': ONE, 'b': ONE}, "is not in its file .* 'b'"),
    ({'a': ONE, 'c': TWO}, 'is not in its file'),
    ({'a': TWO, 'b': TWO}, "is not in its file .* 'a'"),
  ],
)
def test_an_index_and_its_files_agree(sharded, weight_map, told):
  reindex(sharded, weight_map)
  with pytest.raises(errors.CheckpointError, match=told):
    safetensors.read(sharded)


def test_a_tensor_in_two_shards_or_outside_the_index_is_refused(sharded):
  both = {name: np.zeros(3, np.float32) for name in 'ab'}
  library_numpy.save_file(both, sharded / ONE)
  for weight_map in ({'a': ONE, 'b': TWO}, {'a': ONE}):
    reindex(sharded, weight_map)
    with pytest.raises(errors.CheckpointError, match="not in the index .* 'b'"):
      safetensors.read(sharded)


def test_a_link_out_of_the_folder_is_not_followed(sharded):
  outside = sharded.parent / 'outside.safetensors'
  (sharded / TWO).rename(outside)
  (sharded / TWO).symlink_to(outside)
  with pytest.raises(errors.CheckpointError, match='a link out of its folder'):
    safetensors.read(sharded)
  (sharded / TWO).unlink()
  outside.rename(sharded / 'inside')
  (sharded / TWO).symlink_to('inside')
  assert safetensors.read(sharded)['b'].read()[0] == ord('b')


def test_a_link_that_the_user_names_is_followed(sharded, tmp_path):
  (tmp_path / 'folder').symlink_to(sharded)
  (tmp_path / 'file').symlink_to(sharded / ONE)
  assert safetensors.read(tmp_path / 'folder').keys() == {'a', 'b'}
  assert safetensors.read(tmp_path / 'file').keys() == {'a'}


def test_the_cache_of_hugging_face_is_read(sharded, tmp_path):
  """Its files are links to those of `blobs`, two folders further up."""
  snapshot = tmp_path / 'models--x' / 'snapshots' / '0123'
  blobs = tmp_path / 'models--x' / 'blobs'
  snapshot.mkdir(parents=True)
  blobs.mkdir()
  for n, file in enumerate(sorted(sharded.iterdir())):
    file.rename(blobs / f'{n}')
    (snapshot / file.name).symlink_to(f'../../blobs/{n}')
  assert safetensors.read(snapshot).keys() == {'a', 'b'}
  shutil.copytree(snapshot, tmp_path / 'models--x/other/0123', symlinks=True)
  with pytest.raises(errors.CheckpointError, match='a link out of its folder'):
    safetensors.read(tmp_path / 'models--x/other/0123')
  (tmp_path / 'blobs').mkdir()  # of another model
  (blobs / '1').rename(tmp_path / 'blobs' / '1')
  (snapshot / TWO).unlink()
  (snapshot / TWO).symlink_to('../../../blobs/1')
  with pytest.raises(errors.CheckpointError, match='a link out of its folder'):
    safetensors.read(snapshot)


@pytest.mark.parametrize('name', [ONE, 'model.safetensors.index.json'])
@pytest.mark.parametrize('kind', ['pipe', 'device', 'folder', 'loop'])
def test_what_is_no_file_is_refused_at_once(sharded, name, kind):
  file = sharded / name
  file.unlink()
  told = 'not a file'
  match kind:
    case 'pipe':
      os.mkfifo(file)
    case 'device':
      file.symlink_to('/dev/zero')
      told = 'a link out of its folder'
    case 'folder':
      file.mkdir()
    case 'loop':
      file.symlink_to(name)
      told = 'cannot read file|no safetensors'
  with pytest.raises(errors.CheckpointError, match=told):
    safetensors.read(sharded)


@pytest.mark.parametrize(
  'path, told',
  [
    ('/dev/zero', 'not a file at /dev/zero; got a device'),
    ('/dev/null', 'not a file at /dev/null; got a device'),
    ('/nowhere', 'cannot read file at /nowhere; got No such file'),
    ('/dev', 'no safetensors at /dev;'),
  ],
)
def test_a_user_who_names_no_file_is_told(path, told):
  with pytest.raises(errors.CheckpointError, match=told):
    safetensors.read(path)


def test_a_folder_without_weights_is_told(tmp_path):
  with pytest.raises(errors.CheckpointError, match='no safetensors'):
    safetensors.read(tmp_path)


# -- digests ------------------------------------------------------------------


def test_digests_find_every_flipped_bit(tmp_path):
  safetensors.write(tmp_path, held(samples()), 300)
  (tmp_path / 'config.json').write_text('{}')
  digests.write_rest(tmp_path)
  listed = json.loads((tmp_path / 'digests.json').read_text())['files']
  there = sorted(file.name for file in tmp_path.iterdir())
  assert sorted([*listed, 'digests.json']) == there
  digests.check(tmp_path)
  draw = random.Random(0)
  for name, _ in itertools.product(listed, range(3)):
    file = tmp_path / name
    data = file.read_bytes()
    bit = draw.randrange(8 * len(data))
    spoilt = bytearray(data)
    spoilt[bit // 8] ^= 1 << bit % 8
    for wrong in (bytes(spoilt), data[:-1], data + b'\0', b''):
      file.write_bytes(wrong)
      with pytest.raises(errors.CheckpointError, match=f'{name};'):
        digests.check(tmp_path)
    file.write_bytes(data)
  (tmp_path / name).unlink()
  with pytest.raises(errors.CheckpointError, match=f'{name};'):
    digests.check(tmp_path)


@pytest.mark.parametrize(
  'text',
  [
    '{"files": {"../outside": {"sha256": "", "size": 1}}}',
    '{"files": {"/etc/passwd": {"sha256": "", "size": 1}}}',
    '{"files": {"a": {"sha256": 1, "size": 1}}}',
    '{"files": {"a": {"sha256": "", "size": "1"}}}',
    '{"files": []}',
    '[]',
    '',
  ],
)
def test_a_list_of_digests_that_lies_is_refused(tmp_path, text):
  safetensors.write(tmp_path, held({'a': np.zeros(1)}))
  (tmp_path / 'digests.json').write_text(text)
  with pytest.raises(
    errors.CheckpointError,
    match=r'not a list of digests|not in its folder|not a JSON object',
  ):
    digests.check(tmp_path)


# -- published ----------------------------------------------------------------


def test_a_folder_appears_whole(tmp_path):
  target = tmp_path / 'new' / 'export'
  with publishing.publish(target) as scratch:
    (scratch / 'config.json').write_text('{}')
    (scratch / 'more').mkdir()
    (scratch / 'more' / 'file').write_text('x')
    assert not target.exists()
  assert (target / 'more' / 'file').read_text() == 'x'
  assert os.listdir(tmp_path / 'new') == ['export']


def test_a_block_that_fails_leaves_nothing(tmp_path):
  with (
    pytest.raises(ZeroDivisionError),
    publishing.publish(tmp_path / 'export') as scratch,
  ):
    (scratch / 'config.json').write_text('{}')
    1 / 0  # noqa: B018
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('kind', ['folder', 'file', 'link', 'dangling'])
def test_what_is_there_is_not_replaced(tmp_path, kind):
  target, other = tmp_path / 'export', tmp_path / 'other'
  match kind:
    case 'folder':
      target.mkdir()
      (target / 'mine').write_text('x')
    case 'file':
      target.write_text('x')
    case 'link':
      other.mkdir()
      target.symlink_to(other)
    case 'dangling':
      target.symlink_to(other)
  before = sorted(tmp_path.rglob('*'))
  with (
    pytest.raises(errors.StorageError, match='already .* fix: delete it'),
    publishing.publish(target),
  ):
    raise AssertionError('nothing is to be done in vain')
  assert sorted(tmp_path.rglob('*')) == before


def test_an_empty_folder_is_taken(tmp_path):
  (tmp_path / 'export').mkdir()
  with publishing.publish(tmp_path / 'export') as scratch:
    (scratch / 'config.json').write_text('{}')
  assert os.listdir(tmp_path / 'export') == ['config.json']


def test_what_comes_meanwhile_is_not_replaced(tmp_path):
  with (
    pytest.raises(errors.StorageError, match='Directory not empty'),
    publishing.publish(tmp_path / 'export') as scratch,
  ):
    (scratch / 'config.json').write_text('{}')
    (tmp_path / 'export').mkdir()
    (tmp_path / 'export' / 'mine').write_text('x')
  assert sorted(x.name for x in tmp_path.rglob('*')) == ['export', 'mine']


KILLED = """
  import os, signal, sys
  from t5x_lite.interop import publishing
  with publishing.publish(sys.argv[1]) as scratch:
    (scratch / 'file').write_text('x')
    print('ready', flush=True)
    sys.stdin.read()
"""


def start(target):
  """A process that publishes, once it waits to be told to end."""
  process = subprocess.Popen(
    [sys.executable, '-c', textwrap.dedent(KILLED), target],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  )
  assert process.stdout.readline() == 'ready\n'
  return process


def test_a_killed_one_is_absent_and_the_next_removes_its_scratch(tmp_path):
  target = tmp_path / 'export'
  with start(target) as process:
    process.kill()
  with start(target) as living:
    [left] = tmp_path.iterdir()  # the living one's: it removed the other's
    assert left.name.startswith('.export.')
    with publishing.publish(target) as scratch:
      (scratch / 'config.json').write_text('{}')
    assert left.exists()  # nobody removes what a living one writes
    living.kill()
  target.joinpath('config.json').unlink()
  with publishing.publish(target) as scratch:
    (scratch / 'config.json').write_text('{}')
  assert list(tmp_path.iterdir()) == [target]


def test_it_removes_nothing_that_only_looks_like_a_scratch(tmp_path):
  kept = [
    tmp_path / '.export.short',
    tmp_path / f'.other.{"0" * 32}',
    tmp_path / f'.export.{"0" * 31}z',
  ]
  for folder in kept:
    folder.mkdir()
  link = tmp_path / f'.export.{"0" * 32}'
  link.symlink_to(kept[0])
  with publishing.publish(tmp_path / 'export') as scratch:
    pathlib.Path(scratch, 'config.json').write_text('{}')
  assert all(folder.exists() for folder in [*kept, link])
