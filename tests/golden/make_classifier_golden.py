"""Makes the golden numbers of test_classification.py from transformers' GPT.

Needs torch and transformers 4.57.6:

  python tests/golden/make_classifier_golden.py

The class is OpenAIGPTForSequenceClassification's, read at the last token; the
language model's loss is of the same stream by the tied embedding. Parameters
are re-drawn wide, in float32, and used in float64.
"""

import pathlib

import numpy as np
import torch
import transformers

SHAPE = {
  'vocab_size': 40,
  'layers': 2,
  'embed_dim': 12,
  'num_heads': 3,
  'length': 16,
  'classes': 3,
}
LM_WEIGHT = 0.5


def make_model(shape, seed):
  """The classifier, parameters re-drawn; the last id is its padding."""
  config = transformers.OpenAIGPTConfig(
    vocab_size=shape['vocab_size'],
    n_positions=shape['length'],
    n_embd=shape['embed_dim'],
    n_layer=shape['layers'],
    n_head=shape['num_heads'],
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
    num_labels=shape['classes'],
    pad_token_id=shape['vocab_size'] - 1,
    problem_type='single_label_classification',
  )
  model = transformers.OpenAIGPTForSequenceClassification(config)
  rng = np.random.default_rng(seed)
  for name, p in model.named_parameters():
    mean = float('ln_' in name and name.endswith('weight'))
    value = (mean + 0.3 * rng.standard_normal(p.shape)).astype(np.float32)
    p.data = torch.from_numpy(value)
  return model.double().eval()


def make_batch(shape, seed, lengths=(16, 9, 2, 12)):
  """Rows of texts in our names; each reads one token more than it says."""
  rng = np.random.default_rng(seed)
  places = np.arange(shape['length'])
  valid = places < np.array(lengths)[:, None]
  read = rng.integers(shape['vocab_size'] - 1, size=valid.shape)
  said = np.pad(read[:, 1:], ((0, 0), (0, 1)))
  counts = places < np.array(lengths)[:, None] - 1
  batch = {
    'decoder_input_tokens': np.where(valid, read, 0),
    'decoder_target_tokens': said * counts,
    'decoder_segment_ids': valid,
    'decoder_positions': places * valid,
    'labels': rng.integers(shape['classes'], size=len(lengths)),
  }
  batch = {name: x.astype(np.int32) for name, x in batch.items()}
  batch['decoder_loss_weights'] = counts.astype(np.float32)
  batch['label_weights'] = np.ones(len(lengths), np.float32)
  return batch


def run_model(model, batch):
  """{name: value} of the losses and logits; leaves gradients in the model."""
  tensors = {name: torch.from_numpy(x).long() for name, x in batch.items()}
  valid = tensors['decoder_segment_ids'] > 0
  read = tensors['decoder_input_tokens'].masked_fill(
    ~valid, model.config.pad_token_id
  )
  found = model(input_ids=read, labels=tensors['labels'])
  stream = model.transformer(read)[0]
  logits = stream @ model.transformer.tokens_embed.weight.T
  targets = tensors['decoder_target_tokens'].masked_fill(
    tensors['decoder_loss_weights'] == 0, -100
  )
  lm = torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets)
  (found.loss + LM_WEIGHT * lm).backward()
  return {
    'loss': lm.item(),
    'class_loss': found.loss.item(),
    'class_logits': found.logits.detach().numpy(),
  }


def to_tree(shape, named):
  """transformers' named arrays under our flat paths and shapes."""
  e, heads = shape['embed_dim'], shape['num_heads']

  def stacked(name):
    layers = range(shape['layers'])
    return np.stack([named[f'transformer.h.{i}.{name}'] for i in layers])

  tree = {
    'token_embedder/embedding': named['transformer.tokens_embed.weight'],
    'decoder/position/embedding': named['transformer.positions_embed.weight'],
    'classes/kernel': named['score.weight'].T,
  }
  layers = 'decoder/layers'
  kernels = np.split(stacked('attn.c_attn.weight'), 3, axis=-1)
  biases = np.split(stacked('attn.c_attn.bias'), 3, axis=-1)
  for name, kernel, bias in zip(('query', 'key', 'value'), kernels, biases):
    path = f'{layers}/attention/{name}'
    tree[f'{path}/kernel'] = kernel.reshape(-1, e, heads, e // heads)
    tree[f'{path}/bias'] = bias.reshape(-1, heads, e // heads)
  out = stacked('attn.c_proj.weight').reshape(-1, heads, e // heads, e)
  tree[f'{layers}/attention/out/kernel'] = out
  tree[f'{layers}/attention/out/bias'] = stacked('attn.c_proj.bias')
  for ours, theirs in (('wi', 'c_fc'), ('wo', 'c_proj')):
    tree[f'{layers}/mlp/{ours}/kernel'] = stacked(f'mlp.{theirs}.weight')
    tree[f'{layers}/mlp/{ours}/bias'] = stacked(f'mlp.{theirs}.bias')
  for ours, theirs in (('attention_norm', 'ln_1'), ('mlp_norm', 'ln_2')):
    tree[f'{layers}/{ours}/scale'] = stacked(f'{theirs}.weight')
    tree[f'{layers}/{ours}/bias'] = stacked(f'{theirs}.bias')
  return tree


def make_case(shape, seed):
  """All of a comparison: parameters, batch, losses, logits and gradients."""
  model, batch = make_model(shape, seed), make_batch(shape, seed)
  found = run_model(model, batch)
  named = dict(model.named_parameters())
  return found | {
    'params': to_tree(
      shape, {name: p.detach().numpy() for name, p in named.items()}
    ),
    'grads': to_tree(
      shape, {name: p.grad.numpy() for name, p in named.items()}
    ),
    'batch': batch,
  }


def main():
  case = make_case(SHAPE, 0)
  params = {k: v.astype(np.float32) for k, v in case.pop('params').items()}
  np.savez_compressed(
    pathlib.Path(__file__).parent / 'classifier.npz',
    **{f'params/{k}': v for k, v in params.items()},
    **{f'batch/{k}': v for k, v in case.pop('batch').items()},
    **{f'grads/{k}': v for k, v in case.pop('grads').items()},
    **case,
  )
  print(case)


if __name__ == '__main__':
  main()
