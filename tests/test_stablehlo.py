"""Exported programs against the model that they are of."""

import functools
import json
import re
import subprocess
import sys
import types

import jax
from jax import export as jax_export
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import flax as safetensors

from t5x_lite import decoding
from t5x_lite import models
from t5x_lite import partitioning
from t5x_lite import specs
from t5x_lite.corruptions import features
from t5x_lite.interop import stablehlo
from tests import exact
from tests import tiny

VOCABULARY = types.SimpleNamespace(size=120, eos_id=1, pad_id=0, start_id=0)
BERT = dict(decoder_layers=0, segments=2, position=specs.Learned(length=40))
GPT = dict(
  encoder_layers=0,
  norm=specs.LayerNorm(),
  gated=False,
  bias=True,
  tie_embeddings=True,
  scale_attention=True,
)
SHAPES = {
  't5': dict(dropout=0.1, remat='full', attention='fused'),
  'prefix': GPT
  | dict(
    position=specs.Learned(length=40),
    mask='prefix',
    windows=(4,),
    num_kv_heads=2,
  ),
  'llama': dict(
    encoder_layers=0, position=specs.Rope(), num_kv_heads=2, windows=(0, 3)
  ),
  'umt5': dict(position=specs.T5Bias(per_layer=True), tie_embeddings=True),
  'windows': dict(windows=(3, 0), num_kv_heads=1, remat='dots', unroll=2),
  'marian': dict(
    position=specs.Sinusoid(), norm_place='post', share_stacks=True
  ),
  'bart': dict(position=specs.Learned(length=40), embedding_norm=True),
  'rotary': dict(position=specs.Rope(pairs='neighbours'), norm_place='both'),
  'none': dict(position=None),
  'types': dict(segments=2),
  'gpt': GPT | dict(position=specs.Learned(length=40), attention='chunked'),
  'bloom': GPT | dict(position=specs.Alibi(), num_heads=6, classes=3),
  't5_decoder': GPT | dict(position=specs.T5Bias()),
  'prefix_t5': GPT | dict(position=specs.T5Bias(), mask='prefix'),
  'prefix_rotary': GPT | dict(position=specs.Rope(), mask='prefix'),
}
FLOAT32 = dict(rtol=2e-5, atol=2e-5)


def rows_of(seed, count, shortest, longest):
  """Rows of unequal length, one of them the longest and one the shortest."""
  rng = np.random.default_rng(seed)
  sizes = rng.integers(shortest, longest + 1, count)
  sizes[-1], sizes[0] = shortest, longest
  return [rng.integers(1, 120, size).tolist() for size in sizes]


def padded(rows):
  return features.pad_rows(rows, max(map(len, rows)))


def until_end(tokens):
  """True to and with the first end of each row."""
  ends = (tokens == VOCABULARY.eos_id).cumsum(1)
  return (ends - (tokens == VOCABULARY.eos_id)) == 0


