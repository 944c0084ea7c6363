"""Every choice that a recipe can make. Standard library only.

A field's annotation is its rule: type, alternatives and bounds are checked when
a spec is made, in Python as from a recipe, and the error names the field.
"""

import dataclasses
import sys
import types
import typing
from typing import Annotated, Literal

from t5x_lite import errors

Count = Annotated[int, '>= 1', '< 2^31']
Natural = Annotated[int, '>= 0', '< 2^31']
Positive = Annotated[float, '> 0']
NonNegative = Annotated[float, '>= 0']
Fraction = Annotated[float, '>= 0', '< 1']
Share = Annotated[float, '> 0', '< 1']
AxisSize = Annotated[int, '>= 1 or -1']

_BOUNDS = {
  '>= 1': lambda x: x >= 1,
  '>= 0': lambda x: x >= 0,
  '> 0': lambda x: x > 0,
  '< 1': lambda x: x < 1,
  '< 2^31': lambda x: x < 2**31,
  '>= 1 or -1': lambda x: x >= 1 or x == -1,
}


def alternatives(rule):
  """The members of a union, or the rule itself."""
  if typing.get_origin(rule) in (typing.Union, types.UnionType):
    return typing.get_args(rule)
  return (rule,)


def describe(rule):
  """A rule in words: `int >= 1`, `'rsqrt' or 'constant'`, `T5Bias or None`."""
  origin, args = typing.get_origin(rule), typing.get_args(rule)
  if origin is Annotated:
    return ' '.join([describe(args[0]), ' and '.join(rule.__metadata__)])
  if origin is Literal:
    return ' or '.join(map(repr, args))
  if origin in (typing.Union, types.UnionType):
    return ' or '.join(map(describe, args))
  if origin is dict:
    return f'dict of {describe(args[0])} to {describe(args[1])}'
  if origin is tuple:
    return f'list of {describe(args[0])}'
  return 'None' if rule is types.NoneType else rule.__name__


def obeys(value, rule):
  """Whether a value is what a field's annotation asks for."""
  origin, args = typing.get_origin(rule), typing.get_args(rule)
  if origin is Annotated:
    return obeys(value, args[0]) and all(
      _BOUNDS[bound](value) for bound in rule.__metadata__
    )
  if origin is Literal:
    return isinstance(value, str) and value in args
  if origin in (typing.Union, types.UnionType):
    return any(obeys(value, member) for member in args)
  if origin is dict:
    return isinstance(value, dict) and all(
      obeys(k, args[0]) and obeys(v, args[1]) for k, v in value.items()
    )
  if origin is tuple:
    return isinstance(value, tuple) and all(obeys(v, args[0]) for v in value)
  if isinstance(value, bool):
    return rule is bool
  if rule is float:
    return isinstance(value, (int, float)) and abs(value) <= sys.float_info.max
  return isinstance(value, rule)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
  """A checked, frozen set of choices."""

  def __post_init__(self):
    for field in dataclasses.fields(self):
      value, rule = getattr(self, field.name), field.type
      name = f'{type(self).__name__}.{field.name}'
      if typing.get_origin(rule) is tuple:  # a list in gin and in JSON
        if isinstance(value, str):
          value = [word.strip() for word in value.split(',') if word.strip()]
        value = tuple(value) if isinstance(value, list) else value
        object.__setattr__(self, field.name, value)
      if not obeys(value, rule):
        literals = [
          choice
          for member in alternatives(rule)
          if typing.get_origin(member) is Literal
          for choice in typing.get_args(member)
        ]
        kind = f' ({type(value).__name__})'
        raise errors.ConfigError(
          f'wrong value for {name}',
          got=repr(value) + ('' if literals else kind),
          expected=describe(rule),
          choices=literals,
        )


def check_missing(cls, given, label, where=None):
  """Refuses settings of a spec that lack one without a default."""
  missing = [
    f'{cls.__name__}.{field.name} ({describe(field.type)})'
    for field in dataclasses.fields(cls)
    if field.default is dataclasses.MISSING and field.name not in given
  ]
  if missing:
    raise errors.ConfigError(
      f'{label} lacks settings', where=where, expected=', '.join(missing)
    )


# -- the model ----------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class T5Bias(Spec):
  """A learned scalar for each head and bucket of distance, arXiv:1910.10683."""

  buckets: Count = 32  # half of them for each direction where both are seen
  max_distance: Count = 128  # farther tokens share the last bucket
  per_layer: bool = False  # umT5, arXiv:2304.09151; else one table a stack

  def __post_init__(self):
    super().__post_init__()
    if self.buckets < 4 or self.buckets % 2:
      raise errors.ConfigError(
        'wrong value for T5Bias.buckets',
        got=self.buckets,
        expected='an even number >= 4',
      )
    if self.max_distance <= self.buckets // 2:
      raise errors.ConfigError(
        'T5Bias.max_distance is too small for T5Bias.buckets',
        got=self.max_distance,
        expected=f'more than {self.buckets // 2}, the distances that have a'
        ' bucket each',
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transformer(Spec):
  """An encoder-decoder Transformer, arXiv:1706.03762 as of 1910.10683."""

  vocab_size: Count  # rows of the embedding; at least the vocabulary's size
  encoder_layers: Count
  decoder_layers: Count
  embed_dim: Count  # width of the residual stream
  mlp_dim: Count  # width of the feed-forward hidden layer
  num_heads: Count
  head_dim: Count
  position: T5Bias | None = T5Bias()
  activation: Literal['relu', 'gelu', 'gelu_exact', 'silu'] = 'gelu'
  gated: bool = True  # GEGLU and kin, arXiv:2002.05202
  tie_embeddings: bool = False  # logits by the embedding over sqrt(embed_dim)
  dropout: Fraction = 0.0
  dtype: Literal['float32', 'bfloat16', 'float64'] = 'float32'  # of arithmetic
  remat: Literal['none', 'dots', 'full'] = 'none'  # what backward recomputes
  unroll: Count = 1  # layers in one turn of the scan; a matter of speed alone


# -- the objective ------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanCorruption(Spec):
  """Fill in masked spans, arXiv:1910.10683 section 3.1.4."""

  density: Share = 0.15  # share of the tokens that are masked
  mean_span: Annotated[float, '>= 1'] = 3.0  # mean tokens in a masked span


# -- the data -----------------------------------------------------------------


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


# -- the optimizer ------------------------------------------------------------


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


# -- the run ------------------------------------------------------------------


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
class Run(Spec):
  """Everything that makes a training run what it is."""

  model: Transformer
  objective: SpanCorruption
  data: Data
  optimizer: Adafactor
  mesh: Mesh = Mesh()
  steps: Count
  batch_size: Count  # examples a step, over all devices
  microbatches: Count = 1  # shares of a batch whose gradients are added
  seed: Natural = 0
  log_every: Count = 10  # steps between lines of metrics
  z_loss: NonNegative = 0.0  # weight of log(Z)^2, arXiv:2204.02311 section 5
  label_smoothing: Fraction = 0.0  # arXiv:1512.00567
  evaluation: Evaluation = Evaluation()
  checkpoints: Checkpoints = Checkpoints()

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


SPECS = {
  cls.__name__: cls
  for cls in (
    Run,
    Transformer,
    T5Bias,
    SpanCorruption,
    Data,
    Adafactor,
    Schedule,
    Mesh,
    Evaluation,
    Best,
    Checkpoints,
  )
}
