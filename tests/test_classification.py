"""Classes of texts beside the language model: GPT's fine-tuning."""

import contextlib
import dataclasses
import json
import pathlib
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import t5_numpy

from t5x_lite import data
from t5x_lite import errors
from t5x_lite import evaluate
from t5x_lite import losses
from t5x_lite import models
from t5x_lite import partitioning
from t5x_lite import specs
from t5x_lite import train
from t5x_lite.data import vocabularies
from tests import exact
from tests import tiny

GOLDEN = pathlib.Path(__file__).parent / 'golden' / 'classifier.npz'
VOCABULARY = vocabularies.Bytes(extra_ids=100)
START, DELIMITER, EXTRACT = VOCABULARY.sentinel(np.arange(3)).tolist()
TEXTS = [('good film', 'yes'), ('bad', 'no'), ('', 'no'), ('so so long', 'yes')]


def gpt(**changes):
  """A small GPT."""
  fields = dict(
    vocab_size=384,
    decoder_layers=2,
    embed_dim=32,
    mlp_dim=64,
    num_heads=2,
    head_dim=16,
    position=specs.Learned(length=32),
    norm=specs.LayerNorm(),
    norm_place='post',
    gated=False,
    bias=True,
    tie_embeddings=True,
    scale_logits=False,
    scale_attention=True,
    init=specs.Normal(),
    dropout_kind='token',
    classes=2,
  )
  return specs.Transformer(**fields | changes)


def a_run(corpus='none', model=None, objective=None, **changes):
  fields = dict(
    model=model or gpt(),
    objective=objective or specs.Classification(labels=('no', 'yes')),
    data=specs.Data(
      corpus=str(corpus),
      lengths={'inputs': 10},
      held_out=changes.pop('held_out', 0.0),
    ),
  )
  return tiny.run(**fields | changes)


@pytest.fixture
def corpus(tmp_path):
  file = tmp_path / 'texts.jsonl'
  lines = [{'inputs': x, 'targets': y} for x, y in TEXTS]
  file.write_text('\n'.join(map(json.dumps, lines)))
  return file


def examples(run, split='train'):
  store = data.open_or_build(
    run.data, VOCABULARY, None, data.origin(run, VOCABULARY)
  )
  return data.Batches(run, {run.data.corpus: store}, VOCABULARY, split)


# -- rows ---------------------------------------------------------------------


def test_a_row_is_start_text_extract_and_its_label(corpus):
  found = examples(a_run(corpus))
  batch = next(found.evaluation(5))
  ids = lambda text: VOCABULARY.encode(text).tolist()
  wanted = [ids(x)[:8] for x, _ in TEXTS]
  for n, text in enumerate(wanted):
    row = {name: x[n] for name, x in batch.items()}
    size = len(text) + 2
    read = row['decoder_input_tokens'][:size].tolist()
    assert read == [START, *text, EXTRACT]
    said = row['decoder_target_tokens'][: size - 1].tolist()
    assert said == [*text, EXTRACT]
    counted = [1] * (size - 1) + [0] * (11 - size)
    assert row['decoder_loss_weights'].tolist() == counted
    assert row['decoder_segment_ids'].sum() == size
    assert row['decoder_positions'][:size].tolist() == list(range(size))
  assert batch['labels'].tolist() == [1, 0, 0, 1, 0]
  assert batch['label_weights'].tolist() == [1, 1, 1, 1, 0]
  assert list(found.notes()) == [
    'inputs of 2 of 4 pairs are cut to 9 tokens; Data.lengths sets it'
  ]


def test_two_texts_have_a_delimiter_between(tmp_path):
  file = tmp_path / 'pairs.jsonl'
  file.write_text(json.dumps({'a': 'x', 'b': 'y', 'label': 'yes'}))
  run = a_run(file)
  spec = tiny.replace(run.data, pair=('a', 'b', 'label'))
  batch = next(examples(tiny.replace(run, data=spec)).evaluation(1))
  x, y = (VOCABULARY.encode(text)[0] for text in 'xy')
  assert batch['decoder_input_tokens'][0, :5].tolist() == [
    START, x, DELIMITER, y, EXTRACT,
  ]  # fmt: skip


@pytest.mark.parametrize(
  'changes, what',
  [
    (
      {'model': gpt(classes=3)},
      'classes is not the number.*got 3 for 2 labels',
    ),
    ({'model': gpt(mask='prefix')}, 'a decoder alone that sees no later token'),
    ({'model': gpt(encoder_layers=2)}, 'a decoder alone'),
    (
      {'objective': specs.CausalLM()},
      'CausalLM has no classes, and Transformer.classes is set',
    ),
  ],
)
def test_what_does_not_go_together(changes, what):
  run = a_run(**changes)
  if isinstance(run.objective, specs.CausalLM):
    lengths = tiny.replace(run.data, lengths={'targets': 10})
    run = tiny.replace(run, data=lengths)
  with pytest.raises(errors.ConfigError, match=what):
    data.check(run, VOCABULARY)


