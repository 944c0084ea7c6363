"""T5X's names and shapes of a Transformer's parameters, and ours.

T5, its 1.1, mT5, ByT5, Flan-T5 and T5X's language models have each layer apart,
`encoder/layers_0/...`, its heads joined to one axis: kernels [E, H * D] and
[H * D, E]. umT5 and others by scan have them stacked on axis 1, heads apart:
`encoder/encoder/...`, [E, N, H, D] and [H, N, D, E]; so are norms [E, N] and
tables of positions [H, N, buckets]. Ours are stacked on axis 0, heads apart.
"""

import functools
import re
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from t5x_lite import checkpoints
from t5x_lite import errors
from t5x_lite import models
from t5x_lite import partitioning
from t5x_lite import record as records
from t5x_lite import specs
from t5x_lite.interop.tensors import Tensor

_TOP = {
  'token_embedder/embedding': 'token_embedder/embedding',
  'logits/kernel': 'decoder/logits_dense/kernel',
  'encoder/final_norm/scale': 'encoder/encoder_norm/scale',
  'decoder/final_norm/scale': 'decoder/decoder_norm/scale',
}
_PARTS = {  # of a layer: in the encoder, in the decoder
  'position': ('relpos_bias', 'relpos_bias'),
  'attention_norm': (
    'pre_attention_layer_norm',
    'pre_self_attention_layer_norm',
  ),
  'attention': ('attention', 'self_attention'),
  'cross_attention_norm': ('', 'pre_cross_attention_layer_norm'),
  'cross_attention': ('', 'encoder_decoder_attention'),
  'mlp_norm': ('pre_mlp_layer_norm', 'pre_mlp_layer_norm'),
  'mlp': ('mlp', 'mlp'),
}
_STACKS = 'encoder', 'decoder'
_SCANNED = 'layers', 'encoder', 'decoder'  # what a scan was called
_OTHERS = {  # what is in the names of models that are not ours
  'side_relpos_bias': 'LongT5',
  'T5LayerNorm_0': 'LongT5',
  'expert': 'a mixture of experts',
  'router': 'a mixture of experts',
  'prompt': 'prompt tuning',
}
_TOLD = (  # settings that names and shapes tell
  'vocab_size',
  'encoder_layers',
  'decoder_layers',
  'embed_dim',
  'mlp_dim',
  'num_heads',
  'head_dim',
  'gated',
  'tie_embeddings',
  'position.buckets',
  'position.per_layer',
)
_HINTS = {
  'tie_embeddings': "T5X's logits_via_embedding: of T5 1.0 alone",
  'vocab_size': 'rows of the embedding, more than the vocabulary has',
}


class Layout(NamedTuple):
  """How T5X laid a model's parameters out.

  Attributes:
    scans: {stack: name of its scan}; of others each layer is apart.
    joined: heads and what is in them are one axis.
    embedder: name of the embedding's module.
    position: name of a table of positions.
  """

  scans: dict
  joined: bool
  embedder: str
  position: str

  @classmethod
  def of(cls, names):
    """That of a model, by the names and shapes of its Tensors."""
    scans = {
      stack: scan
      for stack in _STACKS
      for scan in _SCANNED
      if f'{stack}/{scan}/mlp/wo/kernel' in names
    }
    query = [
      x.shape
      for name, x in names.items()
      if name.endswith('attention/query/kernel')
    ]
    has = lambda part: any(part in name for name in names)
    return cls(
      scans=scans,
      joined=not query or len(query[0]) == (3 if scans else 2),
      embedder='decoder/token_embedder'
      if 'decoder/token_embedder/embedding' in names
      else 'token_embedder',
      # The former in scalable_t5 of 2022.
      position='relative_posemb' if has('/relative_posemb/') else 'relpos_bias',
    )

  def theirs(self, path, shape):
    """(names, shape of each) of what one of our parameters is made of."""
    stack, *rest = path.split('/')
    name = _TOP.get(path, path)
    name = name.replace('token_embedder', self.embedder)
    if rest[0] == 'position':
      name = f'{stack}/{self.position}/{"/".join(rest[1:])}'
    if rest[0] != 'layers':
      return [name], tuple(shape)
    n, *one = shape
    part, *leaf = rest[1:]
    name = _PARTS.get(part, (part, part))[_STACKS.index(stack)]
    name = self.position if part == 'position' else name
    name = '/'.join([name, *leaf])
    if self.joined and part.endswith('attention') and len(one) == 3:
      e, h, d = one
      one = [e * h, d] if leaf[0] == 'out' else [e, h * d]
    if scan := self.scans.get(stack):
      return [f'{stack}/{scan}/{name}'], (one[0], n, *one[1:])
    return [f'{stack}/layers_{i}/{name}' for i in range(n)], tuple(one)


