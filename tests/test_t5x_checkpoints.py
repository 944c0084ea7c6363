"""Public checkpoints of T5X: every layout in, and whatever is wrong refused."""

import dataclasses
import gzip
import os
import shutil

import msgpack
import numpy as np
import pyarrow as pa
import pytest
import t5_numpy

from t5x_lite import errors
from t5x_lite import models
from t5x_lite import objects
from t5x_lite import specs
from t5x_lite import storage
from t5x_lite.interop import t5x
from t5x_lite.interop import t5x_names
from tests import gcs
from tests import t5x_files
from tests import test_t5_parity
from tests.exact import flatten
from tests.exact import float64
from tests.exact import nest
from tests.exact import run

KINDS = {'t5_1_0': 'minimal', 't5_1_1': 'minimal', 'umt5': 'scanned'}
SMALL = {
  'vocab_size': 12,
  'embed_dim': 6,
  'mlp_dim': 8,
  'num_heads': 2,
  'head_dim': 4,
}
QUERY = 'decoder/layers_0/self_attention/query/kernel'


def make_spec(**settings):
  settings = {'encoder_layers': 1, 'decoder_layers': 2, **SMALL, **settings}
  return specs.Transformer(**settings)


def draw(spec):
  """Parameters of standard deviation 0.3, by path."""
  rng = np.random.default_rng(7)
  shapes = flatten(models.build(spec).abstract)
  return {
    path: (0.3 * rng.standard_normal(x.shape) + ('scale' in path)).astype('f4')
    for path, x in shapes.items()
  }


def load(system):
  """(spec, params, batch, logits) of a golden file."""
  choices, params, batch, logits_BLV, *_ = test_t5_parity.load(system)
  params = {path: x.astype(np.float32) for path, x in params.items()}
  return test_t5_parity.make_spec(choices), params, batch, logits_BLV


def check_equal(found, params):
  assert found.keys() == params.keys()
  for path, x in params.items():
    assert found[path].dtype == x.dtype
    np.testing.assert_array_equal(found[path], x, err_msg=path)


# -- layouts ------------------------------------------------------------------


@pytest.mark.parametrize(
  'system, layout',
  [
    ('umt5', 'legacy'),
    pytest.param('t5_1_0', 'legacy', marks=pytest.mark.slow),
    pytest.param('t5_1_1', 'legacy', marks=pytest.mark.slow),
    pytest.param('t5_1_0', 'ocdbt', marks=pytest.mark.slow),
    pytest.param('t5_1_1', 'ocdbt', marks=pytest.mark.slow),
    pytest.param('umt5', 'ocdbt', marks=pytest.mark.slow),
  ],
)
def test_hf_22573_22626_24477_logits_are_those_of_transformers(
  system, layout, tmp_path
):
  """Of the minimal and of the scanned layout, HF#22573, #22626 and #24477."""
  wanted, params, batch, logits_BLV = load(system)
  flat = t5x_files.to_t5x(params, KINDS[system])
  t5x_files.write(tmp_path, 5, flat, layout)
  step, tensors = t5x.read(tmp_path)
  spec = t5x_names.spec_of(tensors)
  assert (step, spec) == (5, wanted)
  found = t5x_names.to_params(spec, tensors)
  check_equal(found, params)
  with float64():
    found = {path: x.astype(np.float64) for path, x in found.items()}
    model = models.build(dataclasses.replace(spec, dtype='float64'))
    got_BLV = run(model.apply)(nest(found), batch)
  valid_BL = batch['decoder_segment_ids'] > 0
  np.testing.assert_allclose(
    got_BLV[valid_BL], logits_BLV[valid_BL], rtol=0, atol=1e-9
  )


