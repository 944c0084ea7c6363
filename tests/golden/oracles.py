"""Models of transformers 4.57.6 that our small systems must equal.

Each is built from our spec, run on our batch, and has a table of names: our
modules' paths to theirs.
"""

import contextlib
import typing
from unittest import mock

import numpy as np
import torch
import transformers
from transformers import pytorch_utils
from transformers.activations import ACT2FN
from transformers.models.openai import modeling_openai
from transformers.models.t5 import modeling_t5
from transformers.models.umt5 import modeling_umt5

# -- float64 inside -----------------------------------------------------------


@contextlib.contextmanager
def float64_inside():
  """Computes in float64 what transformers computes in float32: norms, softmax.

  Angles of positions too: whatever asks for float32 gets float64.
  """
  to, softmax = torch.Tensor.to, torch.nn.functional.softmax

  def wider(x):
    return torch.float64 if x is torch.float32 else x

  def keep_to(x, *args, **kwargs):
    kwargs = {name: wider(value) for name, value in kwargs.items()}
    return to(x, *map(wider, args), **kwargs)

  def keep_softmax(x, dim=None, dtype=None, **kwargs):
    return softmax(x, dim=dim, dtype=wider(dtype), **kwargs)

  with (
    mock.patch.object(torch.Tensor, 'float', torch.Tensor.double),
    mock.patch.object(torch.Tensor, 'to', keep_to),
    mock.patch.object(torch.nn.functional, 'softmax', keep_softmax),
  ):
    yield


def set_angles(model, theta):
  """Rates and sinusoids of positions, computed in float64."""
  for module in model.modules():
    if hasattr(module, 'inv_freq'):
      width = 2 * len(module.inv_freq)
      pairs = torch.arange(0, width, 2, dtype=torch.float64) / width
      module.inv_freq = theta**-pairs
    if 'Sinusoidal' in type(module).__name__:
      rows, width = module.weight.shape
      rates = 10_000 ** -(np.arange(0, width, 2) / width)
      angles = np.arange(rows)[:, None] * rates
      table = np.concatenate([np.sin(angles), np.cos(angles)], 1)
      module.weight.data = torch.from_numpy(table)
    if isinstance(module, torch.nn.Embedding):
      module.padding_idx = None  # it would have no gradient


# -- the systems --------------------------------------------------------------


class T5Decoder(torch.nn.Module):
  """A T5 stack alone, as a language model."""

  def __init__(self, config, stack):
    super().__init__()
    self.shared = torch.nn.Embedding(config.vocab_size, config.d_model)
    self.decoder = stack(config, self.shared)
    self.lm_head = torch.nn.Linear(
      config.d_model, config.vocab_size, bias=False
    )
    if config.tie_word_embeddings:
      self.lm_head.weight = self.shared.weight
    self.config = config

  def forward(self, input_ids, attention_mask):
    x = self.decoder(input_ids, attention_mask, use_cache=False)[0]
    if self.config.tie_word_embeddings:
      x = x * self.config.d_model**-0.5
    return self.lm_head(x)


def t5_config(spec, name='T5'):
  form = f'gated-{spec.activation}' if spec.gated else spec.activation
  return getattr(transformers, f'{name}Config')(
    vocab_size=spec.vocab_size,
    num_layers=spec.encoder_layers or spec.decoder_layers,
    num_decoder_layers=spec.decoder_layers,
    d_model=spec.embed_dim,
    d_ff=spec.mlp_dim,
    num_heads=spec.num_heads,
    d_kv=spec.head_dim,
    relative_attention_num_buckets=spec.position.buckets,
    relative_attention_max_distance=spec.position.max_distance,
    feed_forward_proj=form,
    tie_word_embeddings=spec.tie_embeddings,
    dropout_rate=0.0,
    is_decoder=not spec.encoder_layers,
    is_encoder_decoder=bool(spec.encoder_layers),
    tie_encoder_decoder=spec.share_stacks,
    use_cache=False,
  )


