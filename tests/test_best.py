"""The best steps: which they are, that they are kept, and when a run stops."""

import errno
import json
import math
import types

import jax
import jax.numpy as jnp
import pytest

from t5x_lite import best
from t5x_lite import checkpoints
from t5x_lite import cli
from t5x_lite import errors
from t5x_lite import evaluate
from t5x_lite import measures
from t5x_lite import record
from t5x_lite import specs
from tests import runs
from tests import tiny

NAN = math.nan
LEAST = specs.Best(metric='validation/loss', goal='min', patience=2)
MOST = specs.Best(metric='a/b/c', goal='max', keep=2)


def measured(spec, value):
  name, _, metric = spec.metric.partition('/')
  return {name: {metric: value, 'other': -1.0}, 'elsewhere': {metric: -2.0}}


def saved(folder, spec, starts):
  """The steps that are left of some, each with its value (None: unmeasured)."""
  keep = specs.Checkpoints(keep=1, best=spec)
  state = {'x': jax.device_put(jnp.zeros(2), jax.devices()[0])}
  run = tiny.run(checkpoints=keep)
  for values in starts:  # each dict is one start of the run
    with checkpoints.Checkpoints(folder, keep) as saver:
      for step, value in values.items():
        metrics = {'measured': None, 'best': None}
        if value is not None:
          metrics['measured'] = measured(spec, value)
        saver.save(step, state, {}, record.record(run), metrics)
  return checkpoints.Checkpoints.reader(folder)


# -- which is best ------------------------------------------------------------


@pytest.mark.parametrize(
  'spec, found, wanted',
  [
    (LEAST, measured(LEAST, 2.5), 2.5),
    (LEAST, measured(LEAST, 0), 0),
    (MOST, measured(MOST, -1.0), -1.0),
    (LEAST, measured(LEAST, NAN), None),
    (LEAST, measured(LEAST, math.inf), None),
    (LEAST, measured(LEAST, 'text'), None),
    (LEAST, {'validation': {}}, None),
    (LEAST, {}, None),
    (LEAST, None, None),
  ],
)
def test_value(spec, found, wanted):
  assert best.value(spec, found) == wanted


def test_the_order_of_steps():
  values = {1: 3.0, 2: None, 3: 1.0, 4: 1.0, 5: 2.0}
  assert best.steps(LEAST, values) == [3, 4, 5, 1]
  assert best.steps(MOST, values) == [1, 5, 3, 4]
  assert best.steps(LEAST, {}) == []


def follow(spec, values, state=None):
  follower = best.Best(spec, state)
  news = [
    follower.update(step, measured(spec, value))
    for step, value in values.items()
  ]
  return follower, news


def test_follows_the_best_and_counts_what_is_worse():
  follower, news = follow(LEAST, {0: 1.0, 1: 9.0, 2: 8.0, 3: NAN, 4: 7.0})
  assert news == [False, True, True, False, True]  # step 0 is untrained
  assert (follower.step, follower.value, follower.worse) == (4, 7.0, 0)
  follower, news = follow(LEAST, {5: 7.0}, follower.state())
  assert news == [False] and follower.worse == 1 and not follower.exhausted
  follower, _ = follow(
    LEAST, {6: NAN}, json.loads(json.dumps(follower.state()))
  )
  assert follower.exhausted
  assert str(follower).endswith('the best is 7 at step 4')


def test_of_another_metric_nothing_is_carried_on():
  follower, _ = follow(LEAST, {1: 9.0})
  assert best.Best(MOST, follower.state()).step is None
  other = best.Best(MOST, follower.state(), {4: 1.0, 5: 2.0, 6: None})
  assert (other.step, other.value, other.worse) == (5, 2.0, 0)
  same = best.Best(LEAST, follower.state(), {4: 1.0})
  assert (same.step, same.value) == (1, 9.0)
  assert best.Best(None, follower.state()).state() is None
  assert not best.Best(None).update(3, {}) and not best.Best(None).exhausted


def test_what_never_was_a_number_exhausts_patience_too():
  follower, _ = follow(LEAST, {1: NAN, 2: NAN})
  assert follower.exhausted
  assert 'never was a finite number' in str(follower)


