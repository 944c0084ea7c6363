"""A T5 and a GPT-2 in plain PyTorch, written to be fast.

One product for queries, keys and values and one for both halves of the gated
layer, and the library's own attention, norms and loss.
"""

import os

os.environ.setdefault('USE_TF', '0')  # of transformers: its import is slow

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import attention  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils import flop_counter  # noqa: E402


def bucket(length, keys, bidirectional, buckets=32, max_distance=128):
  """T5's buckets of key minus query, [length, keys]."""
  relative = torch.arange(keys)[None] - torch.arange(length)[:, None]
  offset = 0
  if bidirectional:
    buckets //= 2
    offset = (relative > 0).long() * buckets
    distance = relative.abs()
  else:
    distance = (-relative).clamp(min=0)
  exact = buckets // 2
  far = (distance.clamp(min=1) / exact).log()
  far = far / torch.tensor(max_distance / exact).log() * (buckets - exact)
  far = (exact + far.long()).clamp(max=buckets - 1)
  return offset + torch.where(distance < exact, distance, far)


class Attention(nn.Module):
  """Self-attention, or attention to an encoder."""

  def __init__(self, spec, cross=False):
    super().__init__()
    e, self.heads = spec['embed_dim'], spec['num_heads']
    self.scale = 1.0 if spec['t5'] else None
    inner, bias = self.heads * spec['head_dim'], not spec['t5']
    if cross:
      self.q = nn.Linear(e, inner, bias=bias)
      self.kv = nn.Linear(e, 2 * inner, bias=bias)
    else:
      self.qkv = nn.Linear(e, 3 * inner, bias=bias)
    self.out = nn.Linear(inner, e, bias=bias)
    self.cross = cross

  def forward(self, x, memory=None, bias=None, causal=False):
    if self.cross:
      q, (k, v) = self.q(x), self.kv(memory).chunk(2, -1)
    else:
      q, k, v = self.qkv(x).chunk(3, -1)
    q, k, v = (
      t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v)
    )
    y = F.scaled_dot_product_attention(
      q, k, v, attn_mask=bias, is_causal=causal, scale=self.scale
    )
    return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
  """A pre-norm layer."""

  def __init__(self, spec, cross):
    super().__init__()
    e, f, self.t5 = spec['embed_dim'], spec['mlp_dim'], spec['t5']

    def norm():
      return nn.RMSNorm(e, eps=1e-6) if self.t5 else nn.LayerNorm(e)

    self.norms = nn.ModuleList(norm() for _ in range(3 if cross else 2))
    self.attention = Attention(spec)
    self.cross = Attention(spec, cross=True) if cross else None
    self.wi = nn.Linear(e, 2 * f if self.t5 else f, bias=not self.t5)
    self.wo = nn.Linear(f, e, bias=not self.t5)

  def forward(self, x, memory=None, bias=None, causal=False):
    x = x + self.attention(self.norms[0](x), bias=bias, causal=causal)
    if self.cross:
      x = x + self.cross(self.norms[1](x), memory)
    h = self.wi(self.norms[-1](x))
    if self.t5:
      gate, h = h.chunk(2, -1)
      h = F.gelu(gate, approximate='tanh') * h
    else:
      h = F.gelu(h, approximate='tanh')
    return x + self.wo(h)


class T5(nn.Module):
  """Encoder and decoder with T5's position bias, gated and untied."""

  def __init__(self, spec):
    super().__init__()
    e, v, h = spec['embed_dim'], spec['vocab_size'], spec['num_heads']
    self.embed = nn.Embedding(v, e)
    self.biases = nn.ModuleList(nn.Embedding(32, h) for _ in range(2))
    self.encoder = nn.ModuleList(
      Block(spec, cross=False) for _ in range(spec['encoder_layers'])
    )
    self.decoder = nn.ModuleList(
      Block(spec, cross=True) for _ in range(spec['decoder_layers'])
    )
    self.norms = nn.ModuleList(nn.RMSNorm(e, eps=1e-6) for _ in range(2))
    self.head = nn.Linear(e, v, bias=False)
    for n, length in enumerate((spec['inputs'], spec['targets'])):
      self.register_buffer(f'bucket_{n}', bucket(length, length, not n))

  def forward(self, inputs, tokens):
    memory, x = self.embed(inputs), self.embed(tokens)
    both, past = (
      table(places).permute(2, 0, 1)[None]
      for table, places in zip(self.biases, (self.bucket_0, self.bucket_1))
    )
    hidden = torch.ones(tokens.shape[1:] * 2, dtype=torch.bool).triu(1)
    past = past.masked_fill(hidden, float('-inf'))
    for block in self.encoder:
      memory = block(memory, bias=both)
    memory = self.norms[0](memory)
    for block in self.decoder:
      x = block(x, memory, bias=past)
    return self.head(self.norms[1](x))


