"""What T5's own package makes of the examples of tests/t5_cases.py.

In an environment of its own, Python 3.12:
  pip install seqio
  pip install --no-deps t5==0.9.4 mesh-tensorflow
  pip install editdistance immutabledict nltk pandas rouge-score sacrebleu \
    scikit-learn babel gin-config future
then, from the root of the repository:
  python tests/golden/make_t5_tasks.py tests/golden/t5_tasks.json
With a seed after the file, the examples are random ones.
"""

import json
import pathlib
import sys
import warnings

import numpy as np
import seqio
import t5.data.mixtures  # noqa: F401 (registers them, and tasks)
from t5.evaluation import metrics
import tensorflow as tf

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import t5_cases  # noqa: E402


def tensor(value):
  if isinstance(value, dict):
    return {name: tensor(item) for name, item in value.items()}
  if isinstance(value, list) and not value:
    return tf.zeros([0], tf.string)
  if isinstance(value, float):
    return tf.constant(value, tf.float32)
  if isinstance(value, int):
    return tf.constant(value, tf.int32)
  return tf.constant(value)


def pairs(task, example):
  """What comes before tokens, of one example."""
  dataset = tf.data.Dataset.from_tensors(tensor(example))
  for preprocessor in task.preprocessors:
    if preprocessor is seqio.preprocessors.tokenize:
      break
    dataset = preprocessor(dataset)
  return list(dataset.as_numpy_iterator())


def floats(found):
  return {name: float(value) for name, value in found.items()}


def measure(task, rows):
  """Its metrics of what `t5_cases.predictions` says."""
  rows = [row for row in rows if row['targets'] != b'<unk>']
  targets = [row['targets'].decode() for row in rows]
  compared = []
  for is_target, texts in (
    (True, targets),
    (False, t5_cases.predictions(targets)),
  ):
    compared.append(
      [
        task.postprocess_fn(
          text,
          example=row | {'targets_pretokenized': row['targets']},
          is_target=is_target,
        )
        for text, row in zip(texts, rows)
      ]
    )
  found = {}
  for metric in task.metric_fns:
    np.random.seed(0)  # ROUGE's intervals are drawn
    found |= floats(metric(*compared))
  return found


def of_tasks(examples):
  found = {}
  for name, own in examples.items():
    task = seqio.TaskRegistry.get(name)
    rows = [row for example in own for row in pairs(task, example)]
    found[name] = {
      'pairs': [
        [row[x].decode() for x in ('inputs', 'targets')] for row in rows
      ],
      'metrics': measure(task, rows),
    }
  return found


def of_metrics():
  found = {}
  for name, (theirs, targets, predictions) in t5_cases.METRICS.items():
    np.random.seed(0)
    found[name] = floats(getattr(metrics, theirs)(targets, predictions))
  return found


def main(file, seed=None):
  warnings.simplefilter('ignore')
  found = {
    'tasks': of_tasks(
      t5_cases.EXAMPLES if seed is None else t5_cases.random_examples(int(seed))
    ),
    'metrics': of_metrics(),
    'mixtures': {
      name: {
        task.name: float(mixture.get_rate(task))
        for task in seqio.get_subtasks(mixture)
      }
      for name in (
        'glue_v002_proportional',
        'super_glue_v102_proportional',
        'glue_mnli_and_dev_v002',
        'wsc_dpr_simple_proportional',
      )
      for mixture in [seqio.MixtureRegistry.get(name)]
    },
  }
  text = json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True)
  pathlib.Path(file).write_text(text + '\n', encoding='utf-8')


if __name__ == '__main__':
  main(*sys.argv[1:])
