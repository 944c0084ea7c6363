"""How parameters are updated."""

import dataclasses
import re
from typing import Literal

from t5x_lite import errors
from t5x_lite.specs.rules import Count
from t5x_lite.specs.rules import Natural
from t5x_lite.specs.rules import NonNegative
from t5x_lite.specs.rules import Positive
from t5x_lite.specs.rules import Share
from t5x_lite.specs.rules import Spec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule(Spec):
  """Learning rate by step: linear warm-up, hold, then decay."""

  peak: Positive  # of 'noam' too: (embed_dim * warmup)^-0.5 is the paper's
  warmup: Natural = 0  # steps of linear rise from 0
  hold: Natural = 0  # steps at the peak after it; T5 holds for 10,000
  decay: Literal['rsqrt', 'linear', 'cosine', 'constant', 'noam'] = 'rsqrt'
  end: NonNegative = 0.0  # the last rate, of 'linear' and 'cosine'
  until: Count | None = None  # steps until that; None: those of the run

  def __post_init__(self):
    super().__post_init__()
    if self.decay not in ('linear', 'cosine'):
      for name in ('end', 'until'):
        if getattr(self, name):
          raise errors.ConfigError(
            f'Schedule.{name} is set, which Schedule.decay does not use',
            got=f'{getattr(self, name)} and {self.decay!r}',
            fix="choose 'linear' or 'cosine', or delete it",
          )
    if self.decay == 'noam' and (self.hold or not self.warmup):
      raise errors.ConfigError(
        "Schedule.decay 'noam' falls from the end of the warm-up on",
        got=f'Schedule.warmup {self.warmup}, Schedule.hold {self.hold}',
        expected='a warm-up and no hold',
      )


def check_pattern(pattern, label):
  """Refuses what is not a regular expression."""
  try:
    re.compile(pattern)
  except re.error as e:
    raise errors.ConfigError(
      f'{label} is not a regular expression', got=repr(pattern), expected=e
    ) from None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group(Spec):
  """Parameters that are trained in a way of their own, or not at all."""

  pattern: str  # regex of whole names: 'encoder/layers/attention/.*/kernel'
  rate: NonNegative = 1.0  # times the schedule's; 0 freezes, and keeps no state
  weight_decay: NonNegative | None = None  # None: the optimizer's

  def __post_init__(self):
    super().__post_init__()
    check_pattern(self.pattern, 'Group.pattern')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer(Spec):
  """What all optimizers have."""

  schedule: Schedule
  weight_decay: NonNegative = 0.0  # parameters shrink by this times the rate
  # regexes of whole names of what does not decay, here norms and biases
  no_decay: tuple[str, ...] = ('.*/scale', '.*/bias')
  groups: tuple[Group, ...] = ()  # the first whose pattern fits counts
  clip_norm: Positive | None = None  # of all gradients together
  # steps in a row without effect if loss or gradient is not finite; then stop
  skip_nonfinite: Natural = 0

  def __post_init__(self):
    super().__post_init__()
    for pattern in self.no_decay:
      check_pattern(pattern, f'{type(self).__name__}.no_decay')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adafactor(Optimizer):
  """Second moments by rows and columns, arXiv:1804.04235, as T5X has it."""

  decay_rate: Share = 0.8  # second moments decay by 1 - (step + 1)^-decay_rate
  clip_threshold: Positive = 1.0  # largest root mean square of an update
  parameter_scale: bool = True  # rates relative to a parameter's own scale
  min_scale: Positive = 1e-3  # least scale, so that zeros can move
  max_scale: Positive | None = None  # largest
  factored: bool = True  # False keeps whole second moments (umT5 xxl)
  beta1: Share | None = None  # first moment's decay; None keeps none
  # weight decay goes by the rate to this power: T5X's default is 0, PaLM's 2
  weight_decay_power: NonNegative = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamW(Optimizer):
  """First and second moments, decay apart from them, arXiv:1711.05101."""

  beta1: Share = 0.9
  beta2: Share = 0.999
  epsilon: Positive = 1e-8
  rms_scaled: bool = False  # rates times max(1e-3, RMS), arXiv:2309.02373


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lamb(Optimizer):
  """Adam's step in proportion to each tensor's norm, arXiv:1904.00962.

  Weight decay is part of the step. What does not decay is not scaled either.
  """

  beta1: Share = 0.9
  beta2: Share = 0.999
  epsilon: Positive = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sgd(Optimizer):
  """Gradients, or a running sum of them."""

  momentum: Share | None = None  # the sum's decay; None keeps none
  nesterov: bool = False  # looks ahead by a step

  def __post_init__(self):
    super().__post_init__()
    if self.nesterov and self.momentum is None:
      raise errors.ConfigError(
        'Sgd.nesterov needs Sgd.momentum', fix='--gin.Sgd.momentum=0.9'
      )