class Gpt(nn.Module):
  """A decoder with learned positions, untied."""

  def __init__(self, spec):
    super().__init__()
    e, v = spec['embed_dim'], spec['vocab_size']
    self.embed = nn.Embedding(v, e)
    self.positions = nn.Embedding(spec['targets'], e)
    self.layers = nn.ModuleList(
      Block(spec, cross=False) for _ in range(spec['decoder_layers'])
    )
    self.norm = nn.LayerNorm(e)
    self.head = nn.Linear(e, v, bias=False)

  def forward(self, tokens):
    x = self.embed(tokens) + self.positions.weight
    for block in self.layers:
      x = block(x, causal=True)
    return self.head(self.norm(x))


def transformers_model(spec):
  """The same shapes by Hugging Face's classes: a function of tokens."""
  import transformers

  if spec['t5']:
    config = transformers.T5Config(
      vocab_size=spec['vocab_size'],
      d_model=spec['embed_dim'],
      d_kv=spec['head_dim'],
      d_ff=spec['mlp_dim'],
      num_layers=spec['encoder_layers'],
      num_decoder_layers=spec['decoder_layers'],
      num_heads=spec['num_heads'],
      feed_forward_proj='gated-gelu',
      tie_word_embeddings=False,
      dropout_rate=0.0,
      use_cache=False,
    )
    model = transformers.T5ForConditionalGeneration(config)
    call = lambda inputs, tokens: model(
      input_ids=inputs, decoder_input_ids=tokens
    )
  else:
    config = transformers.GPT2Config(
      vocab_size=spec['vocab_size'],
      n_positions=spec['targets'],
      n_embd=spec['embed_dim'],
      n_layer=spec['decoder_layers'],
      n_head=spec['num_heads'],
      n_inner=spec['mlp_dim'],
      tie_word_embeddings=False,
      resid_pdrop=0.0,
      embd_pdrop=0.0,
      attn_pdrop=0.0,
      use_cache=False,
    )
    model = transformers.GPT2LMHeadModel(config)
    call = lambda tokens: model(input_ids=tokens)
  return model, lambda *tokens: call(*tokens).logits


def train_step(spec, tokens, targets, library, compiled):
  """A function that makes one AdamW step, and its products' operations."""
  torch.manual_seed(0)
  if library == 'transformers':
    model, logits = transformers_model(spec)
  else:
    model = logits = (T5 if spec['t5'] else Gpt)(spec)
  model.train()
  tokens = [torch.from_numpy(t).long() for t in tokens]
  targets = torch.from_numpy(targets).long().flatten()
  adamw = torch.optim.AdamW(
    model.parameters(), lr=1e-3, weight_decay=0.01, fused=True
  )

  def loss_of(*tokens):
    return F.cross_entropy(logits(*tokens).flatten(0, 1), targets)

  # The counter knows this kind of attention alone; its products are the same.
  math = attention.sdpa_kernel(attention.SDPBackend.MATH)
  with math, flop_counter.FlopCounterMode(display=False) as counter:
    loss_of(*tokens).backward()
  loss_fn = torch.compile(loss_of) if compiled else loss_of

  def step():
    adamw.zero_grad()
    loss = loss_fn(*tokens)
    loss.backward()
    adamw.step()
    return loss.item()

  return step, counter.get_total_flops()
