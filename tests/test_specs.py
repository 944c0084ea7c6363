import ast
import dataclasses
import pathlib
import sys

import pytest

from t5x_lite import errors
from t5x_lite import specs

SMALL = {
  'vocab_size': 64,
  'encoder_layers': 1,
  'decoder_layers': 1,
  'embed_dim': 8,
  'mlp_dim': 16,
  'num_heads': 2,
  'head_dim': 4,
}


def run(**settings):
  return specs.Run(
    **{
      'model': specs.Transformer(**SMALL),
      'objective': specs.SpanCorruption(),
      'data': specs.Data(corpus='a.txt', lengths={'inputs': 8}),
      'optimizer': specs.Adafactor(schedule=specs.Schedule(peak=0.1)),
      'steps': 1,
      'batch_size': 8,
      **settings,
    }
  )


FIELDS = [
  pytest.param(field, id=f'{cls.__name__}.{field.name}')
  for cls in specs.SPECS.values()
  for field in dataclasses.fields(cls)
]


def test_all_specs_are_listed_by_name():
  found, kinds = set(), [specs.Spec]
  while kinds:
    kind = kinds.pop()
    kinds += kind.__subclasses__()
    found |= set() if kind.__subclasses__() else {kind}
  assert set(specs.SPECS.values()) == found
  assert all(cls.__name__ == name for name, cls in specs.SPECS.items())


@pytest.mark.parametrize('field', FIELDS)
def test_every_field_has_a_rule_that_its_default_obeys(field):
  assert specs.describe(field.type)
  assert not specs.obeys(object(), field.type)
  assert field.name != 'type'  # a record's key for the class
  default = field.default
  assert default is dataclasses.MISSING or specs.obeys(default, field.type)
  # config.py takes such a default for a reference.
  assert not isinstance(default, specs.Spec) or default == type(default)()


@pytest.mark.parametrize(
  ('cls', 'settings', 'field', 'expected'),
  [
    (specs.Transformer, SMALL, ('vocab_size', 0), 'int >= 1'),
    (specs.Transformer, SMALL, ('vocab_size', 64.0), 'int >= 1'),
    (specs.Transformer, SMALL, ('vocab_size', '64'), 'int >= 1'),
    (specs.Transformer, SMALL, ('vocab_size', True), 'int >= 1'),
    (specs.Transformer, SMALL, ('gated', 1), 'bool'),
    (specs.Transformer, SMALL, ('dropout', 1.0), 'float >= 0 and < 1'),
    (specs.Transformer, SMALL, ('dropout', -0.1), 'float >= 0 and < 1'),
    (specs.Transformer, SMALL, ('dtype', None), "'float32' or 'bfloat16'"),
    (specs.Transformer, SMALL, ('position', 'T5Bias'), 'Alibi or None'),
    (specs.SpanCorruption, {}, ('mean_span', 0.5), 'float >= 1'),
    (specs.SpanCorruption, {}, ('density', float('nan')), 'float > 0 and < 1'),
    (specs.Schedule, {}, ('peak', float('inf')), 'float > 0'),
    (specs.Schedule, {}, ('peak', 10**400), 'float > 0'),
    (specs.Mesh, {}, ('data', 0), 'int >= 1 or -1'),
    (specs.Mesh, {}, ('data', -2), 'int >= 1 or -1'),
    (specs.Evaluation, {}, ('tasks', 3), 'list of str'),
    (specs.Evaluation, {}, ('tasks', (3,)), 'list of str'),
    (
      specs.Data,
      {'corpus': 'a'},
      ('lengths', {'inputs': 0}),
      'dict of str to int >= 1',
    ),
    (
      specs.Data,
      {'corpus': 'a'},
      ('lengths', [('inputs', 8)]),
      'dict of str to int >= 1',
    ),
  ],
)
def test_a_wrong_value_is_refused_by_name(cls, settings, field, expected):
  name, value = field
  with pytest.raises(errors.ConfigError) as e:
    cls(**{**settings, name: value})
  assert e.value.what == f'wrong value for {cls.__name__}.{name}'
  assert e.value.got.startswith(repr(value))
  assert expected in e.value.expected


