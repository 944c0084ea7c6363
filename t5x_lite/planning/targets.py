"""GPUs that are compiled for where there is none.

XLA's CUDA plugin compiles for a description of a GPU, a text of the message
stream_executor.GpuTargetConfigProto. Numbers: NVIDIA's whitepapers of the
architectures and XLA's own descriptions (xla/backends/gpu/target_config, 2026).
"""

import importlib.metadata

import jax
from jax.experimental import topologies

from t5x_lite import chips
from t5x_lite import errors

# Multiprocessors, their float32 units, shared memory of one (bytes), the same
# as one block may have it, second-level cache (bytes), compute capability and
# whether its own instructions are used, and the name that JAX shows.
_CORES = {
  'a100': (108, 64, 167_936, 166_912, 40 * 2**20, 8, 'NONE'),
  'h100': (132, 128, 233_472, 232_448, 50 * 2**20, 9, 'ACCELERATED_FEATURES'),
  'h200': (132, 128, 233_472, 232_448, 50 * 2**20, 9, 'ACCELERATED_FEATURES'),
  'b200': (148, 128, 233_472, 232_448, 132_644_864, 10, 'ACCELERATED_FEATURES'),
}
_NAMES = {
  'a100': 'NVIDIA A100-SXM4-80GB',
  'h100': 'NVIDIA H100 80GB HBM3',
  'h200': 'NVIDIA H200',
  'b200': 'NVIDIA B200',
}


def text(kind):
  """The description of one of a100, h100, h200 and b200."""
  if kind not in _CORES:
    raise errors.ConfigError(
      'this kind of GPU is not described', got=kind, choices=list(_CORES)
    )
  cores, units, shared, block, cache, capability, features = _CORES[kind]
  chip = chips.CHIPS[kind]
  return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  threads_per_core_limit: 2048
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: {block}
  shared_memory_per_core: {shared}
  registers_per_block_limit: 65536
  registers_per_core_limit: 65536
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  core_count: {cores}
  fpus_per_core: {units}
  clock_rate_ghz: {chip.clock / 1e9}
  l2_cache_size: {cache}
  device_memory_size: {chip.hbm_usable}
  memory_bandwidth: {chip.hbm_bandwidth:.0f}
  cuda_compute_capability {{
    major: {capability}
    feature_extension: {features}
  }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{_NAMES[kind]}"
"""


def topology(accelerator):
  """What jax.experimental.topologies has of these GPUs, to make a mesh of.

  Args:
    accelerator: accelerators.Accelerator of GPUs.

  Raises:
    ConfigError: it is none of those that are described here, or the plugin
      that compiles for them is not installed.
  """
  shape = f'1x{accelerator.slices}x{accelerator.chips}'  # nodes, GPUs of each
  description = text(accelerator.kind)
  try:
    return topologies.get_topology_desc(
      platform='cuda',
      topology_name=shape,
      topology=shape,
      target_config=description,
    )
  except NotImplementedError:  # what JAX says of a platform it has no plugin of
    wheels = [f'jax-cuda12-{part}=={_version()}' for part in ('plugin', 'pjrt')]
    raise errors.ConfigError(
      'compiling for GPUs needs the CUDA plugin of JAX',
      got=f'{accelerator.name}, without jax-cuda12-plugin',
      fix='pip install --no-deps ' + ' '.join(wheels),
    ) from None
  except jax.errors.JaxRuntimeError as e:
    raise errors.ConfigError(
      'the CUDA plugin of JAX refuses to compile for this GPU',
      got=accelerator.name,
      expected=(str(e).splitlines() or [type(e).__name__])[0],
      fix=f'its wheels must be of the version of JAX, {_version()}',
    ) from None


def _version():
  return importlib.metadata.version('jax')
