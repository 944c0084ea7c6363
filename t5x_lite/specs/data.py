"""What a model is trained on."""

import dataclasses
from typing import Literal

from t5x_lite.specs.rules import Count
from t5x_lite.specs.rules import Fraction
from t5x_lite.specs.rules import Natural
from t5x_lite.specs.rules import Spec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data(Spec):
  """A corpus, how it becomes tokens, and what is kept for measuring."""

  corpus: str  # a registered name, or the path or glob of .txt or .jsonl files
  lengths: dict[str, Count]  # tokens of each feature: {'inputs': 512, ...}
  vocabulary: str = 'bytes'  # 'bytes', or the path of a SentencePiece model
  extra_ids: Natural = 100  # sentinels to add where the model brings none
  document: Literal['line', 'paragraph', 'file'] | None = None  # None: by look
  field: str = 'text'  # of a JSON line, holds the text
  held_out: Fraction = 0.05  # share of the documents never trained on
  store: str | None = None  # folder of tokenised corpora; None: user's cache
