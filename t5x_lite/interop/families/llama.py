"""LLaMA and models of its shape."""

from t5x_lite import errors
from t5x_lite import specs
from t5x_lite.interop.families import family

_LAYER = 'model.layers.{}'


def _read(config, where):
  heads, width = config['num_attention_heads'], config['hidden_size']
  # transformers 5 has these together.
  rope = config.get('rope_parameters') or {}
  scaling = config.get('rope_scaling') or rope
  kind = scaling.get('rope_type', scaling.get('type', 'default'))
  if kind != 'default':
    raise errors.CheckpointError(
      'positions are scaled in a way that is not supported',
      where=where,
      got=repr(kind),
      expected="no rope_scaling, or 'default'",
    )
  own, mlp = config['attention_bias'], config['mlp_bias']
  if own != mlp:
    raise errors.CheckpointError(
      'biases are not supported in one place alone',
      where=where,
      got=f'attention_bias {own}, mlp_bias {mlp}',
      expected='both or none',
    )
  grouped = config['num_key_value_heads'] or heads
  return {
    'num_kv_heads': None if grouped == heads else grouped,
    'head_dim': config['head_dim'] or width // heads,
    'activation': family.activation(config['hidden_act'], where),
    'norm': specs.RMSNorm(epsilon=config['rms_norm_eps']),
    'position': specs.Rope(
      theta=float(rope.get('rope_theta', config['rope_theta']))
    ),
    'init': specs.Normal(std=config['initializer_range']),
    'bias': own,
    # tied logits are not scaled; of others the setting says nothing
    'scale_logits': not config['tie_word_embeddings'],
  }


def _write(spec):
  return {
    'model_type': 'llama',
    'num_key_value_heads': spec.num_kv_heads or spec.num_heads,
    'hidden_act': family.their_activation(spec.activation),
    'rms_norm_eps': spec.norm.epsilon,
    'rope_theta': spec.position.theta,
    'attention_bias': spec.bias,
    'mlp_bias': spec.bias,
  }


def _modules(spec):
  found = {
    'token_embedder': 'model.embed_tokens',
    'decoder/final_norm': 'model.norm',
    'logits': 'lm_head',
  }
  parts = {
    'attention_norm': 'input_layernorm',
    'mlp_norm': 'post_attention_layernorm',
    'attention/query': 'self_attn.q_proj',
    'attention/key': 'self_attn.k_proj',
    'attention/value': 'self_attn.v_proj',
    'attention/out': 'self_attn.o_proj',
    'mlp/wi_0': 'mlp.gate_proj',
    'mlp/wi_1': 'mlp.up_proj',
    'mlp/wo': 'mlp.down_proj',
  }
  for ours, theirs in parts.items():
    found[f'decoder/layers/{ours}'] = f'{_LAYER}.{theirs}'
  return found


LLAMA = family.Family(
  title='LLaMA',
  classes={'llama': 'LlamaForCausalLM'},
  position=specs.Rope,
  norm=specs.RMSNorm,
  sizes={
    'vocab_size': 'vocab_size',
    'embed_dim': 'hidden_size',
    'mlp_dim': 'intermediate_size',
    'num_heads': 'num_attention_heads',
    'head_dim': 'head_dim',
    'decoder_layers': 'num_hidden_layers',
    'tie_embeddings': 'tie_word_embeddings',
  },
  defaults={
    'head_dim': None,
    'num_key_value_heads': None,
    'hidden_act': 'silu',
    'rms_norm_eps': 1e-6,
    'initializer_range': 0.02,
    'rope_theta': 10_000.0,
    'attention_bias': False,
    'mlp_bias': False,
    'tie_word_embeddings': False,
  },
  fixed={'scale_attention': True, 'dropout_kind': 'token'},
  read=_read,
  write=_write,
  modules=_modules,
  prefix='model.',
  aliases=lambda spec: (
    {'token_embedder': ['lm_head']} if spec.tie_embeddings else {}
  ),
  ignored=(r'model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq',),
)
