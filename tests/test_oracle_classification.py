"""GPT's fine-tuning live against transformers: other seeds and shapes."""

import pytest
import test_classification as ours

pytest.importorskip('torch', reason='needs torch; run `make oracle`')
pytest.importorskip(
  'transformers', reason='needs transformers; run `make oracle`'
)

from golden import make_classifier_golden as golden  # noqa: E402

pytestmark = pytest.mark.oracle

OTHER = {
  'vocab_size': 51,
  'layers': 3,
  'embed_dim': 20,
  'num_heads': 5,
  'length': 18,
  'classes': 4,
}


@pytest.mark.parametrize('shape, seed', [(golden.SHAPE, 7), (OTHER, 8)])
def test_losses_and_gradients(shape, seed):
  ours.parity(golden.make_case(shape, seed), shape)
