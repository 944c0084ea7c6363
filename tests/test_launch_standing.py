"""What a launch may change of a job: the rule that all backends share."""

import pytest

from t5x_lite import errors
from t5x_lite.launch import jobs
from t5x_lite.launch import standing

COMMAND = ['train', '--gin_file=a', '--gin_file', 'b', '--workdir=gs://b/a']


def a_job(*overrides, command=COMMAND, files=None, backend='gke'):
  config = jobs.load('v5e_4', overrides).to_dict()
  state = {'files': standing.digests(files or {})}
  return jobs.Job('a', backend, config, list(command), {}, state)


def told(old, new, **more):
  return [d.told('there') for d in standing.differences(old, new, **more)]


@pytest.mark.parametrize(
  'changes, said',
  [
    ({}, []),
    (['accelerator=v5litepod-4'], []),
    (['accelerator=1xv5e-4'], []),
    (['recipe=t5/bytes', 'slurm.qos=a', 'tpu_vm.wait=1'], []),
    (['slices=2'], ['--config.slices: 2 (there: 1)']),
    (['restarts=0'], ['--config.restarts: 0 (there: 10)']),
    (['gke.queue=a'], ['--config.gke.queue: a (there: none)']),
    (['files=a,b'], ['--config.files: a, b (there: none)']),
    (['env.A=pass'], ['--config.env.A: a value (there: none)']),
  ],
)
def test_fields(changes, said):
  assert told(a_job(), a_job(*changes)) == said


@pytest.mark.parametrize(
  'command, said',
  [
    ([*COMMAND, '--gin.Run.steps=3'], ['--gin.Run.steps: 3 (there: none)']),
    (
      ['train', '--gin_file=b', '--gin_file=a', COMMAND[-1]],
      ['--gin_file: b, a (there: a, b)'],
    ),
    (
      ['evaluate', *COMMAND[1:]],
      ['train: none (there: given)', 'evaluate: given (there: none)'],
    ),
    (
      ['train', COMMAND[-1], *COMMAND[1:-1]],
      [
        'its command: train --workdir=gs://b/a --gin_file=a --gin_file b'
        ' (there: train --gin_file=a --gin_file b --workdir=gs://b/a)'
      ],
    ),
  ],
)
def test_commands(command, said):
  assert told(a_job(), a_job(command=command)) == said


def test_files():
  one, other = (a_job(files={'a': text, 'b': b'2'}) for text in (b'1', b'2'))
  assert told(one, other) == ['a: what it is now (there: another)']
  del one.state['files']  # of an earlier version, which did not remember them
  assert not told(one, other)


def test_fields_that_are_of_no_account():
  old, new = a_job(), a_job('zone=us-west1-c')
  assert told(old, new, ignored=('zone',)) == []


def test_what_is_held():
  old, new = a_job(), a_job(*(f'env.A{n}=1' for n in range(6)), 'restarts=3')
  differ = standing.differences(old, new)
  standing.check(old, new, None, differ)
  standing.check(old, new, standing.Standing('ended', False), differ)
  ended = standing.Standing('ended', False, ('restarts', 'zone'))
  with pytest.raises(errors.ConfigError) as e:
    standing.check(old, new, ended, differ)
  assert e.value.got == '--config.restarts: 3 (there: 10)'
  assert 'launch delete a' in str(e.value)
  with pytest.raises(errors.ConfigError) as e:
    standing.check(old, new, standing.Standing('running', True), differ)
  assert str(e.value).count('a value') == 3 and '; and 3 more' in str(e.value)
  assert 'launch stop a lets it save and end; then' in str(e.value)
  running = standing.Standing('running', True, ('restarts',))
  with pytest.raises(errors.ConfigError) as e:
    standing.check(old, new, running, differ)
  assert 'delete gives back what it has; then the same' in str(e.value)
