"""Runs of several processes: how they meet, agree, and end."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from t5x_lite import checkpoints
from t5x_lite import cli
from t5x_lite import errors
from t5x_lite import joining
from t5x_lite import processes
from t5x_lite.processes import meeting
from tests import runs


def free_address():
  with socket.create_server(('127.0.0.1', 0)) as server:
    return f'127.0.0.1:{server.getsockname()[1]}'


# -- meeting ------------------------------------------------------------------


def meet(count, facts, timeout=5, address=None, late=0):
  """What call_roll and call_in give or raise, by process.

  Args:
    count: processes that there should be.
    facts: dict of the index of each process that comes to its facts.
    timeout: seconds to meet.
    address: of process 0.
    late: seconds after which the others come.
  """
  address, found = address or free_address(), {}

  def run(index):
    place = meeting.Place(address, count, index, timeout)
    call = meeting.call_in if index else meeting.call_roll
    time.sleep(late if index else 0)
    try:
      peers = call(place, facts[index])
      found[index] = sorted(peers)
      for peer in peers.values():
        peer.close()
    except errors.UserError as e:
      found[index] = e

  threads = [threading.Thread(target=run, args=[index]) for index in facts]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  return found


def test_all_meet():
  found = meet(3, dict.fromkeys(range(3), {'recipe': 'a'}))
  assert found == {0: [1, 2], 1: [0], 2: [0]}


def test_options_that_are_lists_are_alike():
  fact = {'--tasks': ('a', 'b'), '--shard': [0, 1]}
  assert meet(2, dict.fromkeys(range(2), fact)) == {0: [1], 1: [0]}


def test_t5x_997_missing_processes_are_named():
  """t5x#997: a pod hung, as the command ran on one host alone."""
  found = meet(4, {0: {}, 2: {}}, timeout=1)
  for error in found.values():
    assert isinstance(error, errors.DeviceError)
    assert 'no word of process 1, 3' in str(error)
    assert '2 of 4 processes did not call in within 1 s' in str(error)


def test_without_process_0():
  [error] = meet(2, {1: {}}, timeout=1).values()
  assert 'process 0 did not answer within 1 s' in str(error)


def test_processes_that_run_something_else_are_named():
  facts = {0: {'model.embed_dim': 32}, 1: {'model.embed_dim': 64}}
  for error in meet(2, facts).values():
    assert (
      'processes differ in model.embed_dim; got 64 in process 1, expected 32,'
      ' as in process 0' in str(error)
    )


def test_those_that_differ_are_counted_and_the_first_few_named():
  version = dict.fromkeys(range(64), '0.12') | dict.fromkeys(
    range(9, 16), '0.11'
  )
  facts = {'the version of flax': version, 'seed': {0: 1, 1: 2}}
  with pytest.raises(errors.DeviceError) as wrong:
    meeting.compare(facts)
  assert str(wrong.value).startswith(
    'processes differ in the version of flax and in 1 more (seed); got 0.11 in '
    '7 processes (9, 10, 11, 12, ...), expected 0.12, as in 57 processes '
    '(0, 1, 2, 3, ...)'
  )


def test_the_odd_one_is_named_if_it_is_process_0_too():
  with pytest.raises(errors.DeviceError) as wrong:
    meeting.compare({'seed': {0: None, 1: 2, 2: 2}})
  assert 'got none in process 0, expected 2, as in 2 processes (1, 2)' in str(
    wrong.value
  )


def test_what_process_0_lacks_is_a_difference():
  for error in meet(2, {0: {}, 1: {'the code of my.py': 'a'}}).values():
    assert 'differ in the code of my.py; got a in process 1' in str(error)


def test_two_runs_at_one_address():
  address = free_address()
  with socket.create_server(('127.0.0.1', int(address.split(':')[1]))):
    [error] = meet(2, {0: {}}, address=address).values()
  assert 'process 0 cannot listen' in str(error)


def test_strangers_are_not_taken_for_processes():
  address = free_address()

  def disturb():
    time.sleep(0.3)
    for words in (b'GET / HTTP/1.1\r\n\r\n', b'[]\n', b'{"index": "x"}\n', b''):
      with socket.create_connection(address.split(':')) as stranger:
        stranger.sendall(words)

  stranger = threading.Thread(target=disturb)
  stranger.start()
  assert meet(2, {0: {}, 1: {}}, address=address, late=1)[0] == [1]
  stranger.join()


