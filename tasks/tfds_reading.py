"""Examples of TensorFlow Datasets as plain Python values.

TensorFlow is loaded when something is read.
"""

import functools

from t5x_lite import errors
from t5x_lite.data import sources


@functools.cache
def _library():
  sources.libraries()  # loads TensorFlow in our way first
  import tensorflow_datasets

  return tensorflow_datasets


def _missing(dataset, error):
  line = next(iter(str(error).strip().splitlines()), '')
  return errors.DataError(
    'dataset is not ready on this machine',
    where=dataset,
    got=f'{type(error).__name__}: {line.partition(". ")[0]}'[:200],
    fix=f'`tfds build {dataset}`, a command that needs apache-beam; set '
    'TFDS_DATA_DIR if it lies elsewhere',
  )


def _builder(dataset):
  """Whatever version of a dataset is there."""
  try:
    return _library().builder(f'{dataset}:*.*.*')
  except Exception as e:  # builders raise what they like
    raise _missing(dataset, e) from e


def identity(dataset):
  """What the examples of a dataset depend on, as JSON: its version."""
  return {'tfds': _builder(dataset).info.full_name}


def read(dataset, split, preprocess, names=()):
  """The pairs of a split, in order.

  Args:
    dataset: its name, with its configuration: 'glue/mnli'.
    split: one of its splits.
    preprocess: a function of t5_text.
    names: (split, what the dataset calls it) pairs, where that differs.

  Yields:
    As `preprocess`.

  Raises:
    errors.DataError: the dataset is not there, or not as it should be.
  """
  builder = _builder(dataset)
  wanted = dict(names).get(split, split)
  try:
    examples = builder.as_dataset(split=wanted, shuffle_files=False)
    rows = enumerate(_library().as_numpy(examples))
  except Exception as e:
    raise _missing(dataset, e) from e
  while True:
    try:
      number, example = next(rows)
    except StopIteration:
      return
    except Exception as e:
      raise errors.DataError(
        'cannot read a dataset to its end', where=f'{dataset} {wanted}', got=e
      ) from e
    where = f'{dataset} {wanted}, example {number}'
    try:
      yield from preprocess(plain(example))
    except errors.DataError as e:
      raise e.at(where) from e
    except (KeyError, IndexError, UnicodeDecodeError) as e:
      raise errors.DataError(
        'an example is not as its dataset has them',
        where=where,
        got=f'{type(e).__name__}: {e}',
      ) from e


def plain(value):
  """NumPy's values as Python's: str, int, float, list and dict."""
  if isinstance(value, dict):
    return {name: plain(item) for name, item in value.items()}
  if isinstance(value, bytes):
    return value.decode()
  if hasattr(value, 'tolist'):
    return plain(value.tolist())
  if isinstance(value, list):
    return [plain(item) for item in value]
  return value
