"""Checkpoints as T5X writes them, from their published description.

What is written here shares nothing with the reader: msgpack, TensorStore and
Orbax are called plainly.
"""

import json
import pathlib

import ml_dtypes
import msgpack
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts

from t5x_lite.interop import Tensor
from tests import exact

LAYOUTS = 'legacy', 'ocdbt', 'folders', 'placeholders', 'optimizer'


# -- from our parameters to T5X's names and shapes ----------------------------


def to_t5x(params, kind='minimal', decoder_only=False):
  """{T5X's name: array} of our parameters by path.

  Args:
    params: {our path: array}.
    kind: 'minimal': layers apart, kernels of two axes; 'apart': layers apart,
      heads apart; 'scanned': stacked on axis 1, heads apart.
    decoder_only: the embedding is in the decoder.
  """
  table = params['token_embedder/embedding']
  found = {
    f'{"decoder/" if decoder_only else ""}token_embedder/embedding': table
  }
  if 'logits/kernel' in params:
    found['decoder/logits_dense/kernel'] = params['logits/kernel']
  for stack in ('encoder', 'decoder'):
    if f'{stack}/final_norm/scale' not in params:
      continue
    found[f'{stack}/{stack}_norm/scale'] = params[f'{stack}/final_norm/scale']
    if f'{stack}/position/rel_embedding' in params:
      found[f'{stack}/relpos_bias/rel_embedding'] = params[
        f'{stack}/position/rel_embedding'
      ]
    own = 'attention' if stack == 'encoder' else 'self_attention'
    names = {
      'position/rel_embedding': 'relpos_bias/rel_embedding',
      'attention_norm/scale': f'pre_{own}_layer_norm/scale',
      'cross_attention_norm/scale': 'pre_cross_attention_layer_norm/scale',
      'mlp_norm/scale': 'pre_mlp_layer_norm/scale',
      'mlp/wi/kernel': 'mlp/wi/kernel',
      'mlp/wi_0/kernel': 'mlp/wi_0/kernel',
      'mlp/wi_1/kernel': 'mlp/wi_1/kernel',
      'mlp/wo/kernel': 'mlp/wo/kernel',
    }
    for module in ('query', 'key', 'value', 'out'):
      names |= {
        f'attention/{module}/kernel': f'{own}/{module}/kernel',
        f'cross_attention/{module}/kernel': (
          f'encoder_decoder_attention/{module}/kernel'
        ),
      }
    for ours, theirs in names.items():
      x = params.get(f'{stack}/layers/{ours}')
      if x is None:
        continue
      if kind == 'minimal' and 'attention/' in ours:
        n, a, b, c = x.shape
        x = x.reshape((n, a * b, c) if '/out/' in ours else (n, a, b * c))
      if kind == 'scanned':
        found[f'{stack}/{stack}/{theirs}'] = np.swapaxes(x, 0, 1)
      else:
        for i, layer in enumerate(x):
          found[f'{stack}/layers_{i}/{theirs}'] = layer
  return {k: np.ascontiguousarray(v) for k, v in found.items()}


# -- files --------------------------------------------------------------------


def pack(tree):
  """A tree in msgpack, arrays as flax.serialization has them."""

  def extend(x):
    if isinstance(x, np.generic):
      x, code = np.asarray(x), 3
    elif isinstance(x, np.ndarray):
      code = 1
    else:
      return msgpack.ExtType(2, msgpack.packb((x.real, x.imag)))
    inner = msgpack.packb((x.shape, x.dtype.name, x.tobytes('C')))
    return msgpack.ExtType(code, inner)

  return msgpack.packb(tree, default=extend, strict_types=False)


def write_zarr(folder, x, chunks=None, compressor='gzip'):
  """One array by TensorStore; returns the spec that T5X keeps of it."""
  metadata = {
    'shape': list(x.shape),
    'chunks': chunks or [-(-n // 2) for n in x.shape],
    'compressor': compressor and {'id': compressor, 'level': 1},
  }
  where = {'driver': 'file', 'path': f'{folder}/'}
  store = ts.open(
    {
      'driver': 'zarr',
      'kvstore': where,
      'metadata': metadata,
      'dtype': x.dtype.name,
      'create': True,
      'context': {'file_io_sync': False},
    }
  ).result()
  store.write(x).result()
  return {
    'driver': 'zarr',
    'dtype': x.dtype.name,
    'kvstore': {'driver': 'gfile', 'path': f'{pathlib.Path(folder).name}/'},
    'metadata': metadata,
  }


def slots_of(flat):
  """Adafactor's: what it keeps of each, those unused of shape (1,)."""
  none = np.zeros(1, np.float32)
  return {
    f'{name}/{slot}': np.full(x.shape[:1], 0.5, np.float32)
    if slot == ('v_row' if x.ndim > 1 else 'v')
    else none
    for name, x in flat.items()
    for slot in ('m', 'v', 'v_row', 'v_col')
  }


def write(parent, step, flat, layout='legacy'):
  """Writes `checkpoint_<step>` of {T5X's name: array}; returns its folder."""
  folder = pathlib.Path(parent) / f'checkpoint_{step}'
  slots = slots_of(flat)
  state = {
    'target': exact.nest(flat),
    'state': {'step': np.int32(step), 'param_states': exact.nest(slots)},
  }
  if layout in ('ocdbt', 'folders'):
    with ocp.PyTreeCheckpointer(use_ocdbt=layout == 'ocdbt') as saver:
      saver.save(folder / 'state', state)
    return folder
  root = folder / 'state' if layout == 'placeholders' else folder
  root.mkdir(parents=True)

  def store(path, x):
    name = path.replace('/', '.')
    if x.ndim < 2 and layout == 'legacy':
      return x  # T5X leaves in the file what it does not partition
    spec = write_zarr(root / name, x)
    return spec if layout == 'legacy' else f'PLACEHOLDER://{name}'

  prefix = '_optimizer/' if layout == 'optimizer' else ''
  tree = {
    'target': exact.nest(
      {k: store(f'{prefix}target/{k}', x) for k, x in flat.items()}
    ),
    'state': {
      'step': np.int32(step),
      'param_states': exact.nest(
        {
          k: store(f'{prefix}state/param_states/{k}', x)
          for k, x in slots.items()
        }
      ),
    },
  }
  if layout == 'legacy':
    tree = {'version': 3, 'optimizer': tree}
  elif layout == 'optimizer':
    tree = {'_optimizer': tree, 'flax_mutables': None, 'params_axes': None}
  (root / 'checkpoint').write_bytes(pack(tree))
  return folder


def edit(folder, change):
  """Changes the tree in a `checkpoint` by a function of it."""

  def keep(code, data):
    return msgpack.ExtType(code, data)

  file = pathlib.Path(folder) / 'checkpoint'
  tree = msgpack.unpackb(file.read_bytes(), ext_hook=keep)
  file.write_bytes(msgpack.packb(change(tree) or tree))


def edit_zarray(folder, **changes):
  file = pathlib.Path(folder) / '.zarray'
  file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def bfloat16(flat):
  return {name: x.astype(ml_dtypes.bfloat16) for name, x in flat.items()}


def held(x):
  """An array as a source of tensors has it."""
  return Tensor(x.dtype, x.shape, lambda: x)
