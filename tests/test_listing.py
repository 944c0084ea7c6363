import os
import pathlib
import shutil

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from t5x_lite import checkpoints
from t5x_lite import errors
from t5x_lite import specs
from t5x_lite.interop import listing
from t5x_lite.interop import safetensors
from t5x_lite.interop import sources
from t5x_lite.interop import tensors
from tests import t5x_files

GOLDEN = pathlib.Path(__file__).parent / 'golden'
PARAMS = {
  'norm/scale': np.arange(8).astype(ml_dtypes.bfloat16),
  'layers/kernel': np.arange(64.0, dtype=np.float32).reshape(2, 8, 4),
  'scalar': np.float32(3),
}


def held(arrays):
  return {name: tensors.held(array) for name, array in arrays.items()}


def table(array):
  [row] = listing.table(held({'a': array}), values=True)
  return row


# -- one source ---------------------------------------------------------------


def test_a_table_reads_nothing_unless_values_are_asked_for():
  def fail():
    raise AssertionError

  lazy = {'a': tensors.Tensor(np.dtype(np.int8), (2, 3), fail)}
  assert list(listing.table(lazy)) == [listing.Row('a', 'int8', (2, 3), 6)]
  assert listing.totals(lazy) == {'int8': (1, 6, 6)}
  with pytest.raises(AssertionError):
    list(listing.table(lazy, values=True))


@pytest.mark.parametrize('block', [1, 7, 1 << 20])
def test_figures_are_of_the_finite_numbers(monkeypatch, block):
  monkeypatch.setattr(listing, '_BLOCK', block)
  array = np.array([[3, -4, np.nan], [np.inf, 0, -np.inf]], np.float32)
  row = table(array.T)
  assert row[3:5] == (6, -4)
  assert row[5:] == pytest.approx((3, -1 / 3, (25 / 3) ** 0.5, 3))


@pytest.mark.parametrize(
  'array, figures',
  [
    (np.zeros((0, 3)), (None, None, None, None, 0)),
    (np.full(2, np.nan), (None, None, None, None, 2)),
    (np.array(-2, np.int64), (-2, -2, -2, 2, 0)),
    (np.array([True, False]), (0, 1, 0.5, 0.5**0.5, 0)),
    (np.array([3 + 4j], np.complex64), (3, 4, 3.5, 12.5**0.5, 0)),
    (np.array([2, 4], ml_dtypes.bfloat16), (2, 4, 3, 10**0.5, 0)),
    (np.array([2, np.nan], ml_dtypes.float8_e5m2), (2, 2, 2, 2, 1)),
    (np.array([1e300, 1e300]), (1e300, 1e300, 1e300, np.inf, 0)),
    (np.array([2**63], np.uint64), (2.0**63, 2.0**63, 2.0**63, 2.0**63, 0)),
  ],
)
def test_figures_of_every_kind_of_number(array, figures):
  assert table(array)[4:] == pytest.approx(figures)


def test_sums_are_of_float64():
  """A hundred thousand tenths in float16, which counts to 2048 at most."""
  row = table(np.full(100_000, 0.1, np.float16))
  assert row.mean == pytest.approx(float(np.float16(0.1)), rel=1e-12)


def test_totals_are_by_dtype_and_the_largest_is_first():
  arrays = {'a': np.zeros(5, np.int8), **PARAMS}
  assert list(listing.totals(held(arrays)).items()) == [
    ('float32', (2, 65, 260)),
    ('bfloat16', (1, 8, 16)),
    ('int8', (1, 5, 5)),
  ]


def test_text_of_a_table():
  assert listing.lines(held(PARAMS), values=True).splitlines() == [
    'tensor         dtype     shape      numbers  least  most  mean     rms  '
    'not finite',
    'norm/scale     bfloat16  8                8      0     7   3.5  4.1833  '
    '         0',
    'layers/kernel  float32   2 x 8 x 4       64      0    63  31.5  36.517  '
    '         0',
    'scalar         float32   scalar           1      3     3     3       3  '
    '         0',
    '',
    'float32: 2 tensors, 65 numbers, 260 bytes',
    'bfloat16: 1 tensor, 8 numbers, 16 bytes',
  ]


