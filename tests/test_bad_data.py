"""Broken corpora of every kind: one message each that names the culprit."""

import gzip
import json
import os
import re
import zlib

import pyarrow
import pytest

from t5x_lite import cli
from t5x_lite.data import formats
from t5x_lite.data import making
from t5x_lite.data import store
from t5x_lite.data import vocabularies
from tests.records import example
from tests.records import table
from tests.records import tfrecord
from tests.records import zstd

PAIRS = ['--gin.Run.objective=@Supervised()']
PAIRS += ['--gin.Data.lengths={"inputs": 8, "targets": 8}']
LINE = b'A line of plain text.\n'


def records(path, *texts):
  tfrecord(path, [example(text=x) for x in texts])
  return path.read_bytes()


def noisy(count):
  """Text that does not compress to nothing."""
  return b''.join(b'%d %d\n' % (n, zlib.crc32(b'%d' % n)) for n in range(count))


def many(path):
  """A TFRecord file of three records, as bytes."""
  return records(path, 'one', 'two', 'three')


def spoilt(data, at, by=255):
  found = bytearray(data)
  found[at] ^= by
  return bytes(found)


def hole(data):
  return data[:2000] + bytes(500) + data[2500:]


def columns(path):
  made = table(path, {'text': ['a', 'b'], 'n': [1, 2], 'l': [['a'], ['b']]})
  return made.read_bytes()


def no_rows(path):
  return table(path, {'text': pyarrow.array([], 'string')}).read_bytes()


def bad_page(path):
  whole = table(
    path, {'text': [f'text {n}' * 9 for n in range(5000)]}, compression='zstd'
  )
  return hole(whole.read_bytes())


# Name of the file: (its bytes, or a function of its path that gives them; what
# the message says). The file is named in each.
FILES = {
  'latin1.txt': ('Grüße\n'.encode('latin1') * 50, r':1:3; got 50 bad .*iconv'),
  'late.txt': (LINE * 900 + b'\xff\n' * 9, r':901:1; got 9 bad lines of 909'),
  'noise.txt': (os.urandom(5000) + b'\xff\xff\n', 'not UTF-8|no text'),
  'utf16le.txt': ('text\n'.encode('utf-16'), 'UTF-16.*iconv -f UTF-16'),
  'utf16be.txt': (b'\xfe\xff' + 'text\n'.encode('utf-16-be'), 'is UTF-16'),
  'mac.txt': (b'one\rtwo\rthree', r"CR alone.*tr '\\r'"),
  'empty.txt': (b'', 'corpus is empty.*0 bytes'),
  'blank.txt': (b' \n\n\t\n', 'corpus has no text.*got 3 lines'),
  'marks.txt': (b'\xef\xbb\xbf\n', 'corpus has no text'),
  'one.txt': (LINE, 'nothing is left to train on.*held_out=0'),
  'same.txt': (LINE * 9, 'nothing is left to train on.*copies'),
  'zipped.txt': (gzip.compress(LINE), 'gzip; fix: let its name end in .gz'),
  'zstd.txt': (zstd(LINE), 'zstd; fix: let its name end in .zst'),
  'archive.txt': (b'PK\x03\x04....', 'zip archive'),
  'paper.txt': (b'%PDF-1.5\n', 'PDF; fix: extract'),
  'bz.txt': (b'BZh91AY', 'bzip2'),
  'lines.db': (b'SQLite format 3\0...', 'SQLite'),
  'table.txt': (columns, r'Parquet; fix: let its name end in \.parquet'),
  'no.txt.gz': (b'plain', r'Not a gzipped file.*byte \d'),
  'cut.txt.gz': (gzip.compress(noisy(9000))[:-9000], r'end-of-st.*byte [\d,]+'),
  'crc.txt.gz': (spoilt(gzip.compress(LINE), -6), 'CRC check failed.*byte'),
  'page.txt.gz': (spoilt(gzip.compress(noisy(900)), 1000), 'byte'),
  'no.txt.zst': (b'plain', r'got .* byte \d'),
  'cut.txt.zst': (zstd(noisy(9000))[:-9000], r'got .* byte [\d,]+'),
  'broken.jsonl': (b'{"text": "a"}\n{"text": "b\n', r'not a line of JSON.*:2'),
  'list.jsonl': (b'{"text": "a"}\n[1]\n', r':2; got list, expected \{"text'),
  'field.jsonl': (b'{"body": "a"}\n', r":1; got fields 'body'.*Data\.field"),
  'number.jsonl': (b'\n{"text": 7}\n', r':2; got int in it'),
  'null.json': (b'{"text": null}\n', r':1; got NoneType in it'),
  'deep.json': (b'[' * 99999, r'not a line of JSON.*:1'),
  'half.jsonl.gz': (gzip.compress(noisy(9000))[:4000], r'end-of-stream.*4,000'),
  'cut.jsonl.zst': (
    zstd(b'{"text": "%s"}\n' % noisy(9000).replace(b'\n', b' '))[:-500],
    r'got .* byte [\d,]+',
  ),
  'head.tfrecord': (lambda path: many(path)[:-60], r'record 2; got .*byte \d+'),
  'data.tfrecord': (lambda path: many(path)[:-5], r'record 3; got .*byte \d+'),
  'length.tfrecord': (lambda path: spoilt(many(path), 1), 'record 1.*length'),
  'sum.tfrecord': (lambda path: spoilt(many(path), -1), r'record 3.*checksum'),
  'bits.tfrecord': (lambda path: spoilt(many(path), 30), r'record 1.*checksum'),
  'text.tfrecord': (LINE * 9, 'record 1; got a length that its checksum'),
  'other.tfrecord': (
    lambda path: tfrecord(path, [b'no example'] * 2).read_bytes(),
    'record 1$|not a tf.train.Example.*record 1',
  ),
  'name.tfrecord': (
    lambda path: tfrecord(path, [example(texts='a')]).read_bytes(),
    r"record 1; got fields 'texts'.*Data\.field=texts",
  ),
  'int.tfrecord': (
    lambda path: tfrecord(path, [example(text=7)]).read_bytes(),
    r'record 1; got 0 texts in it, expected a string',
  ),
  'two.tfrecord': (
    lambda path: tfrecord(path, [example(text=['a', 'b'])]).read_bytes(),
    r'record 1; got 2 texts in it',
  ),
  'gone.tfrecord.gz': (b'plain', 'Not a gzipped file'),
  'cut.parquet': (lambda path: columns(path)[:-9], 'cannot read .* end'),
  'noise.parquet': (os.urandom(999), 'cannot read .* end'),
  'rows.parquet': (no_rows, 'corpus has no text'),
  'page.parquet': (bad_page, 'row group 0; got'),
}  # fmt: skip


