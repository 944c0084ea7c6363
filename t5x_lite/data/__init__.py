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
from t5x_lite.data.vocabularies import Vocabulary
from t5x_lite.data.vocabularies import load as load_vocabulary

__all__ = [
  'Batches',
  'Store',
  'Vocabulary',
  'check',
  'documents',
  'feature_lengths',
  'load_vocabulary',
  'open_or_build',
  'origin',
  'parts',
  'prefetch',
  'tasks',
  'train_vocabulary',
  'widths',
]


def train_vocabulary(run, path, size, **options):
  """Trains a SentencePiece vocabulary on what a corpus trains on.

  Args:
    run: specs.Run; its corpora and their held-out share count.
    path: where the .model goes.
    size: ids altogether, sentinels included.
    **options: as `vocabulary_training.train_sentencepiece`.

  Returns:
    The Vocabulary.
  """

  def texts():
    for part in parts(run).values():
      if pairs.learns(part):
        yield from pairs.texts(part)
        continue
      for split, text in corpora.documents(part.data):
        if split == 'train':
          yield text

  return vocabulary_training.train_sentencepiece(texts(), size, path, **options)
