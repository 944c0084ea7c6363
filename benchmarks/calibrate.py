"""Predicted step times against published ones, of `calibration/published.json`.

Compiles each run that is named, or those of RUNS, once; needs libtpu, and
some minutes for each.
"""

import json
import pathlib
import sys

from t5x_lite import accelerators
from t5x_lite import config
from t5x_lite import show
from t5x_lite.planning import compiling
from t5x_lite.planning import figures

HOME = pathlib.Path(__file__).parent / 'calibration'
RUNS = (
  'maxtext_22b_v4_128',
  'maxtext_52b_v4_384',
  'maxtext_32b_v5e_256',
  'maxtext_32b_v5p_128',
  'maxtext_128b_v5p_256',
  'llama2_70b_v5p_1024',
)
FEWER = (), ('Run.microbatches=2',), ('Run.microbatches=4',)


def plan(published):
  """(figures, microbatches) of a run; as few microbatches as fit.

  What others keep of a layer under names of their own is less than our 'dots'.
  """
  accelerator = accelerators.parse(published['topology'])
  for more in FEWER:
    run = config.load(
      [str(HOME / published['recipe'])], [*published['overrides'], *more]
    )
    compiled = compiling.compile(run, accelerator)
    if compiled.module is not None:
      return figures.of(run, accelerator, compiled), run.microbatches
  return None, None


def main(names):
  runs = {
    run['name']: run
    for run in json.loads((HOME / 'published.json').read_text())['runs']
  }
  rows = [
    (
      'run',
      'published s',
      'predicted s',
      'error',
      'their remat',
      'microbatches',
    )
  ]
  wrong = []
  for name in names or RUNS:
    published = runs[name]
    found, parts = plan(published)
    if found is None:
      rows.append(
        (name, f'{published["seconds"]:.2f}', 'too large', '', '', '')
      )
      continue
    error = found['seconds'] / published['seconds'] - 1
    wrong.append(abs(error))
    rows.append(
      (
        name,
        f'{published["seconds"]:.2f}',
        f'{found["seconds"]:.2f}',
        f'{error:+.1%}',
        published['remat'],
        str(parts),
      )
    )
    print(show.lines([rows[-1]]), flush=True)
  show.table(rows, right=5)
  print(f'mean error without its sign: {sum(wrong) / len(wrong):.1%}')


if __name__ == '__main__':
  main(sys.argv[1:])
