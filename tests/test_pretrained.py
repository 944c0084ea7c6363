"""Starting from another run's checkpoint: what fits, and what is refused."""

import dataclasses

import jax
import numpy as np
import pytest

from t5x_lite import checkpoints
from t5x_lite import errors
from t5x_lite import models
from t5x_lite import partitioning
from t5x_lite import pretrained
from t5x_lite import record
from t5x_lite import specs
from t5x_lite import train
from tests import tiny

VOCABULARY = specs.Data(corpus='none', lengths={'inputs': 24}, extra_ids=20)


def by_path(tree):
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {partitioning.path_name(p): np.asarray(x) for p, x in leaves}


@pytest.fixture(scope='module')
def old(tmp_path_factory):
  """A workdir with steps 3 and 5 of a run, and the parameters of step 5."""
  workdir = tmp_path_factory.mktemp('old')
  run = tiny.run(model=tiny.transformer(vocab_size=384))
  mesh = partitioning.make_mesh(specs.Mesh(), jax.devices()[:1])
  with jax.set_mesh(mesh):
    program = train.Program.build(run, mesh)
    state = tiny.state(program)
    with checkpoints.Checkpoints(workdir, specs.Checkpoints()) as saver:
      for step in (3, 5):
        state['params'] = jax.tree.map(lambda x: x + 1, state['params'])
        saver.save(step, state, {'examples': 0}, record.record(run))
  return workdir, by_path(state['params'])


def start(old, model=None, data=VOCABULARY, **settings):
  """Pretrained of a run that starts from the old one."""
  settings.setdefault('path', str(old[0]))
  run = tiny.run(
    model=model or tiny.transformer(vocab_size=384),
    data=data,
    start_from=specs.Pretrained(**settings),
  )
  return pretrained.Pretrained(run, models.build(run.model)), run


def refused(old, model=None, **settings):
  with pytest.raises(errors.ConfigError) as found:
    start(old, model, **settings)
  return str(found.value)


def read(found, run, mesh=None):
  """The parameters that a run starts with, by path; and its program."""
  mesh = partitioning.make_mesh(mesh or specs.Mesh(data=2, fsdp=4))
  with jax.set_mesh(mesh):
    program = train.Program.build(run, mesh)
    state = program.init(found.read(program.abstract_state['params']))
    for leaf, wanted in zip(
      jax.tree.leaves(state), jax.tree.leaves(program.abstract_state)
    ):
      assert leaf.sharding == wanted.sharding and leaf.dtype == wanted.dtype
    return by_path(state['params']), by_path(program.init()['params']), state


def assert_equal(found, wanted):
  assert found.keys() == wanted.keys()
  for name, array in wanted.items():
    np.testing.assert_array_equal(found[name], array, err_msg=name)


# -- what fits ----------------------------------------------------------------


def test_parameters_come_over_and_all_else_is_fresh(old):
  found, run = start(old)
  params, _, state = read(found, run)
  assert found.step == 5
  assert_equal(params, old[1])
  assert state['step'] == 0
  assert 'drawn' not in ' '.join(found.notes())


def test_a_step_by_its_number_or_its_folder(old):
  three = jax.tree.map(lambda x: x - 1, old[1])
  folder = old[0] / 'checkpoints' / '3'
  for settings in ({'step': 3}, {'path': str(folder)}):
    found, run = start(old, **settings)
    assert found.step == 3
    params = read(found, run, specs.Mesh())[0]
    for name, array in three.items():
      np.testing.assert_allclose(params[name], array, atol=1e-5)
  text = refused(old, path=str(folder), step=5)
  assert 'name two steps' in text


def test_the_best_step(old):
  with pytest.raises(errors.ConfigError, match=r'no Checkpoints\.best'):
    start(old, step='best')


def test_new_and_dropped_parameters(old):
  model = tiny.transformer(vocab_size=384, gated=False)
  # wi_0 and wi_1 are gone, and wi is new.
  rules = {r'(.*)/mlp/wi/kernel': None}
  drop = (r'.*/wi_[01]/kernel',)
  found, run = start(old, model, rules=rules, drop=drop)
  params, fresh, _ = read(found, run)
  for name, array in params.items():
    wanted = fresh if '/wi/' in name else old[1]
    np.testing.assert_array_equal(array, wanted[name], err_msg=name)
  notes = list(found.notes())
  assert notes[0].endswith(f'2 of {len(params)} drawn anew')
  assert notes[1] == 'Transformer.gated is False; in the checkpoint it was True'


def test_renamed_parameters_and_one_source_of_several(old):
  # The decoder's own attention starts from the encoder's: then that of the
  # checkpoint's decoder is left over.
  name = next(x for x in old[1] if x.startswith('encoder/') and 'query' in x)
  group = name.rpartition('/')[0].rpartition('/')[0]
  theirs = {x for x in old[1] if x.startswith(f'{group}/')}
  mine = next(
    x for x in old[1] if x.startswith('decoder/') and x.endswith('query/kernel')
  )
  mine = mine.rpartition('/')[0].rpartition('/')[0]
  assert {x.replace(group, mine) for x in theirs} <= old[1].keys()
  found, run = start(
    old, rules={f'{mine}/(.*)': rf'{group}/\1'}, drop=(f'{mine}/.*',)
  )
  params = read(found, run)[0]
  for name in theirs:
    np.testing.assert_array_equal(params[name], old[1][name])
    np.testing.assert_array_equal(
      params[name.replace(group, mine)], old[1][name]
    )
  rest = {x: y for x, y in old[1].items() if not x.startswith(f'{mine}/')}
  assert_equal({x: params[x] for x in rest}, rest)


