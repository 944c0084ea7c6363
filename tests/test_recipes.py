import dataclasses
import json
import pathlib
import runpy

import pytest

from t5x_lite import config
from t5x_lite import corruptions
from t5x_lite import data
from t5x_lite import errors
from t5x_lite import recipes
from t5x_lite import record as records
from t5x_lite import specs
from t5x_lite.data import vocabularies

GOLDEN = pathlib.Path(__file__).parent / 'golden'
GIN = pathlib.Path(__file__).parents[1] / 'gin'
SCRIPT = runpy.run_path(str(GOLDEN / 'make_records.py'))
NAMES = recipes.names()

# The published sizes: embed_dim, heads, encoder and decoder layers, head_dim,
# mlp_dim, parameters.
T5_1_0 = {
  'small': (512, 8, 6, 6, 64, 2048, 60_506_624),
  'base': (768, 12, 12, 12, 64, 3072, 222_903_552),
  'large': (1024, 16, 24, 24, 64, 4096, 737_668_096),
  '3b': (1024, 32, 24, 24, 128, 16384, 2_851_598_336),
  '11b': (1024, 128, 24, 24, 128, 65536, 11_307_321_344),
}
T5_1_1 = {
  'small': (512, 6, 8, 8, 64, 1024, 76_961_152),
  'base': (768, 12, 12, 12, 64, 2048, 247_577_856),
  'large': (1024, 16, 24, 24, 64, 2816, 783_150_080),
  'xl': (2048, 32, 24, 24, 64, 5120, 2_849_757_184),
  'xxl': (4096, 64, 24, 24, 64, 10240, 11_135_332_352),
}
MT5 = {
  size: (*T5_1_1[size][:6], parameters)
  for size, parameters in {
    'small': 300_176_768,
    'base': 582_401_280,
    'large': 1_229_581_312,
    'xl': 3_742_619_648,
    'xxl': 12_921_057_280,
  }.items()
}
BYT5 = {
  'small': (1472, 6, 12, 4, 64, 3584, 299_637_760),
  'base': (1536, 12, 18, 6, 64, 3968, 581_653_248),
  'large': (1536, 16, 36, 12, 64, 3840, 1_228_183_552),
  'xl': (2560, 32, 36, 12, 64, 6720, 3_737_801_728),
  'xxl': (4672, 64, 36, 12, 64, 12352, 12_906_899_328),
}
UMT5 = {
  size: (*T5_1_1[size][:6], parameters)
  for size, parameters in {
    'small': 306_601_984,
    'base': 592_043_520,
    'xl': 3_768_356_864,  # of this and the next, only by the formula below
    'xxl': 12_972_531_712,
  }.items()
}
# Of base and large, their shapes are T5 1.1's; of 20b, 19.46 billion is what
# the published checkpoint has, tied as it is.
UL2 = {
  'base': (*T5_1_1['base'][:6], 222_903_552),
  'large': (*T5_1_1['large'][:6], 750_251_008),
  '20b': (4096, 16, 32, 32, 256, 16384, 19_459_613_696),
}
# Prefix of a recipe's name, its sizes, and what all of them share.
LADDERS = {
  't5/1_0_': (T5_1_0, 32128, 2048, {'inputs': 512, 'targets': 114}),
  't5/1_1_': (T5_1_1, 32128, 2048, {'inputs': 512, 'targets': 114}),
  'mt5/': (MT5, 250112, 1024, {'inputs': 1024, 'targets': 229}),
  'byt5/': (BYT5, 384, 1024, {'inputs': 1024, 'targets': 189}),
  'umt5/': (UMT5, 256384, 1024, {'inputs': 1024, 'targets': 229}),
}
SIZES = [
  (prefix, size) for prefix, (sizes, *_) in LADDERS.items() for size in sizes
]


