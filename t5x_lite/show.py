"""Batches and tables as a person would read them."""

import numpy as np
from rich import console as rich_console
from rich import text as rich_text


def table(rows, right=1):
  """Prints rows of text in aligned columns, the last few to the right."""
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  for row in rows:
    cells = [
      cell.rjust(width) if n >= len(row) - right else cell.ljust(width)
      for n, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    print('  '.join(cells))


def tokens(ids, counted, vocabulary):
  """Tokens as text: sentinels stand out, what costs no loss is dim."""
  shown = rich_text.Text()
  run, style = [], None

  def flush():
    text = vocabulary.decode(run)
    # A corpus may hold what would command the terminal.
    safe = (c if c.isprintable() or c in '\n\t' else '\ufffd' for c in text)
    shown.append(''.join(safe), style=style)
    run.clear()

  for token, counts in zip(map(int, ids), counted, strict=True):
    if vocabulary.is_sentinel(token) or token in (
      vocabulary.eos_id,
      vocabulary.pad_id,
    ):
      flush()
      shown.append(f' {vocabulary.piece(token)} ', style='bold red')
      continue
    now = None if counts else 'dim'
    if now != style:
      flush()
      style = now
    run.append(token)
  flush()
  return shown


def spans(values):
  """Runs of equal values, as `1 x 120  0 x 8`."""
  found = []
  for value in map(int, values):
    if found and found[-1][0] == value:
      found[-1][1] += 1
    else:
      found.append([value, 1])
  return '  '.join(f'{value} x {count}' for value, count in found)


def batch(features, vocabulary, console=None):
  """Prints each example of a batch: texts, loss weights, segments, positions.

  Args:
    features: dict of numpy arrays [B, L], of the batch contract.
    vocabulary: decodes them.
    console: a rich console; default: standard output.
  """
  console = console or rich_console.Console(highlight=False, soft_wrap=True)
  for row in range(len(next(iter(features.values())))):
    console.rule(f'example {row}')
    example = {
      name: np.atleast_1d(values[row]) for name, values in features.items()
    }
    for name, values in example.items():
      console.print(f'[bold]{name}[/]  [dim]{values.dtype}{[len(values)]}[/]')
      if name.endswith('_tokens'):
        side = name.split('_')[0]
        real = example[f'{side}_segment_ids'] > 0
        counted = (
          example[f'{side}_loss_weights'] > 0
          if name.endswith('_target_tokens')
          else real
        )
        console.print(tokens(values[real], counted[real], vocabulary))
        if not real.all():
          console.print(f'[dim]and {int((~real).sum())} of padding[/]')
      elif name.endswith('_positions'):
        console.print(f'{values.min()} to {values.max()}')
      else:
        console.print(spans(values))
