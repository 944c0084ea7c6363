"""T5 and kin: T5, T5 1.1, Flan-T5, UL2, ByT5, mT5, umT5."""

import dataclasses

from t5x_lite import errors
from t5x_lite import specs
from t5x_lite.interop.families import family


def _form(spec):
  """Their word for the feed-forward layer."""
  if not spec.gated:
    return family.their_activation(spec.activation)
  # By 'gated-gelu' they mean the approximation.
  name = spec.activation
  return 'gated-gelu' if name == 'gelu' else f'gated-{name}'


def _read(config, where):
  gate, _, name = config['feed_forward_proj'].rpartition('-')
  if gate not in ('', 'gated'):
    raise errors.CheckpointError(
      'feed-forward layer is not supported',
      where=where,
      got=repr(config['feed_forward_proj']),
      expected="an activation, or 'gated-' before it",
    )
  if (gate, name) == ('gated', 'gelu'):
    name = 'gelu_new'
  # transformers takes these first, where they are.
  name = config.get('dense_act_fn', name)
  gated = config.get('is_gated_act', bool(gate))
  tied = config['tie_word_embeddings']
  if config.get('scale_decoder_outputs', tied) != tied:
    raise errors.CheckpointError(
      'scale of the logits is not supported',
      where=where,
      got=f'scale_decoder_outputs {not tied}, tie_word_embeddings {tied}',
    )
  if not config['num_layers']:
    raise errors.CheckpointError(
      'T5 has no encoder', where=where, got='num_layers 0'
    )
  layers = config['num_decoder_layers']
  if layers == 0:
    raise errors.CheckpointError(
      'T5 has no decoder',
      where=where,
      got='num_decoder_layers 0',
      fix="if it is an encoder alone, let architectures be ['T5EncoderModel']",
    )
  return {
    'decoder_layers': config['num_layers'] if layers is None else layers,
    'gated': gated,
    'activation': family.activation(name, where),
    'norm': specs.RMSNorm(epsilon=config['layer_norm_epsilon']),
    'position': specs.T5Bias(
      buckets=config['relative_attention_num_buckets'],
      max_distance=config['relative_attention_max_distance'],
      per_layer=config['model_type'] == 'umt5',
    ),
  }


def _write(spec):
  return {
    'model_type': 'umt5' if spec.position.per_layer else 't5',
    'feed_forward_proj': _form(spec),
    'num_decoder_layers': spec.decoder_layers,
    'layer_norm_epsilon': spec.norm.epsilon,
    'relative_attention_num_buckets': spec.position.buckets,
    'relative_attention_max_distance': spec.position.max_distance,
  }


def _stack(side, theirs, cross):
  """The modules of a stack whose layers are theirs."""
  parts = [('attention', 'SelfAttention'), ('mlp', 'DenseReluDense')]
  if cross:
    parts.insert(1, ('cross_attention', 'EncDecAttention'))
  layers, block = f'{side}/layers', f'{theirs}.block.{{}}'
  position = 'layer.0.SelfAttention.relative_attention_bias'
  found = {
    f'{side}/final_norm': f'{theirs}.final_layer_norm',
    f'{side}/position': f'{theirs}.block.0.{position}',
    f'{layers}/position': f'{block}.{position}',
  }
  for n, (ours, name) in enumerate(parts):
    inside = {x: x for x in ('wi', 'wi_0', 'wi_1', 'wo')}
    if ours != 'mlp':
      inside = {'query': 'q', 'key': 'k', 'value': 'v', 'out': 'o'}
    found[f'{layers}/{ours}_norm'] = f'{block}.layer.{n}.layer_norm'
    for ours_, theirs_ in inside.items():
      found[f'{layers}/{ours}/{ours_}'] = f'{block}.layer.{n}.{name}.{theirs_}'
  return found


def _modules(spec):
  return (
    {'token_embedder': 'shared', 'logits': 'lm_head'}
    | _stack('encoder', 'encoder', cross=False)
    | _stack('decoder', 'decoder', cross=True)
  )


def _copies(spec):
  """Where the stacks are one, the encoder has what the decoder has."""
  if not spec.share_stacks:
    return {}
  return {
    ours: (theirs.replace('layer.2', 'layer.1'),)
    for ours, theirs in _stack('decoder', 'encoder', cross=True).items()
    if '/cross_attention' not in ours
  }


def _aliases(spec):
  names = ['encoder.embed_tokens', 'decoder.embed_tokens']
  return {'token_embedder': names + ['lm_head'] * spec.tie_embeddings}


T5 = family.Family(
  title='T5',
  classes={
    't5': 'T5ForConditionalGeneration',
    'mt5': 'MT5ForConditionalGeneration',
    'umt5': 'UMT5ForConditionalGeneration',
  },
  position=specs.T5Bias,
  norm=specs.RMSNorm,
  sizes={
    'vocab_size': 'vocab_size',
    'embed_dim': 'd_model',
    'mlp_dim': 'd_ff',
    'num_heads': 'num_heads',
    'head_dim': 'd_kv',
    'encoder_layers': 'num_layers',
    'dropout': 'dropout_rate',
    'tie_embeddings': 'tie_word_embeddings',
    'share_stacks': 'tie_encoder_decoder',
  },
  defaults={
    'feed_forward_proj': 'relu',
    'num_decoder_layers': None,
    'layer_norm_epsilon': 1e-6,
    'relative_attention_num_buckets': 32,
    'relative_attention_max_distance': 128,
    'dropout_rate': 0.1,
    'tie_word_embeddings': True,
    'tie_encoder_decoder': False,
  },
  only={'is_encoder_decoder': True},
  same={
    'hidden_size': 'd_model',
    'num_attention_heads': 'num_heads',
    'num_hidden_layers': 'num_layers',
    'head_dim': 'd_kv',
  },
  read=_read,
  write=_write,
  modules=_modules,
  copies=_copies,
  aliases=_aliases,
  # Written by old versions, and never used.
  ignored=(
    r'decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias'
    r'\.weight',
  ),
)

# An encoder alone; the embedding is there, and no logits.
ENCODER = dataclasses.replace(
  T5,
  title='T5 encoder',
  classes={
    kind: name.replace('ForConditionalGeneration', 'EncoderModel')
    for kind, name in T5.classes.items()
  },
  sizes={
    ours: theirs
    for ours, theirs in T5.sizes.items()
    if ours not in ('tie_embeddings', 'share_stacks')
  },
  only={},  # is_encoder_decoder says nothing: it is true in what some save
  read=lambda config, where: (
    _read({**config, 'num_decoder_layers': None}, where)
    | {'decoder_layers': 0, 'tie_embeddings': True}
  ),
  write=lambda spec: (
    _write(spec) | {'is_encoder_decoder': False, 'num_decoder_layers': None}
  ),
)
