"""The command `import`: weights of others as a run that `infer` can use."""

import dataclasses

import numpy as np

from t5x_lite import checkpoints
from t5x_lite import data
from t5x_lite import errors
from t5x_lite import models
from t5x_lite import partitioning
from t5x_lite import record as records
from t5x_lite import specs
from t5x_lite import storage
from t5x_lite.interop import huggingface
from t5x_lite.interop import recipe
from t5x_lite.interop import t5x
from t5x_lite.interop import t5x_names
from t5x_lite.interop import tokenizer_folders

_LENGTH = 512  # tokens, where a config does not say how many it was trained on
_LONGEST = 1 << 17  # tokens; more is no length that anybody trained on
# What `import` writes; a lock shows that it did.
_OWN = {
  *('lock', 'checkpoints', 'config.json', recipe.NAME),
  *(data.vocabulary_files.MODEL, data.vocabulary_files.FOLDER),
}
_LENGTHS = 'max_position_embeddings', 'n_positions'


def run(
  source,
  workdir,
  vocabulary=None,
  extra_ids=None,
  step=None,
  with_torch_files=False,
  say=print,
):
  """Writes a checkpoint of parameters, and a recipe that starts from it.

  Args:
    source: a folder of Hugging Face or of T5X, local or remote.
    workdir: a new folder.
    vocabulary: as Data.vocabulary; None for what is in the folder.
    extra_ids: as Data.extra_ids; None for what fits.
    step: of T5X's; None for the latest.
    with_torch_files: see huggingface.read.
    say: prints a line.

  Raises:
    CheckpointError: the weights are broken, or no model that we can compute.
    ConfigError, DataError: there is no vocabulary, or it does not fit.
  """
  source, workdir = storage.absolute(source), storage.absolute(workdir)
  if not source.exists():
    raise errors.CheckpointError('nothing is there', where=source)
  if not source.is_dir():
    raise errors.CheckpointError(
      'not a folder', where=source, fix=f'name the folder: {source.parent}'
    )
  if t5x.is_t5x(source):
    config, (step, tensors) = {}, t5x.read(source, step)
    try:
      model = t5x_names.spec_of(tensors)
      params = t5x_names.to_params(model, tensors)
    except errors.CheckpointError as e:
      raise e.at(source) from None
    if vocabulary is None:
      raise errors.ConfigError(
        'a checkpoint of T5X has no vocabulary beside it',
        where=source,
        fix="--vocabulary=spiece.model, or --vocabulary=bytes for ByT5's",
      )
  else:
    if step is not None:
      raise errors.ConfigError('--step is of checkpoints of T5X', got=step)
    config, model, params = huggingface.read(source, with_torch_files)
  _refuse_other(workdir)
  storage.make_folder(workdir)
  with storage.lock(workdir / 'lock'):
    fields = _vocabulary(
      source, workdir, vocabulary, extra_ids, model, config, say
    )
    made = _run(model, config, fields)
    _save(workdir, made, params, step or 0, source)
  say(
    f'{models.build(model).num_params:,} parameters of {source} are in '
    f'{workdir}'
  )
  say(f'try it: t5x_lite infer --workdir={workdir}')
  say(
    f'train it: t5x_lite train --gin_file={workdir / recipe.NAME} '
    '--corpus=FILES --workdir=NEW'
  )


def _refuse_other(workdir):
  """Refuses a workdir that has anything but what a killed import left."""
  if steps := checkpoints.Checkpoints.reader(workdir).steps():
    raise errors.ConfigError(
      'workdir has a run already',
      where=workdir,
      got=f'step {steps[-1]}',
      fix='choose another --workdir',
    )
  there = {x.name for x in workdir.iterdir()} if workdir.exists() else set()
  if there and ('lock' not in there or there - _OWN):
    raise errors.ConfigError(
      'workdir is not empty',
      where=workdir,
      got=', '.join(sorted(there)[:5]),
      expected='a new folder',
      fix='choose another --workdir',
    )


