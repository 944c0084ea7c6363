"""Vocabularies by the name of their file, and the copy that a run keeps."""

import contextlib
import dataclasses
import os

from t5x_lite import errors
from t5x_lite import storage
from t5x_lite.data import sentencepieces
from t5x_lite.data import tokenizer_files
from t5x_lite.data import tokenizer_json
from t5x_lite.data import vocabularies

MODEL = 'vocabulary.model'  # in a workdir, a SentencePiece model
FOLDER = 'vocabulary'  # in a workdir, a tokenizer.json and what belongs to it


def load(data):
  """The vocabulary that specs.Data asks for.

  Args:
    data: specs.Data; `vocabulary`, `extra_ids` and `special_tokens` count.

  Returns:
    A Vocabulary.

  Raises:
    errors.DataError: the file is missing, broken or of another kind.
    errors.ConfigError: it does not say what ends a text, or
      Data.special_tokens names a token that it lacks.
  """
  name = os.fspath(data.vocabulary)
  if name == 'bytes':
    if data.special_tokens:
      raise errors.ConfigError(
        'the vocabulary of bytes has its own special tokens',
        where='Data.special_tokens',
        got=data.special_tokens,
        fix='delete it',
      )
    return vocabularies.Bytes(data.extra_ids)
  path = storage.path(name)
  with reading(path):
    if path.is_dir() or path.suffix == '.json':
      return tokenizer_files.read(path, data.extra_ids, data.special_tokens)
    return sentencepieces.SentencePiece(
      sentencepieces.read(path), data.extra_ids, data.special_tokens
    )


@contextlib.contextmanager
def reading(path):
  """Says what is wrong if a vocabulary can't be read."""
  try:
    yield
  except FileNotFoundError as e:
    raise errors.DataError(
      'no such vocabulary',
      got=path,
      expected="'bytes', a SentencePiece .model, or a tokenizer.json",
      choices=['bytes', *_neighbours(path)],
      fix='train one with `t5x_lite vocab`',
    ) from e
  except OSError as e:
    raise errors.DataError(
      'cannot read the vocabulary', where=path, got=e.strerror or e
    ) from e


def _neighbours(path):
  near = []
  with contextlib.suppress(OSError):  # no such bucket, say
    for pattern in ('*.model', '*.json'):
      near += [str(p) for p in path.parent.glob(pattern)]
  return near


def keep(data, vocabulary, workdir):
  """Copies the vocabulary into the workdir, so that it needs nothing else.

  Args:
    data: specs.Data of a run.
    vocabulary: its vocabulary, as `load` made it.
    workdir: of the run; what is there may be of a start that saved no step.
  """
  if isinstance(vocabulary, tokenizer_json.TokenizerJson):
    storage.make_folder(workdir / FOLDER)
    for name, content in vocabulary.files().items():
      storage.write_bytes(workdir / FOLDER / name, content)
    (workdir / MODEL).unlink(missing_ok=True)
  elif data.vocabulary != 'bytes':
    model = storage.path(data.vocabulary).read_bytes()
    storage.write_bytes(workdir / MODEL, model)
    for name in tokenizer_files.FILES:
      (workdir / FOLDER / name).unlink(missing_ok=True)


def kept(data, workdir):
  """specs.Data of a run, its vocabulary that of the workdir if it has one."""
  if data.vocabulary == 'bytes':
    return data
  for name, file in ((MODEL, MODEL), (FOLDER, f'{FOLDER}/tokenizer.json')):
    if (workdir / file).exists():
      # The run's own copy, wherever the first one is now.
      return dataclasses.replace(data, vocabulary=str(workdir / name))
  return data
