"""The parts of a run's data, and the rate of each."""

import dataclasses

from t5x_lite import corruptions
from t5x_lite import errors
from t5x_lite import specs
from t5x_lite.data import corpora
from t5x_lite.data import sources
from t5x_lite.data import tasks

_COUNTABLE = 1 << 40  # examples; a stream says that it has more


def parts(run, vocabulary=None):
  """The runs of a corpus or task each that the data of a run are made of.

  Args:
    run: specs.Run.
    vocabulary: its vocabulary; only a mixture of tasks needs it.

  Returns:
    {name: specs.Run}, which differ in their Data.corpus or Data.task alone; in
    the order of their names, whichever they are given in.
  """
  data = run.data
  if data.mixture is None:
    return {data.corpus or data.task: run}
  if isinstance(data.mixture, str):
    kinds = dict.fromkeys(_tasks(data.mixture, vocabulary), 'task')
  elif type(run.objective) in corruptions.PAIRS:
    kinds = {name: _kind(name) for name in data.mixture.parts}
  else:
    kinds = dict.fromkeys(data.mixture.parts, 'corpus')
  return {
    name: dataclasses.replace(
      run, data=dataclasses.replace(data, mixture=None, **{kind: name})
    )
    for name, kind in sorted(kinds.items())
  }


def _kind(name):
  """Whether a part of pairs is a corpus of JSON lines or a task."""
  return 'corpus' if corpora.looks_like(name) else 'task'


def _mixture(name, vocabulary):
  """The SeqIO mixture of a name."""
  found = tasks.find(name, 'Data.mixture', vocabulary)
  if hasattr(found, 'source'):
    raise errors.ConfigError(
      'Data.mixture is a task',
      got=name,
      fix=f'--gin.Data.task={name}',
    )
  return found


def _tasks(name, vocabulary):
  """The names of the tasks of a mixture to train on, each once.

  A task without a training split is for evaluation, as in SeqIO, and so is one
  of rate 0, as in T5's mixtures.
  """
  seqio, _ = sources.libraries()
  mixture = _mixture(name, vocabulary)
  none = {x for x, rate in mixture.rate_per_task_name.items() if rate == 0}
  subtasks = [x for x in seqio.get_subtasks(mixture) if x.name not in none]
  found = {x.name for x in subtasks if 'train' in tasks.splits(x)}
  if not found:
    raise errors.ConfigError(
      'no task of a mixture is to be trained on',
      where='Data.mixture',
      got=name,
    )
  return sorted(found)


def rates(run, counts, vocabulary=None):
  """The rate of each part, relative to the others.

  Args:
    run: specs.Run, of a mixture.
    counts: {part: examples of its training split}.
    vocabulary: as of `parts`.

  Returns:
    {part: rate}.
  """
  mixture = run.data.mixture
  if isinstance(mixture, str):
    return _seqio_rates(_mixture(mixture, vocabulary), counts)
  if None not in mixture.parts.values():
    return mixture.parts
  most = min(mixture.maximum or max(counts.values()), max(counts.values()))
  return {  # of the largest, so that no power is too large
    name: (min(counts[name], most) / most) ** (1 / mixture.temperature)
    for name in mixture.parts
  }


@dataclasses.dataclass(frozen=True)
class _Counted:
  """A SeqIO task as rates see it, which knows how many examples it has."""

  task: object
  examples: int
  cache_dir = 'counted'  # rates take the number below then

  def __getattr__(self, name):
    return getattr(self.task, name)

  def get_cached_stats(self, split='train'):
    del split
    return {'examples': self.examples}

  def num_input_examples(self, split='train'):
    del split
    return self.examples


def _seqio_rates(mixture, counts):
  """As the mixture has them: numbers, functions of a task, mixtures in it."""
  seqio, _ = sources.libraries()
  found = dict.fromkeys(counts, 0.0)
  for name, rate in mixture.rate_per_task_name.items():
    inner = seqio.get_mixture_or_task(name)
    if isinstance(inner, seqio.Mixture):
      shares = _seqio_rates(inner, counts)
      total = sum(shares.values()) or 1.0
      for task, share in shares.items():
        found[task] += float(rate) * share / total
      continue
    if name not in counts:
      continue  # it is for evaluation
    if callable(rate) and counts[name] > _COUNTABLE:
      raise errors.ConfigError(
        'rate of a task hangs on its examples, which a stream does not know',
        where=f'{name} of {mixture.name}',
        fix='--gin.Data.stream=False',
      )
    try:
      value = rate(_Counted(inner, counts[name])) if callable(rate) else rate
      value = float(value)
    except Exception as e:  # the user's own function raises what it likes
      raise errors.ConfigError(
        'rate of a task in a mixture fails',
        where=f'{name} of {mixture.name}',
        got=f'{type(e).__name__}: {e}',
      ) from e
    if not 0 < value < float('inf'):
      raise errors.ConfigError(
        'rate of a task in a mixture is no rate',
        where=f'{name} of {mixture.name}',
        got=value,
        expected='a number above 0',
      )
    found[name] += value
  return found


def describe(run):
  """What the data of a run are called."""
  data = run.data
  if isinstance(data.mixture, specs.Mixture):
    return ' + '.join(data.mixture.parts)
  return data.corpus or data.task or data.mixture
