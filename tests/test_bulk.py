"""Whole inputs: in order, nothing lost, and stopped anywhere the same bytes."""

import io
import json
import random
import types

import numpy as np
import pytest

from t5x_lite import bulk
from t5x_lite import checkpoints
from t5x_lite import errors
from t5x_lite import lines
from t5x_lite import models
from t5x_lite import parts
from t5x_lite import record
from t5x_lite import specs
from tests import runs
from tests import tiny

TASK = bulk.Task(batch_size=2)
SIZE = TASK.batch_size * bulk.BATCHES  # lines of a part


class Killed(BaseException):
  """What stands for SIGKILL: nothing catches it."""


class Upper:
  """A predictor whose model is easy: notes the batches that it was given."""

  step, fingerprint = 4, 12345

  def __init__(self, batches=10**6):
    self.seen, self._batches = [], batches
    self.numbers = {}  # of lines, and what was there

  def tokens(self, text, room=0):
    if len(text) > 30:
      raise errors.DataError('text is too long for this model', where=text[:9])
    return list(text.encode())

  targets = tokens

  def _note(self, texts, at_least):
    self.seen.append(list(texts))
    if len(self.seen) > self._batches:
      raise Killed
    assert len(texts) <= at_least

  def predict(self, texts, length, how, numbers, at_least=0):
    self._note(texts, at_least)
    self.numbers.update(zip(numbers, texts, strict=True))
    return [
      {'prediction': text.upper()[:length], 'score': -float(len(text))}
      for text in texts
    ]

  def score(self, texts, targets, at_least=0):
    self._note(texts, at_least)
    return [
      {'score': -float(len(text + target))}
      for text, target in zip(texts, targets, strict=True)
    ]

  def fill(self, text, candidates, length):
    return [{'blank': text, 'candidates': [candidates, length]}]


@pytest.fixture
def source(tmp_path):
  """A file of lines of many lengths, some of them alike or empty."""
  draw = random.Random(0)
  texts = ['xy é'[: draw.randrange(5)] * draw.randrange(7) for _ in range(90)]
  (tmp_path / 'in.txt').write_text('\n'.join([*texts, 'the end']))
  return lines.Lines(str(tmp_path / 'in.txt'))


def wanted(source, length=64):
  """What the output should be, a line at a time."""
  return [
    {
      'inputs': text,
      'prediction': text.upper()[:length],
      'score': -float(len(text)),
    }
    for text in (source.example(*line)['inputs'] for line in source)
  ]


def read(file):
  *found, rest = file.read_bytes().split(b'\n')
  assert not rest
  return [json.loads(line) for line in found]


# -- order --------------------------------------------------------------------


@pytest.mark.parametrize('count', [0, 1, 2, 15, 16, 17, 91])
@pytest.mark.parametrize('batch_size', [1, 2, 1000])
def test_each_line_once_and_in_order(count, batch_size, source, tmp_path):
  text = ''.join(line.decode() for n, line in source if n <= count)
  (tmp_path / 'in.txt').write_text(text)
  out = tmp_path / 'out.jsonl'
  predictor = Upper()
  bulk.run(predictor, source, bulk.Task(batch_size=batch_size), str(out))
  assert out.exists() and read(out) == wanted(source)
  assert sum(map(len, predictor.seen)) == count
  assert predictor.numbers == {
    n: source.example(n, line)['inputs'] for n, line in source
  }
  assert all(len(texts) <= batch_size for texts in predictor.seen)
  assert {f.name for f in tmp_path.iterdir()} == {
    'in.txt',
    'out.jsonl',
    'out.jsonl.done',
  }


def test_lines_of_like_length_are_computed_together(source, tmp_path):
  predictor = Upper()
  bulk.run(predictor, source, TASK, str(tmp_path / 'out'))
  for start in range(0, len(predictor.seen), bulk.BATCHES):
    lengths = [
      len(text)
      for batch in predictor.seen[start : start + bulk.BATCHES]
      for text in batch
    ]
    assert lengths == sorted(lengths)


def test_fields_are_passed_on(tmp_path):
  examples = [{'id': n, 'inputs': 'x' * n, 'score': 5} for n in range(5)]
  file = tmp_path / 'in.jsonl'
  file.write_text(''.join(f'{json.dumps(e)}\n' for e in examples))
  bulk.run(Upper(), lines.Lines(str(file)), TASK, str(tmp_path / 'out'))
  found = read(tmp_path / 'out')
  assert [list(e) for e in found] == [
    ['id', 'inputs', 'score', 'prediction']
  ] * 5
  assert [(e['id'], e['score']) for e in found] == [(n, -n) for n in range(5)]


