"""Runs, corpora, vocabularies and stores in a bucket that fails at times."""

import hashlib
import json
import os
import platform
import pydoc_data.topics
import signal
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite import checkpoints
from t5x_lite import cli
from t5x_lite import errors
from t5x_lite import metrics
from t5x_lite import objects
from t5x_lite import specs
from t5x_lite import storage
from t5x_lite.data import building
from t5x_lite.data import vocabularies
from t5x_lite.interop import digests
from t5x_lite.interop import listing
from t5x_lite.interop import publishing
from t5x_lite.interop import safetensors
from t5x_lite.interop import tensors
from tests import gcs
from tests import runs


@pytest.fixture(scope='module')
def server():
  with gcs.Server() as found, pytest.MonkeyPatch.context() as patch:
    for name, value in found.environment.items():
      patch.setenv(name, value)
    objects.filesystem.cache_clear()
    objects.filesystem()
    # Of tries again: gcsfs waits for a second, then for two, for four, ...
    patch.setattr(
      sys.modules['gcsfs.retry'], 'min', lambda *_: 0.02, raising=False
    )
    yield found
  objects.filesystem.cache_clear()


@pytest.fixture
def bucket(server, request):
  """A bucket of the test's own; faults are forgotten after it."""
  digest = hashlib.sha256(request.node.name.encode()).hexdigest()
  yield server.make_bucket(f'bucket-{digest[:8]}')
  server.faults.clear()


@pytest.fixture
def names(server, bucket):
  """What objects there are."""
  return lambda: server.names(bucket.removeprefix('gs://'))


@pytest.fixture(scope='module')
def text():
  """A short corpus."""
  return '\n\n'.join(pydoc_data.topics.topics.values())[:40_000].encode()


SETTINGS = {'Checkpoints__every': 2, 'Transformer__vocab_size': 512}


@pytest.fixture(scope='module')
def undisturbed(tmp_path_factory, text):
  """The same run on the local disk, beside its corpus and vocabulary."""
  folder = tmp_path_factory.mktemp('undisturbed')
  (folder / 'my.txt').write_bytes(text)
  corpus, model = f'--corpus={folder}/my.txt', f'{folder}/my.model'
  assert cli.main(['vocab', corpus, '--size=500', f'--output={model}']) == 0
  options = [
    corpus,
    f'--workdir={folder}/run',
    f'--gin.Data.vocabulary={model}',
  ]
  assert cli.main(['train', *options, *runs.options(**SETTINGS)]) == 0
  return folder


def options(bucket, **settings):
  """Those of the same run in a bucket."""
  return {
    '--workdir': f'{bucket}/run',
    '--corpus': f'{bucket}/my.txt',
    '--gin.Data.store': f'{bucket}/stores',
    '--gin.Data.vocabulary': f'{bucket}/my.model',
  } | dict(x.split('=', 1) for x in runs.options(**SETTINGS | settings))


@pytest.fixture
def train(bucket, undisturbed, tmp_path, monkeypatch, capsys):
  """Trains the small run in the bucket, with a cache of the test's own."""
  for name in ('my.txt', 'my.model'):
    storage.upload(undisturbed / name, storage.path(bucket) / name)
  compiled = storage.cache_dir() / 'compiled'

  def run(option=None, code=0, cache='cache', **settings):
    (tmp_path / cache).mkdir(exist_ok=True)
    if not (tmp_path / cache / 'compiled').exists():
      (tmp_path / cache / 'compiled').symlink_to(compiled)
    monkeypatch.setenv('T5X_LITE_CACHE', str(tmp_path / cache))
    given = options(bucket, **settings)
    if option:
      given |= [option.split('=', 1)]
    joined = [f'{name}={value}' for name, value in given.items()]
    return command(capsys, 'train', *joined)(code)

  return run


def command(capsys, *arguments):
  """What a command says that ends with this code."""

  def run(code=0):
    capsys.readouterr()
    found = cli.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert found == code, out + err
    assert 'Traceback' not in out + err
    return out + err

  return run


