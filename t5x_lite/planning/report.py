"""The figures of a plan as text."""

from t5x_lite import show

_GIB = 2**30
_BAR = 30  # characters
PARTS = {  # of a step's seconds
  'compute': 'matrix products',
  'memory': 'memory',
  'exposed': 'waiting for exchanges',
  'overhead': 'starting operations',
}


def tell(figures, say=print):
  """Prints a plan, as figures.of gave it."""
  mesh = ', '.join(f'{k} {n}' for k, n in figures['mesh'].items() if n > 1)
  say(f'{figures["accelerator"]}; mesh: {mesh or "one device"}')
  if figures['level'] == 'analytic':
    _analytic(figures, say)
    return
  if not figures['fits']:
    much = figures['too_much']
    over = much['needed'] - much['available']
    say(
      f'does not fit: needs {gib(much["needed"])} of a chip that gives '
      f'{gib(much["available"])}{_taken(figures)}: over by {gib(over)}; by '
      'estimate'
    )
    _bars(figures['estimate']['families'], say)
    say(f'the nearest change that fits by estimate: {figures["fix"]}')
    _unsharded(figures, say)
    return
  _memory(figures, say)
  _unsharded(figures, say)
  _work(figures, say)
  _exchanged(figures, say)
  _time(figures, say)
  for note in figures['notes']:
    say(note)
  if figures['level'] == 'fast':
    say(
      'compiled in haste: memory is an upper bound as a rule, and times are '
      'longer than those of a program for training'
    )
  compile_ = figures['compile']
  kept = ' (kept from before)' if compile_['cached'] else ''
  say(
    f'compiled in {compile_["seconds"]:.0f} s, {compile_["cpu_seconds"]:.0f} '
    f's of CPU, {gib(compile_["rss"])}{kept}'
  )


def _analytic(figures, say):
  memory = figures['memory']
  verb = 'fits' if figures['fits'] else 'does not fit'
  say(
    f'\n{verb} by estimate: {gib(memory["peak"])} of {gib(figures["hbm"])}'
    f'{_taken(figures)} a chip, the most in the {memory["at"]}; in the '
    f'cases that were tried the estimate was within {memory["error"]:.0%}'
  )
  _bars(memory['families'], say)
  _unsharded(figures, say)
  whole = figures['flops']['model_attention_whole']
  say(
    f'\narithmetic a chip: {whole / 1e12:.3g} TFLOP of the model\n'
    'not compiled: whether it can be divided so, what is exchanged, what remat '
    'and padding add and how long a step takes are not known'
  )
  for note in figures.get('notes', ()):
    say(note)


def gib(size):
  """Bytes as GiB, or as MiB if they are few."""
  if size < 0.1 * _GIB:
    return f'{size / 2**20:.1f} MiB'
  return f'{size / _GIB:.2f} GiB'


def _taken(figures):
  """Of what memory it is that JAX takes no more of a GPU."""
  if figures['hbm'] == figures['hbm_whole']:
    return ''
  return f' that JAX takes of {gib(figures["hbm_whole"])}'


def _unsharded(figures, say):
  """What lies whole on each chip."""
  if figures['unsharded']:
    say('')
  for line in figures['unsharded']:
    say(line)


def _rows(rows, right):
  """As show.lines, without blanks at the end of lines."""
  lines = show.lines(rows, right=right).splitlines()
  return '\n'.join(line.rstrip() for line in lines)


def bound(figures):
  """What a step spends most of its time on."""
  return PARTS[max(PARTS, key=lambda name: figures['times'][name])]


def _memory(figures, say):
  memory = figures['memory']
  share = memory['peak'] / figures['hbm']
  say(
    f'\nfits: {gib(memory["peak"])} of {gib(figures["hbm"])}'
    f'{_taken(figures)} a chip ({share:.0%})'
    + (f', the most at {memory["at"]}' if memory['at'] else '')
  )
  _bars(memory['families'], say)
  say('\nthe largest then')
  rows = [
    (gib(b['bytes']), b['array'], b['family'], b['source'], b['tensor'])
    for b in memory['buffers']
  ]
  say(_rows(rows, right=0))


def _bars(families, say):
  most = max(families.values()) or 1
  rows = [
    (name, gib(size), '#' * round(_BAR * size / most))
    for name, size in families.items()
    if size
  ]
  say(_rows(rows, right=0))


def _work(figures, say):
  work = figures['flops']
  say(
    f'\narithmetic a chip: {work["model_attention_whole"] / 1e12:.3g} TFLOP '
    f'of the model, {work["compiled"] / 1e12:.3g} compiled: '
    f'{work["ratio"]:.3f} times; HBM {work["hbm_bytes"] / 1e9:.4g} GB'
  )
  if figures['unknown_loops']:
    loops = ', '.join(figures['unknown_loops'])
    say(f'loops of an unknown number of turns, counted once: {loops}')


def _exchanged(figures, say):
  found = [e for e in figures['collectives'] if e['bytes'] >= 1e3]
  if not found:
    return
  rows = [('exchanged', 'over', 'by', 'times', 'GB sent', 'ms', 'hidden', '')]
  for e in found:
    strange = e['unexpected_bytes']
    rows.append(
      (
        e['kind'],
        ' '.join(e['axes']),
        e['network'],
        f'{e["count"]:,}',
        f'{e["bytes"] / 1e9:.3f}',
        f'{e["seconds"] * 1e3:.1f}',
        f'{e["hidden_bytes"] / e["bytes"]:.0%}',
        f'NOT IN THE DESIGN: {strange / 1e9:.3f} GB, {e["source"]}'
        if strange
        else '',
      )
    )
  say('\n' + _rows(rows, right=1))


def _time(figures, say):
  times, seconds = figures['times'], figures['seconds']
  parts = {name: times[name] for name in PARTS}
  said = ', '.join(
    f'{PARTS[name]} {part / seconds:.0%}' for name, part in parts.items()
  )
  say(f'\npredicted step: {seconds * 1e3:.1f} ms: {said}')
  say(f'bound by {bound(figures)}')
  say(
    f'predicted MFU {figures["mfu"]:.1%} ({figures["mfu_attention_whole"]:.1%} '
    f'with causal attention whole), {figures["tokens_per_second"]:,.0f} '
    f'tokens/s, {figures["days"]:.2f} days'
  )
  if figures.get('dollars', 0) >= 1:
    price = figures['price']
    said = ', '.join(str(price[k]) for k in ('region', 'as_of') if price[k])
    say(
      f'predicted cost ${figures["dollars"]:,.0f}, at ${price["usd"]:.2f} per '
      f'chip and hour on demand ({said or "of unknown day"}; {price["source"]})'
    )
