import errno
import json
import math
import signal
import subprocess
import sys
import textwrap
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5x_lite import checkpoints
from t5x_lite import errors
from t5x_lite import manifest
from t5x_lite import specs
from t5x_lite import stored

SPEC = specs.Checkpoints(every=2, keep=2, keep_every=6)
POSITION = {'examples': 96}
RECORD = {'steps': 10, 'nested': {'rate': 0.1, 'none': None}}


def make_state(mesh_shape, scale=1.0):
  """A state with every kind of leaf and node that optax makes."""
  mesh = jax.make_mesh(
    mesh_shape,
    ('a', 'b'),
    axis_types=(jax.sharding.AxisType.Auto,) * 2,
    devices=jax.devices()[: math.prod(mesh_shape)],
  )
  tx = optax.chain(
    optax.clip_by_global_norm(1.0),
    optax.adafactor(1e-2, min_dim_size_to_factor=4),
    optax.adamw(1e-3),
  )
  params = {
    'kernel': jnp.arange(64.0 * 8).reshape(64, 8) * scale,
    'norm': {'scale': jnp.arange(8, dtype=jnp.bfloat16) * scale},
  }
  state = {
    'step': jnp.int32(7),
    'params': params,
    'opt_state': tx.init(params),
  }

  def sharding(x):
    axes = jax.P('a') if x.ndim and not x.shape[0] % 4 else jax.P()
    return jax.NamedSharding(mesh, axes)

  return jax.tree.map(lambda x: jax.device_put(x, sharding(x)), state)


def abstract(state):
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
  )


def assert_same(found, wanted):
  assert jax.tree.structure(found) == jax.tree.structure(wanted)
  for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
    assert x.dtype == y.dtype
    assert x.sharding == y.sharding
    np.testing.assert_array_equal(x, y)


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  """A run directory with one step, 2, and its state; not to be changed."""
  workdir, state = tmp_path_factory.mktemp('run'), make_state((4, 2))
  with checkpoints.Checkpoints(workdir, SPEC) as saver:
    saver.save(2, state, POSITION, RECORD)
  return workdir, state


@pytest.mark.parametrize('mesh_shape', [(4, 2), (2, 4), (8, 1), (2, 1), (1, 1)])
def test_orbax_648_678_restores_the_same_bits_on_any_devices(saved, mesh_shape):
  """orbax#648, #678: a restore failed on fewer devices."""
  reader = checkpoints.Checkpoints.reader(saved[0])
  wanted = make_state(mesh_shape)
  state, position = reader.restore(reader.latest(), abstract(wanted))
  assert_same(state, wanted)
  assert position == POSITION
  assert reader.read_position(2) == POSITION
  assert reader.read_record(2) == RECORD


def test_restores_parameters_alone(saved):
  workdir, state = saved
  reader = checkpoints.Checkpoints.reader(workdir)
  params = reader.restore_params(2, abstract(state['params']))
  assert_same(params, state['params'])


def test_arrays_are_zarr3_in_ocdbt(saved):
  state = saved[0] / 'checkpoints' / '2' / 'state'
  assert (state / 'manifest.ocdbt').exists()
  assert json.loads((state / '_METADATA').read_text())['use_zarr3']


def change(tree, path, leaf):
  """The tree with another leaf at a path, or without it."""
  head, _, rest = path.partition('/')
  if rest:
    return tree | {head: change(tree[head], rest, leaf)}
  tree = dict(tree)
  tree.pop(head, None)
  return tree if leaf is None else tree | {head: leaf}


