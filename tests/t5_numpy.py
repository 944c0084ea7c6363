"""T5 in plain numpy: a second oracle, and the formulas on one page.

arXiv:1910.10683, gated as of 2002.05202, bias per layer as of 2304.09151. One
example, layer and head at a time, float64, no dropout. Parameters are a flat
dict by path, layers stacked on axis 0.
"""

import numpy as np


def bucket(relative, bidirectional, buckets=32, max_distance=128):
  """Bucket of one relative position (key minus query), in whole numbers."""
  n, buckets = -int(relative), buckets // 2 if bidirectional else buckets
  offset = buckets if bidirectional and n < 0 else 0
  n = abs(n) if bidirectional else max(n, 0)
  exact = buckets // 2
  if n < exact:
    return offset + n
  steps = buckets - exact  # floor(log(n / exact) / log(max / exact) * steps)
  return (
    offset
    + exact
    + sum(
      n**steps * exact**k >= exact**steps * max_distance**k
      for k in range(1, steps)
    )
  )


def norm(x_LE, scale_E):
  return x_LE / np.sqrt((x_LE**2).mean(-1, keepdims=True) + 1e-6) * scale_E


def log_softmax(x):
  x = x - x.max(-1, keepdims=True)
  return x - np.log(np.exp(x).sum(-1, keepdims=True))


def relu(x):
  return np.maximum(x, 0)


def gelu(x):
  return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def below(tree, prefix):
  """The part of a flat tree under a prefix."""
  return {k[len(prefix) :]: v for k, v in tree.items() if k.startswith(prefix)}


def attend(p, x_LE, y_KE, mask_LK, bias_HLK):
  """Attention of x over y: no biases, and no 1 / sqrt(head_dim)."""
  out_LE = np.zeros_like(x_LE)
  for h, bias_LK in enumerate(bias_HLK):
    q_LD = x_LE @ p['query/kernel'][:, h]
    k_KD, v_KD = y_KE @ p['key/kernel'][:, h], y_KE @ p['value/kernel'][:, h]
    logits_LK = np.where(mask_LK, q_LD @ k_KD.T + bias_LK, -1e10)
    out_LE += np.exp(log_softmax(logits_LK)) @ v_KD @ p['out/kernel'][h]
  return out_LE


def mlp(p, x_LE, activation):
  if 'wi/kernel' in p:
    return activation(x_LE @ p['wi/kernel']) @ p['wo/kernel']
  gate_LF = activation(x_LE @ p['wi_0/kernel'])
  return (gate_LF * (x_LE @ p['wi_1/kernel'])) @ p['wo/kernel']


def run_stack(p, spec, x_LE, segment_L, encoded=None):
  """Layers and norm; a decoder where `encoded` is (stream, segments)."""
  causal, position_L = encoded is not None, np.arange(len(x_LE))
  relative_LL = position_L - position_L[:, None]
  bucket_LL = np.vectorize(bucket)(
    relative_LL, not causal, spec['buckets'], spec['max_distance']
  )
  mask_LL = segment_L == segment_L[:, None]
  mask_LL &= (relative_LL <= 0) | (not causal)
  activation = {'relu': relu, 'gelu': gelu}[spec['activation']]
  stacked = below(p, 'layers/')
  for i in range(len(stacked['mlp/wo/kernel'])):
    layer = {path: kernel[i] for path, kernel in stacked.items()}
    table_HN = (layer if spec['per_layer'] else p)['position/rel_embedding']
    bias_HLL = table_HN[:, bucket_LL]
    y_LE = norm(x_LE, layer['attention_norm/scale'])
    self_attention = below(layer, 'attention/')
    x_LE = x_LE + attend(self_attention, y_LE, y_LE, mask_LL, bias_HLL)
    if causal:
      mask_LK = encoded[1] == segment_L[:, None]
      no_bias_HLK = np.zeros((len(table_HN), *mask_LK.shape))
      y_LE = norm(x_LE, layer['cross_attention_norm/scale'])
      cross = below(layer, 'cross_attention/')
      x_LE = x_LE + attend(cross, y_LE, encoded[0], mask_LK, no_bias_HLK)
    y_LE = norm(x_LE, layer['mlp_norm/scale'])
    x_LE = x_LE + mlp(below(layer, 'mlp/'), y_LE, activation)
  return norm(x_LE, p['final_norm/scale'])


def logits(params, spec, batch):
  """Logits `[B, L, V]` of a batch in our names, packed or not."""
  table_VE = params['token_embedder/embedding']
  encoder, decoder = below(params, 'encoder/'), below(params, 'decoder/')
  head_EV = table_VE.T / np.sqrt(table_VE.shape[1])
  rows = []
  for b, segment_K in enumerate(batch['encoder_segment_ids']):
    x_KE = table_VE[batch['encoder_input_tokens'][b]]
    encoded = run_stack(encoder, spec, x_KE, segment_K), segment_K
    x_LE = table_VE[batch['decoder_input_tokens'][b]]
    segment_L = batch['decoder_segment_ids'][b]
    y_LE = run_stack(decoder, spec, x_LE, segment_L, encoded)
    rows.append(y_LE @ params.get('logits/kernel', head_EV))
  return np.stack(rows)
