"""Encoder-decoder, prefix LM and LM on the same text for the same operations.

  python benchmarks/architectures.py --out=runs/architectures

Each learns to fill in masked spans of Shakespeare (SpanCorruption), from the
same examples in the same batches, and is measured on the same held-out ones:
the question of arXiv:1910.10683 section 3.2. An encoder-decoder of 2 + 2 layers
has twice the parameters of a decoder of 2, which reads inputs and targets in
one row. Steps are set so that all spend the same operations, by the rule of
t5x_lite/flops.py. What is there is not run again, so it can be stopped.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

import matplotlib

matplotlib.use('Agg')
from matplotlib import pyplot as plt  # noqa: E402

from t5x_lite import config  # noqa: E402
from t5x_lite import data  # noqa: E402
from t5x_lite import flops  # noqa: E402
from t5x_lite import models  # noqa: E402

RECIPE = 't5/quickstart'
ALONE = ['Transformer.encoder_layers=0']
SYSTEMS = {
  'encoder-decoder': [],
  'shared encoder-decoder': ['Transformer.share_stacks=True'],
  'prefix LM': [*ALONE, "Transformer.mask='prefix'"],
  'LM': ALONE,
}
LENGTHS = {'inputs': 128, 'targets': 29}
METRICS = 'text_loss', 'text_accuracy', 'loss'


def cost(run):
  """Operations of a step."""
  both = run.model.encoder_layers and run.model.decoder_layers
  inputs, targets = LENGTHS['inputs'], LENGTHS['targets']
  lengths = (inputs, targets) if both else (0, inputs + targets)
  return flops.train_step(run.model, run.batch_size, *lengths)[0]


def prepare(vocabulary, steps):
  """{system: (bindings, run)}, all of as many operations as the first."""
  common = [
    f'Data.vocabulary={str(vocabulary)!r}',
    'Evaluation.examples=100000',
  ]
  found, budget = {}, None
  for name, bindings in SYSTEMS.items():
    run = config.load([RECIPE], [*common, *bindings])
    budget = budget or steps * cost(run)
    own = round(budget / cost(run))
    bindings = [
      *common,
      *bindings,
      f'Run.steps={own}',
      f'Evaluation.every={max(1, own // 8)}',
      'Run.log_every=20',
    ]
    found[name] = bindings, config.load([RECIPE], bindings)
  return found


def train(workdir, bindings, seed):
  """A run from start to end, unless it is there."""
  options = [f'--gin.{binding}' for binding in bindings]
  subprocess.run(
    [
      sys.executable,
      '-m',
      't5x_lite',
      'train',
      f'--gin_file={RECIPE}',
      f'--workdir={workdir}',
      f'--gin.Run.seed={seed}',
      '--no_tensorboard',
      *options,
    ],
    check=True,
    stdout=subprocess.DEVNULL,
  )


def measured(workdir):
  """[(step, metrics)] of the held-out examples."""
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  found = map(json.loads, lines)
  return [
    (line['step'], line) for line in found if line['split'] == 'validation'
  ]


def table(runs, prepared, seeds):
  """Markdown: mean over the seeds, and half of the range."""
  rows = [
    '| system | parameters | steps | GFLOP a step | loss | accuracy |',
    '|---|---:|---:|---:|---:|---:|',
  ]
  for name, (_, run) in prepared.items():
    ends = [runs[name, seed][-1][1] for seed in seeds]
    cells = []
    for metric in METRICS[:2]:
      values = [end[metric] for end in ends]
      spread = (max(values) - min(values)) / 2
      cells.append(f'{statistics.mean(values):.3f} ± {spread:.3f}')
    parameters = models.build(run.model).num_params
    rows.append(
      f'| {name} | {parameters:,} | {run.steps:,} | {cost(run) / 1e9:.2f} | '
      + ' | '.join(cells)
      + ' |'
    )
  return '\n'.join(rows) + '\n'


def picture(runs, prepared, seeds, path):
  """Loss by operations: a line for each seed."""
  figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout='constrained')
  for color, (name, (_, run)) in enumerate(prepared.items()):
    for seed in seeds:
      points = runs[name, seed]
      spent = [step * cost(run) / 1e12 for step, _ in points]
      for axis, metric in zip(axes, METRICS):
        values = [point[metric] for _, point in points]
        axis.plot(
          spent,
          values,
          color=f'C{color}',
          label=name if seed == seeds[0] else None,
        )
  for axis, metric in zip(axes, ('loss of masked text', 'accuracy on it')):
    axis.set_xlabel('TFLOP')
    axis.set_ylabel(f'{metric}, held out')
    axis.grid(alpha=0.3)
  axes[0].legend()
  figure.savefig(path, dpi=100)


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--out', type=pathlib.Path, required=True)
  parser.add_argument(
    '--vocabulary', default='runs/quickstart/vocabulary.model'
  )
  parser.add_argument('--steps', type=int, default=1000)
  parser.add_argument('--seeds', type=int, default=3)
  args = parser.parse_args()
  args.out.mkdir(parents=True, exist_ok=True)
  vocabulary = args.out / 'vocabulary.model'
  if not vocabulary.exists():
    run = config.load([RECIPE], [f'Data.vocabulary={str(vocabulary)!r}'])
    data.train_vocabulary(run, vocabulary, run.model.vocab_size)
  prepared = prepare(vocabulary, args.steps)
  seeds, runs = range(args.seeds), {}
  for seed in seeds:
    for name, (bindings, _) in prepared.items():
      workdir = args.out / f'{name.replace(" ", "_")}_{seed}'
      train(workdir, bindings, seed)
      runs[name, seed] = measured(workdir)
      step, end = runs[name, seed][-1]
      print(name, seed, step, end['text_loss'], flush=True)
  found = table(runs, prepared, seeds)
  (args.out / 'table.md').write_text(found)
  picture(runs, prepared, seeds, args.out / 'picture.png')
  print(found)


if __name__ == '__main__':
  main()
