"""What a model is made of."""

import dataclasses
from typing import Literal

from t5x_lite import errors
from t5x_lite.specs.rules import Count
from t5x_lite.specs.rules import Fraction
from t5x_lite.specs.rules import Spec


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
