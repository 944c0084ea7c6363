"""What a dry run shows: the files and calls of a launch, in their order."""

from typing import NamedTuple

from t5x_lite.launch import calls


class Call(NamedTuple):
  """A call of another program, and what it is for."""

  why: str
  argv: list


class File(NamedTuple):
  """A file that is written or handed over, and what it is for."""

  why: str
  name: str
  text: str


def show(steps, say):
  """Prints the steps of a launch; what is no text is told by its size."""
  for step in steps:
    say(f'# {step.why}')
    if isinstance(step, Call):
      say(calls.shown(step.argv))
    else:
      say(f'{step.name}:')
      for line in step.text.splitlines():
        say(f'  {line}' if line else '')
    say('')
