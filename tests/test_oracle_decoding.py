"""Beam search live against transformers' `generate`, in float64.

Theirs with early_stopping='never', which ends a search when nothing better can
come, as ours does. Its other settings may end before that.
"""

import jax
import numpy as np
import pytest
import test_t5_parity as parity

from t5x_lite import decoding
from t5x_lite import models
from t5x_lite import specs
from tests import exact

torch = pytest.importorskip('torch', reason='needs torch; run `make oracle`')
transformers = pytest.importorskip(
  'transformers', reason='needs transformers; run `make oracle`'
)

from golden import make_t5_goldens as goldens  # noqa: E402

pytestmark = pytest.mark.oracle

EOS, LENGTH, ROWS = 1, 8, 6
SIZES = (
  goldens.SHAPE
  | goldens.SYSTEMS['t5_1_1']
  | {'vocab_size': 12, 'decoder_layers': 2}  # their cache wants as many
)


def generate(model, tokens, mask, **settings):
  """(tokens after the start, scores) of their `generate`."""
  with goldens.float64_inside(), torch.inference_mode():
    found = model.generate(
      torch.from_numpy(tokens).long(),
      attention_mask=torch.from_numpy(mask).long(),
      generation_config=transformers.GenerationConfig(
        max_new_tokens=LENGTH,
        eos_token_id=EOS,
        pad_token_id=0,
        decoder_start_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
        **settings,
      ),
    )
  rows = found.sequences[:, 1:].numpy()
  rows = np.pad(rows, ((0, 0), (0, LENGTH - rows.shape[1])))
  # Behind the end of a beam theirs has more ends.
  rows[np.cumsum(rows == EOS, axis=1) - (rows == EOS) > 0] = 0
  scores = found.get('sequences_scores')
  return rows, None if scores is None else scores.numpy()


@pytest.mark.parametrize('alpha', [None, 1.0, 0.0, 2.0, 0.3])
@pytest.mark.parametrize('seed', [0, 1])
def test_greedy_and_beams_are_theirs(seed, alpha):
  theirs = goldens.make_model(SIZES, seed)
  # Some sequences end early, some late, some not at all.
  theirs.lm_head.weight.data[EOS] *= 1.5
  rng = np.random.default_rng(seed)
  tokens = rng.integers(2, 12, (ROWS, 9), dtype=np.int32)
  mask = (np.arange(9) < rng.integers(3, 10, (ROWS, 1))).astype(np.int32)
  if alpha is None:
    spec, returned = specs.Greedy(), 1
    rows, scores = generate(theirs, tokens, mask, num_beams=1)
  else:
    returned = 3
    spec = specs.Beam(
      beams=4, returned=returned, penalty='hf', length_penalty=alpha
    )
    rows, scores = generate(
      theirs,
      tokens,
      mask,
      num_beams=4,
      num_return_sequences=returned,
      length_penalty=alpha,
      early_stopping='never',
    )
  named = {k: p.detach().numpy() for k, p in theirs.named_parameters()}
  with exact.float64():
    model = models.build(parity.make_spec(SIZES, dtype='float64'))
    batch = decoding.prompts.batch(
      model.spec, [row[m > 0] for row, m in zip(tokens, mask)], 9, 0
    )
    found = jax.jit(
      lambda params: decoding.decode(
        model, params, batch, spec, LENGTH, 12, EOS
      )
    )(exact.nest(goldens.to_tree(SIZES, named)))
  ours, _, ranks = map(np.asarray, found)
  assert np.array_equal(ours.reshape(-1, LENGTH), rows)
  if scores is not None:  # theirs are in float32
    np.testing.assert_allclose(ranks.reshape(-1), scores, rtol=1e-5)
  ended = (rows == EOS).any(1)
  assert seed or (ended.any() and not ended.all())
