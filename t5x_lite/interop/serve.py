"""Scores and continues token ids: python serve.py '[[7, 8, 1], [9, 1]]'.

A second list of rows is scored as what follows the first. It needs numpy,
safetensors and jax, of the version in stablehlo.json or a newer one (JAX
promises six months), and what lies beside it, as stablehlo.json describes.
"""

import json
import pathlib
import sys

import jax
from jax import export
import numpy as np
from safetensors import flax as safetensors

STEP = 64  # widths are multiples of it, so that few shapes are compiled


def pad(rows):
  """Rows of token ids as int32 [B, L], and their lengths [B]."""
  width = max(1, -(-max(map(len, rows)) // STEP)) * STEP
  tokens = np.array([[*row, *[0] * (width - len(row))] for row in rows])
  lengths = np.array([len(row) for row in rows])
  return tokens.astype(np.int32), lengths.astype(np.int32)


class Model:
  """The programs of a folder, with its weights.

  Attributes:
    about: what stablehlo.json says.
    weights: {name: array}.
    programs: {name: function(weights, *arrays) -> {name: array}}.
  """

  def __init__(self, folder):
    folder = pathlib.Path(folder)
    self.about = json.loads((folder / 'stablehlo.json').read_text('utf-8'))
    self.weights = {}
    for file in folder.glob('*.safetensors'):
      self.weights |= safetensors.load_file(file)
    self.programs = {}
    for name, program in self.about['programs'].items():
      data = bytearray((folder / program['file']).read_bytes())
      self.programs[name] = jax.jit(export.deserialize(data).call)

  def _run(self, name, *arrays):
    found = jax.device_get(self.programs[name](self.weights, *arrays))
    if np.isnan(found['log_probs']).any():
      raise ValueError('ids or positions that the model does not have')
    return found

  def score(self, inputs, targets):
    """The log probability of each row of targets after its inputs."""
    found = self._run('score', *pad(inputs), *pad(targets))
    return found['log_probs'].sum(1).tolist()

  def greedy(self, inputs, length):
    """The likeliest token after each other, to and with the end."""
    found = self._run('greedy', *pad(inputs), np.zeros(length, np.int32))
    end = self.about['vocabulary']['eos_id']
    rows = found['tokens'].tolist()
    return [row[: row.index(end) + 1] if end in row else row for row in rows]


if __name__ == '__main__':
  model = Model(pathlib.Path(__file__).parent)
  inputs, *targets = map(json.loads, sys.argv[1:])
  print(model.score(inputs, *targets) if targets else model.greedy(inputs, 32))
