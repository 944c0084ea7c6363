"""Makes the golden numbers of test_trunk_parity.py from transformers 4.57.6.

  python -m tests.golden.make_trunk_goldens [system ...]

Parameters are drawn anew with standard deviation 0.3, since at transformers'
own scale a wrong formula moves the logits by less than rounding; in float32, to
keep the files small, and used in float64.
"""

import pathlib
import sys

import jax
import numpy as np
import torch

from t5x_lite import models
from tests import systems
from tests.golden import oracles


def draw(model, seed, scale_offset):
  """Gives each trained parameter a new value."""
  rng = np.random.default_rng(seed)
  model.double().eval()
  for name, p in model.named_parameters():
    if not p.requires_grad:  # sinusoids
      continue
    value = systems.STD * rng.standard_normal(p.shape)
    is_norm = 'norm' in name.lower() or '.ln_' in name
    if is_norm and name.endswith('weight'):
      value = (1 + value).astype(np.float32).astype(np.float64) - scale_offset
    else:
      value = value.astype(np.float32).astype(np.float64)
    p.data = torch.from_numpy(value)
  return model


def to_tree(spec, oracle, model, named):
  """Our parameters by path, as far as they have them."""
  names, tree = oracle.names(spec), {}
  named = oracles.as_linears(named, spec, model)
  shapes = models.build(systems.replace(spec, dtype='float32')).abstract
  for path, p in jax.tree_util.tree_leaves_with_path(shapes):
    path = jax.tree_util.keystr(path, simple=True, separator='/')
    module, _, leaf = path.rpartition('/')
    theirs = f'{names[module]}.{"bias" if leaf == "bias" else "weight"}'
    if 'layers' in path:
      each = [named.get(theirs.format(i)) for i in range(p.shape[0])]
      value = None if each[0] is None else np.stack(each)
    else:
      value = named.get(theirs)
    if value is None:
      assert path in systems.ABSENT, path
      continue
    if leaf in ('kernel', 'rel_embedding'):
      value = value.swapaxes(-1, -2)
    tree[path] = value.reshape(p.shape)
  return tree


def mean_loss(logits_BLV, batch, side):
  targets_BL = torch.from_numpy(batch[f'{side}_target_tokens']).long()
  weights_BL = torch.from_numpy(batch[f'{side}_loss_weights']).double()
  cross_BL = torch.nn.functional.cross_entropy(
    logits_BLV.swapaxes(1, 2), targets_BL, reduction='none'
  )
  return (cross_BL * weights_BL).sum() / weights_BL.sum()


def make_case(name, spec, seed, **lengths):
  """All of a comparison.

  Returns:
    A dict of parameters, batch, logits, loss, gradients, and the parameters
    after some steps of AdamW.
  """
  oracle = oracles.ORACLES[name]
  model = draw(oracle.build(spec), seed, oracle.scale_offset)
  oracles.set_angles(model, getattr(spec.position, 'theta', None))
  batch = systems.make_batch(spec, seed, **lengths)
  side = 'decoder' if spec.decoder_layers else 'encoder'
  both = dict(model.named_parameters(remove_duplicate=False))

  def tree(values, offset=0.0):
    found = to_tree(
      spec, oracle, model, {k: v.numpy() for k, v in values.items()}
    )
    for path in found:
      if path.endswith('scale'):
        found[path] = found[path] + offset * oracle.scale_offset
    return found

  def params():
    return tree({k: p.detach().clone() for k, p in both.items()}, 1.0)

  case = {'params': params(), 'batch': batch}
  groups = [
    {'params': [p for p in model.parameters() if p.ndim > 1]},
    {
      'params': [p for p in model.parameters() if p.ndim < 2],
      'weight_decay': 0,
    },
  ]
  adamw = torch.optim.AdamW(groups, **systems.ADAMW)
  for step in range(systems.STEPS):
    adamw.zero_grad()
    with oracles.float64_inside():
      logits_BLV = oracle.run(model, batch)
      loss = mean_loss(logits_BLV, batch, side)
      loss.backward()
    if step == 0:
      valid_BL = batch[f'{side}_segment_ids'] > 0
      logits_BLV = logits_BLV.detach().numpy()
      unused = [
        k for k, p in both.items() if p.requires_grad and p.grad is None
      ]
      assert all(any(n in k for n in oracle.unused) for k in unused), unused
      grads = {k: p.grad for k, p in both.items() if p.grad is not None}
      count = sum(p.numel() for p in model.parameters() if p.grad is not None)
      case |= {
        'logits': np.where(valid_BL[..., None], logits_BLV, 0),
        'loss': loss.detach().numpy(),
        'grads': tree({k: g.clone() for k, g in grads.items()}),
      }
      assert sum(g.size for g in case['grads'].values()) == count
    adamw.step()
  return case | {'after': params()}


def main():
  folder = pathlib.Path(__file__).parent / 'trunk'
  folder.mkdir(exist_ok=True)
  for seed, name in enumerate(systems.SYSTEMS):
    if sys.argv[1:] and name not in sys.argv[1:]:
      continue
    case = make_case(name, systems.make(name), seed)
    for path, value in case['params'].items():
      assert (value == value.astype(np.float32)).all(), path
    arrays = {
      f'{part}/{path}': value.astype(np.float32) if part == 'params' else value
      for part in ('params', 'batch', 'grads', 'after')
      for path, value in case[part].items()
    }
    path = folder / f'{name}.npz'
    np.savez_compressed(
      path, logits=case['logits'], loss=case['loss'], **arrays
    )
    print(f'{name}: loss {case["loss"]:.12f}, {path.stat().st_size} bytes')


if __name__ == '__main__':
  main()