# -- two ----------------------------------------------------------------------


def diff(a, b):
  return list(listing.diff(held(a), held(b)))


def test_equal_ones_are_counted():
  again = {name: np.array(array) for name, array in PARAMS.items()}
  assert diff(PARAMS, again) == [None] * 3
  turned = {'a': np.arange(6.0).reshape(2, 3)}
  assert diff(turned, {'a': np.asfortranarray(turned['a'])}) == [None]
  text = '3 of 3 tensors are equal'
  assert listing.diff_lines(held(PARAMS), held(again)) == (0, text)


def test_each_difference_is_told():
  a = {
    'same': np.ones(2),
    'gone': np.ones(3),
    'shape': np.ones((2, 3)),
    'dtype': np.array([1, 2.5], np.float32),
    'values': np.array([1.0, -2, 4]),
  }
  b = {
    'new': np.ones(4, np.int8),
    'values': np.array([1.0, 2, 4]),
    'same': np.ones(2),
    'shape': np.ones((3, 2)),
    'dtype': np.array([1, 2], ml_dtypes.bfloat16),
  }
  found = [row for row in diff(a, b) if row]
  assert found == [
    ('gone', 'missing', 'float64[3]', '-', None, None),
    ('shape', 'shape', 'float64[2, 3]', 'float64[3, 2]', None, None),
    ('dtype', 'dtype', 'float32[2]', 'bfloat16[2]', 0.5, 0.2),
    ('values', 'values', 'float64[3]', 'float64[3]', 4, 1),
    ('new', 'missing', '-', 'int8[4]', None, None),
  ]
  count, text = listing.diff_lines(held(a), held(b))
  assert count == 5
  assert text.endswith('\n1 of 6 tensors are equal')
  assert 'values  values      float64[3]     float64[3]           4' in text


@pytest.mark.parametrize(
  'a, b, wanted',
  [
    ([0.0], [-0.0], (0, None)),
    ([np.nan, 1], [np.nan, 2], (1, 0.5)),
    ([np.inf, 1], [np.inf, 2], (1, 0.5)),
    ([np.nan, 1], [3, 1], (np.nan, np.nan)),
    ([np.inf, 1], [1, 1], (np.inf, np.inf)),
    ([np.inf], [-np.inf], (np.inf, None)),
    ([0.0], [np.nan], (np.nan, None)),
  ],
)
@pytest.mark.parametrize('block', [1, 1 << 20])
def test_what_is_not_finite_is_compared(monkeypatch, block, a, b, wanted):
  monkeypatch.setattr(listing, '_BLOCK', block)
  [row] = diff({'a': np.array(a)}, {'a': np.array(b)})
  assert row[4:] == pytest.approx(wanted, nan_ok=True)


def test_the_bits_of_what_is_not_a_number_count():
  bits = np.array([[2**32 - 1], [2**32 - 2]], np.uint32)
  a, b = bits.view(np.float32)
  [row] = diff({'a': a}, {'a': b})
  assert row[4:] == (0, None)


# -- what is at a path --------------------------------------------------------


def nested(flat):
  tree = {}
  for path, value in flat.items():
    *folders, name = path.split('/')
    inner = tree
    for folder in folders:
      inner = inner.setdefault(folder, {})
    inner[name] = value
  return tree


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  """A run with steps 1 and 2, sharded over 8 devices; not to be changed."""
  folder = tmp_path_factory.mktemp('run')
  mesh = jax.make_mesh((8,), ('x',), axis_types=(jax.sharding.AxisType.Auto,))

  def place(x):
    axes = jax.P(*('x' if n == 8 else None for n in x.shape))
    return jax.device_put(x, jax.NamedSharding(mesh, axes))

  spec = specs.Checkpoints(every=1, keep=2)
  with checkpoints.Checkpoints(folder, spec) as saver:
    for step in (1, 2):
      params = {path: place(x * step) for path, x in PARAMS.items()}
      state = {
        'step': jnp.int32(step),
        'params': nested(params),
        'opt_state': (jnp.zeros(5), [jnp.ones(3)]),
      }
      saver.save(step, state, {}, {})
  return folder


