"""Weights both ways, live against transformers. Run by `make oracle`."""

import dataclasses

import numpy as np
import pytest

from t5x_lite import decoding
from t5x_lite import models
from t5x_lite import specs
from t5x_lite.interop import huggingface
from tests import exact
from tests import hugging
from tests import systems
from tests import trunk_parity

torch = pytest.importorskip('torch', reason='needs torch; run `make oracle`')
pytest.importorskip(
  'transformers', reason='needs transformers; run `make oracle`'
)

import transformers  # noqa: E402

from tests.golden import make_huggingface as golden  # noqa: E402
from tests.golden import oracles  # noqa: E402

pytestmark = pytest.mark.oracle

ODD = dict(vocab_size=37, embed_dim=24, mlp_dim=28, num_heads=6, head_dim=4)
FREE = dict(num_heads=5)  # where heads need not divide the width
NEW = 7  # tokens that are generated


def sizes(name):
  found = ODD | (dict(mlp_dim=96) if name == 'gpt' else {})
  if name.startswith(('t5', 'ul2', 'umt5', 'llama')):
    found |= FREE
  if name == 'llama':
    found |= dict(num_heads=6, num_kv_heads=3, head_dim=10)
  if name.startswith(('t5', 'umt5')) and name != 't5_shared':
    position = dict(per_layer=name == 'umt5', buckets=6, max_distance=9)
    found |= dict(position=specs.T5Bias(**position), encoder_layers=3)
  return found


def load(folder, class_name):
  found, told = getattr(transformers, class_name).from_pretrained(
    folder, attn_implementation='eager', output_loading_info=True
  )
  assert not any(told[key] for key in told), told
  return found.double().eval()


def trained(spec, params, batch):
  """Float32 parameters after five steps of AdamW here."""
  with exact.float64():
    model = models.build(spec)
    wide = {path: x.astype(np.float64) for path, x in params.items()}
    steps = trunk_parity.Steps(wide)
    measure = trunk_parity.loss_and_gradients(model, batch)
    for _ in range(systems.STEPS):
      _, grads = measure(exact.nest(steps.params))
      steps(exact.flatten(grads))
  return {path: x.astype(np.float32) for path, x in steps.params.items()}


def our_logits(spec, params, batch):
  with exact.float64():
    wide = {path: x.astype(np.float64) for path, x in params.items()}
    apply = exact.run(models.build(spec).apply)
    return np.asarray(apply(exact.nest(wide), batch))


def our_tokens(spec, params, inputs):
  with exact.float64():
    batch = decoding.prompts.batch(
      spec, inputs, 16, 0 if spec.encoder_layers else None
    )
    wide = {path: x.astype(np.float64) for path, x in params.items()}
    tokens, _, _ = decoding.decode(
      models.build(spec),
      exact.nest(wide),
      batch,
      specs.Greedy(),
      NEW,
      spec.vocab_size,
      1,
    )
  return np.asarray(tokens)[:, 0]


def their_tokens(model, inputs, spec):
  found = []
  for row in inputs:
    with oracles.float64_inside(), torch.no_grad():
      out = model.generate(
        torch.tensor([row]), max_new_tokens=NEW, do_sample=False, num_beams=1
      )[0].tolist()
    new = out[1 if spec.encoder_layers else len(row) :]
    found.append(new + [0] * (NEW - len(new)))
  return np.array(found)


@pytest.mark.parametrize('seed, name', [*enumerate(hugging.MODELS, start=700)])
def test_there_trained_and_back(tmp_path, seed, name):
  spec, batch, theirs_BLV = golden.make(
    name, seed, tmp_path / 'in', **sizes(name)
  )
  said, read, params = huggingface.read(tmp_path / 'in')
  read = dataclasses.replace(read, dtype='float64')
  side = 'decoder' if spec.decoder_layers else 'encoder'
  valid_BL = batch[f'{side}_segment_ids'] > 0
  np.testing.assert_allclose(
    our_logits(read, params, batch)[valid_BL],
    theirs_BLV[valid_BL],
    rtol=0,
    atol=1e-9,
  )
  new = trained(read, params, batch)
  assert any((new[path] != params[path]).any() for path in params)
  out = tmp_path / 'out'
  out.mkdir()
  ids = {'pad_token_id': 0, 'eos_token_id': 1, 'decoder_start_token_id': 0}
  class_name = huggingface.write(out, read, new.get, 'float32', 4000, ids)
  assert class_name == said['architectures'][0]
  model = load(out, class_name)
  oracle = oracles.ORACLES[hugging.oracle(name)]
  _, again_BLV = golden.run(oracle, model, spec, seed)
  ours_BLV = our_logits(read, new, batch)
  np.testing.assert_allclose(
    ours_BLV[valid_BL], again_BLV[valid_BL], rtol=0, atol=1e-9
  )
  if not spec.decoder_layers:
    return
  rng = np.random.default_rng(seed)
  inputs = [rng.integers(2, spec.vocab_size, n).tolist() for n in (3, 8, 5)]
  np.testing.assert_array_equal(
    our_tokens(read, new, inputs), their_tokens(model, inputs, spec)
  )


@pytest.mark.parametrize('name', ['t5_1_0', 't5_1_1', 'umt5'])
def test_hf_20907_the_encoder_alone_of_our_export(tmp_path, name):
  """transformers#20907: T5EncoderModel reads our export, and no decoder."""
  spec, params = hugging.make(name, dtype='float32', **sizes(name)), {}
  rng = np.random.default_rng(7)
  for path, p in exact.flatten(models.build(spec).abstract).items():
    drawn = systems.STD * rng.standard_normal(p.shape)
    params[path] = (drawn + path.endswith('scale')).astype(np.float32)
  ids = {'pad_token_id': 0, 'eos_token_id': 1, 'decoder_start_token_id': 0}
  huggingface.write(tmp_path, spec, params.get, 'float32', 10**9, ids)
  class_name = 'UMT5EncoderModel' if name == 'umt5' else 'T5EncoderModel'
  model, told = getattr(transformers, class_name).from_pretrained(
    tmp_path, output_loading_info=True
  )
  assert not told['missing_keys'] and not told['mismatched_keys']
  left = {key.split('.')[0] for key in told['unexpected_keys']}
  assert left <= {'decoder', 'lm_head'}
  batch = systems.make_batch(spec, 7)
  alone = dataclasses.replace(spec, decoder_layers=0, tie_embeddings=True)
  paths = exact.flatten(models.build(alone).abstract)
  own = {path: params[path] for path in paths}
  alone = dataclasses.replace(alone, dtype='float64')
  oracle = oracles.ORACLES['t5_encoder']
  valid_BL = batch['encoder_segment_ids'] > 0
  with oracles.float64_inside(), torch.no_grad():
    theirs_BLV = oracle.run(model.double().eval(), batch).numpy()
  np.testing.assert_allclose(
    our_logits(alone, own, batch)[valid_BL],
    theirs_BLV[valid_BL],
    rtol=0,
    atol=1e-9,
  )