@pytest.mark.parametrize(
  'layout, kind',
  [
    *((layout, 'minimal') for layout in t5x_files.LAYOUTS),
    ('legacy', 'apart'),
    ('ocdbt', 'apart'),
    ('legacy', 'scanned'),
    ('ocdbt', 'scanned'),
  ],
)
def test_layouts(layout, kind, tmp_path):
  per_layer = kind != 'minimal'
  spec = make_spec(position=specs.T5Bias(per_layer=per_layer, buckets=8))
  params = draw(spec)
  folder = t5x_files.write(tmp_path, 3, t5x_files.to_t5x(params, kind), layout)
  assert t5x.is_t5x(tmp_path) and t5x.is_t5x(folder)
  step, tensors = t5x.read(folder)
  assert step == 3
  assert t5x_names.spec_of(tensors) == spec
  check_equal(t5x_names.to_params(spec, tensors), params)
  slots = t5x.slots(folder)
  assert len(slots) == 4 * len(tensors)
  name = 'decoder/decoder_norm/scale/v'
  np.testing.assert_array_equal(slots[name].read(), np.full(6, 0.5, 'f4'))


def test_early_scans_and_one_layer(tmp_path):
  """Named `layers`, with `relative_posemb`; as many heads as layers: one."""
  spec = make_spec(
    encoder_layers=1,
    decoder_layers=1,
    num_heads=1,
    position=specs.T5Bias(per_layer=True),
  )
  params = draw(spec)
  flat = {
    name.replace('encoder/encoder/', 'encoder/layers/')
    .replace('decoder/decoder/', 'decoder/layers/')
    .replace('relpos_bias', 'relative_posemb'): x
    for name, x in t5x_files.to_t5x(params, 'scanned').items()
  }
  t5x_files.write(tmp_path, 0, flat)
  _, tensors = t5x.read(tmp_path)
  assert t5x_names.spec_of(tensors) == spec
  check_equal(t5x_names.to_params(spec, tensors), params)


def numpy_logits(flat, tokens_L, heads):
  """A decoder alone in plain numpy, on T5X's own kernels of two axes."""
  x_LE = flat['decoder/token_embedder/embedding'][tokens_L]
  length = len(tokens_L)
  table_HR = flat['decoder/relpos_bias/rel_embedding']
  place_LL = np.array(
    [
      [t5_numpy.bucket(k - q, False) for k in range(length)]
      for q in range(length)
    ]
  )
  layer = 0
  while f'decoder/layers_{layer}/mlp/wo/kernel' in flat:
    p = t5_numpy.below(flat, f'decoder/layers_{layer}/')
    y_LE = t5_numpy.norm(x_LE, p['pre_self_attention_layer_norm/scale'])
    q, k, v = (
      (y_LE @ p[f'self_attention/{name}/kernel'])
      .reshape(length, heads, -1)
      .swapaxes(0, 1)
      for name in ('query', 'key', 'value')
    )
    logits_HLL = q @ k.swapaxes(1, 2) + table_HR[:, place_LL]
    logits_HLL += np.triu(np.full((length, length), -1e10), 1)
    weights_HLL = np.exp(t5_numpy.log_softmax(logits_HLL))
    z = (weights_HLL @ v).swapaxes(0, 1).reshape(length, -1)
    x_LE = x_LE + z @ p['self_attention/out/kernel']
    y_LE = t5_numpy.norm(x_LE, p['pre_mlp_layer_norm/scale'])
    h = t5_numpy.gelu(y_LE @ p['mlp/wi_0/kernel']) * (
      y_LE @ p['mlp/wi_1/kernel']
    )
    x_LE = x_LE + h @ p['mlp/wo/kernel']
    layer += 1
  x_LE = t5_numpy.norm(x_LE, flat['decoder/decoder_norm/scale'])
  return x_LE @ flat['decoder/logits_dense/kernel']


