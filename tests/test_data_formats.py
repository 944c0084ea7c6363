"""Compressed text, TFRecord, Parquet and TensorFlow datasets."""

import gzip
import json
import subprocess
import sys

import numpy as np
import pyarrow
import pytest
import tensorflow_datasets as tfds

from t5x_lite import data as data_lib
from t5x_lite import errors
from t5x_lite import specs
from t5x_lite.data import building
from t5x_lite.data import corpora
from t5x_lite.data import files
from t5x_lite.data import partition
from t5x_lite.data import sources
from t5x_lite.data import vocabularies
from tests import records
from tests import tiny
from tests.records import example
from tests.records import table
from tests.records import tfrecord
from tests.records import zstd

TEXTS = ['one\ntwo', 'thrée', ' ', '', 'four \0 \ufeff', 'x' * 5000]
LEFT = ['one\ntwo', 'thrée', 'four \0 \ufeff', 'x' * 5000]
VOCABULARY = vocabularies.Bytes(extra_ids=100)


def data(corpus, **fields):
  fields = {'lengths': {'inputs': 24}, 'held_out': 0.0} | fields
  return specs.Data(corpus=str(corpus), **fields)


def read(corpus, report=None, **fields):
  return [text for _, text in corpora.documents(data(corpus, **fields), report)]


# -- compressed ---------------------------------------------------------------


def test_text_and_json_lines_in_gzip_and_zstd(tmp_path):
  lines = 'one\ntwo\n\nthree\n'
  (tmp_path / 'a.txt.gz').write_bytes(gzip.compress(lines.encode()))
  (tmp_path / 'b.txt.zst').write_bytes(zstd(lines))
  line = json.dumps({'text': 'four'}) + '\n'
  (tmp_path / 'c.jsonl.zst').write_bytes(zstd(line))
  (tmp_path / 'd.ndjson.gz').write_bytes(gzip.compress(line.encode()))
  assert read(tmp_path / '*') == 2 * ['one\ntwo', 'three'] + 2 * ['four']


def test_several_streams_in_a_file_are_one_text(tmp_path):
  (tmp_path / 'a.txt.zst').write_bytes(zstd('one\ntw') + zstd('o\nthree'))
  halves = gzip.compress(b'one\ntw') + gzip.compress(b'o\nthree')
  (tmp_path / 'b.txt.gz').write_bytes(halves)
  assert read(tmp_path / '*') == 2 * ['one', 'two', 'three']


# -- records ------------------------------------------------------------------


@pytest.mark.parametrize('compression', ['', 'GZIP'])
def test_tfrecords_are_those_of_tensorflow(tmp_path, compression):
  name = 'a.tfrecord' + ('.gz' if compression else '-00000-of-00001')
  records = [example(body=text, n=3, many=['a', 'b']) for text in TEXTS]
  tfrecord(tmp_path / name, records, compression)
  report = sources.Report()
  assert read(tmp_path / name, report, field='body') == LEFT
  assert (report.documents, report.blank, report.lines) == (4, 2, 6)


def test_parquet_columns_of_every_kind_of_text(tmp_path):
  kinds = {
    'string': pyarrow.string(),
    'large': pyarrow.large_string(),
    'binary': pyarrow.binary(),
  }
  columns = {
    name: pyarrow.array([*TEXTS, None], kind) for name, kind in kinds.items()
  }
  columns['codes'] = columns['string'].dictionary_encode()
  table(tmp_path / 'a.parquet', columns, row_group_size=2)
  for field in columns:
    report = sources.Report()
    assert read(tmp_path / 'a.parquet', report, field=field) == LEFT
    assert (report.documents, report.blank, report.lines) == (4, 3, 7)


