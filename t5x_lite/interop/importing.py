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
from t5x_lite import stored
from t5x_lite.interop import huggingface
from t5x_lite.interop import kinds
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
  special_tokens=None,
  step=None,
  with_torch_files=False,
  say=print,
):
  """Writes a checkpoint of parameters, and a recipe that starts from it.

  What is refused leaves nothing behind: all is read before a file is written.

  Args:
    source: a folder of Hugging Face or of T5X, local or remote.
    workdir: a new folder.
    vocabulary: as Data.vocabulary; None for what is in the folder.
    extra_ids: as Data.extra_ids; None for what fits.
    special_tokens: as Data.special_tokens, beside what the folder says.
    step: of T5X's; None for the latest.
    with_torch_files: see huggingface.describe.
    say: prints a line.

  Raises:
    CheckpointError: the weights are broken, or no model that we can compute.
    ConfigError, DataError: there is no vocabulary, or it does not fit.
  """
  source, workdir = storage.absolute(source), storage.absolute(workdir)
  kinds.refuse_other(source)
  _refuse_workdir(workdir)
  config, model, step, load = _open(source, step, with_torch_files)
  given = vocabulary, extra_ids, special_tokens
  fields, loaded, copies = _vocabulary(
    source, workdir, *given, model, config, say
  )
  params = load()
  made = _run(model, config, fields, loaded)
  storage.make_folder(workdir)
  with storage.lock(workdir / 'lock'):
    _refuse_workdir(workdir)  # another import may have been faster
    for name, content in copies.items():
      file = workdir / name
      storage.make_folder(file.parent)
      storage.write_bytes(file, content)
    if vocabulary is not None:
      data.keep_vocabulary(made.data, loaded, workdir)
    _save(workdir, made, params, step or 0, source)
  say(
    f'{models.build(model).num_params:,} parameters of {source} are in '
    f'{workdir}'
  )
  more = ''
  if model.decoder_layers:
    say(f'try it: t5x_lite infer --workdir={workdir}')
  else:
    more = '--gin.Transformer.decoder_layers=N '
    say('it is an encoder alone, which says nothing by itself')
  say(
    f'train it: t5x_lite train --gin_file={workdir / recipe.NAME} {more}'
    '--corpus=FILES --workdir=NEW'
  )


def _open(source, step, with_torch_files):
  """(config.json, specs.Transformer, step, function that reads the weights)."""
  if not t5x.is_t5x(source):
    if step is not None:
      raise errors.ConfigError('--step is of checkpoints of T5X', got=step)
    config, model, load = huggingface.describe(source, with_torch_files)
    return config, model, None, load
  step, tensors = t5x.read(source, step)
  try:
    model = t5x_names.spec_of(tensors)
  except errors.CheckpointError as e:
    raise e.at(source) from None

  def load():
    try:
      return t5x_names.to_params(model, tensors)
    except errors.CheckpointError as e:
      raise e.at(source) from None

  return None, model, step, load


def _refuse_workdir(workdir):
  """Refuses a workdir that has anything but what a killed import left."""
  stored.check_name(workdir)
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


def _vocabulary(
  source, workdir, name, extra_ids, special_tokens, model, config, say
):
  """The vocabulary, before any weights are read.

  Returns:
    (fields of specs.Data, the Vocabulary, {name in the workdir: bytes} of what
    it has to keep of the source).
  """
  if name is not None:
    fields = {
      'vocabulary': name,
      'extra_ids': extra_ids or 0,
      'special_tokens': special_tokens or None,
    }
    own = specs.Data(corpus=specs.IMPORTED, lengths={'targets': 1}, **fields)
    loaded = data.load_vocabulary(own)
    _check_size(loaded, model.vocab_size, name)
    _tell_other_ids(loaded, config or {}, model, say)
    return fields, loaded, {}
  if config is None:
    raise errors.ConfigError(
      'a checkpoint of T5X has no vocabulary beside it',
      where=source,
      fix="--vocabulary=spiece.model, or --vocabulary=bytes for ByT5's",
    )
  found = tokenizer_folders.find(
    source, extra_ids=extra_ids, special_tokens=special_tokens
  )
  for note in found.notes:
    say(note)
  _check_size(found.vocabulary, model.vocab_size, source)
  fields = {
    'vocabulary': str(workdir / found.name) if found.files else found.name,
    'extra_ids': found.extra_ids,
    'special_tokens': found.special_tokens,
    'prompt_start': found.starts or bool(model.encoder_layers),
  }
  return fields, found.vocabulary, found.files


def _check_size(loaded, rows, where):
  if loaded.size > rows:
    few = loaded.size - loaded.sentinels <= rows
    raise errors.DataError(
      'the vocabulary is larger than the embedding',
      where=where,
      got=f'{loaded.size:,} ids, {loaded.sentinels} of them sentinels',
      expected=f'at most {rows:,}, the rows that there are',
      fix='--extra_ids=0' if few else 'give the one that it was trained with',
    )


def _tell_other_ids(loaded, config, model, say):
  """Says where the vocabulary that a user named is not config.json's."""
  start = 'decoder_start' if model.encoder_layers else 'bos'
  for role, ours in (
    ('pad', loaded.pad_id),
    ('eos', loaded.eos_id),
    (start, loaded.start_id),
  ):
    said = config.get(f'{role}_token_id')
    if said is not None and ours not in (
      said if type(said) is list else [said]
    ):
      say(
        f'config.json says {role}_token_id {said}, and the vocabulary {ours}, '
        'which counts'
      )


def _run(model, config, fields, vocabulary):
  """The specs.Run of imported weights: what `infer` needs, and defaults."""
  config = config or {}
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
  if model.encoder_layers and not vocabulary.sentinels:
    made = dataclasses.replace(made, objective=specs.Supervised())
  return made


def _save(workdir, run, params, step, source):
  """Writes the files of a run directory; the checkpoint last."""
  kept = data.kept_vocabulary(run.data, workdir)
  new = None if run.model.decoder_layers else {'(decoder|logits)/.*': None}
  start = specs.Pretrained(path=str(workdir), rules=new)
  own = dataclasses.replace(run, data=kept, start_from=start)
  recipe.write(workdir, own, source)
  record = records.record(run)
  storage.write_text(workdir / 'config.json', records.to_json(record))
  wide = {path: np.asarray(x, np.float32) for path, x in params.items()}
  tree = partitioning.nest(wide)
  position = {'examples': 0, 'fingerprint': ''}
  with checkpoints.Checkpoints(workdir, specs.Checkpoints()) as saver:
    saver.save(step, {'params': tree}, position, record)