def build_t5(spec):
  if spec.encoder_layers:
    name = 'UMT5' if spec.position.per_layer else 'T5'
    end = 'ForConditionalGeneration' if spec.decoder_layers else 'EncoderModel'
    model_class = getattr(transformers, f'{name}{end}')
    return model_class(t5_config(spec, name))
  if spec.position.per_layer:
    return T5Decoder(t5_config(spec, 'UMT5'), modeling_umt5.UMT5Stack)
  return T5Decoder(t5_config(spec), modeling_t5.T5Stack)


def gpt_sizes(spec, names=('vocab_size', 'n_embd', 'n_layer', 'n_head')):
  sizes = spec.vocab_size, spec.embed_dim, spec.decoder_layers, spec.num_heads
  return dict(zip(names, sizes, strict=True))


def eager(model_class, config):
  """A model with plain attention."""
  config._attn_implementation = 'eager'
  return model_class(config)


def build_gpt(spec):
  config = transformers.OpenAIGPTConfig(
    **gpt_sizes(spec), n_positions=spec.position.length
  )
  model = eager(transformers.OpenAIGPTLMHeadModel, config)
  for block in model.transformer.h:  # which is 4 E wide by its code
    block.mlp = modeling_openai.MLP(spec.mlp_dim, config)
  return model


def build_gpt2(spec):
  config = transformers.GPT2Config(
    **gpt_sizes(spec), n_positions=spec.position.length, n_inner=spec.mlp_dim
  )
  return eager(transformers.GPT2LMHeadModel, config)