@pytest.mark.parametrize(
  'place, said',
  [
    (('here', 2, 0), 'expected HOST:PORT'),
    (('here:0', 2, 0), 'expected HOST:PORT'),
    (('here:99999', 2, 0), 'expected HOST:PORT'),
    (('here:9', 2, 2), 'got 2, expected 0 to 1'),
  ],
)
def test_wrong_places(place, said):
  with pytest.raises(errors.ConfigError, match=said):
    meeting.Place(*place)


@pytest.mark.parametrize(
  'address, listens_at',
  [
    ('127.0.0.1:9', '127.0.0.1:9'),
    ('localhost:9', 'localhost:9'),
    ('10.1.2.3:9', '10.1.2.3:9'),
    ('[::1]:9', '[::1]:9'),
    ('node07:9', '0.0.0.0:9'),  # as Debian's /etc/hosts names a machine
    ('node08:9', 'node08:9'),
  ],
)
def test_process_0_listens_where_it_was_told(monkeypatch, address, listens_at):
  known = {
    'node07': '127.0.1.1',
    'node08': '10.1.2.8',
    'localhost': '127.0.0.1',
  }

  def find(host, port, **_):
    return [(0, 0, 0, '', (known.get(host, host), port))]

  monkeypatch.setattr(socket, 'getaddrinfo', find)
  assert meeting.Place(address, 2, 0).listens_at == listens_at


def test_t5x_defect_19_the_time_to_meet_is_an_option(monkeypatch):
  """T5X refused it: as strings, version 0.10 of JAX is older than 0.4.15."""
  places = []
  monkeypatch.setattr(processes, 'join', lambda place, _: places.append(place))
  options = '--coordinator_address=here:9', '--process_count=2'
  words = *options, '--process_index=1', '--initialization_timeout=7'
  joining.meet(cli.parse(['train', *words, '--heartbeat_timeout=5']))
  assert places == [meeting.Place('here:9', 2, 1, timeout=7, silence=5)]


# -- running ------------------------------------------------------------------


