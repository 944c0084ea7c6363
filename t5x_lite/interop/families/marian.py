"""Marian: the first Transformer, arXiv:1706.03762, as translators have it."""

import numpy as np

from t5x_lite import errors
from t5x_lite import specs
from t5x_lite.interop.families import family

_EQUAL = (
  ('encoder_attention_heads', 'decoder_attention_heads'),
  ('encoder_ffn_dim', 'decoder_ffn_dim'),
)


def _sinusoids(shape):
  rows, width = shape
  rates = 10_000 ** -(np.arange(0, width, 2) / width)
  angles = np.arange(rows)[:, None] * rates
  return np.concatenate([np.sin(angles), np.cos(angles)], 1)


def _read(config, where):
  if not (config['encoder_layers'] and config['decoder_layers']):
    raise errors.CheckpointError(
      'Marian has no encoder or no decoder', where=where, got='0 layers'
    )
  for one, other in _EQUAL:
    if config[one] != config[other]:
      raise errors.CheckpointError(
        'encoder and decoder have layers of other sizes',
        where=where,
        got=f'{one} {config[one]}, {other} {config[other]}',
        expected='the same',
      )
  rates = {config['attention_dropout'], config['activation_dropout']} - {0.0}
  if rates - {config['dropout']}:
    raise errors.CheckpointError(
      'rates of dropout differ',
      where=where,
      got=f'dropout {config["dropout"]}, others {rates}',
      fix='make them the same in config.json: no result depends on them',
    )
  return {
    'head_dim': config['d_model'] // config['encoder_attention_heads'],
    'activation': family.activation(config['activation_function'], where),
    'norm': specs.LayerNorm(),
    'position': specs.Sinusoid(),
    'init': specs.Normal(std=config['init_std']),
  }


def _write(spec):
  return {
    'model_type': 'marian',
    'decoder_attention_heads': spec.num_heads,
    'decoder_ffn_dim': spec.mlp_dim,
    'activation_function': family.their_activation(spec.activation),
    'is_encoder_decoder': True,
    'num_hidden_layers': spec.encoder_layers,
    'decoder_vocab_size': spec.vocab_size,
  }


def _modules(spec):
  found = {
    'token_embedder': 'model.shared',
    'logits/bias': 'final_logits_bias',
  }
  for side in ('encoder', 'decoder'):
    layer = f'model.{side}.layers.{{}}'
    parts = {
      'attention_norm': 'self_attn_layer_norm',
      'cross_attention_norm': 'encoder_attn_layer_norm',
      'mlp_norm': 'final_layer_norm',
      'mlp/wi': 'fc1',
      'mlp/wo': 'fc2',
    }
    for ours, theirs in (
      ('attention', 'self_attn'),
      ('cross_attention', 'encoder_attn'),
    ):
      for name in ('query', 'key', 'value', 'out'):
        short = name if name == 'out' else name[0]
        parts[f'{ours}/{name}'] = f'{theirs}.{short}_proj'
    for ours, theirs in parts.items():
      found[f'{side}/layers/{ours}'] = f'{layer}.{theirs}'
  return found


MARIAN = family.Family(
  title='Marian',
  classes={'marian': 'MarianMTModel'},
  position=specs.Sinusoid,
  norm=specs.LayerNorm,
  sizes={
    'vocab_size': 'vocab_size',
    'embed_dim': 'd_model',
    'mlp_dim': 'encoder_ffn_dim',
    'num_heads': 'encoder_attention_heads',
    'encoder_layers': 'encoder_layers',
    'decoder_layers': 'decoder_layers',
    'scale_embeddings': 'scale_embedding',
    'dropout': 'dropout',
  },
  defaults={
    'scale_embedding': False,
    'activation_function': 'gelu',
    'dropout': 0.1,
    'attention_dropout': 0.0,
    'activation_dropout': 0.0,
    'init_std': 0.02,
  },
  only={
    'tie_word_embeddings': True,
    'tie_encoder_decoder': False,
    'share_encoder_decoder_embeddings': True,
    'normalize_before': False,
    'normalize_embedding': False,
    'add_final_layer_norm': False,
  },
  same={
    'hidden_size': 'd_model',
    'num_attention_heads': 'encoder_attention_heads',
  },
  fixed={
    'gated': False,
    'bias': True,
    'logits_bias': True,
    'norm_place': 'post',
    'tie_embeddings': True,
    'scale_logits': False,
    'scale_attention': True,
    'dropout_kind': 'token',
  },
  read=_read,
  write=_write,
  modules=_modules,
  prefix='model.',
  aliases=lambda spec: {
    'token_embedder': [
      'model.encoder.embed_tokens',
      'model.decoder.embed_tokens',
      'lm_head',
    ]
  },
  constants={r'model\.(encoder|decoder)\.embed_positions\.weight': _sinusoids},
  lacked={'logits_bias': 'final_logits_bias'},
)
