"""Small models of every family that is read from and written to files."""

from t5x_lite import specs
from tests import systems

_T5 = dict(share_stacks=False)
_PER_LAYER = specs.T5Bias(buckets=8, max_distance=12, per_layer=True)
# Its logits are by the embedding, which tells all of what it gives.
_ALONE = _T5 | dict(decoder_layers=0, tie_embeddings=True)
# Name: the system of systems.py, and what is other.
MODELS = {
  't5_1_0': (
    't5_shared',
    _T5 | dict(gated=False, activation='relu', tie_embeddings=True),
  ),
  't5_1_1': ('t5_shared', _T5 | dict(encoder_layers=3)),
  'ul2': ('t5_shared', _T5 | dict(activation='silu')),
  'umt5': ('t5_shared', _T5 | dict(position=_PER_LAYER)),
  't5_shared': ('t5_shared', {}),
  'gpt': ('gpt', dict(mlp_dim=48)),
  'gpt2': ('gpt2', {}),
  'gpt_neo': ('gpt3', dict(qkv_bias=False)),
  'llama': ('llama_grouped', {}),
  'llama_tied': ('llama', dict(tie_embeddings=True, scale_logits=False)),
  'marian': ('transformer', dict(encoder_layers=2)),
  'marian_bias': ('transformer', dict(logits_bias=True)),
  't5_encoder': ('t5_shared', _ALONE),
  'umt5_encoder': ('t5_shared', _ALONE | dict(position=_PER_LAYER)),
}


def make(name, **changes):
  """The specs.Transformer of a model, in float64 unless said otherwise."""
  system, own = MODELS[name]
  return systems.make(system, **own | changes)


def oracle(name):
  """The name of the oracle of a model, in golden/oracles.py."""
  return 't5_encoder' if name.endswith('encoder') else MODELS[name][0]
