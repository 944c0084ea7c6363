"""What a model is trained to do."""

import dataclasses
from typing import Annotated

from t5x_lite.specs.rules import Share
from t5x_lite.specs.rules import Spec


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanCorruption(Spec):
  """Fill in masked spans, arXiv:1910.10683 section 3.1.4."""

  density: Share = 0.15  # share of the tokens that are masked
  mean_span: Annotated[float, '>= 1'] = 3.0  # mean tokens in a masked span


@dataclasses.dataclass(frozen=True, kw_only=True)
class Supervised(Spec):
  """Say the targets of given inputs: text to text, arXiv:1910.10683."""
