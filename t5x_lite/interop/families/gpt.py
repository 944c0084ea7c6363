"""GPT, GPT-2 and GPT-Neo."""

from t5x_lite import errors
from t5x_lite import specs
from t5x_lite.interop.families import family

_FIXED = {
  'gated': False,
  'bias': True,
  'tie_embeddings': True,
  'scale_logits': False,
  'scale_attention': True,
  'dropout_kind': 'token',
}


def _drop(config, where, *names):
  """The rate of dropout, the same in all places."""
  rates = {name: config[name] for name in names}
  if len(set(rates.values())) > 1:
    raise errors.CheckpointError(
      'rates of dropout differ',
      where=where,
      got=', '.join(f'{name} {rate}' for name, rate in rates.items()),
      expected='one rate',
      fix='make them the same in config.json: no result depends on them',
    )
  return next(iter(rates.values()))


def _read(config, where, activation, **more):
  width, heads = config['n_embd'], config['n_head']
  if width % heads:
    raise errors.CheckpointError(
      'n_head does not divide n_embd', where=where, got=f'{heads} and {width}'
    )
  return {
    'head_dim': width // heads,
    'mlp_dim': 4 * width,
    'activation': family.activation(config[activation], where),
    'norm': specs.LayerNorm(epsilon=config['layer_norm_epsilon']),
    'position': specs.Learned(length=config['n_positions']),
    'dropout': _drop(config, where, 'resid_pdrop', 'embd_pdrop', 'attn_pdrop'),
    'init': specs.Normal(std=config['initializer_range'], **more),
  }


def _write(spec, kind, activation):
  found = {
    'model_type': kind,
    activation: family.their_activation(spec.activation),
    'layer_norm_epsilon': spec.norm.epsilon,
    'n_positions': spec.position.length,
  }
  return found | dict.fromkeys(
    ('resid_pdrop', 'embd_pdrop', 'attn_pdrop'), spec.dropout
  )


def _modules(embed, position, attention, out, joined):
  """Of a GPT, by what its versions call otherwise."""
  layer = 'transformer.h.{}'
  found = {
    'token_embedder': f'transformer.{embed}',
    'decoder/position': f'transformer.{position}',
    'decoder/final_norm': 'transformer.ln_f',
    'decoder/layers/attention_norm': f'{layer}.ln_1',
    'decoder/layers/mlp_norm': f'{layer}.ln_2',
    'decoder/layers/attention/out': f'{layer}.{attention}.{out}',
    'decoder/layers/mlp/wi': f'{layer}.mlp.c_fc',
    'decoder/layers/mlp/wo': f'{layer}.mlp.c_proj',
  }
  if joined:
    ours = 'decoder/layers/attention/query+key+value'
    return found | {ours: f'{layer}.{attention}.c_attn'}
  for name in ('query', 'key', 'value'):
    theirs = f'{layer}.{attention}.{name[0]}_proj'
    found[f'decoder/layers/attention/{name}'] = theirs
  return found


_SIZES = {
  'vocab_size': 'vocab_size',
  'embed_dim': 'n_embd',
  'num_heads': 'n_head',
  'decoder_layers': 'n_layer',
}
_SAME = {
  'hidden_size': 'n_embd',
  'max_position_embeddings': 'n_positions',
  'num_attention_heads': 'n_head',
  'num_hidden_layers': 'n_layer',
}
_DEFAULTS = {
  'layer_norm_epsilon': 1e-5,
  'initializer_range': 0.02,
  'resid_pdrop': 0.1,
  'embd_pdrop': 0.1,
  'attn_pdrop': 0.1,
}
_TIED = {'token_embedder': ['lm_head']}
# Masks, which old versions saved.
_IGNORED = (r'transformer\.h\.\d+\.attn\.(attention\.)?(masked_)?bias',)

GPT = family.Family(
  title='GPT',
  classes={'openai-gpt': 'OpenAIGPTLMHeadModel'},
  position=specs.Learned,
  norm=specs.LayerNorm,
  sizes=_SIZES,
  defaults=_DEFAULTS | {'n_positions': 512, 'afn': 'gelu'},
  same=_SAME,
  fixed=_FIXED | {'norm_place': 'post'},
  # By 'gelu' this class means the approximation. It has no n_inner.
  read=lambda config, where: (
    _read(config, where, 'afn')
    | ({'activation': 'gelu'} if config['afn'] == 'gelu' else {})
  ),
  write=lambda spec: (
    _write(spec, 'openai-gpt', 'afn')
    | ({'afn': 'gelu'} if spec.activation == 'gelu' else {})
  ),
  modules=lambda spec: _modules(
    'tokens_embed', 'positions_embed', 'attn', 'c_proj', joined=True
  ),
  prefix='transformer.',
  turned=False,
  aliases=lambda spec: _TIED,
  ignored=_IGNORED,
)

