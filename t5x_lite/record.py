"""The record of a run: all of its settings as plain JSON, and back."""

import dataclasses
import hashlib
import json

from t5x_lite import errors
from t5x_lite import specs

# What a resumed run may change. Anything else, and any setting that specs/
# gains later, makes another model or other data.
_MAY_CHANGE = (
  'model.dtype',
  'model.remat',
  'model.attention',
  'model.unroll',
  'model.dropout',
  'model.dropout_kind',
  'model.init',  # of no effect once there are parameters
  'data.store',
  'data.corpus',  # by another path; what it holds is told by its fingerprint
  'data.vocabulary',
  'data.special_tokens',
  'data.prompt_start',  # of `infer` alone
  'optimizer',
  'mesh',
  'steps',
  'batch_size',
  'microbatches',
  'log_every',
  'z_loss',
  'label_smoothing',
  'loss_normalizer',
  'evaluation',
  'checkpoints',
)
# Of these, what the optimizer's state depends on: by value, or by its presence.
_STATE = ('optimizer.type', 'optimizer.factored')
_STATE_PRESENCE = ('optimizer.beta1', 'optimizer.momentum')
_GROUPS = 'optimizer.groups'  # what is frozen has no state
_NEWER = 'read it with the version of t5x_lite that wrote it'


@dataclasses.dataclass(frozen=True)
class Changes:
  """Differences of two records, a line each."""

  refused: tuple[str, ...]  # would make another model, objective or data
  told: tuple[str, ...]  # honoured from here on


def record(run):
  """Every setting of a run, as a nested dict of plain values.

  A spec is a dict of its class name under 'type' and of all its fields.
  """
  if isinstance(run, specs.Spec):
    fields = {
      f.name: record(getattr(run, f.name)) for f in dataclasses.fields(run)
    }
    return {'type': type(run).__name__, **fields}
  if isinstance(run, tuple):
    return [record(value) for value in run]
  return dict(run) if isinstance(run, dict) else run


def to_json(recorded):
  """A record as text, in the order of the fields."""
  return json.dumps(recorded, indent=2, ensure_ascii=False) + '\n'


def digest(recorded):
  """A short digest of a record: equal digests, equal settings."""
  return hashlib.sha256(to_json(recorded).encode()).hexdigest()[:12]


def from_record(recorded, where='record'):
  """The Run of a record, or of its JSON.

  Args:
    recorded: what `record` or `to_json` gave. A setting that it lacks, since
      it is older than the setting, takes its default.
    where: of the record, for errors.

  Raises:
    ConfigError: not a record of a run; it may come from an untrusted source.
  """
  try:
    if isinstance(recorded, (str, bytes)):
      recorded = json.loads(recorded)
    run = _from_record(recorded, where)
  except (ValueError, RecursionError) as e:
    raise errors.ConfigError('not JSON', where=where, got=e) from None
  if not isinstance(run, specs.Run):
    raise errors.ConfigError(
      'not the record of a run', where=where, got=type(run).__name__
    )
  return run


def _from_record(recorded, where):
  if not isinstance(recorded, dict) or 'type' not in recorded:
    raise errors.ConfigError(
      'not a record',
      where=where,
      got=repr(recorded),
      expected='type and fields',
    )
  settings = dict(recorded)
  name = settings.pop('type')
  cls = specs.SPECS.get(name) if isinstance(name, str) else None
  if cls is None:
    raise errors.ConfigError(
      'unknown spec',
      where=where,
      got=repr(name),
      choices=specs.SPECS,
      fix=_NEWER,
    )
  fields = {f.name: f for f in dataclasses.fields(cls)}
  for key in settings:
    if key not in fields:
      raise errors.ConfigError(
        f'unknown setting of {name}',
        where=where,
        got=repr(key),
        choices=fields,
        fix=_NEWER,
      )
  specs.check_missing(cls, settings, name, where)
  for key, value in settings.items():
    rule = fields[key].type
    if isinstance(value, dict):
      takes_spec = specs.takes_spec(rule)
      settings[key] = _from_record(value, where) if takes_spec else dict(value)
    elif isinstance(value, list) and specs.takes_specs(rule):
      settings[key] = [_from_record(member, where) for member in value]
  try:
    return cls(**settings)
  except errors.ConfigError as e:
    raise e.at(where) from None


def compare(old, new, where='record'):
  """What a resumed run changes, from the old and the new record.

  Args:
    old: the record that was saved.
    new: that of the run that goes on.
    where: the old one is, for errors.

  Returns:
    Changes, of lines such as `data.lengths.inputs: 512 -> 256`.
  """
  refused, told = [], []
  old, new = record(from_record(old, where)), record(from_record(new))
  for path, before, after in _differences(old, new):
    presence = (before is None) != (after is None)
    fits = _is_under(path, _MAY_CHANGE) and not (
      _is_under(path, _STATE)
      or (_is_under(path, _STATE_PRESENCE) and presence)
      or (path == _GROUPS and _frozen(before) != _frozen(after))
    )
    line = f'{path}: {_brief(before)} -> {_brief(after)}'
    (told if fits else refused).append(line)
  return Changes(tuple(refused), tuple(told))


def _numbered(recorded):
  """A list of records as a dict by their numbers, anything else as it is."""
  if isinstance(recorded, list) and any(isinstance(x, dict) for x in recorded):
    return {str(n): x for n, x in enumerate(recorded)}
  return recorded


def flatten(recorded, path=''):
  """The settings of a record by their paths, such as `data.lengths.inputs`."""
  recorded = _numbered(recorded)
  if not isinstance(recorded, dict):
    return {path: recorded}
  return {
    below: value
    for key, inner in recorded.items()
    for below, value in flatten(inner, f'{path}.{key}' if path else key).items()
  }


def _frozen(groups):
  """(pattern, whether it freezes) of each group, to the last that does."""
  found = [(group['pattern'], not group['rate']) for group in groups or ()]
  while found and not found[-1][1]:
    found.pop()
  return found


def _is_under(path, names):
  return any(f'{path}.'.startswith(f'{name}.') for name in names)


def _differences(old, new, path=''):
  """Yields (path, before, after) of the leaves that differ."""
  if path != _GROUPS:  # of which the first that fits counts
    old, new = _numbered(old), _numbered(new)
  if isinstance(old, dict) and isinstance(new, dict):
    for key in {**old, **new}:
      below = f'{path}.{key}' if path else key
      yield from _differences(old.get(key), new.get(key), below)
  elif old != new:
    yield path, old, new


def _brief(value):
  if isinstance(value, dict) and 'type' in value:
    return value['type']
  if isinstance(value, list) and any(isinstance(x, dict) for x in value):
    return '[' + ', '.join(_one_line(x) for x in value) + ']'
  return repr(value)


def _one_line(recorded):
  """A spec that is one of a list, as Group(pattern='.*', rate=0.0)."""
  settings = [f'{k}={v!r}' for k, v in recorded.items() if k != 'type']
  return f'{recorded["type"]}({", ".join(settings)})'
