"""Train steps with the TPU's fused attention compile for a TPU, without one."""

import re

import jax
from jax.experimental import topologies
import numpy as np
import pytest

from t5x_lite import partitioning
from t5x_lite import specs
from t5x_lite import train
from tests import tiny

LENGTH = 1024
SHAPE = dict(
  vocab_size=256,
  encoder_layers=0,
  embed_dim=256,
  mlp_dim=512,
  num_heads=4,
  dtype='bfloat16',
  attention='fused',
  scale_attention=True,
)
MODELS = {
  'llama': dict(
    num_kv_heads=2, head_dim=128, position=specs.Rope(), activation='silu'
  ),
  'gpt': dict(
    head_dim=64,
    position=specs.Learned(length=LENGTH),
    norm=specs.LayerNorm(),
    bias=True,
    gated=False,
    tie_embeddings=True,
    windows=(0, 256),
  ),
}


@pytest.fixture(scope='module')
def chips():
  pytest.importorskip('libtpu', reason='needs libtpu; run `make plans`')
  with (
    pytest.MonkeyPatch.context() as patch,
    jax.default_matmul_precision('default'),
  ):
    patch.setenv('TPU_SKIP_MDS_QUERY', '1')
    patch.setenv('ALLOW_MULTIPLE_LIBTPU_LOAD', '1')
    yield topologies.get_topology_desc(
      platform='tpu', topology_name='v5e:2x2'
    ).devices


@pytest.mark.plans
@pytest.mark.parametrize(
  'name, axes', [('llama', dict(data=2, tensor=2)), ('gpt', dict(fsdp=4))]
)
def test_splash_attention_compiles_for_a_tpu(chips, name, axes):
  model = tiny.transformer(**SHAPE | MODELS[name])
  run = tiny.run(model, mesh=specs.Mesh(**{'data': 1} | axes))
  mesh = partitioning.make_mesh(run.mesh, chips)
  one = np.broadcast_to(np.int32(1), (run.batch_size, LENGTH))
  names = 'input_tokens', 'target_tokens', 'segment_ids', 'positions'
  batch = {f'decoder_{name}': one for name in names}
  batch['decoder_loss_weights'] = one.astype(np.float32)
  with jax.set_mesh(mesh):
    program = train.Program.build(run, mesh)
    text = program.compile_step(batch).as_text()
  layers = len(model.windows) or 1  # of a turn of the scan
  assert text.count('custom_call_target="tpu_custom_call"') == 3 * layers
  names = set(re.findall('/splash_mha_(fwd|dq|dkv)', text))
  assert names == {'fwd', 'dq', 'dkv'}
  assert f'{LENGTH},{LENGTH}]' not in text
