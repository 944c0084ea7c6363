"""What a user does at the command line, on real text."""

import importlib.util
import io
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import types

import jax
import numpy as np
import pytest

from t5x_lite import checkpoints
from t5x_lite import cli
from t5x_lite import commands
from t5x_lite import config
from t5x_lite import data
from t5x_lite import loop
from t5x_lite import partitioning
from t5x_lite import processes
from t5x_lite import recipes
from t5x_lite import record
from t5x_lite import train as train_lib
from tests import runs


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  return runs.write_corpus(tmp_path_factory.mktemp('text'))


@pytest.fixture
def train(command, corpus):
  """Trains the small run in a workdir."""

  def run(workdir, *more, code=0, **settings):
    return command(
      'train',
      f'--corpus={corpus}',
      f'--workdir={workdir}',
      *runs.options(**settings),
      *more,
      code=code,
    )

  return run


@pytest.fixture(scope='module')
def trained(corpus, tmp_path_factory):
  """A workdir of six steps, not to be changed."""
  workdir = tmp_path_factory.mktemp('trained')
  arguments = ['train', f'--corpus={corpus}', f'--workdir={workdir}']
  assert cli.main(arguments + runs.options()) == 0
  return workdir


@pytest.fixture
def halfway(trained, tmp_path):
  """A copy of its own of that run, as it was saved at step 3."""
  workdir = tmp_path / 'halfway'
  shutil.copytree(trained, workdir)
  shutil.rmtree(workdir / 'checkpoints' / '6')
  return workdir


# -- train --------------------------------------------------------------------


def test_a_run_begins_ends_and_goes_on(train, tmp_path):
  said = train(tmp_path, Run__steps=4)
  assert 'step 4/4' in said and 'held out at step 0' in said
  assert runs.steps(tmp_path) == [3, 4]
  whole = (tmp_path / 'metrics.jsonl').read_text()
  assert 'done: all 4 steps' in train(tmp_path, Run__steps=4)
  assert (tmp_path / 'metrics.jsonl').read_text() == whole
  keep = dict(Checkpoints__keep=1, Checkpoints__keep_every=6)
  said = train(tmp_path, Run__steps=10, **keep)
  assert 'steps: 4 -> 10' in said and 'going on from step 4' in said
  assert runs.steps(tmp_path) == [6, 10]  # saved were 6, 9 and 10
  trained = [x['step'] for x in runs.metrics(tmp_path) if x['split'] == 'train']
  assert trained == list(range(1, 11))
  said = train(tmp_path, code=2, Run__steps=5)
  assert 'Run.steps 5' in said and '10 that are done' in said


def test_nanot5_7_seqio_182_and_t5x_defect_21_a_run_that_is_cut(
  train, trained, cache, tmp_path
):
  """Ends like one that is not: state, place in the data, losses.

  nanoT5#7: a schedule to be mended by hand. seqio#182: few files and restarts
  overfit. T5X's defect 21: the data were read from their start again; so did
  grain#1178, other data after a resume. maxtext fbb35123a: dropout began anew.
  metaseq#269: other numbers after a restart.

  And no start after the first compiles anything.
  """

  def programs():
    """When each was compiled; single operations depend on earlier tests."""
    return {
      file.name: file.stat().st_mtime_ns
      for file in (cache / 'compiled').iterdir()
      if file.name.startswith(
        ('jit_train_step', 'jit_eval_step', 'jit__lambda')
      )
    }

  before = programs()
  for steps in (2, 6):
    jax.clear_caches()
    train(tmp_path, Run__steps=steps)
  runs.assert_same_state(tmp_path, trained, 6)
  assert len(before) > 1 and before == programs()


def test_xmtf_6_the_record_is_the_recipe(trained, corpus):
  """xmtf#6: results needed overrides that no one had written down."""
  run = config.load(
    ['t5/bytes'],
    [
      f'Data.corpus={str(corpus)!r}',
      *(option.removeprefix('--gin.') for option in runs.options()),
    ],
  )
  text = (trained / 'config.json').read_text()
  assert json.loads(text) == record.record(run)
  reader = checkpoints.Checkpoints.reader(trained)
  assert reader.read_record(6) == record.record(run)


