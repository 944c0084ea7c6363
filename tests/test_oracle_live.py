"""Live against transformers: other seeds and shapes than the golden files'.

Run by `make oracle`. Everything is made here, nothing is downloaded.
"""

import adafactor_reference
import numpy as np
import pytest
import test_t5_parity as parity

from t5x_lite import models
from tests import exact

torch = pytest.importorskip('torch', reason='needs torch; run `make oracle`')
pytest.importorskip(
  'transformers', reason='needs transformers; run `make oracle`'
)

from golden import make_t5_goldens as goldens  # noqa: E402
from transformers import optimization  # noqa: E402

pytestmark = pytest.mark.oracle

OTHER = {
  'vocab_size': 50,
  'encoder_layers': 3,
  'decoder_layers': 1,
  'embed_dim': 16,
  'mlp_dim': 40,
  'num_heads': 5,
  'head_dim': 4,
  'buckets': 12,
  'max_distance': 50,
}
CASES = {
  't5_1_0': goldens.SYSTEMS['t5_1_0'],
  't5_1_1': goldens.SYSTEMS['t5_1_1'],
  'umt5': goldens.SYSTEMS['umt5'],
  'relu_untied': goldens.SYSTEMS['t5_1_0'] | {'tie_embeddings': False},
  'gated_tied': goldens.SYSTEMS['t5_1_1'] | {'tie_embeddings': True},
  'umt5_tied': goldens.SYSTEMS['umt5'] | {'tie_embeddings': True},
}


def case_of(name, seed):
  choices = OTHER | CASES[name]
  return choices, goldens.make_case(choices, seed)


@pytest.mark.parametrize('seed, name', [*enumerate(CASES, start=100)])
def test_logits_loss_and_gradients(name, seed):
  choices, case = case_of(name, seed)
  spec = parity.make_spec(choices, dtype='float64')
  batch, grads = case['batch'], case['grads']
  got_BLV, loss, got_grads = parity.measure(spec, case['params'], batch)
  valid_BL = batch['decoder_segment_ids'] > 0
  np.testing.assert_allclose(
    got_BLV[valid_BL], case['logits'][valid_BL], rtol=0, atol=1e-9
  )
  assert abs(loss - case['loss']) < 1e-10
  assert got_grads.keys() == grads.keys()
  for path, grad in grads.items():
    np.testing.assert_allclose(
      got_grads[path], grad, rtol=0, atol=1e-8, err_msg=path
    )


@pytest.mark.parametrize('seed, name', [*enumerate(goldens.SYSTEMS, start=200)])
def test_packed_equals_each_example_alone(name, seed):
  """transformers can't pack: it runs each example by itself."""
  choices = OTHER | CASES[name]
  lengths = [(70, 40), (5, 17), (33, 60)]
  room = (128, 128)
  packed = parity.pack(choices['vocab_size'], lengths, room, seed)
  theirs = goldens.make_model(choices, seed)
  named = dict(theirs.named_parameters())
  params = goldens.to_tree(
    choices, {name: p.detach().numpy() for name, p in named.items()}
  )
  with exact.float64():
    model = models.build(parity.make_spec(choices, dtype='float64'))
    got_BLV = exact.run(model.apply)(exact.nest(params), packed)
  for n, _ in enumerate(lengths, start=1):
    alone = {
      name: row[packed[f'{name[:7]}_segment_ids'] == n][None]
      for name, row in packed.items()
    }
    alone['encoder_segment_ids'] = alone['encoder_segment_ids'] // n
    expected_BLV, _ = goldens.run_model(theirs, alone)
    mine_BL = packed['decoder_segment_ids'] == n
    np.testing.assert_allclose(
      np.asarray(got_BLV)[mine_BL], expected_BLV[0], rtol=0, atol=1e-9
    )


@pytest.mark.parametrize('beta1', [None, 0.9])
def test_adafactor_reference_equals_transformers(beta1):
  """Where T5X factors, theirs is the same; they factor small matrices too."""
  rng = np.random.default_rng(300)
  param = rng.standard_normal((130, 140))
  grads = rng.standard_normal((5, 1, 1)) * rng.standard_normal((5, 130, 140))
  rates = [0.1, 0.3, 0.2, 0.2, 0.1]
  tensor = torch.nn.Parameter(torch.from_numpy(param.copy()))
  theirs = optimization.Adafactor(
    [tensor], lr=rates[0], beta1=beta1, relative_step=False
  )
  for grad, rate in zip(grads, rates, strict=True):
    theirs.param_groups[0]['lr'] = rate
    tensor.grad = torch.from_numpy(grad)
    theirs.step()
  expected = adafactor_reference.run(param, grads, rates, beta1=beta1)
  np.testing.assert_allclose(tensor.detach().numpy(), expected, atol=1e-12)