def _vocabulary(source, workdir, vocabulary, extra_ids, model, config, say):
  """Fields of specs.Data; its files are in the workdir then."""
  rows = model.vocab_size
  if vocabulary is None:
    found = tokenizer_folders.find(source, workdir, rows=rows)
    for note in found.notes:
      say(note)
    if found.name is None:
      raise errors.DataError(
        'folder has no vocabulary that can be used',
        where=source,
        fix='--vocabulary=FILE, or bytes',
      )
    fields = {
      'vocabulary': found.name,
      'extra_ids': found.extra_ids if extra_ids is None else extra_ids,
      'special_tokens': found.special_tokens,
      'prompt_start': found.starts or bool(model.encoder_layers),
    }
  else:
    fields = {'vocabulary': vocabulary, 'extra_ids': extra_ids or 0}
  own = specs.Data(corpus=specs.IMPORTED, lengths={'targets': 1}, **fields)
  loaded = data.load_vocabulary(own)
  if loaded.size > rows:
    few = loaded.size - loaded.sentinels <= rows
    raise errors.DataError(
      'the vocabulary is larger than the embedding',
      where=own.vocabulary,
      got=f'{loaded.size:,} ids, {loaded.sentinels} of them sentinels',
      expected=f'at most {rows:,}, the rows that there are',
      fix='--extra_ids=0' if few else 'give the one that it was trained with',
    )
  if vocabulary is not None:
    data.keep_vocabulary(own, loaded, workdir)
    for role in ('eos', 'decoder_start'):
      wanted = config.get(f'{role}_token_id')
      ours = loaded.eos_id if role == 'eos' else loaded.start_id
      if wanted not in (None, ours):
        say(
          f'config.json says {role}_token_id {wanted}, and the vocabulary '
          f'{ours}, which counts'
        )
  return fields


def _run(model, config, fields):
  """The specs.Run of imported weights: what `infer` needs, and defaults."""
  lengths = [config[name] for name in _LENGTHS if name in config]
  length = lengths[0] if lengths else _LENGTH
  if type(length) is not int or not 0 < length <= _LONGEST:
    length = _LENGTH
  if model.encoder_layers:
    objective = specs.SpanCorruption()
    widths = {'inputs': length, 'targets': length}
    optimizer = specs.Adafactor(
      schedule=specs.Schedule(peak=1e-3, decay='constant')
    )
  else:
    objective, widths = specs.CausalLM(), {'targets': length}
    optimizer = specs.AdamW(
      schedule=specs.Schedule(peak=2e-5, warmup=100, decay='constant'),
      clip_norm=1.0,
    )
  made = specs.Run(
    model=model,
    objective=objective,
    data=specs.Data(
      corpus=specs.IMPORTED, held_out=0.0, lengths=widths, **fields
    ),
    optimizer=optimizer,
    steps=1000,
    batch_size=8,
  )
  vocabulary = data.load_vocabulary(made.data)
  if model.encoder_layers and not vocabulary.sentinels:
    made = dataclasses.replace(made, objective=specs.Supervised())
  return made


def _save(workdir, run, params, step, source):
  """Writes the files of a run directory; the checkpoint last."""
  kept = data.kept_vocabulary(run.data, workdir)
  start = specs.Pretrained(path=str(workdir))
  own = dataclasses.replace(run, data=kept, start_from=start)
  recipe.write(workdir, own, source)
  record = records.record(run)
  storage.write_text(workdir / 'config.json', records.to_json(record))
  wide = {path: np.asarray(x, np.float32) for path, x in params.items()}
  tree = partitioning.nest(wide)
  position = {'examples': 0, 'fingerprint': ''}
  with checkpoints.Checkpoints(workdir, specs.Checkpoints()) as saver:
    saver.save(step, {'params': tree}, position, record)
