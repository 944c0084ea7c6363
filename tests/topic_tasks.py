"""SeqIO tasks of a user: name the topic of a passage of Python's manual."""

import functools
import pydoc_data.topics

import numpy as np
import seqio
import tensorflow as tf

VOCABULARY = seqio.ByteVocabulary(extra_ids=100)
FEATURES = {
  'inputs': seqio.Feature(VOCABULARY, add_eos=True),
  'targets': seqio.Feature(VOCABULARY, add_eos=True),
}
TOPICS = sorted(pydoc_data.topics.topics.items())


def examples(split, shuffle_files, seed=None, count=31, first=0):
  """(passage, topic) pairs as a dataset."""
  del shuffle_files, seed
  texts = {
    'inputs': [text[:40] for _, text in TOPICS],
    'targets': [name for name, _ in TOPICS],
  }
  return tf.data.Dataset.from_tensor_slices(texts).skip(first).take(count)


PREPROCESSORS = [
  seqio.preprocessors.tokenize,
  seqio.preprocessors.append_eos_after_trim,
]


def postprocess(text, example, is_target):
  """Tells a target from a prediction, and checks what SeqIO hands over."""
  assert example['targets_pretokenized'].decode() in dict(TOPICS)
  return (text.lower(), is_target)


def exact_match(targets, predictions):
  assert all(told for _, told in targets)
  assert not any(told for _, told in predictions)
  same = [t == p for (t, _), (p, _) in zip(targets, predictions, strict=True)]
  return {
    'exact_match': 100 * np.mean(same),
    'first': seqio.metrics.Text(predictions[0][0]),
    'predicted': seqio.metrics.Scalar(len(predictions)),
  }


def mean_score(targets, scores):
  assert len(targets) == len(scores)
  return {'mean_score': np.mean(scores), 'all': scores}


def fails(targets, predictions):
  raise KeyError('no such thing')


def with_aux(targets, predictions, aux_values):
  return {}


def misnamed(targets, guesses):
  return {}


def add(name, **changes):
  settings = {
    'source': seqio.FunctionDataSource(examples, splits=['validation', 'test']),
    'preprocessors': PREPROCESSORS,
    'output_features': FEATURES,
    'postprocess_fn': postprocess,
    'metric_fns': [exact_match, mean_score],
  }
  seqio.TaskRegistry.add(name, **settings | changes)


def source(split='validation', **options):
  return seqio.FunctionDataSource(
    functools.partial(examples, **options), splits=[split]
  )


add('topics')
add('topics_end', source=source(first=31, count=9), metric_fns=[mean_score])
add('topics_bare', source=source(count=1), metric_fns=[])
seqio.MixtureRegistry.add('both_topics', ['topics', 'topics_end'], 1.0)

add('topics_train', source=source('train'))
seqio.MixtureRegistry.add('some_topics', ['topics', 'topics_train'], 1.0)
add('topics_empty', source=source(count=0))
add('topics_fails', metric_fns=[fails])
add('topics_aux', metric_fns=[with_aux])
add('topics_misnamed', metric_fns=[misnamed])
add('topics_twice', metric_fns=[mean_score, mean_score])
add(
  'topics_no_targets',
  output_features={'inputs': FEATURES['inputs']},
  metric_fns=[],
)
add(
  'topics_other_vocabulary',
  output_features={
    name: seqio.Feature(seqio.ByteVocabulary(extra_ids=28))
    for name in ('inputs', 'targets')
  },
)
add(
  'topics_no_vocabulary',
  output_features={
    name: seqio.Feature(seqio.PassThroughVocabulary(359, eos_id=1))
    for name in ('inputs', 'targets')
  },
)


@seqio.map_over_dataset(num_seeds=1)
def shuffled(example, seed):
  inputs = tf.random.experimental.stateless_shuffle(example['inputs'], seed)
  return example | {'inputs': inputs}


add('topics_random', preprocessors=[*PREPROCESSORS, shuffled])


def beyond(dataset):
  return dataset.map(lambda x: x | {'targets': x['targets'] + 300})


def breaks(dataset):
  return dataset.map(lambda x: x['nothing'])


add('topics_beyond', preprocessors=[*PREPROCESSORS, beyond])
add('topics_breaks', preprocessors=[breaks])
for count in (1, 7, 8, 9, 31):
  add(f'topics_{count}', source=source(count=count))
