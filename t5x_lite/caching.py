"""The command that tokenises what a run learns from, and tells how it went."""

import signal
import time

from t5x_lite import data
from t5x_lite import errors
from t5x_lite import fit
from t5x_lite import show


def run(spec, count=None, runner=None, say=print):
  """Makes the stores of a run, where there are none, and shows them.

  Args:
    spec: specs.Run.
    count: processes that make them; None: as many as cores are of use.
    runner: what makes them do it, as of data.open_or_build.
    say: prints a line.
  """
  vocabulary = data.load_vocabulary(spec.data)
  data.check(spec, vocabulary)
  if spec.data.stream:
    raise errors.ConfigError(
      'Data.stream stores nothing, and cache is to',
      fix='--gin.Data.stream=False',
    )
  old = signal.signal(signal.SIGTERM, _leave)
  try:
    started = time.monotonic()
    stores = fit.open_stores(spec, vocabulary, say, count, runner)
    seconds = time.monotonic() - started
  finally:
    signal.signal(signal.SIGTERM, old)
  show.table(table(stores))
  for line in summary(stores, seconds):
    say(line)


def _leave(*_):
  raise SystemExit(errors.PREEMPTED)


def table(stores):
  """The rows of a table of the splits of stores, headed."""
  rows = [('data', 'split', 'examples', 'tokens', 'unknown', 'bytes', 'shards')]
  for name, store in stores.items():
    for split, entry in store.manifest['splits'].items():
      found = store.split(split)
      pairs = 'pairs' in entry['arrays']
      shards = [
        x for array in entry['arrays'].values() for x in array['shards']
      ]
      rows.append(
        (
          name,
          split,
          f'{found.num_pairs:,} pairs'
          if pairs
          else f'{found.num_documents:,} documents',
          f'{found.num_tokens:,}',
          f'{found.unknown / max(found.num_tokens, 1):.2%}',
          f'{sum(shard["bytes"] for shard in shards):,}',
          f'{len(shards):,}',
        )
      )
  return rows


def summary(stores, seconds):
  """Lines on what was read, where it lies now, and how fast that went."""
  size = tokens = 0
  for name, store in stores.items():
    read = store.manifest['read']
    size += read['bytes'] / 1e6
    tokens += sum(
      store.split(split).num_tokens for split in store.manifest['splits']
    )
    yield (
      f'{name}: {read["bytes"] / 1e6:,.1f} MB of text, {read["blank"]:,} blank '
      f'documents, {read["bad_lines"]:,} lines not UTF-8; in {store.folder}'
    )
  yield (
    f'{seconds:,.1f} s, {size / seconds:,.1f} MB/s, '
    f'{tokens / seconds:,.0f} tokens/s'
  )
