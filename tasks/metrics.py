"""Metrics of text-to-text tasks, as T5 defines, names and scales them.

All are per cent, of lists of targets and predictions as a task's own
postprocessing leaves them. Definitions: arXiv:1910.10683 section 2.3 and what
it cites; the names are those of `t5.evaluation.metrics`. chrF is sacrebleu's.
"""

import collections
import functools
import importlib
import re
import string
import warnings

import numpy as np

from t5x_lite import errors

ARTICLES = re.compile(r'\b(a|an|the)\b')
_MORE_QUOTES = '\u2018\u2019\u00b4`_'  # that TriviaQA's own script drops, too


def needs(package):
  """Names the package that a metric is computed with; hands it over."""

  def decorate(function):
    function.needs = package
    return function

  return decorate


def _load(name):
  try:
    return importlib.import_module(name)
  except ModuleNotFoundError as e:
    raise errors.ConfigError(
      'a metric needs a package that is not installed',
      got=name.partition('.')[0],
      fix="pip install 't5x_lite[tasks]'",
    ) from e


def _quietly(function, *values, **options):
  """Calls it without its warnings: of a share of nothing, and the like."""
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    return float(function(*values, **options))


# -- labels -------------------------------------------------------------------


def labelled(metric):
  """A metric over the examples whose label is told.

  Test sets hide theirs, which are -1 then; of such alone it measures nothing.
  """

  @functools.wraps(metric)
  def measure(targets, predictions):
    told = [n for n, target in enumerate(targets) if target != -1]
    if not told:
      return {}
    return metric([targets[n] for n in told], [predictions[n] for n in told])

  return measure


@needs('sklearn')
def accuracy(targets, predictions):
  """Share of predictions that equal their targets."""
  sklearn = _load('sklearn.metrics')
  return {'accuracy': 100 * sklearn.accuracy_score(targets, predictions)}


@needs('sklearn')
def f1(targets, predictions):
  """F1 of class 1 against class 0; what is neither counts as the wrong one."""
  sklearn = _load('sklearn.metrics')
  targets_N, found_N = np.asarray(targets), np.asarray(predictions)
  found_N = np.where(np.isin(found_N, (0, 1)), found_N, 1 - targets_N)
  return {'f1': 100 * _quietly(sklearn.f1_score, targets_N, found_N)}


def _macro(targets, predictions, labels):
  """F1 of each label against the rest, averaged, of 100."""
  return 100 * _quietly(
    _load('sklearn.metrics').f1_score,
    targets,
    predictions,
    labels=labels,
    average='macro',
  )


def mean_f1(classes):
  """A metric: F1 of each class 0, 1, ... against the rest, averaged."""

  @needs('sklearn')
  def measure(targets, predictions):
    return {
      f'mean_{classes}class_f1': _macro(targets, predictions, range(classes))
    }

  return measure


@needs('sklearn')
def macro_f1(targets, predictions):
  """F1 of each label that is a target, texts or numbers, averaged."""
  return {'macro_f1': _macro(targets, predictions, sorted(set(targets)))}


@needs('sklearn')
def matthews(targets, predictions):
  """Matthews correlation of labels."""
  sklearn = _load('sklearn.metrics')
  found = _quietly(sklearn.matthews_corrcoef, targets, predictions)
  return {'matthews_corrcoef': 100 * found}


@needs('scipy')
def pearson(targets, predictions):
  """Pearson correlation of numbers; NaN where one side is constant or NaN."""
  found = _load('scipy.stats').pearsonr
  return {'pearson_corrcoef': 100 * _correlation(found, targets, predictions)}


@needs('scipy')
def spearman(targets, predictions):
  """Spearman's rank correlation of numbers; NaN as of `pearson`."""
  found = _load('scipy.stats').spearmanr
  return {'spearman_corrcoef': 100 * _correlation(found, targets, predictions)}


def _correlation(function, targets, predictions):
  if len(targets) < 2:
    return float('nan')
  return _quietly(lambda x, y: function(x, y)[0], targets, predictions)


# -- texts --------------------------------------------------------------------


def sequence_accuracy(targets, predictions):
  """Share of texts that are their targets, character by character."""
  same = [t == p for t, p in zip(targets, predictions, strict=True)]
  return {'sequence_accuracy': 100 * float(np.mean(same))}


def _references(targets):
  """References as sacrebleu wants them: the first of each target, ..."""
  if isinstance(targets[0], str):
    return [list(targets)]
  most = max(map(len, targets))
  return [[dict(enumerate(t)).get(n) for t in targets] for n in range(most)]


