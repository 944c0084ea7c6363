"""A run, and where, when and how it is measured and saved."""

import dataclasses
from typing import Literal

from t5x_lite import errors
from t5x_lite.specs.data import Data
from t5x_lite.specs.decoding import Beam
from t5x_lite.specs.decoding import Greedy
from t5x_lite.specs.decoding import Sample
from t5x_lite.specs.model import Transformer
from t5x_lite.specs.objectives import CausalLM
from t5x_lite.specs.objectives import Classification
from t5x_lite.specs.objectives import Denoisers
from t5x_lite.specs.objectives import PrefixLM
from t5x_lite.specs.objectives import SpanCorruption
from t5x_lite.specs.objectives import Supervised
from t5x_lite.specs.optimizers import Adafactor
from t5x_lite.specs.optimizers import AdamW
from t5x_lite.specs.optimizers import Lamb
from t5x_lite.specs.optimizers import Sgd
from t5x_lite.specs.optimizers import check_pattern
from t5x_lite.specs.rules import AxisSize
from t5x_lite.specs.rules import Count
from t5x_lite.specs.rules import Fraction
from t5x_lite.specs.rules import Natural
from t5x_lite.specs.rules import NonNegative
from t5x_lite.specs.rules import Positive
from t5x_lite.specs.rules import Spec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mesh(Spec):
  """Devices along each axis of parallelism; one axis may be -1, the rest."""

  replica: AxisSize = 1  # copies of everything, over slow links
  data: AxisSize = -1  # copies of the parameters, shares of the batch
  fsdp: AxisSize = 1  # shares of the parameters and of the batch
  tensor: AxisSize = 1  # shares of heads, feed-forward and vocabulary
  sequence: AxisSize = 1  # shares of the length of activations


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation(Spec):
  """What is measured on held-out documents and tasks, from start to end."""

  every: Natural = 1000  # steps; 0: at start and end only
  examples: Count = 1024  # at most so many in training; `evaluate` takes all
  tasks: tuple[str, ...] = ()  # SeqIO tasks and mixtures, by --task_module
  split: str = 'validation'  # of the tasks
  lengths: dict[str, Count] | None = (
    None  # of the tasks' features; None: Data's
  )
  decoding: Greedy | Beam | Sample = Greedy()  # of the tasks' predictions

  def __post_init__(self):
    super().__post_init__()
    if self.decoding.sequences > 1:
      raise errors.ConfigError(
        'Evaluation.decoding gives several sequences, and a task takes one',
        got=f'{type(self.decoding).__name__} of {self.decoding.sequences}',
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Best(Spec):
  """Which measured steps are best, and when to wait for no better one."""

  metric: str = 'validation/text_loss'  # of a split or a task, then its name
  goal: Literal['min', 'max']
  keep: Count = 1  # so many of the best steps are kept
  patience: Count | None = None  # evaluations without a better one, then stop

  def __post_init__(self):
    super().__post_init__()
    if not all(self.metric.partition('/')):
      raise errors.ConfigError(
        'wrong value for Best.metric',
        got=repr(self.metric),
        expected="a split or a task and its metric: 'validation/text_loss'",
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoints(Spec):
  """When the state is saved, and what is kept."""

  every: Count = 1000  # steps; saves land on its multiples, and at the end
  keep: Count = 3  # the newest so many are kept
  keep_every: Count | None = None  # multiples of it are kept for good
  best: Best | None = None  # keeps these too; saves whenever one is found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pretrained(Spec):
  """The checkpoint of another run that the parameters of a new one start from.

  The optimizer starts afresh. A name such as `decoder/self_attention/query` is
  a path in the nested dict of parameters, as `train --dry_run` prints it.
  """

  path: str  # a workdir, or the folder of a step in its checkpoints
  step: Natural | Literal['best'] | None = None  # None: the latest
  # Regex of whole new names: the old name, with \\1 for its groups, or None for
  # a parameter that is drawn anew. The first that matches counts.
  rules: dict[str, str | None] | None = None
  drop: tuple[str, ...] = ()  # regexes of whole old names that nobody needs
  same_vocabulary: bool = True  # False: its rows may mean other tokens here

  def __post_init__(self):
    super().__post_init__()
    for pattern in self.rules or {}:
      check_pattern(pattern, 'Pretrained.rules')
    for pattern in self.drop:
      check_pattern(pattern, 'Pretrained.drop')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run(Spec):
  """Everything that makes a training run what it is."""

  model: Transformer
  objective: (
    SpanCorruption
    | PrefixLM
    | CausalLM
    | Denoisers
    | Supervised
    | Classification
  )
  data: Data
  optimizer: Adafactor | AdamW | Lamb | Sgd
  mesh: Mesh = Mesh()
  steps: Count
  batch_size: Count  # examples a step, over all devices
  microbatches: Count = 1  # shares of a batch whose gradients are added
  seed: Natural = 0
  log_every: Count = 10  # steps between lines of metrics
  z_loss: NonNegative = 0.0  # weight of log(Z)^2, arXiv:2204.02311 section 5
  label_smoothing: Fraction = 0.0  # arXiv:1512.00567
  # what the sum of the loss is divided by, as T5X names it, or a number
  loss_normalizer: (
    Positive
    | Literal[
      'NUM_REAL_TARGET_TOKENS',
      'NUM_TOTAL_TARGET_TOKENS',
      'AVERAGE_PER_SEQUENCE',
      'NONE',
    ]
  ) = 'NUM_REAL_TARGET_TOKENS'
  evaluation: Evaluation = Evaluation()
  checkpoints: Checkpoints = Checkpoints()
  start_from: Pretrained | None = None  # fine-tuning; of a new run alone

  def __post_init__(self):
    super().__post_init__()
    if self.batch_size % self.microbatches:
      fits = [
        n
        for n in range(1, min(self.batch_size + 1, 2 * self.microbatches))
        if not self.batch_size % n
      ]
      raise errors.ConfigError(
        'Run.microbatches does not divide Run.batch_size',
        got=f'{self.microbatches} for a batch of {self.batch_size}',
        expected=f'one of {", ".join(map(str, fits[-4:]))}',
      )
    best = self.checkpoints.best
    if best and best.patience and not self.evaluation.every:
      raise errors.ConfigError(
        'Best.patience waits for evaluations, and there are none in between',
        got=f'patience {best.patience}, Evaluation.every 0',
        fix='--gin.Evaluation.every=STEPS',
      )
