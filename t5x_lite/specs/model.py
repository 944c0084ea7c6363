"""What a model is made of."""

import dataclasses
from typing import Literal

from t5x_lite import errors
from t5x_lite.specs.rules import Count
from t5x_lite.specs.rules import Fraction
from t5x_lite.specs.rules import Natural
from t5x_lite.specs.rules import Positive
from t5x_lite.specs.rules import Spec

# -- positions ----------------------------------------------------------------


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
class Learned(Spec):
  """A vector for each position, added to the embeddings, arXiv:1705.03122."""

  length: Count  # positions that there are


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sinusoid(Spec):
  """Sines and cosines added to the embeddings, arXiv:1706.03762 section 3.5."""

  max_period: Positive = 10_000.0  # of the slowest, over 2 pi


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rope(Spec):
  """Queries and keys turned by angles of their positions, arXiv:2104.09864."""

  theta: Positive = 10_000.0  # pair i of D/2 turns by position theta^(-2i/D)
  pairs: Literal['halves', 'neighbours'] = 'halves'  # i with i + D/2, or i + 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alibi(Spec):
  """A fixed penalty on distance, other for each head, arXiv:2108.12409."""


# -- norms --------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class RMSNorm(Spec):
  """x / rms(x), arXiv:1910.07467."""

  scale: bool = True  # times a learned vector
  bias: bool = False  # plus a learned vector
  epsilon: Positive = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerNorm(Spec):
  """(x - mean(x)) / std(x), arXiv:1607.06450."""

  scale: bool = True  # times a learned vector
  bias: bool = True  # plus a learned vector
  epsilon: Positive = 1e-5


# -- initial values -----------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class FanIn(Spec):
  """T5's: variances of one over the width that is summed up."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Normal(Spec):
  """GPT's and BERT's: one standard deviation for all that is no bias."""

  std: Positive = 0.02
  depth_scaled: bool = False  # GPT-2: maps into the stream over sqrt(their sum)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Glorot(Spec):
  """The first Transformer's: uniform by widths on both sides."""


# -- the model ----------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transformer(Spec):
  """A Transformer, arXiv:1706.03762; unless said otherwise, T5 1.1's.

  With layers of both kinds it is an encoder-decoder, else one of them alone.
  """

  vocab_size: Count  # rows of the embedding; at least the vocabulary's size
  encoder_layers: Natural = 0
  decoder_layers: Natural = 0
  embed_dim: Count  # width of the residual stream
  mlp_dim: Count  # width of the feed-forward hidden layer
  num_heads: Count
  num_kv_heads: Count | None = None  # fewer: shared by groups, arXiv:2305.13245
  head_dim: Count
  position: T5Bias | Learned | Sinusoid | Rope | Alibi | None = T5Bias()
  mask: Literal['causal', 'prefix'] = (
    'causal'  # 'prefix': inputs see all inputs
  )
  windows: tuple[
    Natural, ...
  ] = ()  # tokens that a layer sees, by turns; 0: all
  norm: RMSNorm | LayerNorm = RMSNorm()
  norm_place: Literal['pre', 'post', 'both'] = 'pre'  # of what a layer adds
  embedding_norm: bool = False  # one more, of the embeddings
  activation: Literal['relu', 'gelu', 'gelu_exact', 'silu'] = 'gelu'
  gated: bool = True  # GEGLU and kin, arXiv:2002.05202
  bias: bool = False  # of linear maps, but for that to logits
  qkv_bias: bool | None = None  # of queries, keys and values; None: as bias
  logits_bias: bool = False
  tie_embeddings: bool = False  # logits by the embedding
  scale_embeddings: bool = False  # times sqrt(embed_dim)
  scale_logits: bool = True  # tied ones, over sqrt(embed_dim)
  scale_attention: bool = False  # its logits, over sqrt(head_dim)
  share_stacks: bool = False  # encoder and decoder have the same parameters
  segments: Natural = 0  # kinds of tokens (BERT's A and B), each with a vector
  classes: Natural = 0  # of whole texts, told by a linear map of the last token
  init: FanIn | Normal | Glorot = FanIn()
  dropout: Fraction = 0.0
  dropout_kind: Literal['t5', 'token'] = 't5'  # 't5': one mask for all tokens
  dtype: Literal['float32', 'bfloat16', 'float64'] = 'float32'  # of arithmetic
  remat: Literal['none', 'dots', 'full'] = 'none'  # what backward recomputes
  attention: Literal['auto', 'plain', 'chunked', 'fused'] = (
    'auto'  # by which kernel; a matter of speed and memory alone
  )
  unroll: Count = 1  # layers in one turn of the scan; a matter of speed alone

  def __post_init__(self):
    super().__post_init__()
    self._check_stacks()
    groups = self.num_kv_heads or self.num_heads
    if self.num_heads % groups:
      raise errors.ConfigError(
        'Transformer.num_kv_heads does not divide Transformer.num_heads',
        got=f'{groups} for {self.num_heads} heads',
      )
    if isinstance(self.position, Rope) and self.head_dim % 2:
      raise errors.ConfigError(
        'Rope turns pairs: Transformer.head_dim must be even',
        got=self.head_dim,
      )
    if isinstance(self.position, Sinusoid) and self.embed_dim % 2:
      raise errors.ConfigError(
        'Sinusoid needs pairs: Transformer.embed_dim must be even',
        got=self.embed_dim,
      )

  def _check_stacks(self):
    both = self.encoder_layers and self.decoder_layers
    if not self.encoder_layers and not self.decoder_layers:
      raise errors.ConfigError(
        'Transformer lacks layers',
        expected='Transformer.encoder_layers, Transformer.decoder_layers or '
        'both',
      )
    if self.share_stacks and self.encoder_layers != self.decoder_layers:
      raise errors.ConfigError(
        'Transformer.share_stacks needs as many layers on both sides',
        got=f'encoder_layers {self.encoder_layers}, decoder_layers '
        f'{self.decoder_layers}',
      )
    if self.mask == 'prefix' and (both or not self.decoder_layers):
      raise errors.ConfigError(
        "Transformer.mask 'prefix' is for a decoder alone",
        got=f'encoder_layers {self.encoder_layers}',
        fix='leave Transformer.mask out, or Transformer.encoder_layers',
      )
    for name in ('encoder_layers', 'decoder_layers'):
      layers = getattr(self, name)
      if self.windows and layers % len(self.windows):
        raise errors.ConfigError(
          f'Transformer.windows does not divide Transformer.{name}',
          got=f'{len(self.windows)} windows for {layers} layers',
        )
