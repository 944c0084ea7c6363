"""The supervised tasks of T5 by the names that T5 gives them.

GLUE, SuperGLUE, SQuAD, CNN/DailyMail and WMT, arXiv:1910.10683 section 2.3,
with the metrics of each; XSum, arXiv:1808.08745, in the same words. They read
TensorFlow Datasets, of whichever version is on the machine.
"""

import functools

from t5x_lite.data import definitions
from t5x_lite.tasks import answers
from t5x_lite.tasks import metrics
from t5x_lite.tasks import t5_text
from t5x_lite.tasks import tfds_reading

_THREE = ('train', 'validation', 'test')
_ENTAILMENT = ('entailment', 'not_entailment')
_NLI = ('entailment', 'neutral', 'contradiction')
_SENTENCES = ('sentence1', 'sentence2')
_PREMISE = ('hypothesis', 'premise')
_BOOLEAN = ('False', 'True')
_ACCURACY = (metrics.accuracy,)
_F1 = (metrics.f1, metrics.accuracy)
_MNLI = ('mnli', _PREMISE, _NLI, _ACCURACY)
_AXG = ('rte', _PREMISE, _ENTAILMENT, ())

# Configuration: first word, fields, labels, metrics.
_GLUE = {
  'cola': (
    'cola',
    ('sentence',),
    ('unacceptable', 'acceptable'),
    (metrics.matthews,),
  ),
  'sst2': ('sst2', ('sentence',), ('negative', 'positive'), _ACCURACY),
  'mrpc': ('mrpc', _SENTENCES, ('not_equivalent', 'equivalent'), _F1),
  'qqp': (
    'qqp',
    ('question1', 'question2'),
    ('not_duplicate', 'duplicate'),
    _F1,
  ),
  'mnli': _MNLI,
  'mnli_mismatched': _MNLI,
  'mnli_matched': _MNLI,
  'qnli': ('qnli', ('question', 'sentence'), _ENTAILMENT, _ACCURACY),
  'rte': ('rte', _SENTENCES, _ENTAILMENT, _ACCURACY),
  'wnli': ('wnli', _SENTENCES, _ENTAILMENT[::-1], _ACCURACY),
  'ax': ('mnli', _PREMISE, _NLI, ()),
}
_SUPER_GLUE = {
  'boolq': ('boolq', ('passage', 'question'), _BOOLEAN, _ACCURACY),
  'cb': (
    'cb',
    _PREMISE,
    ('entailment', 'contradiction', 'neutral'),
    (metrics.mean_f1(3), metrics.accuracy),
  ),
  'copa': (
    'copa',
    ('choice1', 'choice2', 'premise', 'question'),
    ('choice1', 'choice2'),
    _ACCURACY,
  ),
  'rte': ('rte', _PREMISE, _ENTAILMENT, _ACCURACY),
  'wic': ('wic', (*_SENTENCES, 'word'), _BOOLEAN, _ACCURACY),
  'axg': _AXG,
}
_SPLITS = {
  'glue/mnli': (
    'train',
    *(f'{x}_{y}' for x in _THREE[1:] for y in ('matched', 'mismatched')),
  ),
  'glue/mnli_matched': _THREE[1:],
  'glue/mnli_mismatched': _THREE[1:],
  'glue/ax': ('test',),
  'super_glue/axg': ('test',),
  'super_glue/axb': ('test',),
  'squad/v1.1': _THREE[:2],
  'definite_pronoun_resolution': ('train', 'test'),
}
_WMT = {  # name: the dataset, source and target
  'wmt14_ende': ('wmt14_translate/de-en', 'en', 'de'),
  'wmt14_enfr': ('wmt14_translate/fr-en', 'en', 'fr'),
  'wmt15_enfr': ('wmt15_translate/fr-en', 'en', 'fr'),
  'wmt16_enro': ('wmt16_translate/ro-en', 'en', 'ro'),
  'wmt19_ende': ('wmt19_translate/de-en', 'en', 'de'),
  'wmt_t2t_ende': ('wmt_t2t_translate/de-en', 'en', 'de'),
}
_SPLITS['wmt19_translate/de-en'] = _THREE[:2]


def _define(
  name, dataset, preprocess, measures=(), postprocess=None, splits=None
):
  return definitions.Definition(
    name=name,
    splits=splits or _SPLITS.get(dataset, _THREE),
    read=functools.partial(_read, dataset, preprocess),
    identity=functools.partial(tfds_reading.identity, dataset),
    metrics=tuple(measures),
    postprocess=postprocess,
  )


def _read(dataset, preprocess, split):
  return tfds_reading.read(dataset, split, preprocess)


def _classify(name, dataset, word, names, labels, measures):
  return _define(
    name,
    dataset,
    functools.partial(
      t5_text.fields, benchmark=word, names=names, labels=labels
    ),
    map(metrics.labelled, measures),
    functools.partial(answers.label, labels=labels),
  )


