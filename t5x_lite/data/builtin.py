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

import numpy as np

from t5x_lite import errors
from t5x_lite.data import sources

_TASKS = 't5x_lite.tasks'
_made = {}  # name -> (SeqIO's object, fingerprint of its vocabulary)


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
  made, _ = _made.get(task.name, (None, None))
  return (
    package('supervised').DEFINITIONS[task.name]() if made is task else None
  )


def _registries():
  seqio, _ = sources.libraries()
  return seqio.TaskRegistry, seqio.MixtureRegistry


def registered(name):
  """What is registered by a name, and not by `register`; or None."""
  for registry in _registries():
    if name in registry.names():
      found = registry.get(name)
      return None if found is _made.get(name, (None,))[0] else found
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
  task_registry, mixture_registry = _registries()
  offered = package('supervised')
  made, fingerprint = _made.get(name, (None, None))
  if name in offered.DEFINITIONS:
    if fingerprint == vocabulary.fingerprint and made is _get(name):
      return made
    _remove(name)
    found = _add_task(task_registry, offered.DEFINITIONS[name](), vocabulary)
  else:
    rates = offered.MIXTURES[name]
    parts = [registered(x) or register(x, vocabulary) for x in rates]
    _remove(name)
    found = mixture_registry.add(
      name,
      [
        (part.name, num_examples if rate is None else rate)
        for part, rate in zip(parts, rates.values())
      ],
    )
  _made[name] = found, vocabulary.fingerprint
  return found


def _get(name):
  for registry in _registries():
    if name in registry.names():
      return registry.get(name)
  return None


def _remove(name):
  for registry in _registries():
    registry.remove(name)


def _add_task(registry, definition, vocabulary):
  seqio, _ = sources.libraries()
  feature = seqio.Feature(
    wrapped(vocabulary), add_eos=vocabulary.eos_id >= 0, required=True
  )
  return registry.add(
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

  They are counted by reading them, once.
  """
  return float(_counted(task.name))


class Examples:
  """The examples of a Definition as a tf.data.Dataset, as SeqIO asks for them.

  Attributes:
    failure: what reading them raised, which TensorFlow does not hand on.
  """

  __qualname__ = 'Examples'

  def __init__(self, definition):
    self._definition, self.failure = definition, None

  def __call__(self, split, shuffle_files, seed=None):
    """A dataset of dicts of strings and of lists of strings."""
    del shuffle_files, seed
    _, tf = sources.libraries()
    rows = iter(self._definition.read(split))
    head = list(itertools.islice(rows, 1))
    started = [itertools.chain(head, rows)]
    [first] = head or [{'inputs': '', 'targets': ''}]
    if not {'inputs', 'targets'} <= first.keys():
      raise self._unlike(first, ('inputs', 'targets'))

    def generate():
      found = started.pop() if started else self._definition.read(split)
      try:
        for row in found:
          if row.keys() != first.keys():
            raise self._unlike(row, first)
          yield {name: _encoded(value) for name, value in row.items()}
      except errors.UserError as e:
        self.failure = e
        raise

    shapes = {
      name: tf.TensorSpec([None] if isinstance(value, list) else [], tf.string)
      for name, value in first.items()
    }
    return tf.data.Dataset.from_generator(generate, output_signature=shapes)

  def _unlike(self, row, first):
    return errors.DataError(
      'examples of a task differ in their entries',
      where=self._definition.name,
      got=', '.join(sorted(row)),
      expected=', '.join(sorted(first)),
    )


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


def wrapped(vocabulary):
  """A vocabularies.Vocabulary as a seqio.Vocabulary: the same ids both ways."""
  return _wrapper()(vocabulary)


@functools.cache
def _wrapper():
  seqio, tf = sources.libraries()

  class Wrapped(seqio.Vocabulary):
    """Ids are those of a vocabularies.Vocabulary; sentinels are plain text."""

    def __init__(self, vocabulary):
      super().__init__(extra_ids=vocabulary.sentinels)
      self._own = vocabulary

    bos_id = property(lambda self: None)
    eos_id = property(lambda self: self._own.eos_id)
    pad_id = property(lambda self: self._own.pad_id)
    unk_id = property(lambda self: self._own.unk_id)
    _base_vocab_size = property(lambda self: self._own.size - self.extra_ids)

    def __eq__(self, other):
      return (
        isinstance(other, Wrapped)
        and self._own.fingerprint == other._own.fingerprint
      )

    __hash__ = None

    def _encode(self, text):
      return self._own.encode(text).tolist()

    def _encode_tf(self, text):
      def encode(text):
        text = text if isinstance(text, bytes) else text.item()
        return self._own.encode(text.decode()).astype(np.int32)

      ids = tf.numpy_function(encode, [text], tf.int32, stateful=False)
      ids.set_shape([None])
      return ids

    def decode(self, ids):
      # SeqIO's takes sentinels for unknown.
      ids = np.asarray(ids).tolist()
      if self.eos_id in ids:
        ids = ids[: ids.index(self.eos_id)]
      return self._decode(ids)

    def _decode(self, ids):
      return self._own.decode(ids)

    def decode_tf(self, ids):
      return self._decode_tf(ids)

    def _decode_tf(self, ids):
      decode = lambda ids: self.decode(ids).encode()
      text = tf.numpy_function(decode, [ids], tf.string, stateful=False)
      text.set_shape([])
      return text

  return Wrapped
