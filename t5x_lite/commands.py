"""What each command of the command line does."""

import argparse
import functools
import json
import sys

import jax
from jax.experimental.compilation_cache import compilation_cache

from t5x_lite import assess
from t5x_lite import bulk
from t5x_lite import caching
from t5x_lite import config
from t5x_lite import data
from t5x_lite import decoding_options
from t5x_lite import errors
from t5x_lite import fit as fitting
from t5x_lite import infer as inference
from t5x_lite import joining
from t5x_lite import lines as inputs
from t5x_lite import looking
from t5x_lite import metrics
from t5x_lite import models
from t5x_lite import outline
from t5x_lite import portrait
from t5x_lite import processes
from t5x_lite import profiling
from t5x_lite import quickstart as guided
from t5x_lite import recipes as installed
from t5x_lite import results
from t5x_lite import scores
from t5x_lite import show
from t5x_lite import specs
from t5x_lite import storage
from t5x_lite.interop import exporting
from t5x_lite.interop import importing
from t5x_lite.interop import inspecting
from t5x_lite.launch import local
from t5x_lite.launch import submitting
from t5x_lite.planning import asking

ANY_CORPUS = 't5/bytes'  # the recipe of `--corpus` with nothing else said


def keep_compiled():
  """Keeps compiled programs between runs, in a folder of the user's own."""
  folder = storage.make_private(storage.cache_dir() / 'compiled')
  jax.config.update('jax_compilation_cache_dir', str(folder))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
  jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)
  # JAX looks for it once, with its first program, which may have come before.
  compilation_cache.reset_cache()


say_at_once = functools.partial(print, flush=True)


def load(options):
  """The run that the options describe."""
  files, bindings = options.gin_file, options.bindings
  if options.corpus is not None:
    bindings = [f'Data.corpus={options.corpus!r}', *bindings]
    files = files or [ANY_CORPUS]
  if not files:
    raise errors.ConfigError(
      'no recipe',
      fix='--gin_file=NAME (t5x_lite recipes lists them), or --corpus=FILES',
    )
  return config.load(files, [*_instead(bindings), *bindings])


def _instead(bindings):
  """Takes back what a recipe learns from, where options name another."""
  names = {f'Data.{name}' for name in ('corpus', 'task', 'mixture')}
  said = {binding.split('=')[0].strip() for binding in bindings} & names
  return [f'{name}=None' for name in sorted(names - said)] if said else []


def train(options):
  run = load(options)
  if options.dry_run:
    outline.tell(run)
    return 0
  if not options.workdir:
    raise errors.ConfigError('no --workdir', fix='--workdir=runs/NAME')
  sinks = metrics.Sinks(not options.no_tensorboard, options.wandb_project)
  sinks.check()
  window = options.profile and profiling.Window(*options.profile)
  if window:
    window.check(run.steps)
  joining.meet(options, run)
  data.tasks.import_modules(options.task_module, processes.say)
  keep_compiled()
  return fitting.fit(
    run,
    options.workdir,
    sinks=sinks,
    window=window,
    step_timeout=options.step_timeout,
  )


def launch(options):
  """Starts a command elsewhere or in several processes, or looks after it."""
  if options.where == 'local':
    return local.run(options.start, options.processes, options.devices)
  if options.where not in submitting.BACKENDS:
    return submitting.act(options, say_at_once)
  started = options.started
  run = load(started) if started.command == 'train' else None
  return submitting.submit(options, run, say_at_once)


def evaluate(options):
  """Measures checkpoints, and prints a table of all that was asked for."""
  joining.meet(options)
  data.tasks.import_modules(options.task_module, processes.say)
  keep_compiled()
  found = assess.saved(
    options.workdir,
    options.step,
    options.tasks,
    options.examples,
    options.batch_size,
    options.force,
    decoding_options.spec(options),
  )
  if processes.is_first():
    constants = results.constants(options.workdir)
    for table in results.tables(found, constants):
      show.table(table, right=3 if len(found) == 1 else 1)
    print(f'all of {options.workdir}: {results.file(options.workdir)}')
    if picture := scores.plot(options.workdir):
      print(f'drawn: {picture}')


def infer(options):
  """Predicts or scores each line of the input, in order."""
  scored = options.mode == 'score'
  how = decoding_options.spec(options)
  if how and (scored or options.candidates):
    raise errors.ConfigError(
      '--decoding is of predictions',
      got='--mode=score' if scored else '--candidates',
    )
  for name in ('length', 'candidates'):
    if scored and getattr(options, name):
      raise errors.ConfigError(
        f'--{name} is of --mode=predict: the targets are given to score'
      )
  length = options.length or (16 if options.candidates else 64)
  task = bulk.Task(
    options.mode,
    None if scored else length,
    options.batch_size,
    options.candidates,
    how or specs.Greedy(),
  )
  if options.shard != [0, 1] and options.output == '-':
    raise errors.ConfigError('--shard needs a file to share: --output=FILE')
  lines = inputs.Lines(options.input, options.format, options.field, scored)
  joining.meet(options)
  keep_compiled()
  predictor = inference.Predictor(options.workdir, options.step)
  processes.same(f'the checkpoint in {options.workdir}', predictor.fingerprint)
  bulk.run(predictor, lines, task, options.output, options.shard)


