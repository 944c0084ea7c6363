"""From nothing to a small T5 that fills in blanks, in one command."""

import json
import re
import statistics
import time

import jax
import numpy as np
from rich import console as rich_console
from rich import table as rich_table

from t5x_lite import config
from t5x_lite import data
from t5x_lite import evaluate
from t5x_lite import flops
from t5x_lite import infer
from t5x_lite import reporting
from t5x_lite import storage
from t5x_lite import train

BLANK = '<extra_id_0>'


def run(workdir, recipe, say=print):
  """Trains, measures and shows a small model; goes on where it stopped.

  Args:
    workdir: folder of the run.
    recipe: name of a recipe whose vocabulary is trained here.
    say: prints a line.

  Returns:
    The exit code, as of `train.fit`.
  """
  started = time.perf_counter()
  workdir = storage.make_folder(workdir)
  vocabulary = workdir / 'vocabulary.model'
  spec = config.load([recipe], [f'Data.vocabulary={str(vocabulary)!r}'])
  if not vocabulary.exists():
    say(f'training a vocabulary of {spec.model.vocab_size:,} pieces')
    data.train_vocabulary(spec.data, vocabulary, spec.model.vocab_size)
  code = train.fit(spec, workdir, say)
  if code:
    return code
  predictor = infer.Predictor(workdir)
  store = data.open_or_build(spec.data, predictor.vocabulary)
  held_out = data.Batches(spec, store, predictor.vocabulary, 'validation')
  with jax.set_mesh(predictor.mesh):
    after = evaluate.HeldOut(
      predictor.model,
      held_out,
      predictor.vocabulary,
      predictor.mesh,
      spec.batch_size,
    )(predictor.params)
  storage.write_text(
    workdir / 'evaluation.json',
    json.dumps({'step': predictor.step} | after, indent=2) + '\n',
  )
  console = rich_console.Console()
  show_blanks(predictor, store, console)
  picture = reporting.plot_losses(workdir)
  show_summary(spec, workdir, after, picture, recipe, console)
  say(f'{time.perf_counter() - started:.0f} s in all')
  return 0


def blanks(store, vocabulary, count=4):
  """Held-out lines with one word blanked: (text with blank, word)."""
  tokens = store.split('validation')
  length = 96
  starts = np.linspace(0, tokens.num_tokens - length, 4 * count).astype(int)
  found = []
  for row in tokens.rows(starts, length):
    # The first and last line of a row may be cut.
    lines = vocabulary.decode([int(t) for t in row]).split('\n')[1:-1]
    text = ' '.join(' '.join(lines).split())
    words = list(re.finditer(r"\b[a-z']{2,}\b", text))
    if len(words) < 12:
      continue
    word = words[len(words) // 2]
    found.append(
      (text[: word.start()] + BLANK + text[word.end() :], word.group())
    )
    if len(found) == count:
      break
  return found


def show_blanks(predictor, store, console):
  """Prints what the model would write in a few blanks."""
  console.rule('blanks in documents that it never saw')
  for text, word in blanks(store, predictor.vocabulary):
    [blank] = predictor.fill(text, candidates=5)
    at = text.index(BLANK)
    near = text[max(0, at - 60) : at + len(BLANK) + 60]
    console.print(
      '...' + near.replace(BLANK, '[bold red]_____[/]') + '...',
      highlight=False,
    )
    guesses = '   '.join(
      f'{c["text"] or "(nothing)"} {c["probability"]:.1%}'
      for c in blank['candidates']
    )
    console.print(f'  [bold]{word}[/] was there; guesses: {guesses}')


def show_summary(spec, workdir, after, picture, recipe, console):
  """One screen: what was reached, how fast, where it is, what to try."""
  lines = [
    json.loads(line)
    for line in (workdir / 'metrics.jsonl').read_text().splitlines()
  ]
  before = next(m for m in lines if m['split'] == 'validation')
  steps = [m for m in lines if m['split'] == 'train']

  def median(name):
    return statistics.median(m[name] for m in steps)

  lengths = data.feature_lengths(spec)
  cost, _ = flops.train_step(
    spec.model, spec.batch_size, lengths['inputs'], lengths['targets']
  )
  gain = after['unigram_entropy'] - after['text_loss']
  table = rich_table.Table(show_header=False, box=None, padding=(0, 2))
  for name, value in (
    (
      'held-out loss, text',
      f'{before["text_loss"]:.3f} before, {after["text_loss"]:.3f} after '
      f'{spec.steps:,} steps (nats a token)',
    ),
    (
      'unigram entropy',
      f'{after["unigram_entropy"]:.3f} of the same '
      f'{after["text_tokens"]:,} tokens: {gain:.3f} nat better',
    ),
    (
      'held-out loss, sentinels',
      f'{before["marker_loss"]:.3f} before, {after["marker_loss"]:.3f} after',
    ),
    (
      'accuracy',
      f'{before["accuracy"]:.1%} before, {after["accuracy"]:.1%} after; '
      f'of text {after["text_accuracy"]:.1%}',
    ),
    (
      'speed',
      f'{median("perf/tokens_per_second"):,.0f} tokens/s, '
      f'{median("timing/seconds_per_step") * 1e3:.0f} ms a step',
    ),
    (
      'arithmetic',
      f'{cost / 1e9:.1f} GFLOP a step, '
      f'{cost / 1e9 / median("timing/seconds_per_step"):,.0f} GFLOP/s: '
      f"{median('perf/mfu'):.1%} of this machine's matrix product",
    ),
    ('recipe', f'{workdir / "config.json"}'),
    ('checkpoints', f'{workdir / "checkpoints"}'),
    ('metrics', f'{workdir / "metrics.jsonl"}, {workdir / "tensorboard"}'),
    ('picture', f'{picture}'),
  ):
    table.add_row(name, value)
  console.rule('summary')
  console.print(table, highlight=False)
  console.print('\nnext:', style='bold')
  for command in (
    f"echo 'To be, or not to {BLANK}' | t5x_lite infer --workdir={workdir} "
    '--candidates=5',
    't5x_lite inspect --gin_file=t5/quickstart',
    't5x_lite train --corpus=YOUR.txt --workdir=runs/yours',
  ):
    console.print(f'  {command}', highlight=False, soft_wrap=True)
