import pytest

from t5x_lite import errors


def test_message_has_the_parts_that_are_given():
  e = errors.ConfigError(
    'unknown setting',
    where='run.gin:12',
    got="'Run.stps'",
    expected='a field of Run',
    choices=['Run.seed', 'Run.steps'],
    fix='correct the name',
  )
  assert str(e) == (
    "unknown setting at run.gin:12; got 'Run.stps', expected a field of Run; "
    'did you mean Run.steps?; fix: correct the name'
  )
  assert str(errors.DataError('no text')) == 'no text'
  assert str(errors.DataError('no text', got=0)) == 'no text; got 0'


def test_at_keeps_everything_but_the_place():
  e = errors.StorageError(
    'x', where='a', got='1', expected='2', choices=['11'], fix='3'
  )
  moved = e.at('b')
  assert type(moved) is errors.StorageError
  assert str(moved) == str(e).replace('x at a', 'x at b')


@pytest.mark.parametrize(
  ('word', 'nearest'),
  [
    ('transfomer', 'Transformer'),
    ("'TRANSFORMER'", 'Transformer'),
    ('dta', 'Data'),
    ("'tran'", 'Transformer'),
    ('zzzzzz', None),
    ('', None),
  ],
)
def test_nearest(word, nearest):
  assert errors.nearest(word, ['Transformer', 'Data']) == nearest


def test_nothing_is_offered_that_looks_like_nothing():
  e = errors.ConfigError('unknown', got='zzzzzz', choices=['Transformer'])
  assert 'did you mean' not in str(e)


def test_a_long_value_does_not_fill_the_screen():
  assert len(str(errors.ConfigError('wrong', got='9' * 10_000))) < 600


def test_exit_codes_differ_and_are_those_of_the_documentation():
  codes = {
    cls.__name__: cls.exit_code for cls in errors.UserError.__subclasses__()
  }
  assert codes == {
    'ConfigError': 2,
    'DataError': 3,
    'CheckpointError': 4,
    'NumericError': 5,
    'DeviceError': 6,
    'StorageError': 7,
  }
  assert (errors.INTERRUPTED, errors.PREEMPTED) == (130, 143)