@pytest.mark.parametrize(
  'path, shape, dtype, words',
  [
    ('params/kernel', (64, 9), 'float32', ['float32[64, 8]', 'float32[64, 9]']),
    ('params/kernel', (64, 8), 'bfloat16', ['float32[64, 8]', 'bfloat16[']),
    ('params/new', (3,), 'int32', ['-', 'int32[3]']),
    ('params/norm/scale', None, None, ['bfloat16[8]', '-']),
    ('opt_state', None, None, ['opt_state/1/0/v/kernel', 'and 4 more']),
    ('step', (), 'int64', ['int32[]', 'int64[]']),
  ],
)
def test_t5x_1196_1213_and_orbax_0_11_34_tells_which_arrays_do_not_fit(
  saved, path, shape, dtype, words
):
  """T5X: "keys do not match". Orbax filled up other shapes silently."""
  workdir, state = saved
  leaf = shape and jax.ShapeDtypeStruct(shape, np.dtype(dtype))
  if path == 'step':
    leaf = jax.ShapeDtypeStruct((), np.dtype(dtype))
  wanted = change(abstract(state), path, leaf)
  with pytest.raises(errors.CheckpointError) as e:
    checkpoints.Checkpoints.reader(workdir).restore(2, wanted)
  message = str(e.value)
  assert all(word in message for word in [path, *words]), message
  assert len(message.splitlines()) <= 12


def test_t5x_defect_8_saves_on_multiples_whatever_it_resumed_from(saved):
  """T5X took steps to save at, and divided by a period that was none."""
  reader = checkpoints.Checkpoints(saved[0], SPEC)
  assert [n for n in range(1, 9) if reader.should_save(n)] == [2, 4, 6, 8]


def test_keeps_the_newest_and_some_for_good(tmp_path):
  state = make_state((8, 1))
  with checkpoints.Checkpoints(tmp_path, SPEC) as saver:
    for step in range(2, 15, 2):
      saver.save(step, state, POSITION, RECORD)
  assert checkpoints.Checkpoints.reader(tmp_path).steps() == [6, 12, 14]


def test_writes_a_step_once(saved):
  workdir, state = saved
  with checkpoints.Checkpoints(workdir, SPEC) as saver:
    saver.restore(2, abstract(state))
    saver.save(2, state, POSITION, RECORD)  # as it is
  with (
    pytest.raises(errors.CheckpointError, match='there already.*delete it'),
    checkpoints.Checkpoints(workdir, SPEC) as saver,
  ):
    saver.save(2, state, POSITION, RECORD)


def test_torchtitan_1311_a_step_that_is_not_there_is_an_error(tmp_path, saved):
  """torchtitan#1311: the weights were random instead, silently."""
  (tmp_path / 'checkpoints').mkdir()
  for name in ('4', '5.orbax-checkpoint-tmp', 'notes'):
    (tmp_path / 'checkpoints' / name).write_text('no step')
  assert checkpoints.Checkpoints.reader(tmp_path).latest() is None
  with pytest.raises(errors.CheckpointError, match=r'got 3, expected one of'):
    checkpoints.Checkpoints.reader(saved[0]).read_record(3)
  with pytest.raises(errors.CheckpointError, match='there is none'):
    checkpoints.Checkpoints.reader(tmp_path).read_record(3)


