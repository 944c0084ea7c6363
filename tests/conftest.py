"""Eight CPU devices, a cache of its own, and no oracle unless asked for."""

import os

# Read when JAX and TensorFlow are first imported; child processes inherit them.
os.environ.update(
  JAX_PLATFORMS='cpu',
  JAX_NUM_CPU_DEVICES='8',
  JAX_DEFAULT_MATMUL_PRECISION='highest',
  XLA_FLAGS='--xla_backend_optimization_level=0',  # compiles twice as fast
  TF_CPP_MIN_LOG_LEVEL='2',
)

import pytest  # noqa: E402


@pytest.fixture(scope='session', autouse=True)
def cache(tmp_path_factory):
  """Stores and compiled programs go to a folder of this session's own."""
  folder = tmp_path_factory.mktemp('cache')
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('T5X_LITE_CACHE', str(folder))
    yield folder


@pytest.fixture
def strict_promotion():
  """Refuses implicit promotion of dtypes and ranks, for our own arithmetic."""
  import jax

  with (
    jax.numpy_dtype_promotion('strict'),
    jax.numpy_rank_promotion('raise'),
  ):
    yield


def pytest_collection_modifyitems(config, items):
  """Skips the oracle tests unless the marker expression names them."""
  if 'oracle' in config.getoption('markexpr'):
    return
  skip = pytest.mark.skip(reason='needs torch; run `make oracle`')
  for item in items:
    if 'oracle' in item.keywords:
      item.add_marker(skip)
