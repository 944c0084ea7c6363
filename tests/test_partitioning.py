"""Meshes, and where arrays lie on them."""

import itertools
import math
import re

import jax
import numpy as np
import pytest

from t5x_lite import errors
from t5x_lite import partitioning
from t5x_lite import specs

P = jax.sharding.PartitionSpec


def mesh(**axes):
  return partitioning.make_mesh(specs.Mesh(**axes))


def test_nanot5_12_all_devices_are_used():
  assert mesh(fsdp=2, tensor=2).shape['data'] == 2
  assert mesh(data=1, fsdp=-1).shape['fsdp'] == 8


@pytest.mark.parametrize(
  'axes, said',
  [
    ({'data': 2, 'fsdp': 2}, 'a product of 8'),  # t5x: used 4 of 8 silently
    ({'data': 16}, 'a product of 8'),
    ({'tensor': 3}, 'fix: --gin.Mesh.tensor=4, or --gin.Mesh.tensor=2, or'),
    ({'data': -1, 'fsdp': -1}, 'one at most'),
  ],
)
def test_t5x_410_608_580_and_defect_3_a_mesh_is_what_it_says(axes, said):
  """T5X ignored num_partitions: here sizes count, or do not fit."""
  with pytest.raises(errors.ConfigError, match=said):
    mesh(**axes)


def test_wrong_batches_are_refused_with_those_that_fit():
  shape = mesh(data=4, tensor=2).shape
  with pytest.raises(errors.ConfigError) as wrong:
    partitioning.check_batch(shape, 6)
  assert str(wrong.value).endswith(
    'fix: use 4 or 8, or --gin.Mesh.data=2 --gin.Mesh.tensor=4'
  )
  with pytest.raises(errors.ConfigError, match='use 8 or 16'):
    partitioning.check_batch(shape, 12, microbatches=2)
  partitioning.check_batch(shape, 16, microbatches=2)


def test_rules():
  m = mesh(data=1, fsdp=2, tensor=4)

  def place(shape, *axes):
    return partitioning.partition_spec(shape, axes, m)

  assert place((16, 8), 'vocab', 'embed') == P('tensor', 'fsdp')
  assert place((3, 8, 4, 5), 'layers', 'embed', 'heads', 'kv') == P(
    None, 'fsdp', 'tensor', None
  )
  # The batch takes fsdp, so the stream's width can't have it too.
  assert place((4, 6, 8), 'batch', 'length', 'embed') == P('fsdp', None, None)
  # Six heads do not divide over four devices: they lie on all of them.
  assert place((8, 6, 5), 'embed', 'heads', 'kv') == P('fsdp', None, None)


def test_t5_219_517_what_is_left_whole_is_told():
  m = mesh(data=2, tensor=4)
  [line] = partitioning.unsharded(
    {'q': jax.ShapeDtypeStruct((8, 6, 5), 'float32')},
    {'q': ('embed', 'heads', 'kv')},
    m,
  )
  assert 'heads' in line
  assert line.endswith('q [8, 6, 5]')


def test_merged_axes_keep_their_place():
  m = mesh(data=2, fsdp=2, tensor=2)
  shape, axes = (3, 8, 4, 5), ('layers', 'embed', 'heads', 'kv')
  assert partitioning.merge_axes(shape, axes, (3, 8, 20), m) == P(
    None, 'fsdp', 'tensor'
  )
  assert partitioning.merge_axes(shape, axes, shape, m) == P(
    None, 'fsdp', 'tensor', None
  )
  assert partitioning.merge_axes(shape, axes, (3, 32, 5), m) is None
  assert partitioning.merge_axes(shape, axes, (3, 8), m) is None


def test_constrain_is_nothing_without_a_mesh():
  x = jax.numpy.ones((4, 2))
  assert partitioning.constrain(x, ('batch', 'embed')) is x


def test_no_device_is_one_message(monkeypatch):
  def none():
    raise RuntimeError('Unable to initialize backend')

  monkeypatch.setattr(jax, 'devices', none)
  monkeypatch.setenv('JAX_PLATFORMS', 'cuda')
  with pytest.raises(errors.DeviceError, match='JAX_PLATFORMS=cuda.*Unable'):
    mesh()


class Device:
  """What a mesh of several slices is laid out by."""

  platform = device_kind = 'cpu'

  def __init__(self, number, slice_index):
    self.id, self.slice_index = number, slice_index
    self.process_index = slice_index