@pytest.fixture
def fails(tmp_path, capsys):
  """What the command says on a corpus; it must fail, and leave nothing."""

  def run(corpus, *arguments, code=3, where=None):
    store = f'--gin.Data.store={tmp_path / "stores"}'
    found = cli.main(['cache', f'--corpus={corpus}', store, *arguments])
    said = capsys.readouterr().err
    assert found == code, said
    assert said.startswith('t5x_lite: ') and 'Traceback' not in said
    assert len(said.splitlines()) <= 12 and len(said) <= 2000
    assert str(where or corpus) in said
    assert not list(tmp_path.glob('stores/*')), said
    return said

  return run


@pytest.mark.parametrize('name', FILES)
def test_a_broken_file(fails, tmp_path, name):
  content, says = FILES[name]
  path = tmp_path / name
  path.write_bytes(content(path) if callable(content) else content)
  said = fails(path)
  assert re.search(says, said, re.S), said


@pytest.mark.parametrize('name', ['latin1.txt', 'cut.txt.gz', 'bits.tfrecord'])
def test_a_broken_file_among_good_ones(fails, tmp_path, name):
  for n in range(3):
    (tmp_path / f'{n}.txt').write_bytes(LINE * 9 + b'%d\n' % n)
  content, says = FILES[name]
  path = tmp_path / name
  path.write_bytes(content(path) if callable(content) else content)
  assert re.search(says, fails(tmp_path / '*', where=path), re.S)


@pytest.mark.parametrize(
  'column, says',
  [
    ('txt', r"got fields 'text', 'n', 'l'.*Data\.field=text"),
    ('n', 'got int64 in it, expected a string'),
    ('l', 'got list<.*> in it'),
  ],
)
def test_a_column_that_is_none(fails, tmp_path, column, says):
  columns(tmp_path / 'a.parquet')
  said = fails(tmp_path / 'a.parquet', f'--gin.Data.field={column}')
  assert re.search(says, said), said


@pytest.mark.parametrize(
  'corpus, says',
  [
    ('folder', r'is a folder.*a\.txt.*folder/\*\.txt'),
    ('corpsu.txt', r'no such corpus.*did you mean .*corpus\.txt'),
    ('*.md', 'no file matches'),
    ('pipe', 'not a regular file'),
    ('link.txt', 'no such corpus|cannot read'),
  ],
)
def test_what_is_no_file(fails, tmp_path, corpus, says):
  (tmp_path / 'folder').mkdir()
  (tmp_path / 'folder' / 'a.txt').write_bytes(LINE)
  (tmp_path / 'corpus.txt').write_bytes(LINE)
  (tmp_path / 'link.txt').symlink_to(tmp_path / 'nowhere')
  os.mkfifo(tmp_path / 'pipe')
  assert re.search(says, fails(tmp_path / corpus))


@pytest.mark.parametrize(
  'name, says',
  [
    ('tfds:no_such_dataset', 'dataset is not ready.*TFDS_DATA_DIR'),
    ('tfds:wiki40b/en', 'dataset is not ready.*tfds build wiki40b/en'),
    ('tfds:c4/en:3.1.0', 'dataset is not ready'),
    ('tfds:', 'dataset is not ready'),
    ('c4', 'dataset is not ready.*tfds build c4/en:3.1.0'),
  ],
)
def test_a_dataset_that_is_not_here(fails, tmp_path, monkeypatch, name, says):
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
  where = name.removeprefix('tfds:') or 'dataset'
  assert re.search(says, fails(name, where=where))