@pytest.mark.parametrize('labels', [('a',), ('a', 'a'), ()])
def test_labels_that_are_none(labels):
  with pytest.raises(errors.ConfigError, match=r'Classification\.labels'):
    specs.Classification(labels=labels)


def test_targets_that_are_no_label(corpus):
  run = a_run(corpus, objective=specs.Classification(labels=('no', 'yess')))
  with pytest.raises(errors.DataError) as found:
    examples(run)
  text = str(found.value)
  assert 'none of Classification.labels at train of' in text
  assert "pair 0; got 'yes', expected 'no' or 'yess'" in text
  assert 'did you mean yess' in text


@pytest.mark.parametrize(
  'extra_ids, what', [(2, 'needs three sentinels'), (100, None)]
)
def test_sentinels_that_it_needs(extra_ids, what):
  refuse = pytest.raises(errors.ConfigError, match=what) if what else None
  with refuse or contextlib.nullcontext():
    data.check(a_run(), vocabularies.Bytes(extra_ids))


# -- losses -------------------------------------------------------------------


def l3(model, params, batch, lm_weight=0.5):
  """L2 + lm_weight * L1 as the report has it, and what it is made of."""
  logits_BLV, classes_BC = model.classify(params, batch)
  wide = classes_BC.dtype
  class_loss, found = losses.classes(
    classes_BC, batch['labels'], batch['label_weights'].astype(wide)
  )
  lm, weight, _ = losses.cross_entropy(
    logits_BLV,
    batch['decoder_target_tokens'],
    batch['decoder_loss_weights'].astype(wide),
  )
  class_loss /= jnp.sum(batch['label_weights'].astype(wide))
  lm /= weight
  return class_loss + lm_weight * lm, (lm, class_loss, classes_BC)


def parity(case, shape):
  """Compares with transformers' numbers in float64."""
  spec = gpt(
    vocab_size=shape['vocab_size'],
    decoder_layers=shape['layers'],
    embed_dim=shape['embed_dim'],
    mlp_dim=4 * shape['embed_dim'],
    num_heads=shape['num_heads'],
    head_dim=shape['embed_dim'] // shape['num_heads'],
    position=specs.Learned(length=shape['length']),
    classes=shape['classes'],
    dtype='float64',
  )
  params = {path: x.astype(np.float64) for path, x in case['params'].items()}
  with jax.enable_x64(True):
    model = models.build(spec)
    assert {x: y.shape for x, y in params.items()} == {
      partitioning.path_name(path): x.shape
      for path, x in jax.tree_util.tree_leaves_with_path(model.abstract)
    }
    measured = jax.jit(
      jax.value_and_grad(lambda *x: l3(model, *x), has_aux=True)
    )
    (total, (lm, class_loss, classes_BC)), grads = measured(
      exact.nest(params), case['batch']
    )
  np.testing.assert_allclose(classes_BC, case['class_logits'], atol=1e-9)
  assert abs(float(lm) - case['loss']) < 1e-10
  assert abs(float(class_loss) - case['class_loss']) < 1e-10
  assert abs(float(total) - case['class_loss'] - 0.5 * case['loss']) < 1e-10
  found = exact.flatten(grads)
  assert found.keys() == case['grads'].keys()
  for path, grad in case['grads'].items():
    np.testing.assert_allclose(found[path], grad, atol=1e-8, err_msg=path)


def test_loss_and_gradients_are_those_of_transformers():
  with np.load(GOLDEN, allow_pickle=False) as file:
    arrays = dict(file)
  case = {
    name: t5_numpy.below(arrays, f'{name}/')
    for name in ('params', 'batch', 'grads')
  }
  case |= {
    name: arrays[name] for name in ('loss', 'class_loss', 'class_logits')
  }
  shape = dict(
    vocab_size=40, layers=2, embed_dim=12, num_heads=3, length=16, classes=3
  )
  parity(case, shape)


def batch_of(size=8, width=12, seed=0):
  """Rows of unequal lengths with labels."""
  rng = np.random.default_rng(seed)
  real_B = rng.integers(3, width + 1, size)
  segments_BL = (np.arange(width) < real_B[:, None]).astype(np.int32)
  tokens_BL = rng.integers(3, 259, (size, width)).astype(np.int32) * segments_BL
  counts_BL = np.arange(width) < real_B[:, None] - 1
  said_BL = np.pad(tokens_BL[:, 1:], ((0, 0), (0, 1))) * counts_BL
  return {
    'decoder_input_tokens': tokens_BL,
    'decoder_target_tokens': said_BL,
    'decoder_loss_weights': counts_BL.astype(np.float32),
    'decoder_segment_ids': segments_BL,
    'decoder_positions': np.arange(width, dtype=np.int32) * segments_BL,
    'labels': rng.integers(0, 2, size).astype(np.int32),
    'label_weights': np.ones(size, np.float32),
  }


