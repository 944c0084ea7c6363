"""What a model is trained on."""

import dataclasses
from typing import Literal

from t5x_lite import errors
from t5x_lite.specs.rules import Count
from t5x_lite.specs.rules import Fraction
from t5x_lite.specs.rules import Natural
from t5x_lite.specs.rules import Positive
from t5x_lite.specs.rules import Spec

IMPORTED = 'imported'  # Data.corpus of imported weights: their text is unknown


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mixture(Spec):
  """Several corpora or tasks, each with its share of the examples.

  A part without a rate counts by its examples n, as T5 has it: the share is
  proportional to min(n, maximum) ** (1 / temperature), arXiv:1910.10683 section
  3.5.2. Each part has an order of its own, and starts again when it ends.
  """

  parts: dict[str, Positive | None]  # name, path or glob: its rate, or None
  temperature: Positive = 1.0  # of the parts without a rate
  maximum: Count | None = None  # examples that count at most, of these

  def __post_init__(self):
    super().__post_init__()
    if not self.parts:
      raise errors.ConfigError(
        'Mixture.parts is empty', expected="{'my.txt': 1.0, ...}"
      )
    given = {rate is not None for rate in self.parts.values()}
    if len(given) > 1:
      raise errors.ConfigError(
        'some of Mixture.parts have a rate and others have none',
        got=self.parts,
        expected='a rate for each, or None for each',
      )
    if given == {True} and (self.temperature != 1 or self.maximum):
      raise errors.ConfigError(
        'Mixture.temperature and maximum are of parts without a rate',
        got=self.parts,
        expected='None for each',
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Concat(Spec):
  """Documents stand end to end, and an example is cut anywhere, as in T5."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Isolated(Spec):
  """An example is of one document, or of a piece of a longer one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data(Spec):
  """A corpus, how it becomes tokens, and what is kept for measuring."""

  # A registered name, tfds:NAME, or the path or glob of files.
  corpus: str | None = None
  # Or a task of inputs and targets: built in, or of a --task_module.
  task: str | None = None
  # Or several corpora or tasks: a mixture that SeqIO knows by name, or a spec.
  mixture: Mixture | str | None = None
  lengths: dict[str, Count]  # tokens of each feature: {'inputs': 512, ...}
  # 'bytes', a SentencePiece .model, or a tokenizer.json or its folder.
  vocabulary: str = 'bytes'
  extra_ids: Natural = 100  # sentinels to add where the model brings none
  # Where the vocabulary does not say them, or others: {'eos': '</s>'}.
  special_tokens: dict[Literal['pad', 'eos', 'bos', 'start'], str] | None = None
  prompt_start: bool = True  # a decoder alone reads the start before a prompt
  document: Literal['line', 'paragraph', 'file'] | None = None  # None: by look
  field: str = 'text'  # of a record, holds the text
  # Of a record with a pair: what holds the inputs, and last the targets.
  pair: tuple[str, ...] = ('inputs', 'targets')
  prefix: str = ''  # before each pair's inputs: 'translate English to German: '
  held_out: Fraction = 0.05  # share of the documents never trained on
  store: str | None = None  # folder of tokenised corpora; None: user's cache
  documents: Concat | Isolated = (
    Concat()
  )  # of text: what an example is cut from
  # Several examples in a row, which do not see each other: of pairs, and of
  # documents that are isolated.
  pack: bool = False
  # Read as they come: nothing is stored, and nothing shuffled.
  stream: bool = False

  def __post_init__(self):
    super().__post_init__()
    names = 'corpus', 'task', 'mixture'
    given = [name for name in names if getattr(self, name) is not None]
    if len(given) != 1:
      raise errors.ConfigError(
        f'{" and ".join(f"Data.{name}" for name in given)} are both set'
        if given
        else 'none of Data.corpus, Data.task and Data.mixture is set',
        got=' and '.join(str(getattr(self, name)) for name in given) or None,
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