def assert_params(found, step=1):
  assert found.keys() == PARAMS.keys()
  for name, array in PARAMS.items():
    read = found[name].read()
    assert read.dtype == found[name].dtype == array.dtype
    assert read.shape == found[name].shape == array.shape
    np.testing.assert_array_equal(read, (array * step).astype(array.dtype))


def test_a_run_of_ours_is_known(workdir):
  kind, found = sources.open_source(workdir)
  assert kind == 'a run of t5x_lite, step 2'
  assert_params(found, 2)


def test_a_step_of_ours_is_known(workdir):
  kind, found = sources.open_source(workdir / 'checkpoints' / '1')
  assert kind == 'a run of t5x_lite, step 1'
  assert_params(found)


def test_a_step_gives_the_tensors_of_its_parameters_alone(workdir):
  reader = checkpoints.Checkpoints.reader(workdir)
  assert_params(sources.of_step(reader, 1))


@pytest.mark.parametrize('kind', ['link', 'pipe', 'damaged'])
def test_a_step_that_lies_is_refused(workdir, tmp_path, kind):
  """A chunk that is a link would be followed: what is there became weights."""
  copy = tmp_path / 'copy'
  shutil.copytree(workdir, copy)
  step = copy / 'checkpoints' / '2'
  chunk = max((step / 'state').rglob('d/*'), key=lambda f: f.stat().st_size)
  match kind:
    case 'link':
      chunk.rename(tmp_path / 'secret')
      chunk.symlink_to(tmp_path / 'secret')
    case 'pipe':
      os.mkfifo(step / 'state' / 'd' / 'pipe')
    case 'damaged':
      data = bytearray(chunk.read_bytes())
      data[len(data) // 2] ^= 1
      chunk.write_bytes(data)
  with pytest.raises(errors.CheckpointError, match='not a file|is damaged'):
    sources.open_source(copy)


def test_safetensors_are_known(tmp_path):
  safetensors.write(tmp_path, held(PARAMS))
  for path in (tmp_path, tmp_path / 'model.safetensors'):
    kind, found = sources.open_source(path)
    assert kind == 'safetensors'
    assert_params(dict(found))


@pytest.mark.parametrize('name', ['model.bin', 'model.pt', 'a/model.pth', ''])
def test_files_of_torch_are_known_and_opened_only_if_allowed(tmp_path, name):
  file = tmp_path / (name or 'pytorch_model.bin')
  file.parent.mkdir(exist_ok=True)
  shutil.copy(GOLDEN / 'torch.bin', file)
  with pytest.raises(errors.ConfigError, match='fix: --torch_files'):
    sources.open_source(tmp_path / name)
  kind, found = sources.open_source(tmp_path / name, torch_files_too=True)
  assert kind == 'a file of torch'
  assert found['base'].shape == (3, 4, 5)


def test_checkpoints_of_t5x_are_known(tmp_path):
  params = {'token_embedder/embedding': np.ones((4, 3), np.float32)}
  folder = t5x_files.write(tmp_path, 7, params)
  for path in (tmp_path, folder):
    kind, found = sources.open_source(path)
    assert kind == 'T5X, step 7'
    assert found['token_embedder/embedding'].shape == (4, 3)


@pytest.mark.parametrize('name', ['', 'empty', 'text.txt', 'nowhere'])
def test_other_paths_are_refused(tmp_path, name):
  (tmp_path / 'empty').mkdir()
  (tmp_path / 'text.txt').write_text('some text, longer than eight bytes')
  with pytest.raises(errors.CheckpointError, match=str(tmp_path)):
    sources.open_source(tmp_path / name)


def test_a_run_without_a_step_is_told(tmp_path):
  (tmp_path / 'checkpoints').mkdir()
  with pytest.raises(errors.CheckpointError, match='no checkpoint'):
    sources.open_source(tmp_path)


def test_formats_are_compared_with_each_other(workdir, tmp_path):
  _, ours = sources.open_source(workdir)
  safetensors.write(tmp_path, ours)
  _, theirs = sources.open_source(tmp_path)
  assert listing.diff_lines(ours, theirs) == (0, '3 of 3 tensors are equal')