def test_metrics_have_their_names(trained):
  lines = (trained / 'metrics.jsonl').read_text().splitlines()
  lines = [json.loads(line) for line in lines]
  for line in lines:
    if line['split'] == 'train':
      assert line.keys() >= {
        'loss',
        'z_loss',
        'cross_ent_loss',
        'accuracy',
        'learning_rate',
        'grad_norm',
        'timing/seconds_per_step',
        'timing/steps_per_second',
        'timing/seqs_per_second',
        'timing/target_tokens_per_second',
        'perf/mfu',
        'perf/tokens_per_second',
        'data/padding_fraction',
      }
      assert line['loss'] == pytest.approx(
        line['cross_ent_loss'] + line['z_loss'], rel=1e-5
      )
      assert line['learning_rate'] == pytest.approx(0.02 * line['step'] / 100)
      assert 0 < line['perf/mfu'] < 1
      assert 0 <= line['data/padding_fraction'] < 0.5
  measured = [x['step'] for x in lines if x['split'] == 'validation']
  assert measured == [0, 6]
  assert len(list((trained / 'tensorboard').glob('*/events*'))) == 2


@pytest.mark.parametrize(
  'settings, said',
  [
    ({'Transformer__embed_dim': 64}, 'model.embed_dim: 32 -> 64'),
    ({'Data__held_out': 0.1}, 'data.held_out: 0.05 -> 0.1'),
    ({'SpanCorruption__density': 0.1}, 'objective.density: 0.15 -> 0.1'),
    ({'Run__seed': 1}, 'seed: 0 -> 1'),
  ],
)
def test_another_model_or_data_is_refused(train, trained, settings, said):
  before = sorted(trained.rglob('*'))
  assert said in train(trained, code=2, Run__steps=8, **settings)
  assert sorted(trained.rglob('*')) == before


def test_a_changed_corpus_is_refused(train, trained, corpus):
  text = corpus.read_text()
  corpus.write_text(text + '\n\nOne more paragraph.')
  said = train(trained, code=3, Run__steps=8)
  corpus.write_text(text)
  assert 'corpus or vocabulary changed' in said
  assert str(trained / 'checkpoints' / '6') in said


def test_what_may_change_is_told_and_counts_from_here(train, halfway):
  said = train(
    halfway,
    Run__steps=5,
    Run__batch_size=16,
    Schedule__peak=0.01,
    Transformer__dtype='bfloat16',
  )
  for line in (
    'batch_size: 8 -> 16',
    'optimizer.schedule.peak: 0.02 -> 0.01',
    "model.dtype: 'float32' -> 'bfloat16'",
  ):
    assert f'changed since the last start: {line}' in said
  arrays, position = runs.saved(halfway, 5)
  assert position['examples'] == 3 * 8 + 2 * 16
  assert arrays['params/token_embedder/embedding'].dtype == np.float32
  rates = {
    x['step']: x['learning_rate']
    for x in runs.metrics(halfway)
    if x['split'] == 'train'
  }
  assert rates[3] == pytest.approx(0.02 * 3 / 100)
  assert rates[4] == pytest.approx(0.01 * 4 / 100)


@pytest.mark.parallel
def test_a_run_goes_on_on_another_mesh(train, trained, tmp_path):
  said = train(tmp_path, Run__steps=3, Mesh__fsdp=2, Mesh__tensor=2)
  assert 'not sharded' not in said
  assert 'mesh.fsdp: 2 -> 1' in train(tmp_path)

  def of_training(workdir):
    lines = runs.metrics(workdir)
    return [x for x in lines if x.pop('split') == 'train']

  for found, wanted in zip(
    of_training(tmp_path), of_training(trained), strict=True
  ):
    assert found == pytest.approx(wanted, rel=1e-4, abs=1e-6)


