"""Stores made in parts: by any number of processes, killed at any moment."""

import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from t5x_lite import errors
from t5x_lite import specs
from t5x_lite.data import building
from t5x_lite.data import corpora
from t5x_lite.data import files
from t5x_lite.data import formats
from t5x_lite.data import making
from t5x_lite.data import partition
from t5x_lite.data import sources
from t5x_lite.data import tasks
from t5x_lite.data import vocabularies
from t5x_lite.data import workers

BYTES = vocabularies.Bytes(extra_ids=0)


@pytest.fixture
def small(monkeypatch):
  """Parts of about 2,000 bytes."""
  monkeypatch.setattr(partition, '_SMALLEST', 2000)


@pytest.fixture
def corpus(tmp_path):
  """Two files of about eight parts; some of the lines are the same."""
  rng = random.Random(0)
  for name in ('a.txt', 'b.txt'):
    lines = [
      f'{rng.randrange(900)} ' + 'word ' * rng.randrange(30) for _ in range(90)
    ]
    (tmp_path / name).write_text('\n'.join(lines) + '\n')
  return tmp_path / '*.txt'


def data(corpus, **fields):
  fields = {'store': str(corpus.parent / 'st'), 'document': 'line'} | fields
  return specs.Data(corpus=str(corpus), lengths={'inputs': 24}, **fields)


def content(folder):
  """All that is in the folder of a store."""
  folder = pathlib.Path(folder)
  return {
    str(path.relative_to(folder)): path.read_bytes()
    for path in folder.rglob('*')
    if path.is_file()
  }


def alive(group):
  """The processes of a group that have not ended."""
  found = []
  for file in pathlib.Path('/proc').glob('[0-9]*/stat'):
    with contextlib.suppress(OSError):
      state, _, its_group = file.read_text().rpartition(')')[2].split()[:3]
      if its_group == str(group) and state != 'Z':
        found.append(file)
  return found


def left(corpus):
  """What lies beside the store."""
  folder = corpus.parent / 'st'
  return sorted(x for x in os.listdir(folder) if x[0] == '.')


def texts(store, split):
  tokens = store.split(split)
  return [BYTES.decode(tokens.document(i)) for i in range(tokens.num_documents)]


# -- parts --------------------------------------------------------------------


@pytest.mark.parametrize('document', ['line', 'paragraph', 'file'])
@pytest.mark.parametrize('end', ['\n', '\r\n'])
def test_parts_hold_each_document_once(tmp_path, monkeypatch, document, end):
  rng = random.Random(0)
  for n in range(5):
    lines = [
      rng.choice(['', ' ', 'é' * rng.randrange(1, 90), f'line {n} {i}'])
      for i in range(rng.randrange(200))
    ]
    text = end.join(lines) + rng.choice(['', end])
    (tmp_path / f'{n}.txt').write_bytes(text.encode())
  spec = data(tmp_path / '*.txt', document=document)
  corpus = corpora.Texts(spec)

  def read(size):
    monkeypatch.setattr(partition, '_SMALLEST', size)
    report, parts = sources.Report(), corpus.parts()
    found = [x for part in parts for x in corpus.examples(part, report)]
    assert sum(part.bytes for part in parts) == report.bytes
    return found, len(parts), report.lines, report.blank

  whole = read(1 << 20)
  assert whole[1] == 1
  for size in (50, 333, 1000, 3000):
    found = read(size)
    assert found[0] == whole[0] and found[2:] == whole[2:]
    assert found[1] > 3
  assert read(50)[1] > 30 or document == 'file'


def test_parts_of_a_large_corpus_are_neither_many_nor_large():
  for total, least, most in ((1e6, 1, 1), (1e9, 60, 80), (1e11, 250, 350)):
    pieces = [((f'{n}', 0, None), int(total / 999)) for n in range(999)]
    parts = partition.group({'train': pieces})
    assert least <= len(parts) <= most
    assert sum(len(part.pieces) for part in parts) == 999


def test_the_line_of_a_fault_is_that_of_the_file(tmp_path, small):
  lines = ['{"text": "some text that is here"}'] * 400
  lines[323] = '{"text": 7}'
  (tmp_path / 'a.jsonl').write_text('\n'.join(lines))
  spec = data(tmp_path / 'a.jsonl', document=None)
  assert len(corpora.Texts(spec).parts()) > 4
  with pytest.raises(errors.DataError, match=r'a\.jsonl:324; got int'):
    building.open_or_build(spec, BYTES)
  assert left(tmp_path / 'x') == []
  lines[323] = '{"text": "a\\ud800"}'
  (tmp_path / 'a.jsonl').write_text('\n'.join([*lines, *lines[:323] * 4]))
  report = sources.Report()
  list(corpora.documents(spec, report))
  assert report.first_bad == f'{tmp_path}/a.jsonl:324:2'
  assert report.bad_lines == 1


