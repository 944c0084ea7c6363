"""The picture of all that was measured of a run: `evaluation/metrics.png`."""

import io
import math

import numpy as np

from t5x_lite import evaluate
from t5x_lite import measures
from t5x_lite import results
from t5x_lite import storage

_ROW = 0.24  # inches of a bar
_PANEL = 2.3  # inches of a panel's height
_COLUMNS = 3
_COLORS = ('tab:blue', 'tab:orange', 'tab:green', 'tab:red')


def plot(workdir):
  """Draws the metrics of tasks as bars, and those of several steps as lines.

  Bars are of the newest step, of metrics that are of 100. A mark shows what one
  answer to all examples would get.

  Returns:
    The path of the PNG, or None where there is nothing to draw.
  """
  from matplotlib import figure

  found, constants = results.measured(workdir), results.constants(workdir)
  bars = _bars(found, constants)
  panels = {name: steps for name, steps in found.items() if len(steps) > 1}
  if not (bars or panels):
    return None
  rows = math.ceil(len(panels) / _COLUMNS)
  heights = [_ROW * len(bars) + 1.1 if bars else 0, _PANEL * rows]
  picture = figure.Figure(
    figsize=(9, sum(heights)), dpi=120, layout='constrained'
  )
  parts = iter(
    np.atleast_1d(
      picture.subfigures(
        sum(x > 0 for x in heights), height_ratios=[x for x in heights if x]
      )
    )
  )
  if bars:
    _draw_bars(next(parts).add_subplot(), bars)
  if panels:
    all_axes = [*next(parts).subplots(rows, _COLUMNS, squeeze=False).flat]
    for axes, (name, steps) in zip(all_axes, panels.items()):
      _draw_lines(axes, name, steps, constants.get(name, {}))
    for axes in all_axes[len(panels) :]:
      axes.set_visible(False)
  content = io.BytesIO()
  picture.savefig(content, format='png')
  file = results.file(workdir).parent / 'metrics.png'
  storage.write_bytes(file, content.getvalue())
  return file


def _bars(found, constants):
  """[(label, value, that of a constant answer or None, group)] of tasks."""
  made = []
  newest = {x: max(found[x]) for x in found if x != measures.HELD_OUT}
  several = len(set(newest.values())) > 1
  for group, (name, step) in enumerate(newest.items()):
    for metric, value in measures.own(found[name][step]).items():
      floor = constants.get(name, {}).get(metric)
      if 0 <= value <= 100:
        label = f'{name} {metric}' + (f', step {step:,}' if several else '')
        made.append((label, value, floor, group))
  return made


def _draw_bars(axes, bars):
  names, values, floors, groups = zip(*bars)
  places = np.arange(len(bars))
  colors = [_COLORS[group % 2] for group in groups]
  axes.barh(places, values, height=0.7, color=colors, alpha=0.75)
  for place, value, floor in zip(places, values, floors):
    if floor is not None and 0 <= floor <= 100:
      axes.plot([floor, floor], [place - 0.42, place + 0.42], 'k-', lw=1.6)
    # In a column of its own, where no mark hides it.
    axes.text(106, place, f'{value:.1f}', va='center', ha='right', fontsize=8)
  axes.plot([], [], 'k-', lw=1.6, label='the most frequent target, always')
  axes.set_yticks(places, names, fontsize=8)
  axes.set_ylim(len(bars) - 0.4, -0.6)
  axes.set_xlim(0, 107)
  axes.set_xlabel('of 100')
  axes.set_title('Tasks', loc='left')
  axes.grid(axis='x', alpha=0.3)
  axes.spines[['top', 'right']].set_visible(False)
  axes.legend(
    frameon=False, fontsize=8, loc='lower right', bbox_to_anchor=(1, 1)
  )


def _draw_lines(axes, name, steps, constants):
  """One panel: a task's own metrics by step, or its loss where it has none."""
  steps = dict(sorted(steps.items()))
  *_, newest = steps.values()
  names = list(measures.own(newest)) if name != measures.HELD_OUT else []
  for color, metric in zip(_COLORS, names or ['loss']):
    points = [
      (step, metrics[metric])
      for step, metrics in steps.items()
      if evaluate.is_number(metrics.get(metric))
    ]
    axes.plot(*zip(*points), 'o-', color=color, ms=3, lw=1.2, label=metric)
    if evaluate.is_number(constants.get(metric)):
      axes.axhline(constants[metric], color=color, ls=':', lw=1.2)
  axes.set_title(name, loc='left', fontsize=9)
  axes.tick_params(labelsize=7)
  axes.grid(alpha=0.3)
  axes.spines[['top', 'right']].set_visible(False)
  axes.legend(frameon=False, fontsize=7)
  axes.set_xlabel('step', fontsize=8)
