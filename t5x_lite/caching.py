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
  old = signal.signal(signal.SIGTERM, _leave)
  try:
    started = time.monotonic()
    store = fit.open_store(spec, vocabulary, say, count, runner)
    seconds = time.monotonic() - started
  finally:
    signal.signal(signal.SIGTERM, old)
  show.table(table(store))
  say(rates(store, seconds))


def _leave(*_):
  raise SystemExit(errors.PREEMPTED)


def table(store):
  """The rows of a table of a store's splits, headed."""
  rows = [('split', 'documents', 'tokens', 'unknown', 'bytes', 'shards')]
  for name, entry in store.manifest['splits'].items():
    split = store.split(name)
    pairs = 'pairs' in entry['arrays']
    shards = [x for part in entry['arrays'].values() for x in part['shards']]
    rows.append(
      (
        name,
        f'{split.num_pairs:,} pairs' if pairs else f'{split.num_documents:,}',
        f'{split.num_tokens:,}',
        f'{split.unknown / max(split.num_tokens, 1):.2%}',
        f'{sum(shard["bytes"] for shard in shards):,}',
        f'{len(shards):,}',
      )
    )
  return rows


def rates(store, seconds):
  """A line on what was read, and how fast."""
  read = store.manifest['read']
  tokens = sum(
    entry['arrays']['tokens']['length']
    for entry in store.manifest['splits'].values()
  )
  megabytes = read['bytes'] / 1e6
  return (
    f'{megabytes:,.1f} MB of text, {read["blank"]:,} blank documents, '
    f'{read["bad_lines"]:,} lines not UTF-8; {seconds:,.1f} s, '
    f'{megabytes / seconds:,.1f} MB/s, {tokens / seconds:,.0f} tokens/s: '
    f'{store.folder}'
  )