def test_decoder_only_logits(tmp_path):
  spec = make_spec(encoder_layers=0, num_heads=3)
  flat = t5x_files.to_t5x(draw(spec), decoder_only=True)
  t5x_files.write(tmp_path, 9, flat, 'ocdbt')
  _, tensors = t5x.read(tmp_path)
  assert t5x_names.spec_of(tensors) == spec
  found = t5x_names.to_params(spec, tensors)
  tokens_BL = np.random.default_rng(0).integers(12, size=(1, 20))
  batch = {
    'decoder_input_tokens': tokens_BL.astype('i4'),
    'decoder_segment_ids': np.ones((1, 20), 'i4'),
  }
  with float64():
    model = models.build(dataclasses.replace(spec, dtype='float64'))
    got_BLV = run(model.apply)(
      nest({path: x.astype(np.float64) for path, x in found.items()}), batch
    )
  wanted_LV = numpy_logits(
    {name: x.astype(np.float64) for name, x in flat.items()}, tokens_BL[0], 3
  )
  np.testing.assert_allclose(got_BLV[0], wanted_LV, rtol=0, atol=1e-9)


@pytest.mark.parametrize('codec', ['gzip', 'zstd', None])
@pytest.mark.parametrize(
  'shape, chunks', [((), []), ((3,), [2]), ((5, 7), [2, 3]), ((2, 3, 4), None)]
)
def test_arrays(codec, shape, chunks, tmp_path):
  x = np.random.default_rng(0).standard_normal(shape).astype('f4')
  t5x_files.write_zarr(tmp_path / 'x', x, chunks, codec)
  found = t5x.zarr.tensor(t5x.folders.Folder(tmp_path), 'x')
  assert (found.dtype, found.shape) == (x.dtype, x.shape)
  np.testing.assert_array_equal(found.read(), x)


@pytest.mark.parametrize('layout', ['legacy', 'ocdbt', 'folders'])
def test_bfloat16_stays(layout, tmp_path):
  params = t5x_files.bfloat16(draw(make_spec()))
  t5x_files.write(tmp_path, 1, t5x_files.to_t5x(params), layout)
  _, tensors = t5x.read(tmp_path)
  assert {x.dtype.name for x in tensors.values()} == {'bfloat16'}
  check_equal(t5x_names.to_params(make_spec(), tensors), params)


def test_nothing_is_read_before_it_is_wanted(small, monkeypatch):
  reads = []
  chunk = t5x.zarr._chunk
  monkeypatch.setattr(
    t5x.zarr, '_chunk', lambda *a: reads.append(a[1]) or chunk(*a)
  )
  _, tensors = t5x.read(small)
  spec = t5x_names.spec_of(tensors)
  found = t5x_names.params(spec, tensors)
  assert not reads
  found['decoder/layers/attention/query/kernel'].read()
  assert {file.split('/')[0] for file in reads} == {
    f'target.decoder.layers_{i}.self_attention.query.kernel' for i in range(2)
  }
  for name, x in found.items():
    assert x.read().shape == x.shape and x.read().dtype == x.dtype, name


@pytest.fixture
def bucket(monkeypatch):
  with gcs.Server() as server:
    for name, value in server.environment.items():
      monkeypatch.setenv(name, value)
    objects.filesystem.cache_clear()
    yield server.make_bucket('t5x')
    objects.filesystem.cache_clear()


@pytest.mark.parametrize('layout', ['legacy', 'ocdbt'])
def test_buckets(layout, bucket, written):
  storage.copy_tree(written / layout, f'{bucket}/some/where')
  assert t5x.is_t5x(f'{bucket}/some/where')
  step, tensors = t5x.read(f'{bucket}/some/where')
  assert step == 0
  check_equal(t5x_names.to_params(make_spec(), tensors), draw(make_spec()))
  with pytest.raises(errors.CheckpointError, match='no checkpoint of T5X'):
    t5x.read(f'{bucket}/no/where')


# -- steps --------------------------------------------------------------------


