"""Eight CPU devices, a cache of its own, and what runs on demand only."""

import gc
import importlib.metadata
import os
import signal

XLA_FLAGS = [
  # What is proved is our arithmetic, not XLA's speed: it compiles in less than
  # half the time without its optimizer, its newer, slower code generator (which
  # later ones can't do without), and more than the one core of a worker.
  '--xla_backend_optimization_level=0',
  '--xla_cpu_parallel_codegen_split_count=1',
]
if importlib.metadata.version('jaxlib').startswith('0.10.'):
  XLA_FLAGS.append('--xla_cpu_use_fusion_emitters=false')
# Read when JAX and TensorFlow are first imported; child processes inherit them.
os.environ.update(
  JAX_PLATFORMS='cpu',
  JAX_NUM_CPU_DEVICES='8',
  JAX_DEFAULT_MATMUL_PRECISION='highest',
  XLA_FLAGS=' '.join(XLA_FLAGS),
  TF_CPP_MIN_LOG_LEVEL='2',
  # Lines of source beside each operation of a program: nobody reads them here,
  # and they take a tenth of the time.
  JAX_TRACEBACK_IN_LOCATIONS_LIMIT='0',
)
# What a shell runs in the background ignores Ctrl-C, with all its children.
signal.signal(signal.SIGINT, signal.default_int_handler)
gc.disable()  # until all is loaded

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


@pytest.fixture
def command(capsys):
  """Runs a command in this process: what it prints, once it ended well."""

  def run(*arguments, code=0):
    from t5x_lite import cli

    capsys.readouterr()
    assert cli.main([str(argument) for argument in arguments]) == code
    out, err = capsys.readouterr()
    return out + err

  return run


# Marker: why its tests are skipped, unless the marker expression names it.
ON_DEMAND = {
  'faults': 'takes minutes; run `make faults`',
  'parallel': 'takes minutes; run `make parallel`',
  'slow': 'takes minutes; run `make slow`',
  'oracle': 'needs torch; run `make oracle`',
  'plans': 'needs libtpu; run `make plans`',
  'data': 'needs what `make data` fetches; run `make datatest`',
}


def pytest_collection_modifyitems(config, items):
  """Skips what runs on demand only."""
  for name, reason in ON_DEMAND.items():
    if name not in config.getoption('markexpr'):
      for item in items:
        if item.get_closest_marker(name):  # its id may be a marker's name
          item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish():
  """Spares the collector what is loaded by now and never goes."""
  gc.collect()
  gc.freeze()
  gc.enable()


def pytest_terminal_summary(terminalreporter):
  """Shows what tests of faults have noted, as a table of docs/."""
  from tests import recovery

  rows = [
    row
    for report in terminalreporter.getreports('passed')
    for name, row in report.user_properties
    if name == recovery.NAME
  ]
  if rows:
    terminalreporter.section('recovery')
    terminalreporter.write_line('\n'.join(recovery.table(rows)))