# -- which model --------------------------------------------------------------


def spec_of(tensors):
  """The specs.Transformer of a checkpoint, by names and shapes.

  They do not tell the activation (gelu is taken where it is gated, as in T5
  1.1, and relu, as in 1.0, where it is not), which distance is the farthest
  that a bucket tells apart (128 in all of T5), or whether a decoder alone was
  trained to see both sides of its inputs.

  Args:
    tensors: {T5X's name: Tensor}.

  Raises:
    CheckpointError: it is no such model.
  """
  layout = Layout.of(tensors)
  vocab_size, embed_dim = _shape(tensors, f'{layout.embedder}/embedding', 2)
  layers = {stack: _count(tensors, layout, stack) for stack in _STACKS}
  stack = next((stack for stack in _STACKS if layers[stack]), 'encoder')
  scan = layout.scans.get(stack)
  first = f'{stack}/{scan or "layers_0"}'
  attention = _PARTS['attention'][_STACKS.index(stack)]
  more = 1 if scan else 0

  table, per_layer = f'{stack}/{layout.position}/rel_embedding', False
  if table not in tensors:
    table, per_layer = f'{first}/{layout.position}/rel_embedding', True
  rank = 2 + (more if per_layer else 0)
  num_heads, *_, buckets = _shape(tensors, table, rank)
  *_, width = _shape(
    tensors,
    f'{first}/{attention}/query/kernel',
    (2 if layout.joined else 3) + more,
  )
  try:
    return specs.Transformer(
      vocab_size=vocab_size,
      encoder_layers=layers['encoder'],
      decoder_layers=layers['decoder'],
      embed_dim=embed_dim,
      mlp_dim=_shape(tensors, f'{first}/mlp/wo/kernel', 2 + more)[0],
      num_heads=num_heads,
      head_dim=width // num_heads if layout.joined else width,
      position=specs.T5Bias(buckets=buckets, per_layer=per_layer),
      gated=(gated := f'{first}/mlp/wi_0/kernel' in tensors),
      activation='gelu' if gated else 'relu',
      tie_embeddings=_TOP['logits/kernel'] not in tensors,
    )
  except errors.ConfigError as e:
    raise _not_t5(tensors, e) from None


def _count(tensors, layout, stack):
  """How many layers a stack has."""
  if scan := layout.scans.get(stack):
    return _shape(tensors, f'{stack}/{scan}/mlp/wo/kernel', 3)[1]
  numbers = (re.match(rf'{stack}/layers_(\d+)/', name) for name in tensors)
  return len({match[1] for match in numbers if match})


def _shape(tensors, name, rank):
  found = tensors.get(name)
  if found is None or len(found.shape) != rank:
    raise _not_t5(tensors, f'{name} {checkpoints.describe(found)}')
  return found.shape


def _not_t5(tensors, got):
  kinds = _other_models(tensors)
  return errors.CheckpointError(
    'not a T5 or a language model of T5X',
    got=f'{got}, as of {kinds}' if kinds else got,
    expected='parameters named and shaped as in its minimal or scalable models',
  )


def _other_models(names):
  kinds = {
    kind for part, kind in _OTHERS.items() if any(part in x for x in names)
  }
  return ' and '.join(sorted(kinds))


