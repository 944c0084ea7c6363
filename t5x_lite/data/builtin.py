"""Built-in tasks and mixtures, made for SeqIO when a run names them.

What is built in is a definitions.Definition, which knows texts alone. With the
vocabulary of a run it becomes a SeqIO task like one of a user's own.
"""

import functools
import importlib
import itertools
import pathlib
import sys
import types
import typing

import numpy as np

from t5x_lite import errors
from t5x_lite.data import seqio_vocabulary
from t5x_lite.data import sources

_TASKS = 't5x_lite.tasks'
_SIDES = ('inputs', 'targets')
_ROWS = 512  # that are tokenised at once
_made = {}  # name -> _Made


class _Made(typing.NamedTuple):
  """What was registered here, and of what it was made."""

  found: typing.Any  # seqio.Task or seqio.Mixture
  vocabulary: typing.Any  # vocabularies.Vocabulary
  definition: typing.Any = None  # of a task


def package(module):
  """A module of `tasks/`, also where the checkout is not installed."""
  try:
    return importlib.import_module(f'{_TASKS}.{module}')
  except ModuleNotFoundError as e:
    if e.name != _TASKS:
      raise
  # A checkout that is not installed has `tasks/` beside the package.
  folder = types.ModuleType(_TASKS)
  folder.__path__ = [str(pathlib.Path(__file__).parents[2] / 'tasks')]
  sys.modules[_TASKS] = folder
  return importlib.import_module(f'{_TASKS}.{module}')


def names():
  """The names of all built-in tasks and mixtures; loads no library."""
  found = package('supervised')
  return {*found.DEFINITIONS, *found.MIXTURES}


def definition(task):
  """The Definition that a SeqIO task was made of, or None."""
  made = _made.get(task.name)
  return made.definition if made and made.found is task else None


def _registries():
  seqio, _ = sources.libraries()
  return seqio.TaskRegistry, seqio.MixtureRegistry


def registered(name):
  """What is registered by a name, and not by `register`; or None."""
  for registry in _registries():
    if name in registry.names():
      found = registry.get(name)
      made = _made.get(name)
      return None if made and made.found is found else found
  return None


def register(name, vocabulary):
  """The built-in task or mixture of a name, as SeqIO knows it from now on.

  It replaces what this function registered with another vocabulary. A part of
  a mixture that somebody else registered is left as it is.

  Args:
    name: one of `names()`.
    vocabulary: vocabularies.Vocabulary of the run.

  Returns:
    seqio.Task or seqio.Mixture.
  """
  offered, made = package('supervised'), _made.get(name)
  if name in offered.MIXTURES:
    rates = offered.MIXTURES[name]
    parts = [registered(x) or register(x, vocabulary) for x in rates]
    _remove(name)
    _, registry = _registries()
    found = registry.add(
      name,
      [
        (part.name, num_examples if rate is None else rate)
        for part, rate in zip(parts, rates.values())
      ],
    )
    _made[name] = _Made(found, vocabulary)
    return found
  if (
    made is None
    or made.vocabulary.fingerprint != vocabulary.fingerprint
    or made.found is not _get(name)
  ):
    _remove(name)
    definition = offered.DEFINITIONS[name]()
    found = _add_task(definition, vocabulary)
    made = _made[name] = _Made(found, vocabulary, definition)
  return made.found


def _get(name):
  for registry in _registries():
    if name in registry.names():
      return registry.get(name)
  return None


def _remove(name):
  for registry in _registries():
    registry.remove(name)


def _add_task(definition, vocabulary):
  seqio, _ = sources.libraries()
  feature = seqio.Feature(
    seqio_vocabulary.wrapped(vocabulary),
    add_eos=vocabulary.eos_id >= 0,
    required=True,
  )
  return seqio.TaskRegistry.add(
    definition.name,
    source=seqio.FunctionDataSource(
      Examples(definition), splits=definition.splits
    ),
    preprocessors=[
      seqio.preprocessors.tokenize,
      seqio.preprocessors.append_eos,
    ],
    output_features={'inputs': feature, 'targets': feature},
    postprocess_fn=definition.postprocess
    and functools.partial(_postprocess, definition.postprocess),
    metric_fns=list(definition.metrics),
  )


@functools.cache
def _counted(name):
  definition = package('supervised').DEFINITIONS[name]()
  return sum(1 for _ in definition.read('train'))


def num_examples(task):
  """The rate of a task in a mixture in proportion: its examples to train on.

  Where the task does not know they are counted by reading them, once.
  """
  known = task.num_input_examples('train')
  return float(_counted(task.name) if known is None else known)


def examples(task, split):
  """The examples of a built-in task as SeqIO makes them, without TensorFlow.

  They are the same, tens of times as fast: many are tokenised at once.
  """
  _, vocabulary, definition = _made[task.name]
  rows = Examples(definition).rows(split)
  end = np.array([vocabulary.eos_id] * (vocabulary.eos_id >= 0), np.int32)
  while batch := list(itertools.islice(rows, _ROWS)):
    texts = [row[side] for side in _SIDES for row in batch]
    found = [
      np.concatenate([ids, end], dtype=np.int32)
      for ids in vocabulary.encode_batch(texts)
    ]
    for row, inputs, targets in zip(batch, found, found[len(batch) :]):
      yield (
        {name: _encoded(value) for name, value in row.items()}
        | {f'{side}_pretokenized': row[side].encode() for side in _SIDES}
        | {'inputs': inputs, 'targets': targets}
      )


class Examples:
  """The examples of a Definition as a tf.data.Dataset, as SeqIO asks for them.

  Attributes:
    failure: what reading them raised, which TensorFlow does not hand on.
  """

  __qualname__ = 'Examples'

  def __init__(self, definition):
    self._definition, self.failure = definition, None

  def rows(self, split):
    """What is read, checked to be of one form."""
    first = None
    for row in self._definition.read(split):
      if first is None:
        first = row if row.keys() >= {*_SIDES} else dict.fromkeys(_SIDES)
      if row.keys() != first.keys():
        raise errors.DataError(
          'examples of a task differ in their entries',
          where=self._definition.name,
          got=', '.join(sorted(row)),
          expected=', '.join(sorted(first)),
        )
      yield row

  def __call__(self, split, shuffle_files, seed=None):
    """A dataset of dicts of strings and of lists of strings."""
    del shuffle_files, seed
    _, tf = sources.libraries()
    rows = self.rows(split)
    head = list(itertools.islice(rows, 1))
    started = [itertools.chain(head, rows)]

    def generate():
      try:
        for row in started.pop() if started else self.rows(split):
          yield {name: _encoded(value) for name, value in row.items()}
      except errors.UserError as e:
        self.failure = e
        raise

    [first] = head or [dict.fromkeys(_SIDES, '')]
    shapes = {
      name: tf.TensorSpec([None] if isinstance(value, list) else [], tf.string)
      for name, value in first.items()
    }
    return tf.data.Dataset.from_generator(generate, output_signature=shapes)


def _encoded(value):
  if isinstance(value, list):
    return np.array([text.encode() for text in value], object)
  return value.encode()


def _decoded(value):
  if isinstance(value, bytes):
    return value.decode()
  if getattr(value, 'dtype', np.dtype(int)).kind == 'O':
    return [text.decode() for text in value]
  return value


def _postprocess(function, text, example, is_target):
  """Calls a Definition's function, with the texts of an example as str."""
  texts = {name: _decoded(value) for name, value in example.items()}
  return function(text, example=texts, is_target=is_target)
