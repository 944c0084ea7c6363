"""How a run comes back from a fault: what it lost, and how long that took.

A save is written while training goes on, and the next one waits for it. So a
fault costs the steps since the newest save that was finished: no more than the
interval between saves, unless a save was under way, when it may be two.
"""

import dataclasses
import re

from tests.fakes import moments

NAME = 'recovery'  # of what a test notes of itself; conftest.py shows them


@dataclasses.dataclass(frozen=True)
class Moment:
  """What a workdir held at a time; see `moments.read`."""

  at: float
  step: int
  saved: int
  saving: bool

  @classmethod
  def of(cls, workdir):
    return cls(**moments.read(workdir))


@dataclasses.dataclass(frozen=True)
class Recovery:
  """A fault, and what came of it.

  Attributes:
    struck: Moment right before it.
    ended: Moment once all processes had ended, before any was started again.
    begun: the step that the next start went on from, or 0.
    back: seconds since 1970 of the first step after that.
  """

  struck: Moment
  ended: Moment
  begun: int
  back: float

  @property
  def in_save(self):
    """Whether a save was under way, and finished since or left torn."""
    return self.struck.saving or self.ended.saving

  @property
  def lost(self):
    """Steps that had been told of, and were made again."""
    return self.ended.step - self.begun

  @property
  def seconds(self):
    return self.back - self.struck.at

  def check(self, every):
    """It went on from the newest finished save, which is near enough."""
    assert self.struck.saved <= self.ended.saved == self.begun, self
    assert 0 <= self.lost <= (2 if self.in_save else 1) * every, self
    assert self.seconds > 0, self


def begun(said):
  """The step from which a job that was started again went on."""
  found = re.search(r'^\[0\] going on from step (\d+) ', said, re.M)
  return int(found[1]) if found else 0  # nothing was saved yet


def note(request, backend, found):
  """Has a Recovery shown in the table at the end of the session."""
  node = request.node
  name = node.name.removeprefix('test_').replace('_', ' ')
  fault = node.callspec.id if hasattr(node, 'callspec') else name
  save = 'yes' if found.in_save else 'no'
  row = [backend, fault, save, str(found.lost), f'{found.seconds:.0f}']
  node.user_properties.append((NAME, row))


def table(rows):
  """The lines of a Markdown table of what tests have noted."""
  head = ['launch', 'fault', 'in a save', 'steps lost', 'seconds to a step']
  lines = [head, ['---'] * len(head), *rows]
  return [f'| {" | ".join(line)} |' for line in lines]
