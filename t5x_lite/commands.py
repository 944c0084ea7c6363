"""What each command of the command line does."""

import contextlib
import itertools
import json
import sys

import jax

from t5x_lite import config
from t5x_lite import data
from t5x_lite import errors
from t5x_lite import evaluate as evaluation
from t5x_lite import fit as fitting
from t5x_lite import infer as inference
from t5x_lite import metrics
from t5x_lite import models
from t5x_lite import partitioning
from t5x_lite import profiling
from t5x_lite import quickstart as guided
from t5x_lite import recipes as installed
from t5x_lite import record
from t5x_lite import show
from t5x_lite import storage
from t5x_lite import train as training

ANY_CORPUS = 't5/bytes'  # the recipe of `--corpus` with nothing else said


def keep_compiled():
  """Keeps compiled programs between runs, in a folder of the user's own."""
  folder = storage.make_private(storage.cache_dir() / 'compiled')
  jax.config.update('jax_compilation_cache_dir', str(folder))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
  jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)


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
  return config.load(files, bindings)


def train(options):
  run = load(options)
  if options.dry_run:
    dry_run(run)
    return 0
  if not options.workdir:
    raise errors.ConfigError('no --workdir', fix='--workdir=runs/NAME')
  sinks = metrics.Sinks(not options.no_tensorboard, options.wandb_project)
  sinks.check()
  window = options.profile and profiling.Window(*options.profile)
  if window:
    window.check(run.steps)
  keep_compiled()
  return fitting.fit(run, options.workdir, sinks=sinks, window=window)


def dry_run(run):
  """Prints the record and every parameter; allocates nothing."""
  print(record.to_json(record.record(run)))
  mesh = partitioning.make_mesh(run.mesh)
  model = training.Program.build(run, mesh).model
  rows = [('parameter', 'shape', 'axes', 'on the mesh', 'count')]
  leaves = jax.tree_util.tree_leaves_with_path(model.abstract)
  names = jax.tree.leaves(model.axes, is_leaf=lambda x: isinstance(x, tuple))
  for (path, leaf), axes in zip(leaves, names, strict=True):
    place = partitioning.partition_spec(leaf.shape, axes, mesh)
    rows.append(
      (
        partitioning.path_name(path),
        ' '.join(map(str, leaf.shape)),
        ' '.join(axes),
        ' '.join(str(entry or '-') for entry in place),
        f'{leaf.size:,}',
      )
    )
  show.table(rows)
  sizes = ', '.join(f'{k} {v}' for k, v in mesh.shape.items())
  print(f'{model.num_params:,} parameters; mesh: {sizes}')
  for line in partitioning.unsharded(model.abstract, model.axes, mesh):
    print(line)


def evaluate(options):
  """Prints and writes the metrics of the whole validation split."""
  keep_compiled()
  run, step, mesh, model, params = inference.restore(
    options.workdir, options.step
  )
  vocabulary = data.load_vocabulary(run.data)
  store = fitting.open_store(run.data, vocabulary, print)
  if not store.has('validation'):
    raise errors.DataError(
      'nothing was held out', got='Data.held_out 0', expected='a share > 0'
    )
  batches = data.Batches(run, store, vocabulary, 'validation')
  with jax.set_mesh(mesh):
    held_out = evaluation.HeldOut(
      model, batches, vocabulary, mesh, run.batch_size
    )
    found = held_out(params)
  file = evaluation.save(options.workdir, step, found)
  for name, value in found.items():
    print(
      f'{name:16} {value:,}'
      if isinstance(value, int)
      else f'{name:16} {value:.4f}'
    )
  print(f'step {step}; written to {file}')


def infer(options):
  """Predicts for each line of the input, in order."""
  keep_compiled()
  predictor = inference.Predictor(options.workdir, options.step)
  at_once = options.batch_size
  if options.input == '-' and sys.stdin.buffer.isatty():
    at_once = 1  # a person waits for an answer to each line
    print('one text a line; Ctrl-D ends', file=sys.stderr)
  with _reading(options.input) as source, _writing(options.output) as out:
    lines = _text_lines(source, options.input)
    while texts := list(itertools.islice(lines, at_once)):
      if options.candidates:
        found = [
          {'inputs': t, 'blanks': predictor.fill(t, options.candidates)}
          for t in texts
        ]
      else:
        found = predictor.predict(texts, options.length)
      for example in found:
        print(json.dumps(example, ensure_ascii=False), file=out, flush=True)


def _reading(name):
  """A text file as bytes, or standard input."""
  if name == '-':
    return contextlib.nullcontext(sys.stdin.buffer)
  path = storage.path(name)
  try:
    return path.open('rb')
  except OSError as e:
    raise errors.DataError(
      'cannot read the input', where=name, got=e.strerror or e
    ) from e


def _text_lines(source, name):
  """The lines of a file, decoded."""
  for number, line in enumerate(source, 1):
    try:
      yield line.decode('utf-8').rstrip('\r\n')
    except UnicodeDecodeError as e:
      raise errors.DataError(
        'line is not UTF-8', where=f'{name}:{number}', got=f'byte {e.start}'
      ) from None


def _writing(name):
  if name == '-':
    return contextlib.nullcontext(sys.stdout)
  path = storage.path(name)
  try:
    return path.open('w')
  except OSError as e:
    raise errors.StorageError(
      'cannot write the output', where=name, got=e.strerror or e
    ) from e


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
  """Trains a vocabulary on the training split of a corpus."""
  run = load(options)
  data.train_vocabulary(
    run.data,
    storage.path(options.output),
    size=options.size,
    extra_ids=options.extra_ids,
    kind=options.kind,
  )
  rows = -(-options.size // 128) * 128
  print(
    f'{options.size:,} pieces in {options.output}; use it by '
    f'--gin.Data.vocabulary={options.output} '
    f'--gin.Transformer.vocab_size={rows}'
  )


def inspect(options):
  """Prints a few examples."""
  run = load(options)
  vocabulary = data.load_vocabulary(run.data)
  data.check(run, vocabulary)
  store = fitting.open_store(run.data, vocabulary, print)
  batches = data.Batches(run, store, vocabulary, options.split)
  show.batch(batches.at(options.position, options.rows), vocabulary)


def quickstart(options):
  keep_compiled()
  name = options.gin_file.removesuffix('.gin').split('/')[-1]
  return guided.run(options.workdir or f'runs/{name}', options.gin_file)
