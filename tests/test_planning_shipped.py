"""Plans of shipped sizes: what their steps may cost, and stay as they were."""

import json

import pytest

pytestmark = pytest.mark.plans
MOST = {'none': 1.03, 'full': 1.36}  # times the model's own arithmetic
B32 = 'benchmarks/calibration/maxtext_32b.gin'
# (recipe, topology): data and fsdp of the mesh, rows, remat, then what libtpu
# 0.0.42 made of it: times the model's arithmetic, GiB of a chip, ms.
# fmt: off
CASES = {
  ('t5/1_1_large', 'v5e-256'): ((16, 16), 2048, 'none', (1.017, 5.61, 148.6)),
  ('t5/1_1_large', 'v5p-512'): ((16, 16), 2048, 'none', (1.017, 5.67, 83.7)),
  ('t5/1_1_large', 'v4-512'): ((16, 16), 2048, 'none', (1.017, 5.60, 104.9)),
  ('t5/1_1_xl', 'v5e-256'): ((8, 32), 2048, 'none', (1.009, 10.86, 427.9)),
  ('t5/1_1_xl', 'v5p-512'): ((4, 64), 2048, 'none', (1.009, 10.43, 209.4)),
  ('t5/1_1_xl', 'v4-512'): ((4, 64), 2048, 'full', (1.276, 1.64, 370.1)),
  ('t5/1_1_xxl', 'v5e-256'): ((1, 256), 2048, 'full', (1.274, 3.04, 1952.4)),
  ('t5/1_1_xxl', 'v5p-512'): ((4, 64), 2048, 'none', (1.005, 22.00, 708.1)),
  ('t5/1_1_xxl', 'v4-512'): ((4, 64), 2048, 'full', (1.274, 4.63, 1321.7)),
  (B32, 'v5e-256'): ((1, 256), 512, 'full', (1.270, 7.96, 6930.4)),
  (B32, 'v5p-512'): ((4, 64), 512, 'none', (1.017, 49.24, 2396.8)),
  (B32, 'v4-512'): ((4, 64), 512, 'full', (1.270, 14.05, 4821.2)),
}
# fmt: on


@pytest.fixture
def as_users(monkeypatch):
  """The compiler as users have it, not as tests hurry it."""
  for name in 'XLA_FLAGS', 'JAX_DEFAULT_MATMUL_PRECISION':
    monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
  'case', CASES, ids=lambda case: '-'.join(case).rpartition('/')[2]
)
def test_a_shipped_size_compiles_as_it_should(case, as_users, command):
  pytest.importorskip('libtpu', reason='needs libtpu; run `make plans`')
  (recipe, topology), known = case, CASES[case]
  (data, fsdp), rows, remat, (ratio, gib, ms) = known
  said = command(
    *('plan', f'--gin_file={recipe}', f'--topology={topology}', '--json'),
    *(f'--gin.Mesh.data={data}', f'--gin.Mesh.fsdp={fsdp}'),
    *(f'--gin.Run.batch_size={rows}', f'--gin.Transformer.remat={remat}'),
  )
  found, _ = json.JSONDecoder().raw_decode(said)  # progress comes behind
  memory = found['memory']
  assert found['fits']
  assert found['flops']['ratio'] <= MOST[remat]
  assert found['flops']['ratio'] == pytest.approx(ratio, abs=0.003)
  assert memory['peak'] / 2**30 == pytest.approx(gib, rel=0.02)
  assert found['seconds'] * 1e3 == pytest.approx(ms, rel=0.02)
  assert found['unsharded'] == []
  assert [e for e in found['collectives'] if e['unexpected_bytes']] == []
  logits = [b['array'] for b in memory['buffers'] if b['family'] == 'logits']
  for array in logits:  # [rows, length, vocabulary], of its own rows alone
    assert f'[{rows // found["devices"]},' in array