def recipes(options):
  """Lists the recipes with their exact parameter counts."""
  found = []
  for name in installed.names():
    model = models.build(config.load([name]).model)
    found.append(
      installed.info(name)._asdict() | {'parameters': model.num_params}
    )
  if options.json:
    print(json.dumps(found, indent=2))
    return
  columns = 'name', 'system', 'family', 'paper', 'parameters'
  rows = [[str(info[key]) for key in columns[:-1]] for info in found]
  for row, info in zip(rows, found, strict=True):
    row.append(f'{info["parameters"]:,}')
  show.table([columns, *rows])


def vocab(options):
  """Trains a vocabulary on the training split of a corpus, or converts one."""
  if options.convert:
    path, output = map(storage.path, (options.convert, options.output))
    with data.vocabulary_files.reading(path):
      print(*data.convert_vocabulary(path, output, options.extra_ids), sep='\n')
    return
  made = data.vocabulary_training
  as_json = options.output.endswith('.json')
  if as_json != (options.kind in made.JSON_KINDS):
    raise errors.ConfigError(
      f'--output of {options.kind} is a '
      + ('SentencePiece model' if as_json else 'tokenizer.json'),
      got=options.output,
      expected='a name that ends with '
      + ('.model' if as_json else 'tokenizer.json'),
    )
  run = load(options)
  vocabulary = data.train_vocabulary(
    run,
    storage.path(options.output),
    size=options.size,
    extra_ids=options.extra_ids,
    kind=options.kind,
    max_sentences=options.max_sentences,
    seed=options.seed,
    byte_fallback=not options.no_byte_fallback,
    character_coverage=options.character_coverage,
    lowercase=options.lowercase,
  )
  if quality := data.vocabulary_quality(run, vocabulary):
    print(
      f'on held-out text: {quality.bytes_per_token:.2f} bytes per token, '
      f'{quality.unknown:.2%} of the tokens unknown'
    )
  rows = -(-vocabulary.size // 128) * 128
  print(
    f'{vocabulary.size:,} pieces in {options.output}; use it by '
    f'--gin.Data.vocabulary={options.output} '
    f'--gin.Transformer.vocab_size={rows}'
  )


def cache(options):
  """Makes the stores of a run."""
  run = load(options)
  data.tasks.import_modules(options.task_module, print)
  runner = None
  if options.beam_runner:
    from t5x_lite.data import beam  # an extra

    runner = beam.runner(options.beam_runner, getattr(options, 'beam', ()))
  caching.run(run, options.workers, runner)


def plan(options):
  """Predicts what a run takes of chips that are not there."""

  def find(names):
    return load(argparse.Namespace(**vars(options) | {'gin_file': names}))

  asking.run(options, find)


def weights(options):
  """Lists tensors, or how those of two places differ."""
  return inspecting.run(
    options.path,
    options.workdir,
    options.step,
    options.diff,
    options.values,
    options.torch_files,
  )


def inspect(options):
  """Prints a few examples, and figures of them all."""
  say = print
  if options.json:
    say = functools.partial(print, file=sys.stderr)
  look = _look_at_run if options.store is None else _look_at_store
  figures = look(options, say)
  if options.picture:
    portrait.draw(figures, options.picture)
    say(f'drawn: {options.picture}')
  if options.json:
    print(json.dumps(figures, indent=2))
  else:
    portrait.tell(figures)


def _look_at_run(options, say):
  run = load(options)
  data.tasks.import_modules(options.task_module, say)
  vocabulary = data.load_vocabulary(run.data)
  data.check(run, vocabulary)
  stores = fitting.open_stores(run, vocabulary, say)
  batches = data.Batches(run, stores, vocabulary, options.split)
  if options.rows and not options.json:
    show.batch(batches.at(options.position, options.rows), vocabulary)
  return looking.of_run(
    run,
    stores,
    batches,
    vocabulary,
    options.split,
    options.position,
    options.examples,
  )


def _look_at_store(options, say):
  """The same of a store by itself, as text if its vocabulary is given."""
  if options.corpus is not None:
    raise errors.ConfigError(
      '--corpus and --store are both given', expected='one of them'
    )
  store = looking.open_store(options.store)
  bindings = [f'Data.corpus={options.store!r}', *options.bindings]
  run = config.load(
    options.gin_file or [ANY_CORPUS], [*_instead(bindings), *bindings]
  )
  vocabulary = data.load_vocabulary(run.data)
  if store.manifest['vocabulary']['fingerprint'] != vocabulary.fingerprint:
    say(
      'shown as ids: the store is of another vocabulary than Data.vocabulary, '
      f'{run.data.vocabulary!r} with Data.extra_ids {run.data.extra_ids}'
    )
    vocabulary = None
  if options.rows and not options.json:
    found = looking.stored_examples(
      store, options.split, options.position, options.rows
    )
    portrait.examples(found, options.position, vocabulary)
  return looking.of_store(store, options.split, options.examples)


def import_(options):
  """Makes a workdir of the weights of others."""
  importing.run(
    options.source,
    options.workdir,
    options.vocabulary,
    options.extra_ids,
    dict(options.special_token),
    options.step,
    options.torch_files,
  )


def export(options):
  """Writes a checkpoint as others read it."""
  at = options.place
  if processes.detect().index if at.multiprocess else at.process_index:
    return  # of several processes the first reads and writes it all
  exporting.run(
    options.workdir,
    options.output,
    options.format,
    options.step,
    options.dtype,
    options.shard_size,
  )


def quickstart(options):
  keep_compiled()
  name = options.gin_file.removesuffix('.gin').split('/')[-1]
  return guided.run(options.workdir or f'runs/{name}', options.gin_file)
