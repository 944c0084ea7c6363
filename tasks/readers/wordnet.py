"""WordNet's synsets: their words, definitions, examples and hypernyms."""

import collections
import itertools
import re
from typing import NamedTuple

from t5x_lite.tasks import readers

_POS = {'n': 'noun', 'v': 'verb', 'a': 'adjective', 's': 'adjective'}
_POS |= {'r': 'adverb'}
_ENDINGS = r"(?:s|es|d|ed|ing|'s)?"
_PAIRS = 4  # of a word, of either label, at most


class Synset(NamedTuple):
  """Words of one meaning."""

  key: str  # unique
  pos: str
  words: tuple[str, ...]
  definition: str
  examples: tuple[str, ...]
  hypernyms: tuple[str, ...]  # keys


def synsets(texts):
  """Every Synset, in the order of the files."""
  for name in sorted(texts.namelist()):
    for line in texts.read(name).decode().splitlines():
      if line.startswith(' '):
        continue  # the licence
      fields, _, gloss = line.partition(' | ')
      offset, _, pos, count, *rest = fields.split()
      count = int(count, 16)
      words = [
        re.sub(r'\(\w+\)$', '', x).replace('_', ' ')
        for x in rest[: 2 * count : 2]
      ]
      links = rest[2 * count + 1 :]
      above = [
        f'n{links[n + 1]}'
        for n in range(0, 4 * int(rest[2 * count]), 4)
        if links[n] == '@' and links[n + 2] == 'n'
      ]
      parts = re.findall(r'"([^"]+)"', gloss)
      meaning = re.sub(r'"[^"]*"?', '', gloss).strip(' ;:,-')
      yield Synset(
        f'{pos}{offset}',
        _POS[pos],
        tuple(dict.fromkeys(words)),
        readers.plain(re.sub(r'(\s*;)+(?=\s*(;|$))', '', meaning)),
        tuple(map(readers.plain, parts)),
        tuple(above),
      )


def definitions(texts):
  """A definition as inputs, a word as targets; all of its words are right."""
  for synset in synsets(texts):
    answers = list(synset.words)
    yield readers.Row(
      answers[0].lower(),
      f'which {synset.pos} means: {synset.definition}?',
      answers[0],
      {'answers': answers},
    )


def entailments(texts):
  """Whether each thing that the first noun names is one that the second does.

  It is where the second is a direct hypernym. Where not, it is the other way
  round, or the first is below another of the second's own kind. All pairs with
  a word above are a document: what is often above is not learned from others.
  """
  nouns = {x.key: x for x in synsets(texts) if x.pos == 'noun'}
  below = collections.defaultdict(list)
  for synset in nouns.values():
    for key in synset.hypernyms:
      below[key].append(synset.key)
  known = set()  # pairs in either order
  for key, children in below.items():
    above = nouns[key].words[0]
    kinds = [x for up in nouns[key].hypernyms for x in below[up] if x != key]
    cousins = [x for kind in kinds for x in below.get(kind, ())]
    for child in children:
      word, throw = nouns[child].words[0], readers.share(f'{key} {child}', 4)
      first, second = (above, word) if throw == 2 else (word, above)
      if throw == 3 and cousins:
        number = readers.share(f'cousin {key} {child}', len(cousins))
        first = nouns[cousins[number]].words[0]
      elif throw == 3:
        first, second = above, word
      pair = frozenset((first.lower(), second.lower()))
      if len(pair) < 2 or pair in known:
        continue
      known.add(pair)
      label = 'entailment' if throw < 2 else 'not_entailment'
      yield readers.Row(above.lower(), f'word1: {first} word2: {second}', label)


def contexts(texts):
  """Whether a word means the same in two of WordNet's own examples.

  As in WiC, arXiv:1808.09121. Of each word as many pairs of either kind; a
  sentence belongs to one word, and all pairs of a word are one document.
  """
  uses = collections.defaultdict(list)  # {(word, pos): [(synset, sentence)]}
  owner = {}
  for synset in synsets(texts):
    for sentence in synset.examples:
      for word in synset.words:
        form = rf'\b{re.escape(word)}{_ENDINGS}\b'
        if re.search(form, sentence, re.I) and len(sentence.split()) > 2:
          if owner.setdefault(sentence.lower(), word) == word:
            uses[word, synset.pos].append((synset.key, sentence))
          break
  for (word, pos), found in uses.items():
    kinds = {'True': [], 'False': []}
    for (a, one), (b, two) in itertools.combinations(found, 2):
      if one != two:
        kinds[str(a == b)].append((one, two))
    count = min(_PAIRS, *map(len, kinds.values()))
    for label, pairs in kinds.items():
      pairs.sort(key=lambda x: readers.share(' '.join(x), 1 << 32))
      for one, two in pairs[:count]:
        inputs = f'sentence1: {one} sentence2: {two} {pos}: {word}'
        yield readers.Row(word.lower(), inputs, label)