def build_gpt3(spec):
  names = 'vocab_size', 'hidden_size', 'num_layers', 'num_heads'
  kinds = ['local' if window else 'global' for window in spec.windows]
  config = transformers.GPTNeoConfig(
    **gpt_sizes(spec, names),
    max_position_embeddings=spec.position.length,
    intermediate_size=spec.mlp_dim,
    window_size=max(spec.windows),
    attention_types=[[kinds, spec.decoder_layers // len(kinds)]],
  )
  return eager(transformers.GPTNeoForCausalLM, config)


def build_bloom(spec):
  names = 'vocab_size', 'hidden_size', 'n_layer', 'n_head'
  config = transformers.BloomConfig(**gpt_sizes(spec, names))
  model = eager(transformers.BloomForCausalLM, config)
  for block in model.transformer.h:  # which is 4 E wide by its code
    mlp, e, f = block.mlp, spec.embed_dim, spec.mlp_dim
    mlp.dense_h_to_4h = torch.nn.Linear(e, f)
    mlp.dense_4h_to_h = torch.nn.Linear(f, e)
    mlp.gelu_impl = ACT2FN['gelu_new']  # its sqrt(2 / pi) has eight digits
  return model


def llama_config(spec, name, **more):
  return getattr(transformers, f'{name}Config')(
    vocab_size=spec.vocab_size,
    hidden_size=spec.embed_dim,
    intermediate_size=spec.mlp_dim,
    num_hidden_layers=spec.decoder_layers,
    num_attention_heads=spec.num_heads,
    num_key_value_heads=spec.num_kv_heads or spec.num_heads,
    head_dim=spec.head_dim,
    rope_theta=spec.position.theta,
    rms_norm_eps=spec.norm.epsilon,
    tie_word_embeddings=spec.tie_embeddings,
    pad_token_id=None,
    **more,
  )


def build_llama(spec):
  config = llama_config(spec, 'Llama')
  return eager(transformers.LlamaForCausalLM, config)


def build_ernie(spec):
  config = llama_config(spec, 'Ernie4_5')
  return eager(transformers.Ernie4_5ForCausalLM, config)


def build_gemma2(spec):
  config = llama_config(
    spec,
    'Gemma2',
    query_pre_attn_scalar=spec.head_dim,
    sliding_window=max(spec.windows),
    attn_logit_softcapping=None,
    final_logit_softcapping=None,
  )
  return eager(transformers.Gemma2ForCausalLM, config)


def build_transformer(spec):
  config = transformers.MarianConfig(
    vocab_size=spec.vocab_size,
    d_model=spec.embed_dim,
    encoder_layers=spec.encoder_layers,
    decoder_layers=spec.decoder_layers,
    encoder_attention_heads=spec.num_heads,
    decoder_attention_heads=spec.num_heads,
    encoder_ffn_dim=spec.mlp_dim,
    decoder_ffn_dim=spec.mlp_dim,
    activation_function='relu',
    scale_embedding=True,
    max_position_embeddings=64,
    pad_token_id=0,
    decoder_start_token_id=0,
    dropout=0.0,
  )
  return eager(transformers.MarianMTModel, config)


def bert_config(spec, name, **more):
  return getattr(transformers, f'{name}Config')(
    vocab_size=spec.vocab_size,
    hidden_size=spec.embed_dim,
    num_hidden_layers=spec.encoder_layers,
    num_attention_heads=spec.num_heads,
    intermediate_size=spec.mlp_dim,
    type_vocab_size=spec.segments,
    layer_norm_eps=spec.norm.epsilon,
    **more,
  )


def build_bert(spec):
  length = spec.position.length
  config = bert_config(spec, 'Bert', max_position_embeddings=length)
  config._attn_implementation = 'eager'
  return transformers.BertModel(config, add_pooling_layer=False)


def build_roformer(spec):
  config = bert_config(spec, 'RoFormer', embedding_size=spec.embed_dim)
  return transformers.RoFormerModel(config)


# -- inputs and outputs -------------------------------------------------------


def tensors(batch, side='decoder'):
  names = dict(input_ids='input_tokens', attention_mask='segment_ids')
  found = {name: batch[f'{side}_{ours}'] for name, ours in names.items()}
  return {name: torch.from_numpy(x).long() for name, x in found.items()}


def run_lm(model, batch):
  return model(**tensors(batch)).logits


def run_t5(model, batch):
  """With the mask as a matrix, so that it may be that of a prefix LM."""
  segments = batch['decoder_segment_ids']
  length = segments.shape[1]
  seen = np.tri(length, dtype=bool)[None]
  if 'decoder_bidirectional_mask' in batch:
    prefix = batch['decoder_bidirectional_mask'] > 0
    seen = seen | (prefix[:, :, None] & prefix[:, None])
  seen = seen & (segments > 0)[:, None]
  hidden = np.where(seen, 0, np.finfo(np.float64).min)[:, None]
  ids = tensors(batch)['input_ids']
  return model(ids, torch.from_numpy(hidden))


def run_pair(model, batch):
  decoder = tensors(batch)
  return model(
    **tensors(batch, 'encoder'),
    decoder_input_ids=decoder['input_ids'],
    decoder_attention_mask=decoder['attention_mask'],
    use_cache=False,
  ).logits


def run_encoder(model, batch):
  """What T5's encoder alone gives, by the embedding as tied logits have it."""
  x_BLE = model(**tensors(batch, 'encoder')).last_hidden_state
  table_VE = model.get_input_embeddings().weight
  return x_BLE @ table_VE.T * table_VE.shape[1] ** -0.5


def run_bert(model, batch):
  types = torch.from_numpy(batch['encoder_type_ids']).long()
  found = model(**tensors(batch, 'encoder'), token_type_ids=types)
  table = model.embeddings.word_embeddings.weight
  return found.last_hidden_state @ table.T


# -- names: our module's path to theirs ---------------------------------------


def named_layers(side, block, **parts):
  """A table of layer parts, `mlp_wo` for mlp/wo, by their names in a block."""
  return {
    f'{side}/layers/{ours}': f'{block}.{theirs}'
    for name, theirs in parts.items()
    for ours in [name.replace('__', '/')]
  }


def t5_names(spec):
  names = {'token_embedder': 'shared', 'logits': 'lm_head'}
  for stack in ('encoder', 'decoder'):
    parts = {}
    places = [('attention', 0, 'SelfAttention'), ('mlp', 1, 'DenseReluDense')]
    if stack == 'decoder':  # even alone it has the parameters
      places[1:] = [
        ('cross_attention', 1, 'EncDecAttention'),
        ('mlp', 2, 'DenseReluDense'),
      ]
    for part, i, theirs in places:
      parts[f'{part}_norm'] = f'layer.{i}.layer_norm'
      inside = zip(('wi', 'wi_0', 'wi_1', 'wo'), ('wi', 'wi_0', 'wi_1', 'wo'))
      if part != 'mlp':
        inside = zip(('query', 'key', 'value', 'out'), 'qkvo')
      for name, short in inside:
        parts[f'{part}__{name}'] = f'layer.{i}.{theirs}.{short}'
    bias = 'layer.0.SelfAttention.relative_attention_bias'
    names[f'{stack}/final_norm'] = f'{stack}.final_layer_norm'
    names[f'{stack}/position'] = f'{stack}.block.0.{bias}'
    names |= named_layers(stack, f'{stack}.block.{{}}', position=bias, **parts)
  return names


def gpt_names(attention='attn', out='c_proj', embed='wte', position='wpe'):
  """Of a GPT, by what its versions call otherwise."""

  def names(spec):
    del spec
    return {
      'token_embedder': f'transformer.{embed}',
      'decoder/position': f'transformer.{position}',
      'decoder/final_norm': 'transformer.ln_f',
    } | named_layers(
      'decoder',
      'transformer.h.{}',
      attention_norm='ln_1',
      mlp_norm='ln_2',
      attention__query=f'{attention}.q_proj',
      attention__key=f'{attention}.k_proj',
      attention__value=f'{attention}.v_proj',
      attention__out=f'{attention}.{out}',
      mlp__wi='mlp.c_fc',
      mlp__wo='mlp.c_proj',
    )

  return names


def bloom_names(spec):
  del spec
  return {
    'token_embedder': 'transformer.word_embeddings',
    'decoder/embedding_norm': 'transformer.word_embeddings_layernorm',
    'decoder/final_norm': 'transformer.ln_f',
  } | named_layers(
    'decoder',
    'transformer.h.{}',
    attention_norm='input_layernorm',
    mlp_norm='post_attention_layernorm',
    attention__query='self_attention.q_proj',
    attention__key='self_attention.k_proj',
    attention__value='self_attention.v_proj',
    attention__out='self_attention.dense',
    mlp__wi='mlp.dense_h_to_4h',
    mlp__wo='mlp.dense_4h_to_h',
  )


def llama_names(spec):
  norms = dict(
    attention_norm='input_layernorm', mlp_norm='post_attention_layernorm'
  )
  if spec.norm_place == 'both':
    norms = dict(
      attention_norm='input_layernorm',
      attention_out_norm='post_attention_layernorm',
      mlp_norm='pre_feedforward_layernorm',
      mlp_out_norm='post_feedforward_layernorm',
    )
  return {
    'token_embedder': 'model.embed_tokens',
    'decoder/final_norm': 'model.norm',
    'logits': 'lm_head',
  } | named_layers(
    'decoder',
    'model.layers.{}',
    **norms,
    attention__query='self_attn.q_proj',
    attention__key='self_attn.k_proj',
    attention__value='self_attn.v_proj',
    attention__out='self_attn.o_proj',
    mlp__wi_0='mlp.gate_proj',
    mlp__wi_1='mlp.up_proj',
    mlp__wo='mlp.down_proj',
  )


def marian_names(spec):
  del spec
  names = {'token_embedder': 'model.shared'}
  for side in ('encoder', 'decoder'):
    parts = {
      'attention_norm': 'self_attn_layer_norm',
      'cross_attention_norm': 'encoder_attn_layer_norm',
      'mlp_norm': 'final_layer_norm',
      'mlp__wi': 'fc1',
      'mlp__wo': 'fc2',
    }
    for ours, theirs in [
      ('attention', 'self_attn'),
      ('cross_attention', 'encoder_attn'),
    ]:
      for name in ('query', 'key', 'value', 'out'):
        head = 'out' if name == 'out' else name[0]
        parts[f'{ours}__{name}'] = f'{theirs}.{head}_proj'
    names |= named_layers(side, f'model.{side}.layers.{{}}', **parts)
  return names


def bert_names(spec):
  del spec
  return {
    'token_embedder': 'embeddings.word_embeddings',
    'type_embedder': 'embeddings.token_type_embeddings',
    'encoder/position': 'embeddings.position_embeddings',
    'encoder/embedding_norm': 'embeddings.LayerNorm',
  } | named_layers(
    'encoder',
    'encoder.layer.{}',
    attention_norm='attention.output.LayerNorm',
    mlp_norm='output.LayerNorm',
    attention__query='attention.self.query',
    attention__key='attention.self.key',
    attention__value='attention.self.value',
    attention__out='attention.output.dense',
    mlp__wi='intermediate.dense',
    mlp__wo='output.dense',
  )


def as_linears(named, spec, model):
  """What transformers fuses or transposes, as plain linear maps [out, in]."""
  transposed = {
    f'{name}.weight'
    for name, module in model.named_modules()
    if isinstance(module, pytorch_utils.Conv1D)
  }
  found = {}
  for name, value in named.items():
    value = value.swapaxes(0, 1) if name in transposed else value
    if '.c_attn.' in name:  # all queries, all keys, all values
      fused, parts = 'c_attn', np.split(value, 3)
    elif '.query_key_value.' in name:  # those of a head, of the next head, ...
      heads = value.reshape(spec.num_heads, 3, -1, *value.shape[1:])
      parts = [heads[:, i].reshape(-1, *value.shape[1:]) for i in range(3)]
      fused = 'query_key_value'
    else:
      found[name] = value
      continue
    for letter, part in zip('qkv', parts, strict=True):
      found[name.replace(fused, f'{letter}_proj')] = part
  return found


class Oracle(typing.NamedTuple):
  build: typing.Callable  # (spec) -> a model of transformers
  run: typing.Callable  # (model, batch) -> logits
  names: typing.Callable  # (spec) -> our modules' paths to theirs
  unused: tuple = ()  # what of their names the model does not use
  scale_offset: float = 0.0  # what their norms add to their scales


ORACLES = {
  't5_lm': Oracle(build_t5, run_t5, t5_names, ('EncDecAttention', 'layer.1.')),
  't5_prefix_lm': Oracle(
    build_t5, run_t5, t5_names, ('EncDecAttention', 'layer.1.')
  ),
  'umt5_lm': Oracle(
    build_t5, run_t5, t5_names, ('EncDecAttention', 'layer.1.')
  ),
  't5_shared': Oracle(build_t5, run_pair, t5_names),
  't5_encoder': Oracle(build_t5, run_encoder, t5_names),
  'gpt': Oracle(
    build_gpt,
    run_lm,
    gpt_names(embed='tokens_embed', position='positions_embed'),
  ),
  'gpt2': Oracle(build_gpt2, run_lm, gpt_names()),
  'gpt3': Oracle(build_gpt3, run_lm, gpt_names('attn.attention', 'out_proj')),
  'llama': Oracle(build_llama, run_lm, llama_names),
  'llama_grouped': Oracle(build_llama, run_lm, llama_names),
  'ernie': Oracle(build_ernie, run_lm, llama_names),
  'gemma2': Oracle(build_gemma2, run_lm, llama_names, scale_offset=1.0),
  'bloom': Oracle(build_bloom, run_lm, bloom_names),
  'transformer': Oracle(build_transformer, run_pair, marian_names),
  'bert': Oracle(build_bert, run_bert, bert_names),
  'roformer': Oracle(build_roformer, run_bert, bert_names),
}
