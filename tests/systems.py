"""A small model of every architecture: what its parity and identities run on.

Sizes are odd where they may be, so that no axis is taken for another; a wrong
formula shows on parameters of deviation 0.3 (systems.md, section 3).
"""

import dataclasses

import jax
import numpy as np

from t5x_lite import specs

SIZES = dict(vocab_size=23, embed_dim=12, mlp_dim=20, num_heads=3, head_dim=4)
OTHER = dict(vocab_size=31, embed_dim=24, mlp_dim=28, num_heads=6, head_dim=4)
FREE = dict(num_heads=4, head_dim=6)  # where heads need not divide the width
T5 = dict(
  position=specs.T5Bias(buckets=8, max_distance=12),
  decoder_layers=2,
  head_dim=5,
)
GPT = dict(
  position=specs.Learned(length=16),
  norm=specs.LayerNorm(),
  gated=False,
  bias=True,
  tie_embeddings=True,
  scale_logits=False,
  scale_attention=True,
  dropout_kind='token',
  decoder_layers=2,
)
LLAMA = dict(
  position=specs.Rope(),
  activation='silu',
  scale_attention=True,
  dropout_kind='token',
  decoder_layers=2,
)
BERT = GPT | dict(
  decoder_layers=0,
  encoder_layers=2,
  activation='gelu_exact',
  embedding_norm=True,
  norm=specs.LayerNorm(epsilon=1e-12),
  norm_place='post',
  segments=2,
)
SYSTEMS = {
  't5_lm': T5 | dict(activation='relu', gated=False, tie_embeddings=True),
  't5_prefix_lm': T5 | dict(mask='prefix'),
  'umt5_lm': T5
  | dict(position=specs.T5Bias(buckets=8, max_distance=12, per_layer=True)),
  't5_shared': T5 | dict(encoder_layers=2, share_stacks=True),
  'gpt': GPT | dict(norm_place='post'),
  'gpt2': GPT,
  'gpt3': GPT | dict(decoder_layers=4, windows=(0, 3), scale_attention=False),
  'llama': LLAMA | FREE,
  'llama_grouped': LLAMA
  | FREE
  | dict(num_kv_heads=2, position=specs.Rope(theta=500.0)),
  'ernie': LLAMA  # 4.5: a LLaMA whose pairs are neighbours
  | FREE
  | dict(num_kv_heads=1, position=specs.Rope(pairs='neighbours')),
  'gemma2': LLAMA
  | FREE
  | dict(
    activation='gelu',
    norm_place='both',
    tie_embeddings=True,
    scale_embeddings=True,
    scale_logits=False,
    num_kv_heads=2,
    windows=(5, 0),
  ),
  'bloom': GPT | dict(position=specs.Alibi(), embedding_norm=True),
  'transformer': GPT
  | dict(
    position=specs.Sinusoid(),
    encoder_layers=1,
    activation='relu',
    norm_place='post',
    scale_embeddings=True,
  ),
  'bert': BERT,
  'roformer': BERT | dict(position=specs.Rope(pairs='neighbours')),
}
# Biases that transformers' GPT-Neo lacks: they are zero, and stay so.
ABSENT = [
  f'decoder/layers/attention/{name}/bias' for name in ('query', 'key', 'value')
]
STD = 0.3  # of parameters
STEPS = 5
# A rate that float32 holds, in which schedules are computed.
ADAMW = dict(lr=2**-7, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.1)


def make(name, sizes=SIZES, **changes):
  """The spec of a system, in float64 unless said otherwise."""
  own = SYSTEMS[name]
  if sizes is not SIZES:
    own = own | sizes | ({'num_kv_heads': 3} if 'num_kv_heads' in own else {})
  return specs.Transformer(**{'dtype': 'float64'} | SIZES | own | changes)


def make_batch(spec, seed, lengths=(13, 9, 4), inputs=(11, 6, 7)):
  """A batch with one sequence of each length to a row, then padding.

  Token 0 is a token and padding is not 0, so whoever takes validity from
  tokens is wrong; some valid targets have no weight.
  """
  rng = np.random.default_rng(seed)
  batch, main = {}, 'decoder' if spec.decoder_layers else 'encoder'
  for side in ('encoder', 'decoder'):
    if not getattr(spec, f'{side}_layers'):
      continue
    counts = np.array(lengths if side == main else inputs)[:, None]
    shape = len(counts), counts.max()
    places = np.broadcast_to(np.arange(shape[1]), shape)
    valid = places < counts
    tokens = rng.integers(spec.vocab_size, size=(3, *shape))
    rows = {
      'segment_ids': valid,
      'positions': places * valid,
      'input_tokens': tokens[0],
    }
    if side == main:
      rows['target_tokens'] = tokens[1]
      rows['loss_weights'] = valid & (rng.random(shape) < 0.8)
    if side == 'decoder' and spec.mask == 'prefix':
      rows['bidirectional_mask'] = places < counts // 2
    if side == 'encoder' and spec.segments:
      rows['type_ids'] = tokens[2] % spec.segments
    for name, row in rows.items():
      dtype = np.float32 if name == 'loss_weights' else np.int32
      batch[f'{side}_{name}'] = np.ascontiguousarray(row, dtype)
  return batch


def draw(model, seed=0):
  """Parameters at a scale where every part of the model matters."""
  rng = np.random.default_rng(seed)

  def one(path, p):
    mean = 1.0 if path[-1].key == 'scale' else 0.0
    return mean + STD * rng.standard_normal(p.shape)

  return jax.tree_util.tree_map_with_path(one, model.abstract)


def replace(spec, **changes):
  return dataclasses.replace(spec, **changes)
