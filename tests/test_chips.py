"""The table of chips: its figures agree with each other."""

import json
import pathlib
import re

import pytest

from t5x_lite import accelerators
from t5x_lite import chips
from t5x_lite import errors

ALL = chips.CHIPS.values()
TPUS = [chip for chip in ALL if chip.kind in accelerators.KINDS]
# Multiply-adds of a device in a cycle: matrix units times their squares.
UNITS = {'v3': 2, 'v4': 8, 'v5e': 4, 'v5p': 8, 'v6e': 16}


@pytest.mark.parametrize('chip', ALL, ids=lambda chip: chip.kind)
def test_figures_are_in_order(chip):
  assert 0.96 * chip.hbm < chip.hbm_usable < chip.hbm
  assert chip.int8 is None or chip.flops <= chip.int8 <= 2.01 * chip.flops
  assert chip.fp8 is None or chip.fp8 == chip.int8
  # A chip does 100 to 650 operations in the time of one byte of its memory.
  assert 100 < chip.flops / chip.hbm_bandwidth < 650
  # Memory is faster than the node's network, and that than the data centre's.
  network = chip.links * chip.link_bandwidth
  assert network < chip.hbm_bandwidth * chip.chip_devices
  assert chip.dcn_bandwidth is None or 8 * chip.dcn_bandwidth < network
  for kind in chip.device_kinds:
    assert chips.find(f'{kind} of some form') is chip


@pytest.mark.parametrize('chip', TPUS, ids=lambda chip: chip.kind)
def test_the_peak_is_that_of_the_matrix_units(chip):
  cycle = 2 * UNITS[chip.kind] * 128**2
  assert chip.flops == pytest.approx(cycle * chip.clock, rel=5e-3)
  assert chip.links == 2 * chip.dimensions
  known = accelerators.KINDS[chip.kind]
  assert chip.chip_devices == known.devices
  assert max(known.shapes) <= chip.domain
  for shape in known.shapes.values():
    assert shape.count('x') + 1 == chip.dimensions


@pytest.mark.parametrize(
  'kind, shape, closed',
  [
    ('v5e', (16, 16), (True, True)),
    ('v5e', (8, 16), (False, True)),
    ('v5e', (2, 4), (False, False)),
    ('v6e', (16, 16), (True, True)),
    ('v5p', (4, 4, 8), (True, True, True)),
    ('v5p', (2, 2, 4), (False, False, False)),
    ('v4', (4, 4, 12), (True, True, True)),
    ('h100', (8,), (False,)),
  ],
)
def test_sides_that_are_rings(kind, shape, closed):
  assert chips.CHIPS[kind].rings(shape) == closed


def test_hosts():
  """The vendor's figures of pods: 6.4 Tbit/s of 256 chips of v5e."""
  v5e = chips.CHIPS['v5e']
  hosts = 256 // v5e.host_chips
  assert 8 * hosts * v5e.host_bandwidth == 6.4e12
  assert chips.CHIPS['v3'].host_bandwidth is None


def test_a_slice_reduces_as_fast_as_its_vendor_says():
  """51.2 TB/s of a pod of v5e, 102.4 of v6e: half of all links both ways."""
  for kind, tera in {'v5e': 51.2, 'v6e': 102.4}.items():
    chip = chips.CHIPS[kind]
    both = 2 * chip.links * chip.link_bandwidth
    assert chip.domain * both / 2 == tera * 1e12


def test_kinds_of_devices_that_share_a_beginning():
  assert chips.find('TPU v5 lite').kind == 'v5e'
  assert chips.find('TPU v5').kind == 'v5p'
  assert chips.find('NVIDIA H100 PCIe').kind == 'h100-pcie'
  assert chips.find('NVIDIA H100 80GB HBM3').kind == 'h100'
  assert chips.find('cpu') is None


def test_prices_are_of_known_chips_and_say_whence():
  path = pathlib.Path(chips.__file__).with_name('prices.json')
  prices = json.loads(path.read_text(encoding='utf-8'))['prices']
  assert set(prices) <= set(chips.CHIPS)
  for price in prices.values():
    assert set(price) == {'usd', 'region', 'as_of', 'source'}
    assert 0.5 < price['usd'] < 50  # a chip and hour, not a machine or month
    assert price['as_of'] is None or re.fullmatch(
      r'20\d\d-\d\d', price['as_of']
    )
    assert price['source']


NEW, OLD = chips.SHARE


@pytest.mark.parametrize(
  'environ, share',
  [
    ({}, 0.75),
    ({NEW: '0.9'}, 0.9),
    ({OLD: '.5', NEW: ''}, 0.5),
    ({NEW: '1.5'}, 1.0),
    ({'XLA_PYTHON_CLIENT_PREALLOCATE': 'false'}, 0.75),
    ({'XLA_PYTHON_CLIENT_ALLOCATOR': 'Platform'}, 1.0),
  ],
)
def test_jax_takes_a_share_of_a_gpu_and_all_of_a_tpu(
  environ, share, monkeypatch
):
  h100, v5e = chips.CHIPS['h100'], chips.CHIPS['v5e']
  assert h100.available(environ) == int(share * h100.hbm_usable)
  assert v5e.available(environ) == v5e.hbm_usable
  for name in (NEW, OLD):
    monkeypatch.delenv(name, raising=False)
  for name, text in environ.items():
    monkeypatch.setenv(name, text)
  assert h100.available() == int(share * h100.hbm_usable)
  options = jax_options()
  if share < 1:
    assert options.get('memory_fraction', 0.75) == share


def jax_options():
  """What jaxlib itself reads of the environment."""
  from jaxlib import xla_client

  return xla_client.generate_pjrt_gpu_plugin_options()


@pytest.mark.parametrize(
  'environ', [{NEW: '0.9', OLD: '0.9'}, {NEW: 'much'}, {OLD: '0'}, {NEW: 'nan'}]
)
def test_a_share_that_jax_would_not_take_is_refused(environ):
  with pytest.raises(errors.ConfigError, match='share'):
    chips.gpu_share(environ)
