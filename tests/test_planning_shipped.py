"""Plans of shipped sizes: what their steps may cost, and stay as they were."""

import json

import pytest

pytestmark = pytest.mark.plans
MOST = {'none': 1.03, 'full': 1.36}  # times the model's own arithmetic
T5 = dict(batch_size=2048)
B32 = dict(batch_size=512)
# recipe, topology, mesh, remat, then what was predicted: times the model's
# arithmetic, GiB of a chip, ms.
CASES = []


def key(case):
  return f'{case[0].rpartition("/")[2].removesuffix(".gin")}-{case[1]}'


@pytest.mark.parametrize('case', CASES, ids=key)
def test_a_shipped_size_compiles_as_it_should(case, command):
  recipe, topology, (data, fsdp), rows, remat, (ratio, gib, ms) = case
  found = json.loads(
    command(
      *('plan', f'--gin_file={recipe}', f'--topology={topology}', '--json'),
      *(f'--gin.Mesh.data={data}', f'--gin.Mesh.fsdp={fsdp}'),
      *(f'--gin.Run.batch_size={rows}', f'--gin.Transformer.remat={remat}'),
    )
  )
  assert found['fits']
  assert found['flops']['ratio'] <= MOST[remat]
  assert found['flops']['ratio'] == pytest.approx(ratio, abs=0.005)
  assert found['memory']['peak'] / 2**30 == pytest.approx(gib, rel=0.03)
  assert found['seconds'] * 1e3 == pytest.approx(ms, rel=0.03)
  for exchange in found['collectives']:
    assert not exchange['unexpected_bytes'], exchange