@pytest.fixture(scope='module')
def written(tmp_path_factory):
  """A checkpoint of each layout, to be copied and spoilt."""
  folder = tmp_path_factory.mktemp('written')
  for layout in t5x_files.LAYOUTS:
    flat = t5x_files.to_t5x(draw(make_spec()))
    t5x_files.write(folder / layout, 0, flat, layout)
  return folder


@pytest.fixture
def small(written, tmp_path):
  """A copy of T5X's own layout; the folder of its step 0."""
  return shutil.copytree(written / 'legacy', tmp_path / 'x') / 'checkpoint_0'


def test_t5x_defect_11_step_0_is_found(small):
  assert t5x.read(small.parent)[0] == 0


def test_steps(small):
  for step, name in ((5, '5'), (10, '10'), (11, '11.tmp-123')):
    folder = small.parent / f'checkpoint_{name}'
    shutil.copytree(small, folder)
    t5x_files.edit(folder, lambda tree, step=step: set_step(tree, step))
  assert t5x.steps(small.parent) == [0, 5, 10]
  assert t5x.read(small.parent)[0] == 10
  assert [t5x.read(small.parent, step)[0] for step in (0, 5)] == [0, 5]
  assert t5x.read(small.parent / 'checkpoint_5', 5)[0] == 5
  for folder in (small.parent, small.parent / 'checkpoint_5'):
    with pytest.raises(errors.CheckpointError, match='no such step'):
      t5x.read(folder, 7)


def set_step(tree, step):
  tree['optimizer']['state']['step'] = step


def test_step_by_name_where_none_is_stored(small):
  t5x_files.edit(small, lambda tree: tree['optimizer'].pop('state') and None)
  assert t5x.read(small)[0] == 0
  moved = small.rename(small.parent / 'mine')
  assert t5x.read(moved)[0] is None


def test_what_is_not_of_t5x(tmp_path):
  assert not t5x.is_t5x(tmp_path / 'nowhere')
  assert not t5x.is_t5x(tmp_path)
  (tmp_path / 'checkpoint').write_bytes(b'')
  assert not t5x.is_t5x(tmp_path)
  (tmp_path / 'checkpoint').write_text('model_checkpoint_path: "model.ckpt-0"')
  assert not t5x.is_t5x(tmp_path)
  for path in (tmp_path / 'nowhere', tmp_path):
    with pytest.raises(errors.CheckpointError):
      t5x.read(path)


# -- what does not fit --------------------------------------------------------


def differences(flat, spec=None):
  """The message for a checkpoint of these arrays and a spec."""
  tensors = {name: t5x_files.held(x) for name, x in flat.items()}
  with pytest.raises(errors.CheckpointError) as found:
    t5x_names.params(spec or t5x_names.spec_of(tensors), tensors)
  message = str(found.value)
  assert len(message.splitlines()) <= 12
  return message


FLAT = t5x_files.to_t5x(draw(make_spec()))
TIED = make_spec(tie_embeddings=True)


def test_t5x_1196_logits_via_embedding():
  message = differences(FLAT, TIED)
  assert '0 missing, 1 left over' in message
  assert 'Transformer.tie_embeddings False there, True here' in message
  assert 'logits_via_embedding' in message
  assert '--gin.Transformer.tie_embeddings=False' in message
  assert 'decoder/logits_dense/kernel  float32[6, 12]' in message
  message = differences(t5x_files.to_t5x(draw(TIED)), make_spec())
  assert '1 missing, 0 left over' in message
  assert 'Transformer.tie_embeddings True there, False here' in message


def test_t5x_1213_rows_of_the_embedding():
  message = differences(FLAT, make_spec(vocab_size=10))
  assert '2 of another shape' in message
  assert 'token_embedder/embedding     float32[12, 6]' in message
  assert 'Transformer.vocab_size 12 there, 10 here (rows' in message
  assert '--gin.Transformer.vocab_size=12' in message