# -- its parameters -----------------------------------------------------------


def params(spec, tensors):
  """{our path: Tensor} of a model; reads nothing yet.

  Args:
    spec: specs.Transformer.
    tensors: {T5X's name: Tensor}.

  Raises:
    CheckpointError: a parameter is missing, left over, of another shape, or no
      floating number; the message is a table of them.
  """
  layout, wanted, made = Layout.of(tensors), {}, {}
  abstract = partitioning.by_path(models.build(spec).abstract)
  for path, leaf in abstract.items():
    names, shape = layout.theirs(path, leaf.shape)
    wanted.update(dict.fromkeys(names, shape))
    made[path] = names, leaf.shape
  _check(spec, tensors, wanted)

  def make(path):
    names, shape = made[path]
    sources = [tensors[name] for name in names]
    stack, *rest = path.split('/')
    if rest[0] != 'layers':
      return _one(sources[0], shape)
    return (_scanned if stack in layout.scans else _layers)(sources, shape)

  return {path: make(path) for path in made}


def to_params(spec, tensors):
  """{our path: array}, of the stored types, read one at a time.

  Arguments and errors are those of `params`.
  """
  return {path: x.read() for path, x in params(spec, tensors).items()}


def _one(source, shape):
  return Tensor(source.dtype, shape, lambda: source.read().reshape(shape))


def _scanned(sources, shape):
  """Layers on axis 1."""
  (source,) = sources

  def read():
    x = np.moveaxis(source.read(), 1, 0)
    return np.ascontiguousarray(x).reshape(shape)

  return Tensor(source.dtype, shape, read)


def _layers(sources, shape):
  """Layers apart."""
  dtype = functools.reduce(np.promote_types, {x.dtype for x in sources})

  def read():
    array = np.empty(shape, dtype)
    for layer, source in zip(array, sources, strict=True):
      layer[...] = source.read().reshape(shape[1:])
    return array

  return Tensor(dtype, shape, read)


def _check(spec, tensors, wanted):
  """Raises with a table of what differs, unless nothing does."""

  def is_wrong(name, shape):
    there = tensors.get(name)
    return (
      there is None
      or there.shape != shape
      or not jnp.issubdtype(there.dtype, np.floating)
    )

  wrong = [
    (name, checkpoints.describe(tensors.get(name)), f'{list(shape)}')
    for name, shape in wanted.items()
    if is_wrong(name, shape)
  ]
  left = [
    (name, checkpoints.describe(there), '-')
    for name, there in tensors.items()
    if name not in wanted
  ]
  if not wrong and not left:
    return
  missing = sum(there == '-' for _, there, _ in wrong)
  causes, undo = _causes(spec, tensors)
  head = ('parameter', 'in the checkpoint', 'of this model')
  raise errors.CheckpointError(
    'checkpoint of T5X does not fit the model',
    got=f'{missing} missing, {len(left)} left over, {len(wrong) - missing} of '
    'another shape or type'
    + (f'; probably {"; ".join(causes)}' if causes else ''),
    fix=(' '.join(undo) or 'use the recipe of the model that it is')
    + checkpoints.table([head, *wrong, *left]),
  )


def _causes(spec, tensors):
  """By which settings a model probably differs, and what sets them right."""
  kinds = _other_models(tensors)
  causes, undo = [f'it is of {kinds}'] if kinds else [], []
  try:
    there = spec_of(tensors)
  except errors.CheckpointError:
    return causes, undo
  there, here = (records.flatten(records.record(x)) for x in (there, spec))
  for path in _TOLD:
    if there.get(path) != here.get(path):
      hint = f' ({_HINTS[path]})' if path in _HINTS else ''
      causes.append(
        f'Transformer.{path} {there.get(path)!r} there, {here.get(path)!r} '
        f'here{hint}'
      )
      if '.' not in path:
        undo.append(f'--gin.Transformer.{path}={there.get(path)}')
  return causes, undo
