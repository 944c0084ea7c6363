"""What the arrays of a train step are for: parameters, gradients, logits..."""

import math
import re

PARAMETERS = 'parameters'
OPTIMIZER = 'optimizer'
BATCH = 'batch'
GRADIENTS = 'gradients'
ACTIVATIONS = 'activations'
LOGITS = 'logits'
TEMPORARIES = 'temporaries'
CODE = 'code'
REST = 'not followed'  # what the compiler's peak has beside all of these
ALL = (
  PARAMETERS,
  OPTIMIZER,
  GRADIENTS,
  ACTIVATIONS,
  LOGITS,
  TEMPORARIES,
  BATCH,
  CODE,
  REST,
)
_KEYS = re.compile(r"\[\\?'([^'\\]*)\\?'\]")
_ARGUMENTS = {'params': PARAMETERS, 'opt_state': OPTIMIZER}


def path(op):
  """a/b/c of an argument of the train step, from state['a']['b']['c']."""
  return '/'.join(_KEYS.findall(op.op_name))


class Families:
  """Tells them apart by where they were made, and by their shapes.

  Attributes:
    module: hlo.Module.
    vocab_size: rows of the embedding.
    embed_dim: its width.
    shards: how many ways the vocabulary is shared at most.
  """

  def __init__(self, module, vocab_size, embed_dim, shards):
    self.widths = {vocab_size // n for n in range(1, shards + 1)}
    self.shapes, self.module = set(), module
    for op in module.entry.parameters:
      if path(op).startswith('params/'):
        self.shapes.add(tuple(sorted(op.array.dims)))
        # Of one layer of a stack, as a turn of the scan has it.
        self.shapes.add(tuple(sorted(op.array.dims[1:])))
    self.embed_dim = embed_dim

  def of(self, buffer):
    """The family of a memory.Buffer."""
    op, dims = buffer.maker, buffer.array.dims
    if buffer.parameter is not None:
      return _ARGUMENTS.get(path(op).split('/')[0], BATCH)
    size = [n for n in dims if n > 1]
    # Logits have the vocabulary for their width, and no embedding beside.
    wide = self.widths & set(size) and self.embed_dim not in size
    if wide and math.prod(size) > 64 * max(size):
      return LOGITS
    if tuple(sorted(size)) in self._weights():
      return GRADIENTS
    name = op.op_name
    if 'jvp(' in name and 'transpose(' not in name:
      return ACTIVATIONS
    return TEMPORARIES

  def _weights(self):
    return {tuple(n for n in s if n > 1) for s in self.shapes if len(s) > 1}