GPT2 = family.Family(
  title='GPT-2',
  classes={'gpt2': 'GPT2LMHeadModel'},
  position=specs.Learned,
  norm=specs.LayerNorm,
  sizes=_SIZES,
  defaults=_DEFAULTS
  | {
    'n_positions': 1024,
    'n_inner': None,
    'activation_function': 'gelu_new',
    'scale_attn_weights': True,
  },
  only={
    'scale_attn_by_inverse_layer_idx': False,
    'add_cross_attention': False,
    'tie_word_embeddings': True,
  },
  same=_SAME,
  fixed=_FIXED,
  read=lambda config, where: (
    _read(config, where, 'activation_function', depth_scaled=True)
    | {
      'scale_attention': config['scale_attn_weights'],
      'mlp_dim': config['n_inner'] or 4 * config['n_embd'],
    }
  ),
  write=lambda spec: (
    _write(spec, 'gpt2', 'activation_function')
    | {'n_inner': spec.mlp_dim, 'scale_attn_weights': spec.scale_attention}
  ),
  modules=lambda spec: _modules('wte', 'wpe', 'attn', 'c_proj', joined=True),
  prefix='transformer.',
  turned=False,
  aliases=lambda spec: _TIED,
  ignored=_IGNORED,
)


# -- GPT-Neo ------------------------------------------------------------------


def _read_neo(config, where):
  types, layers = config['attention_types'], config['num_layers']
  count = sum(len(turn) * times for turn, times in types)
  if count != layers or layers < 1:
    raise errors.CheckpointError(
      'attention_types are not those of num_layers',
      where=where,
      got=f'{count} for {layers}',
    )
  kinds = [kind for turn, times in types for kind in turn * times]
  if config.get('attention_layers', kinds) != kinds:
    raise errors.CheckpointError(
      'attention_layers are not those of attention_types', where=where
    )
  if unknown := sorted(set(kinds) - {'global', 'local'}):
    raise errors.CheckpointError(
      'kind of attention is not supported', where=where, got=unknown[0]
    )
  if 'local' in kinds and config['window_size'] < 1:
    raise errors.CheckpointError(
      'wrong window_size', where=where, got=config['window_size']
    )
  turn = next(
    kinds[:n]
    for n in range(1, len(kinds) + 1)
    if not len(kinds) % n and kinds[:n] * (len(kinds) // n) == kinds
  )
  windows = [config['window_size'] if kind == 'local' else 0 for kind in turn]
  width, heads = config['hidden_size'], config['num_heads']
  names = 'resid_dropout', 'embed_dropout', 'attention_dropout'
  return {
    'head_dim': width // heads,
    'mlp_dim': config['intermediate_size'] or 4 * width,
    'activation': family.activation(config['activation_function'], where),
    'norm': specs.LayerNorm(epsilon=config['layer_norm_epsilon']),
    'position': specs.Learned(length=config['max_position_embeddings']),
    'dropout': _drop(config, where, *names),
    'init': specs.Normal(std=config['initializer_range']),
    'windows': tuple(windows) if any(windows) else (),
  }


def _write_neo(spec):
  windows = spec.windows or (0,)
  kinds = ['local' if window else 'global' for window in windows]
  times = spec.decoder_layers // len(windows)
  return {
    'model_type': 'gpt_neo',
    'intermediate_size': spec.mlp_dim,
    'attention_types': [[kinds, times]],
    'attention_layers': kinds * times,
    'window_size': max(windows) or 256,
    'activation_function': family.their_activation(spec.activation),
    'layer_norm_epsilon': spec.norm.epsilon,
    'max_position_embeddings': spec.position.length,
  } | dict.fromkeys(
    ('resid_dropout', 'embed_dropout', 'attention_dropout'), spec.dropout
  )


GPT_NEO = family.Family(
  title='GPT-Neo',
  classes={'gpt_neo': 'GPTNeoForCausalLM'},
  position=specs.Learned,
  norm=specs.LayerNorm,
  sizes={
    'vocab_size': 'vocab_size',
    'embed_dim': 'hidden_size',
    'num_heads': 'num_heads',
    'decoder_layers': 'num_layers',
  },
  defaults={
    'intermediate_size': None,
    'max_position_embeddings': 2048,
    'window_size': 256,
    'attention_types': [[['global', 'local'], 12]],
    'activation_function': 'gelu_new',
    'layer_norm_epsilon': 1e-5,
    'initializer_range': 0.02,
    'resid_dropout': 0.0,
    'embed_dropout': 0.0,
    'attention_dropout': 0.0,
  },
  only={'tie_word_embeddings': True},
  same={'num_attention_heads': 'num_heads', 'num_hidden_layers': 'num_layers'},
  fixed=_FIXED | {'scale_attention': False, 'qkv_bias': False},
  read=_read_neo,
  write=_write_neo,
  modules=lambda spec: _modules(
    'wte', 'wpe', 'attn.attention', 'out_proj', joined=False
  ),
  prefix='transformer.',
  aliases=lambda spec: _TIED,
  ignored=_IGNORED,
)