# -- what is kept -------------------------------------------------------------


@pytest.mark.parametrize(
  'spec, starts, wanted',
  [
    (LEAST, [{1: 2.0, 2: 1.0, 3: 3.0, 4: 4.0}], [2, 4]),
    (MOST, [{1: 2.0, 2: 1.0, 3: 3.0, 4: -4.0, 5: 0.0}], [1, 3, 5]),
    (LEAST, [{1: NAN, 2: 5.0, 3: NAN, 4: NAN}], [2, 4]),
    (LEAST, [{1: 5.0, 2: None, 3: None}], [1, 3]),
    (LEAST, [{1: 2.0, 2: 1.0}, {3: 3.0}, {4: 1.5, 5: 4.0}], [2, 5]),
    (LEAST, [{1: 1.0}, {2: 0.5}, {3: 0.7}], [2, 3]),
  ],
)
def test_t5x_defect_5_best_checkpoints_are_kept(tmp_path, spec, starts, wanted):
  """(T5X's SaveBest kept the newest.) And the newest is kept, good or not."""
  assert saved(tmp_path, spec, starts).steps() == wanted


def test_orbax_1601_a_step_can_be_named_and_need_not(tmp_path):
  saver = saved(tmp_path, LEAST, [{1: 2.0, 2: 1.0, 3: 3.0, 4: NAN}])
  assert best.find(saver) == best.find(saver, 'latest') == 4
  assert best.find(saver, 'best') == 2
  assert best.find(saver, 7) == 7


def test_t5x_defects_10_and_11_the_latest_is_found_though_it_is_0(tmp_path):
  saver = saved(tmp_path, LEAST, [{0: 2.0}])
  assert best.find(saver, 'latest') == best.find(saver, 'best') == 0


def test_names_that_stand_for_nothing(tmp_path):
  nowhere = checkpoints.Checkpoints.reader(tmp_path / 'nowhere')
  with pytest.raises(errors.CheckpointError, match='no checkpoint'):
    best.find(nowhere, 'best')
  saver = saved(tmp_path / 'a', LEAST, [{1: None}])
  with pytest.raises(errors.CheckpointError, match='no step was measured'):
    best.find(saver, 'best')
  with checkpoints.Checkpoints(tmp_path / 'b', specs.Checkpoints()) as saver:
    run = record.record(tiny.run())
    saver.save(1, {'x': jnp.zeros(1)}, {}, run)
    saver.wait()
    with pytest.raises(errors.ConfigError, match=r'no Checkpoints\.best'):
      best.find(saver, 'best')


def test_marin_5386_a_save_that_fails_costs_no_good_step(tmp_path, monkeypatch):
  """Though it would have been the best and the newest."""
  saved(tmp_path, LEAST, [{1: 1.0, 2: 3.0}])
  with monkeypatch.context() as patch:

    def full(*_):
      raise OSError(errno.ENOSPC, 'No space left on device')

    patch.setattr(checkpoints.manifest, 'write', full)
    with pytest.raises(errors.StorageError, match='No space left'):
      saved(tmp_path, LEAST, [{3: 0.5}])
  assert checkpoints.Checkpoints.reader(tmp_path).steps() == [1, 2]
  assert saved(tmp_path, LEAST, [{4: 5.0}]).steps() == [1, 4]


def test_damaged_metrics_are_told_before_training(tmp_path):
  saved(tmp_path, LEAST, [{1: 2.0}])
  file = tmp_path / 'checkpoints' / '1' / 'measured' / 'metadata'
  file.write_text(file.read_text().replace('2.0', '1.0'))
  with pytest.raises(errors.CheckpointError, match='damaged'):
    checkpoints.Checkpoints(tmp_path, specs.Checkpoints(best=LEAST))


# -- what there is to choose from ---------------------------------------------


@pytest.fixture
def sources():
  found = measures.Measures.__new__(measures.Measures)
  found.names = ['validation', 'task']
  found.mixtures = {'mixture': ['task']}
  found._tasks = {'task': types.SimpleNamespace()}
  found._held_out = types.SimpleNamespace(class_metrics=())
  return found


