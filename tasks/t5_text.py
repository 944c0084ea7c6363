"""Examples of datasets as T5's pairs of texts, arXiv:1910.10683 appendix D.

A function takes an example of plain Python values, named as TensorFlow Datasets
does, and yields pairs: dicts of str and of lists of str, as of
data.definitions.Definition. Spaces and wording are those of the `t5` package.
"""

import re
import string

import numpy as np

from t5x_lite import errors

UNKNOWN = '<unk>'  # the target where a label is hidden
_SPACES = re.compile('[\t\n\f\r ]+')
_PUNCTUATION = re.compile(f'([{re.escape(string.punctuation)}])')
_LANGUAGES = {
  'cs': 'Czech',
  'de': 'German',
  'en': 'English',
  'fi': 'Finnish',
  'fr': 'French',
  'ro': 'Romanian',
  'ru': 'Russian',
  'zh': 'Chinese',
}


def _named(label, labels):
  """A label as text; -1 is a hidden one."""
  if label == -1:
    return UNKNOWN
  if not 0 <= label < len(labels):
    raise errors.DataError(
      'a label is none of its dataset',
      got=label,
      expected=f'0 to {len(labels) - 1}, or -1 where it is hidden',
    )
  return labels[label]


def fields(example, benchmark, names, labels):
  """'rte sentence1: ... sentence2: ...', and the label as a word.

  Args:
    example: as TFDS has it.
    benchmark: the word that tells the task.
    names: of the fields, in order.
    labels: words.
  """
  parts = [f'{name}: {example[name]}' for name in names]
  yield {
    'inputs': ' '.join([benchmark, *parts]),
    'targets': _named(example['label'], labels),
  }


def multirc(example, labels):
  """As `fields`, without mark-up, and which question it is."""
  names = ('question', 'answer', 'paragraph')
  [pair] = fields(example, 'multirc', names, labels)
  text = pair['inputs'].replace('<br>', ' ')
  group = str(example['idx']['question'])
  yield pair | {'inputs': re.sub('</?b>', '', text), 'group': group}


def diagnostic(example, labels):
  """SuperGLUE's broad-coverage diagnostics in the words of its entailment."""
  renamed = {
    'premise': example['sentence1'],
    'hypothesis': example['sentence2'],
    'label': example['label'],
  }
  yield from fields(renamed, 'rte', ('hypothesis', 'premise'), labels)


def stsb(example):
  """A similarity of 0 to 5 as the text of the nearest fifth: '3.4'."""
  fifths = np.round(np.float32(example['label']) * np.float32(5))
  yield {
    'inputs': f'stsb sentence1: {example["sentence1"]} '
    f'sentence2: {example["sentence2"]}',
    'targets': f'{fifths / np.float32(5):.1f}',
  }


def record(example):
  """A pair for each answer of a query; the answers, and which query it is."""
  passage = re.sub(
    '([.?!"\'])\n@highlight\n', r'\1 ', example['passage']
  ).replace('\n@highlight\n', '. ')
  entities = ', '.join(example['entities'])
  idx = example['idx']
  for answer in example['answers'] or [UNKNOWN]:
    yield {
      'inputs': f'record query: {example["query"]} entities: {entities} '
      f'passage: {passage}',
      'targets': answer,
      'answers': example['answers'],
      'group': f'{idx["passage"]} {idx["query"]}',
    }


def _gap(example):
  """A text of WSC with X for the pronoun.

  Where the pronoun does not stand in the place that is said, it is the nearest
  word that is the pronoun but for punctuation, which is set off then: so with
  two examples of WSC, as T5 mends them.
  """
  words, at = example['text'].split(' '), example['span2_index']
  pronoun = example['span2_text']
  if not 0 < at < len(words):
    raise errors.DataError(
      'the place of a pronoun is not in its text',
      got=at,
      expected=f'1 to {len(words) - 1}',
    )
  if words[at] == pronoun:
    return ' '.join([*words[:at], 'X', ' '.join(words[at + 1 :])])
  like = re.compile(re.escape(pronoun) + r'(\W*)')
  places = [n for n, word in enumerate(words) if like.fullmatch(word)]
  if not places:
    raise errors.DataError(
      'a pronoun is not in its text',
      got=pronoun,
      expected=f'a word of {example["text"]!r}',
    )
  at = min(places, key=lambda n: abs(n - at))
  after = like.fullmatch(words[at])[1]
  inner = ['X', after] if after else ['X']
  return ' '.join([*words[:at], *inner, *words[at + 1 :]]).strip()


def wsc(example, only_right):
  """'wsc: ... *he* ...', and what the pronoun is said to stand for.

  Args:
    example: as TFDS has it.
    only_right: leaves out what it does not stand for, as for training.
  """
  if only_right and not example['label']:
    return
  pronoun = f' *{example["span2_text"]}* '
  yield {
    'inputs': f'wsc: {_gap(example).replace(" X ", pronoun)}',
    'targets': example['span1_text'],
    'label': str(example['label']),
  }


def pronoun_resolution(example):
  """The first place of a pronoun is marked, as in `wsc`; its referent."""
  pronoun = re.compile(f' ({example["pronoun"]})([ .,])')
  yield {
    'inputs': 'wsc: ' + pronoun.sub(r' *\1*\2', example['sentence'], count=1),
    'targets': example['candidates'][example['label']],
  }


def _spaced(text):
  """Punctuation between spaces, each run of spaces one."""
  return _SPACES.sub(' ', _PUNCTUATION.sub(r' \1 ', text))


def squad(example, context=True):
  """A question, with the paragraph that answers it or without; all answers."""
  answers = [_spaced(text) for text in example['answers']['text']]
  parts = (
    ['question:', _spaced(example['question'])]
    + ['context:', _spaced(example['context'])]
    if context
    else ['squad trivia question:', _spaced(example['question'])]
  )
  if not answers:
    raise errors.DataError('a question has no answer', got=example['question'])
  yield {
    'inputs': _SPACES.sub(' ', ' '.join(parts)),
    'targets': answers[0],
    'answers': answers,
  }


def summary(example, document, summary):
  """'summarize: ...' of two fields."""
  yield {
    'inputs': f'summarize: {example[document]}',
    'targets': example[summary],
  }


def translation(example, source, target):
  """'translate English to German: ...' of two codes of languages."""
  yield {
    'inputs': f'translate {_LANGUAGES[source]} to {_LANGUAGES[target]}: '
    f'{example[source]}',
    'targets': example[target],
  }