def test_a_run_in_float64_on_json_lines(tmp_path):
  """In a process of its own, which has float64 switched on."""
  corpus = tmp_path / 'my.jsonl'
  lines = [{'body': f'This is text number {n}.'} for n in range(200)]
  corpus.write_text('\n'.join(map(json.dumps, lines)))
  process = runs.start(
    'train',
    f'--corpus={corpus}',
    f'--workdir={tmp_path}/run',
    *runs.options(
      Transformer__dtype='float64', Transformer__dropout=0, Data__field='body'
    ),
    JAX_ENABLE_X64='1',
  )
  code, output = runs.finish(process)
  assert code == 0, output
  losses = [x['loss'] for x in runs.metrics(tmp_path / 'run')]
  assert losses[-1] < losses[0]
  assert float(np.float32(losses[-1])) != losses[-1]


def test_a_profile_and_no_tensorboard_by_option(train, tmp_path):
  said = train(tmp_path, '--profile=2:2', '--no_tensorboard', Run__steps=4)
  assert f'profiled into {tmp_path}/profile' in said
  assert [*(tmp_path / 'profile').rglob('*.xplane.pb')]
  assert not (tmp_path / 'tensorboard').exists()


@pytest.mark.parametrize(
  'option, said',
  [
    ('--profile=5:3', 'past the end of the run at --profile; got 5:3'),
    ('--wandb_project=mine', "pip install 't5x_lite[wandb]'"),
  ],
)
def test_what_cannot_be_watched_is_told_first(
  train, tmp_path, monkeypatch, option, said
):
  find = importlib.util.find_spec
  monkeypatch.setattr(
    importlib.util, 'find_spec', lambda x: None if x == 'wandb' else find(x)
  )
  assert said in train(tmp_path / 'run', option, code=2)
  assert not (tmp_path / 'run').exists()


# -- signals ------------------------------------------------------------------


def test_a_signal_saves_and_ends(corpus, tmp_path, train):
  process = runs.start(
    'train',
    f'--corpus={corpus}',
    f'--workdir={tmp_path}',
    *runs.options(Run__steps=10**6, Checkpoints__every=10**6),
  )
  for line in process.stdout:
    if line.startswith('step 5/'):
      break
  process.send_signal(signal.SIGTERM)
  code, output = runs.finish(process)
  assert code == 143, output
  runs.assert_clean(output)
  [step] = runs.steps(tmp_path)
  assert f'SIGTERM: saving step {step}' in output
  assert runs.metrics(tmp_path)[-1]['step'] == step
  said = train(tmp_path, Run__steps=step + 1)
  assert f'going on from step {step}' in said


