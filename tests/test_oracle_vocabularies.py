"""Ids of tokenizer.json are those of transformers.

Run by `make oracle`. Everything is made here, nothing is downloaded.
"""

import pathlib
import random

import pytest

from t5x_lite import specs
from t5x_lite.data import tokenizer_json
from t5x_lite.data import vocabulary_files
from tests import test_tokenizer_json as made

transformers = pytest.importorskip(
  'transformers', reason='needs transformers; run `make oracle`'
)

pytestmark = pytest.mark.oracle

folder = made.folder
CHARACTERS = 'ab c\n\t .,;!?éß天😀\u200d\u0301مשह<>[]/s019▁Ġ#\ufffd\0\x7f\u2028'


def texts():
  draw = random.Random(0)
  for _ in range(2000):
    yield ''.join(draw.choices(CHARACTERS, k=draw.randrange(1, 60)))
  yield from made.ODD
  yield from ('[SEP] [PAD]', '<|endoftext|>x', 'a <extra_id_0> b', '[MASK] ##a')
  yield made.TEXT * 40  # longer than what is encoded at once


def both(folder, kind):
  """A tokenizer.json as our vocabulary, and as transformers' tokenizer."""
  path = pathlib.Path(folder) / kind
  ours = vocabulary_files.load(
    specs.Data(corpus='none', lengths={'inputs': 9}, vocabulary=str(path))
  )
  theirs = transformers.PreTrainedTokenizerFast(
    tokenizer_file=str(path / 'tokenizer.json')
  )
  return ours, theirs


@pytest.mark.parametrize('kind', made.KINDS)
def test_ids_and_texts_are_those_of_transformers(folder, kind):
  ours, theirs = both(folder, kind)
  whole = list(texts())
  assert max(map(len, whole)) > tokenizer_json._LONGEST
  for text, ids in zip(whole, ours.encode_batch(whole), strict=True):
    if kind == 't5' and ('</s>' in text or '<extra_id' in text):
      continue  # they take these for what they say
    expected = theirs(
      text, add_special_tokens=False, split_special_tokens=True
    )['input_ids']
    assert ids.tolist() == expected
    if ours.unk_id not in ids:  # they leave it out
      assert ours.decode(ids) == theirs.decode(
        ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
      )


@pytest.mark.parametrize('kind', ['t5', 'wordpiece'])
def test_prompts_are_those_of_transformers(folder, kind):
  ours, theirs = both(folder, kind)
  if kind == 'wordpiece':
    names = [f'<extra_id_{i}>' for i in reversed(range(100))]
    theirs.add_special_tokens({'additional_special_tokens': names})
  text = 'the<extra_id_0> statement is<extra_id_1> executed'
  expected = theirs(text, add_special_tokens=False)['input_ids']
  assert ours.encode(text, sentinels=True).tolist() == expected