def test_a_document_that_is_too_long_is_stored_as_several(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(files, 'LONGEST', 1000)
  monkeypatch.setattr(formats, 'BLOCK', 300)
  long = 'é word ' * 600
  (tmp_path / 'a.txt').write_text(f'one\n{long}\ntwo\n{"ü" * 3000}\n')
  made = building.open_or_build(data(tmp_path / 'a.txt', held_out=0.0), BYTES)
  found = texts(made, 'train')
  assert ''.join(found) == f'one{long}two{"ü" * 3000}'
  assert found[0] == 'one' and max(map(len, found)) <= 1000
  read = made.manifest['read']
  assert read['cut'] == len(found) - 4 > 8 and read['lines'] == 4
  assert any('begin in the middle' in note for note in made.notes())


@pytest.mark.parametrize('document', ['paragraph', 'file'])
def test_a_long_line_of_a_longer_document(tmp_path, monkeypatch, document):
  monkeypatch.setattr(files, 'LONGEST', 1000)
  monkeypatch.setattr(formats, 'BLOCK', 300)
  text = f'one\n{"word " * 590}\ntwo\nthree'
  (tmp_path / 'a.txt').write_text(text)
  spec = data(tmp_path / 'a.txt', document=document, held_out=0.0)
  made = building.open_or_build(spec, BYTES)
  found = texts(made, 'train')
  assert found[0].startswith('one\nword word')
  assert found[-1].endswith('word \ntwo\nthree')
  assert ''.join(found) == text and len(found) == 3
  assert made.manifest['read']['cut'] == 2


# -- by several processes -----------------------------------------------------


def test_the_number_of_processes_changes_no_byte(corpus, small):
  alone = content(building.open_or_build(data(corpus), BYTES).folder)
  for count in (2, 3):
    spec = data(corpus, store=str(corpus.parent / f'{count}'))
    seen = []
    made = building.open_or_build(spec, BYTES, seen.append, count=count)
    assert content(made.folder) == alone
    assert seen[-1].share == 1.0 and seen[-1].parts == seen[-1].count > 5
    assert f'100%, {seen[-1].count} of {seen[-1].count} parts' in str(seen[-1])
    assert os.listdir(corpus.parent / f'{count}') == [made.folder.name]
  made.verify()
  spec = data(corpus)
  wanted = list(corpora.documents(spec))
  for split in ('train', 'validation'):
    found = sorted(text for side, text in wanted if side == split)
    assert sorted(texts(made, split)) == found


def test_those_who_make_parts_load_no_jax():
  code = (
    'import sys\nfrom t5x_lite.data import workers\n'
    'print({"jax", "tensorflow", "seqio", "grain"} & set(sys.modules))'
  )
  found = subprocess.run(
    [sys.executable, '-c', code], check=True, capture_output=True, text=True
  )
  assert found.stdout == 'set()\n'


def test_the_lowest_hash_of_all_parts_is_held_out(corpus, small):
  made = building.open_or_build(data(corpus, held_out=1e-9), BYTES)
  every = [text for _, text in corpora.documents(data(corpus, held_out=0.0))]
  lowest = min(every, key=corpora.hash64)
  held = texts(made, 'validation')
  assert held == [lowest] * every.count(lowest)
  assert sorted(held + texts(made, 'train')) == sorted(every)
  assert left(corpus) == []
  # The same as by reading it in one go.
  found = list(corpora.documents(data(corpus, held_out=1e-9)))
  assert [text for split, text in found if split == 'validation'] == held


def test_a_process_that_dies_is_told_and_what_is_made_stays(
  corpus, small, monkeypatch
):
  def kill(progress):
    if progress.parts == 3:
      for process in workers.multiprocessing.active_children():
        os.kill(process.pid, signal.SIGKILL)

  with pytest.raises(errors.DeviceError, match='got SIGKILL.*workers=1'):
    building.open_or_build(data(corpus), BYTES, kill, count=2)
  [folder] = left(corpus)
  made = [x for x in os.listdir(corpus.parent / 'st' / folder) if x[0] != '.']
  assert len(made) >= 3
  monkeypatch.setattr(making, 'RESULT', making.RESULT)
  again = []
  monkeypatch.setattr(
    making,
    'make',
    lambda job, number, part, tell, make=making.make: (
      again.append(number),
      make(job, number, part, tell),
    ),
  )
  store = building.open_or_build(data(corpus), BYTES)
  assert len(again) + len(made) == len(corpora.Texts(data(corpus)).parts())
  store.verify()
  assert left(corpus) == []


def test_a_fault_in_a_process_is_told_as_here(tmp_path, small):
  lines = ['{"text": "some text that is here"}'] * 400 + ['{"text": 7}']
  (tmp_path / 'a.jsonl').write_text('\n'.join(lines))
  spec = data(tmp_path / 'a.jsonl', document=None)
  with pytest.raises(errors.DataError, match=r'a\.jsonl:401; got int') as e:
    building.open_or_build(spec, BYTES, count=2)
  assert e.value.got == 'int in it'
  assert left(tmp_path / 'x') == []


# -- killed -------------------------------------------------------------------


class Killed(BaseException):
  """As an end in the middle, without the start of a process."""


@pytest.mark.parametrize('place', ['part', 'link', 'manifest', 'publish'])
def test_killed_anywhere_it_goes_on_to_the_same_store(
  corpus, small, monkeypatch, place
):
  spec = data(corpus, store=str(corpus.parent / 'undisturbed'))
  wanted = content(building.open_or_build(spec, BYTES).folder)
  for after in (0, 1, 5):
    count = 0

    def dies(function, after=after):
      def run(*args):
        nonlocal count
        count += 1
        if count > after:
          raise Killed
        return function(*args)

      return run

    with monkeypatch.context() as patch:
      if place == 'part':
        patch.setattr(making, 'make', dies(making.make))
      elif place == 'link':
        patch.setattr(building, '_link', dies(building._link))
      elif place == 'manifest':
        patch.setattr(building, '_write_manifest', dies(None))
        count = after
      else:
        patch.setattr(building.storage, 'sync', dies(building.storage.sync))
      with pytest.raises(Killed):
        building.open_or_build(data(corpus), BYTES)
    assert not list((corpus.parent / 'st').glob('*/manifest.json'))
  made = building.open_or_build(data(corpus), BYTES)
  assert content(made.folder) == wanted
  assert left(corpus) == []


CODE = """
import sys
from t5x_lite import specs
from t5x_lite.data import building, partition, vocabularies
if __name__ == '__main__':
  partition._SMALLEST = 2000
  data = specs.Data(corpus=sys.argv[1], lengths={'inputs': 24}, document='line',
                    store=sys.argv[2])
  building.open_or_build(data, vocabularies.Bytes(0), count=2)
"""


def start(corpus, folder):
  file = corpus.parent / 'build.py'
  file.write_text(CODE)
  return subprocess.Popen(
    [sys.executable, str(file), str(corpus), str(folder)],
    start_new_session=True,
  )


@pytest.mark.parametrize(
  'kills', [1, pytest.param(20, marks=pytest.mark.faults)]
)
def test_killed_at_random_with_its_processes(corpus, small, kills):
  spec = data(corpus)
  began = time.monotonic()
  assert start(corpus, corpus.parent / 'undisturbed').wait() == 0
  takes = time.monotonic() - began
  [undisturbed] = (corpus.parent / 'undisturbed').iterdir()
  rng, done = random.Random(kills), 0
  for n in range(kills):
    process = start(corpus, corpus.parent / 'st')
    time.sleep(takes * rng.uniform(0.4, 1.05))
    # Half the time those that it started live on, and must do no harm.
    end = os.killpg if n % 2 else os.kill
    end(process.pid, signal.SIGKILL)
    if process.wait() == 0:
      done += 1
      shutil.rmtree(corpus.parent / 'st')
  made = building.open_or_build(spec, BYTES)
  assert content(made.folder) == content(undisturbed)
  print(f'{done} of {kills} were through before they were killed')


_HEARING = """
import multiprocessing
import signal

from t5x_lite.data import workers


def told(pipe):
  pipe.send(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))


if __name__ == '__main__':
  context, pipes = multiprocessing.get_context('spawn'), []
  with workers._deaf():
    for _ in range(2):
      ours, theirs = context.Pipe()
      context.Process(target=told, args=[theirs]).start()
      pipes.append(ours)
  assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])
  print(*[pipe.recv() for pipe in pipes])
"""


def test_no_process_that_makes_parts_hears_ctrl_c(tmp_path):
  script = tmp_path / 'hearing.py'
  script.write_text(_HEARING)
  said = subprocess.check_output([sys.executable, script], text=True)
  assert said == 'True True\n'


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_signals_end_it_and_the_same_command_goes_on(tmp_path, command, number):
  line = 'A line of text, and some more of it.\n'
  file = tmp_path / 'big.txt'
  with open(file, 'w') as f:
    for n in range(1200):
      f.write(f'{n} ' + line * 1000 + '\n')
  arguments = ['cache', f'--corpus={file}', '--workers=2']
  arguments.append(f'--gin.Data.store={tmp_path}/st')
  process = subprocess.Popen(
    [sys.executable, '-m', 't5x_lite', *arguments],
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    start_new_session=True,
  )
  deadline = time.monotonic() + 60
  while not list(tmp_path.glob('st/.*/.part-*')):
    assert time.monotonic() < deadline
    time.sleep(0.05)
  os.killpg(process.pid, number)
  said, _ = process.communicate(timeout=30)
  assert process.returncode == {2: 130, 15: 143}[number], said
  assert 'Traceback' not in said
  while alive(process.pid):
    assert time.monotonic() < deadline
  file.write_text(json.dumps('short') + '\nand\nshort\n')
  assert 'documents' in command(*arguments)


# -- tasks of SeqIO -----------------------------------------------------------

MODULE = """
import seqio
import tensorflow as tf

VOCABULARY = seqio.ByteVocabulary(extra_ids=100)


def pair(dataset):
  def split(line):
    inputs, targets = tf.unstack(tf.strings.split(line, ':', 1), 2)
    return {{'inputs': inputs, 'targets': targets}}

  return dataset.map(split)


seqio.TaskRegistry.add(
  '{name}',
  source=seqio.TextLineDataSource({{'train': '{files}'}}),
  preprocessors=[
    pair,
    seqio.preprocessors.tokenize,
    seqio.preprocessors.append_eos_after_trim,
  ],
  output_features={{
    name: seqio.Feature(VOCABULARY, dtype=tf.int32)
    for name in ('inputs', 'targets')
  }},
)
"""


@pytest.fixture
def lines_task(tmp_path, monkeypatch):
  """A module that registers a task of four files, and options that name it."""
  for n in range(4):
    lines = [f'question {n} {i}: answer {i}' for i in range(50)]
    (tmp_path / f'lines-{n}.txt').write_text('\n'.join(lines) + '\n')
  name = f'lines_{tmp_path.name}'
  (tmp_path / f'{name}.py').write_text(
    MODULE.format(files=f'{tmp_path}/lines-*.txt', name=name)
  )
  monkeypatch.setattr(tasks, 'imported', [])  # those of other tests are gone
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(tmp_path)
  yield [
    f'--task_module={name}',
    '--gin_file=t5/bytes',
    '--gin.Data.corpus=None',
    f'--gin.Data.task={name}',
    '--gin.Run.objective=@Supervised()',
    '--gin.Data.lengths={"inputs": 32, "targets": 16}',
  ]
  import seqio

  seqio.TaskRegistry.remove(name)


def build_task(command, tmp_path, arguments, name, *more):
  store = tmp_path / name
  said = command('cache', *arguments, f'--gin.Data.store={store}', *more)
  assert ' pairs' in said
  [folder] = store.iterdir()
  return building.store.Store(folder), folder


def test_files_of_a_task_are_parts(
  command, tmp_path, lines_task, monkeypatch, small
):
  whole, _ = build_task(command, tmp_path, lines_task, 'a')
  monkeypatch.setattr(partition, '_SMALLEST', 10)
  made, _ = build_task(command, tmp_path, lines_task, 'b')
  shards = made.manifest['splits']['train']['arrays']['tokens']['shards']
  assert len(shards) == 4
  for split in ('train', 'validation'):
    one, other = whole.split(split), made.split(split)
    assert one.num_pairs == other.num_pairs
    assert (
      one.rows([0], one.num_tokens) == other.rows([0], other.num_tokens)
    ).all()
  first = BYTES.decode(made.split('train').rows([0], 12)[0])
  assert first == 'question 0 0'


@pytest.mark.parallel
def test_processes_find_a_users_task_by_its_module(
  command, tmp_path, lines_task, monkeypatch
):
  monkeypatch.setattr(partition, '_SMALLEST', 10)
  _, alone = build_task(command, tmp_path, lines_task, 'a')
  _, folder = build_task(command, tmp_path, lines_task, 'b', '--workers=2')
  assert content(folder) == content(alone)
  # One that is gone meanwhile is told as here.
  monkeypatch.setattr(tasks, 'imported', ['no_such_module'])
  options = ['--workers=2', f'--gin.Data.store={tmp_path / "c"}']
  said = command('cache', *lines_task[1:], *options, code=2)
  assert 'no such module at --task_module=no_such_module' in said
