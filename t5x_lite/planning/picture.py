"""A plan as a picture: memory by family, and what the step's time goes into."""

import io

from t5x_lite import storage
from t5x_lite.planning import report

_GIB = 2**30


def draw(figures, file):
  """Draws a plan.

  Args:
    figures: as of figures.of, or figures.without.
    file: path of the PNG.
  """
  from matplotlib import figure

  rows = 2 if 'times' in figures else 1
  picture = figure.Figure(
    figsize=(9, 1.9 * rows + 0.4), dpi=120, layout='constrained'
  )
  axes = picture.subplots(rows, 1, squeeze=False)[:, 0]
  families = {
    k: v / _GIB for k, v in figures['memory']['families'].items() if v
  }
  _stack(axes[0], families, '{:.2f}')
  usable = figures['hbm'] / _GIB
  axes[0].axvline(usable, color='black', ls='--', lw=1)
  axes[0].set_title(
    f'GiB of a chip when most is taken; dashed: the {usable:.2f} that it gives',
    loc='left',
    fontsize=9,
  )
  if rows > 1:
    parts = {
      report.PARTS[k]: figures['times'][k] * 1e3
      for k in report.PARTS
      if figures['times'][k]
    }
    _stack(axes[1], parts, '{:.1f}')
    axes[1].set_title(
      f'predicted ms of a step; MFU {figures["mfu"]:.1%}',
      loc='left',
      fontsize=9,
    )
  picture.suptitle(figures['accelerator'], fontsize=10)
  content = io.BytesIO()
  picture.savefig(content, format='png')
  storage.write_bytes(storage.path(file), content.getvalue())


def _stack(axes, parts, text):
  """One bar of {name: length}, each part named where it is wide enough."""
  total, start = sum(parts.values()), 0.0
  for name, length in parts.items():
    bar = axes.barh(0, length, left=start, height=0.6, label=name)
    if length > 0.06 * total:
      axes.bar_label(
        bar, [text.format(length)], label_type='center', fontsize=8
      )
    start += length
  axes.set_yticks([])
  axes.set_ylim(-0.4, 0.9)
  axes.tick_params(labelsize=8)
  axes.spines[['top', 'right', 'left']].set_visible(False)
  axes.legend(
    frameon=False,
    fontsize=7,
    ncols=len(parts),
    loc='upper left',
    handlelength=1,
  )