def flip(file):
  content = bytearray(file.read_bytes())
  content[len(content) // 2] ^= 16
  file.write_bytes(content)


def truncate(file):
  file.write_bytes(file.read_bytes()[:-1])


def zero(file):
  file.write_bytes(bytes(file.stat().st_size))


def delete(file):
  file.unlink()


def add(file):
  (file.parent / 'stranger').write_text('?')


@pytest.mark.parametrize('damage', [flip, truncate, zero, delete, add])
def test_t5x_644_finds_damage_in_every_file(tmp_path, damage):
  """t5x#644: a published checkpoint lacked a file."""
  state = make_state((8, 1))
  with checkpoints.Checkpoints(tmp_path, SPEC) as saver:
    saver.save(2, state, POSITION, RECORD)
  reader = checkpoints.Checkpoints.reader(tmp_path)
  folder = tmp_path / 'checkpoints' / '2'
  files = [file for file in folder.rglob('*') if file.is_file()]
  assert len(files) > 12
  for file in files:
    content = file.read_bytes()
    damage(file)
    if file.parent == folder and (
      damage is add
      or file.name in ('_CHECKPOINT_METADATA', 'commit_success.txt')
    ):
      # Orbax's notes about the step are not read: nothing to be misled by.
      assert_same(reader.restore(2, abstract(state))[0], state)
    else:
      with pytest.raises(errors.CheckpointError) as e:
        reader.restore(2, abstract(state))
      where = file.parent / 'stranger' if damage is add else file
      assert str(where) in str(e.value)
    (file.parent / 'stranger').unlink(missing_ok=True)
    file.write_bytes(content)
  assert_same(reader.restore(2, abstract(state))[0], state)


def test_megatron_1570_and_orbax_h1_finds_each_flipped_bit(tmp_path):
  """Orbax read wrong values silently for each of 240 flipped bits."""
  state = make_state((8, 1))
  with checkpoints.Checkpoints(tmp_path, SPEC) as saver:
    saver.save(2, state, POSITION, RECORD)
  folder = tmp_path / 'checkpoints' / '2'
  files = [
    file
    for item in ('state', 'position', 'record', 'manifest.json')
    for file in [folder / item, *(folder / item).rglob('*')]
    if file.is_file()
  ]
  rng = np.random.default_rng(0)
  for _ in range(300):
    file = files[rng.integers(len(files))]
    content = bytearray(file.read_bytes())
    bit = rng.integers(8 * len(content))
    content[bit // 8] ^= 1 << (bit % 8)
    whole = file.read_bytes()
    file.write_bytes(content)
    with pytest.raises(errors.CheckpointError):
      manifest.check(folder, ('state', 'position', 'record'), None)
    file.write_bytes(whole)


def fail_once(monkeypatch, error):
  """Makes the next save fail, as a full disk would."""
  write, pending = manifest.write, [error]

  def failing(*args):
    if pending:
      raise pending.pop()
    write(*args)

  monkeypatch.setattr(manifest, 'write', failing)


def test_orbax_h3_a_failed_save_is_told_and_leaves_nothing(
  tmp_path, monkeypatch
):
  """Nor is it the latest step, as it is by Orbax."""
  state = make_state((8, 1))
  with checkpoints.Checkpoints(tmp_path, SPEC) as saver:
    saver.save(2, state, POSITION, RECORD)
    saver.wait()
    fail_once(monkeypatch, OSError(errno.ENOSPC, 'No space left on device'))
    saver.save(4, state, POSITION, RECORD)
    with pytest.raises(errors.StorageError) as e:
      saver.save(6, state, POSITION, RECORD)
    for word in ('checkpoints/4', 'No space left', 'step 2 is safe'):
      assert word in str(e.value)
    assert [f.name for f in (tmp_path / 'checkpoints').iterdir()] == ['2']
    assert saver.latest() == 2
    saver.save(6, state, POSITION, RECORD)
  assert checkpoints.Checkpoints.reader(tmp_path).steps() == [2, 6]


def test_keras_23609_maxtext_416_and_orbax_h2_a_failed_last_save(
  tmp_path, monkeypatch
):
  """Is an error: it was swallowed on the way out."""
  fail_once(monkeypatch, OSError(errno.ENOSPC, 'No space left on device'))
  with (
    pytest.raises(errors.StorageError, match='no step is safe'),
    checkpoints.Checkpoints(tmp_path, SPEC) as saver,
  ):
    saver.save(2, make_state((8, 1)), POSITION, RECORD)


def test_another_fault_is_told_with_the_failed_save(tmp_path, monkeypatch):
  fail_once(monkeypatch, OSError(errno.ENOSPC, 'No space left on device'))
  with (
    pytest.raises(ZeroDivisionError) as e,
    checkpoints.Checkpoints(tmp_path, SPEC) as saver,
  ):
    saver.save(2, make_state((8, 1)), POSITION, RECORD)
    raise ZeroDivisionError
  assert 'No space left' in e.value.__notes__[0]


def test_an_interrupt_abandons_the_save_under_way(tmp_path, monkeypatch):
  state, gate = make_state((8, 1)), threading.Event()
  saver = checkpoints.Checkpoints(tmp_path, SPEC)
  with pytest.raises(KeyboardInterrupt), saver:
    saver.save(2, state, POSITION, RECORD)
    saver.wait()
    monkeypatch.setattr(manifest, 'write', lambda *_: gate.wait(30) and 1 / 0)
    saver.save(4, state, POSITION, RECORD)
    assert saver.latest() == 2
    raise KeyboardInterrupt  # returns although the save can't go on
  reader = checkpoints.Checkpoints.reader(tmp_path)
  assert reader.steps() == [2]
  assert_same(reader.restore(2, abstract(state))[0], state)
  gate.set()
  with pytest.raises(errors.StorageError):
    saver.wait()


def test_a_killed_save_leaves_the_old_step(tmp_path):
  program = """
  import signal, sys
  import jax.numpy as jnp
  from t5x_lite import checkpoints, manifest, specs
  saver = checkpoints.Checkpoints(sys.argv[1], specs.Checkpoints(every=1))
  saver.save(1, {'step': jnp.int32(1)}, {}, {})
  saver.wait()
  def stall(*_):
    print('saving', flush=True)
    signal.pause()
  manifest.write = stall
  saver.save(2, {'step': jnp.int32(2)}, {}, {})
  saver.wait()
  """
  child = subprocess.Popen(
    [sys.executable, '-c', textwrap.dedent(program), tmp_path],
    stdout=subprocess.PIPE,
  )
  with child:
    assert child.stdout.readline() == b'saving\n'
    child.send_signal(signal.SIGKILL)
  folder = tmp_path / 'checkpoints'
  leftover = [f.name for f in folder.iterdir() if f.name != '1']
  reader = checkpoints.Checkpoints.reader(tmp_path)
  assert leftover and reader.steps() == [1]
  assert [f.name for f in folder.iterdir() if f.name != '1'] == leftover
  with checkpoints.Checkpoints(tmp_path, SPEC) as saver:
    state, _ = saver.restore(1, abstract({'step': jnp.int32(0)}))
    assert state == {'step': 1}
  assert [f.name for f in folder.iterdir()] == ['1']


def test_refuses_a_folder_it_cannot_write(tmp_path):
  (tmp_path / 'run').write_text('a file')
  with pytest.raises(errors.StorageError, match='cannot write folder'):
    checkpoints.Checkpoints(tmp_path / 'run', SPEC)


def test_maxtext_954_and_orbax_413_the_place_in_the_data_is_small(tmp_path):
  """The state of a tf.data iterator is as large as its buffers."""
  position = {'examples': 10**15, 'fingerprint': 'f' * 64}
  with checkpoints.Checkpoints(tmp_path, SPEC) as saver:
    saver.save(2, make_state((8, 1)), position, RECORD)
  folder = tmp_path / 'checkpoints' / '2' / 'position'
  size = sum(f.stat().st_size for f in folder.rglob('*') if f.is_file())
  assert 0 < size < 1024


def test_t5x_defect_4_arrays_have_their_own_dtype_on_the_disk(saved):
  """T5X's casts did not match any name, and all was float32."""
  found = stored.arrays(saved[0] / 'checkpoints' / '2')
  assert found['params/norm/scale'].dtype == jnp.bfloat16
  assert found['params/kernel'].dtype == np.float32


def test_orbax_0_5_15_two_savers_do_not_wait_for_each_other(tmp_path):
  """Two asynchronous checkpointers came to a deadlock."""
  state = make_state((8, 1))
  with (
    checkpoints.Checkpoints(tmp_path / 'a', SPEC) as a,
    checkpoints.Checkpoints(tmp_path / 'b', SPEC) as b,
  ):
    for step in (2, 4):
      a.save(step, state, POSITION, RECORD)
      b.save(step, state, POSITION, RECORD)
  for name in ('a', 'b'):
    assert checkpoints.Checkpoints.reader(tmp_path / name).steps() == [2, 4]