def test_row_groups_are_parts(tmp_path, monkeypatch):
  texts = [f'text {n} ' * 50 for n in range(300)]
  texts[222] = b'bad \xff'
  values = [x if isinstance(x, bytes) else x.encode() for x in texts]
  table(
    tmp_path / 'a.parquet',
    {'text': pyarrow.array(values, pyarrow.binary())},
    row_group_size=10,
    compression='none',
    use_dictionary=False,
  )
  monkeypatch.setattr(partition, '_SMALLEST', 20_000)
  monkeypatch.setattr(sources, '_BAD_SHARE', 0.1)
  corpus = corpora.Texts(data(tmp_path / 'a.parquet'))
  parts = corpus.parts()
  assert len(parts) > 4
  assert all(len(part.pieces) == 1 for part in parts)
  report = sources.Report()
  found = read(tmp_path / 'a.parquet', report)
  assert len(found) == 300 and found[222] == 'bad \ufffd'
  assert report.first_bad == f'{tmp_path}/a.parquet:223:5'


def test_files_of_every_kind_are_one_corpus(tmp_path):
  (tmp_path / 'a.txt').write_text('one\n\ntwo\n')
  (tmp_path / 'b.jsonl').write_text('{"text": "three\\n\\nfour"}\n')
  table(tmp_path / 'c.parquet', {'text': ['five']})
  tfrecord(tmp_path / 'd.tfrecord', [example(text='six')])
  found = read(tmp_path / '*')
  assert found == ['one', 'two', 'three\n\nfour', 'five', 'six']
  assert corpora.looks_like('x.parquet') and corpora.looks_like('tfds:x')


@pytest.mark.parametrize('kind', ['jsonl', 'parquet', 'tfrecord'])
def test_pairs_of_records(tmp_path, kind):
  rows = [('one', 'eins'), ('two', 'zwei'), ('three', 'drei')]
  path = tmp_path / f'a.{kind}'
  if kind == 'jsonl':
    lines = [json.dumps({'en': x, 'de': y}) for x, y in rows]
    path.write_text('\n'.join(lines))
  elif kind == 'parquet':
    table(path, {'en': [x for x, _ in rows], 'de': [y for _, y in rows]})
  else:
    tfrecord(path, [example(en=x, de=y) for x, y in rows])
  run = tiny.run(
    model=tiny.transformer(vocab_size=384),
    objective=specs.Supervised(),
    data=data(
      path,
      pair=('en', 'de'),
      lengths={'inputs': 8, 'targets': 8},
      store=str(tmp_path / 'st'),
    ),
  )
  store = data_lib.open_or_build(
    run.data, VOCABULARY, None, data_lib.origin(run, VOCABULARY)
  )
  inputs, _, targets, _ = store.split('train').pairs(np.arange(3), (8, 8))
  found = [
    (VOCABULARY.decode(x), VOCABULARY.decode(y))
    for x, y in zip(inputs, targets, strict=True)
  ]
  assert found == rows


def test_text_is_read_and_stored_without_tensorflow(tmp_path):
  (tmp_path / 'a.txt').write_text('one\ntwo\nthree\n')
  (tmp_path / 'b.jsonl.zst').write_bytes(zstd('{"text": "four"}\n'))
  table(tmp_path / 'c.parquet', {'text': ['five']})
  tfrecord(tmp_path / 'd.tfrecord', [example(text='six')])
  code = f"""
import sys
from t5x_lite import data, specs
spec = specs.Data(corpus={str(tmp_path / '*.*')!r}, lengths={{'inputs': 24}},
                  store={str(tmp_path / 'st')!r}, held_out=0.0)
store = data.open_or_build(spec, data.load_vocabulary(spec))
print(store.split('train').num_documents)
print({{'tensorflow', 'seqio', 'jax'}} & set(sys.modules))
"""
  found = subprocess.run(
    [sys.executable, '-c', code], check=True, capture_output=True, text=True
  )
  assert found.stdout.splitlines() == ['6', 'set()']


