"""Every architecture live against transformers: other seeds, sizes, choices.

Run by `make oracle`. Everything is made here, nothing is downloaded.
"""

import pytest

from t5x_lite import config
from t5x_lite import models
from t5x_lite import recipes
from t5x_lite import specs
from tests import systems
from tests import trunk_parity

torch = pytest.importorskip('torch', reason='needs torch; run `make oracle`')
pytest.importorskip(
  'transformers', reason='needs transformers; run `make oracle`'
)

from tests.golden import make_trunk_goldens as goldens  # noqa: E402
from tests.golden import oracles  # noqa: E402

pytestmark = pytest.mark.oracle

T5_RELU = dict(activation='relu', gated=False)
PER_LAYER = specs.T5Bias(buckets=10, max_distance=9, per_layer=True)
CASES = {name: (name, {}) for name in systems.SYSTEMS} | {
  't5_lm_gated': ('t5_lm', dict(activation='gelu', gated=True)),
  't5_lm_untied': ('t5_lm', dict(tie_embeddings=False)),
  't5_prefix_lm_relu': ('t5_prefix_lm', T5_RELU | dict(tie_embeddings=True)),
  'umt5_prefix_lm': ('t5_prefix_lm', dict(position=PER_LAYER)),
  't5_shared_relu': ('t5_shared', T5_RELU | dict(tie_embeddings=True)),
  'gpt2_deep': ('gpt2', dict(decoder_layers=5, norm=specs.LayerNorm())),
  'gpt3_wide': ('gpt3', dict(windows=(0, 6), decoder_layers=2)),
  'llama_one_key': ('llama_grouped', dict(num_kv_heads=1)),
}


@pytest.mark.parametrize('seed, name', [*enumerate(CASES, start=400)])
def test_logits_gradients_and_steps(strict_promotion, seed, name):
  system, changes = CASES[name]
  spec = systems.make(system, systems.OTHER, **changes)
  lengths = dict(lengths=(1, 15, 10), inputs=(9, 3, 14))
  case = goldens.make_case(system, spec, seed, **lengths)
  trunk_parity.assert_equal(spec, case)


# Folder of recipes: the class of transformers that counts their parameters.
FAMILIES = {
  't5': oracles.build_t5,
  'mt5': oracles.build_t5,
  'byt5': oracles.build_t5,
  'umt5': oracles.build_t5,
  'ul2': oracles.build_t5,
  'gpt': oracles.build_gpt,
  'gpt2': oracles.build_gpt2,
  'gpt3': oracles.build_gpt2,  # GPT-Neo lacks its biases of attention
  'llama': oracles.build_llama,
  'transformer': oracles.build_transformer,
  'bert': oracles.build_bert,
}
UNUSED = 'EncDecAttention', 'layer.1.layer_norm'  # of a T5 decoder alone


@pytest.mark.parametrize('name', [r.name for r in recipes.table()])
def test_recipes_have_as_many_parameters(name):
  spec = config.load([name]).model
  with torch.device('meta'):
    theirs = FAMILIES[name.split('/')[0]](spec)
  alone = isinstance(theirs, oracles.T5Decoder)
  count = sum(
    p.numel()
    for path, p in theirs.named_parameters()
    if p.requires_grad and not (alone and any(u in path for u in UNUSED))
  )
  classes = spec.classes * spec.embed_dim  # a linear map beside the model
  assert models.build(spec).num_params == count + classes