@pytest.mark.parametrize(
  'content, says',
  [
    (b'{"inputs": "a"}\n', r":1; got fields 'inputs'"),
    (b'{"inputs": "a", "targets": ["b"]}\n', ':1; got list in it'),
    (b'\n', 'no pair to train on'),
    (b'{"inputs": "a", "targets": "b"}\n' * 3, 'no pair .* 3 pairs.*held_out'),
  ],
)
def test_pairs_that_are_none(fails, tmp_path, content, says):
  (tmp_path / 'a.jsonl').write_bytes(content)
  assert re.search(says, fails(tmp_path / 'a.jsonl', *PAIRS))


def test_text_among_pairs(fails, tmp_path):
  (tmp_path / 'a.jsonl').write_bytes(b'{"inputs": "a", "targets": "b"}\n')
  (tmp_path / 'b.txt').write_bytes(LINE)
  assert 'has no pairs of inputs' in fails(tmp_path / '*', *PAIRS)


def test_paragraphs_of_records(fails, tmp_path):
  columns(tmp_path / 'a.parquet')
  said = fails(
    tmp_path / 'a.parquet',
    '--gin.Data.document=paragraph',
    where='Data.document',
  )
  assert 'documents already' in said


# -- while it is read ---------------------------------------------------------


@pytest.fixture
def meanwhile(monkeypatch):
  """Does something once the first part is made."""

  def patch(do):
    make = making.make

    def run(*arguments):
      make(*arguments)
      do()

    monkeypatch.setattr(making, 'make', run)

  return patch


@pytest.mark.parametrize('kind', ['txt', 'tfrecord', 'parquet', 'jsonl'])
def test_a_file_that_vanishes(fails, tmp_path, monkeypatch, meanwhile, kind):
  monkeypatch.setattr('t5x_lite.data.partition._SMALLEST', 10)
  texts = ['some text', 'more of it']
  for name in 'ab':
    path = tmp_path / f'{name}.{kind}'
    if kind == 'txt':
      path.write_text('\n'.join(texts))
    elif kind == 'jsonl':
      path.write_text('\n'.join(json.dumps({'text': x}) for x in texts))
    elif kind == 'tfrecord':
      records(path, *texts)
    else:
      table(path, {'text': texts})
  meanwhile(lambda: path.unlink(missing_ok=True))
  where = tmp_path / f'b.{kind}'
  said = fails(tmp_path / f'*.{kind}', '--gin.Data.document=line', where=where)
  assert 'cannot read the corpus to its end' in said


def test_a_file_that_changes(fails, tmp_path, meanwhile):
  path = tmp_path / 'a.txt'
  path.write_bytes(LINE * 9 + b'end\n')
  meanwhile(lambda: path.write_bytes(LINE * 9 + b'END\n'))
  assert 'corpus changed while it was read' in fails(path)


def test_a_vocabulary_is_part_of_what_a_store_is_of(command, tmp_path):
  (tmp_path / 'a.txt').write_bytes(LINE * 9 + b'end\n')
  arguments = ['cache', f'--corpus={tmp_path}/a.txt']
  arguments.append(f'--gin.Data.store={tmp_path}/st')
  for extra in ('', '--gin.Data.extra_ids=101', '--gin.Data.held_out=0.06'):
    command(*arguments, *([extra] if extra else []))
  assert len(list(tmp_path.glob('st/*/manifest.json'))) == 3


# -- what is odd but right ----------------------------------------------------


def test_odd_text_is_kept_and_what_is_dropped_is_told(command, tmp_path):
  odd = [
    '\0 nul',
    'mark \ufeff',
    'e\u0301 \u00e9',
    '\u202eright to left',
    'a\u200db',
  ]
  long = 'word ' * 1_700_000
  text = '\r\n'.join([*odd, '', ' ', long, *(f'{n}' for n in range(2000))])
  data = b'\xef\xbb\xbf' + text.encode() + b'\r\nbad \xff'
  (tmp_path / 'a.txt').write_bytes(data)
  said = command(
    'cache',
    f'--corpus={tmp_path}/a.txt',
    '--gin.Data.document=line',
    '--gin.Data.held_out=0',
    f'--gin.Data.store={tmp_path}/st',
  )
  assert '2 blank documents were left out' in said
  assert f'the first at {tmp_path}/a.txt:2009:5' in said
  assert '2,007 documents' in said
  [folder] = (tmp_path / 'st').iterdir()
  tokens = store.Store(folder).split('train')
  vocabulary = vocabularies.Bytes(100)
  for n, wanted in enumerate([*odd, long]):
    assert vocabulary.decode(tokens.document(n)) == wanted


def test_they_are_many():
  assert len(FILES) >= 45
  assert set(formats._NOT_TEXT) >= {b'PAR1', b'\x1f\x8b'}
