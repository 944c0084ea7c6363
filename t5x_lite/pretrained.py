"""The first parameters of a new run, from the checkpoint of another run."""

import re

import jax

from t5x_lite import best
from t5x_lite import checkpoints
from t5x_lite import data
from t5x_lite import errors
from t5x_lite import infer
from t5x_lite import partitioning
from t5x_lite import record as records
from t5x_lite import storage

# Settings of a model that change no parameter's meaning.
_FREE = ('dtype', 'remat', 'unroll', 'dropout', 'dropout_kind', 'attention')


def locate(spec):
  """(reader of the checkpoints, step) that a specs.Pretrained names.

  Raises:
    CheckpointError: there is none.
    ConfigError: the path names a step, and the spec another one.
  """
  path, step = storage.absolute(spec.path), spec.step
  if path.parent.name == 'checkpoints' and path.name.isdigit():
    if step not in (None, int(path.name)):
      raise errors.ConfigError(
        'Pretrained.path and Pretrained.step name two steps',
        got=f'{spec.path} and {step}',
      )
    path, step = path.parent.parent, int(path.name)
  saver = checkpoints.Checkpoints.reader(path)
  return saver, best.find(saver, step)


def assign(names, stored, spec):
  """Which stored parameter each new one starts from.

  Args:
    names: of the new run's parameters.
    stored: names of those in the checkpoint.
    spec: specs.Pretrained.

  Returns:
    ({new: old name, there or not, or None to draw it}, the stored ones left
    over that no rule drops).

  Raises:
    ConfigError: a rule is wrong or matches nothing.
  """
  rules, used, sources = spec.rules or {}, set(), {}
  for name in names:
    sources[name] = name
    for pattern, template in rules.items():
      if match := re.fullmatch(pattern, name):
        used.add(pattern)
        sources[name] = template and _expand(match, pattern, template)
        break
  _check_used('rules', [x for x in rules if x not in used], names)
  dropped = {
    pattern: [name for name in stored if re.fullmatch(pattern, name)]
    for pattern in spec.drop
  }
  _check_used('drop', [x for x, found in dropped.items() if not found], stored)
  gone = {name for found in dropped.values() for name in found}
  return sources, sorted(set(stored) - set(sources.values()) - gone)


def _expand(match, pattern, template):
  try:
    return match.expand(template)
  except (re.error, IndexError) as e:
    raise errors.ConfigError(
      'wrong value for Pretrained.rules',
      got=f'{pattern!r}: {template!r}',
      expected=f'the name of a parameter; {e}',
    ) from None


def _check_used(field, unused, names):
  if unused:
    raise errors.ConfigError(
      f'a rule of Pretrained.{field} matches no whole name',
      where=', '.join(map(repr, unused)),
      got=unused[0],
      expected='a regular expression of '
      + ('the names in the checkpoint' if field == 'drop' else 'new names'),
      choices=names,
      fix='mend it, or delete it; an earlier rule may have taken its names',
    )


