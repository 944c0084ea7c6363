"""Accelerators by their names."""

import math

import pytest

from t5x_lite import accelerators
from t5x_lite import errors


# From the vendor's table of slices: chips, hosts, shape, JAX's devices.
@pytest.mark.parametrize(
  'name, chips, hosts, shape, devices',
  [
    ('v2-8', 4, 1, '2x2', 8),
    ('v3-32', 16, 4, '4x4', 32),
    ('v4-8', 4, 1, '2x2x1', 4),
    ('v4-384', 192, 48, '4x4x12', 192),
    ('v4-512', 256, 64, '4x8x8', 256),
    ('v5e-1', 1, 1, '1x1', 1),
    ('v5e-8', 8, 1, '2x4', 8),
    ('v5e-16', 16, 4, '4x4', 16),
    ('v5litepod-256', 256, 64, '16x16', 256),
    ('v5p-512', 256, 64, '4x8x8', 256),
    ('v5p-8192', 4096, 1024, '16x16x16', 4096),
    ('v6e-64', 64, 16, '8x8', 64),
    ('V6E-64', 64, 16, '8x8', 64),
    ('h100-8', 8, 1, None, 8),
  ],
)
def test_slices(name, chips, hosts, shape, devices):
  found = accelerators.parse(name)
  assert (found.chips, found.hosts, found.shape) == (chips, hosts, shape)
  assert found.devices == devices
  assert found.processes == hosts


def test_every_slice_is_whole():
  for name in accelerators.names():
    found = accelerators.parse(name)
    assert found.name == name
    assert math.prod(map(int, found.shape.split('x'))) == found.chips
    assert found.chips % found.hosts == 0


def test_several_slices_and_nodes():
  two = accelerators.parse('2xv5e-256')
  assert two == accelerators.parse('v5e-256', slices=2)
  assert two == accelerators.parse('2xv5e-256', slices=2)
  assert (two.devices, two.processes) == (512, 128)
  assert two.api_name == 'v5litepod-256'
  assert accelerators.parse('16xh100-8').devices == 128


def test_the_number_is_said_for_what_it_is():
  assert '512 cores: 256 chips' in str(accelerators.parse('v5p-512'))
  assert '(256 chips, 16x16, 64 hosts)' in str(accelerators.parse('v5e-256'))
  assert str(accelerators.parse('2xh100-8')) == '2 nodes of 8 GPUs'


@pytest.mark.parametrize(
  'name, said',
  [
    ('v5-256', 'did you mean v5p-256?'),
    ('v6-64', 'did you mean v6e-64?'),
    ('h10-8', 'did you mean h100-8?'),
    ('v5e-255', 'no slice of v5e has 255 chips'),
    ('v5e-255', 'fix: v5e-256'),
    ('v4-10', 'no slice of v4 has 10 cores'),
    ('v4-9', 'fix: v4-8'),
    ('v5p-16384', 'fix: v5p-12288'),
    ('0xv5e-4', 'expected 1 to 1024 slices'),
    ('', 'no such accelerator'),
    ('v5e', 'no such accelerator'),
    ('v5e-256;ls', 'no such accelerator'),
    ('v5e-\u0664', 'no such accelerator'),
  ],
)
def test_what_is_no_accelerator(name, said):
  with pytest.raises(errors.ConfigError) as e:
    accelerators.parse(name)
  assert said in str(e.value)


def test_two_counts_of_slices():
  with pytest.raises(errors.ConfigError, match='two counts'):
    accelerators.parse('2xv5e-4', slices=3)