def test_scores_and_blanks(tmp_path):
  (tmp_path / 'in.txt').write_text('a\tbc\n\t\n')
  source = lines.Lines(str(tmp_path / 'in.txt'), scored=True)
  bulk.run(Upper(), source, bulk.Task('score', None), str(tmp_path / 'out'))
  assert read(tmp_path / 'out') == [
    {'inputs': 'a', 'targets': 'bc', 'score': -3.0},
    {'inputs': '', 'targets': '', 'score': 0.0},
  ]
  source = lines.Lines(str(tmp_path / 'in.txt'))
  task = bulk.Task(length=16, candidates=3)
  bulk.run(Upper(), source, task, str(tmp_path / 'blanks'))
  assert [e['blanks'][0]['candidates'] for e in read(tmp_path / 'blanks')] == [
    [3, 16],
    [3, 16],
  ]


# -- standard streams ---------------------------------------------------------


def test_standard_output_has_results_alone(source, capsysbinary):
  bulk.run(Upper(), source, TASK)
  found = capsysbinary.readouterr()
  assert [json.loads(line) for line in found.out.splitlines()] == wanted(source)
  assert not found.err


def test_a_stream_is_answered_as_it_comes(monkeypatch, capsysbinary):
  def typed():
    for n in range(5):
      yield f'{n}\n'.encode()
      if n == 3:
        assert capsysbinary.readouterr().out.count(b'\n') == 4

  stdin = types.SimpleNamespace(buffer=io.BytesIO())
  monkeypatch.setattr('sys.stdin', stdin)
  monkeypatch.setattr(lines.Lines, '__iter__', lambda _: enumerate(typed(), 1))
  bulk.run(Upper(), lines.Lines(), TASK)
  assert capsysbinary.readouterr().out.count(b'\n') == 1


def test_a_stream_into_a_file_goes_on_too(source, tmp_path, monkeypatch):
  content = b''.join(line for _, line in source)
  out = tmp_path / 'out'
  for batches in (20, 1000):
    stdin = types.SimpleNamespace(buffer=io.BytesIO(content))
    monkeypatch.setattr('sys.stdin', stdin)
    predictor = Upper(batches)
    try:
      bulk.run(predictor, lines.Lines(), TASK, str(out))
    except Killed:
      assert not out.exists()
  assert read(out) == wanted(source)
  assert len(predictor.seen) == 46 - 2 * bulk.BATCHES


# -- stopping -----------------------------------------------------------------


def go_on(source, out, batches, shard=(0, 1)):
  """A start that is killed after some batches: how many it computed."""
  predictor = Upper(batches)
  try:
    bulk.run(predictor, source, TASK, str(out), shard)
  except Killed:
    return batches
  return len(predictor.seen)


@pytest.mark.parametrize('shards', [1, 2, 3])
@pytest.mark.parametrize('seed', range(3))
def test_t5x_infer_goes_on_after_a_crash(
  source, shards, seed, tmp_path, capsys
):
  """As T5X's, but to the same bytes: killed at random, with 1 to 3 shards."""
  draw = random.Random(seed)
  undisturbed, out = tmp_path / 'undisturbed', tmp_path / 'out'
  bulk.run(Upper(), source, TASK, str(undisturbed))
  computed = 0
  left = set(range(shards))
  while left:
    index = draw.choice(sorted(left))
    batches = draw.randrange(30)
    found = go_on(source, out, batches, (index, shards))
    if found < batches:
      left.remove(index)
    computed += found // bulk.BATCHES
    assert out.exists() == (not left)
  assert out.read_bytes() == undisturbed.read_bytes()
  assert not (tmp_path / 'out.parts').exists()
  assert computed <= 6  # parts: none was computed twice
  before = out.stat().st_mtime_ns
  assert go_on(source, out, 0) == 0
  assert out.stat().st_mtime_ns == before
  assert 'is done' in capsys.readouterr().err


def test_another_number_of_shards_takes_over(source, tmp_path, capsys):
  out = tmp_path / 'out'
  assert go_on(source, out, 10, (1, 3)) == 10
  assert go_on(source, out, 1000, (0, 2)) == 3 * bulk.BATCHES
  assert 'left to other shards' in capsys.readouterr().err
  go_on(source, out, 1000)
  assert '64 of 91 lines are done' in capsys.readouterr().err
  assert read(out) == wanted(source)


