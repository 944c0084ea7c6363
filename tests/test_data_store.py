import contextlib
import json
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from t5x_lite import errors
from t5x_lite import specs
from t5x_lite import storage
from t5x_lite.data import arrays
from t5x_lite.data import building
from t5x_lite.data import making
from t5x_lite.data import store
from t5x_lite.data import vocabularies

READ = {'bad_lines': 0, 'blank': 0, 'first_bad': None, 'cut': 0}
BYTES = vocabularies.Bytes(extra_ids=0)


class Wide:
  """A vocabulary of 100,000 ids: words are numbers."""

  size, unk_id, fingerprint = 100_000, 2, 'wide'

  def encode_batch(self, texts):
    return [np.array(text.split(), np.int64) for text in texts]


def write(folder, documents, vocabulary=BYTES):
  folder.mkdir()
  building.write(
    folder, documents, vocabulary, lambda: {'fingerprint': 'f', 'read': READ}
  )
  return store.Store(folder)


@pytest.fixture
def small(monkeypatch):
  """Blocks of 7 and shards of about 30 numbers, tokenised by 50 characters."""
  monkeypatch.setattr(arrays, 'BLOCK', 7)
  monkeypatch.setattr(arrays, '_SHARD', 30)
  monkeypatch.setattr(making, '_BATCH', 50)


def documents(count, split='train'):
  rng = np.random.default_rng(0)
  return [
    (split, ''.join(map(chr, rng.integers(97, 123, rng.integers(1, 20)))))
    for _ in range(count)
  ]


def test_any_stretch_can_be_read(small, tmp_path):
  texts = documents(60)
  tokens = write(tmp_path / 's', texts).split('train')
  flat = np.concatenate(BYTES.encode_batch([text for _, text in texts]))
  assert tokens.num_tokens == len(flat) and tokens.num_documents == 60
  assert len(tokens.arrays['tokens']._shards) > 5
  for length in (1, 6, 7, 8, 31, 100, len(flat)):
    starts = np.arange(len(flat) - 1, -1, -1)
    rows = tokens.rows(starts, length)
    assert rows.dtype == np.int32 and rows.shape == (len(flat), length)
    padded = np.pad(flat, (0, length))
    for start, row in zip(starts, rows, strict=True):
      np.testing.assert_array_equal(row, padded[start : start + length])
  for i, (_, text) in enumerate(texts):
    assert BYTES.decode(tokens.document(i)) == text


def test_shards_may_end_in_a_short_record(small, tmp_path):
  # As many builders of one array would leave them.
  values, shards, folder = np.arange(100, 125), [], storage.path(tmp_path)
  for name, part in (
    ('a', values[:10]),
    ('b', values[10:12]),
    ('c', values[12:]),
  ):
    writer = arrays.ArrayWriter(folder, name, '<i8')
    writer.append(part)
    entry = writer.close()
    shards += entry['shards']
  array = arrays.Array(folder, entry | {'shards': shards})
  assert len(array) == 25
  assert array.read([0, 8, 24], 17).tolist() == [
    values[:17].tolist(),
    values[8:].tolist(),
    [124] + 16 * [0],
  ]


def test_documents_lie_end_to_end(tmp_path):
  # As T5 reads them: EOS comes with the corruption.
  texts = [('train', 'ab'), ('train', 'c\n'), ('train', 'de')]
  tokens = write(tmp_path / 's', texts).split('train')
  assert BYTES.decode(tokens.rows([0], 6)[0]) == 'abc\nde'
  assert tokens.arrays['documents'].read([0], 3).tolist() == [[0, 2, 4]]


def test_splits_are_apart(small, tmp_path):
  made = write(tmp_path / 's', [*documents(5), *documents(3, 'validation')])
  assert made.has('validation') and not made.has('test')
  assert made.split('validation').num_documents == 3
  with pytest.raises(errors.DataError, match='no such split .* got test'):
    made.split('test')


def test_numbers_take_the_bytes_that_they_need(tmp_path):
  texts = [('train', '99999 0 2 65536'), ('train', '2')]
  tokens = write(tmp_path / 'wide', texts, Wide()).split('train')
  assert tokens.arrays['tokens']._dtype == np.dtype('<u4')
  assert tokens.rows([0], 5).tolist() == [[99999, 0, 2, 65536, 2]]
  assert tokens.unknown == 2
  tokens = write(tmp_path / 'bytes', [('train', 'a')]).split('train')
  assert tokens.arrays['tokens']._dtype == np.dtype('<u2')


@pytest.mark.parametrize('id_', ['100000', '-1'])
def test_an_id_outside_the_vocabulary_is_refused(tmp_path, id_):
  with pytest.raises(errors.DataError, match=f'{id_}.*expected 0 to 99999'):
    write(tmp_path / 's', [('train', f'{id_} {id_}')], Wide())
  assert not (tmp_path / 's' / 'manifest.json').exists()


def test_the_same_text_makes_the_same_files(small, tmp_path):
  for name in ('a', 'b'):
    write(tmp_path / name, documents(40))
  a, b = ((tmp_path / n / 'manifest.json').read_text() for n in ('a', 'b'))
  assert a == b and 'sha256' in a


