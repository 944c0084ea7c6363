"""Supervised tasks of packages that registries hold, and a mixture of them all.

Real texts, in the place of benchmarks that can't be had offline; none is one of
those, and no figure is comparable with theirs. See docs/offline_tasks.md.
"""

import functools
import importlib
from typing import NamedTuple

from t5x_lite.data import definitions
from t5x_lite.tasks import answers
from t5x_lite.tasks import fetched
from t5x_lite.tasks import metrics
from t5x_lite.tasks import readers

_SPLITS = ('train', 'validation', 'test')
_ACCURACY = (metrics.accuracy,)
_TRANSLATION = (metrics.bleu, metrics.chrf)
_QUESTIONS = (metrics.trivia_qa,)
_BOOLEAN = ('False', 'True')
_PARAPHRASE = ('not_equivalent', 'equivalent')
_ENTAILMENT = ('entailment', 'not_entailment')


class Task(NamedTuple):
  """What a task is made of.

  Attributes:
    thing: of fetched.THINGS.
    reader: module of readers and its function, with its further arguments.
    prefix: before all inputs.
    metrics: of tasks/metrics.py.
    labels: the targets, where they are few; metrics get their numbers.
  """

  thing: str
  reader: tuple[str, ...]
  prefix: str
  metrics: tuple
  labels: tuple[str, ...] = ()


def _translation(language, code):
  return Task(
    'libreoffice',
    ('help_pages', 'pairs', code),
    f'translate English to {language}: ',
    (metrics.chinese_bleu if code == 'zh-CN' else metrics.bleu, metrics.chrf),
  )


TASKS = {
  'reviews_sentiment': Task(
    'reviews',
    ('reviews', 'english'),
    'reviews_sentiment review: ',
    _ACCURACY,
    ('other', 'great'),
  ),
  'spam': Task(
    'spam',
    ('mail', 'spam'),
    'spam ',
    (metrics.f1, metrics.accuracy),
    ('ham', 'spam'),
  ),
  'ddtp_summarize': Task(
    'descriptions',
    ('debian', 'summaries'),
    'summarize: ',
    (metrics.rouge,),
  ),
  'lo_en_de': _translation('German', 'de'),
  'lo_en_fr': _translation('French', 'fr'),
  'lo_en_zh': _translation('Chinese', 'zh-CN'),
  'bible_en_es': Task(
    'bibles',
    ('bible', 'translations'),
    'translate English to Spanish: ',
    _TRANSLATION,
  ),
  'kjv_web_paraphrase': Task(
    'bibles',
    ('bible', 'paraphrases'),
    'kjv_web_paraphrase ',
    (metrics.f1, metrics.accuracy),
    _PARAPHRASE,
  ),
  'wn_wic': Task(
    'wordnet', ('wordnet', 'contexts'), 'wn_wic ', _ACCURACY, _BOOLEAN
  ),
  'wn_entail': Task(
    'wordnet', ('wordnet', 'entailments'), 'wn_entail ', _ACCURACY, _ENTAILMENT
  ),
  'wn_define': Task(
    'wordnet', ('wordnet', 'definitions'), 'wn_define ', _QUESTIONS
  ),
  'quiz_closed_book': Task(
    'quiz', ('quiz', 'questions'), 'quiz question: ', _QUESTIONS
  ),
  'deb_section': Task(
    'descriptions',
    ('debian', 'sections'),
    'deb_section ',
    (metrics.accuracy, metrics.macro_f1),
  ),
  'zh_sentiment': Task(
    'zh_reviews',
    ('reviews', 'chinese'),
    'zh_sentiment review: ',
    _ACCURACY,
    ('negative', 'positive'),
  ),
}


def define(name):
  """The Definition of one of TASKS."""
  task = TASKS[name]
  postprocess = None
  if task.labels:
    postprocess = functools.partial(answers.label, labels=task.labels)
  elif task.metrics is _QUESTIONS:
    postprocess = answers.any_answer
  return definitions.Definition(
    name=name,
    splits=_SPLITS,
    read=functools.partial(_read, name),
    identity=functools.partial(fetched.identity, task.thing),
    metrics=task.metrics,
    postprocess=postprocess,
  )


def rows(name, split):
  """The readers.Row of a split of one of TASKS, without its prefix."""
  task = TASKS[name]
  module, function, *more = task.reader
  reader = importlib.import_module(f'{readers.__name__}.{module}')
  with fetched.open_thing(task.thing) as texts:
    yield from readers.split(getattr(reader, function)(texts, *more), split)


def _read(name, split):
  for row in rows(name, split):
    inputs = TASKS[name].prefix + row.inputs
    yield {'inputs': inputs, 'targets': row.targets, **row.more}


DEFINITIONS = {name: functools.partial(define, name) for name in TASKS}
MIXTURES = {'offline': dict.fromkeys(TASKS)}
