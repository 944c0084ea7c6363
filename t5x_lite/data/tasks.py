"""Tasks and mixtures that SeqIO knows by name, read for evaluation.

They are the user's own Python, registered by a module that the command line
names, or built in.
"""

import collections
import hashlib
import importlib
import itertools
import os
import sys

import numpy as np

from t5x_lite import errors
from t5x_lite import processes
from t5x_lite.corruptions import features
from t5x_lite.data import builtin
from t5x_lite.data import seqio_vocabulary
from t5x_lite.data import sources
from t5x_lite.data import task_metrics

_OURS = ('train', 'validation')  # what our own splits go by
imported = []  # names of the modules that register tasks


def import_modules(names, say):
  """Runs the modules that register tasks; the current folder has them too.

  Args:
    names: dotted names.
    say: told which file runs.

  Raises:
    errors.ConfigError: there is no such module, or it fails.
  """
  if names:
    sources.libraries()  # before a module loads them in its own way
    sys.path.insert(0, os.getcwd())
  for name in names:
    if not all(map(str.isidentifier, name.split('.'))):
      raise errors.ConfigError(
        'not the name of a module',
        where='--task_module',
        got=repr(name),
        expected='words with dots between, such as my_folder.my_tasks',
      )
    try:
      module = importlib.import_module(name)
    except (Exception, SystemExit) as e:
      missing = isinstance(e, ModuleNotFoundError) and (
        e.name == name or name.startswith(f'{e.name}.')
      )
      raise errors.ConfigError(
        'no such module' if missing else 'module fails',
        where=f'--task_module={name}',
        got=None if missing else f'{type(e).__name__}: {e}',
        fix='run from the folder that it lies in, or install it'
        if missing
        else 'mend it; --debug shows where',
      ) from e
    imported.append(name)
    say(f'tasks of {name}: {module.__file__}')