def test_a_flipped_bit_of_a_tfrecord_is_found_wherever_it_is(tmp_path):
  path = tfrecord(tmp_path / 'a.tfrecord', [example(text='abc')] * 2)
  whole = path.read_bytes()
  for at in range(len(whole)):
    flipped = bytearray(whole)
    flipped[at] ^= 16
    path.write_bytes(flipped)
    number = 1 + (at >= len(whole) // 2)
    with pytest.raises(errors.DataError, match=f'd, record {number}; got .* b'):
      read(path)


# -- TensorFlow datasets ------------------------------------------------------


@pytest.fixture(scope='module')
def leaflets(tmp_path_factory):
  """The folder of a dataset of three shards."""
  folder = tmp_path_factory.mktemp('tfds')
  builder = records.Leaflets(data_dir=str(folder))
  builder.download_and_prepare(
    download_config=tfds.download.DownloadConfig(num_shards=3)
  )
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('TFDS_DATA_DIR', str(folder))
    yield folder


@pytest.mark.parametrize('name', ['leaflets', 'leaflets:1.2.0'])
def test_a_dataset_by_name(leaflets, monkeypatch, name):
  # Its splits and version are known without a builder.
  monkeypatch.setattr(sources, '_ask', None)
  corpus = corpora.find(data(f'tfds:{name}'))
  assert corpus.dataset == 'leaflets:1.2.0'
  assert corpus.splits == ('train', 'validation')
  found = list(corpora.documents(data(f'tfds:{name}')))
  for split, count in (('train', 60), ('validation', 9)):
    texts = {text for side, text in found if side == split}
    own = tfds.load('leaflets', split=split, data_dir=str(leaflets))
    wanted = {x['text'].decode() for x in own.as_numpy_iterator()}
    assert texts == wanted and len(texts) == count


def test_shards_of_a_dataset_are_parts(leaflets, monkeypatch, tmp_path):
  whole = building.open_or_build(
    data('tfds:leaflets', store=str(tmp_path / 'a')), VOCABULARY
  )
  monkeypatch.setattr(partition, '_SMALLEST', 10)
  corpus = corpora.Texts(data('tfds:leaflets'))
  parts = corpus.parts()
  assert [x.split for x in parts] == 3 * ['train'] + 3 * ['validation']
  made = building.open_or_build(
    data('tfds:leaflets', store=str(tmp_path / 'b')), VOCABULARY
  )
  for split, count in (('train', 60), ('validation', 9)):
    one, other = whole.split(split), made.split(split)
    assert one.num_documents == other.num_documents == count
    assert (
      one.rows([0], one.num_tokens).tolist()
      == other.rows([0], other.num_tokens).tolist()
    )


def test_a_dataset_of_pairs_and_wrong_names_of_it(leaflets):
  for name, fields, match in (
    (
      'tfds:leaflets',
      {'field': 'txt'},
      'no such field .*leaflets:1.2.0.* text',
    ),
    ('tfds:leaflets', {'field': 'n'}, 'field of a dataset is no text.*int64'),
    ('tfds:leaflet', {}, 'not ready .* leaflet'),
    ('tfds:leaflets:9.9.9', {}, 'not ready .* leaflets:9.9.9'),
    ('tfds:', {}, 'not ready'),
  ):
    with pytest.raises(errors.DataError, match=match):
      read(name, **fields)


def test_mock_data_of_a_public_dataset(monkeypatch, tmp_path):
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
  with tfds.testing.mock_data(num_examples=5):
    found = list(corpora.documents(data('c4')))
    assert [x for x, _ in found] == 5 * ['train'] + 5 * ['validation']
    with pytest.raises(errors.DataError, match='not ready.*no split is here'):
      read('tfds:imdb_reviews/plain_text')


def test_files_know_if_they_may_be_pairs():
  for path, may in (('a.jsonl', True), ('a.txt', False), ('a.pq', True)):
    assert files.Files('x', (path,), 'line', 'text').has_fields is may
