"""What was measured of a run's checkpoints, in `<workdir>/evaluation`.

`<name>-<step>.json` holds the metrics of one checkpoint on one task or on the
held-out documents, `<name>-<step>.jsonl` the examples, `metrics.json` the
metrics of all such files, and `constants.json` what one answer to all examples
of a task would get.
"""

import json
import re

from t5x_lite import evaluate
from t5x_lite import numbers
from t5x_lite import processes
from t5x_lite import storage

_ALL = 'metrics.json'
_CONSTANTS = 'constants.json'
_HIDDEN = ('tokens', 'text_tokens', 'examples', 'unigram_entropy')  # in a table


def _folder(workdir):
  return storage.path(workdir) / 'evaluation'


def file(workdir):
  """Where the metrics of all checkpoints are."""
  return _folder(workdir) / _ALL


def save(workdir, name, step, metrics, settings, lines=None):
  """Writes what was measured, the metrics last, and returns their file.

  Args:
    workdir: the run directory.
    name: of the task, or measures.HELD_OUT.
    step: of the checkpoint.
    metrics: plain JSON by name.
    settings: what they depend on, plain JSON; compared by `find`.
    lines: a dict for each example, or None.
  """
  folder = storage.make_folder(_folder(workdir))
  if not processes.is_first():
    return folder / f'{name}-{step}.json'
  if lines is not None:
    text = ''.join(
      json.dumps(numbers.to_json(line), ensure_ascii=False) + '\n'
      for line in lines
    )
    storage.write_text(folder / f'{name}-{step}.jsonl', text)
  result = {'name': name, 'step': step, 'metrics': metrics}
  text = json.dumps(
    numbers.to_json(result | {'settings': settings}),
    indent=2,
    ensure_ascii=False,
  )
  storage.write_text(folder / f'{name}-{step}.json', f'{text}\n')
  return folder / f'{name}-{step}.json'


def find(workdir, name, step, settings):
  """The metrics that were measured by the same settings, or None."""
  file = _folder(workdir) / f'{name}-{step}.json'
  result = processes.first(lambda: _read(file))
  if result is None or result.get('settings') != settings:
    return None
  return numbers.from_json(result['metrics'])


def gather(workdir):
  """Writes the metrics of all checkpoints, {name: {step: metrics}}."""
  if not processes.is_first():
    return
  found = {}
  for entry in _folder(workdir).iterdir():
    if match := re.fullmatch(r'(.+)-(\d+)\.json', entry.name):
      result = _read(entry)
      if result is not None:
        steps = found.setdefault(match[1], {})
        steps[int(match[2])] = result['metrics']
  found = {name: dict(sorted(found[name].items())) for name in sorted(found)}
  text = json.dumps(found, indent=2, ensure_ascii=False)
  storage.write_text(file(workdir), f'{text}\n')


def save_constants(workdir, found):
  """Adds {task: metrics} of constant answers to those that are known."""
  if processes.is_first() and found:
    text = json.dumps(numbers.to_json(constants(workdir) | found), indent=2)
    folder = storage.make_folder(_folder(workdir))
    storage.write_text(folder / _CONSTANTS, f'{text}\n')


def constants(workdir):
  """{task: metrics} of constant answers, as far as they are known."""
  try:
    found = json.loads((_folder(workdir) / _CONSTANTS).read_text())
    return {name: numbers.from_json(x) for name, x in found.items()}
  except (FileNotFoundError, ValueError, AttributeError):
    return {}


def measured(workdir):
  """{name: {step: metrics}} of `gather`."""
  try:
    found = json.loads(file(workdir).read_text())
  except FileNotFoundError:
    return {}
  return {
    name: {int(step): numbers.from_json(x) for step, x in steps.items()}
    for name, steps in found.items()
  }


def _read(entry):
  """A result, or None where there is none that can be read."""
  try:
    result = json.loads(entry.read_text())
    return result if isinstance(result['metrics'], dict) else None
  except (FileNotFoundError, ValueError, LookupError, TypeError):
    return None


def tables(found, constants):
  """{step: {name: metrics}} as tables: lists of rows of text, the first a head.

  One checkpoint is one table, a row for each metric. Several have a table for
  each name, a row for each checkpoint. `constants` is {name: metrics}, too, of
  one answer to all examples.
  """
  if len(found) == 1:
    [here] = found.values()
    return [
      [('name', 'metric', 'examples', 'constant', 'value')]
      + [
        (
          name,
          metric,
          _text(metrics.get('examples', '-')),
          _text(constants.get(name, {}).get(metric, '-')),
          _text(value),
        )
        for name, metrics in here.items()
        for metric, value in metrics.items()
        if not isinstance(value, (list, dict)) and metric != 'examples'
      ]
    ]
  made = []
  for name in {name: None for measured in found.values() for name in measured}:
    steps = {s: x[name] for s, x in sorted(found.items()) if name in x}
    columns = {
      metric: None
      for metrics in steps.values()
      for metric, value in metrics.items()
      if evaluate.is_number(value) and metric not in _HIDDEN
    }
    made.append(
      [(name, *columns)]
      + [
        (str(step), *(_text(metrics.get(column, '-')) for column in columns))
        for step, metrics in (steps | _constant(name, constants)).items()
      ]
    )
  return made


def _constant(name, constants):
  return {'constant': constants[name]} if constants.get(name) else {}


def _text(value):
  if isinstance(value, float):
    return f'{value:.4f}'
  text = f'{value:,}' if evaluate.is_number(value) else str(value)
  text = text if text.isprintable() else ascii(text)
  return text if len(text) <= 60 else f'{text[:57]}...'