@pytest.mark.parametrize(
  'settings, cause',
  [
    ({'decoder_layers': 3}, 'decoder_layers 2 there, 3 here'),
    ({'encoder_layers': 0}, 'encoder_layers 1 there, 0 here'),
    ({'embed_dim': 8}, 'embed_dim 6 there, 8 here'),
    ({'mlp_dim': 10}, 'mlp_dim 8 there, 10 here'),
    ({'gated': False}, 'gated True there, False here'),
    ({'num_heads': 4, 'head_dim': 2}, 'num_heads 2 there, 4 here'),
    (
      {'position': specs.T5Bias(per_layer=True)},
      'position.per_layer False there, True here',
    ),
    ({'position': specs.T5Bias(buckets=16)}, 'buckets 32 there, 16 here'),
    ({'bias': True}, 'missing'),
    ({'position': specs.Rope()}, 'left over'),
    ({'share_stacks': True, 'encoder_layers': 2}, 'left over'),
    ({'num_kv_heads': 1}, 'another shape'),
  ],
)
def test_differences_and_their_causes(settings, cause):
  assert cause in differences(FLAT, make_spec(**settings))


def test_differences_of_the_checkpoint_itself():
  lost = {k: x for k, x in FLAT.items() if k != QUERY.replace('0', '1')}
  message = differences(lost)
  assert '1 missing, 0 left over, 0 of another' in message
  assert 'query/kernel  -  ' in message.replace('-              ', '-  ')
  assert '1 left over' in differences(FLAT | {'decoder/new': np.ones(3)})
  turned = FLAT | {QUERY.replace('0', '1'): np.ones((8, 6), 'f4')}
  assert 'float32[8, 6]' in differences(turned)
  assert 'int32[6, 8]' in differences(FLAT | {QUERY: np.ones((6, 8), 'i4')})
  gap = {k.replace('layers_1', 'layers_7'): x for k, x in FLAT.items()}
  assert '14 missing, 14 left over' in differences(gap)


@pytest.mark.parametrize(
  'name, kind',
  [
    ('encoder/side_relpos_bias/rel_embedding', 'LongT5'),
    ('encoder/layers_0/mlp/expert/wi/kernel', 'a mixture of experts'),
  ],
)
def test_other_models_are_named(name, kind):
  assert f'it is of {kind}' in differences(FLAT | {name: np.ones(3, 'f4')})


@pytest.mark.parametrize(
  'gone',
  [
    'token_embedder/embedding',
    'encoder/layers_0/mlp/wo/kernel',
    'encoder/layers_0/attention/query/kernel',
  ],
)
def test_model_that_cannot_be_told(gone):
  tensors = {k: t5x_files.held(x) for k, x in FLAT.items() if k != gone}
  with pytest.raises(errors.CheckpointError, match=f'not a T5.*{gone} -'):
    t5x_names.spec_of(tensors)


# -- what is refused ----------------------------------------------------------

ARRAY = f'target.{QUERY.replace("/", ".")}'


def set_leaf(folder, value, name=QUERY):
  def change(tree):
    *above, last = name.split('/')
    node = tree['optimizer']['target']
    for part in above:
      node = node[part]
    node[last] = value(node[last]) if callable(value) else value

  t5x_files.edit(folder, change)


def store(**changes):
  """Changes where a spec says that its array is."""
  return lambda folder: set_leaf(
    folder, lambda spec: spec | {'kvstore': spec['kvstore'] | changes}
  )


def spec(**changes):
  return lambda folder: set_leaf(folder, lambda spec: spec | changes)


def zarray(**changes):
  return lambda folder: t5x_files.edit_zarray(folder / ARRAY, **changes)


def file(name, data, where=ARRAY):
  def change(folder):
    old = (folder / where / name).read_bytes()
    new = data(old) if callable(data) else data
    (folder / where / name).write_bytes(new)

  return change