def count(model):
  """Parameters, term by term."""
  d, inner = model.embed_dim, model.num_heads * model.head_dim
  few = (model.num_kv_heads or model.num_heads) * model.head_dim
  widths = (3 if model.gated else 2) * [model.mlp_dim]
  attention = 2 * d * inner + 2 * d * few
  mlp = d * sum(widths)
  if model.bias:
    attention += inner + 2 * few + d
    mlp += sum(widths[1:]) + d
  norm = d * (model.norm.scale + model.norm.bias)
  each = norm * (2 if model.norm_place == 'both' else 1)
  one = attention + mlp + 2 * each

  def stack(layers, cross):
    total = layers * (one + cross * (attention + each))
    total += norm * ((model.norm_place != 'post') + model.embedding_norm)
    position = model.position
    if isinstance(position, specs.Learned):
      total += position.length * d
    if isinstance(position, specs.T5Bias):
      tables = layers if position.per_layer else 1
      total += tables * position.buckets * model.num_heads
    return total

  total = model.vocab_size * d * (1 if model.tie_embeddings else 2)
  total += (model.segments + model.classes) * d
  if model.encoder_layers and not model.share_stacks:
    total += stack(model.encoder_layers, False)
  if model.decoder_layers:
    total += stack(model.decoder_layers, bool(model.encoder_layers))
  return total


# Sizes of the families that are not T5's: layers, width, heads, parameters.
OTHERS = {
  'gpt/base': (12, 768, 12, 116_534_784),
  'gpt2/bytes': (4, 128, 4, 908_032),
  'gpt2/small': (12, 768, 12, 124_439_808),
  'gpt2/medium': (24, 1024, 16, 354_823_168),
  'gpt2/large': (36, 1280, 20, 774_030_080),
  'gpt2/xl': (48, 1600, 25, 1_557_611_200),
  'gpt3/small': (12, 768, 12, 125_226_240),
  'gpt3/medium': (24, 1024, 16, 355_871_744),
  'gpt3/large': (24, 1536, 16, 760_300_032),
  'gpt3/xl': (24, 2048, 16, 1_315_723_264),
  'gpt3/2_7b': (32, 2560, 32, 2_651_553_280),
  'gpt3/6_7b': (32, 4096, 32, 6_658_404_352),
  'gpt3/13b': (40, 5120, 40, 12_853_386_240),
  'gpt3/175b': (96, 12288, 96, 174_604_259_328),
  'llama/7b': (32, 4096, 32, 6_738_415_616),
  'llama/13b': (40, 5120, 40, 13_015_864_320),
  'llama/33b': (60, 6656, 52, 32_528_943_616),
  'llama/65b': (80, 8192, 64, 65_285_660_672),
  'llama/2_70b': (80, 8192, 64, 68_976_648_192),
  'transformer/base': (6, 512, 8, 63_082_496),
  'transformer/big': (6, 1024, 16, 214_245_376),
}


@pytest.mark.parametrize('name', OTHERS)
def test_other_families_have_the_published_shapes(name):
  *shape, parameters = OTHERS[name]
  model = config.load([name]).model
  assert shape == [model.decoder_layers, model.embed_dim, model.num_heads]
  assert recipes.info(name).parameters == parameters


@pytest.mark.parametrize('size', T5_1_1)
def test_architectures_of_t5_differ_in_what_they_are_named_for(size):
  """LM: no encoder; prefix LM: no more than that; shared: one stack."""
  both, lm, prefix, shared = (
    config.load([f't5/{kind}_{size}']).model
    for kind in ('1_1', 'lm', 'prefix_lm', 'shared')
  )
  assert lm == dataclasses.replace(both, encoder_layers=0)
  assert prefix == dataclasses.replace(lm, mask='prefix')
  assert shared == dataclasses.replace(both, share_stacks=True)


