"""The batches of a run by their shapes alone: no corpus or vocabulary is read.

Which features a batch has is told by the model and the objective, as
`corruptions.features` and `corruptions.classification` make them, and how long
they are by the lengths of the run's data.
"""

import jax
import jax.numpy as jnp

from t5x_lite import specs
from t5x_lite.data import batches

_DECODER = (
  'input_tokens',
  'target_tokens',
  'loss_weights',
  'segment_ids',
  'positions',
)
_ENCODER = 'input_tokens', 'segment_ids', 'positions'


def batch(run):
  """{feature: jax.ShapeDtypeStruct} of the batches of a run.

  Args:
    run: specs.Run.
  """
  widths = batches.widths(run)
  names = {'encoder': _ENCODER, 'decoder': _DECODER}
  shapes = {
    f'{side}_{name}': (run.batch_size, width)
    for side, width in widths.items()
    for name in names[side]
  }
  if run.model.mask == 'prefix':  # of a decoder alone
    mask = 'decoder_bidirectional_mask'
    shapes[mask] = shapes['decoder_positions']
  if isinstance(run.objective, specs.Classification):
    shapes |= {'labels': (run.batch_size,), 'label_weights': (run.batch_size,)}
  return {
    name: jax.ShapeDtypeStruct(
      shape, jnp.float32 if name.endswith('weights') else jnp.int32
    )
    for name, shape in shapes.items()
  }
