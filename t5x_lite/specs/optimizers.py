"""How parameters are updated."""

import dataclasses
from typing import Literal

from t5x_lite.specs.rules import Natural
from t5x_lite.specs.rules import NonNegative
from t5x_lite.specs.rules import Positive
from t5x_lite.specs.rules import Share
from t5x_lite.specs.rules import Spec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule(Spec):
  """Learning rate by step: linear warm-up, hold, then decay."""

  peak: Positive
  warmup: Natural = 0  # steps of linear rise from 0
  hold: Natural = 0  # steps at the peak after it; T5 holds for 10,000
  decay: Literal['rsqrt', 'linear', 'cosine', 'constant'] = 'rsqrt'
  end: NonNegative = 0.0  # the last rate, of 'linear' and 'cosine'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adafactor(Spec):
  """Second moments by rows and columns, arXiv:1804.04235, as T5X has it."""

  schedule: Schedule
  decay_rate: Share = 0.8  # second moments decay by 1 - (step + 1)^-decay_rate
  clip_threshold: Positive = 1.0  # largest root mean square of an update
  parameter_scale: bool = True  # rates relative to a parameter's own scale
  min_scale: Positive = 1e-3  # least scale, so that zeros can move
  factored: bool = True  # False keeps whole second moments (umT5 xxl)
  beta1: Share | None = None  # first moment's decay; None keeps none
  clip_norm: Positive | None = None  # global norm of gradients
