"""Makes torch.bin, a small state_dict of torch, and torch.npz, what is in it.

Run with torch: `python tests/golden/make_torch_files.py`.
"""

import pathlib

import numpy as np
import torch

FOLDER = pathlib.Path(__file__).parent
DTYPES = 'float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool'


class Model(torch.nn.Module):
  """Whose state_dict has attributes, too: the versions of its modules."""

  def __init__(self):
    super().__init__()
    self.layer = torch.nn.Linear(3, 4)
    self.tied = torch.nn.Linear(3, 4, bias=False)
    self.tied.weight = self.layer.weight
    base = torch.arange(60.0).reshape(3, 4, 5)
    views = {
      'base': base,
      'turned': base.permute(2, 0, 1),
      'part': base[1:, ::2, 3],
      'scalar': base[2, 3, 4],
      'one': base[:1, :1, :1].expand(1, 1, 1),
      'empty': base[:0],
      'empty_storage': torch.zeros(0, 7),
    }
    for name, view in views.items():
      self.register_buffer(name, view)
    for name in DTYPES.split():
      values = torch.arange(-2, 4).reshape(2, 3)
      self.register_buffer(f'as_{name}', values.to(getattr(torch, name)))


def main():
  torch.manual_seed(0)
  found = Model().state_dict()
  torch.save(found, FOLDER / 'torch.bin')
  arrays = {
    # Numpy's files know no bfloat16; as float32 it is the same.
    name: (x.float() if x.dtype == torch.bfloat16 else x).contiguous().numpy()
    for name, x in found.items()
  }
  np.savez_compressed(FOLDER / 'torch.npz', **arrays)


if __name__ == '__main__':
  main()