HANGING = """
import sys, time
from t5x_lite import cli, manifest

def wait_for_storage(*_):
  time.sleep(60)

manifest.write = wait_for_storage
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
  'every', [pytest.param(3, marks=pytest.mark.faults), 6]
)
def test_orbax_392_a_save_that_hangs_ends_the_run(corpus, tmp_path, every):
  """orbax#392: a fifth of the saves hung, for hours. The last may, too."""
  began = time.monotonic()
  done = subprocess.run(
    [
      sys.executable,
      '-c',
      HANGING,
      'train',
      f'--corpus={corpus}',
      f'--workdir={tmp_path}',
      '--step_timeout=4',
      *runs.options(Checkpoints__every=every),
    ],
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 6 and time.monotonic() - began < 60
  assert 'nor saved, in 4 s' in done.stderr
  assert 'in wait_for_storage' in done.stderr
  assert runs.steps(tmp_path) == []


@pytest.mark.parametrize(
  'module, name, step, number',
  [
    pytest.param(
      train_lib.Program, 'compile_step', 1, signal.SIGTERM, id='compile'
    ),
    pytest.param(
      *(loop.Loop, 'evaluate', 1, signal.SIGINT),
      id='evaluate',
      marks=pytest.mark.faults,
    ),
    pytest.param(checkpoints.Checkpoints, 'save', 3, signal.SIGINT, id='save'),
    pytest.param(
      *(partitioning, 'put_batch', 1, signal.SIGTERM),
      id='data',
      marks=pytest.mark.faults,
    ),
  ],
)
def test_spd_677_741_a_signal_in_any_phase_saves(
  train, tmp_path, monkeypatch, module, name, step, number
):
  """The flag was looked at between steps alone: no save in 6 of 6 cases."""
  whole = getattr(module, name)

  def signalled(*args, **kwargs):
    monkeypatch.setattr(module, name, whole)
    found = whole(*args, **kwargs)
    os.kill(os.getpid(), number)
    return found

  monkeypatch.setattr(module, name, signalled)
  said = train(tmp_path, code=runs.EXIT_CODES[number])
  [*_, last] = runs.steps(tmp_path)
  assert step <= last <= step + 1
  assert f'{number.name}: saving step {last}' in said


def test_nemo_rl_3504_one_process_writes(train, halfway, monkeypatch):
  """All wrote the tokenizer: a network file system stood still for 35 h."""
  checkpoints_alone = halfway.with_name('alone')
  checkpoints_alone.mkdir()
  (halfway / 'checkpoints').rename(checkpoints_alone / 'checkpoints')
  monkeypatch.setattr(processes, 'is_first', lambda: False)
  kept = []
  monkeypatch.setattr(data, 'keep_vocabulary', lambda *_: kept.append(1))
  assert train(checkpoints_alone) == ''
  assert [x.name for x in checkpoints_alone.iterdir()] == ['checkpoints']
  assert not kept and runs.steps(checkpoints_alone) == [3, 6]


def test_nanot5_11_21_27_a_text_file_is_all_that_it_takes(corpus, tmp_path):
  """nanoT5#11: how, on one's own dataset?"""
  options = cli.parse(['train', f'--corpus={corpus}', f'--workdir={tmp_path}'])
  run = commands.load(options)
  assert run.data.corpus == str(corpus)
  mesh = partitioning.make_mesh(run.mesh)
  train_lib.Program.build(run, mesh)
  vocabulary = data.load_vocabulary(run.data)
  stores = {run.data.corpus: data.open_or_build(run.data, vocabulary)}
  for split in ('train', 'validation'):
    assert data.Batches(run, stores, vocabulary, split).num_examples > 10


# -- the other commands -------------------------------------------------------


def test_evaluate(command, trained):
  said = command('evaluate', f'--workdir={trained}')
  file = trained / 'evaluation' / 'validation-6.json'
  assert str(file) in said
  found = json.loads(file.read_text())
  assert found['step'] == 6
  found = found['metrics']
  assert found['examples'] > 100  # all of them
  assert 3 < found['loss'] < 7
  assert f'{found["loss"]:.4f}' in said
  assert command('evaluate', f'--workdir={trained}', '--step=3') != said


def test_evaluate_a_run_on_packed_documents(command, train, tmp_path):
  """Its checkpoints tell of the rows it trained on, not of those held out."""
  settings = dict(Data__documents='@Isolated()', Data__pack=True, Run__steps=1)
  train(tmp_path / 'run', **settings)
  command('evaluate', f'--workdir={tmp_path / "run"}')
  assert (tmp_path / 'run' / 'evaluation' / 'validation-1.json').exists()


def test_evaluate_with_devices_that_do_not_divide_the_batch(command, trained):
  command('evaluate', f'--workdir={trained}')
  file = trained / 'evaluation' / 'validation-6.json'
  wanted = json.loads(file.read_text())['metrics']
  process = runs.start(
    'evaluate', f'--workdir={trained}', '--force', JAX_NUM_CPU_DEVICES='3'
  )
  code, output = runs.finish(process)
  assert code == 0, output
  found = json.loads(file.read_text())['metrics']
  assert found == pytest.approx(wanted, rel=1e-6)


def test_infer_from_stdin_and_from_files(
  command, trained, tmp_path, monkeypatch
):
  lines = ['The <extra_id_0> is', '', 'naïve — ☃']
  content = '\n'.join(lines)
  stdin = types.SimpleNamespace(buffer=io.BytesIO(content.encode()))
  monkeypatch.setattr('sys.stdin', stdin)
  said = command('infer', f'--workdir={trained}', '--length=8')
  found = [json.loads(line) for line in said.splitlines()]
  assert [line['inputs'] for line in found] == lines
  assert all(line['score'] < 0 for line in found)
  (tmp_path / 'in.txt').write_text(content)
  command(
    'infer',
    f'--workdir={trained}',
    '--length=8',
    '--batch_size=2',
    f'--input={tmp_path}/in.txt',
    f'--output={tmp_path}/out.jsonl',
  )
  again = (tmp_path / 'out.jsonl').read_text().splitlines()
  for one, other in zip(found, map(json.loads, again), strict=True):
    assert one == other | {'score': pytest.approx(other['score'], rel=1e-4)}


def test_infer_scores_what_it_predicted(command, trained, tmp_path):
  """The same number by decoding and by teacher forcing, for what ended."""
  (tmp_path / 'in.txt').write_text('The\n\nto be\n')
  for given, mode, made in (
    ('in.txt', 'predict', 'out.jsonl'),
    ('pairs.jsonl', 'score', 'scores.jsonl'),
  ):
    said = command(
      'infer',
      f'--workdir={trained}',
      f'--mode={mode}',
      f'--input={tmp_path}/{given}',
      f'--output={tmp_path}/{made}',
    )
    assert f'3 lines in {tmp_path}/{made}' in said
    lines = (tmp_path / made).read_text().splitlines()
    found = [json.loads(line) for line in lines]
    if mode == 'predict':
      predicted = found
      pairs = [e | {'targets': e.pop('prediction')} for e in map(dict, found)]
      content = ''.join(f'{json.dumps(e)}\n' for e in pairs)
      (tmp_path / 'pairs.jsonl').write_text(content)
  assert [e['inputs'] for e in found] == ['The', '', 'to be']
  for one, other in zip(predicted, found, strict=True):
    assert one['prediction'] == other['targets']
    if one['tokens'] == other['tokens'] < 64:
      assert one['score'] == pytest.approx(other['score'], rel=1e-4)


def test_infer_gives_candidates(command, trained, tmp_path):
  (tmp_path / 'in.txt').write_text('To <extra_id_0> or not to <extra_id_1>.')
  said = command(
    'infer',
    f'--workdir={trained}',
    f'--input={tmp_path}/in.txt',
    '--candidates=3',
  )
  blanks = json.loads(said)['blanks']
  assert [b['blank'] for b in blanks] == ['<extra_id_0>', '<extra_id_1>']
  for blank in blanks:
    chances = [c['probability'] for c in blank['candidates']]
    assert len(chances) == 3
    assert chances == sorted(chances, reverse=True)
    assert 0 < sum(chances) <= 1.001


def test_t5x_1088_inspect_shows_what_the_decoder_sees(command, corpus):
  said = command(
    'inspect',
    f'--corpus={corpus}',
    '--gin_file=t5/bytes',
    '--rows=2',
    '--split=validation',
  )
  assert said.count('encoder_input_tokens') == 2
  assert '<extra_id_0>' in said and 'decoder_loss_weights' in said


def test_a_vocabulary_is_trained_and_used(command, tmp_path, corpus):
  """As in a run whose files are all in a bucket, in test_gcs."""
  said = command(
    'vocab',
    f'--corpus={corpus}',
    '--size=500',
    f'--output={tmp_path}/my.model',
  )
  assert '500 pieces' in said
  vocabulary = f'--gin.Data.vocabulary={tmp_path}/my.model'
  assert vocabulary in said and '--gin.Transformer.vocab_size=512' in said
  said = command(
    'inspect',
    f'--corpus={corpus}',
    vocabulary,
    '--rows=1',
    *runs.options(Transformer__vocab_size=512),
  )
  assert '<extra_id_0>' in said and 'decoder_target_tokens' in said
  [found] = re.findall(r'([\d,]+) tokens, 100%', said)  # not bytes
  assert int(found.replace(',', '')) < 0.8 * len(corpus.read_bytes())


def test_recipes_are_a_table(command, monkeypatch):
  monkeypatch.setattr(recipes, 'names', lambda: ['gpt2/bytes', 't5/1_1_xxl'])
  said = command('recipes')
  assert '11,135,332,352' in said and 'gpt2/bytes' in said


def test_a_dry_run_allocates_nothing(command):
  before = len(jax.live_arrays())
  memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  said = command('train', '--gin_file=t5/1_1_xxl', '--dry_run')
  assert len(jax.live_arrays()) == before
  grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
  assert grown < 200_000  # KB; the parameters are 44 GB
  assert '11,135,332,352 parameters; mesh:' in said
  assert '"vocab_size": 32128' in said
  assert 'token_embedder/embedding' in said
