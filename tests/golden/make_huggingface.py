"""Makes the folders of test_huggingface.py, by transformers 4.57.6.

  python -m tests.golden.make_huggingface [model ...]

Parameters are drawn anew with standard deviation 0.3, in float32; logits are
computed in float64.
"""

import pathlib
import sys

import numpy as np
import torch

from tests import hugging
from tests import systems
from tests.golden import make_trunk_goldens as goldens
from tests.golden import oracles

FOLDER = pathlib.Path(__file__).parent / 'huggingface'


def make(name, seed, folder, **sizes):
  """Saves a model of transformers; returns its spec, batch and logits."""
  spec = hugging.make(name, **sizes)
  oracle = oracles.ORACLES[hugging.oracle(name)]
  model = goldens.draw(oracle.build(spec), seed, oracle.scale_offset)
  if spec.logits_bias:
    row = np.random.default_rng(seed).standard_normal((1, spec.vocab_size))
    model.final_logits_bias = torch.from_numpy(row.astype(np.float32))
  model.float().save_pretrained(folder)
  return spec, *run(oracle, model.double(), spec, seed)


def run(oracle, model, spec, seed):
  """(batch, logits in float64) of a model."""
  oracles.set_angles(model, getattr(spec.position, 'theta', None))
  batch = systems.make_batch(spec, seed)
  with oracles.float64_inside(), torch.no_grad():
    return batch, oracle.run(model.eval(), batch).numpy()


def main():
  for seed, name in enumerate(hugging.MODELS):
    if not sys.argv[1:] or name in sys.argv[1:]:
      folder = FOLDER / name
      folder.mkdir(parents=True, exist_ok=True)
      _, _, logits_BLV = make(name, seed, folder)
      np.save(folder / 'logits.npy', logits_BLV)
      print(name)


if __name__ == '__main__':
  main()
