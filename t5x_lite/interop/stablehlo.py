"""Programs for serving: StableHLO for every platform, weights beside it.

A program takes the weights, {path: array}, and a batch of token ids of any size
and lengths. What it computes is what infer.Predictor does.
"""

import contextlib
import json
import pathlib

import jax
from jax import export as jax_export
import jax.numpy as jnp

from t5x_lite import decoding
from t5x_lite import models
from t5x_lite import partitioning
from t5x_lite import specs

PLATFORMS = ('cpu', 'tpu', 'cuda')
ABOUT = 'stablehlo.json'
SCRIPT = 'serve.py'
_SHAPES = {
  'inputs': 'b, k',
  'inputs_lengths': 'b',
  'inputs_types': 'b, k',
  'targets': 'b, l',
  'targets_lengths': 'b',
  'room': 'n',
}


def export(run, vocabulary, dtype='float32'):
  """Programs of a run's model, a script that runs them, and what they take.

  Programs are `score` and `greedy`; of an encoder alone, which can do neither,
  `logits`. They need the attention's weights of all pairs in memory: nothing
  is computed by blocks, as sizes are not known yet.

  Args:
    run: specs.Run.
    vocabulary: data.Vocabulary.
    dtype: of the weights as they are stored; the arithmetic stays that of
      `run.model`.

  Returns:
    {file name: bytes}; `*.safetensors` are to lie beside them, by the
    paths of parameters.
  """
  model = models.build(run.model)
  leaves, tree = jax.tree_util.tree_flatten_with_path(model.abstract)
  names = [partitioning.path_name(path) for path, _ in leaves]
  weights = {
    name: jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(dtype))
    for name, (_, leaf) in zip(names, leaves, strict=True)
  }

  files, about = {}, {}
  starts = run.data.prompt_start
  for name, (takes, compute) in programs(model, vocabulary, starts).items():
    scope = jax_export.SymbolicScope()
    batch = [
      jax.ShapeDtypeStruct(
        jax_export.symbolic_shape(_SHAPES[each], scope=scope), jnp.int32
      )
      for each in takes
    ]

    def program(weights, *arrays, compute=compute):
      params = jax.tree.unflatten(tree, [weights[name] for name in names])
      return compute(params, *arrays)

    program.__name__ = name  # in messages of a server
    with partitioning.exporting(), _without_places():
      lower = jax_export.export(jax.jit(program), platforms=PLATFORMS)
      found = lower(weights, *batch)
    file = f'{name}.stablehlo'
    files[file] = bytes(found.serialize())
    results = jax.tree.unflatten(found.out_tree, found.out_avals)
    about[name] = {
      'file': file,
      'calling_convention_version': found.calling_convention_version,
      'arguments': _described(dict(zip(takes, batch, strict=True))),
      'results': _described(results),
    }
  position = run.model.position
  about = {
    'jax': jax.__version__,
    'platforms': PLATFORMS,
    'programs': about,
    'weights': _described(weights),
    'arithmetic': run.model.dtype,
    'matmul_precision': jax.config.jax_default_matmul_precision,
    'vocabulary': {
      'size': vocabulary.size,
      'eos_id': vocabulary.eos_id,
      'pad_id': vocabulary.pad_id,
      'start_id': vocabulary.start_id,
    },
    'prompts_start': starts or bool(run.model.encoder_layers),
    'inputs_end_with_eos': not isinstance(run.objective, specs.CausalLM),
    'trained_lengths': dict(run.data.lengths),
    'positions': getattr(position, 'length', None),
  }
  script = pathlib.Path(__file__).with_name(SCRIPT)
  files[ABOUT] = (json.dumps(about, indent=2) + '\n').encode()
  files[SCRIPT] = script.read_bytes()
  return files


@contextlib.contextmanager
def _without_places():
  """Programs lowered within do not name files of this machine."""
  name = 'jax_traceback_in_locations_limit'
  before = getattr(jax.config, name)
  jax.config.update(name, 0)
  try:
    yield
  finally:
    jax.config.update(name, before)


def _described(arrays):
  return {
    name: {'shape': [*map(_size, x.shape)], 'dtype': jnp.dtype(x.dtype).name}
    for name, x in arrays.items()
  }


def _size(size):
  return size if isinstance(size, int) else str(size)