@pytest.mark.parametrize(
  'change',
  [
    {'length': 3},
    {'batch_size': 3},
    {'candidates': 2},
    {'decoding': specs.Sample()},
    {'step': 5},
    {'fingerprint': 1},
    {'content': b'other\n' * 91},
    {'format': 'text', 'field': 'text'},
  ],
)
def test_results_of_other_commands_are_not_mixed(change, source, tmp_path):
  out = tmp_path / 'out'
  assert go_on(source, out, 10) == 10
  task, predictor, options = {}, Upper(), {}
  for name, value in change.items():
    if name in ('step', 'fingerprint'):
      setattr(predictor, name, value)
    elif name == 'content':
      (tmp_path / 'in.txt').write_bytes(value)
    elif name in ('format', 'field'):
      options[name] = value
    else:
      task[name] = value
  other = lines.Lines(source.name, **options)
  with pytest.raises(errors.ConfigError, match=r'out\.parts.*->.*delete'):
    bulk.run(predictor, other, bulk.Task(**{'batch_size': 2} | task), str(out))
  assert not predictor.seen


# -- wrong lines --------------------------------------------------------------


@pytest.mark.parametrize('output', ['-', 'out'])
def test_every_line_is_looked_at_before_any_work(source, output, tmp_path):
  file = tmp_path / 'in.txt'
  for bad in (b'\xff', b'x' * 31):
    file.write_bytes(b'good\n' * 99 + bad)
    predictor = Upper()
    name = output if output == '-' else str(tmp_path / 'out')
    with pytest.raises(errors.DataError, match=r'in\.txt:100'):
      bulk.run(predictor, source, TASK, name)
    assert not predictor.seen
  file.write_bytes(b'good\n' * 99)  # and once mended it is not another command
  bulk.run(predictor, source, TASK, str(tmp_path / 'out'))


def test_a_score_that_is_none_is_told(source, tmp_path):
  class Diverged(Upper):
    def predict(self, texts, length, how, numbers, at_least=0):
      return [{'score': float(np.nan)} for _ in texts]

  with pytest.raises(errors.NumericError, match='no number'):
    bulk.run(Diverged(), source, TASK, str(tmp_path / 'out'))


def test_outputs_that_cannot_be(source, tmp_path):
  for name in (tmp_path, tmp_path / 'no' / 'out', tmp_path / 'in.txt' / 'out'):
    with pytest.raises(errors.StorageError, match='cannot write the output'):
      bulk.run(Upper(), source, TASK, str(name))
  with pytest.raises(errors.ConfigError, match='the output is the input'):
    bulk.run(Upper(), source, TASK, str(tmp_path / 'x' / '..' / 'in.txt'))


def test_a_file_that_stopped_being_there(source, tmp_path, monkeypatch):
  """Whoever takes the folder away is told of, not a traceback."""

  def write(self, number, content):
    self.folder.rmtree()
    original(self, number, content)

  original = parts.Parts.write
  monkeypatch.setattr(parts.Parts, 'write', write)
  with pytest.raises(errors.StorageError, match='cannot write'):
    bulk.run(Upper(), source, TASK, str(tmp_path / 'out'))


# -- several processes --------------------------------------------------------


def test_t5x_250_two_processes_write_what_one_does(tmp_path, command):
  """Each holds a share of the parameters and rows; process 0 alone writes."""
  run = tiny.run(tiny.transformer(vocab_size=384, encoder_layers=1))
  model = models.build(run.model)
  with checkpoints.Checkpoints(tmp_path, specs.Checkpoints()) as saver:
    state = {'params': tiny.params(model)}
    saver.save(1, state, {'examples': 0}, record.record(run))
  texts = [f'{n} ' * n for n in range(19)]
  (tmp_path / 'in.txt').write_text('\n'.join(texts))
  for name, run in (
    ('one', command),
    ('two', lambda *words: runs.complete(2, 1, *words)),
  ):
    said = run(
      'infer',
      f'--workdir={tmp_path}',
      f'--input={tmp_path}/in.txt',
      f'--output={tmp_path}/{name}',
      '--batch_size=2',
      '--length=4',
    )
    assert said.count(f'19 lines in {tmp_path}/{name}') == 1
  one, two = read(tmp_path / 'one'), read(tmp_path / 'two')
  assert [example['inputs'] for example in two] == texts
  for example, other in zip(one, two, strict=True):
    score = pytest.approx(other['score'], rel=1e-5)
    assert example == other | {'score': score}
