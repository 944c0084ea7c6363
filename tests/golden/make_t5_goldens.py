"""Makes the golden numbers of test_t5_parity.py from transformers' T5.

Needs torch and transformers 4.57.6: version 5 ties the embeddings of T5 1.1.

  python tests/golden/make_t5_goldens.py

Parameters are re-drawn with standard deviation 0.3, since at transformers' own
scale a wrong formula moves the logits by less than rounding. They are drawn in
float32 to keep the files small, and used in float64.
"""

import contextlib
import json
import pathlib
from unittest import mock

import numpy as np
import torch
import transformers

SHAPE = {
  'vocab_size': 33,
  'encoder_layers': 2,
  'decoder_layers': 3,
  'embed_dim': 18,
  'mlp_dim': 22,
  'num_heads': 3,
  'head_dim': 7,
  'buckets': 32,
  'max_distance': 128,
}
SYSTEMS = {
  't5_1_0': {
    'activation': 'relu',
    'gated': False,
    'tie_embeddings': True,
    'per_layer': False,
  },
  't5_1_1': {
    'activation': 'gelu',
    'gated': True,
    'tie_embeddings': False,
    'per_layer': False,
  },
  'umt5': {
    'activation': 'gelu',
    'gated': True,
    'tie_embeddings': False,
    'per_layer': True,
  },
}
_PROJECTIONS = {'q': 'query', 'k': 'key', 'v': 'value'}
_SUBLAYERS = {  # of a stack: transformers' name, the layer's, its norm's
  'encoder': (
    ('SelfAttention', 'attention', 'attention_norm'),
    ('DenseReluDense', 'mlp', 'mlp_norm'),
  ),
  'decoder': (
    ('SelfAttention', 'attention', 'attention_norm'),
    (
      'EncDecAttention',
      'cross_attention',
      'cross_attention_norm',
    ),
    ('DenseReluDense', 'mlp', 'mlp_norm'),
  ),
}


@contextlib.contextmanager
def float64_inside():
  """Keeps float64 where transformers casts to float32: norms and softmax."""
  cast, to = torch.Tensor.float, torch.Tensor.to

  def keep_float(x, *args, **kwargs):
    return x if x.dtype is torch.float64 else cast(x, *args, **kwargs)

  def keep_to(x, *args, **kwargs):
    wanted = (*args, kwargs.get('dtype'))
    if x.dtype is torch.float64 and torch.float32 in wanted:
      return x
    return to(x, *args, **kwargs)

  with (
    mock.patch.object(torch.Tensor, 'float', keep_float),
    mock.patch.object(torch.Tensor, 'to', keep_to),
  ):
    yield


def make_model(spec, seed):
  """A transformers model of these dimensions, parameters re-drawn."""
  family = 'UMT5' if spec['per_layer'] else 'T5'
  config = getattr(transformers, f'{family}Config')(
    vocab_size=spec['vocab_size'],
    num_layers=spec['encoder_layers'],
    num_decoder_layers=spec['decoder_layers'],
    d_model=spec['embed_dim'],
    d_ff=spec['mlp_dim'],
    num_heads=spec['num_heads'],
    d_kv=spec['head_dim'],
    relative_attention_num_buckets=spec['buckets'],
    relative_attention_max_distance=spec['max_distance'],
    feed_forward_proj='gated-gelu' if spec['gated'] else spec['activation'],
    tie_word_embeddings=spec['tie_embeddings'],
    dropout_rate=0.0,
  )
  model = getattr(transformers, f'{family}ForConditionalGeneration')(config)
  rng = np.random.default_rng(seed)
  for name, p in model.named_parameters():
    mean = 1.0 if 'layer_norm' in name else 0.0
    value = (mean + 0.3 * rng.standard_normal(p.shape)).astype(np.float32)
    p.data = torch.from_numpy(value)
  return model.double().eval()


def make_batch(vocab_size, seed, encoder=(157, 90, 31), decoder=(118, 57, 9)):
  """A batch in our names, one sequence of each length to a row.

  Token 0 occurs as a token and padding is not 0, so whoever takes validity
  from tokens is wrong; some valid targets have no weight.
  """
  rng = np.random.default_rng(seed)
  batch = {}
  for stack, lengths in (('encoder', encoder), ('decoder', decoder)):
    shape = (len(lengths), max(lengths))
    positions = np.broadcast_to(np.arange(shape[1]), shape)
    valid = positions < np.array(lengths)[:, None]
    batch[f'{stack}_segment_ids'] = valid
    batch[f'{stack}_positions'] = positions * valid
  batch['encoder_input_tokens'] = rng.integers(
    vocab_size, size=(len(encoder), max(encoder))
  )
  targets = rng.integers(vocab_size, size=valid.shape)
  batch['decoder_target_tokens'] = targets
  batch['decoder_input_tokens'] = np.pad(targets[:, :-1], [(0, 0), (1, 0)])
  batch = {name: value.astype(np.int32) for name, value in batch.items()}
  weighted = valid & (rng.random(valid.shape) < 0.8)
  return batch | {'decoder_loss_weights': weighted.astype(np.float32)}


