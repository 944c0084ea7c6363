"""Inference over many lines, in their order; whoever is stopped goes on."""

import dataclasses
import itertools
import os
import sys

import t5x_lite
from t5x_lite import errors
from t5x_lite import lines as inputs
from t5x_lite import parts
from t5x_lite import processes
from t5x_lite import record as records
from t5x_lite import reporting
from t5x_lite import specs
from t5x_lite import storage

BATCHES = 8  # in a part of a file, which is what is lost when stopped


@dataclasses.dataclass(frozen=True)
class Task:
  """What to make of each line.

  Attributes:
    mode: 'predict' or 'score'.
    length: most tokens to predict, or to fill a blank; None to score.
    batch_size: lines that are computed at once.
    candidates: for each blank, instead of a prediction; None for none.
    decoding: of predictions: specs.Greedy, Beam or Sample.
  """

  mode: str = 'predict'
  length: int | None = 64
  batch_size: int = 32
  candidates: int | None = None
  decoding: specs.Spec = specs.Greedy()

  def record(self):
    """As a flat dict of plain JSON."""
    how = records.record(self.decoding)
    return records.flatten(vars(self) | {'decoding': how})


def run(predictor, lines, task, output='-', shard=(0, 1)):
  """Writes a line of JSON for each line: what it had, and what was found.

  Args:
    predictor: infer.Predictor.
    lines: lines.Lines.
    task: Task.
    output: a path, or '-' for standard output.
    shard: (I, N) to make each N-th part of the file, from the I-th on; others
      make the rest, and the last of them joins all.

  Raises:
    DataError: a line is not what it should be; told before anything is
      compiled, unless they come from a stream and go to standard output.
    ConfigError: the output has unfinished results of another command.
  """
  if lines.is_stream and processes.count() > 1:
    raise errors.ConfigError(
      'several processes cannot share a stream',
      got=f'--input={lines.name}',
      expected='a file',
    )
  if output == '-':
    _to_stdout(predictor, lines, task)
  else:
    _to_file(predictor, lines, task, output, *shard)


def _to_stdout(predictor, lines, task):
  size, total = task.batch_size, None
  examples = _checked(predictor, lines, task)
  if not lines.is_stream:
    size = task.batch_size * BATCHES
    total = processes.first(
      lambda: sum(1 for _ in _checked(predictor, lines, task))
    )
    examples = ((line[0], lines.example(*line)) for line in lines)
  elif lines.name == '-' and sys.stdin.buffer.isatty():
    size = 1  # a person waits for an answer to each line
    print('one text a line; Ctrl-D ends', file=sys.stderr)
  silent = not processes.is_first() or sys.stdout.isatty()
  with reporting.Counter(total, silent=silent) as counter:
    for chunk in _chunks(examples, size):
      content = _results(predictor, task, lines, chunk, counter)
      if processes.is_first():
        sys.stdout.buffer.write(content)
        sys.stdout.flush()


def _to_file(predictor, lines, task, output, index, shards):
  _check_output(output, lines)
  lines.keep()
  count, digest = lines.digest()
  processes.same('the content of the input', digest)
  plan = {
    'version': t5x_lite.__version__,
    'step': predictor.step,
    'checkpoint': predictor.fingerprint,
    'input': digest,
    'lines': count,
    'format': 'jsonl' if lines.is_json else 'text',
    'field': lines.field,
  } | task.record()
  size = task.batch_size * BATCHES
  sizes = [min(size, count - start) for start in range(0, count, size)]
  work = parts.Parts(output, plan, len(sizes))
  if processes.first(work.is_done):
    processes.first(work.join)
    _say(f'{output} is done: delete it to make it anew')
    return
  missing = processes.first(work.missing)
  if len(missing) == len(sizes):  # else whoever began has checked them
    processes.first(lambda: sum(1 for _ in _checked(predictor, lines, task)))
  processes.first(work.begin)
  todo = {n for n in missing if n % shards == index}
  total = sum(sizes[index::shards])
  done = total - sum(sizes[n] for n in todo)
  if done:
    _say(f'going on: {done:,} of {total:,} lines are done')
  silent = not processes.is_first()
  with reporting.Counter(total, done, silent) as counter:
    for number, chunk in enumerate(_chunks(lines, size)):
      if number in todo:
        examples = [(line[0], lines.example(*line)) for line in chunk]
        content = _results(predictor, task, lines, examples, counter)
        if processes.is_first():
          work.write(number, content)
  if left := processes.first(work.join):
    _say(f'{left} of {len(sizes)} parts are left to other shards')
  else:
    _say(f'{count:,} lines in {output}')


def _say(line):
  """Tells on stderr: stdout has results alone."""
  if processes.is_first():
    print(line, file=sys.stderr, flush=True)


def _check_output(output, lines):
  """Refuses, before any work, what can't become the output."""
  path = storage.path(output)
  if lines.name != '-' and storage.absolute(lines.name) == storage.absolute(
    path
  ):
    raise errors.ConfigError(
      'the output is the input', got=f'--output={output}', fix='name another'
    )
  folder = storage.absolute(output).parent
  if storage.is_local(output) and (
    (path.exists() and not os.path.isfile(path))  # /dev/null, for one
    or not folder.is_dir()
    or not os.access(folder, os.W_OK)
  ):
    raise errors.StorageError(
      'cannot write the output',
      where=output,
      got='what is there is no file' if path.exists() else None,
      expected='a file in a folder that is there and can be written',
    )


def _chunks(items, size):
  items = iter(items)
  return iter(lambda: list(itertools.islice(items, size)), [])


def _checked(predictor, lines, task):
  """(number, example) of each line, once the model is known to take it."""
  for number, line in lines:
    example = lines.example(number, line)
    try:
      predictor.tokens(example[lines.field], task.length or 0)
      if lines.scored:
        predictor.targets(example['targets'])
    except errors.DataError as e:
      raise e.at(lines.place(number)) from e
    yield number, example


def _results(predictor, task, lines, examples, counter):
  """Lines of JSON for some numbered examples, as bytes.

  Lines of like length are computed together: a batch is as long as its longest.
  """
  texts = [
    [example[field] for field in lines.fields] for _, example in examples
  ]
  order = sorted(
    range(len(texts)), key=lambda n: [len(text) for text in texts[n]]
  )
  found = [None] * len(texts)
  rows = min(task.batch_size, len(texts))
  for batch in _chunks(order, task.batch_size):
    columns = list(zip(*(texts[n] for n in batch), strict=True))
    if task.mode == 'score':
      results = predictor.score(*columns, at_least=rows)
    elif task.candidates:
      results = [
        {'blanks': predictor.fill(text, task.candidates, task.length)}
        for text in columns[0]
      ]
    else:
      results = predictor.predict(
        *columns,
        task.length,
        task.decoding,
        [examples[n][0] for n in batch],
        at_least=rows,
      )
    for n, result in zip(batch, results, strict=True):
      found[n] = inputs.to_json(examples[n][1] | result)
    counter.add(len(batch))
  return b''.join(found)