@pytest.mark.parametrize(
  'axes',
  [
    {'replica': 2, 'fsdp': 4, 'data': 1},
    {'data': 8},
    {'data': 2, 'tensor': 4},
    {'data': 1, 'fsdp': 4, 'tensor': 2},
    {'replica': 2, 'data': 1, 'sequence': 4},
  ],
  ids=str,
)
def test_maxtext_1434_only_outer_axes_cross_from_slice_to_slice(axes):
  devices = [Device(n, n // 4) for n in range(8)]
  laid = partitioning.make_mesh(specs.Mesh(**axes), devices).devices
  at = np.vectorize(lambda device: device.slice_index)(laid)
  assert (np.diff(at.reshape(8)) >= 0).all()  # slice by slice
  for axis in (3, 4):  # tensor, sequence
    assert not np.diff(at, axis=axis).any()


def test_a_mesh_that_would_cross_slices_inside_is_refused():
  devices = [Device(n, n // 4) for n in range(8)]
  with pytest.raises(errors.ConfigError) as wrong:
    partitioning.make_mesh(specs.Mesh(tensor=8), devices)
  assert 'Mesh does not fit 2 slices' in str(wrong.value)
  assert 'fix: --gin.Mesh.tensor=4, or' in str(wrong.value)


AXES = partitioning.AXES
CHIPS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)


def shapes(devices):
  """All meshes of so many devices, by trial."""
  sizes = [n for n in range(1, devices + 1) if devices % n == 0]
  return [
    dict(zip(AXES, found, strict=True))
    for found in itertools.product(sizes, repeat=len(AXES))
    if math.prod(found) == devices
  ]


def distance(old, new):
  """(axes that change, by what factor in all)."""
  pairs = [(old[k], new[k]) for k in AXES if old[k] != new[k]]
  return len(pairs), math.prod(max(pair) / min(pair) for pair in pairs)


@pytest.mark.parametrize('slices', [1, 2])
def test_the_nearest_meshes_are_no_farther_than_any_that_fits(slices):
  """Of a mesh of any of these numbers of devices, on any other of them."""
  counted, bits = 0, np.random.default_rng(0)
  for devices in CHIPS:
    fits = [
      mesh
      for mesh in shapes(devices)
      if mesh['replica'] * mesh['data'] * mesh['fsdp'] % slices == 0
    ]
    assert all(
      partitioning.nearest_meshes(m, devices, slices)[0] == m for m in fits
    )
    for others in CHIPS:
      for old in bits.permutation(shapes(others))[:6]:
        free = bits.choice([None, *AXES])
        old = old | ({free: -1} if free else {})
        # What -1 stands for is no change.
        ways = {
          tuple((mesh | ({free: -1} if free else {})).items()) for mesh in fits
        }
        ways = sorted(distance(old, dict(mesh)) for mesh in ways)
        found = partitioning.nearest_meshes(old, devices, slices)
        assert [distance(old, mesh) for mesh in found] == ways[:3]
        for mesh in found:
          counted += 1
          sizes = partitioning.check_mesh(specs.Mesh(**mesh), devices, slices)
          assert math.prod(sizes.values()) == devices
  assert counted > 1000
  assert not partitioning.nearest_meshes(dict.fromkeys(AXES, 1), 3, 2)


@pytest.mark.parametrize('devices', CHIPS)
def test_a_mesh_named_for_a_batch_takes_it(devices):
  for shape in shapes(devices)[:40]:
    for batch_size, microbatches in ((6, 1), (12, 2), (30, 3), (64, 1)):
      try:
        partitioning.check_batch(shape, batch_size, microbatches)
      except errors.ConfigError as e:
        options = e.fix.split(', or ')[-1]
        said = dict(re.findall(r'--gin.Mesh.(\w+)=(\d+)', options))
        mesh = shape | {name: int(size) for name, size in said.items()}
        assert math.prod(mesh.values()) == devices
        partitioning.check_batch(mesh, batch_size, microbatches)


def test_each_process_brings_its_rows():
  m = mesh(data=2, tensor=4)
  batch = {'x': np.arange(12).reshape(4, 3)}
  assert partitioning.local_rows(m, 4).tolist() == [0, 1, 2, 3]
  found = partitioning.put_batch(batch, m, 4)['x']
  assert found.sharding.spec == P(('replica', 'data', 'fsdp'))
  np.testing.assert_array_equal(found, batch['x'])
  with pytest.raises(ValueError, match='3 rows, where this process has 4'):
    partitioning.put_batch({'x': batch['x'][:3]}, m, 4)


def test_t5x_410_and_defect_3_each_axis_divides_the_arrays():
  """T5X laid everything out as 1 x N, whatever it was told."""
  m = mesh(data=2, fsdp=2, tensor=2)
  assert tuple(m.shape.values()) == (1, 2, 2, 2, 1)
  place = partitioning.partition_spec((8, 4, 5), ('embed', 'heads', 'kv'), m)
  x = jax.device_put(np.zeros((8, 4, 5)), jax.NamedSharding(m, place))
  assert x.addressable_shards[0].data.shape == (4, 2, 5)


class Chip(Device):
  """A TPU chip of a generation that this program has no table of."""

  platform, core_on_chip = 'tpu', 0

  def __init__(self, number, kind):
    super().__init__(number, 0)
    self.device_kind, self.coords = kind, (number % 4, number // 4, 0)


@pytest.mark.parametrize('kind', ['TPU v5 lite', 'TPU v5', 'TPU v6e', 'TPU v9'])
def test_t5x_defect_20_any_devices_make_a_mesh(kind):
  """T5X had a mesh for TPU v2, v3 and v4 alone."""
  chips = [Chip(n, kind) for n in range(8)]
  laid = partitioning.make_mesh(specs.Mesh(fsdp=2, tensor=2), chips)
  assert laid.shape['data'] == laid.shape['tensor'] == 2
  assert {chip.id for chip in laid.devices.flat} == set(range(8))