def programs(model, vocabulary, starts=True):
  """What there is to export: {name: (names of arguments, function)}.

  Each function takes parameters and int32 arrays: rows of tokens, padded on the
  right, with their lengths; kinds of inputs, where the model has them; and
  `room`, whose length is the most tokens to decode. It gives a dict.

  Args:
    model: models.Model.
    vocabulary: data.Vocabulary.
    starts: whether a decoder alone reads the start token before its inputs.
  """
  spec, start_id = model.spec, vocabulary.start_id
  inputs = ['inputs', 'inputs_lengths']
  if spec.encoder_layers and spec.segments:
    inputs.append('inputs_types')

  def logits(params, *inputs):
    return {'logits': model.apply(params, _encoder(*inputs))}

  if not spec.decoder_layers:
    return {'logits': (inputs, logits)}

  def score(params, *arrays):
    *inputs, targets_BL, targets_B = arrays
    if spec.encoder_layers:
      real_BL, places_BL = _real(targets_BL, targets_B)
      batch = _encoder(*inputs) | {
        'decoder_input_tokens': _shifted(targets_BL, start_id),
        'decoder_target_tokens': targets_BL,
        'decoder_loss_weights': real_BL,
        'decoder_segment_ids': real_BL,
        'decoder_positions': places_BL,
      }
      return {'log_probs': decoding.log_probs(model, params, batch)}
    batch = _behind(*inputs, targets_BL, targets_B, start_id)
    first_B1 = inputs[1][:, None]
    if not starts:
      batch = {name: x_BX[:, 1:] for name, x_BX in batch.items()}
      batch['decoder_positions'] -= batch['decoder_segment_ids']
      first_B1 -= 1
    found_BX = decoding.log_probs(model, params, batch)
    real_BL, places_BL = _real(targets_BL, targets_B)
    found_BL = jnp.take_along_axis(found_BX, first_B1 + places_BL, 1)
    return {'log_probs': jnp.where(real_BL > 0, found_BL, 0)}

  def greedy(params, *arrays):
    *inputs, room_N = arrays
    if spec.encoder_layers:
      start_B1 = jnp.full_like(inputs[1], start_id)[:, None]
      batch = _encoder(*inputs) | {
        'decoder_input_tokens': start_B1,
        'decoder_segment_ids': jnp.ones_like(start_B1),
      }
    else:
      batch = _prompts(*inputs, start_id, starts)
    tokens_B1N, log_probs_B1N, _ = decoding.decode(
      model,
      params,
      batch,
      specs.Greedy(),
      room_N.shape[0],
      vocabulary.size,
      vocabulary.eos_id,
    )
    return {'tokens': tokens_B1N[:, 0], 'log_probs': log_probs_B1N[:, 0]}

  return {
    'score': ([*inputs, 'targets', 'targets_lengths'], score),
    'greedy': ([*inputs, 'room'], greedy),
  }


def _real(tokens_BL, lengths_B):
  """Segment ids and positions of rows that hold one example each."""
  places_L = jnp.arange(tokens_BL.shape[1], dtype=jnp.int32)
  real_BL = (places_L < lengths_B[:, None]).astype(jnp.int32)
  return real_BL, real_BL * places_L


def _encoder(tokens_BK, lengths_B, types_BK=None):
  real_BK, places_BK = _real(tokens_BK, lengths_B)
  batch = {
    'encoder_input_tokens': tokens_BK,
    'encoder_segment_ids': real_BK,
    'encoder_positions': places_BK,
  }
  return batch if types_BK is None else batch | {'encoder_type_ids': types_BK}


def _shifted(tokens_BL, start_id):
  """What a decoder reads when it is to say these tokens."""
  start_B1 = jnp.full_like(tokens_BL[:, :1], start_id)
  return jnp.concatenate([start_B1, tokens_BL[:, :-1]], 1)


def _behind(inputs_BK, inputs_B, targets_BL, targets_B, start_id):
  """features.decoder_only: targets behind inputs, K + L places a row."""
  both_BX = jnp.concatenate([inputs_BK, targets_BL], 1)
  real_BX, places_BX = _real(both_BX, inputs_B + targets_B)
  ends_B1 = inputs_B[:, None]
  gap_B1 = inputs_BK.shape[1] - ends_B1
  from_BX = places_BX + jnp.where(places_BX < ends_B1, 0, gap_B1)
  tokens_BX = jnp.take_along_axis(both_BX, from_BX, 1)
  tokens_BX = jnp.where(real_BX > 0, tokens_BX, start_id)
  return {
    'decoder_input_tokens': _shifted(tokens_BX, start_id),
    'decoder_target_tokens': tokens_BX,
    'decoder_loss_weights': real_BX * (places_BX >= ends_B1),
    'decoder_segment_ids': real_BX,
    'decoder_positions': places_BX,
    'decoder_bidirectional_mask': real_BX * (places_BX <= ends_B1),
  }


def _prompts(inputs_BK, inputs_B, start_id, starts):
  """prompts.batch: the start and the inputs, padded on the left."""
  tokens_BP = jnp.pad(inputs_BK, ((0, 0), (1, 0)), constant_values=start_id)
  width = tokens_BP.shape[1]
  places_P = jnp.arange(width, dtype=jnp.int32)
  from_BP = places_P - (width - 1 - inputs_B)[:, None]
  real_BP = (from_BP >= (0 if starts else 1)).astype(jnp.int32)
  tokens_BP = jnp.take_along_axis(tokens_BP, from_BP * real_BP, 1)
  return {
    'decoder_input_tokens': tokens_BP * real_BP,
    'decoder_segment_ids': real_BP,
  }