def assert_undisturbed(bucket, undisturbed):
  """The same bits, and the same lines of metrics."""
  workdir = storage.path(f'{bucket}/run')
  runs.assert_same_state(workdir, undisturbed / 'run', 6)
  assert [
    line
    for line in runs.metrics(workdir)  # measured where it ended, too
    if line['split'] == 'train' or line['step'] in (0, 6)
  ] == runs.metrics(undisturbed / 'run')


def kill(server, bucket, request):
  """Starts the run, and kills it amid a request."""
  fault = server.fail(f'POST .*name=run/checkpoints/{request}', slow=600.0)
  process = runs.start(
    'train',
    *(f'{name}={value}' for name, value in options(bucket).items()),
    JAX_NUM_CPU_DEVICES='8',  # as here: other sums have other last bits
    T5X_LITE_CACHE=str(storage.cache_dir()),
  )
  until = time.monotonic() + 200
  while not fault.met and process.poll() is None and time.monotonic() < until:
    time.sleep(0.02)
  process.send_signal(signal.SIGKILL)
  code, output = runs.finish(process)
  assert code == 137 and fault.met, output


@pytest.mark.faults
def test_a_killed_run_in_a_bucket_ends_as_one_on_the_disk(
  train, bucket, names, server, undisturbed, tmp_path, capsys
):
  kill(server, bucket, '4/manifest.json')
  assert 'run/lock' in names()
  said = train(cache='of-another-machine')
  # The lock's holder is known to be dead; the store is there.
  assert 'going on from step 2' in said
  assert 'waiting' not in said and 'tokenis' not in said
  assert_undisturbed(bucket, undisturbed)
  found = names()
  for name in (
    'config.json',
    'vocabulary.model',
    'checkpoints/4/manifest.json',
  ):
    assert f'run/{name}' in found
  assert 'run/lock' not in found
  workdir = f'{bucket}/run'
  command(capsys, 'evaluate', f'--workdir={workdir}')()
  assert 'run/evaluation/validation-6.json' in names()
  storage.write_text(f'{bucket}/in.txt', 'To be <extra_id_0>\n')
  said = command(
    capsys,
    'infer',
    f'--input={bucket}/in.txt',
    f'--workdir={workdir}',
    '--length=8',
  )()
  assert json.loads(said)['inputs'] == 'To be <extra_id_0>'
  # Copied to a disk, it is the same, and as well checked.
  for name in names():
    if name.startswith('run/'):
      (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
      storage.download(f'{bucket}/{name}', tmp_path / name)
  runs.assert_same_state(tmp_path / 'run', undisturbed / 'run', 4)


def test_a_folder_stays_when_the_only_step_is_removed(bucket):
  """Orbax lists it while it removes what a killed save left there."""
  folder = storage.path(f'{bucket}/run/checkpoints')
  for _ in range(2):
    with checkpoints.Checkpoints(f'{bucket}/run', specs.Checkpoints()) as saver:
      assert saver.steps() == [] and folder.exists()
      storage.write_text(folder / '2' / 'state' / 'd' / 'part', 'x')
  (folder / '2').rmtree(missing_ok=True)
  assert [entry.name for entry in folder.iterdir()] == ['.keep']


@pytest.mark.faults
@pytest.mark.parametrize(
  'request_', ['2/state/', '4/state/.*d/', '4/position', '4/commit_success']
)
def test_a_run_killed_at_other_times(
  train, bucket, server, undisturbed, request_
):
  kill(server, bucket, request_)
  train()
  assert_undisturbed(bucket, undisturbed)


# -- what passes --------------------------------------------------------------

PASSES = ({'status': 503}, {'cut': True}, {'lost': True}, {'slow': 0.5})


def each(server, *patterns):
  """Every kind of fault, once, for each of these kinds of request."""
  return [server.fail(p, **fault) for p in patterns for fault in PASSES]


def assert_met(faults):
  assert not [fault for fault in faults if not fault.met]


@pytest.mark.faults
def test_a_run_meets_every_fault(train, bucket, server, undisturbed):
  faults = each(
    server,
    'GET .*o/my.txt',
    'GET .*o.*prefix=run/checkpoints',
    'POST .*name=stores/.*tokens',
    'POST .*name=run/lock',
    'POST .*name=run/metrics',
    'POST .*checkpoints/4/state/.*/d/',
    'POST .*checkpoints/6/manifest.json',
    'POST .*checkpoints/4/commit_success',
  )
  train(Run__steps=3)
  train()
  assert_undisturbed(bucket, undisturbed)
  assert_met(faults)


STATE = {'params': {'kernel': np.arange(64.0).reshape(8, 8)}}


def save(bucket, *steps, keep=3):
  """Saves a small state at each of these steps."""
  spec = specs.Checkpoints(every=1, keep=keep)
  with checkpoints.Checkpoints(f'{bucket}/run', spec) as saver:
    for step in steps:
      state = jax.tree.map(lambda x: jnp.asarray(x + step), STATE)  # noqa: B023
      saver.save(step, state, {'examples': step}, {'steps': 10})
  return saver


def restore(bucket, step):
  reader = checkpoints.Checkpoints.reader(f'{bucket}/run')
  place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  abstract = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32, sharding=place), STATE
  )
  state, position = reader.restore(step, abstract)
  assert position == {'examples': step}
  np.testing.assert_array_equal(
    state['params']['kernel'], STATE['params']['kernel'] + step
  )


