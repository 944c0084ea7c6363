"""What is compared of a target and of a prediction, for tasks/metrics.py.

Each has SeqIO's form of a postprocessing function, and T5's rule.
"""

_DETERMINERS = (
  'a an few her his each every many much my our some that the their these this '
  'those which whose your'
)


def label(text, labels, example=None, is_target=False):
  """The number of a label, or -1 of what is none."""
  del example, is_target
  return labels.index(text) if text in labels else -1


def number(text, example=None, is_target=False):
  """A number, or -1 of what is none."""
  del example, is_target
  try:
    return float(text)
  except ValueError:
    return -1.0


def any_answer(text, example=None, is_target=False):
  """All answers that are right, and a prediction as it is."""
  return example['answers'] if is_target else text


def multirc(text, example=None, is_target=False):
  """Whether an answer is right, and which question it answers."""
  found = {'value': label(text, ('False', 'True'))}
  return found | ({'group': example['group']} if is_target else {})


def record(text, example=None, is_target=False):
  """All answers that are right, and which query they answer."""
  if is_target:
    return {'value': example['answers'], 'group': example['group']}
  return {'value': text}


def referent(text, example=None, is_target=False):
  """Whether the candidate is the referent: the label, or what was predicted.

  A prediction says so if its words are among the candidate's, or the other way
  round, capitals and determiners apart; -1 where nothing is said.
  """
  if is_target:
    return int(example['label'])
  predicted, candidate = _words(text), _words(example['targets_pretokenized'])
  if predicted == ['']:
    return -1
  # 'Bob' is not "Bob's hat".
  if any("'" in x for x in predicted) != any("'" in x for x in candidate):
    return 0
  predicted, candidate = set(predicted), set(candidate)
  return int(predicted <= candidate or candidate <= predicted)


def _words(text):
  dropped = _DETERMINERS.split()
  words = text.strip().lower().split(' ')
  return ' '.join(word for word in words if word not in dropped).split(' ')