def test_the_recipes_are_all_there():
  ladders = {prefix + size for prefix, size in SIZES}
  assert set(NAMES) == ladders | {
    't5/quickstart',
    't5/quickstart_8k',
    't5/bytes',
    't5/finetune',
    'gpt/finetune',
    *OTHERS,
    *(f'ul2/{size}' for size in UL2),
    *(
      f't5/{kind}_{size}'
      for kind in ('lm', 'prefix_lm', 'shared')
      for size in T5_1_1
    ),
    *(f't5/1_1_{size}_lm_adapt' for size in T5_1_1),
  }


@pytest.mark.parametrize('name', NAMES)
def test_record_is_golden(name):
  golden = GOLDEN / 'records' / f'{name}.json'
  text = golden.read_text(encoding='utf-8')
  assert SCRIPT['record_json'](name) == text
  assert records.from_record(json.loads(text)) == config.load([name])


def test_no_golden_record_is_left_over():
  folder = GOLDEN / 'records'
  found = {p.relative_to(folder).as_posix() for p in folder.rglob('*.json')}
  assert found == {f'{name}.json' for name in NAMES}


@pytest.mark.parametrize('name', NAMES)
def test_header_gives_the_parameters(name):
  assert recipes.info(name).parameters == count(config.load([name]).model)


@pytest.mark.parametrize('name', NAMES)
def test_recipe_is_short_and_complete(name):
  text = (GIN / f'{name}.gin').read_text(encoding='utf-8')
  lines = [line for line in text.splitlines() if line and line[0] != '#']
  assert 2 <= len(lines) <= 36
  assert all(len(line) <= 80 for line in text.splitlines())
  assert '%' not in text  # no macros
  run = config.load([name])
  assert run.model.position is not None
  if isinstance(run.model.position, specs.T5Bias):  # T5 and its kin
    assert run.z_loss == 1e-4
    assert run.model.vocab_size % 128 == 0


@pytest.mark.parametrize('name', NAMES)
def test_each_stack_of_a_recipe_has_rows_to_read(name):
  run = config.load([name])
  widths = data.widths(run)
  assert ('encoder' in widths) == bool(run.model.encoder_layers)
  assert all(width >= 29 for width in widths.values())
  if isinstance(run.model.position, specs.Learned):
    assert widths['decoder'] <= run.model.position.length


@pytest.mark.parametrize(('prefix', 'size'), SIZES)
def test_ladders_have_the_published_shapes(prefix, size):
  sizes, vocab_size, batch_size, lengths = LADDERS[prefix]
  *shape, parameters = sizes[size]
  run = config.load([prefix + size])
  model = run.model
  assert shape == [
    model.embed_dim,
    model.num_heads,
    model.encoder_layers,
    model.decoder_layers,
    model.head_dim,
    model.mlp_dim,
  ]
  assert recipes.info(prefix + size).parameters == parameters
  assert model.vocab_size == vocab_size
  assert (run.steps, run.batch_size) == (1_000_000, batch_size)
  assert run.data.lengths == lengths
  assert run.data.held_out == 0.0
  first = prefix == 't5/1_0_'
  assert model.activation == ('relu' if first else 'gelu')
  assert (model.gated, model.tie_embeddings) == (not first, first)
  assert model.dropout == (0.1 if first else 0.0)
  per_layer = prefix == 'umt5/'
  assert model.position == specs.T5Bias(per_layer=per_layer)
  assert run.objective.density == 0.15
  assert run.objective.mean_span == (20.0 if prefix == 'byt5/' else 3.0)
  assert run.data.extra_ids == {'byt5/': 0, 'umt5/': 300}.get(prefix, 100)


@pytest.mark.parametrize(('prefix', 'size'), SIZES)
def test_ladders_have_the_published_optimizer(prefix, size):
  optimizer = config.load([prefix + size]).optimizer
  schedule = specs.Schedule(peak=0.01, hold=10_000, decay='rsqrt')
  expected = specs.Adafactor(schedule=schedule)
  if prefix + size == 'umt5/xxl':
    expected = dataclasses.replace(
      expected, beta1=0.9, factored=False, clip_norm=1.0
    )
  assert optimizer == expected