def test_checkpoints(bucket, names):
  saver = save(bucket, 1, 2, 3, 4, keep=2)
  assert saver.steps() == [3, 4]
  assert not any(name.startswith('run/checkpoints/1/') for name in names())
  restore(bucket, 3)
  restore(bucket, 4)


@pytest.mark.parametrize('request_', ['state/.*d/', 'manifest', 'commit_succ'])
def test_checkpoints_are_saved_in_spite_of_faults(bucket, server, request_):
  faults = each(server, f'POST .*checkpoints/2/{request_}')
  save(bucket, 1, 2)
  assert_met(faults)
  faults = each(server, 'GET .*checkpoints/2/state', 'GET .*checkpoints/2/mani')
  restore(bucket, 2)
  assert_met(faults)


@pytest.mark.parametrize('during', ['state/.*d/', 'manifest', 'commit_succ'])
def test_f13_a_failed_save_is_told_and_the_next_one_works(
  bucket, names, server, during
):
  spec = specs.Checkpoints(every=1)
  state = jax.tree.map(jnp.asarray, STATE)
  with checkpoints.Checkpoints(f'{bucket}/run', spec) as saver:
    saver.save(1, state, {}, {})
    saver.wait()
    server.fail(f'POST .*checkpoints/2/{during}', times=10**6, status=403)
    with pytest.raises(errors.StorageError, match='save failed.*/2.*1 is safe'):
      saver.save(2, state, {}, {})
      saver.wait()
    assert not any(name.startswith('run/checkpoints/2/') for name in names())
    server.faults.clear()
    saver.save(2, state, {}, {})
  assert saver.steps() == [1, 2]


def test_what_a_killed_save_left_is_not_a_step(bucket, names, server):
  save(bucket, 1, 2)
  server.storage.delete_file(
    bucket.removeprefix('gs://'), 'run/checkpoints/2/commit_success.txt'
  )
  assert checkpoints.Checkpoints.reader(f'{bucket}/run').steps() == [1]
  save(bucket, 2)
  restore(bucket, 2)


