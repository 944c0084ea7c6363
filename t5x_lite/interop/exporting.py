"""The command `export`: a checkpoint for transformers, or for serving."""

import ml_dtypes
import numpy as np

from t5x_lite import best
from t5x_lite import checkpoints
from t5x_lite import data
from t5x_lite import errors
from t5x_lite import infer
from t5x_lite import results
from t5x_lite import specs
from t5x_lite import storage
from t5x_lite.interop import card
from t5x_lite.interop import digests
from t5x_lite.interop import huggingface
from t5x_lite.interop import publishing
from t5x_lite.interop import safetensors
from t5x_lite.interop import sources
from t5x_lite.interop import stablehlo
from t5x_lite.interop import tokenizers

DTYPES = {'float32': np.float32, 'bfloat16': ml_dtypes.bfloat16}
_LAST = {'huggingface': 'config.json', 'stablehlo': stablehlo.ABOUT}


def run(workdir, output, form, step, dtype, shard_size, say=print):
  """Writes a new folder with all that is needed to load a model.

  Args:
    workdir: of the run.
    output: a new or empty folder, local or remote; it is complete or absent.
    form: 'huggingface' or 'stablehlo'.
    step: a checkpoint, 'best', or None for the latest.
    dtype: of the weights, one of DTYPES.
    shard_size: most bytes of weights in a file.
    say: prints a line.

  Raises:
    CheckpointError: there is no such checkpoint, or it is damaged.
    ConfigError: no model of Hugging Face computes what this one does.
    StorageError: the folder is not empty, or can't be written.
  """
  if f'{storage.absolute(output)}/'.startswith(f'{storage.absolute(workdir)}/'):
    raise errors.ConfigError(
      'output is in the workdir', got=output, expected='a folder elsewhere'
    )
  saver = checkpoints.Checkpoints.reader(workdir)
  step = best.find(saver, step)
  made = infer.read_run(saver, step)
  vocabulary = data.load_vocabulary(made.data)
  if form == 'huggingface':
    huggingface.check(made.model)
  elif not made.model.decoder_layers:
    raise errors.ConfigError(
      'an encoder alone has nothing to score or to decode',
      where=workdir,
      fix='--format=huggingface',
    )
  with publishing.publish(output, _LAST[form]) as folder:
    tensors = sources.of_step(saver, step)
    if form == 'stablehlo':
      loader, notes = None, []
      for name, content in stablehlo.export(made, vocabulary, dtype).items():
        storage.write_bytes(folder / name, content)
      weights = {k: _cast(x, DTYPES[dtype]) for k, x in tensors.items()}
      safetensors.write(folder, weights, shard_size)
    else:
      loader = huggingface.write(
        folder,
        made.model,
        lambda path: tensors[path].read(),
        dtype,
        shard_size,
        _beside(made, vocabulary),
      )
      notes = tokenizers.write(
        folder,
        vocabulary,
        ends_with_eos=bool(made.model.encoder_layers),
        starts=made.data.prompt_start and not made.model.encoder_layers,
        model_max_length=max(made.data.lengths.values()),
      )
    text = card.text(
      made,
      step,
      saver.read_position(step).get('fingerprint'),
      _measured(saver, workdir, step),
      dtype,
      loader,
      notes,
    )
    storage.write_text(folder / card.NAME, text)
    digests.write_rest(folder)
  for note in notes:
    say(note)
  say(
    f'step {step} of {workdir} is in {output}' + f', a {loader}' * bool(loader)
  )


def _measured(saver, workdir, step):
  """{name: metrics} of a step: in training, and after."""
  noted = saver.read_metrics(step) or {}
  after = results.measured(workdir)
  return (noted.get('measured') or {}) | {
    name: steps[step] for name, steps in after.items() if step in steps
  }


def _cast(tensor, dtype):
  dtype = np.dtype(dtype)
  return tensor._replace(
    dtype=dtype, read=lambda: tensor.read().astype(dtype, copy=False)
  )


def _beside(run, vocabulary):
  """Keys of config.json that no specs.Transformer says."""
  longest = max(run.data.lengths.values())
  ids = {
    'pad_token_id': vocabulary.pad_id,
    'eos_token_id': vocabulary.eos_id,
    'decoder_start_token_id': vocabulary.start_id,
    'bos_token_id': vocabulary.bos_id,
  }
  if not run.model.encoder_layers:
    del ids['decoder_start_token_id']
    ids['bos_token_id'] = vocabulary.start_id
  ids = {name: id_ for name, id_ in ids.items() if id_ >= 0}
  if isinstance(run.model.position, specs.Learned):
    return ids
  if isinstance(run.model.position, specs.T5Bias):
    return ids | {'n_positions': longest}
  return ids | {'max_position_embeddings': longest}