def test_the_first_rule_that_matches_counts(old):
  names = ['a/x', 'a/y']
  rules = {'a/x': 'b', 'a/(.)': r'c/\1'}
  spec = specs.Pretrained(path='p', rules=rules)
  assert pretrained.assign(names, ['b', 'c/y', 'd'], spec) == (
    {'a/x': 'b', 'a/y': 'c/y'},
    ['d'],
  )


# -- what is refused ----------------------------------------------------------


def test_a_rule_that_matches_nothing(old):
  text = refused(old, rules={'encoder/norm': None})  # not a whole name
  assert 'Pretrained.rules matches no whole name' in text
  assert "'encoder/norm'" in text and 'did you mean encoder/' in text
  # All that it could match is taken.
  text = refused(old, rules={'.*': r'\g<0>', 'encoder/.*': None})
  assert "at 'encoder/.*'" in text
  text = refused(old, drop=('encoder/norms',))
  assert 'Pretrained.drop matches no whole name' in text


@pytest.mark.parametrize('template', [r'\2', r'\g<name>', '\\'])
def test_a_template_without_its_group(old, template):
  text = refused(old, rules={'encoder/(.*)': template})
  assert 'wrong value for Pretrained.rules' in text and 'encoder/(.*)' in text


@pytest.mark.parametrize('field', ['rules', 'drop'])
def test_a_rule_that_is_no_regex(field):
  value = {'(a': None} if field == 'rules' else ('(a',)
  with pytest.raises(
    errors.ConfigError, match=f'Pretrained.{field} is not a reg'
  ):
    specs.Pretrained(path='p', **{field: value})


def test_all_that_differs_is_one_message(old):
  model = tiny.transformer(vocab_size=384, gated=False, mlp_dim=64)
  text = refused(old, model)
  head, *rows = text.splitlines()
  assert '2 missing, 4 left over, 2 of another shape' in head
  assert 'probably by Transformer.mlp_dim 48 there, 64 here; ' in head
  assert '--gin.Transformer.mlp_dim=48 --gin.Transformer.gated=True' in head
  assert len(rows) == 9
  assert sum('wi/kernel' in row for row in rows) == 2


def test_t5x_1196_tied_embeddings_on_a_checkpoint_with_logits(old):
  text = refused(old, tiny.transformer(vocab_size=384, tie_embeddings=True))
  assert '0 missing, 1 left over, 0 of another shape' in text
  assert 'Transformer.tie_embeddings False there, True here' in text
  assert 'fix: --gin.Transformer.tie_embeddings=False' in text
  assert 'logits/kernel' in text


def test_t5x_1213_a_vocabulary_of_another_padded_size(old):
  text = refused(old, tiny.transformer(vocab_size=300))
  assert '0 missing, 0 left over, 2 of another shape' in text
  assert 'Transformer.vocab_size 384 there, 300 here' in text
  assert 'fix: --gin.Transformer.vocab_size=384' in text
  assert 'float32[384, 32]' in text and 'float32[300, 32]' in text


def test_another_vocabulary_must_be_meant(old):
  data = dataclasses.replace(VOCABULARY, extra_ids=100)
  text = refused(old, data=data)
  assert 'vocabulary is not that of the checkpoint' in text
  assert 'got bytes of 359 ids, expected bytes of 279 ids, 20 of them' in text
  assert '--gin.Pretrained.same_vocabulary=False' in text
  start(old, data=data, same_vocabulary=False)


def test_a_vocabulary_that_is_gone(old, tmp_path):
  folder = tmp_path / 'moved'
  run = tiny.run(data=dataclasses.replace(VOCABULARY, vocabulary='gone.model'))
  mesh = partitioning.make_mesh(specs.Mesh(), jax.devices()[:1])
  with checkpoints.Checkpoints(folder, specs.Checkpoints()) as saver:
    state = tiny.state(train.Program.build(run, mesh))
    saver.save(1, state, {'examples': 0}, record.record(run))
  text = refused(old, path=str(folder))
  assert 'cannot tell whether the vocabulary is that of the checkpoint' in text
  start(old, tiny.transformer(), path=str(folder), same_vocabulary=False)


@pytest.mark.parametrize(
  'settings, what',
  [
    ({'path': 'nowhere'}, 'no checkpoint at .*nowhere'),
    ({'step': 4}, r'no such step .* got 4, expected one of \[3, 5\]'),
  ],
)
def test_no_such_checkpoint(old, settings, what):
  with pytest.raises(errors.CheckpointError, match=what):
    start(old, **settings)


def test_another_activation_is_told(old):
  found, _ = start(old, tiny.transformer(vocab_size=384, activation='silu'))
  assert list(found.notes())[1] == (
    "Transformer.activation is 'silu'; in the checkpoint it was 'gelu'"
  )
