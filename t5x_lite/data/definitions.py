"""What a text-to-text task is, before it has a vocabulary."""

import collections.abc
import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Definition:
  """A supervised task of texts; `tasks/` has those that are installed.

  A SeqIO task is made of it and of a run's vocabulary.

  Attributes:
    name: of the task.
    splits: their names: 'train', 'validation' and such.
    read: split -> an iterator of dicts of text: 'inputs', with the prefix that
      tells tasks apart, and 'targets'; the same each time. Further entries
      (str, or lists of str) go to `postprocess`.
    identity: no arguments -> JSON of all that the examples depend on but this
      code: versions of datasets, digests of files.
    metrics: functions of (targets, predictions), or (targets, scores), that
      give a dict of numbers, as SeqIO has them.
    postprocess: (text, example=None, is_target=False) -> what metrics compare,
      as SeqIO has it, but that texts in `example` are str; None: the text.
  """

  name: str
  splits: tuple[str, ...]
  read: collections.abc.Callable
  identity: collections.abc.Callable
  metrics: tuple[collections.abc.Callable, ...]
  postprocess: collections.abc.Callable | None = None