def link(name):
  """Moves something out of the folder and leaves a link to it."""

  def change(folder):
    away = folder.parent / 'away'
    (folder / name).rename(away)
    (folder / name).symlink_to(away)

  return change


def pipe(folder):
  (folder / ARRAY / '0.0').unlink()
  os.mkfifo(folder / ARRAY / '0.0')


def huge(folder):
  """One chunk that says that it is 4 TiB, by both."""
  for part in ('0.1', '1.0', '1.1'):
    (folder / ARRAY / part).unlink()
  size = {'shape': [1 << 20, 1 << 20], 'chunks': [1 << 20, 1 << 20]}
  zarray(**size)(folder)
  spec(metadata=size)(folder)


def extension(code, *parts):
  data = msgpack.packb(parts)
  return lambda folder: set_leaf(folder, msgpack.ExtType(code, data))


def flip(data):
  return data[:-6] + bytes([data[-6] ^ 4]) + data[-5:]


def tree(data):
  return file('checkpoint', data, '.')


def swelling(_):
  """Two MiB, each of whose bytes makes an empty dict of 64 bytes."""
  many = {}
  for _ in range(3):
    many = [many] * 60
  return msgpack.packb({'target': [many] * 10})


HOSTILE = {
  'path above': (store(path='../x/'), 'the name of a folder beside it'),
  'path absolute': (store(path='/etc/'), 'the name of a folder beside it'),
  'path inside': (store(path='a/../../b'), 'the name of a folder beside it'),
  'path dots': (store(path='..'), 'the name of a folder beside it'),
  'path of the folder': (store(path=''), 'the name of a folder beside it'),
  'path a number': (store(path=3), 'the name of a folder beside it'),
  'kvstore http': (store(driver='http', base_url='http://x'), 'kvstore by one'),
  'kvstore memory': (store(driver='memory'), 'kvstore by one of'),
  'kvstore a url': (spec(kvstore='file:///etc/'), 'kvstore by one of'),
  'other driver': (spec(driver='n5'), "driver 'zarr'"),
  'cast': (spec(driver='cast', base={}), "driver 'zarr'"),
  'other array': (store(path=f'{ARRAY}x'), 'file is missing'),
  'linked array': (link(ARRAY), 'got a link, expected'),
  'linked chunk': (link(f'{ARRAY}/0.0'), 'got a link, expected'),
  'linked metadata': (link(f'{ARRAY}/.zarray'), 'got a link, expected'),
  'linked tree': (link('checkpoint'), 'got a link, expected'),
  'pipe': (pipe, 'pipe'),
  'huge shape': (huge, 'files are too small for the array'),
  'huge shape in chunks': (zarray(shape=[1 << 30, 8]), 'chunks of the array'),
  'shape beyond numbers': (zarray(shape=[1 << 70, 8]), 'shape [1180'),
  'shape negative': (zarray(shape=[-6, 8]), 'shape [-6, 8]'),
  'shape of nothing': (zarray(shape=[0, 8]), 'shape [0, 8]'),
  'shape a word': (zarray(shape='6'), "shape '6'"),
  'chunk larger': (zarray(chunks=[1 << 30, 4]), 'chunks [1073741824, 4]'),
  'chunk other rank': (zarray(chunks=[3]), 'chunks [3]'),
  'bomb': (file('0.0', gzip.compress(bytes(1 << 26), 1)), 'more bytes'),
  'chunk short': (file('0.0', gzip.compress(bytes(5))), 'fewer bytes'),
  'chunk cut': (file('0.0', lambda x: x[:-3]), 'Truncated'),
  'chunk flipped': (file('0.0', flip), 'incorrect data check'),
  'chunk empty': (file('0.0', b''), 'fewer bytes'),
  'chunk no gzip': (file('0.0', b'\x80\x04cos\nsystem'), 'header check'),
  'chunk missing': (
    lambda folder: (folder / ARRAY / '0.1').unlink(),
    f'no file {ARRAY}/0.1',
  ),
  'fill huge': (zarray(fill_value='x' * 100_000), 'file is too large'),
  'deep': (file('.zarray', b'[' * 60_000), 'not a JSON'),
  'raw, one byte': (
    lambda folder: (
      zarray(compressor=None)(folder),
      file('0.0', b'x')(folder),
    ),
    'fewer bytes',
  ),
  'raw and more': (zarray(compressor=None), 'bytes, expected 48 bytes'),
  'compressor of no name': (zarray(compressor={'id': None}), 'compressor'),
  'spec dtype a dict': (spec(dtype={'a': 1}), 'array is not what'),
  'spec shape a number': (spec(metadata={'shape': 3}), 'array is not what'),
  'no JSON': (file('.zarray', b'\xff'), 'not a JSON'),
  'objects': (zarray(dtype='|O'), 'dtype'),
  'fields': (zarray(dtype=[['a', '<f4']]), 'dtype'),
  'big endian': (zarray(dtype='>f4'), 'dtype'),
  'pickled': (zarray(filters=[{'id': 'pickle'}]), 'filters'),
  'by columns': (zarray(order='F'), "order 'F'"),
  'other codec': (zarray(compressor={'id': 'blosc'}), 'compressor'),
  'other zarr': (zarray(zarr_format=3), 'zarr_format 3'),
  'spec shape': (spec(metadata={'shape': [8, 6]}), 'expected float32[8, 6]'),
  'spec dtype': (spec(dtype='bfloat16'), 'expected bfloat16[6, 8]'),
  'object array': (extension(1, [1], 'object', b'x' * 8), "'object'"),
  'named bytes': (extension(1, [1], 'O', b'x' * 8), "array of 'O'"),
  'fields by name': (extension(1, [1], 'f4,f4', b'x' * 8), "'f4,f4'"),
  'array too short': (extension(1, [1 << 40], 'float32', b'x'), 'other bytes'),
  'array negative': (extension(1, [-1, -1], 'float32', b'xxxx'), '(-1, -1)'),
  'array of text': (extension(1, 'ab', 'float32', b'xxxx'), 'array of shape'),
  'extension of parts': (extension(1, [1], 'float32'), 'unpack'),
  'complex': (extension(2, 1.0, 2.0), 'an array or the name of one'),
  'unknown extension': (extension(42, 1), 'extension 42'),
  'uint16': (extension(1, [1], 'uint16', b'xx'), 'parameter of uint16'),
  'leaf a number': (lambda f: set_leaf(f, 3), 'an array or the name of one'),
  'leaf a list': (lambda f: set_leaf(f, [1]), 'an array or the name of one'),
  'placeholder': (
    lambda folder: set_leaf(folder, 'PLACEHOLDER://../x'),
    'the name of a folder beside it',
  ),
  'name': (lambda f: set_leaf(f, {'..': 3}), "'..'"),
  'name a path': (lambda f: set_leaf(f, {'a/b': 3}), "'a/b'"),
  'name empty': (lambda f: set_leaf(f, {'': 3}), "''"),
  'name a number': (lambda f: set_leaf(f, {1: 3}), 'not allowed for map key'),
  'name of bytes': (lambda f: set_leaf(f, {b'x': 3}), 'a name that is no text'),
  'name twice': (tree(b'\x82\xa1a\x01\xa1a\x01'), 'stands twice'),
  'tree cut': (tree(lambda x: x[:-9]), 'not a checkpoint in msgpack'),
  'tree and more': (tree(lambda x: x + b'x'), 'not a checkpoint in msgpack'),
  'tree empty': (tree(b''), 'not a checkpoint in msgpack'),
  'tree of text': (tree(b'model_checkpoint_path: "x"'), 'one of TensorFlow'),
  'tree pickled': (tree(b'\x80\x04cos\nsystem\n'), 'in msgpack'),
  'tree deep': (tree(b'\x81\xa1a' * 100_000), 'in msgpack'),
  'tree quite deep': (tree(b'\x81\xa1a' * 300 + b'\x01'), 'too deep'),
  'tree swells': (tree(swelling), 'more than 300000 parts'),
  'tree of long lists': (
    tree(msgpack.packb({'target': [0] * 65})),
    'max_array_len(64)',
  ),
  'tree of numbers': (tree(msgpack.packb({'target': 3})), 'an array or'),
  'nothing there': (tree(msgpack.packb({'version': 3})), 'no checkpoint of'),
  'version 2': (
    lambda f: t5x_files.edit(f, lambda tree: tree | {'version': 2}),
    'before, bfloat16 was stored as uint16',
  ),
  'version of text': (
    lambda f: t5x_files.edit(f, lambda tree: tree | {'version': 'x' * 999}),
    'another version',
  ),
}