DEFINITIONS = {
  f'{suite}_{config}_{version}': functools.partial(
    _classify, f'{suite}_{config}_{version}', f'{suite}/{config}', *row
  )
  for suite, version, rows in (
    ('glue', 'v002', _GLUE),
    ('super_glue', 'v102', _SUPER_GLUE),
  )
  for config, row in rows.items()
} | {
  f'{name}_v003': functools.partial(
    _define,
    f'{name}_v003',
    dataset,
    functools.partial(t5_text.translation, source=source, target=target),
    (metrics.bleu,),
  )
  for name, (dataset, source, target) in _WMT.items()
}


def _add(name, dataset, preprocess, *rest, **options):
  DEFINITIONS[name] = functools.partial(
    _define, name, dataset, preprocess, *rest, **options
  )


_add(
  'glue_stsb_v002',
  'glue/stsb',
  t5_text.stsb,
  (metrics.labelled(metrics.pearson), metrics.labelled(metrics.spearman)),
  answers.number,
)
_add(
  'super_glue_multirc_v102',
  'super_glue/multirc',
  functools.partial(t5_text.multirc, labels=_BOOLEAN),
  (metrics.multirc_f1, metrics.multirc_exact_match),
  answers.multirc,
)
_add(
  'super_glue_record_v102',
  'super_glue/record',
  t5_text.record,
  (metrics.record,),
  answers.record,
)
_add(
  'super_glue_axb_v102',
  'super_glue/axb',
  functools.partial(t5_text.diagnostic, labels=_ENTAILMENT),
  (),
  functools.partial(answers.label, labels=_ENTAILMENT),
)
_add(
  'super_glue_wsc_v102_simple_train',
  'super_glue/wsc.fixed',
  functools.partial(t5_text.wsc, only_right=True),
  splits=('train',),
)
_add(
  'super_glue_wsc_v102_simple_eval',
  'super_glue/wsc.fixed',
  functools.partial(t5_text.wsc, only_right=False),
  (metrics.labelled(metrics.accuracy),),
  answers.referent,
  splits=_THREE[1:],
)
_add(
  'dpr_v001_simple',
  'definite_pronoun_resolution',
  t5_text.pronoun_resolution,
  _ACCURACY,
)
_add(
  'squad_v010_allanswers',
  'squad/v1.1',
  t5_text.squad,
  (metrics.squad,),
  answers.any_answer,
)
_add(
  'squad_v010_context_free',
  'squad/v1.1',
  functools.partial(t5_text.squad, context=False),
  (metrics.squad,),
  answers.any_answer,
)
_add(
  'cnn_dailymail_v002',
  'cnn_dailymail',
  functools.partial(t5_text.summary, document='article', summary='highlights'),
  (metrics.rouge,),
)
_add(
  'xsum',
  'xsum',
  functools.partial(t5_text.summary, document='document', summary='summary'),
  (metrics.rouge,),
)

# Examples to train on; 0 is of a task that is for evaluation.
_GLUE_RATES = {
  'glue_cola_v002': 8_551,
  'glue_sst2_v002': 67_349,
  'glue_mrpc_v002': 3_668,
  'glue_qqp_v002': 363_849,
  'glue_stsb_v002': 5_749,
  'glue_mnli_v002': 392_702,
  'glue_qnli_v002': 104_743,
  'glue_rte_v002': 2_490,
  'glue_mnli_mismatched_v002': 0,
  'glue_mnli_matched_v002': 0,
  'glue_ax_v002': 0,
}
_WSC_RATES = {
  'dpr_v001_simple': 1_322,
  'super_glue_wsc_v102_simple_train': 259,
  'super_glue_wsc_v102_simple_eval': 0,
}
_SUPER_GLUE_RATES = _WSC_RATES | {
  'super_glue_boolq_v102': 9_427,
  'super_glue_cb_v102': 250,
  'super_glue_copa_v102': 400,
  'super_glue_multirc_v102': 27_243,
  'super_glue_record_v102': 138_854,
  'super_glue_rte_v102': 2_490,
  'super_glue_wic_v102': 5_428,
  'super_glue_axb_v102': 0,
  'super_glue_axg_v102': 0,
}
_LARGE = (
  'cnn_dailymail_v002',
  'squad_v010_allanswers',
  'wmt_t2t_ende_v003',
  'wmt15_enfr_v003',
  'wmt16_enro_v003',
)
MIXTURES = {
  'glue_v002_proportional': _GLUE_RATES,
  'super_glue_v102_proportional': _SUPER_GLUE_RATES,
  'glue_mnli_and_dev_v002': {name: 1 for name in _GLUE_RATES if 'mnli' in name},
  'wsc_dpr_simple_proportional': _WSC_RATES,
  # Both suites have RTE, which counts half in each, as in T5's own mixtures of
  # all.
  'supervised_proportional': {
    name: rate / 2 if 'rte' in name else rate
    for name, rate in (_GLUE_RATES | _SUPER_GLUE_RATES).items()
  }
  | dict.fromkeys(_LARGE),
}