@pytest.mark.parametrize('damage', ['other', 'gone'])
def test_a_damaged_object_is_named(bucket, names, server, damage):
  save(bucket, 1)
  name = max(n for n in names() if '/d/' in n)
  if damage == 'gone':
    server.storage.delete_file(bucket.removeprefix('gs://'), name)
  else:
    content = bytearray(storage.path(f'{bucket}/{name}').read_bytes())
    content[len(content) // 2] ^= 1
    storage.write_bytes(f'{bucket}/{name}', bytes(content))
  with pytest.raises(errors.CheckpointError, match=f'damaged at .*{name}'):
    restore(bucket, 1)


def test_metrics_are_there_before_the_step_and_seldom_else(
  bucket, server, names, monkeypatch
):
  server.requests.clear()
  with metrics.Metrics(f'{bucket}/run', 0) as writer:
    for step in range(200):
      writer.write(step, 'train', {'loss': step})
    assert 'run/metrics.jsonl' not in names()
    writer.flush()
    assert len(metrics.read(f'{bucket}/run')) == 200
    board = next(n for n in names() if n.startswith('run/tensorboard/train/'))
    size = storage.checksum(f'{bucket}/{board}')[0]
    monkeypatch.setattr(storage.time, 'monotonic', lambda: 10**9)
    writer.write(200, 'train', {'loss': 0.0})  # it is time
    assert len(metrics.read(f'{bucket}/run')) == 201
    writer.write(201, 'train', {'loss': 0.0})
  assert len(metrics.read(f'{bucket}/run')) == 202
  assert storage.checksum(f'{bucket}/{board}')[0] > size
  written = [r for r in server.requests if 'name=run/metrics' in r]
  assert len(written) <= 4
  with metrics.Metrics(f'{bucket}/run', 100) as writer:
    writer.write(101, 'train', {'loss': 0.5})
  found = metrics.read(f'{bucket}/run')
  assert len(found) == 102 and found[-1]['loss'] == 0.5


# -- stores -------------------------------------------------------------------


@pytest.fixture
def build(bucket, text, tmp_path, monkeypatch):
  """Makes or opens the store of a corpus in the bucket, on some machine."""
  vocabulary = vocabularies.Bytes(extra_ids=0)
  storage.write_bytes(f'{bucket}/my.txt', text)
  built = []

  def run(machine='one', store='stores'):
    monkeypatch.setenv('T5X_LITE_CACHE', str(tmp_path / machine))
    data = specs.Data(
      corpus=f'{bucket}/my.txt',
      lengths={'inputs': 8},
      store=f'{bucket}/{store}',
    )
    built.clear()
    found = building.open_or_build(
      data, vocabulary, lambda *_: built.append(machine)
    )
    found.verify()
    return found, bool(built)

  return run


def test_a_store_is_made_once_for_all_machines(build, server, names):
  faults = each(server, 'GET .*o/my.txt', 'POST .*name=stores/.*train/tokens')
  first, made = build('one')
  assert made and storage.is_local(first.folder)
  assert_met(faults)
  faults = each(server, 'GET .*o/stores/.*train/tokens')
  second, made = build('two')
  assert not made and second.fingerprint == first.fingerprint
  assert_met(faults)
  assert not build('two')[1]
  uploads = [r for r in server.requests if 'POST' in r and 'name=stores' in r]
  assert 'manifest.json' in uploads[-1]


def test_a_store_without_a_manifest_is_made_anew(build, names, server, bucket):
  build('one')
  [manifest] = [n for n in names() if n.endswith('manifest.json')]
  server.storage.delete_file(bucket.removeprefix('gs://'), manifest)
  assert build('two')[1]
  assert not build('three')[1]


def test_a_damaged_store_is_named(build, names, bucket):
  build('one')
  [name] = [n for n in names() if 'train/tokens' in n]
  content = storage.path(f'{bucket}/{name}').read_bytes()
  storage.write_bytes(f'{bucket}/{name}', content[:-1] + b'x')
  folder = os.path.dirname(os.path.dirname(name))
  with pytest.raises(errors.DataError, match=f'damaged at {bucket}/{folder}'):
    build('two')


def test_a_name_that_leaves_the_folder_is_refused(build, monkeypatch, tmp_path):
  build('one')
  monkeypatch.setattr(storage, 'checksums', lambda _: {'../../../x': (1, 1)})
  with pytest.raises(errors.DataError, match=r"damaged.*'\.\./\.\./\.\./x'"):
    build('two')
  assert os.listdir(tmp_path / 'two' / 'stores') == []


def test_bytes_that_change_on_the_way_are_noticed(bucket, server, tmp_path):
  name, place = bucket.removeprefix('gs://'), storage.path(f'{bucket}/a')
  storage.write_bytes(place, b'as sent')
  storage.download(place, tmp_path / 'a')
  assert (tmp_path / 'a').read_bytes() == b'as sent'
  entry = server.storage.get_file_obj(name, 'a')
  server.storage.patch_object(name, 'a', entry | {'crc32c': 'AAAAAA=='})
  with pytest.raises(errors.StorageError, match='other bytes than are stored'):
    storage.download(place, tmp_path / 'a')
  with pytest.raises(errors.StorageError), storage.as_local(place):
    pass


# -- one process a workdir ----------------------------------------------------


@pytest.fixture
def hurried(monkeypatch):
  monkeypatch.setattr(objects, '_RENEWED', 0.2)
  monkeypatch.setattr(objects, '_PATIENCE', 1.5)


def elsewhere(monkeypatch):
  """From here on, this is another machine."""
  monkeypatch.setattr(platform, 'node', lambda: 'elsewhere')


def test_f22_a_workdir_is_kept_from_other_machines(
  bucket, names, hurried, monkeypatch
):
  host = platform.node()
  with storage.lock(f'{bucket}/run/lock'):
    elsewhere(monkeypatch)
    with (
      pytest.raises(errors.StorageError, match=f'another process.* on {host}'),
      storage.lock(f'{bucket}/run/lock'),
    ):
      pass
    assert 'run/lock' in names()
  assert 'run/lock' not in names()
  with storage.lock(f'{bucket}/run/lock'):
    pass


def test_a_lock_without_signs_of_life_is_taken_over(
  bucket, hurried, monkeypatch, capsys
):
  holder = {'process': 1, 'host': 'gone', 'id': 'x'}
  storage.write_text(f'{bucket}/run/lock', json.dumps(holder))
  begun = time.monotonic()
  with storage.lock(f'{bucket}/run/lock'):
    assert time.monotonic() - begun > 1.5
  assert 'process 1 on gone' in capsys.readouterr().out


def test_whoever_lost_the_lock_ends(bucket, hurried):
  left = []
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(objects.os, '_exit', left.append)
    with storage.lock(f'{bucket}/run/lock'):
      holder = {'process': 1, 'host': 'faster', 'id': 'x'}
      storage.write_text(f'{bucket}/run/lock', json.dumps(holder))
      until = time.monotonic() + 10
      while not left and time.monotonic() < until:
        time.sleep(0.05)
  assert left[0] == 7
  assert json.loads(storage.path(f'{bucket}/run/lock').read_text()) == holder


def test_a_lock_is_taken_in_spite_of_faults(bucket, server):
  faults = each(server, 'POST .*name=run/lock', 'GET .*run/lock')
  with storage.lock(f'{bucket}/run/lock'):
    assert_met(faults)


# -- what does not pass -------------------------------------------------------


@pytest.mark.parametrize(
  'option, code',
  [
    ('--workdir', 7),
    ('--corpus', 3),
    ('--gin.Data.vocabulary', 3),
    ('--gin.Data.store', 7),
  ],
)
def test_no_such_bucket(train, option, code):
  said = train(f'{option}=gs://no-such-bucket/a', code=code, Run__steps=1)
  said = said[said.index('t5x_lite: ') :]
  assert 'no-such-bucket' in said and len(said.splitlines()) < 5


@pytest.mark.parametrize(
  'pattern, place',
  [
    ('POST .*name=run/', '/run/lock'),
    ('GET .*my.txt', 'bucket-'),
    ('POST .*name=stores/', '/stores/'),
    ('POST .*name=run/config', '/run/config.json'),
  ],
)
def test_what_is_forbidden_is_one_message(train, names, server, pattern, place):
  server.fail(pattern, times=10**6, status=403)
  said = train(code=7)
  message = said[said.index('t5x_lite: ') :]
  assert place in message and len(message.splitlines()) <= 3
  assert 'run/lock' not in names() and 'compiled in' not in said


def test_other_kinds_of_storage_are_refused(train):
  assert 'gs://BUCKET' in train('--workdir=s3://bucket/run', code=2)


def test_without_gcsfs_it_is_one_message(train, monkeypatch):
  registry = sys.modules['fsspec.registry']._registry
  for name in ('gcs', 'gs'):
    if name in registry:
      monkeypatch.delitem(registry, name)
  monkeypatch.setitem(sys.modules, 'gcsfs', None)
  objects.filesystem.cache_clear()
  said = train(code=7)
  objects.filesystem.cache_clear()
  assert "pip install 't5x_lite[gcs]'" in said


# -- weights ------------------------------------------------------------------

WEIGHTS = {
  name: tensors.held(np.full(1000, n, np.float32))
  for n, name in enumerate('abc')
}


@pytest.mark.parametrize('shard_size', [10**9, 4000])
def test_weights_are_written_and_read_by_ranges(server, bucket, shard_size):
  folder = f'{bucket}/export'
  safetensors.write(folder, WEIGHTS, shard_size)
  found = safetensors.read(folder)
  server.requests.clear()
  assert found['b'].read().tolist() == [1] * 1000
  [request] = server.requests
  assert 'alt=media' in request
  file = 'model.safetensors' if shard_size > 4000 else 'model-00002-of-00003'
  assert file in request
  assert listing.diff_lines(WEIGHTS, found)[0] == 0
  server.fail('GET .*model', status=503)
  assert found['c'].read()[0] == 2


def test_damaged_or_missing_weights_in_a_bucket_are_told(server, bucket):
  with pytest.raises(errors.CheckpointError, match='no such object'):
    safetensors.read(f'{bucket}/nowhere')
  safetensors.write(f'{bucket}/export', WEIGHTS)
  file = storage.path(f'{bucket}/export') / 'model.safetensors'
  data = file.read_bytes()
  storage.write_bytes(file, data[:-1] + b'\1')
  with pytest.raises(errors.CheckpointError, match='SHA-256'):
    digests.check(file.parent)
  found = safetensors.read(file)
  index = f'{bucket}/other/model.safetensors.index.json'
  where = '../export/model.safetensors'
  storage.write_text(index, json.dumps({'weight_map': {'a': where}}))
  with pytest.raises(errors.CheckpointError, match='not in its folder'):
    safetensors.read(f'{bucket}/other')
  storage.write_bytes(file, data[:-100])
  with pytest.raises(errors.CheckpointError, match='changed while it was read'):
    found['c'].read()


def publish(folder):
  with publishing.publish(folder) as scratch:
    (scratch / 'config.json').write_text('{}')
    safetensors.write(scratch, WEIGHTS)


def test_an_export_to_a_bucket_is_complete_once_its_config_is_there(
  server, bucket, names
):
  """Killed at any upload there is none, and the next one begins anew."""
  folder = f'{bucket}/export'
  for upload in range(3):
    count = iter(range(9))
    with (
      pytest.MonkeyPatch.context() as patch,
      pytest.raises(KeyboardInterrupt),
    ):

      def stop(file, name, old=storage.upload, last=upload, count=count):
        if next(count) == last:
          raise KeyboardInterrupt  # as if killed: nothing is removed
        old(file, name)

      patch.setattr(storage, 'upload', stop)
      publish(folder)
    assert 'export/config.json' not in names()
    assert len(names()) == upload + 1  # and the list of what will be there
  storage.write_text(f'{folder}/mine', 'x')
  with pytest.raises(errors.StorageError, match='something already .* mine'):
    publish(folder)
  storage.path(f'{folder}/mine').unlink()
  publish(folder)
  wanted = ['config.json', 'digests.json', 'model.safetensors']
  assert names() == [f'export/{name}' for name in wanted]
  assert listing.diff_lines(WEIGHTS, safetensors.read(folder))[0] == 0
  # As if killed after the last upload.
  storage.write_text(f'{folder}/unfinished.json', json.dumps({'files': wanted}))
  with pytest.raises(errors.StorageError, match='something already'):
    publish(folder)
  assert len(names()) == 4