class Pretrained:
  """A checkpoint that fits a run, its parameters still unread.

  Attributes:
    step: of the checkpoint.
    sources: {new name: old name, or None where it is drawn anew}.
  """

  def __init__(self, run, model):
    """Compares the run with the checkpoint; reads no array.

    Args:
      run: specs.Run, with start_from.
      model: its models.Model.

    Raises:
      CheckpointError: there is no such checkpoint, or it is damaged.
      ConfigError: a rule is wrong; or names, shapes or the vocabulary differ.
    """
    self._saver, self.step = locate(run.start_from)
    self._folder = self._saver.folder / str(self.step)
    old = infer.read_run(self._saver, self.step)
    if run.start_from.same_vocabulary:
      self._check_vocabulary(run.data, old.data)
    self._stored = self._saver.stored_params(self.step)
    self._differences = _differences(old.model, run.model)
    abstract = partitioning.by_path(model.abstract)
    self.sources, left = assign(abstract, self._stored, run.start_from)
    self._check_arrays(abstract, left)

  def _check_vocabulary(self, new, old):
    try:
      wanted = data.load_vocabulary(old)
    except errors.DataError as e:
      raise errors.ConfigError(
        'cannot tell whether the vocabulary is that of the checkpoint',
        where=self._folder,
        got=e,
        fix='--gin.Pretrained.same_vocabulary=False if it is',
      ) from None
    found = data.load_vocabulary(new)
    if found.fingerprint != wanted.fingerprint:
      raise errors.ConfigError(
        'vocabulary is not that of the checkpoint',
        where='Data.vocabulary',
        got=f'{new.vocabulary} of {found.size} ids',
        expected=f'{old.vocabulary} of {wanted.size} ids, '
        f'{wanted.sentinels} of them extra',
        fix=f'--gin.Data.vocabulary={old.vocabulary} '
        f'--gin.Data.extra_ids={old.extra_ids}, or, if ids should mean other '
        'tokens from here on, --gin.Pretrained.same_vocabulary=False',
      )

  def _check_arrays(self, abstract, left):
    rows = []
    for name, leaf in abstract.items():
      source = self.sources[name]
      there = self._stored.get(source)
      if source is not None and (there is None or there.shape != leaf.shape):
        label = name if source == name else f'{name} from {source}'
        rows.append((label, *map(checkpoints.describe, (there, leaf))))
    rows += [
      (name, checkpoints.describe(self._stored[name]), '-') for name in left
    ]
    if not rows:
      return
    missing = sum(there == '-' for _, there, _ in rows)
    causes = [
      f'Transformer.{path} {old!r} there, {new!r} here'
      for path, old, new in self._differences
    ]
    undo = [
      f'--gin.Transformer.{path}={old}'
      for path, old, _ in self._differences
      if '.' not in path
    ]
    head = ('parameter', 'in the checkpoint', 'in this model')
    raise errors.ConfigError(
      'checkpoint to start from does not fit the model',
      where=self._folder,
      got=f'{missing} missing, {len(left)} left over, '
      f'{len(rows) - missing - len(left)} of another shape'
      + (f', probably by {"; ".join(causes)}' if causes else ''),
      fix=(f'{" ".join(undo)}, or ' if undo else '')
      + 'say by Pretrained.rules which are renamed or (None) new, and by '
      'Pretrained.drop which to leave out' + checkpoints.table([head, *rows]),
    )

  def notes(self):
    """What a user should know, a sentence each."""
    fresh = sum(source is None for source in self.sources.values())
    yield (
      f'parameters start from {self._folder}'
      + (f', {fresh} of {len(self.sources)} drawn anew' if fresh else '')
    )
    for path, old, new in self._differences:
      yield f'Transformer.{path} is {new!r}; in the checkpoint it was {old!r}'

  def read(self, abstract_params):
    """{new name: array} on the devices that abstract arrays name.

    Each process reads its shards alone.
    """
    wanted = partitioning.by_path(abstract_params)
    todo = {new: old for new, old in self.sources.items() if old is not None}
    found = {}
    while todo:  # again where one array is the source of several
      turn = {old: new for new, old in todo.items()}
      tree = partitioning.nest(
        {
          old: jax.ShapeDtypeStruct(
            wanted[new].shape,
            self._stored[old].dtype,
            sharding=wanted[new].sharding,
          )
          for old, new in turn.items()
        }
      )
      arrays = self._saver.restore_params(self.step, tree, some=True)
      for old, array in partitioning.by_path(arrays).items():
        new = turn[old]
        found[new] = array.astype(wanted[new].dtype)
        del todo[new]
    return found


def _differences(old, new):
  """[(path, old, new)] of the settings by which two models differ."""
  old, new = (records.flatten(records.record(spec)) for spec in (old, new))
  return [
    (path, old.get(path), new.get(path))
    for path in {**old, **new}
    if old.get(path) != new.get(path) and path.split('.')[0] not in _FREE
  ]
