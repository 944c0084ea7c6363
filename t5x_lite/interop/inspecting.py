"""The command `weights`: a table of them, or how those of two places differ."""

from t5x_lite import best
from t5x_lite import checkpoints
from t5x_lite import errors
from t5x_lite.interop import digests
from t5x_lite.interop import listing
from t5x_lite.interop import sources

DIFFERENT = 1  # the exit code, as of diff


def run(path, workdir, step, other, values, with_torch_files, say=print):
  """Prints the tensors at a path, or how they differ from others.

  Args:
    path: of weights, whoever wrote them; or None, and
    workdir: of a run.
    step: of the run, or None for the latest.
    other: a path to compare with, or None.
    values: whether the weights are read for figures.
    with_torch_files: whether pytorch_model.bin may be opened.
    say: prints a line.

  Returns:
    The exit code: DIFFERENT if two are and differ.
  """
  if path and workdir:
    raise errors.ConfigError(
      'a path and --workdir are both given', expected='one of them'
    )
  first = path or workdir
  if first is None:
    raise errors.ConfigError('no weights', expected='a path, or --workdir')
  if step is not None:
    saver = checkpoints.Checkpoints.reader(first)
    first = str(saver.folder / str(best.find(saver, step)))
  found = []
  for place in (first, other):
    if place is not None:
      kind, tensors = sources.open_source(place, with_torch_files)
      if values or other is not None:  # all is read anyhow
        digests.check(place)
      elif digests.listed(place):
        kind += ', not compared with its digests.json: import and --values are'
      say(f'{place}: {kind}')
      found.append(tensors)
  if other is None:
    say(listing.lines(*found, values))
    return 0
  count, text = listing.diff_lines(*found)
  say(text)
  return DIFFERENT if count else 0