def workers(task, count, out, *arguments, devices=4):
  """Runs `process_worker` in some processes of that many devices in all."""
  address = free_address()
  x64 = str(int(task == 'gradients'))
  started = [
    subprocess.Popen(
      [
        sys.executable,
        '-m',
        'tests.process_worker',
        *map(str, (task, address, count, index, out, *arguments)),
      ],
      env=os.environ
      | {'JAX_NUM_CPU_DEVICES': str(devices // count), 'JAX_ENABLE_X64': x64},
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    for index in range(count)
  ]
  for process in started:
    code, output = runs.finish(process)
    assert code == 0, output


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  return runs.write_corpus(tmp_path_factory.mktemp('corpus'))


def train(workdir, corpus, processes, devices=1, **settings):
  """Trains by `launch local`; returns what was said."""
  arguments = (
    'train',
    f'--corpus={corpus}',
    f'--workdir={workdir}',
    *runs.options(**settings),
  )
  return runs.complete(processes, devices, *arguments)


def test_t5x_832_and_340_two_processes_train_as_one_and_end_well(
  corpus, tmp_path, command
):
  """t5x#832: several hosts, and how? t5x#340: it crashed at the end."""
  command(
    'train',
    f'--corpus={corpus}',
    f'--workdir={tmp_path}/one',
    *runs.options(),
  )
  said = train(tmp_path / 'two', corpus, 2)
  assert '[0] step 6/6' in said and '[1]' not in said
  runs.assert_same_metrics(tmp_path / 'two', tmp_path / 'one', 'train')
  runs.assert_same_metrics(tmp_path / 'two', tmp_path / 'one', 'validation')
  assert runs.steps(tmp_path / 'two') == [3, 6]
  one, two = (
    {path.name for path in (tmp_path / name).iterdir()}
    for name in ('one', 'two')
  )
  assert one == two
  # The last batch, of one example, has no row for the second process.
  evaluate = (
    'evaluate',
    f'--workdir={tmp_path}/two',
    '--tasks=topics_9',
    '--task_module=tests.topic_tasks',
    '--examples=9',
    '--force',
  )
  measured = []
  for run in (lambda *words: runs.complete(2, 1, *words), command):
    runs.assert_clean(run(*evaluate))
    text = (tmp_path / 'two/evaluation/metrics.json').read_text()
    measured.append(json.loads(text))
  assert_near(*measured)
  for name in ('validation', 'topics_9'):
    assert measured[0][name]['6']['examples'] == 9


@pytest.mark.parallel
def test_gradients_are_those_of_one_process(tmp_path):
  found = {}
  for count in (1, 2, 4):
    workers('gradients', count, tmp_path / f'{count}.npz')
    found[count] = dict(np.load(tmp_path / f'{count}.npz'))
  assert len(found[1].pop('rows')) == 16
  assert len(found[2].pop('rows')) == len(found[4].pop('rows')) == 8
  for count in (2, 4):
    for name, wanted in found[1].items():
      assert np.linalg.norm(found[count][name] - wanted) <= 1e-6 * (
        np.linalg.norm(wanted)
      ), name


@pytest.mark.parallel
@pytest.mark.parametrize(
  'legs',
  [
    [(1, 8), (1, 4), (1, 2)],
    [(1, 4), (2, 2), (4, 1)],
    [(4, 1), (2, 2), (1, 1)],
  ],
  ids=str,
)
def test_maxtext_1760_a_run_goes_on_by_other_processes(corpus, tmp_path, legs):
  """maxtext#1760: resuming demanded the same number of processes."""
  settings = dict(Run__steps=9, Checkpoints__every=3)
  train(tmp_path / 'whole', corpus, 1, devices=legs[0][1], **settings)
  for n, (count, devices) in enumerate(legs, 1):
    steps = {'Run__steps': 3 * n}
    train(tmp_path / 'legs', corpus, count, devices, **settings | steps)
    # The state that the next leg reads is the one that this leg wrote.
    sums = []
    for readers in (1, 2, 4):
      out = tmp_path / f'{n}-{readers}.json'
      workers('restored', readers, out, tmp_path / 'legs')
      sums.append(json.loads(out.read_text()))
    assert sums[0]['step'] == 3 * n
    assert sums[0] == sums[1] == sums[2]
  runs.assert_same_metrics(tmp_path / 'legs', tmp_path / 'whole', 'train')


@pytest.mark.parallel
def test_t5x_741_each_example_is_counted_once_by_any_processes(
  corpus, tmp_path
):
  """t5x#741: evaluation hung on a last batch that was not full."""
  train(tmp_path, corpus, 1, Run__steps=1)
  tasks = ','.join(f'topics_{count}' for count in (1, 7, 8, 9, 31))
  found = {}
  for count, batch_size in ((1, 1), (1, 8), (2, 8), (4, 8)):
    arguments = (
      'evaluate',
      f'--workdir={tmp_path}',
      f'--tasks={tasks}',
      '--task_module=tests.topic_tasks',
      f'--batch_size={batch_size}',
      '--force',
    )
    start = runs.launch if count > 1 else lambda _, *rest: runs.start(*rest)
    code, output = runs.finish(start(count, *arguments))
    assert code == 0, output
    folder = tmp_path / 'evaluation'
    metrics = json.loads((folder / 'metrics.json').read_text())
    lines = [
      [json.loads(line) for line in file.read_text().splitlines()]
      for file in sorted(folder.glob('topics_*.jsonl'))
    ]
    found[count, batch_size] = metrics, lines
  wanted = found.pop((1, 1))
  assert [wanted[0][f'topics_{n}']['1']['examples'] for n in (1, 7, 31)] == [
    1,
    7,
    31,
  ]
  for one in found.values():
    assert_near(one, wanted)


def assert_near(found, wanted):
  """The same JSON, floats to 1e-5."""
  if isinstance(wanted, dict):
    assert found.keys() == wanted.keys()
    found, wanted = list(found.values()), list(wanted.values())
  if isinstance(wanted, (list, tuple)):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
      assert_near(one, other)
  elif isinstance(wanted, float):
    assert found == pytest.approx(wanted, rel=1e-5)
  else:
    assert found == wanted


# -- ending -------------------------------------------------------------------


@pytest.fixture
def running(corpus, tmp_path):
  """Three processes in the middle of training, and how to find one."""
  process = runs.launch(
    3,
    'train',
    f'--corpus={corpus}',
    f'--workdir={tmp_path}',
    '--heartbeat_timeout=5',
    *runs.options(
      Run__steps=10**6, Run__batch_size=9, Checkpoints__every=10**6
    ),
  )
  for line in process.stdout:
    if 'step 5/' in line:
      break
  yield process, lambda index: child(process.pid, index)
  process.kill()


def child(parent, index):
  """The process of an index that a launcher started."""
  found = subprocess.run(
    ['pgrep', '-P', str(parent), '-f', f'process_index={index}'],
    capture_output=True,
    text=True,
    check=True,
  )
  return int(found.stdout)


@pytest.mark.parallel
@pytest.mark.parametrize('index', [0, 1, 2])
def test_orbax_h4_a_process_that_dies_ends_all_within_seconds(running, index):
  """With JAX and Orbax alone the others hung for 100 s, then aborted."""
  process, find = running
  os.kill(find(index), signal.SIGKILL)
  began = time.monotonic()
  code, output = runs.finish(process)
  assert time.monotonic() - began < 5
  assert code == 137
  assert f'process {index} is gone' in output
  assert f'process {index} died of SIGKILL' in output


@pytest.mark.parallel
def test_jax_38503_a_process_that_is_stopped_is_named(running):
  """jax#38503: a process that was stuck hung all, without an error."""
  process, find = running
  os.kill(find(1), signal.SIGSTOP)
  began = time.monotonic()
  code, output = runs.finish(process)
  assert time.monotonic() - began < 5 + 5 + 16  # silence, and the grace
  assert code == errors.DeviceError.exit_code
  assert 'process 1 has given no sign of life' in output


@pytest.mark.parallel
@pytest.mark.parametrize('index', [0, 2])
def test_orbax_h6_a_signal_to_one_process_stops_all_at_one_step(
  running, tmp_path, index
):
  """Else JAX swallows it, and they run on."""
  process, find = running
  os.kill(find(index), signal.SIGTERM)
  code, output = runs.finish(process)
  assert code == 143, output
  [step] = checkpoints.Checkpoints.reader(tmp_path).steps()
  assert f'SIGTERM: saving step {step}' in output
  assert runs.metrics(tmp_path)[-1]['step'] == step


@pytest.mark.parallel
@pytest.mark.parametrize('closed', [True, False])
def test_no_process_waits_for_a_reader_that_left(running, closed):
  """As `| head` leaves, or a launcher that is killed."""
  process, find = running
  children = [find(index) for index in range(3)]
  if not closed:
    process.kill()
  process.stdout.close()
  code = process.wait(30)
  assert code == (errors.NOT_READ if closed else -signal.SIGKILL)
  deadline = time.monotonic() + 30
  while any(os.path.exists(f'/proc/{child}') for child in children):
    assert time.monotonic() < deadline
    time.sleep(0.1)


# -- clusters -----------------------------------------------------------------


def test_slurm_gives_the_place(monkeypatch):
  for name, value in {
    'SLURM_JOB_ID': '123456',
    'SLURM_STEP_NODELIST': 'node[07-09]',
    'SLURM_NTASKS': '3',
    'SLURM_PROCID': '2',
    'SLURM_LOCALID': '0',
  }.items():
    monkeypatch.setenv(name, value)
  place = processes.detect()
  assert (place.count, place.index) == (3, 2)
  assert place.address.startswith('node07:')


def test_no_cluster_is_one_message():
  with pytest.raises(errors.DeviceError, match='give --coordinator_address'):
    processes.detect()


@pytest.mark.parallel
@pytest.mark.parametrize(
  'arguments, code, said',
  [
    (['train', '--corpus={0}/my.txt', '--gin.Run.batch_size=7'], 2, '7 rows'),
    (['train', '--corpus={0}/my.txt', '--workdir={0}/my.txt'], 7, 'my.txt'),
    (['train', '--corpus={0}/no.txt'], 3, 'no.txt'),
    (['infer', '--input={0}/no.txt'], 4, 'no checkpoint'),
    (['infer'], 4, 'no checkpoint'),
    (['evaluate', '--step=9'], 4, 'no checkpoint'),
    (['evaluate', '--task_module=no_such'], 2, 'no_such'),
  ],
  ids=str,
)
def test_wrong_inputs_of_several_processes_are_one_message(
  corpus, tmp_path, arguments, code, said
):
  """And nothing by JAX, which aborts whoever outlives process 0."""
  arguments = [word.replace('{0}', str(corpus.parent)) for word in arguments]
  command, *options = arguments
  process = runs.launch(2, command, f'--workdir={tmp_path}/run', *options)
  found, output = runs.finish(process)
  assert found == code, output
  [line] = output.splitlines()
  assert line.startswith('[0] t5x_lite: ') and said in line
