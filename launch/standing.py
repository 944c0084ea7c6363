"""How a job is, and what a launch by its name may change of it.

One rule for all backends. A job that runs, or waits to, goes on as it was
launched: a launch that would change it is refused, with what differs. What has
ended is replaced, and may change.
"""

import dataclasses
import hashlib
import shlex
from typing import NamedTuple

from t5x_lite import errors
from t5x_lite.launch import jobs

_SHOWN = 4  # differences in a line
_NO_MATTER = ('recipe',)  # fields that are for readers


@dataclasses.dataclass(frozen=True)
class Standing:
  """A job of a name, as whatever runs it tells.

  Attributes:
    state: in a few words.
    is_live: whether it runs, or waits to, so that nothing of it can change.
    held: fields of its spec that cannot change as long as it is there.
  """

  state: str
  is_live: bool
  held: tuple[str, ...] = ()

  def outlasts(self, field):
    """Whether a field cannot change even once the job has ended."""
    return field.removeprefix('--config.') in self.held


class Difference(NamedTuple):
  """A field, or a part of the command: as it was, and as it is to be."""

  field: str
  old: str
  new: str

  def told(self, when):
    return f'{self.field}: {self.new} ({when}: {self.old})'


def digests(files):
  """{name: digest} of what a job takes along."""
  return {
    name: hashlib.sha256(content).hexdigest()[:16]
    for name, content in files.items()
  }


def differences(old, new, ignored=()):
  """The Differences of two Jobs of one backend.

  Args:
    old: Job, as it is remembered.
    new: Job, whose `state` has the digests of its files.
    ignored: fields of the spec that are of no account.
  """
  kept = [_fields(job, (*_NO_MATTER, *ignored)) for job in (old, new)]
  if old.accelerator == new.accelerator:  # however it is written
    for fields in kept:
      del fields['--config.accelerator'], fields['--config.slices']
  commands = [_words(job.command) for job in (old, new)]
  found = _compare(*kept) + _compare(*commands)
  if not found and old.command != new.command:
    words = [shlex.join(job.command) for job in (old, new)]
    found = [Difference('its command', *words)]
  files = [job.state.get('files') for job in (old, new)]
  if None not in files:
    found += [
      d._replace(old='another', new='what it is now') for d in _compare(*files)
    ]
  return found


def _fields(job, ignored):
  """{option: its value} of the fields that the backend of a Job reads."""
  others = {*jobs.BACKENDS, *ignored} - {job.backend}
  found = {}
  for name, value in job.config.items():
    if name in others:
      continue
    inner = value.items() if isinstance(value, dict) else [(None, value)]
    for last, one in inner:
      key = f'{name}.{last}' if last else name
      if key not in ignored:
        found[f'--config.{key}'] = one
  return found


def _words(command):
  """{option: its values} of a command, and its other words."""
  found, option = {}, None
  for word in command:
    name, equals, value = word.partition('=')
    if not word.startswith('--'):
      name, value = option or word, word if option else ''
    found.setdefault(name, [])
    if equals or value:
      found[name].append(value)
    option = None if equals or not word.startswith('--') else name
  return {name: ', '.join(said) or 'given' for name, said in found.items()}


def _compare(old, new):
  found = []
  for field in {**old, **new}:
    one, other = old.get(field), new.get(field)
    if one != other:
      shown = map(_value, (one, other))
      if field.startswith('--config.env.'):  # it may be a secret
        shown = ('none' if v is None else 'a value' for v in (one, other))
      found.append(Difference(field, *shown))
  return found


def _value(value):
  if isinstance(value, list | tuple):
    return ', '.join(map(str, value)) or 'none'
  return 'none' if value in (None, '') else str(value)


def _listed(found, when):
  more = len(found) - _SHOWN
  words = '; '.join(d.told(when) for d in found[:_SHOWN])
  return words + (f'; and {more} more' if more > 0 else '')


def check(old, new, found, differ):
  """Refuses to change a job that runs, or what it cannot change.

  Args:
    old: Job, as it is remembered.
    new: Job of its name, as it is launched now.
    found: Standing of the old one; None if nothing of it is there.
    differ: their Differences.

  Raises:
    ConfigError: with what differs, and what to do.
  """
  if found is None:
    return
  kept = [d for d in differ if found.outlasts(d.field)]
  held = differ if found.is_live else kept
  if not held:
    return
  if found.is_live:
    fix = f't5x_lite launch stop {old.name} lets it save and end; then the'
    fix += ' same launch goes on from there, with these'
    if kept:
      fix = f't5x_lite launch stop {old.name} lets it save and end, delete'
      fix += ' gives back what it has; then the same launch goes on, with these'
  else:
    fix = f't5x_lite launch delete {old.name} gives back what it has'
  expected = f'what it was launched with, as it is {found.state}'
  raise _otherwise(new, _listed(held, 'there'), expected, fix)


def unlike(job, got, expected):
  """The ConfigError of a job that is there, and is not remembered here.

  Args:
    job: Job of its name, as it is launched now.
    got: what of it differs, in words.
    expected: what is there, and how it is.
  """
  fix = f't5x_lite launch watch {job.name} --backend={job.backend}'
  fix += ' --config=NAME follows it as it is'
  return _otherwise(job, got, expected, fix)


def _otherwise(job, got, expected, fix):
  return errors.ConfigError(
    'the job of this name was launched otherwise, and is there',
    where=f'--name={job.name}',
    got=got,
    expected=expected,
    fix=f'{fix}; or another --name',
  )


def going_on(job, state):
  return f'{job.name} is there ({state}): going on with it'


def replaced(job, state):
  return f'{job.name} has ended before ({state}): it is replaced'


def changed(job, differ):
  """A line that tells what is new of a job."""
  return f'{job.name} changes: {_listed(differ, "before")}'
