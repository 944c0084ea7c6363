"""The questions of the game quiz, with all answers that count as right.

In a text `|` is between alternatives, `{}` about what may be left out and `[]`
about alternatives within; a backslash keeps the next character as it is.
"""

import re

from t5x_lite.tasks import readers

# Drills without an end, and notations of editors, Greek and spelling.
_DRILLS = frozenset(
  ('arith', 'ed', 'greek', 'morse', 'mult', 'posneg', 'spell')
)
_DRILLS |= {'seq-easy', 'seq-hard'}
_MOST = 64  # texts that an answer may stand for


def questions(texts):
  """The first column asks for each other one; a line is a document."""
  columns = {}
  for line in _lines(texts.read('index').decode()):
    path, *names = _columns(line)
    columns[path.rsplit('/', 1)[-1]] = names
  for name in sorted(set(columns) - _DRILLS):
    found = {}  # the same question may have several lines
    for line in _lines(texts.read(name).decode()):
      subject, *answers = _columns(line)
      for label, answer in zip(columns[name][1:], answers):
        kind = f'{_shown(columns[name][0])}: {_shown(subject)}'
        right = found.setdefault((kind, _shown(label)), {})
        right |= dict.fromkeys(expand(answer)[:_MOST])
    for (kind, label), right in found.items():
      right = [x for x in right if x]
      if right:
        yield readers.Row(
          f'{name} {kind.lower()}',
          f'{kind}; {label}?',
          _plainest(right),
          {'answers': right},
        )


def _lines(text):
  return [x for x in text.replace('\\\n', '').splitlines() if x]


def _columns(line):
  return re.split(r'(?<!\\):', line)


def _shown(text):
  return _plainest(expand(text))


def _plainest(texts):
  """The longest of those without marks that stand for accents."""
  return min(texts, key=lambda x: (sum(map(x.count, '^\'"`~')), -len(x)))


def expand(text):
  """Every text that one of this notation stands for, in its order."""
  found, _ = _alternatives(re.findall(r'\\.|[^\\]', text))
  found = list(dict.fromkeys(map(readers.plain, found)))
  # Some strike a letter over another one, for terminals of old.
  return [x for x in found if '\b' not in x] or found


def _alternatives(characters):
  """(texts, what is left) up to a bracket that closes."""
  done, made = [], ['']
  while characters:
    first, *characters = characters
    if first in ']}':
      break
    if first == '|':
      done, made = done + made, ['']
    elif first in '[{':
      inner, characters = _alternatives(characters)
      if first == '{':
        inner = [*inner, '']
      made = [x + y for x in made for y in inner][:_MOST]
    else:
      made = [x + first.removeprefix('\\') for x in made]
  return done + made, characters