@pytest.mark.parametrize(
  ('got', 'meant'),
  [('bf16', 'bfloat16'), ('float23', 'float32'), ('F32', 'float32')],
)
def test_the_nearest_alternative_is_offered(got, meant):
  with pytest.raises(errors.ConfigError, match=f'did you mean {meant}'):
    specs.Transformer(**SMALL, dtype=got)


def test_right_values():
  model = specs.Transformer(**SMALL, position=None, dropout=0)
  assert model.position is None
  assert specs.Mesh(data=4, fsdp=-1).fsdp == -1
  assert run(z_loss=1).z_loss == 1


@pytest.mark.parametrize(
  'given, wanted',
  [
    ((), ()),
    ('', ()),
    ('one', ('one',)),
    ('one, two', ('one', 'two')),
    (['one', 'two'], ('one', 'two')),
  ],
)
def test_a_list_may_be_words(given, wanted):
  assert specs.Evaluation(tasks=given).tasks == wanted


def test_specs_are_frozen_and_compare_by_value():
  assert run() == run() != run(seed=1)
  with pytest.raises(dataclasses.FrozenInstanceError):
    run().seed = 1


def test_all_missing_settings_are_told_at_once():
  with pytest.raises(errors.ConfigError) as e:
    specs.check_missing(specs.Schedule, {}, 'Schedule')
  assert (
    str(e.value)
    == 'Schedule lacks settings; expected Schedule.peak (float > 0)'
  )
  with pytest.raises(errors.ConfigError) as e:
    specs.check_missing(specs.Transformer, {'vocab_size': 1}, 'a', 'b:1')
  assert 'vocab_size' not in str(e.value)
  assert all(
    f'Transformer.{name}' in str(e.value)
    for name in SMALL
    if name not in ('vocab_size', 'encoder_layers', 'decoder_layers')
  )


def test_microbatches_must_divide_the_batch():
  assert run(microbatches=4).microbatches == 4
  with pytest.raises(errors.ConfigError) as e:
    run(batch_size=12, microbatches=5)
  assert 'Run.microbatches does not divide Run.batch_size' in str(e.value)
  assert 'expected one of 2, 3, 4, 6' in str(e.value)
  with pytest.raises(errors.ConfigError):  # and at once, however large
    run(batch_size=10**15 + 1, microbatches=2)


@pytest.mark.parametrize(
  ('settings', 'culprit'),
  [
    ({'buckets': 2}, 'T5Bias.buckets'),
    ({'buckets': 33}, 'T5Bias.buckets'),
    ({'max_distance': 16}, 'T5Bias.max_distance'),
  ],
)
def test_buckets_that_the_formula_cannot_fill_are_refused(settings, culprit):
  with pytest.raises(errors.ConfigError, match=culprit):
    specs.T5Bias(**settings)
  assert specs.T5Bias(buckets=4, max_distance=3)


@pytest.mark.parametrize(
  ('settings', 'what'),
  [
    ({'encoder_layers': 0, 'decoder_layers': 0}, 'lacks layers'),
    ({'share_stacks': True, 'decoder_layers': 3}, 'share_stacks'),
    ({'mask': 'prefix'}, "mask 'prefix'"),
    ({'mask': 'prefix', 'decoder_layers': 0}, "mask 'prefix'"),
    ({'windows': (0, 8, 8)}, 'windows does not divide'),
    ({'windows': (-1,)}, 'Transformer.windows'),
    ({'num_kv_heads': 3}, 'num_kv_heads'),
    ({'position': specs.Rope(), 'head_dim': 7}, 'head_dim'),
    ({'position': specs.Sinusoid(), 'embed_dim': 7}, 'embed_dim'),
  ],
)
def test_shapes_that_no_model_has_are_refused(settings, what):
  with pytest.raises(errors.ConfigError, match=what):
    specs.Transformer(**SMALL | settings)


def test_specs_need_nothing_but_the_standard_library():
  for file in pathlib.Path(specs.__file__).parent.glob('*.py'):
    for node in ast.walk(ast.parse(file.read_text(encoding='utf-8'))):
      if isinstance(node, ast.Import):
        assert all(name.name in sys.stdlib_module_names for name in node.names)
      elif isinstance(node, ast.ImportFrom) and node.module == 't5x_lite':
        assert [name.name for name in node.names] == ['errors']
      elif isinstance(node, ast.ImportFrom):
        own = node.module.startswith('t5x_lite.specs.')
        assert own or node.module in sys.stdlib_module_names
