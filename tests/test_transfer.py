"""The commands `import`, `export` and `weights`, from end to end."""

import dataclasses
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from t5x_lite import checkpoints
from t5x_lite import cli
from t5x_lite import config
from t5x_lite import infer
from t5x_lite import models
from t5x_lite.interop import huggingface
from t5x_lite.interop import safetensors
from t5x_lite.interop import sources
from tests import exact
from tests import runs
from tests import t5x_files
from tests import tiny

GOLDEN = pathlib.Path(__file__).parent / 'golden' / 'huggingface'


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A workdir `run` of a T5 and `gpt` of a decoder, and what they export."""
  folder = tmp_path_factory.mktemp('transfer')
  corpus = runs.write_corpus(folder)
  t5 = ['train', f'--corpus={corpus}', f'--workdir={folder}/run']
  assert cli.main(t5 + runs.options(Run__steps=2)) == 0
  gpt = ['train', '--gin_file=gpt2/bytes', f'--corpus={corpus}']
  settings = {
    **{f'Transformer.{k}': v for k, v in GPT.items()},
    'Data.lengths': "{'targets': 32}",
    'Data.document': 'paragraph',
    'Run.batch_size': 8,
    'Run.steps': 2,
    'Evaluation.examples': 16,
  }
  gpt += [f'--gin.{name}={value}' for name, value in settings.items()]
  assert cli.main([*gpt, f'--workdir={folder}/gpt']) == 0
  for name in ('run', 'gpt'):
    for form in ('huggingface', 'stablehlo'):
      options = [f'--workdir={folder}/{name}', f'--format={form}']
      options.append(f'--output={folder}/{name}-{form}')
      assert cli.main(['export', *options]) == 0
    options = [
      f'{folder}/{name}-huggingface',
      f'--workdir={folder}/{name}-back',
    ]
    assert cli.main(['import', *options]) == 0
  return folder


GPT = dict(
  decoder_layers=2,
  embed_dim=32,
  mlp_dim=48,
  num_heads=2,
  head_dim=16,
  dropout=0,
)
TEXTS = {
  'run': ['To be <extra_id_0> to be', 'What is this?', ''],
  'gpt': ['To be or not', 'Q', 'A longer text, and more of it.'],
}


def fails(capsys, code, *arguments):
  capsys.readouterr()
  assert cli.main([*map(str, arguments)]) == code
  said = capsys.readouterr().err
  assert 'Traceback' not in said
  assert len(said.splitlines()) <= 12
  return said


# -- there and back -----------------------------------------------------------


@pytest.mark.parametrize('name', TEXTS)
def test_export_and_import_are_byte_equal(folder, capsys, name):
  options = [f'--workdir={folder}/{name}', f'--diff={folder}/{name}-back']
  assert cli.main(['weights', *options]) == 0
  said = capsys.readouterr().out
  assert 'tensors are equal' in said
  again = folder / f'{name}-again'
  options = [f'--workdir={folder}/{name}-back', f'--output={again}']
  assert cli.main(['export', *options]) == 0
  for file in ('model.safetensors', 'tokenizer.json'):
    first = folder / f'{name}-huggingface' / file
    assert first.read_bytes() == (again / file).read_bytes()


@pytest.mark.parametrize('name', TEXTS)
def test_what_is_imported_predicts_the_same(folder, name):
  one, other = (infer.Predictor(folder / x) for x in (name, f'{name}-back'))
  for text in TEXTS[name]:
    assert one.tokens(text) == other.tokens(text)
  assert one.predict(TEXTS[name], 8) == other.predict(TEXTS[name], 8)
  targets = ['a', 'bc', 'To be']
  assert one.score(TEXTS[name], targets) == other.score(TEXTS[name], targets)


@pytest.mark.parametrize('name', TEXTS)
def test_the_script_serves_the_same_without_us(folder, name):
  """serve.py needs jax, numpy and safetensors alone."""
  made = infer.Predictor(folder / name)
  rows = [made.tokens(text) for text in TEXTS[name]]
  served = folder / f'{name}-stablehlo'
  code = (
    'import runpy, sys\n'
    "sys.modules['t5x_lite'] = sys.modules['flax'] = None\n"
    f"sys.argv = ['serve.py', {json.dumps(rows)!r}]\n"
    f"runpy.run_path({str(served / 'serve.py')!r}, run_name='__main__')\n"
  )
  found = json.loads(
    subprocess.check_output(
      [sys.executable, '-c', code],
      text=True,
      env=os.environ | {'JAX_NUM_CPU_DEVICES': '1'},
    )
  )
  tokens, _, _ = made.decode(rows, 32)
  for row, ours in zip(found, tokens[:, 0].tolist(), strict=True):
    assert row == ours[: len(row)]


def test_the_card_says_what_it_is_and_how_to_load_it(folder):
  for name, loads in (('run', 'AutoModelForSeq2SeqLM'), ('gpt', 'ForCausalLM')):
    card = (folder / f'{name}-huggingface' / 'README.md').read_text()
    assert loads in card and '| validation | text_loss |' in card
    assert 'after 2 steps' in card and str(folder / 'my.txt') in card
    [recipe] = card.split('```json\n')[1:]
    assert json.loads(recipe.split('```')[0])['type'] == 'Run'
  card = (folder / 'run-stablehlo' / 'README.md').read_text()
  assert 'serve.Model' in card


def test_bfloat16_halves_the_weights(folder, tmp_path):
  out = tmp_path / 'out'
  options = [f'--output={out}', '--dtype=bfloat16', '--shard_size=40KB']
  assert cli.main(['export', f'--workdir={folder}/run', *options]) == 0
  narrow, wide = (
    safetensors.read(x) for x in (out, folder / 'run-huggingface')
  )
  assert len(list(out.glob('model-*.safetensors'))) > 2
  for name, tensor in wide.items():
    np.testing.assert_array_equal(
      narrow[name].read(), tensor.read().astype(narrow[name].dtype)
    )


def test_its_recipe_trains_on(folder, tmp_path, capsys):
  recipe = folder / 'gpt-back' / 'recipe.gin'
  run = config.load([str(recipe)], ["Data.corpus='x'"])
  assert run.start_from.path == str(folder / 'gpt-back')
  arguments = ['train', f'--gin_file={recipe}', f'--corpus={folder}/my.txt']
  arguments += ['--gin.Run.steps=2', '--gin.Schedule.warmup=0']
  arguments += ['--gin.Evaluation.examples=8']
  assert cli.main([*arguments, f'--workdir={tmp_path}/on']) == 0
  assert 'parameters start from' in capsys.readouterr().out
  said = fails(capsys, 2, *arguments, f'--workdir={folder}/gpt-back')
  assert 'imported weights' in said and 'recipe.gin' in said


def test_imported_weights_are_measured_on_tasks_alone(folder, capsys):
  options = [f'--workdir={folder}/run-back', '--examples=4']
  said = fails(capsys, 3, 'evaluate', *options)
  assert 'imported weights, and no --tasks' in said
  module = '--task_module=tests.topic_tasks'
  assert cli.main(['evaluate', *options, '--tasks=topics', module]) == 0


def test_t5x_weights_come_with_a_vocabulary(tmp_path, capsys):
  _, _, params = huggingface.read(GOLDEN / 't5_1_1')
  t5x_files.write(tmp_path, 7, t5x_files.to_t5x(params))
  source = tmp_path / 'checkpoint_7'
  run = f'--workdir={tmp_path}/run'
  said = fails(capsys, 2, 'import', source, run)
  assert '--vocabulary=spiece.model' in said
  said = fails(capsys, 3, 'import', source, run, '--vocabulary=bytes')
  assert 'at most 23, the rows that there are' in said
  model = models.build(tiny.transformer(vocab_size=384))
  params = exact.flatten(model.init(jax.random.key(0)))
  t5x_files.write(tmp_path, 8, t5x_files.to_t5x(params))
  assert cli.main(['import', str(tmp_path), run, '--vocabulary=bytes']) == 0
  assert runs.steps(tmp_path / 'run') == [8]
  read = checkpoints.Checkpoints.reader(tmp_path / 'run').read_params(8)
  for path, array in params.items():
    np.testing.assert_array_equal(read[path](), array, path)


def test_marin_6752_two_processes_export_what_one_does(folder, tmp_path):
  output = f'--output={tmp_path}/out'
  runs.complete(2, 1, 'export', f'--workdir={folder}/run', output)
  for file in sorted((folder / 'run-huggingface').iterdir()):
    assert file.read_bytes() == (tmp_path / 'out' / file.name).read_bytes()


# -- what is refused ----------------------------------------------------------


def test_nothing_is_overwritten(folder, capsys):
  there = f'--output={folder}/run-huggingface'
  said = fails(capsys, 7, 'export', f'--workdir={folder}/run', there)
  assert 'there is something already' in said
  back = f'--workdir={folder}/run'
  said = fails(capsys, 2, 'import', GOLDEN / 'gpt2', back, '--vocabulary=bytes')
  assert 'has a run already' in said
  source = folder / 'gpt-huggingface'
  before = (source / 'config.json').read_bytes()
  said = fails(capsys, 2, 'import', source, f'--workdir={source}')
  assert 'not empty' in said
  assert (source / 'config.json').read_bytes() == before
  inside = f'--output={folder}/run/checkpoints/9'
  said = fails(capsys, 2, 'export', f'--workdir={folder}/run', inside)
  assert 'in the workdir' in said


@pytest.mark.parametrize('name', ['a[bc]', 'a\\b'])
def test_names_by_which_arrays_would_be_lost(folder, tmp_path, capsys, name):
  arguments = [folder / 'gpt-huggingface', f'--workdir={tmp_path}/{name}']
  assert 'a backslash or [...]' in fails(capsys, 2, 'import', *arguments)


def test_names_that_a_recipe_holds(folder, tmp_path):
  source = tmp_path / 'a "b"\nRun.steps = 3 #'
  shutil.copytree(folder / 'gpt-huggingface', source)
  options = [str(source), f'--workdir={tmp_path}/c d']
  assert cli.main(['import', *options]) == 0
  recipe = str(tmp_path / 'c d' / 'recipe.gin')
  assert config.load([recipe], ["Data.corpus='x'"]).steps == 1000


@pytest.mark.parametrize(
  'code, said, arguments',
  [
    (4, 'nothing is there', ['import', 'nowhere', '--workdir=x']),
    (2, 'of checkpoints of T5X', ['import', 'hf', '--workdir=x', '--step=3']),
    (3, 'larger than the embedding', ['import', 'hf', '--workdir=x', 'bytes']),
    (3, 'no such vocabulary', ['import', 'hf', '--workdir=x', 'no.model']),
    (3, 'no vocabulary', ['import', 'hf', '--workdir=x']),
    (4, 'not a folder', ['import', 'my.txt', '--workdir=x']),
    (4, 'config.json', ['import', 'empty', '--workdir=x']),
    (4, 'serve.py', ['import', 'run-stablehlo', '--workdir=x']),
    (2, 'ROLE one of', ['import', 'hf', '--workdir=x', '--special_token=eos']),
    (4, 'no weights', ['weights', 'empty']),
    (2, 'no weights', ['weights']),
    (2, 'both given', ['weights', 'hf', '--workdir=x']),
    (4, 'not safetensors', ['weights', 'noise.safetensors']),
    (4, '', ['export', '--workdir=nowhere', '--output=out']),
    (
      2,
      'no such choice; got int8, expected one of',
      ['export', '--workdir=x', '--output=o', '--dtype=int8'],
    ),
    (2, 'a size', ['export', '--workdir=x', '--output=o', '--shard_size=5XB']),
    (4, 'no such step', ['export', '--workdir=run', '--output=o', '--step=9']),
  ],
)
def test_wrong_inputs(
  folder, tmp_path, monkeypatch, capsys, code, said, arguments
):
  monkeypatch.chdir(tmp_path)
  shutil.copytree(GOLDEN / 'llama', 'hf')
  os.mkdir('empty')
  os.symlink(folder / 'run', 'run')
  os.symlink(folder / 'run-stablehlo', 'run-stablehlo')
  shutil.copy(folder / 'my.txt', 'my.txt')
  (tmp_path / 'noise.safetensors').write_bytes(b'\x01' * 99)
  if arguments[-1] in ('bytes', 'no.model'):
    arguments = [*arguments[:-1], f'--vocabulary={arguments[-1]}']
  assert said in fails(capsys, code, *arguments)
  assert not os.path.exists('o') and not os.path.exists('x')


def test_a_model_that_hugging_face_lacks_is_refused_before_it_is_read(
  folder, tmp_path, capsys, monkeypatch
):
  read = infer.read_run

  def other(saver, step):
    run = read(saver, step)
    model = dataclasses.replace(run.model, num_kv_heads=1)
    return dataclasses.replace(run, model=model)

  monkeypatch.setattr(infer, 'read_run', other)
  monkeypatch.delattr(sources, 'of_step')
  output = f'--output={tmp_path}/out'
  said = fails(capsys, 2, 'export', f'--workdir={folder}/run', output)
  assert 'Transformer.num_kv_heads' in said and 'stablehlo' in said
  assert not (tmp_path / 'out').exists()


@pytest.mark.faults
def test_an_export_that_is_killed_is_complete_or_absent(folder, tmp_path):
  """Twenty kills, from before its scratch folder to after its end."""
  options = ['export', f'--workdir={folder}/run', '--shard_size=100KB']
  began = time.monotonic()
  runs.complete(1, 1, *options, f'--output={tmp_path}/whole')
  seconds = time.monotonic() - began
  wanted = content(tmp_path / 'whole')
  draw, done = random.Random(0), 0
  for n in range(20):
    out = tmp_path / f'out{n}'
    process = runs.start(*options, f'--output={out}')
    time.sleep(draw.uniform(0.4, 1.1) * seconds)
    process.kill()
    runs.finish(process)
    done += out.exists()
    if not out.exists():
      runs.complete(1, 1, *options, f'--output={out}')
    assert content(out) == wanted
    assert not list(tmp_path.glob(f'.out{n}*'))
  print(f'{done} of 20 were through before they were killed')


def content(out):
  return {file.name: file.read_bytes() for file in out.iterdir()}
