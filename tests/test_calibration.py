"""Published training runs that predictions of step times are held against."""

import json
import pathlib
import re

import pytest

from t5x_lite import accelerators
from t5x_lite import chips
from t5x_lite import config
from t5x_lite import flops
from t5x_lite import models
from t5x_lite import partitioning

FOLDER = pathlib.Path(__file__).parents[1] / 'benchmarks' / 'calibration'
TABLE = json.loads((FOLDER / 'published.json').read_text(encoding='utf-8'))
RUNS = [pytest.param(run, id=run['name']) for run in TABLE['runs']]


def load(entry):
  return config.load([str(FOLDER / entry['recipe'])], entry['overrides'])


def operations(run, parameters, length, rule):
  """Of a step, by the rule that a source counts with."""
  share = 0.5 if rule.endswith('halved') else 1
  if rule.startswith('products'):
    return flops.train_step(run.model, run.batch_size, 0, length)[share == 1]
  assert rule.startswith('6N')  # arXiv:2204.02311, appendix B
  model = run.model
  attention = 12 * model.decoder_layers * model.num_heads * model.head_dim
  token = 6 * parameters + attention * length * share
  return run.batch_size * length * token


@pytest.mark.parametrize('recipe', TABLE['parameters'])
def test_parameters_are_those_published(recipe):
  """Exactly, or to the round number that a model is called by."""
  found = models.build(config.load([str(FOLDER / recipe)]).model).num_params
  published = TABLE['parameters'][recipe]
  assert found == pytest.approx(
    published, rel=0.03 if published % 1e9 == 0 else 0
  )
  header = (FOLDER / recipe).read_text(encoding='utf-8').splitlines()[0]
  assert re.fullmatch(rf'# .+\. {found:,} parameters\.', header)


def test_every_recipe_is_used():
  recipes = {path.name for path in FOLDER.glob('*.gin')}
  assert recipes == set(TABLE['parameters'])
  assert recipes == {run['recipe'] for run in TABLE['runs']}
  assert len({run['name'] for run in TABLE['runs']}) == len(TABLE['runs'])


@pytest.mark.parametrize('entry', RUNS)
def test_run_fits_its_chips(entry):
  run = load(entry)
  accelerator = accelerators.parse(entry['topology'])
  assert run.batch_size == entry['batch_size']
  assert run.data.lengths == {'targets': entry['length']}
  sizes = partitioning.check_mesh(
    run.mesh, accelerator.devices, accelerator.slices
  )
  assert run.batch_size % partitioning.batch_shards(sizes) == 0
  assert entry['source'] in TABLE['sources']
  assert entry['flags'] is None or entry['flags'] in TABLE['flags']
  known = {'full': 'full', 'minimal': 'dots'}.get(entry['remat'])
  assert known == run.model.remat or entry['differs']


@pytest.mark.parametrize('entry', RUNS)
def test_seconds_agree_with_what_is_published(entry):
  run, published = load(entry), entry['published']
  accelerator = accelerators.parse(entry['topology'])
  assert accelerator.kind != 'v3'  # of the others a device is a chip
  count = accelerator.devices
  parameters = models.build(run.model).num_params
  work = operations(run, parameters, entry['length'], entry['rule'])
  rate = work / count / entry['seconds']
  peak = chips.CHIPS[accelerator.kind].flops
  tokens = run.batch_size * entry['length'] / count
  means = {
    'seconds': entry['seconds'],
    'tokens_per_second': tokens / entry['seconds'],
    'tflops': rate / 1e12,
    'mfu': rate / peak,
  }
  assert entry['seconds_by'] in published
  for name, value in published.items():
    # The others are rounded, some to two digits or said to be approximate.
    tolerance = 1e-3 if name == entry['seconds_by'] else 0.015
    assert means[name] == pytest.approx(value, rel=tolerance), name
  assert 0 < rate < peak
