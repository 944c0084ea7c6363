"""What a model is trained to do."""

import dataclasses
from typing import Annotated

from t5x_lite import errors
from t5x_lite.specs.rules import NonNegative
from t5x_lite.specs.rules import Positive
from t5x_lite.specs.rules import Share
from t5x_lite.specs.rules import Spec


@dataclasses.dataclass(frozen=True, kw_only=True)
class CausalLM(Spec):
  """Say each token of a text after those before it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrefixLM(Spec):
  """Go on with a text, arXiv:1910.10683 section 3.2.1."""

  density: Share | None = None  # share that is targets; None: split anywhere


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanCorruption(Spec):
  """Fill in masked spans, arXiv:1910.10683 section 3.1.4."""

  density: Share = 0.15  # share of the tokens that are masked
  mean_span: Annotated[float, '>= 1'] = 3.0  # mean tokens in a masked span


@dataclasses.dataclass(frozen=True, kw_only=True)
class Denoiser(Spec):
  """One of several objectives, and how often it is drawn."""

  objective: SpanCorruption | PrefixLM
  mode: str = ''  # text before the inputs that tells the model which it is
  rate: Positive = 1.0  # relative to the other members


def _span(mode, mean_span, density):
  objective = SpanCorruption(density=density, mean_span=mean_span)
  return Denoiser(objective=objective, mode=mode)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Denoisers(Spec):
  """One of several objectives for each example, UL2, arXiv:2205.05131 table 1.

  The paper's table has S mask the last quarter; the code of its appendix splits
  anywhere, as `PrefixLM()` does.
  """

  members: tuple[Denoiser, ...] = (
    _span('[NLU]', 3.0, 0.15),  # R
    _span('[NLU]', 8.0, 0.15),
    Denoiser(objective=PrefixLM(density=0.25), mode='[S2S]'),  # S
    _span('[NLG]', 3.0, 0.5),  # X
    _span('[NLG]', 8.0, 0.5),
    _span('[NLG]', 64.0, 0.15),
    _span('[NLG]', 64.0, 0.5),
  )

  def __post_init__(self):
    super().__post_init__()
    if not self.members:
      raise errors.ConfigError(
        'Denoisers.members is empty', expected='one @Denoiser() or more'
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Supervised(Spec):
  """Say the targets of given inputs: text to text, arXiv:1910.10683."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classification(Spec):
  """Name the class of a text by a linear layer, and say the text besides.

  L3 = L2 + lm_weight * L1 of Radford et al., "Improving language understanding
  by generative pre-training", 2018, section 3.2.
  """

  labels: tuple[str, ...]  # the targets that there are
  lm_weight: NonNegative = 0.5  # lambda there

  def __post_init__(self):
    super().__post_init__()
    if len(set(self.labels)) < max(2, len(self.labels)):
      raise errors.ConfigError(
        'wrong value for Classification.labels',
        got=list(self.labels),
        expected='two labels or more, all different',
      )