def bleu_of(tokenizer):
  """A metric: BLEU with one of sacrebleu's ways to part words.

  Args:
    tokenizer: 'intl', as T5 has it, '13a', 'zh', ...
  """

  @needs('sacrebleu')
  def bleu(targets, predictions):
    measure = _load('sacrebleu').BLEU(tokenize=tokenizer)
    found = measure.corpus_score(list(predictions), _references(targets))
    return {'bleu': found.score}

  return bleu


bleu = bleu_of('intl')
chinese_bleu = bleu_of('zh')


@needs('sacrebleu')
def chrf(targets, predictions):
  """chrF: F2 of character n-grams up to 6, spaces left out."""
  measure = _load('sacrebleu').CHRF()
  found = measure.corpus_score(list(predictions), _references(targets))
  return {'chrf': found.score}


@needs('rouge_score')
def rouge(targets, predictions):
  """ROUGE-1, -2 and -Lsum F1: the median of bootstrap means, always the same.

  A full stop between spaces ends a line, as summaries of CNN/DailyMail have it.
  """
  _load('rouge_score')
  kinds = ('rouge1', 'rouge2', 'rougeLsum')
  scorer = _load('rouge_score.rouge_scorer').RougeScorer(kinds)
  total = _load('rouge_score.scoring').BootstrapAggregator()
  for target, prediction in zip(targets, predictions, strict=True):
    texts = [x.replace(' . ', ' .\n') for x in (target, prediction)]
    total.add_scores(scorer.score(*texts))
  # It draws from NumPy's global generator.
  state = np.random.get_state()
  np.random.seed(0)
  found = total.aggregate()
  np.random.set_state(state)
  return {kind: 100 * float(found[kind].mid.fmeasure) for kind in kinds}


# -- answers ------------------------------------------------------------------


def _answer(text, dropped, by):
  """A text in lower case, without some punctuation, articles, loose spaces."""
  text = ''.join(by if c in dropped else c for c in text.lower())
  return ' '.join(ARTICLES.sub(' ', text).split())


_squad_answer = functools.partial(_answer, dropped=string.punctuation, by='')
_trivia_answer = functools.partial(
  _answer, dropped=string.punctuation + _MORE_QUOTES, by=' '
)


def _word_f1(target, prediction):
  """F1 of words, with repetition."""
  target, prediction = target.split(), prediction.split()
  counts = collections.Counter(target) & collections.Counter(prediction)
  if not (same := counts.total()):
    return 0.0
  precision, recall = same / len(prediction), same / len(target)
  return 2 * precision * recall / (precision + recall)


def _answers(targets, predictions, normalize):
  em, f1 = [], []
  for answers, prediction in zip(targets, predictions, strict=True):
    if not answers:
      raise errors.DataError('an example to be measured has no answer')
    found = normalize(prediction)
    right = [normalize(answer) for answer in answers]
    em.append(found in right)
    f1.append(max(_word_f1(answer, found) for answer in right))
  return {'em': 100 * float(np.mean(em)), 'f1': 100 * float(np.mean(f1))}


def squad(targets, predictions):
  """SQuAD's exact match and F1, arXiv:1606.05250, of the best of each answers.

  Args:
    targets: lists of answers.
    predictions: texts.
  """
  return _answers(targets, predictions, _squad_answer)


def trivia_qa(targets, predictions):
  """TriviaQA's exact match and F1, arXiv:1705.03551; see `squad`."""
  return _answers(targets, predictions, _trivia_answer)


# -- groups -------------------------------------------------------------------


def multirc_f1(targets, predictions):
  """F1 over all answers; of dicts with the class as 'value'."""
  return f1([x['value'] for x in targets], [x['value'] for x in predictions])


multirc_f1.needs = f1.needs


def multirc_exact_match(targets, predictions):
  """Share of questions with all answers right; targets tell their 'group'."""
  groups = collections.defaultdict(list)
  for target, prediction in zip(targets, predictions, strict=True):
    right = target['value'] == prediction['value']
    groups[target['group']].append(right)
  return {
    'exact_match': 100 * float(np.mean([all(x) for x in groups.values()]))
  }


def record(targets, predictions):
  """`squad` over the first example of each 'group' of the targets."""
  firsts = {}
  for target, prediction in zip(targets, predictions, strict=True):
    firsts.setdefault(target['group'], (target['value'], prediction['value']))
  return squad(*zip(*firsts.values()))