class Task:
  """A split of a SeqIO task, in memory.

  Attributes:
    name: its own.
    lengths: tokens of inputs and targets at most; longer ones are cut.
    examples: dicts of numpy arrays, as SeqIO makes them.
    predicts, per_cent: whether its metrics ask for predictions, are of 100.
  """

  def __init__(self, task, split, lengths, vocabulary, limit=None):
    """Reads it.

    Args:
      task: seqio.Task.
      split: one of its splits.
      lengths: tokens of each feature at most.
      vocabulary: of the run; the task's must be the same.
      limit: the first so many examples.

    Raises:
      errors.ConfigError, errors.DataError: it does not fit, or can't be read.
    """
    self.name, self.lengths = task.name, lengths
    self._task, self._split = task, split
    seqio_vocabulary.check(task, vocabulary)
    self._metrics = task_metrics.of(task)
    self.per_cent = builtin.definition(task) is not None
    self.predicts = any(kind == 'PREDICTION' for kind, _ in self._metrics)
    self.examples = _read(task, split, lengths, limit)
    self.cut = 0  # examples that were longer than `lengths`
    self._answer = self._most_frequent()
    for number, example in enumerate(self.examples):
      longer = False
      for name in ('inputs', 'targets'):
        if np.any((example[name] < 0) | (example[name] >= vocabulary.size)):
          raise errors.DataError(
            f'{name} of a task have an id that the vocabulary lacks',
            where=f'{self.name}, example {number}',
            got=f'ids {example[name].min()} to {example[name].max()}',
            expected=f'0 to {vocabulary.size - 1}',
          )
        longer |= len(example[name]) > lengths[name]
        example[name] = example[name][: lengths[name]]
      self.cut += longer

  def _most_frequent(self):
    """The tokens of the target that comes most often.

    Its text counts, where a task keeps it: tokens may have been cut already,
    and be alike where the whole targets are not.
    """
    name = 'targets_pretokenized'
    if not isinstance(self.examples[0].get(name), bytes):
      targets = (tuple(x['targets'].tolist()) for x in self.examples)
      [(answer, _)] = collections.Counter(targets).most_common(1)
      return answer
    texts = (task_metrics.plain(x[name]) for x in self.examples)
    [(text, _)] = collections.Counter(texts).most_common(1)
    vocabulary = self._task.output_features['targets'].vocabulary
    return vocabulary.encode(text)

  def longest(self, feature):
    """Tokens of the longest row of a feature."""
    return max(len(example[feature]) for example in self.examples)

  def settings(self):
    """What is measured, as plain JSON; equal settings, equal examples."""
    digest = hashlib.sha256()
    for example in self.examples:
      for name in ('inputs', 'targets'):
        digest.update(np.int64(len(example[name])).tobytes())
        digest.update(example[name].astype(np.int32).tobytes())
    return {
      'examples': len(self.examples),
      'data': digest.hexdigest(),
      'split': self._split,
      'lengths': {name: self.lengths[name] for name in ('inputs', 'targets')},
    }

  def batch(self, model, places, inputs, targets, start_id):
    """Examples as a model reads them; a place past the last is left empty.

    Args:
      model: specs.Transformer.
      places: of the examples.
      inputs: tokens of a row of inputs, and
      targets: of targets.
      start_id: what the decoder reads first.
    """
    nothing = {'inputs': (), 'targets': ()}
    found = [
      self.examples[n] if n < len(self.examples) else nothing for n in places
    ]
    rows = (
      *features.pad_rows([row['inputs'] for row in found], inputs),
      *features.pad_rows([row['targets'] for row in found], targets),
    )
    return features.of_stack(model, rows, start_id)

  def measure(self, predictions_NL, scores_N):
    """What its own metrics say.

    Args:
      predictions_NL: tokens to and with EOS, or None where nothing predicts.
      scores_N: the log probability of each target.

    Returns:
      ({name: value}, a dict for each example: its texts and its score), both
      as plain JSON.
    """
    metrics, outputs = {}, {'PREDICTION': predictions_NL, 'SCORE': scores_N}
    for kind, metric in self._metrics:
      found = task_metrics.compute(
        metric, self._task, self.examples, outputs[kind]
      )
      if twice := metrics.keys() & found.keys():
        raise errors.DataError(
          'two metrics of a task have one name',
          where=self.name,
          got=', '.join(sorted(twice)),
        )
      metrics |= found
    return metrics, [
      self._line(n, predictions_NL, scores_N) for n in range(len(scores_N))
    ]

  def constant(self):
    """What its metrics say of one answer to all; see task_metrics.constant."""
    return task_metrics.constant(
      self._metrics, self._task, self.examples, self._answer
    )

  def _line(self, n, predictions_NL, scores_N):
    example = self.examples[n]
    line = {name: self._text(example, name) for name in ('inputs', 'targets')}
    if predictions_NL is not None:
      vocabulary = self._task.output_features['targets'].vocabulary
      text = vocabulary.decode(predictions_NL[n].tolist())
      line['prediction'] = task_metrics.plain(text)
    return line | {'score': float(scores_N[n])}

  def _text(self, example, name):
    if f'{name}_pretokenized' in example:
      return task_metrics.plain(example[f'{name}_pretokenized'])
    vocabulary = self._task.output_features[name].vocabulary
    return task_metrics.plain(vocabulary.decode(example[name].tolist()))


def load(spec, lengths, vocabulary, limit=None, say=print):
  """The tasks of a run.

  Args:
    spec: specs.Evaluation.
    lengths: tokens of the run's features, for what the spec leaves open.
    vocabulary: the run's.
    limit: at most so many examples of each.
    say: told what is left out or cut.

  Returns:
    ([Task, ...], {mixture: names of its tasks}), each task once.

  Raises:
    errors.ConfigError, errors.DataError: what can't be measured.
  """
  if not spec.tasks:
    return [], {}
  lengths = lengths | (spec.lengths or {})
  if unknown := lengths.keys() - {'inputs', 'targets'}:
    raise errors.ConfigError(
      'no such feature in Evaluation.lengths',
      got=sorted(unknown)[0],
      choices=('inputs', 'targets'),
      expected='inputs, targets',
    )
  for name in ('inputs', 'targets'):
    if name not in lengths:
      raise errors.ConfigError(
        f"Evaluation.lengths lacks '{name}', which tasks have",
        got=f'{lengths}',
        fix=f'--gin.Evaluation.lengths="{lengths | {name: 128}}"',
      )
  seqio, _ = sources.libraries()
  wanted, mixtures = {}, {}
  for name in spec.tasks:
    found = find(name, 'Evaluation.tasks', vocabulary, say)
    parts = seqio.get_subtasks(found)
    chosen = [task for task in parts if spec.split in splits(task)]
    if not chosen:
      there = sorted({split for task in parts for split in splits(task)})
      raise errors.ConfigError(
        'task has no such split',
        where=name,
        got=spec.split,
        expected=f'one of {", ".join(there)}',
        choices=there,
        fix='--gin.Evaluation.split=NAME',
      )
    if isinstance(found, seqio.Mixture):
      mixtures[name] = [task.name for task in chosen]
    for task in parts:
      if task not in chosen:
        say(f'{task.name} of {name} has no split {spec.split}: left out')
    wanted |= {task.name: task for task in chosen}
  tasks = []
  for task in wanted.values():
    tasks.append(Task(task, spec.split, lengths, vocabulary, limit))
    if tasks[-1].cut:
      say(
        f'{task.name}: {tasks[-1].cut} of {len(tasks[-1].examples)} examples '
        f'are cut to {_describe(lengths)}; Evaluation.lengths sets it'
      )
  return tasks, mixtures


