"""Descriptions of GPUs to compile for, where there is none."""

import importlib.util
import re

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import pytest

from t5x_lite import accelerators
from t5x_lite import chips
from t5x_lite import errors
from t5x_lite import partitioning
from t5x_lite import specs
from t5x_lite.planning import targets

KINDS = ('a100', 'h100', 'h200', 'b200')
NEEDS = (
  'needs the CUDA plugin of JAX; pip install --no-deps jax-cuda12-plugin '
  'jax-cuda12-pjrt, then `pytest -m plans` on this file'
)
PLUGIN = importlib.util.find_spec('jax_cuda12_plugin')


@pytest.mark.parametrize('kind', KINDS)
def test_description_has_the_figures_of_the_chip(kind):
  text = targets.text(kind)
  chip = chips.CHIPS[kind]
  said = dict(re.findall(r'(\w+): (\S+)', text))
  assert float(said['memory_bandwidth']) == chip.hbm_bandwidth
  assert int(said['device_memory_size']) == chip.hbm_usable
  assert float(said['clock_rate_ghz']) * 1e9 == pytest.approx(chip.clock)
  assert text.count('{') == text.count('}') == 3
  name = re.search('device_description_str: "(.*)"', text)[1]
  assert chips.find(name) is chip  # what its devices are called


def test_a_gpu_without_a_description_is_refused():
  with pytest.raises(errors.ConfigError, match='is not described') as e:
    targets.topology(accelerators.parse('l4-8'))
  assert set(e.value.choices) == set(KINDS)


@pytest.mark.skipif(PLUGIN is not None, reason='the CUDA plugin is installed')
def test_the_plugin_is_asked_for():
  with pytest.raises(errors.ConfigError, match='needs the CUDA plugin') as e:
    targets.topology(accelerators.parse('h100-8'))
  assert f'jax-cuda12-plugin=={jax.__version__}' in e.value.fix


@pytest.mark.plans
@pytest.mark.skipif(PLUGIN is None, reason=NEEDS)
@pytest.mark.parametrize('kind', KINDS)
def test_a_product_compiles_for_gpus(kind):
  topology = targets.topology(accelerators.parse(f'2x{kind}-8'))
  assert [d.process_index for d in topology.devices] == [0] * 8 + [1] * 8
  assert chips.find(topology.devices[0].device_kind).kind == kind
  mesh = partitioning.make_mesh(specs.Mesh(fsdp=16, data=1), topology.devices)
  shards = jax.sharding.NamedSharding(mesh, PartitionSpec('fsdp'))
  x = jax.ShapeDtypeStruct((1024, 512), jnp.bfloat16, sharding=shards)
  compiled = (
    jax.jit(lambda x, y: jnp.sum(x @ y))
    .lower(x, x.update(shape=(512, 512)))
    .compile()
  )
  assert compiled.memory_analysis().argument_size_in_bytes == 1536 * 32 * 2
  text = compiled.as_text()
  assert 'all-gather' in text and 'all-reduce' in text
