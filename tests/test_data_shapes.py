"""Shapes that are told without data are those of real batches."""

import dataclasses
import json

import pytest

from t5x_lite import config
from t5x_lite import corruptions
from t5x_lite import recipes
from t5x_lite import specs
from t5x_lite.data import shapes
from t5x_lite.data import vocabularies
from tests import tiny

VOCABULARY = vocabularies.Bytes(extra_ids=100)
BOTH = tiny.transformer(vocab_size=384)
DECODER = tiny.transformer(vocab_size=384, encoder_layers=0)
PREFIX = dataclasses.replace(DECODER, mask='prefix')
CLASSES = dataclasses.replace(DECODER, classes=2)
TEXT = dict(inputs=24, targets=24)
PAIRS = {specs.Supervised, specs.Classification}
CASES = [
  (specs.SpanCorruption(), BOTH, dict(inputs=24)),
  (specs.SpanCorruption(), DECODER, dict(inputs=24)),
  (specs.PrefixLM(), PREFIX, dict(inputs=24)),
  (specs.PrefixLM(density=0.25), BOTH, dict(inputs=24, targets=20)),
  (specs.CausalLM(), DECODER, dict(targets=24)),
  (specs.Denoisers(), BOTH, TEXT),
  (specs.Denoisers(), PREFIX, TEXT),
  (specs.Supervised(), BOTH, TEXT),
  (specs.Supervised(), PREFIX, TEXT),
  (specs.Classification(labels=('no', 'yes')), CLASSES, dict(inputs=24)),
]


@pytest.fixture(scope='module')
def corpora(tmp_path_factory):
  folder = tmp_path_factory.mktemp('shapes')
  text, pairs = folder / 'text.txt', folder / 'pairs.jsonl'
  text.write_text('\n'.join(['what is said here is of no account'] * 60))
  lines = [{'inputs': 'good', 'targets': 'yes'}] * 40
  pairs.write_text('\n'.join(map(json.dumps, lines)))
  return text, pairs


@pytest.mark.parametrize(
  'objective, model, lengths, pack',
  [
    (*case, pack)
    for case in CASES
    for pack in (False, True)
    if not (pack and case[1].classes)  # one label a row
  ],
)
def test_shapes_are_those_of_the_batches(
  corpora, objective, model, lengths, pack
):
  pairs = type(objective) in PAIRS
  run = tiny.run(
    model,
    objective=objective,
    data=specs.Data(
      corpus=str(corpora[pairs]),
      lengths=lengths,
      held_out=0.0,
      pack=pack,
      documents=specs.Concat() if pairs or not pack else specs.Isolated(),
    ),
  )
  batch = tiny.batches(run, VOCABULARY).at(0, run.batch_size)
  found = {name: (x.shape, x.dtype) for name, x in shapes.batch(run).items()}
  assert found == {name: (x.shape, x.dtype) for name, x in batch.items()}


def test_every_objective_is_tried():
  tried = {type(objective) for objective, *_ in CASES}
  assert tried == set(corruptions.OBJECTIVES)


@pytest.mark.parametrize('name', recipes.names())
def test_every_recipe_has_shapes(name):
  run = config.load([name])
  for shape in shapes.batch(run).values():
    assert shape.shape[0] == run.batch_size