def kept(run, batch, devices):
  """Metrics and gradients of one step."""
  mesh = partitioning.make_mesh(run.mesh, jax.devices()[:devices])
  with tiny.kept_gradients(), jax.set_mesh(mesh):
    program = train.Program.build(run, mesh)
    state = tiny.state(program)
    params = jax.device_get(state['params'])
    step = program.compile_step(batch)
    on_mesh = partitioning.put_batch(batch, mesh, run.batch_size)
    state, metrics = step(state, on_mesh)
    grads = state['opt_state']
    grads = grads.get('tensors', grads)
    return jax.device_get(metrics), exact.flatten(grads), params


@pytest.mark.parametrize(
  'microbatches, devices, lm_weight', [(1, 1, 0.5), (4, 1, 0.5), (2, 4, 0.3)]
)
def test_levanter_842_each_loss_has_its_own_denominator(
  microbatches, devices, lm_weight
):
  """Whatever the microbatches, of rows with other numbers of tokens."""
  objective = specs.Classification(labels=('no', 'yes'), lm_weight=lm_weight)
  run = a_run(objective=objective, microbatches=microbatches, z_loss=0.0)
  batch = batch_of()
  with jax.enable_x64(True):
    metrics, grads, params = kept(run, batch, devices)
    wanted = jax.jit(
      jax.value_and_grad(
        lambda p: l3(models.build(run.model), p, batch, lm_weight), has_aux=True
      )
    )
    (_, (lm, class_loss, classes_BC)), expected = wanted(params)
  for path, grad in exact.flatten(expected).items():
    np.testing.assert_allclose(
      grads[path], grad, rtol=2e-5, atol=2e-6, err_msg=path
    )
  np.testing.assert_allclose(metrics['loss'], lm, rtol=1e-5)
  np.testing.assert_allclose(metrics['class_loss'], class_loss, rtol=1e-5)
  right = np.mean(np.argmax(classes_BC, 1) == batch['labels'])
  np.testing.assert_allclose(metrics['class_accuracy'], right, rtol=1e-6)
  assert metrics['weight'] == batch['decoder_loss_weights'].sum()


def test_nothing_behind_the_extract_token_counts():
  model = models.build(gpt())
  params, batch = tiny.params(model), batch_of()
  _, classes_BC = jax.jit(model.classify)(params, batch)
  hidden = batch['decoder_segment_ids'] == 0
  other = batch | {
    'decoder_input_tokens': np.where(hidden, 7, batch['decoder_input_tokens'])
  }
  _, again_BC = jax.jit(model.classify)(params, other)
  np.testing.assert_array_equal(classes_BC, again_BC)


def test_dropout_is_on_what_the_class_is_read_from():
  """Only there: the language model's logits come from before it."""
  spec = gpt(dropout=0.5)
  model = models.build(spec)
  params, batch = tiny.params(model), batch_of(size=4)
  keys = train.dropout_keys(0, 0, 4)
  logits_BLV, classes_BC = jax.jit(model.classify)(params, batch, keys)
  np.testing.assert_array_equal(
    logits_BLV, jax.jit(model.apply)(params, batch, keys)
  )
  assert (
    np.abs(classes_BC - jax.jit(model.classify)(params, batch)[1]).max() > 0
  )


# -- a run --------------------------------------------------------------------


def test_it_learns_and_is_measured(tmp_path):
  """Which of two letters a text is made of, held out and in training."""
  file = tmp_path / 'letters.jsonl'
  with file.open('w') as f:
    for n in range(400):
      odd = zlib.crc32(str(n).encode()) % 2
      text = ('ab'[odd] + f'{n}')[:6]
      line = {'inputs': text, 'targets': ('no', 'yes')[odd]}
      f.write(json.dumps(line) + '\n')
  model = gpt(init=specs.Normal(std=0.2))
  run = a_run(file, model, held_out=0.2, batch_size=32, steps=40)
  adam = dataclasses.replace(
    run.optimizer, schedule=specs.Schedule(peak=0.05, decay='constant')
  )
  run = dataclasses.replace(run, optimizer=adam)
  mesh = partitioning.make_mesh(run.mesh, jax.devices()[:1])
  found, held = examples(run), examples(run, 'validation')
  with jax.set_mesh(mesh):
    program = train.Program.build(run, mesh)
    measure = evaluate.HeldOut(program.model, held, VOCABULARY, mesh, 32)
    state = program.init()
    before = measure(state['params'])
    step = program.compile_step(found.at(0, 32))
    for n in range(run.steps):
      batch = partitioning.put_batch(found.at(32 * n, 32), mesh, 32)
      state, metrics = step(state, batch)
    after = measure(state['params'])
  assert 0.3 < before['class_accuracy'] < 0.7
  assert after['class_accuracy'] == 1.0 and after['class_loss'] < 0.2
  assert after['loss'] < before['loss'] and metrics['class_accuracy'] == 1
  assert set(after) <= {*evaluate.METRICS, *evaluate.CLASSES}
