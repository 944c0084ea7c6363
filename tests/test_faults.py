"""Whatever stops a run, the same command ends it as if nothing had happened.

`make faults` runs them. `make test` kills a run once, in test_runs.py.
"""

import random
import resource
import shutil
import signal
import time

import pytest

from t5x_lite import checkpoints
from t5x_lite import models
from t5x_lite import record
from t5x_lite import specs
from tests import runs
from tests import tiny

STEPS = 60
EVERY = 7


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  return runs.write_corpus(tmp_path_factory.mktemp('text'))


@pytest.fixture
def start(corpus, tmp_path):
  """Starts the run, in a workdir and with a cache of the test's own."""

  def run(workdir=tmp_path / 'run', cache=tmp_path / 'cache'):
    return runs.start(
      'train',
      f'--corpus={corpus}',
      f'--workdir={workdir}',
      *runs.options(
        Run__steps=STEPS, Checkpoints__every=EVERY, Evaluation__every=20
      ),
      T5X_LITE_CACHE=str(cache),
    )

  return run


@pytest.fixture(scope='module')
def undisturbed(corpus, tmp_path_factory):
  """The workdir of a run that nothing disturbs."""
  folder = tmp_path_factory.mktemp('undisturbed')
  process = runs.start(
    'train',
    f'--corpus={corpus}',
    f'--workdir={folder}/run',
    *runs.options(
      Run__steps=STEPS, Checkpoints__every=EVERY, Evaluation__every=20
    ),
    T5X_LITE_CACHE=f'{folder}/cache',
  )
  code, output = runs.finish(process)
  assert code == 0, output
  return folder / 'run'


def moments(draw, early, late):
  """Moments to disturb a run at: (step to wait for or None, seconds after it).

  The early ones come at any time of the start: imports, tokenising, compiling.
  The others follow steps that are saved or measured, from the next step's
  beginning to the end of the save.
  """
  # The first start compiles; the others read what it kept, if it came so far.
  found = [(None, draw.uniform(3, 7))]
  found += [(None, draw.uniform(0.1, 2.5)) for _ in range(early - 1)]
  steps = sorted(draw.sample(range(EVERY, STEPS, EVERY), late - 1))
  return found + [(step, draw.uniform(0, 0.2)) for step in [*steps, STEPS]]


def disturb(start, workdir, number, planned):
  """Sends a signal at each moment, then lets the run end.

  Returns:
    The exit codes of the starts, and the steps that were saved after each.
  """
  codes, reached = [], []
  for moment in [*planned, None]:
    process = start(workdir)
    if moment is not None:
      step, delay = moment
      if step is not None:
        runs.wait_for(process, step)
      time.sleep(delay)
      process.send_signal(number)
    code, output = runs.finish(process)
    assert 'Traceback' not in output, output
    codes.append(code)
    reached.append(max(runs.steps(workdir), default=0))
  return codes, reached


def assert_undisturbed(workdir, undisturbed):
  """The same bits, losses, measures and consumed examples as undisturbed."""
  runs.assert_same_state(workdir, undisturbed, STEPS)
  lines = runs.metrics(workdir)
  assert lines == runs.metrics(undisturbed)
  steps = [line['step'] for line in lines if line['split'] == 'train']
  assert steps == list(range(1, STEPS + 1))
  for step in runs.steps(workdir):
    _, position = runs.saved(workdir, step)
    assert position['examples'] == step * 8


def drill(start, undisturbed, workdir, number, planned):
  codes, reached = disturb(start, workdir, number, planned)
  # A run that had just ended when the signal came has nothing more to do.
  *disturbed, last = codes
  assert set(disturbed) <= {runs.EXIT_CODES[number], 0}
  assert disturbed.count(0) <= 1 and last == 0
  assert reached == sorted(reached) and reached[-1] == STEPS
  assert_undisturbed(workdir, undisturbed)
  return reached


@pytest.mark.faults
def test_two_kills(start, undisturbed, tmp_path):
  planned = [(EVERY, 0.02), (5 * EVERY, 0.0)]
  reached = drill(start, undisturbed, tmp_path / 'run', signal.SIGKILL, planned)
  assert reached[1] >= 3 * EVERY  # lost: a period, and the save under way


@pytest.mark.faults
@pytest.mark.parametrize('seed', [0, 1])
def test_ten_kills(start, undisturbed, tmp_path, seed):
  planned = moments(random.Random(seed), early=4, late=6)
  drill(start, undisturbed, tmp_path / 'run', signal.SIGKILL, planned)


@pytest.mark.faults
@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_ten_signals(start, undisturbed, tmp_path, number):
  planned = moments(random.Random(number), early=4, late=6)
  reached = drill(start, undisturbed, tmp_path / 'run', number, planned)
  for (step, _), saved in zip(planned, reached):
    assert saved >= (step or 0)  # not one step is lost


@pytest.mark.faults
def test_a_second_signal_leaves_at_once(start, undisturbed, tmp_path):
  for step in (10, 21):
    process = start()
    runs.wait_for(process, step)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    begun = time.monotonic()
    code, output = runs.finish(process)
    assert code == 143 and 'Traceback' not in output
    assert time.monotonic() - begun < 5
  assert runs.finish(start())[0] == 0
  assert_undisturbed(tmp_path / 'run', undisturbed)


