import itertools

import numpy as np
import pytest

from t5x_lite.data import arrays
from t5x_lite.data import building
from t5x_lite.data import ending
from t5x_lite.data import store
from t5x_lite.data import vocabularies

VOCABULARY = vocabularies.Bytes(extra_ids=20)
END = VOCABULARY.eos_id


def made(folder, texts, monkeypatch, block):
  """The tokens of documents, in records of `block` numbers."""
  monkeypatch.setattr(arrays, 'BLOCK', block)
  building.write(
    folder,
    [('train', text) for text in texts],
    VOCABULARY,
    lambda: {'fingerprint': 'f'},
  )
  return store.Store(folder).split('train')


@pytest.mark.parametrize('block', [1, 3, 7, 4096])
def test_rows_are_those_of_documents_with_ends(tmp_path, monkeypatch, block):
  rng = np.random.default_rng(block)
  texts = ['x' * n for n in rng.integers(1, 12, 40)]
  texts += ['y', 'y', 'y', 'z' * 900, *'many short ones' * 4, 'y']
  tokens = made(tmp_path, texts, monkeypatch, block)
  whole = list(
    itertools.chain.from_iterable(
      [*VOCABULARY.encode(text), END] for text in texts
    )
  )
  ended = ending.Ended(tokens, END)
  assert ended.num_tokens == len(whole)
  assert ended.num_documents == len(texts)
  for length in (1, 2, 5, 30, 100):
    starts = np.arange(len(whole))
    rng.shuffle(starts)
    found = ended.rows(starts, length)
    assert found.dtype == np.int32
    for start, row in zip(starts, found, strict=True):
      expected = whole[start : start + length]
      assert row.tolist() == expected + [0] * (length - len(expected))


def test_few_records_are_read_to_find_a_document(tmp_path, monkeypatch):
  tokens = made(tmp_path, ['ab'] * 3000, monkeypatch, 8)
  documents = tokens.arrays['documents']
  reads = []
  monkeypatch.setattr(
    documents,
    'read',
    lambda starts, length, read=documents.read: (
      reads.append(len(starts)) or read(starts, length)
    ),
  )
  ended = ending.Ended(tokens, END)
  assert ended.rows([4000], 5).tolist() == [[101, END, 100, 101, END]]
  # Nine halvings, the block that is found, and what lies behind.
  assert sum(reads) <= 11
  reads.clear()
  ended.rows([4000], 5)
  assert sum(reads) == 2
