"""What a model is trained on."""

import dataclasses
from typing import Literal

from t5x_lite import errors
from t5x_lite.specs.rules import Count
from t5x_lite.specs.rules import Fraction
from t5x_lite.specs.rules import Natural
from t5x_lite.specs.rules import Spec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data(Spec):
  """A corpus, how it becomes tokens, and what is kept for measuring."""

  # A registered name, or the path or glob of .txt or .jsonl files.
  corpus: str | None = None
  # Or a SeqIO task that --task_module registers, of inputs and targets.
  task: str | None = None
  lengths: dict[str, Count]  # tokens of each feature: {'inputs': 512, ...}
  # 'bytes', a SentencePiece .model, or a tokenizer.json or its folder.
  vocabulary: str = 'bytes'
  extra_ids: Natural = 100  # sentinels to add where the model brings none
  # Where the vocabulary does not say them, or others: {'eos': '</s>'}.
  special_tokens: dict[Literal['pad', 'eos', 'bos'], str] | None = None
  document: Literal['line', 'paragraph', 'file'] | None = None  # None: by look
  field: str = 'text'  # of a JSON line, holds the text
  # Of a JSON line with a pair: what holds the inputs, and last the targets.
  pair: tuple[str, ...] = ('inputs', 'targets')
  prefix: str = ''  # before each pair's inputs: 'translate English to German: '
  held_out: Fraction = 0.05  # share of the documents never trained on
  store: str | None = None  # folder of tokenised corpora; None: user's cache

  def __post_init__(self):
    super().__post_init__()
    if (self.corpus is None) == (self.task is None):
      raise errors.ConfigError(
        'Data.corpus and Data.task are both set'
        if self.task
        else 'neither Data.corpus nor Data.task is set',
        got=None if self.task is None else f'{self.corpus} and {self.task}',
        expected='one of them',
      )
    if len(self.pair) < 2 or not all(self.pair):
      raise errors.ConfigError(
        'wrong value for Data.pair',
        got=list(self.pair),
        expected='the fields of the inputs, one or more, and of the targets',
      )
    if self.task is not None and self.prefix:
      raise errors.ConfigError(
        "Data.prefix is of a corpus: a task's own preprocessors add its prefix",
        got=repr(self.prefix),
        fix='delete it',
      )
