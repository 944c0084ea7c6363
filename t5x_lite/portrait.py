"""Figures of data, as `looking` finds them, in tables, bars and a picture."""

import io
import math

import numpy as np
from rich import bar
from rich import console as rich_console
from rich import table as rich_table
from rich import text as rich_text

from t5x_lite import show
from t5x_lite import storage

_FEW = 3  # parts whose histograms fit on a screen
_MOST = 2000  # tokens of a stored document that are shown
_COLUMNS = 3
_PANEL = 1.9  # inches of a histogram's height
_BAR = 0.2  # inches
_COLORS = ('tab:blue', 'tab:orange', 'tab:green')


# -- text ---------------------------------------------------------------------


def tell(figures, console=None):
  """Prints the figures.

  Args:
    figures: as of looking.of_run or of_store.
    console: a rich console; default: standard output.
  """
  console = console or rich_console.Console(highlight=False, soft_wrap=True)
  parts = {show.safe(name): x for name, x in figures['parts'].items()}
  several = len(parts) > 1
  console.rule(f'{figures["split"]} data')
  for rows in (_data(parts), _lengths(parts)):
    console.print(show.lines(rows, right=len(rows[0]) - 2), markup=False)
    console.print()
  if len(parts) <= _FEW:
    for name, part in parts.items():
      for side, lengths in part['lengths'].items():
        console.print(
          f'{name}: tokens of {part["looked_at"]:,} {side}', markup=False
        )
        console.print(_bars(lengths['histogram']))
        console.print()
  if 'rows' in figures:
    console.rule('rows')
    rows = _rows(parts, figures['rows'] if several else None)
    console.print(show.lines(rows, right=len(rows[0]) - 1), markup=False)
    console.print()
    if several:
      rows = _rates(parts)
      console.print(show.lines(rows, right=3), markup=False)
      console.print()
  for note in figures['notes']:
    console.print(show.safe(note), markup=False)


def _data(parts):
  """The table of what there is."""
  rows = [('data', '', 'in all', 'tokens', 'unknown', 'looked at', 'copies')]
  extra = ('blank', 'not UTF-8', 'over 16 MiB')
  rows[0] += extra
  for name, x in parts.items():
    read = x.get('read')
    rows.append(
      (
        name,
        x['kind'],
        'a stream' if x['count'] is None else f'{x["count"]:,}',
        f'{x["tokens"]:,}',
        f'{x["unknown"]:.2%}',
        f'{x["looked_at"]:,}',
        ', '.join(f'{share:.2%} {what}' for what, share in x['copies'].items()),
        *(
          (f'{read[k]:,}' for k in ('blank', 'bad_lines', 'cut'))
          if read
          else ('',) * len(extra)
        ),
      )
    )
  return rows


def _lengths(parts):
  rows = [('data', 'tokens of', 'shortest', 'mean', 'longest', 'longer than')]
  for name, part in parts.items():
    for side, x in part['lengths'].items():
      rows.append(
        (
          name,
          side,
          f'{x["shortest"]:,}',
          f'{x["mean"]:,.1f}',
          f'{x["longest"]:,}',
          f'{x["limit"]:,}: {x["longer"]:.2%}' if 'limit' in x else '',
        )
      )
  return rows


def _rows(parts, whole):
  """The table of rows."""
  named = {name: x['rows'] for name, x in parts.items()}
  if whole is not None:
    named['all of it'] = whole
  stacks = next(x['padding'] for x in named.values() if x['rows'])
  rows = [('data', 'rows', 'examples a row')]
  rows[0] += tuple(f'padding of the {stack}' for stack in stacks)
  two = len(stacks) > 1
  rows[0] += ('of the fuller of a row',) * two
  for name, x in named.items():
    told = (
      (
        f'{x["examples_per_row"]:.2f}',
        *(f'{x["padding"][stack]:.2%}' for stack in stacks),
        *(f'{x["padding_of_fuller_stack"]:.2%}',) * two,
      )
      if x['rows']
      else ('',) * (1 + len(stacks) + two)
    )
    rows.append((name, f'{x["rows"]:,}', *told))
  return rows


def _rates(parts):
  rows = [('share of the examples', 'wanted', 'of the schedule', 'drawn')]
  for name, x in parts.items():
    rows.append((name, *(f'{rate:.3%}' for rate in x['rate'].values())))
  return rows


def names(histogram):
  """What each bar counts: '0-49', or 'from 700' of the last."""
  starts = histogram['starts']
  found = [
    f'{start:,}' if end == start + 1 else f'{start:,}-{end - 1:,}'
    for start, end in zip(starts, starts[1:], strict=False)
  ]
  return [*found, f'from {starts[-1]:,}']


def _bars(histogram):
  """A histogram for a terminal."""
  grid = rich_table.Table.grid(padding=(0, 1))
  grid.add_column(justify='right')
  grid.add_column(justify='right')
  grid.add_column()
  most = max(histogram['counts'])
  for name, count in zip(names(histogram), histogram['counts'], strict=True):
    grid.add_row(name, f'{count:,}', bar.Bar(most, 0, count, width=40))
  return grid