# -- damage -------------------------------------------------------------------


def shards(folder):
  return sorted(folder.glob('*/*.arrayrecord-*'))


def test_a_damaged_file_is_named(small, tmp_path):
  folder = tmp_path / 's'
  write(folder, documents(40)).verify()
  for path in shards(folder):
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(errors.DataError, match=f'damaged at {path}; got'):
      store.Store(folder)
    path.unlink()
    with pytest.raises(errors.DataError, match=f'{path}; got no file'):
      store.Store(folder)
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 4
    path.write_bytes(flipped)
    with pytest.raises(errors.DataError, match=f'{path}; got sha256'):
      store.Store(folder).verify()
    path.write_bytes(whole)
  store.Store(folder).verify()


def test_a_flipped_bit_never_reads_as_a_token(small, tmp_path):
  folder = tmp_path / 's'
  made = write(folder, documents(60)).split('train')
  right = made.rows([0], made.num_tokens)
  path = shards(folder)[-1]
  whole = path.read_bytes()
  rng = np.random.default_rng(0)
  found = 0
  for at in rng.choice(np.flatnonzero(np.frombuffer(whole, np.uint8)), 60):
    flipped = bytearray(whole)
    flipped[at] ^= 1 << rng.integers(8)
    path.write_bytes(flipped)
    try:
      rows = store.Store(folder).split('train').rows([0], made.num_tokens)
      np.testing.assert_array_equal(rows, right)  # of no consequence
    except errors.DataError as e:
      assert str(path) in str(e)
      found += 1
  assert found > 30


@pytest.mark.parametrize(
  'text, match',
  [
    ('', 'damaged'),
    ('{"format": 2}', 'damaged'),
    ('[]', 'damaged'),
    ('{"format": 1}', 'of another format .* got 1, expected 2'),
  ],
)
def test_a_broken_manifest_is_refused(tmp_path, text, match):
  write(tmp_path / 's', documents(3))
  (tmp_path / 's' / 'manifest.json').write_text(text)
  with pytest.raises(errors.DataError, match=match):
    store.Store(tmp_path / 's')


def test_a_manifest_can_not_point_elsewhere(tmp_path):
  write(tmp_path / 's', documents(3))
  file = tmp_path / 's' / 'manifest.json'
  for old, new in (
    ('"tokens.arrayrecord', '"../../tokens.arrayrecord'),
    ('"train"', '"../s/train"'),
  ):
    text = file.read_text()
    file.write_text(text.replace(old, new))
    with pytest.raises(errors.DataError, match='damaged'):
      store.Store(tmp_path / 's')
    file.write_text(text)


# -- made once ----------------------------------------------------------------


@pytest.fixture
def corpus(tmp_path):
  path = tmp_path / 'corpus.txt'
  path.write_text(''.join(f'line {i} of a few\n' for i in range(200)))
  return path


def data(corpus, **fields):
  fields = {
    'lengths': {'inputs': 24},
    'store': str(corpus.parent / 'st'),
  } | fields
  return specs.Data(corpus=str(corpus), **fields)


def test_t5x_923_a_store_is_made_by_the_first_run_and_once(corpus, monkeypatch):
  """t5x#923: pretraining died, as nobody had made its cache."""
  seen = []
  made = building.open_or_build(data(corpus), BYTES, seen.append)
  assert made.folder.name == f'corpus-{made.fingerprint[:16]}'
  total = sum(made.split(s).num_tokens for s in ('train', 'validation'))
  assert seen[-1][:4] == (total, 1.0, 1, 1)
  assert str(seen[-1]) == f'{total:,} tokens, 100%, 0:00 left'
  assert made.split('train').num_documents > 170
  assert made.notes() == []
  monkeypatch.setattr(building, '_Build', None)
  again = building.open_or_build(data(corpus), BYTES)
  assert again.manifest == made.manifest
  assert os.listdir(corpus.parent / 'st') == [made.folder.name]