@pytest.mark.faults
@pytest.mark.parametrize(
  'limit, words',
  [
    (3_000, ['cannot write', 'run/']),
    (100_000, ['save failed', 'checkpoints/', 'safe']),
  ],
)
def test_a_full_disk(start, undisturbed, tmp_path, limit, words):
  """No file may grow further: it is told once, and nothing is lost."""
  process = start()
  runs.wait_for(process, 1)
  resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, limit))
  code, output = runs.finish(process)
  assert code == 7, output
  message = output[output.index('t5x_lite: ') :]
  assert len(message.splitlines()) <= 12 and 'Traceback' not in output
  for word in words:
    assert word in message
  assert runs.finish(start())[0] == 0
  assert_undisturbed(tmp_path / 'run', undisturbed)


@pytest.mark.faults
def test_metaseq_602_a_damaged_checkpoint_is_told(start, undisturbed, tmp_path):
  """metaseq#602: training began from scratch, silently."""
  workdir = tmp_path / 'run'
  process = start()
  runs.wait_for(process, 20)
  process.send_signal(signal.SIGTERM)
  assert runs.finish(process)[0] == 143
  newest = workdir / 'checkpoints' / str(max(runs.steps(workdir)))
  file = max(
    (f for f in newest.rglob('*') if f.is_file()),
    key=lambda f: f.stat().st_size,
  )
  content = bytearray(file.read_bytes())
  content[len(content) // 2] ^= 1
  file.write_bytes(content)
  code, output = runs.finish(start())
  assert code == 4, output
  message = output[output.index('t5x_lite: ') :]
  assert str(file) in message and 'delete this step' in message
  assert len(message.splitlines()) <= 12
  shutil.rmtree(newest)
  assert runs.finish(start())[0] == 0
  assert_undisturbed(workdir, undisturbed)


@pytest.mark.faults
def test_a_reader_that_leaves(start, undisturbed, tmp_path):
  """As by `t5x_lite train | head`: not done, so not exit code 0."""
  process = start()
  runs.wait_for(process, 10)
  process.stdout.close()
  assert process.wait(timeout=60) == 141
  assert runs.finish(start())[0] == 0
  assert_undisturbed(tmp_path / 'run', undisturbed)


# -- inference ----------------------------------------------------------------


@pytest.fixture(scope='module')
def untrained(tmp_path_factory):
  """A workdir with a checkpoint, and a file of lines of many lengths."""
  folder = tmp_path_factory.mktemp('untrained')
  run = tiny.run(tiny.transformer(vocab_size=384))
  model = models.build(run.model)
  with checkpoints.Checkpoints(folder, specs.Checkpoints()) as saver:
    state = {'params': tiny.params(model)}
    saver.save(1, state, {'examples': 0}, record.record(run))
  draw = random.Random(0)
  lines = [f'{n} ' * draw.randrange(60) for n in range(1600)]
  (folder / 'in.txt').write_text('\n'.join(lines))
  return folder


def infer(folder, output, *options):
  return runs.start(
    'infer',
    f'--workdir={folder}',
    f'--input={folder}/in.txt',
    f'--output={output}',
    '--batch_size=2',
    '--length=12',
    *options,
    T5X_LITE_CACHE=f'{output.parent}/cache',
  )


def parts_there(output):
  return len(list(output.with_name(f'{output.name}.parts').glob('*.part')))


@pytest.mark.faults
@pytest.mark.parametrize('shards', [1, 2])
def test_inference_killed_ten_times(untrained, tmp_path, shards):
  """The same bytes as undisturbed, whenever the kills come."""
  (tmp_path / 'undisturbed').mkdir()
  wanted, output = tmp_path / 'undisturbed' / 'out', tmp_path / 'out'
  code, said = runs.finish(infer(untrained, wanted))
  assert code == 0, said
  draw = random.Random(shards)
  early = [(0, draw.uniform(0.1, 6)) for _ in range(3)]
  late = sorted(draw.sample(range(1, 95), 5))
  planned = early + [(count, draw.uniform(0, 0.1)) for count in late]
  # The last ones come while the parts are joined and removed.
  planned += [(99, draw.uniform(0, 0.2)), (100, draw.uniform(0, 0.05)), None]
  killed = 0
  for moment in planned:
    processes = [
      infer(untrained, output, f'--shard={n}/{shards}') for n in range(shards)
    ]
    if moment is not None:
      count, delay = moment
      while parts_there(output) < count and any(
        process.poll() is None for process in processes
      ):
        time.sleep(0.005)
      time.sleep(delay)
    for process in processes:
      if moment is not None:
        process.kill()
      code, said = runs.finish(process)
      assert code in ((0, 137) if moment else (0,)), said
      killed += code == 137
      assert 'Traceback' not in said, said
    assert output.exists() or moment is not None
    assert not output.exists() or output.read_bytes() == wanted.read_bytes()
  assert killed >= 8
  assert output.read_bytes().count(b'\n') == 1600
  assert {f.name for f in tmp_path.iterdir()} == {
    'undisturbed',
    'cache',
    'out',
    'out.done',
  }