@pytest.mark.parametrize(
  'metric, said',
  [
    ('validation/los', 'did you mean validation/loss?'),
    ('validaton/loss', 'did you mean validation/loss?'),
    ('tsak/bleu', 'task/...'),
  ],
)
def test_a_metric_that_nothing_measures_is_refused(sources, metric, said):
  with pytest.raises(errors.ConfigError) as e:
    sources.check(specs.Best(metric=metric, goal='max'))
  assert metric in str(e.value) and said in str(e.value)


def test_metrics_of_tasks_are_known_once_they_are_measured(sources):
  spec = specs.Best(metric='task/bleu', goal='max')
  sources.check(None)
  sources.check(spec)
  sources.check(specs.Best(metric='mixture/bleu', goal='max'))
  found = {'task': {'bleu': NAN, 'text': 'x'}, 'mixture': {}}
  sources.check(spec, found)
  with pytest.raises(errors.ConfigError, match='did you mean task/bleu'):
    sources.check(specs.Best(metric='task/blue', goal='max'), found)
  with pytest.raises(errors.ConfigError):
    sources.check(specs.Best(metric='task/text', goal='max'), found)
  for name in evaluate.METRICS:
    sources.check(specs.Best(metric=f'validation/{name}', goal='max'))


@pytest.mark.parametrize('metric', ['loss', 'validation/', '/loss', ''])
def test_a_metric_has_two_parts(metric):
  with pytest.raises(errors.ConfigError, match=r'Best\.metric'):
    specs.Best(metric=metric, goal='min')


# -- runs ---------------------------------------------------------------------


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  return runs.write_corpus(tmp_path_factory.mktemp('text'))


@pytest.fixture
def train(corpus, capsys):
  def run(workdir, *more, code=0, **settings):
    arguments = ['train', f'--corpus={corpus}', f'--workdir={workdir}']
    options = {
      'Run__steps': 9,
      'Evaluation__every': 1,
      'Checkpoints__every': 2,
      'Checkpoints__keep': 1,
      'Best__metric': 'validation/loss',
      'Best__goal': 'max',  # it falls, so that the first is the best
      'Best__patience': 3,
    }
    options = runs.options(**options | settings)
    best_ = '--gin.Checkpoints.best=@Best()'
    assert cli.main([*arguments, *options, best_, *more]) == code
    return ''.join(capsys.readouterr())

  return run


def test_t5x_defect_7_a_run_stops_when_patience_is_at_its_end(train, tmp_path):
  """At the same step when it was cut; another start does not go on."""
  train(tmp_path, Run__steps=2)
  said = train(tmp_path)
  lines = runs.metrics(tmp_path)
  losses = {x['step']: x['loss'] for x in lines if x['split'] == 'validation'}
  assert max(losses) == 4 and losses[1] == max(losses[n] for n in (1, 2, 3, 4))
  stop = f'the best is {losses[1]:.6g} at step 1'
  assert 'stopping at step 4: no better validation/loss in 3' in said
  assert stop in said
  assert runs.steps(tmp_path) == [1, 4]  # 1 is no multiple of 2
  said = train(tmp_path)
  assert 'done at step 4' in said and stop in said
  assert runs.metrics(tmp_path) == lines
  said = train(tmp_path, Best__patience=4)
  assert 'stopping at step 5' in said
  assert runs.steps(tmp_path) == [1, 5]


def test_a_metric_that_is_not_there_is_told_before_compiling(train, tmp_path):
  said = train(tmp_path, Best__metric='validation/text_los', code=2)
  assert 'did you mean validation/text_loss?' in said
  assert 'compiled in' not in said


def test_nothing_is_waited_for_where_nothing_is_measured():
  spec = specs.Checkpoints(best=specs.Best(goal='min', patience=2))
  with pytest.raises(errors.ConfigError, match=r'Evaluation\.every'):
    tiny.run(checkpoints=spec, evaluation=specs.Evaluation(every=0))
  tiny.run(checkpoints=spec)