def run_model(model, batch):
  """Logits and mean loss, in float64; leaves gradients in the parameters."""
  tensors = {k: torch.from_numpy(v).long() for k, v in batch.items()}
  targets = tensors['decoder_target_tokens']
  with float64_inside():
    output = model(
      input_ids=tensors['encoder_input_tokens'],
      attention_mask=tensors['encoder_segment_ids'],
      decoder_input_ids=tensors['decoder_input_tokens'],
      labels=targets.masked_fill(tensors['decoder_loss_weights'] == 0, -100),
    )
    output.loss.backward()
  assert output.logits.dtype is output.loss.dtype is torch.float64
  return output.logits.detach().numpy(), output.loss.item()


def to_tree(spec, named):
  """transformers' named arrays under our flat paths and shapes.

  Args:
    spec: dimensions and choices, as in SHAPE and SYSTEMS.
    named: dict of arrays (parameters or gradients) by transformers' names.

  Returns:
    Dict of arrays by path, layers stacked on axis 0 and kernels `[in, out]`,
    attention kernels `[embed, heads, head]` and `[heads, head, embed]`.
  """
  d, heads = spec['embed_dim'], spec['num_heads']
  tree = {'token_embedder/embedding': named['shared.weight']}
  if not spec['tie_embeddings']:
    tree['logits/kernel'] = named['lm_head.weight'].T
  for stack, sublayers in _SUBLAYERS.items():

    def stacked(name, stack=stack):
      layers = range(spec[f'{stack}_layers'])
      return np.stack([named[f'{stack}.block.{i}.{name}'] for i in layers])

    bias = 'layer.0.SelfAttention.relative_attention_bias.weight'
    if spec['per_layer']:
      tree[f'{stack}/layers/position/rel_embedding'] = stacked(bias).swapaxes(
        1, 2
      )
    else:
      table = named[f'{stack}.block.0.{bias}']
      tree[f'{stack}/position/rel_embedding'] = table.T
    tree[f'{stack}/final_norm/scale'] = named[
      f'{stack}.final_layer_norm.weight'
    ]
    for i, (theirs, ours, norm) in enumerate(sublayers):
      path = f'{stack}/layers/{ours}'
      tree[f'{stack}/layers/{norm}/scale'] = stacked(
        f'layer.{i}.layer_norm.weight'
      )
      if ours == 'mlp':
        for name in ('wi_0', 'wi_1', 'wo') if spec['gated'] else ('wi', 'wo'):
          kernel = stacked(f'layer.{i}.{theirs}.{name}.weight')
          tree[f'{path}/{name}/kernel'] = kernel.swapaxes(1, 2)
        continue
      for name, projection in _PROJECTIONS.items():
        kernel = stacked(f'layer.{i}.{theirs}.{name}.weight').swapaxes(1, 2)
        tree[f'{path}/{projection}/kernel'] = kernel.reshape(
          -1, d, heads, kernel.shape[2] // heads
        )
      kernel = stacked(f'layer.{i}.{theirs}.o.weight').swapaxes(1, 2)
      tree[f'{path}/out/kernel'] = kernel.reshape(
        -1, heads, kernel.shape[1] // heads, d
      )
  return tree


def make_case(spec, seed):
  """All of a comparison: parameters, batch, logits, loss and gradients."""
  model = make_model(spec, seed)
  batch = make_batch(spec['vocab_size'], seed)
  logits_BLV, loss = run_model(model, batch)
  named = dict(model.named_parameters())
  params = {k: p.detach().numpy() for k, p in named.items()}
  grads = {k: p.grad.numpy() for k, p in named.items()}
  valid_BL = batch['decoder_segment_ids'] > 0
  return {
    'params': to_tree(spec, params),
    'batch': batch,
    'logits': np.where(valid_BL[..., None], logits_BLV, 0),
    'loss': loss,
    'grads': to_tree(spec, grads),
  }


def main():
  for seed, (name, choices) in enumerate(SYSTEMS.items()):
    spec = SHAPE | choices
    case = make_case(spec, seed)
    params = {k: v.astype(np.float32) for k, v in case['params'].items()}
    np.savez_compressed(
      pathlib.Path(__file__).parent / f'{name}.npz',
      spec=json.dumps(spec),
      logits=case['logits'],
      loss=case['loss'],
      **{f'params/{k}': v for k, v in params.items()},
      **{f'batch/{k}': v for k, v in case['batch'].items()},
      **{f'grads/{k}': v for k, v in case['grads'].items()},
    )
    print(f'{name}: loss {case["loss"]:.12f}')


if __name__ == '__main__':
  main()
