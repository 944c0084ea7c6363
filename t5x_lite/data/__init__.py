"""From corpora to batches.

A corpus (corpora, sources), or pairs of inputs and targets (pairs), are read
once, tokenised (vocabularies) and stored (building, store, arrays). Examples of
a store (units, ending) stand in rows, one or several (rows, packing, index), in
an order for each epoch (order); rows of several stores are mixed (mixtures,
mixing). So a data position is a batch (batches).
"""

from t5x_lite.data import corpora
from t5x_lite.data import pairs
from t5x_lite.data import tasks
from t5x_lite.data import vocabulary_files
from t5x_lite.data import vocabulary_training
from t5x_lite.data.batches import Batches
from t5x_lite.data.batches import check
from t5x_lite.data.batches import feature_lengths
from t5x_lite.data.batches import prefetch
from t5x_lite.data.batches import widths
from t5x_lite.data.building import open_or_build
from t5x_lite.data.corpora import documents
from t5x_lite.data.mixtures import parts
from t5x_lite.data.pairs import origin
from t5x_lite.data.store import Store
from t5x_lite.data.streams import Stream
from t5x_lite.data.vocabularies import Vocabulary
from t5x_lite.data.vocabulary_conversion import convert as convert_vocabulary
from t5x_lite.data.vocabulary_files import keep as keep_vocabulary
from t5x_lite.data.vocabulary_files import kept as kept_vocabulary
from t5x_lite.data.vocabulary_files import load as load_vocabulary

_ENOUGH = 1_000_000  # characters that a vocabulary is measured on

__all__ = [
  'Batches',
  'Store',
  'Stream',
  'Vocabulary',
  'check',
  'convert_vocabulary',
  'documents',
  'feature_lengths',
  'keep_vocabulary',
  'kept_vocabulary',
  'load_vocabulary',
  'open_or_build',
  'origin',
  'parts',
  'prefetch',
  'tasks',
  'train_vocabulary',
  'vocabulary_files',
  'vocabulary_quality',
  'vocabulary_training',
  'widths',
]


def _texts(run, wanted):
  """The texts of a split of a run."""
  for part in parts(run).values():
    if pairs.learns(part):
      yield from pairs.texts(part, wanted)
      continue
    for split, text in corpora.documents(part.data):
      if split == wanted:
        yield text


def train_vocabulary(run, path, size, **options):
  """Trains a vocabulary on what a corpus trains on.

  Args:
    run: specs.Run; its corpora and their held-out share count.
    path: where the file goes.
    size: ids altogether, sentinels included.
    **options: as `vocabulary_training.train`.

  Returns:
    The Vocabulary.
  """
  texts = _texts(run, 'train')
  return vocabulary_training.train(texts, size, path, **options)


def vocabulary_quality(run, vocabulary):
  """vocabulary_training.Quality on held-out text, or None if none is held out.

  Args:
    run: specs.Run; its corpus and its held-out share count.
    vocabulary: the vocabulary.
  """
  texts, size = [], 0
  for text in _texts(run, 'validation'):
    texts.append(text)
    size += len(text)
    if size > _ENOUGH:
      break
  return vocabulary_training.quality(vocabulary, texts) if texts else None