class Exported:
  """A model with parameters, and its programs as a server has them."""

  def __init__(self, weights='float32', **shape):
    self.run = tiny.run(tiny.transformer(**shape))
    self.spec, self.model = self.run.model, models.build(self.run.model)
    self.params = jax.tree.map(
      lambda x: jnp.asarray(x).astype(weights), tiny.params(self.model)
    )
    self.files = stablehlo.export(self.run, VOCABULARY, weights)
    self.weights = exact.flatten(self.params)
    self.about = json.loads(self.files['stablehlo.json'])

  @functools.cached_property
  def programs(self):
    return {
      name: exact.run(self.read(name).call) for name in self.about['programs']
    }

  def read(self, name):
    return jax_export.deserialize(bytearray(self.files[f'{name}.stablehlo']))

  def call(self, name, *arrays):
    return jax.device_get(self.programs[name](self.weights, *arrays))

  @functools.cached_property
  def _apply(self):
    return exact.run(self.model.apply)

  def kinds(self, inputs):
    return {'encoder_type_ids': inputs[0] % 2} if self.spec.segments else {}

  def say(self, inputs, targets):
    """The model's log probabilities [N, V] of all N places of targets."""
    batch = features.of_stack(self.spec, (*inputs, *targets), 0)
    logits = self._apply(self.params, batch | self.kinds(inputs))
    log_probs = np.asarray(jax.nn.log_softmax(logits))
    return log_probs[batch['decoder_loss_weights'] > 0]

  def check_score(self, count, longest, tolerance):
    """Each target's log probability is as the model has it."""
    inputs = padded(rows_of(1, count, 0, longest))
    targets = padded(rows_of(2, count, 1, longest // 2))
    kinds = self.kinds(inputs).values()
    found = self.call('score', *inputs, *kinds, *targets)['log_probs']
    here = np.arange(found.shape[1]) < targets[1][:, None]
    expected = self.say(inputs, targets)
    assert found.dtype == expected.dtype
    assert np.all(found[~here] == 0)
    places = np.arange(len(expected)), targets[0][here]
    np.testing.assert_allclose(found[here], expected[places], **tolerance)

  def check_greedy(self, count, longest, length, tolerance):
    """Each token is the likeliest, with its log probability."""
    inputs = padded(rows_of(3, count, 0, longest))
    room = np.zeros(length, np.int32)
    kinds = self.kinds(inputs).values()
    found = self.call('greedy', *inputs, *kinds, room)
    tokens, here = found['tokens'], until_end(found['tokens'])
    expected = self.say(inputs, (tokens, here.sum(1)))
    np.testing.assert_array_equal(
      tokens[here], expected[:, : VOCABULARY.size].argmax(-1)
    )
    assert np.all(tokens[~here] == 0)
    np.testing.assert_allclose(
      found['log_probs'][here],
      expected[:, : VOCABULARY.size].max(-1),
      **tolerance,
    )
    return found

  def check_decode(self, count, longest, length, tolerance):
    """Greedy decoding is as infer.Predictor does it."""
    rows = rows_of(3, count, 0, longest)
    inputs = padded(rows)
    kinds = self.kinds(inputs)
    room = np.zeros(length, np.int32)
    found = self.call('greedy', *inputs, *kinds.values(), room)
    batch = decoding.prompts.batch(self.spec, rows, inputs[0].shape[1], 0)
    decode = functools.partial(
      decoding.decode,
      self.model,
      spec=specs.Greedy(),
      num_ids=VOCABULARY.size,
      eos_id=VOCABULARY.eos_id,
      length=length,
    )
    tokens, log_probs, _ = exact.run(decode)(self.params, batch | kinds)
    np.testing.assert_array_equal(found['tokens'], tokens[:, 0])
    np.testing.assert_allclose(found['log_probs'], log_probs[:, 0], **tolerance)


@pytest.fixture(scope='module')
def t5():
  return Exported(**SHAPES['t5'])


def test_programs_say_what_the_model_does():
  exported = Exported(**SHAPES['prefix'])
  exported.check_score(3, 8, FLOAT32)
  exported.check_greedy(3, 8, 4, FLOAT32)


@pytest.mark.slow
@pytest.mark.parametrize('name', SHAPES)
def test_programs_are_exact_in_float64(name):
  exact_to = dict(rtol=1e-11, atol=1e-11)
  with exact.float64():
    exported = Exported(**SHAPES[name], dtype='float64')
    exported.check_score(5, 9, exact_to)
    exported.check_decode(5, 9, 4, exact_to)
    if name in ('t5', 'prefix', 'llama'):
      exported.check_score(1, 17, exact_to)
      exported.check_greedy(2, 3, 1, exact_to)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['t5', 'gpt', 'prefix', 'llama'])
def test_programs_in_bfloat16(name):
  exported = Exported('bfloat16', **SHAPES[name], dtype='bfloat16')
  exported.check_score(5, 9, dict(rtol=1e-2, atol=1e-2))
  exported.check_decode(5, 9, 7, dict(rtol=1e-2, atol=1e-2))


@pytest.mark.slow
def test_a_program_runs_on_a_mesh(t5):
  """Weights and rows lie where a server puts them."""
  mesh = partitioning.make_mesh(specs.Mesh(data=4, tensor=2))
  places = exact.flatten(
    partitioning.shardings(t5.model.abstract, t5.model.axes, mesh)
  )
  weights = jax.tree.map(jax.device_put, t5.weights, places)
  inputs = padded(rows_of(1, 8, 0, 8))
  spread = jax.device_put(inputs, partitioning.batch_sharding(mesh))
  room = np.zeros(4, np.int32)
  found = exact.run(t5.read('greedy').call)(weights, *spread, room)
  expected = t5.call('greedy', *inputs, room)
  np.testing.assert_array_equal(found['tokens'], expected['tokens'])
  np.testing.assert_allclose(
    found['log_probs'], expected['log_probs'], **FLOAT32
  )


def test_programs_have_nothing_of_one_platform_or_machine(t5):
  """All is left to the compiler; only sizes are checked by a call."""
  for name in t5.about['programs']:
    program = t5.read(name)
    assert program.platforms == ('cpu', 'tpu', 'cuda')
    text = program.mlir_module()
    assert '.py' not in text
    calls = set(re.findall(r'custom_call @(\w+)', text))
    assert calls <= {'shape_assertion'}, calls


def test_an_encoder_alone_has_logits_only():
  bert = Exported(**BERT)
  assert list(bert.about['programs']) == ['logits']
  tokens, lengths = padded(rows_of(5, 3, 1, 9))
  found = bert.call('logits', tokens, lengths, tokens % 2)['logits']
  batch = stablehlo._encoder(tokens, lengths, tokens % 2)
  expected = exact.run(bert.model.apply)(bert.params, batch)
  np.testing.assert_allclose(found, expected, **FLOAT32)


CHILD = """
import runpy, sys
sys.modules |= dict.fromkeys(['t5x_lite', 'flax', 'torch', 'tensorflow'])
served = runpy.run_path(sys.argv[1] + '/serve.py')
model = served['Model'](sys.argv[1])
inputs, targets = [[7, 8, 1], [9, 1]], [[5, 1], [6, 4, 3, 1]]
import json
print(json.dumps([model.score(inputs, targets), model.greedy(inputs, 4)]))
"""


def test_the_script_needs_nothing_of_ours(t5, tmp_path):
  for name, data in t5.files.items():
    (tmp_path / name).write_bytes(data)
  names = sorted(t5.weights)
  for n in range(2):
    shard = {name: t5.weights[name] for name in names[n::2]}
    file = tmp_path / f'weights-0000{n + 1}-of-00002.safetensors'
    safetensors.save_file(shard, file)
  child = subprocess.run(
    [sys.executable, '-W', 'error', '-c', CHILD, str(tmp_path)],
    cwd=tmp_path,
    capture_output=True,
    text=True,
  )
  assert child.returncode == 0, child.stderr
  scores, rows = json.loads(child.stdout)
  inputs, targets = padded([[7, 8, 1], [9, 1]]), padded([[5, 1], [6, 4, 3, 1]])
  said = t5.say(inputs, targets)
  log_p = said[np.arange(6), [5, 1, 6, 4, 3, 1]]
  np.testing.assert_allclose(
    scores, [log_p[:2].sum(), log_p[2:].sum()], rtol=1e-5
  )
  said = t5.say(inputs, features.pad_rows(rows, 4))
  assert said[:, : VOCABULARY.size].argmax(-1).tolist() == sum(rows, [])
  assert all(len(row) == 4 or row[-1] == 1 for row in rows)
