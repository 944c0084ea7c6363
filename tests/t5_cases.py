"""Examples of datasets in their own fields, as plain Python; hand-made.

What T5 makes of them is in golden/t5_tasks.json, by golden/make_t5_tasks.py.
"""

import random

_PAIRS = [
  ('The cat sat.', 'A cat was sitting.'),
  ('  Two  spaces ', 'one\nline\x0b\u00a0more'),
  ("\u201cQuoted\u201d text, isn't it?", '\u00e9t\u00e9 \u4f60\u597d!'),
  ('', 'He said: "no" (twice); a/b [c] {d} ~ ^ | \\ ` @ # $ % & * _ + = < >'),
  ('Price: $3.50', 'It costs 3.5 dollars \U0001f600'),
]


def _pairs(first, second, labels=2, **more):
  """Two texts and a label; the last one's is hidden."""
  found = [
    {first: a, second: b, 'label': n % labels, 'idx': n} | more
    for n, (a, b) in enumerate(_PAIRS)
  ]
  return [*found, found[0] | {'label': -1}]


def _single(name):
  return [
    {name: b, 'label': n % 2, 'idx': n} for n, (_, b) in enumerate(_PAIRS)
  ]


def _wsc(text, at, pronoun, referent, label=1):
  return {
    'text': text,
    'span1_index': 0,
    'span2_index': at,
    'span1_text': referent,
    'span2_text': pronoun,
    'label': label,
    'idx': 7,
  }


_WSC = [
  _wsc('Mitchell asked Tom if he could lend some money.', 4, 'he', 'Tom'),
  _wsc('Mitchell asked Tom if he could lend it.', 4, 'he', 'Mitchell', 0),
  _wsc(
    "Mark  met X and Bob's dog , and fed it  well . ", 10, 'it', "Bob's dog"
  ),
  _wsc('They gave it', 2, 'it', 'the gift', 0),
]
_RECORD = {
  'passage': 'First line.\n@highlight\nSecond\n@highlight\nthird "quote"'
  "\n@highlight\nend?\n@highlight\n\n@highlight\nlast' \\1",
  'query': 'A @placeholder is a bird.',
  'entities': ['penguin', 'potato', 'King \u00d1andu'],
  'answers': ['penguin', 'King \u00d1andu'],
  'idx': {'passage': 3, 'query': 9},
}
_SQUAD = {
  'id': 'a',
  'title': 't',
  'question': 'Who is\u00a0"the  King"?\n',
  'context': 'The king (of  France)\tis bald\x0b; isn\u2019t he?',
  'answers': {
    'text': ['the king (of  France)', 'king'],
    'answer_start': [0, 4],
  },
}


def _texts(first, second):
  return [{first: a, second: b} for a, b in _PAIRS]


def _multirc(question, label):
  return {
    'paragraph': '<b>Sent 1: </b>The dog ran.<br><b>Sent 2: </b>a<br>b </b>',
    'question': 'Who <b>ran</b>?',
    'answer': 'The dog',
    'label': label,
    'idx': {'paragraph': 0, 'question': question, 'answer': 1},
  }


EXAMPLES = {
  'glue_cola_v002': _single('sentence'),
  'glue_sst2_v002': _single('sentence'),
  'glue_mrpc_v002': _pairs('sentence1', 'sentence2'),
  'glue_qqp_v002': _pairs('question1', 'question2'),
  'glue_stsb_v002': [
    {'sentence1': a, 'sentence2': b, 'label': label, 'idx': 0}
    for (a, b), label in zip(
      _PAIRS * 3,
      (
        0,
        5,
        3.8,
        2.5,
        0.1,
        0.3,
        4.9,
        1.7,
        2.667,
        3.1,
        4.091,
        0.7,
        1.1,
        2.1,
        4.3,
      ),
    )
  ],
  'glue_mnli_v002': _pairs('premise', 'hypothesis', 3),
  'glue_mnli_mismatched_v002': _pairs('premise', 'hypothesis', 3),
  'glue_mnli_matched_v002': _pairs('premise', 'hypothesis', 3),
  'glue_qnli_v002': _pairs('question', 'sentence'),
  'glue_rte_v002': _pairs('sentence1', 'sentence2'),
  'glue_wnli_v002': _pairs('sentence1', 'sentence2'),
  'glue_ax_v002': _pairs('premise', 'hypothesis', 3),
  'super_glue_boolq_v102': _pairs('question', 'passage'),
  'super_glue_cb_v102': _pairs('premise', 'hypothesis', 3),
  'super_glue_copa_v102': _pairs(
    'premise', 'choice1', choice2='It rained.', question='effect'
  ),
  'super_glue_rte_v102': _pairs('premise', 'hypothesis'),
  'super_glue_wic_v102': _pairs(
    'sentence1', 'sentence2', word='run', start1=0, end1=3, start2=1, end2=2
  ),
  'super_glue_axb_v102': _pairs('sentence1', 'sentence2'),
  'super_glue_axg_v102': _pairs('premise', 'hypothesis'),
  'super_glue_multirc_v102': [
    _multirc(question, label)
    for question, label in ((0, 1), (0, 0), (1, 1), (2, 0), (2, 1))
  ],
  'super_glue_record_v102': [
    _RECORD,
    _RECORD | {'answers': ['potato'], 'idx': {'passage': 3, 'query': 10}},
  ],
  'super_glue_wsc_v102_simple_train': _WSC,
  'super_glue_wsc_v102_simple_eval': _WSC,
  'dpr_v001_simple': [
    {
      'sentence': sentence,
      'pronoun': pronoun,
      'candidates': ['Bob', 'Tom'],
      'label': label,
    }
    for sentence, pronoun, label in (
      ('Bob asked Tom if he can lend some money.', 'he', 0),
      ('Bob hates Tom and tells him, when he can.', 'him', 1),
      ('Then they left, they said. Nobody saw them.', 'they', 0),
      ('No such word', 'it', 1),
    )
  ],
  'squad_v010_allanswers': [
    _SQUAD,
    _SQUAD | {'question': '', 'answers': {'text': ['An apple, the pear.']}},
    _SQUAD | {'answers': {'text': ['IS  bald']}},
  ],
  'squad_v010_context_free': [_SQUAD],
  'cnn_dailymail_v002': [
    {'article': a * 3 + ' .', 'highlights': f'{b} . The {a} . end .'}
    for a, b in _PAIRS
  ],
  'wmt14_ende_v003': _texts('en', 'de'),
  'wmt14_enfr_v003': _texts('en', 'fr'),
  'wmt15_enfr_v003': _texts('en', 'fr'),
  'wmt16_enro_v003': _texts('en', 'ro'),
  'wmt19_ende_v003': _texts('en', 'de'),
  'wmt_t2t_ende_v003': _texts('en', 'de'),
}