def test_what_tokens_depend_on_makes_another_store(corpus, tmp_path):
  # A cache of another tokenizer's tokens was reused in levanter (#633).
  first = building.open_or_build(data(corpus), BYTES)
  others = [
    building.open_or_build(data(corpus), vocabularies.Bytes(3)),
    building.open_or_build(data(corpus, document='file', held_out=0.0), BYTES),
    building.open_or_build(data(corpus, held_out=0.5), BYTES),
  ]
  stat = corpus.stat()
  text = corpus.read_text()
  corpus.write_text(text.replace('line 7', 'line 8', 1))
  os.utime(corpus, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # looks the same
  others.append(building.open_or_build(data(corpus), BYTES))
  assert len({other.fingerprint for other in [first, *others]}) == 5
  corpus.write_text(text)
  assert building.open_or_build(data(corpus), BYTES).folder == first.folder
  # What tokens do not depend on does not.
  moved = tmp_path / 'elsewhere' / 'corpus.txt'
  moved.parent.mkdir()
  corpus.rename(moved)
  same = data(moved, store=str(tmp_path / 'st'), lengths={'inputs': 99})
  assert building.open_or_build(same, BYTES).folder == first.folder


def test_levanter_633_a_store_of_something_else_is_refused(corpus):
  """levanter#633: a stale cache of another tokenizer was used."""
  first = building.open_or_build(data(corpus), BYTES)
  other = building.open_or_build(data(corpus, held_out=0.5), BYTES)
  for file in shards(first.folder):
    file.unlink()
  first.folder.rename(corpus.parent / 'old')
  other.folder.rename(first.folder)
  with pytest.raises(errors.DataError, match='other text or another vocab'):
    building.open_or_build(data(corpus), BYTES)


def test_a_corpus_that_changes_while_it_is_read_is_refused(corpus):
  def grow(progress):
    with open(corpus, 'a') as f:
      f.write('more\n')

  with pytest.raises(errors.DataError, match='changed while it was read'):
    building.open_or_build(data(corpus), BYTES, grow)
  assert os.listdir(corpus.parent / 'st') == []


def test_the_faster_of_two_machines_wins(corpus, monkeypatch):
  monkeypatch.setattr(
    building.storage, 'lock', lambda *_, **__: contextlib.nullcontext()
  )

  def overtake(progress):
    if not any((corpus.parent / 'st').glob('corpus*')):
      building.open_or_build(data(corpus), BYTES)

  made = building.open_or_build(data(corpus), BYTES, overtake)
  made.verify()
  assert os.listdir(corpus.parent / 'st') == [made.folder.name]


def test_processes_of_one_machine_build_once(corpus):
  """The second waits for the lock, and reads what the first made."""
  built = []

  def build():
    building.open_or_build(
      data(corpus), BYTES, lambda _: built.append(threading.get_ident())
    )

  threads = [threading.Thread(target=build) for _ in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert len(set(built)) == 1


def test_a_killed_build_is_never_used(corpus):
  code = f"""
import os, signal
from t5x_lite import specs
from t5x_lite.data import building, vocabularies
data = specs.Data(corpus={str(corpus)!r}, lengths={{'inputs': 24}},
                  store={str(corpus.parent / 'st')!r})
building.open_or_build(data, vocabularies.Bytes(0),
                       lambda _: os.kill(os.getpid(), signal.SIGKILL))
"""
  killed = subprocess.run([sys.executable, '-c', code], check=False)
  assert killed.returncode == -signal.SIGKILL
  [left] = os.listdir(corpus.parent / 'st')
  assert left.startswith('.corpus-') and '.parts-' in left
  made = building.open_or_build(data(corpus), BYTES)
  made.verify()
  assert os.listdir(corpus.parent / 'st') == [made.folder.name]


def test_what_a_killed_build_left_is_deleted_in_time(corpus):
  made = building.open_or_build(data(corpus), BYTES)
  old, new = (made.folder.parent / f'.{made.folder.name}.{x}' for x in 'ab')
  for left in (old, new):
    (left / 'train').mkdir(parents=True)
  os.utime(old, (0, 0))
  made.folder.rename(corpus.parent / 'old')
  made = building.open_or_build(data(corpus), BYTES)
  found = sorted(os.listdir(corpus.parent / 'st'))
  assert found == sorted([made.folder.name, new.name])


def test_a_full_disk_is_told_and_leaves_nothing(corpus):
  corpus.write_text(9 * (400_000 * 'a' + '\n'))
  code = f"""
import resource
from t5x_lite import errors, specs
from t5x_lite.data import building, vocabularies
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
data = specs.Data(corpus={str(corpus)!r}, lengths={{'inputs': 24}},
                  store={str(corpus.parent / 'st')!r})
try:
  building.open_or_build(data, vocabularies.Bytes(0))
except errors.StorageError as e:
  print(e)
"""
  found = subprocess.run(
    [sys.executable, '-c', code], check=True, capture_output=True, text=True
  )
  assert 'File too large; fix: free some space' in found.stdout
  assert os.listdir(corpus.parent / 'st') == []


def test_reading_a_store_needs_no_tensorflow(corpus):
  made = building.open_or_build(data(corpus), BYTES)
  code = f"""
import sys
from t5x_lite import data, specs
spec = specs.Data(corpus={str(corpus)!r}, lengths={{'inputs': 24}}, extra_ids=0,
                  store={str(corpus.parent / 'st')!r})
store = data.open_or_build(spec, data.load_vocabulary(spec))
print(store.split('train').rows([0], 4).tolist())
print('tensorflow' in sys.modules, 'seqio' in sys.modules)
"""
  found = subprocess.run(
    [sys.executable, '-c', code], check=True, capture_output=True, text=True
  )
  rows = made.split('train').rows([0], 4).tolist()
  assert found.stdout.splitlines() == [str(rows), 'False False']


def test_notes_tell_what_was_met(tmp_path):
  made = write(tmp_path / 's', [('train', '2 2 5')], Wide())
  made.manifest['read'] = READ | {
    'bad_lines': 1,
    'blank': 2,
    'first_bad': 'a:3:4',
  }
  bad, blank, unknown = made.notes()
  assert 'a:3:4' in bad and '2 blank' in blank and '67%' in unknown
  json.dumps(made.manifest)