def find(name, where, vocabulary, say=processes.say):
  """The task or mixture of a name: registered, or else built in.

  Args:
    name: of a task or mixture.
    where: the setting that gives it.
    vocabulary: of the run; what is built in gets it.
    say: told if a registered one hides one that is built in.

  Returns:
    seqio.Task or seqio.Mixture.

  Raises:
    errors.ConfigError: there is none.
  """
  if name in _OURS:
    raise errors.ConfigError(
      'a task has the name of a split of the run',
      where=where,
      got=name,
      fix='register it by another name',
    )
  offered = builtin.names()
  if found := builtin.registered(name):
    if name in offered:
      say(f'{name}: the one that is registered, not the one that is built in')
    return found
  if name in offered:
    return builtin.register(name, vocabulary)
  seqio, _ = sources.libraries()
  known = {*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()}
  known = sorted(known - offered)
  raise errors.ConfigError(
    'no such task or mixture',
    where=where,
    got=name,
    expected=f'one that is registered ({", ".join(known) or "none is"}) or '
    f'built in ({", ".join(sorted(offered))})',
    choices=[*known, *offered],
    fix='--task_module=MODULE runs the Python module that registers it',
  )


def splits(task):
  """The names of a task's splits."""
  try:
    return tuple(task.splits)
  except Exception as e:  # a dataset that is not on this machine, for one
    raise unreadable(task, e) from e


def read(task, split, lengths, limit=None, shard=(0, 1)):
  """Yields the examples of a split as SeqIO makes them, the same each time.

  Args:
    task: seqio.Task.
    split: one of its splits.
    lengths: tokens of each feature.
    limit: the first so many examples.
    shard: (which, of how many); each draws at random what is its own.
  """
  try:
    if builtin.definition(task):
      yield from itertools.islice(builtin.examples(task, split), limit)
      return
    dataset = task.get_dataset(
      sequence_length=lengths,
      split=split,
      shuffle=False,
      seed=shard[0],
      shard_info=sources.shard_info(*shard),
      use_cached=task.requires_caching,
      trim_output_features=False,
    )
    dataset = dataset if limit is None else dataset.take(limit)
    yield from dataset.as_numpy_iterator()
  except Exception as e:  # sources and preprocessors raise what they like
    raise unreadable(task, e) from e


def _read(task, split, lengths, limit):
  """The examples of a split, in order, the same each time."""
  examples = list(read(task, split, lengths, limit))
  if not examples:
    raise errors.DataError(
      f"split '{split}' of a task has no example", where=task.name
    )
  return examples


def unreadable(task, error):
  """What stopped the reading of a task, as an error of the user's to mend."""
  function = getattr(task.source, '_dataset_fn', None)
  for own in (error, getattr(function, 'failure', None)):
    if isinstance(own, errors.UserError):
      return own.at(own.where)
  lines = str(error).strip().splitlines() or ['']
  if lines[0] == 'in user code:':  # a traceback that TensorFlow made of it
    lines = lines[-1:]
  return errors.DataError(
    'cannot read a task',
    where=task.name,
    got=f'{type(error).__name__}: {lines[0].strip()[:200]}',
    fix='see that its data are on this machine; --debug shows where it fails',
  )


def _describe(settings):
  return ', '.join(f'{name} {value}' for name, value in settings.items())