def predictions(targets):
  """What a model might say: right, another target, noise, right but loud."""
  says = (
    lambda n: targets[n],
    lambda n: targets[(n + 1) % len(targets)],
    lambda n: 'no such thing',
    lambda n: f'the {targets[n].upper()} .',
    lambda n: targets[n],
    lambda n: '',
  )
  return [says[n % len(says)](n) for n in range(len(targets))]


def random_text(rng):
  """Text that is hard on patterns."""
  words = (
    'the',
    'a',
    'An',
    'it',
    'he',
    ' ',
    '\n@highlight\n',
    '."\n@highlight\n',
    '<br>',
    '<b>',
    '</b>',
    '!',
    '\t',
    '\x0b',
    '\u00a0',
    '\u2019',
    '\u3002\u597d',
    "don't",
    '$1\\1',
    'X',
    ' . ',
    '3.5',
  )
  return ' '.join(rng.choice(words) for _ in range(rng.randrange(1, 12)))


def shaken(example, rng):
  """An example with other texts; where texts must fit others, the same."""
  fixed = {'pronoun', 'span2_text', 'word'}
  found = {
    name: random_text(rng)
    if isinstance(value, str) and name not in fixed
    else value
    for name, value in example.items()
  }
  if 'text' in example:  # of WSC
    words = random_text(rng).split(' ')
    words.insert(rng.randrange(1, 1 + len(words)), 'he')
    place = words.index('he', 1) if 'he' in words[1:] else 1
    found |= {'text': ' '.join(words), 'span2_index': place}
    found['span2_text'] = words[place]
  if isinstance(example.get('answers'), list):
    found['answers'] = [random_text(rng) for _ in range(rng.randrange(4))]
    found['entities'] = [random_text(rng) for _ in range(3)]
  if isinstance(example.get('answers'), dict):
    found['answers'] = {'text': [random_text(rng) for _ in range(2)]}
  if isinstance(example.get('label'), float):
    found['label'] = rng.uniform(0, 5)
  return found


def random_examples(seed, count=4):
  """{task: examples} like EXAMPLES, other ones for each seed."""
  rng = random.Random(seed)
  return {
    name: [shaken(rng.choice(examples), rng) for _ in range(count)]
    for name, examples in EXAMPLES.items()
  }


_ANSWERS = [
  ['The Beatles', 'Beatles'],
  ['1,234'],
  ['an "odd" one`s'],
  ['x'],
  [''],
]
_SAID = ['beatles!', '1 234', 'odd ones', 'y x', 'the']
_LABELS = [0, 1, 1, 0, 1, 1], [0, 1, 0, -1, 1, 5]
_NUMBERS = [0.2, 1.0, 4.8, 3.0], [0.4, -1.0, 4.0, 3.2]
_LINES = (
  ['The quick brown fox .', 'Hello there . General', 'a b c d e f'],
  ['The quick fox .', 'General . Hello there', 'a b c x e f'],
)
# Name of ours: (T5's, targets, predictions).
METRICS = {
  'accuracy': ('accuracy', *_LABELS),
  'f1': ('f1_score_with_invalid', *_LABELS),
  'pearson': ('pearson_corrcoef', *_NUMBERS),
  'spearman': ('spearman_corrcoef', *_NUMBERS),
  'sequence_accuracy': ('sequence_accuracy', ['a', 'b '], ['a', 'b']),
  'bleu': ('bleu', *_LINES),
  'rouge': ('rouge', *_LINES),
  'squad': ('squad', _ANSWERS, _SAID),
  'trivia_qa': ('trivia_qa', _ANSWERS, _SAID),
}
