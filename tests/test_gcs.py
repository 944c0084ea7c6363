"""Runs, corpora, vocabularies and stores in a bucket that fails at times."""

import json

import pytest

from t5x_lite import cli
from t5x_lite import errors
from t5x_lite import metrics
from t5x_lite import objects
from t5x_lite import storage
from tests import gcs
from tests import runs


@pytest.fixture(scope='module')
def server():
  with gcs.Server() as found, pytest.MonkeyPatch.context() as patch:
    for name, value in found.environment.items():
      patch.setenv(name, value)
    objects.filesystem.cache_clear()
    yield found
  objects.filesystem.cache_clear()


@pytest.fixture
def bucket(server, request):
  """A bucket of the test's own; faults are forgotten after it."""
  name = f'bucket-{abs(hash(request.node.name))}'
  yield server.make_bucket(name)
  server.faults.clear()


@pytest.fixture
def name(bucket):
  return bucket.removeprefix('gs://')


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  return runs.write_corpus(tmp_path_factory.mktemp('text'))


@pytest.fixture
def command(capsys):
  def run(*arguments, code=0):
    capsys.readouterr()
    found = cli.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert found == code, out + err
    assert 'Traceback' not in out + err
    return out + err

  return run


def test_a_run_in_a_bucket_is_as_one_on_the_disk(
  server, bucket, name, corpus, command, tmp_path, monkeypatch
):
  monkeypatch.setenv('T5X_LITE_CACHE', str(tmp_path / 'cache'))
  storage.write_bytes(f'{bucket}/my.txt', corpus.read_bytes())
  remote = [
    'train',
    f'--corpus={bucket}/my.txt',
    f'--workdir={bucket}/run',
    f'--gin.Data.store={bucket}/stores',
  ]
  said = command(*remote, *runs.options(Run__steps=4))
  import time

  t = time.time()
  said = command(*remote, *runs.options(Run__steps=5))
  print(time.time() - t)
  print(len(server.requests))
  server.requests.clear()
  t = time.time()
  said = command(*remote, *runs.options())
  print(time.time() - t)
  print(said)
  print('\n'.join(server.names(name)))
  print('\n'.join(server.requests))
