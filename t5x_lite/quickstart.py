"""From nothing to a small T5 that fills in blanks, in one command."""

import re
import shlex
import shutil
import statistics
import sys
import time

import numpy as np
from rich import console as rich_console
from rich import markup as rich_markup
from rich import table as rich_table

from t5x_lite import assess
from t5x_lite import config
from t5x_lite import data
from t5x_lite import fit
from t5x_lite import flops
from t5x_lite import infer
from t5x_lite import measures
from t5x_lite import metrics
from t5x_lite import reporting
from t5x_lite import storage

BLANK = '<extra_id_0>'


def run(workdir, recipe, say=print):
  """Trains, measures and shows a small model; goes on where it stopped.

  Args:
    workdir: folder of the run.
    recipe: name of a recipe whose vocabulary is trained here.
    say: prints a line.

  Returns:
    The exit code, as of `fit.fit`.
  """
  started = time.perf_counter()
  workdir = storage.make_folder(workdir)
  vocabulary = workdir / data.vocabulary_files.MODEL
  spec = config.load([recipe], [f'Data.vocabulary={str(vocabulary)!r}'])
  if not vocabulary.exists():
    say(f'training a vocabulary of {spec.model.vocab_size:,} pieces')
    data.train_vocabulary(spec, vocabulary, spec.model.vocab_size)
  code = fit.fit(spec, workdir, say)
  if code:
    return code
  predictor = infer.Predictor(workdir)
  [store] = fit.open_stores(spec, predictor.vocabulary, say).values()
  after = assess.saved(workdir, say=say)[predictor.step][measures.HELD_OUT]
  console = rich_console.Console()
  show_blanks(predictor, store, console)
  picture = reporting.plot_losses(workdir)
  show_summary(spec, workdir, after, picture, recipe, console)
  say(f'{time.perf_counter() - started:.0f} s in all')
  return 0


def blanks(store, vocabulary, count=4):
  """Held-out passages with one word blanked: (text with blank, word)."""
  tokens = store.split('validation')
  length = min(100, tokens.num_tokens)
  starts = np.linspace(0, tokens.num_tokens - length, count).astype(int)
  found = []
  for row in tokens.rows(starts, length):
    # Both ends may be in the middle of a word.
    text = ' '.join(vocabulary.decode([int(t) for t in row]).split()[1:-1])
    words = list(re.finditer(r"\b[a-z']{2,}\b", text))
    if words:
      word = words[len(words) // 2]
      blanked = text[: word.start()] + BLANK + text[word.end() :]
      found.append((blanked, word.group()))
  return found


def show_blanks(predictor, store, console):
  """Prints what the model would write in a few blanks."""
  console.rule('blanks in documents that it never saw')
  for text, word in blanks(store, predictor.vocabulary):
    [blank] = predictor.fill(text, candidates=5)
    at = text.index(BLANK)
    near = text[max(0, at - 60) : at + len(BLANK) + 60]
    console.print(
      f'...{rich_markup.escape(near)}...'.replace(BLANK, '[bold red]_____[/]'),
      highlight=False,
    )
    guesses = '   '.join(
      f'{c["text"] or "(nothing)"} {c["probability"]:.1%}'
      for c in blank['candidates']
    )
    guesses = rich_markup.escape(guesses)
    console.print(f'  [bold]{word}[/] was there; guesses: {guesses}')


def show_summary(spec, workdir, after, picture, recipe, console):
  """One screen: what was reached, how fast, where it is, what to try."""
  lines = metrics.read(workdir)
  before = next(m for m in lines if m['split'] == 'validation')
  steps = [m for m in lines if m['split'] == 'train']

  def median(name):
    return statistics.median(m[name] for m in steps)

  def both(name, style):
    return f'{before[name]:{style}} before, {after[name]:{style}} after'

  lengths = data.feature_lengths(spec)
  seconds = median('timing/seconds_per_step')
  cost, _ = flops.train_step(
    spec.model, spec.batch_size, lengths['inputs'], lengths['targets']
  )
  gain = after['unigram_entropy'] - after['text_loss']
  rows = {
    'held-out loss': f'{both("text_loss", ".3f")} (nats a token of text)',
    '  unigram entropy': f'{after["unigram_entropy"]:.3f} of the same '
    f'{after["text_tokens"]:,} tokens: {gain:.3f} better',
    '  of sentinels': both('marker_loss', '.3f'),
    'accuracy': both('accuracy', '.1%'),
    '  of text': both('text_accuracy', '.1%'),
    'speed': f'{median("perf/tokens_per_second"):,.0f} tokens/s, '
    f'{seconds * 1e3:.0f} ms a step',
    'arithmetic': f'{cost / 1e9:.1f} GFLOP a step, '
    f'{cost / 1e9 / seconds:,.0f} GFLOP/s',
    '  of the peak': f'{median("perf/mfu"):.1%} of a matrix product on this '
    'machine',
    'recipe': workdir / 'config.json',
    'checkpoints': workdir / 'checkpoints',
    'metrics': f'{workdir / "metrics.jsonl"}, {workdir / "tensorboard"}',
    'picture': picture,
  }
  table = rich_table.Table(show_header=False, box=None, padding=(0, 2))
  for name, value in rows.items():
    table.add_row(name, rich_markup.escape(str(value)))
  console.rule(f'summary of {spec.steps:,} steps')
  console.print(table, highlight=False)
  console.print('next:', style='bold')
  program = 't5x_lite' if shutil.which('t5x_lite') else sys.argv[0]
  folder = shlex.quote(str(workdir))
  for command in (
    f'echo "To be, or not to {BLANK}" | {program} infer --workdir={folder} '
    '--candidates=5',
    f'{program} inspect --gin_file={recipe} '
    f'--gin.Data.vocabulary={folder}/{data.vocabulary_files.MODEL}',
    f'{program} train --corpus=YOUR.txt --workdir=runs/yours',
  ):
    console.print(f'  {command}', highlight=False, markup=False, soft_wrap=True)
