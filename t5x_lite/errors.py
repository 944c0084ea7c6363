"""One message for each thing that a user can mend, and its exit code."""

import difflib

INTERRUPTED = 130  # Ctrl-C, after saving
NOT_READ = 141  # whoever read our output left, as by `| head`
PREEMPTED = 143  # SIGTERM, after saving


def nearest(word, choices):
  """The choice that looks most like `word`, or None."""
  folded = {str(choice).lower(): str(choice) for choice in choices}
  word = str(word).strip('\'"').lower()
  match = difflib.get_close_matches(word, folded, n=1, cutoff=0.5)
  return folded[match[0]] if match else None


def _brief(text):
  text = str(text)
  return text if len(text) <= 500 else f'{text[:500]}...'


class UserError(Exception):
  """Something that the user can mend; printed without a traceback.

  Reads `<what> at <where>; got <got>, expected <expected>; did you mean
  <nearest>?; fix: <fix>`, with the parts that are given.
  """

  exit_code = 1

  def __init__(
    self, what, *, where=None, got=None, expected=None, choices=(), fix=None
  ):
    """Composes the message.

    Args:
      what: the fault, in a few words.
      where: file:line, path, field or parameter.
      got: the offending value, as it should be printed.
      expected: the rule it breaks, in words.
      choices: the right names; the nearest to `got` is offered.
      fix: one action that mends it.
    """
    self.what, self.where, self.got = what, where, got
    self.expected, self.choices, self.fix = expected, tuple(choices), fix
    parts = [what + (f' at {where}' if where else '')]
    rule = [f'got {_brief(got)}'] if got is not None else []
    rule += [f'expected {_brief(expected)}'] if expected else []
    if rule:
      parts.append(', '.join(rule))
    guess = nearest(got, self.choices) if self.choices else None
    if guess:
      parts.append(f'did you mean {guess}?')
    if fix:
      parts.append(f'fix: {fix}')
    super().__init__('; '.join(parts))

  def at(self, where):
    """The same error, said of another place."""
    return type(self)(
      self.what,
      where=where,
      got=self.got,
      expected=self.expected,
      choices=self.choices,
      fix=self.fix,
    )


class ConfigError(UserError):
  exit_code = 2


class DataError(UserError):
  exit_code = 3


class CheckpointError(UserError):
  exit_code = 4


class NumericError(UserError):
  exit_code = 5


class DeviceError(UserError):
  exit_code = 6


class StorageError(UserError):
  exit_code = 7
