"""What a dry run shows: the files and calls of a launch, in their order."""

import pathlib
from typing import NamedTuple

from t5x_lite import storage
from t5x_lite.launch import calls


class Call(NamedTuple):
  """A call of another program, and what it is for."""

  why: str
  argv: list


class File(NamedTuple):
  """A file that is written or handed over, and what it is for."""

  why: str
  name: str
  text: str | bytes


def text(content):
  """Bytes as text, if they are."""
  try:
    return content.decode()
  except UnicodeDecodeError:
    return content


def write(file, private=False):
  """Writes a File of a plan, as it was shown; for its owner's eyes alone?"""
  content = file.text
  if isinstance(content, str):
    content = content.encode()
  path = pathlib.Path(file.name)
  with storage.writing(path):
    if private:
      path.touch()
      path.chmod(0o600)
    path.write_bytes(content)


def show(steps, say):
  """Prints the steps of a launch; what is no text is told by its size."""
  for step in steps:
    say(f'# {step.why}')
    if isinstance(step, Call):
      say(calls.shown(step.argv))
    elif isinstance(step.text, bytes):
      say(f'{step.name}: {len(step.text):,} bytes')
    else:
      say(f'{step.name}:')
      for line in step.text.splitlines():
        say(f'  {line}' if line else '')
    say('')