@pytest.mark.parametrize('size', UL2)
def test_ul2_has_the_published_shapes(size):
  *shape, parameters = UL2[size]
  run = config.load([f'ul2/{size}'])
  model = run.model
  assert shape == [
    model.embed_dim,
    model.num_heads,
    model.encoder_layers,
    model.decoder_layers,
    model.head_dim,
    model.mlp_dim,
  ]
  assert recipes.info(f'ul2/{size}').parameters == parameters
  assert (model.activation, model.gated) == ('silu', True)
  assert model.tie_embeddings and not model.dropout
  assert run.objective == specs.Denoisers()
  assert run.data.lengths['inputs'] == 512


@pytest.mark.parametrize('size', T5_1_1)
def test_t5x_1198_lm_adaptation_goes_on_from_t5_1_1(size):
  """t5x#1198: how the published LM-adapted models were trained was not."""
  first, run = (
    config.load([f't5/1_1_{size}{tail}']) for tail in ('', '_lm_adapt')
  )
  assert run.model == first.model and run.mesh == first.mesh
  assert run.objective == specs.PrefixLM()
  assert run.steps == 100_000
  assert run.optimizer.schedule == specs.Schedule(peak=1e-3, decay='constant')
  assert run.optimizer.schedule.peak == first.steps**-0.5


@pytest.mark.parametrize('name', NAMES)
def test_lengths_serve_the_objective(name):
  run = config.load([name])
  vocabulary = vocabularies.Bytes(run.data.extra_ids)
  corruptions.OBJECTIVES[type(run.objective)].check(
    run.objective, run.data.lengths, vocabulary
  )


def test_table_is_ordered_by_system_and_size():
  table = recipes.table()
  assert [r.name for r in table if r.name.startswith('t5/1_0')] == [
    f't5/1_0_{size}' for size in T5_1_0
  ]
  base = next(r for r in table if r.name == 't5/1_1_base')
  assert base[:-1] == (
    't5/1_1_base',
    'T5 1.1 base',
    'encoder-decoder',
    'arXiv:1910.10683 and 2002.05202',
    247_577_856,
  )
  assert len({r.system for r in table}) == len(table)


@pytest.mark.parametrize(
  'header',
  [
    '',
    '# T5 base, arXiv:1910.10683. 12 parameters.',
    '# T5 base, arXiv:1910.10683. 1234 parameters. Encoder-decoder: it is.',
    '# T5 base, arXiv:1910.10683. 12 parameters. A decoder: it is.',
    '# T5 base, 1910.10683. 12 parameters. Encoder-decoder: it is.',
    '# T5 base. 12 parameters. Encoder-decoder: it is.',
  ],
)
def test_a_malformed_header_is_refused(tmp_path, monkeypatch, header):
  monkeypatch.setattr(recipes, '_root', lambda: tmp_path)
  good = '# T5 base, arXiv:1910.10683. 12 parameters. Encoder-decoder: it is.'
  (tmp_path / 'a.gin').write_text(good + '\n\nRun.steps = 1\n')
  assert recipes.info('a').parameters == 12
  (tmp_path / 'a.gin').write_text(header + '\n\nRun.steps = 1\n')
  with pytest.raises(errors.ConfigError, match='malformed header.*a.gin:1'):
    recipes.info('a')


def test_recipes_are_found_in_the_package_first(tmp_path, monkeypatch):
  package = tmp_path / 't5x_lite'
  monkeypatch.setattr(recipes, '__file__', str(package / 'recipes.py'))
  for folder, name in [(tmp_path / 'gin', 'beside'), (package / 'gin', 'in')]:
    folder.mkdir(parents=True)
    (folder / f'{name}.gin').touch()
    assert recipes.names() == [name]


def test_readme_lists_the_recipes():
  """After a change, run `python tests/golden/make_records.py`."""
  readme = (GIN / 'README.md').read_text(encoding='utf-8')
  assert readme == SCRIPT['readme']()
  assert all(f'`{name}`' in readme for name in NAMES)