def examples(found, position, vocabulary, console=None):
  """Prints documents or pairs of a store.

  Args:
    found: [{side: tokens}].
    position: the number of the first.
    vocabulary: decodes them; None: they are shown as ids.
    console: a rich console; default: standard output.
  """
  console = console or rich_console.Console(highlight=False, soft_wrap=True)
  for number, example in enumerate(found, position):
    console.rule(f'example {number}')
    for side, ids in example.items():
      console.print(f'[bold]{side}[/]  [dim]{len(ids):,} tokens[/]')
      shown = ids[:_MOST]
      if vocabulary is None:
        console.print(rich_text.Text(' '.join(map(str, shown.tolist()))))
      else:
        console.print(show.tokens(shown, np.ones(len(shown)), vocabulary))
      if len(ids) > _MOST:
        console.print('[dim]and more, not shown[/]')


# -- the picture --------------------------------------------------------------


def draw(figures, file):
  """Draws histograms, how full rows are, and the rates of a mixture.

  Args:
    figures: as of looking.of_run or of_store.
    file: path of the PNG.
  """
  from matplotlib import figure

  parts = {show.safe(name): x for name, x in figures['parts'].items()}
  grid = math.ceil(len(parts) / _COLUMNS)
  columns = min(len(parts), _COLUMNS)
  heights = [_PANEL * grid + 0.5]
  if 'rows' in figures:
    stacks = len(figures['rows']['padding'])
    several = len(parts) > 1
    heights.append(_BAR * stacks * (len(parts) + several) + 1.0)
    heights += [_BAR * 3 * len(parts) + 1.0] * several
  picture = figure.Figure(
    figsize=(9, sum(heights)), dpi=120, layout='constrained'
  )
  panels = picture.subfigures(
    len(heights), squeeze=False, height_ratios=heights
  )[:, 0]
  all_axes = panels[0].subplots(grid, columns, squeeze=False).ravel()
  for axes, (name, part) in zip(all_axes, parts.items(), strict=False):
    _draw_lengths(axes, name, part)
  for axes in all_axes[len(parts) :]:
    axes.set_visible(False)
  panels[0].suptitle(
    f'Tokens of each, {figures["split"]}; dashed: the most that a row takes',
    fontsize=10,
  )
  if 'rows' in figures:
    whole = {'all of it': figures} if len(parts) > 1 else {}
    _draw_fill(panels[1].add_subplot(), parts | whole)
  if len(heights) > 2:
    _draw_rates(panels[2].add_subplot(), parts)
  content = io.BytesIO()
  picture.savefig(content, format='png')
  storage.write_bytes(storage.path(file), content.getvalue())


def _draw_lengths(axes, name, part):
  for color, (side, x) in zip(_COLORS, part['lengths'].items(), strict=False):
    starts, counts = map(np.array, x['histogram'].values())
    width = starts[1] if len(starts) > 1 else 1
    share = counts / counts.sum()
    axes.bar(
      starts, share, width, align='edge', color=color, alpha=0.55, label=side
    )
    if 0 < x.get('limit', 0) <= starts[-1] + width:
      axes.axvline(x['limit'], color=color, ls='--', lw=1)
  axes.set_title(name[:40], loc='left', fontsize=8)
  axes.tick_params(labelsize=7)
  axes.spines[['top', 'right']].set_visible(False)
  axes.yaxis.set_major_formatter('{x:.0%}')
  if part['lengths']:
    axes.legend(frameon=False, fontsize=7)


def _groups(axes, groups, title):
  """Bars of {name: {kind: share}}, those of a name together, from above."""
  place, ticks, most = 0.0, [], 0.0
  for name, shares in groups.items():
    for color, (kind, share) in zip(_COLORS, shares.items(), strict=False):
      label = None if ticks else kind
      axes.barh(place, share, 0.9, color=color, alpha=0.75, label=label)
      axes.text(share, place, f' {share:.2%}', va='center', fontsize=7)
      place, most = place + 1, max(most, share)
    ticks.append((place - (len(shares) + 1) / 2, name[:40]))
    place += 0.6
  axes.set_yticks(*zip(*ticks, strict=True), fontsize=8)
  axes.set_ylim(place - 0.6, -1)
  axes.set_xlim(0, 1.25 * most)
  axes.set_xticks([])
  axes.set_title(title, loc='left', fontsize=10)
  axes.spines[['top', 'right', 'bottom']].set_visible(False)
  axes.legend(frameon=False, fontsize=8, loc='upper right')


def _draw_fill(axes, parts):
  groups = {
    name: {stack: 1 - x for stack, x in part['rows']['padding'].items()}
    for name, part in parts.items()
    if part['rows']['rows']
  }
  _groups(axes, groups, 'Places of rows that hold a token; the rest is padding')


def _draw_rates(axes, parts):
  groups = {name: part['rate'] for name, part in parts.items()}
  _groups(axes, groups, 'Share of the examples')
