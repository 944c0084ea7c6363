"""Where ArrayRecord's bytes lie, for records of many sizes."""

import numpy as np
import pytest

from t5x_lite import errors
from t5x_lite import storage
from t5x_lite.data import arrays


def write(folder, monkeypatch, values, block):
  monkeypatch.setattr(arrays, 'BLOCK', block)
  writer = arrays.ArrayWriter(storage.path(folder), 'x', values.dtype.str)
  writer.append(values)
  return writer.close()


@pytest.mark.parametrize(
  'dtype, block',
  [('u1', 1), ('<u2', 63), ('<u2', 4096), ('<i8', 1000), ('<u4', 30_000)],
)
def test_every_byte_is_found(tmp_path, monkeypatch, dtype, block):
  """Records of one byte to two blocks, and sizes said in one to three bytes."""
  count = max(200_000 // np.dtype(dtype).itemsize, 3 * block) + 5
  rng = np.random.default_rng(0)
  values = rng.integers(0, 256, count).astype(dtype)
  if block == 1:
    values = values[:3000]
  entry = write(tmp_path, monkeypatch, values, block)
  array = arrays.Array(storage.path(tmp_path), entry)
  assert array.read([0], len(values))[0].tolist() == values.tolist()
  starts = rng.integers(0, len(values), 300)
  padded = np.pad(values, (0, 99))
  found = array.read(starts, 99)
  np.testing.assert_array_equal(found, padded[starts[:, None] + np.arange(99)])
  assert array.read([], 5).shape == (0, 5)
  assert array.read([3], 0).shape == (1, 0)


def test_few_files_stay_open(tmp_path, monkeypatch):
  values = np.arange(400, dtype='<i8')
  monkeypatch.setattr(arrays, '_SHARD', 8)
  entry = write(tmp_path, monkeypatch, values, 8)
  monkeypatch.setattr(arrays, '_open_files', lambda: 48)
  array = arrays.Array(storage.path(tmp_path), entry)
  assert len(array._shards) == 50
  for _ in range(2):
    assert array.read([0], 400)[0].tolist() == values.tolist()
    assert len(array._open) == 3
    opened = [shard for shard in array._shards if shard._file is not None]
    assert len(opened) == 3


def test_what_arrayrecord_says_is_what_counts(tmp_path, monkeypatch):
  """A record elsewhere than expected is never read for another."""
  values = np.arange(400, dtype='<i8')
  entry = write(tmp_path, monkeypatch, values, 50)
  array = arrays.Array(storage.path(tmp_path), entry)
  array._shards[0]._stride += 1
  assert array.read([0], 50)[0].tolist() == values[:50].tolist()
  with pytest.raises(errors.DataError, match='record 1 is not where it should'):
    array.read([50], 1)


def test_a_file_cut_while_it_is_read_is_told(tmp_path, monkeypatch):
  values = np.arange(40_000, dtype='<i8')
  entry = write(tmp_path, monkeypatch, values, 4096)
  array = arrays.Array(storage.path(tmp_path), entry)
  array.read([0], len(values))
  with open(tmp_path / entry['shards'][0]['file'], 'r+b') as f:
    f.truncate(100_000)
  with pytest.raises(errors.DataError, match='damaged'):
    array.read([39_000], 10)