def refused(folder):
  """The one message for a checkpoint that is wrong."""
  with pytest.raises(errors.CheckpointError) as found:
    _, tensors = t5x.read(folder)
    t5x_names.to_params(t5x_names.spec_of(tensors), tensors)
  message = str(found.value)
  assert message.isprintable() and len(message) < 1500
  return message


@pytest.mark.parametrize('case', HOSTILE)
def test_s4_s5_hostile(case, small):
  spoil, words = HOSTILE[case]
  spoil(small)
  held = pa.default_memory_pool().max_memory()
  assert words in refused(small)
  assert pa.default_memory_pool().max_memory() - held < 1 << 24


def test_t5x_644_metadata_of_an_array_is_missing(small):
  (small / ARRAY / '.zarray').unlink()
  message = refused(small)
  assert 'file is missing' in message and f'{ARRAY}/.zarray' in message


def test_linked_checkpoint_among_several(small):
  away = small.rename(small.parent / 'away')
  small.symlink_to(away)
  assert 'checkpoint is a link' in refused(small.parent)
  t5x.read(small)  # which the user names, who may


@pytest.mark.parametrize(
  'name, change',
  [
    ('manifest.ocdbt', flip),
    ('manifest.ocdbt', lambda data: data[:20]),
    ('manifest.ocdbt', lambda data: b''),
    ('d/*', lambda data: data[: len(data) // 2]),
    ('d/*', lambda data: b''),
  ],
)
def test_damaged_ocdbt(name, change, written, tmp_path):
  folder = shutil.copytree(written / 'ocdbt', tmp_path / 'x') / 'checkpoint_0'
  for file in (folder / 'state').glob(name):
    file.write_bytes(change(file.read_bytes()))
  refused(folder)


def test_damaged_values_of_ocdbt(tmp_path):
  x = np.random.default_rng(0).standard_normal((64, 64)).astype('f4')
  folder = t5x_files.write(tmp_path, 0, {'x': x}, 'ocdbt')
  _, tensors = t5x.read(folder)
  np.testing.assert_array_equal(tensors['x'].read(), x)
  for file in (folder / 'state' / 'ocdbt.process_0' / 'd').iterdir():
    file.write_bytes(file.read_bytes()[:4000])
  with pytest.raises(errors.CheckpointError, match='cannot read from a ch'):
    tensors['x'].read()


def test_linked_ocdbt(written, tmp_path):
  folder = shutil.copytree(written / 'ocdbt', tmp_path / 'x') / 'checkpoint_0'
  link('state/d')(folder)
  assert 'got a link, expected' in refused(folder)


@pytest.mark.parametrize('layout', ['placeholders', 'folders'])
def test_damaged_folders_of_orbax(layout, written, tmp_path):
  folder = shutil.copytree(written / layout, tmp_path / 'x') / 'checkpoint_0'
  (folder / 'state' / ARRAY / '0.0').unlink()
  assert 'chunks of the array are missing' in refused(folder)
