"""Models in folders as Hugging Face has them, read and written without it."""

import dataclasses
import json

import numpy as np

from t5x_lite import errors
from t5x_lite import models
from t5x_lite import storage
from t5x_lite.interop import digests
from t5x_lite.interop import families
from t5x_lite.interop import files
from t5x_lite.interop import names
from t5x_lite.interop import safetensors
from t5x_lite.interop import torch_files
from t5x_lite.interop.tensors import held

CONFIG = 'config.json'
_LARGEST = 1 << 20  # bytes of config.json


def read_config(folder):
  """The content of a folder's config.json.

  Raises:
    CheckpointError: there is none, or it is not JSON.
  """
  return files.read_json(folder, CONFIG, _LARGEST)


def describe(folder, with_torch_files=False):
  """A model of Hugging Face, of which hardly a weight is read.

  Args:
    folder: local or remote; nothing in it is run.
    with_torch_files: whether pytorch_model.bin is read where there are no
      safetensors.

  Returns:
    (config.json, specs.Transformer, function without arguments that reads the
    weights: {path: float32 array} of its parameters).

  Raises:
    CheckpointError: it is broken, or no model that we can compute. The function
      raises it, too, if the weights are damaged, or others than the model's.
  """
  folder = storage.path(folder)
  config = read_config(folder)
  family = families.of_config(config, folder / CONFIG)
  tensors = _open(folder, with_torch_files)
  spec = family.spec(config, folder / CONFIG)
  for field, name in family.lacked.items():
    if name not in tensors or not tensors[name].read().any():
      spec = dataclasses.replace(spec, **{field: False})
      tensors.pop(name, None)
  if spec.encoder_layers + spec.decoder_layers > len(tensors):
    raise errors.CheckpointError(
      'config.json has more layers than there are tensors',
      where=folder / CONFIG,
      got=f'{spec.encoder_layers + spec.decoder_layers:,} layers',
      expected=f'at most {len(tensors):,}',
    )

  def load():
    wanted = names.pieces(family, spec)
    found = names.find(family, wanted, tensors, folder)
    digests.check(folder)
    return names.to_ours(models.build(spec), found)

  return config, spec, load


def read(folder, with_torch_files=False):
  """As `describe`, with the weights instead of a function that reads them."""
  config, spec, load = describe(folder, with_torch_files)
  return config, spec, load()


def _open(folder, with_torch_files):
  """{name: Tensor} of the weights in a folder."""
  kinds = {safetensors: True, torch_files: with_torch_files}
  there = [
    kind
    for kind in kinds
    if any((folder / f'{kind.NAME}{x}').exists() for x in ('', '.index.json'))
  ]
  if not there:
    raise errors.CheckpointError(
      'no weights', where=folder, expected=f'{safetensors.NAME}, or its index'
    )
  if not kinds[there[0]]:
    raise errors.CheckpointError(
      'weights are in files of torch alone',
      where=folder,
      expected=safetensors.NAME,
      fix='--torch_files reads their numbers, and runs nothing in them',
    )
  return there[0].read(folder)


def check(spec):
  """Raises a ConfigError unless a model of Hugging Face computes the same."""
  families.of_spec(spec)


def write(folder, spec, read, dtype, shard_size, more):
  """Writes config.json, generation_config.json and the weights.

  Args:
    folder: a folder that is there.
    spec: specs.Transformer.
    read: (path) -> a parameter as a numpy array.
    dtype: of the weights, 'float32' or 'bfloat16'.
    shard_size: most bytes of a file.
    more: {key of config.json: value}, of what no specs.Transformer says.

  Returns:
    The name of the class that loads it.

  Raises:
    ConfigError: no model of Hugging Face computes what this one does.
  """
  family, config = families.of_spec(spec)
  tensors = names.to_theirs(names.pieces(family, spec), read, dtype)
  for field, name in family.lacked.items():
    if not getattr(spec, field):
      zeros = np.zeros((1, spec.vocab_size), np.float32)
      tensors[name] = held(zeros.astype(next(iter(tensors.values())).dtype))
  config |= {'torch_dtype': dtype, 'use_cache': True} | more
  generation = {key: more[key] for key in more if key.endswith('_token_id')}
  for name, content in (
    (CONFIG, config),
    ('generation_config.json', generation),
  ):
    text = json.dumps(content, indent=2, ensure_ascii=False) + '\n'
    storage.write_text(folder / name, text)
  safetensors.write(folder, tensors, shard_size)
  return config['architectures'][0]
