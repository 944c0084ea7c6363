"""How sequences are decoded."""

import dataclasses
from typing import Annotated, Literal

from t5x_lite import errors
from t5x_lite.specs.rules import Count
from t5x_lite.specs.rules import Natural
from t5x_lite.specs.rules import NonNegative
from t5x_lite.specs.rules import Spec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Greedy(Spec):
  """The likeliest token after each other."""

  sequences = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Beam(Spec):
  """The likeliest sequences that a search of some width finds.

  They are ranked by log probability over ((5 + tokens) / 6)^length_penalty,
  arXiv:1609.08144 section 7; or, as by Hugging Face, tokens^length_penalty.
  """

  beams: Count = 4  # unfinished sequences that are followed at once
  length_penalty: float = 0.6  # above 0 it helps long sequences
  penalty: Literal['t5', 'hf'] = 't5'
  returned: Count = 1  # the best so many

  def __post_init__(self):
    super().__post_init__()
    if self.returned > self.beams:
      raise errors.ConfigError(
        'Beam.returned is more than Beam.beams',
        got=f'{self.returned} of {self.beams}',
        expected=f'1 to {self.beams}',
      )

  @property
  def sequences(self):
    return self.returned


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample(Spec):
  """Each token drawn at random, the likelier the more often.

  In this order: logits over temperature; the top_k likeliest tokens of all;
  of these, the fewest that have a share of top_p (arXiv:1904.09751).
  """

  temperature: NonNegative = 1.0  # 0: the likeliest
  top_k: Natural = 0  # 0: all
  top_p: Annotated[float, '> 0', '<= 1'] = 1.0
  samples: Count = 1  # of each input
  seed: Natural = 0

  @property
  def sequences(self):
    return self.samples
