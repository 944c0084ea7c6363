"""Wrong inputs: one message each, the right exit code, nothing compiled."""

import io
import json
import os
import random
import shutil
import types

import pytest

from t5x_lite import cli
from t5x_lite import manifest
from t5x_lite import train
from tests import runs


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Good and bad files, a workdir `run` with one step, and bad copies of it."""
  folder = tmp_path_factory.mktemp('wrong')
  runs.write_corpus(folder)
  noise = random.Random(0).randbytes(5000)
  contents = {
    'empty.txt': b'',
    'blank.txt': b' \n\n \n',
    'noise.txt': noise,
    'broken.jsonl': b'{"text": "good"}\n{"text": "bad\n',
    'list.jsonl': b'[1, 2]\n',
    'body.jsonl': b'{"body": "no text"}\n',
    'number.jsonl': b'{"text": 5}\n',
    'latin.txt': 'Gr\xfc\xdfe\n'.encode('latin-1') * 50,
    'wide.txt': 'Plain letters.\n'.encode('utf-16') * 3000,
    'one.txt': b'The only line there is.\n',
    'letters.txt': b'a\nb\n',
    'cut.txt.gz': b'\x1f\x8b\x08\x00',
    'noise.model': noise,
    'empty.model': b'',
    'latin.gin': 'Run.steps = 5  # Gr\xfc\xdfe'.encode('latin-1'),
    'import.gin': b'import os\nRun.steps = @os.getpid()\n',
    'call.gin': f"Run.steps = @os.system('touch {folder}/ran')\n".encode(),
    'long.txt': b'short\n' + b'long ' * 9999,
    'marks.txt': b'Is it <extra_id_500>?\n',
    'includes.gin': b"include 'nowhere.gin'\n",
    'circle.gin': b"include 'circle.gin'\n",
    'open.gin': b"include 't5/bytes.gin'\nData.lengths = {'inputs': 32\n",
    'macro.gin': b"include 't5/bytes.gin'\nRun.steps = %STEPS\n",
    'partial.gin': b'Run.steps = 5\n',
    'object.jsonl': b'{"inputs": {"text": "inside"}}\n',
    'pair.jsonl': b'{"inputs": "text", "targets": 5}\n',
    'fails_at_import.py': b'1 / 0\n',
    'file': b'a file where a folder should be',
  }
  for name, content in contents.items():
    (folder / name).write_bytes(content)
  (folder / 'texts').mkdir()
  (folder / 'texts' / 'a.txt').write_text('inside')
  os.mkfifo(folder / 'pipe.txt')
  arguments = ['train', f'--corpus={folder}/my.txt', f'--workdir={folder}/run']
  assert cli.main(arguments + runs.options(Run__steps=1)) == 0
  for name, spoil in SPOILT.items():
    shutil.copytree(folder / 'run', folder / name)
    spoil(folder / name)
  return folder


def of_newer_version(change):
  """Makes a function that changes the record of a workdir's step."""

  def spoil(workdir):
    step = workdir / 'checkpoints' / '1'
    file = step / 'record' / 'metadata'
    record = json.loads(file.read_text())
    record['model'] |= change
    file.write_text(json.dumps(record))
    manifest.write(step, ('state', 'position', 'record', 'measured'))

  return spoil


def without(name):
  def spoil(workdir):
    remove(workdir / 'checkpoints' / '1' / name)

  return spoil


def file_instead(name):
  def spoil(workdir):
    remove(workdir / name)
    (workdir / name).write_text('a file\n')

  return spoil


def folder_instead(name):
  def spoil(workdir):
    remove(workdir / name)
    (workdir / name).mkdir()

  return spoil


def remove(path):
  if path.is_dir():
    shutil.rmtree(path)
  else:
    path.unlink(missing_ok=True)


# workdir: how it is spoilt
SPOILT = {
  'new_setting': of_newer_version({'experts': 8}),
  'new_model': of_newer_version({'type': 'Mamba'}),
  'new_choice': of_newer_version({'activation': 'relu_squared'}),
  'no_record': without('record'),
  'no_manifest': without('manifest.json'),
  'no_arrays': without('state'),
  'no_list': file_instead('checkpoints/1/manifest.json'),
  'no_folder': file_instead('checkpoints'),
  'board_file': file_instead('tensorboard'),
  'profile_file': file_instead('profile'),
  'results_file': file_instead('evaluation'),
  'no_metrics': file_instead('metrics.jsonl'),
  'metrics_folder': folder_instead('metrics.jsonl'),
  'lock_folder': folder_instead('lock'),
  'config_folder': folder_instead('config.json'),
}


def train_on(corpus, **settings):
  return [
    'train',
    f'--corpus={{0}}/{corpus}',
    '--workdir={0}/new',
    *runs.options(**settings),
  ]


def train_with(*options, **settings):
  return train_on('my.txt', **settings) + list(options)


def resume(workdir='run', *options, **settings):
  return [
    'train',
    '--corpus={0}/my.txt',
    f'--workdir={{0}}/{workdir}',
    *runs.options(**{'Run__steps': 1} | settings),
    *options,
  ]


# name: (arguments, exit code, what the message says)
COMMAND_LINE = {
  'unknown command': (['trian'], 2, ['trian', 'did you mean train?']),
  'no command': (['--debugging'], 2, []),
  'unknown option': (
    train_with('--workdri=x'),
    2,
    ['--workdri', 'did you mean --workdir?'],
  ),
  'unknown option of infer': (
    ['infer', '--workdir=x', '--inptu=y'],
    2,
    ['--inptu', 'did you mean --input?'],
  ),
  'stray word': (train_with('my.txt'), 2, ['my.txt']),
  'option without value': (['train', '--workdir'], 2, ['--workdir']),
  'no recipe': (['train', '--workdir={0}/new'], 2, ['no recipe', '--corpus']),
  'no workdir': (
    ['train', '--corpus={0}/my.txt'],
    2,
    ['no --workdir'],
  ),
  'required option': (['evaluate'], 2, ['--workdir']),
  'binding where none is taken': (
    ['evaluate', '--workdir={0}/run', '--gin.Run.steps=3'],
    2,
    ['takes no recipe', 'Run.steps'],
  ),
  'number that is none': (
    ['infer', '--workdir={0}/run', '--length=long'],
    2,
    ['--length', "'long'"],
  ),
  'negative number': (
    ['inspect', '--corpus={0}/my.txt', '--position=-1'],
    2,
    ['--position', "'-1'"],
  ),
  'number too large': (
    ['inspect', '--corpus={0}/my.txt', '--position=' + '9' * 30],
    2,
    ['--position'],
  ),
  'unknown choice': (
    ['inspect', '--corpus={0}/my.txt', '--split=test'],
    2,
    ['--split', 'test'],
  ),
}
CONFIGURATION = {
  'misspelt spec': (
    train_with('--gin.Transfomer.embed_dim=32'),
    2,
    ['Transfomer', 'did you mean Transformer?'],
  ),
  'misspelt setting': (
    train_with('--gin.Run.stpes=3'),
    2,
    ['Run.stpes', 'did you mean Run.steps?'],
  ),
  'setting of another spec': (
    train_with('--gin.Run.embed_dim=32'),
    2,
    ['Run.embed_dim', 'write Transformer.embed_dim'],
  ),
  'wrong type': (
    train_with(Run__steps="'10k'"),
    2,
    ['Run.steps', "'10k' (str)", 'int >= 1'],
  ),
  'bare word for a number': (train_with(Run__steps='many'), 2, ['many']),
  'negative steps': (train_with(Run__steps=-3), 2, ['Run.steps', '-3']),
  'steps beyond all bounds': (
    train_with(Run__steps=10**20),
    2,
    ['Run.steps', '< 2^31'],
  ),
  'seed beyond all bounds': (
    train_with(Run__seed=10**20),
    2,
    ['Run.seed', '< 2^31'],
  ),
  'period of zero': (
    train_with(Checkpoints__every=0),
    2,
    ['Checkpoints.every', '>= 1'],
  ),
  'dropout of one': (
    train_with(Transformer__dropout=1.0),
    2,
    ['Transformer.dropout', '< 1'],
  ),
  'not a number': (train_with(Schedule__peak='nan'), 2, ['Schedule.peak']),
  'unknown choice of a setting': (
    train_with(Schedule__decay='cosin'),
    2,
    ['Schedule.decay', 'did you mean cosine?'],
  ),
  'option without a value': (
    train_with('--gin.Run.steps'),
    2,
    ['--gin.Run.steps', 'no value'],
  ),
  'float64 switched off': (
    train_with(Transformer__dtype='float64'),
    2,
    ['Transformer.dtype', 'JAX_ENABLE_X64'],
  ),
  'missing recipe': (
    ['train', '--gin_file=t5/1_1_bsae', '--workdir={0}/new'],
    2,
    ['t5/1_1_bsae', 'did you mean t5/1_1_base?'],
  ),
  'recipe that is a folder': (
    ['train', '--gin_file=t5', '--workdir={0}/new'],
    2,
    ['folder'],
  ),
  'missing include': (
    ['train', '--gin_file={0}/includes.gin', '--workdir={0}/new'],
    2,
    ['nowhere.gin', 'includes.gin:1'],
  ),
  'includes in a circle': (
    ['train', '--gin_file={0}/circle.gin', '--workdir={0}/new'],
    2,
    ['circle.gin'],
  ),
  'bracket never closed': (
    ['train', '--gin_file={0}/open.gin', '--workdir={0}/new'],
    2,
    ['open.gin:2', "'{' is never closed"],
  ),
  'macro never set': (
    ['train', '--gin_file={0}/macro.gin', '--workdir={0}/new'],
    2,
    ['macro.gin:2', '%STEPS'],
  ),
  'recipe that lacks settings': (
    ['train', '--gin_file={0}/partial.gin', '--workdir={0}/new'],
    2,
    ['Run.model'],
  ),
  'recipe that is not UTF-8': (
    ['train', '--gin_file={0}/latin.gin', '--workdir={0}/new'],
    2,
    ['latin.gin:1', '0xfc'],
  ),
  'recipe that is noise': (
    ['train', '--gin_file={0}/noise.txt', '--workdir={0}/new'],
    2,
    ['noise.txt'],
  ),
  'recipe that imports': (
    ['train', '--gin_file={0}/import.gin', '--workdir={0}/new'],
    2,
    ['import.gin:1', 'imports nothing'],
  ),
  'recipe that calls': (
    ['train', '--gin_file={0}/call.gin', '--workdir={0}/new'],
    2,
    ['call.gin:1', 'os.system'],
  ),
  'hostile option': (
    train_with("--gin.Run.steps=@os.system('touch {0}/ran')"),
    2,
    ['Run.steps'],
  ),
}
CORPUS = {
  'missing corpus': (train_on('ym.txt'), 3, ['ym.txt', 'did you mean']),
  'glob without match': (train_on('*.text'), 3, ['*.text', 'no file matches']),
  'folder': (train_on('texts'), 3, ['texts', 'folder', '*.txt']),
  'pipe': (train_on('pipe.txt'), 3, ['pipe.txt', 'not a regular file']),
  'empty file': (train_on('empty.txt'), 3, ['empty.txt', '0 bytes']),
  'blank file': (train_on('blank.txt'), 3, ['blank.txt', 'no text']),
  'noise': (train_on('noise.txt'), 3, ['noise.txt:1', 'UTF-8']),
  'UTF-16': (train_on('wide.txt'), 3, ['wide.txt', 'iconv']),
  'another encoding': (train_on('latin.txt'), 3, ['latin.txt:1:3', 'UTF-8']),
  'broken JSON': (train_on('broken.jsonl'), 3, ['broken.jsonl:2']),
  'JSON list': (train_on('list.jsonl'), 3, ['list.jsonl:1', 'list']),
  'JSON without the field': (
    train_on('body.jsonl'),
    3,
    ['body.jsonl:1', "'text'", "'body'"],
  ),
  'JSON with a number': (train_on('number.jsonl'), 3, ['number.jsonl:1']),
  'cut gzip': (train_on('cut.txt.gz'), 3, ['cut.txt.gz']),
  'one document': (train_on('one.txt'), 3, ['one.txt', 'held_out']),
  'corpus too short': (train_on('letters.txt'), 3, ['letters.txt', 'example']),
  'name with a NUL': (
    train_with(Data__corpus=r"'a\0b'"),
    2,
    [r'a\x00b', 'UTF-8'],
  ),
  'name in another encoding': (train_on('\udcff.txt'), 2, [r'\udcff']),
  'no documents held out': (
    [
      'inspect',
      '--corpus={0}/my.txt',
      '--split=validation',
      '--gin.Data.held_out=0',
    ],
    3,
    ['validation', 'held_out'],
  ),
}
DECODER = {'Transformer__encoder_layers': 0}
VOCABULARY = {
  'missing vocabulary': (
    train_with(Data__vocabulary='{0}/no.model'),
    3,
    ['no.model'],
  ),
  'vocabulary that is noise': (
    train_with(Data__vocabulary='{0}/noise.model'),
    3,
    ['noise.model', '5000 bytes'],
  ),
  'empty vocabulary': (
    train_with(Data__vocabulary='{0}/empty.model'),
    3,
    ['empty.model'],
  ),
  'vocabulary larger than the embedding': (
    train_with(Transformer__vocab_size=300),
    2,
    ['359 ids', 'vocab_size 300', 'vocab_size=384'],
  ),
  'more spans than sentinels': (
    train_with(
      Data__extra_ids=0,
      SpanCorruption__density=0.6,
      Data__lengths="{'inputs': 64}",
    ),
    2,
    ['sentinels'],
  ),
  'lengths without inputs': (
    train_with(Data__lengths="{'targets': 32}"),
    2,
    ['inputs'],
  ),
  'unknown length': (
    train_with(Data__lengths="{'inputs': 32, 'target': 8}"),
    2,
    ['target'],
  ),
  'targets too short': (
    train_with(Data__lengths="{'inputs': 32, 'targets': 2}"),
    2,
    ['targets'],
  ),
  'language model with inputs': (
    train_with(Run__objective='@CausalLM()', **DECODER),
    2,
    ['inputs', 'CausalLM', "{'targets': n}"],
  ),
  'language model without targets': (
    train_with(
      Run__objective='@CausalLM()', **DECODER, Data__lengths="{'inputs': 32}"
    ),
    2,
    ["no 'targets'", 'CausalLM'],
  ),
  'language model of an encoder': (
    train_with(Run__objective='@CausalLM()', Data__lengths="{'targets': 32}"),
    2,
    ['CausalLM', 'encoder_layers 2', 'PrefixLM'],
  ),
  'spans of an encoder alone': (
    train_with(Transformer__decoder_layers=0),
    2,
    ['SpanCorruption', 'decoder_layers'],
  ),
  'continuations that do not fit': (
    train_with(Run__objective='@PrefixLM()'),
    2,
    ['targets', 'got 8', '31 or more'],
  ),
  'mixture without targets': (
    train_with(Run__objective='@Denoisers()', Data__lengths="{'inputs': 32}"),
    2,
    ["no 'targets'", 'Denoisers'],
  ),
  'mixture whose targets do not fit': (
    train_with(Run__objective='@Denoisers()'),
    2,
    ['targets', 'Denoisers', "'targets': 2"],
  ),
  'mixture of what is none': (
    train_with(
      Run__objective='@Denoisers()', Denoisers__members='[@PrefixLM()]'
    ),
    2,
    ['Denoisers.members', 'list of Denoiser'],
  ),
  'fewer positions than tokens': (
    train_with(Transformer__position='@Learned()', Learned__length=20),
    2,
    ['32 tokens', 'Learned.length=32'],
  ),
  'fewer positions than inputs and targets': (
    train_with(
      Transformer__position='@Learned()', Learned__length=38, **DECODER
    ),
    2,
    ['40 tokens', 'Learned.length=40'],
  ),
  'vocabulary too small': (
    ['vocab', '--corpus={0}/my.txt', '--output={0}/v.model', '--size=50'],
    3,
    ['50', '360'],
  ),
  'vocabulary too large for its text': (
    [
      'vocab',
      '--corpus={0}/one.txt',
      '--output={0}/v.model',
      '--size=9000',
      '--gin.Data.held_out=0',
    ],
    3,
    ['9000', 'less'],
  ),
  'more sentinels than pieces': (
    [
      'vocab',
      '--corpus={0}/my.txt',
      '--output={0}/v.model',
      '--size=500',
      '--extra_ids=500',
    ],
    3,
    ['500'],
  ),
}
MESH = {
  'batch that the mesh does not divide': (
    train_with(Run__batch_size=6),
    2,
    ['Run.batch_size', '6 rows', 'use 8'],
  ),
  'mesh too large': (train_with(Mesh__fsdp=16), 2, ['8 devices', 'fsdp 16']),
  'mesh that leaves devices idle': (
    train_with(Mesh__data=2, Mesh__fsdp=2),
    2,
    ['8 devices', 'data 2'],
  ),
  'two free axes': (train_with(Mesh__fsdp=-1), 2, ['-1']),
  'axis of zero': (train_with(Mesh__tensor=0), 2, ['Mesh.tensor', '0']),
  'microbatches that do not divide': (
    train_with(Run__microbatches=3),
    2,
    ['Run.microbatches', '3'],
  ),
}
WORKDIR = {
  'workdir that is a file': (
    train_with('--workdir={0}/file'),
    7,
    ['file'],
  ),
  'workdir inside a file': (train_with('--workdir={0}/file/run'), 7, ['file']),
  'workdir in another encoding': (train_with('--workdir=\udcff'), 2, ['udcff']),
  'evaluate an empty workdir': (
    ['evaluate', '--workdir={0}/texts'],
    4,
    ['no checkpoint', 'texts'],
  ),
  'infer from nowhere': (
    ['infer', '--workdir={0}/nowhere'],
    4,
    ['no checkpoint', 'nowhere'],
  ),
  'missing input': (
    ['infer', '--workdir={0}/run', '--input={0}/no.txt'],
    3,
    ['no.txt'],
  ),
  'input that is a folder': (
    ['infer', '--workdir={0}/run', '--input={0}/texts'],
    3,
    ['texts'],
  ),
  'input in another encoding': (
    ['infer', '--workdir={0}/run', '--input={0}/latin.txt'],
    3,
    ['latin.txt:1'],
  ),
  'sentinel that is none': (
    ['infer', '--workdir={0}/run', '--input={0}/marks.txt'],
    3,
    ['<extra_id_500>', '<extra_id_99>'],
  ),
  'JSON line without the field': (
    ['infer', '--workdir={0}/run', '--input={0}/body.jsonl'],
    3,
    ['body.jsonl:1', "'inputs'", "'body'", '--field'],
  ),
  'JSON line that is cut': (
    ['infer', '--workdir={0}/run', '--input={0}/broken.jsonl', '--field=text'],
    3,
    ['broken.jsonl:2'],
  ),
  'nothing to score': (
    ['infer', '--workdir={0}/run', '--input={0}/one.txt', '--mode=score'],
    3,
    ['one.txt:1', 'targets', 'jsonl'],
  ),
  'length of a score': (
    ['infer', '--workdir={0}/run', '--mode=score', '--length=5'],
    2,
    ['--length', 'predict'],
  ),
  'candidates of a score': (
    ['infer', '--workdir={0}/run', '--mode=score', '--candidates=5'],
    2,
    ['--candidates', 'predict'],
  ),
  'beams of a greedy decoding': (
    ['infer', '--workdir={0}/run', '--beams=3'],
    2,
    ['--beams is of --decoding=beam', '--decoding=greedy'],
  ),
  'top_k of beams': (
    ['infer', '--workdir={0}/run', '--decoding=beam', '--top_k=3'],
    2,
    ['--top_k is of --decoding=sample', '--decoding=beam'],
  ),
  'decoding of a score': (
    ['infer', '--workdir={0}/run', '--mode=score', '--decoding=beam'],
    2,
    ['--decoding', 'predictions'],
  ),
  'decoding of candidates': (
    ['infer', '--workdir={0}/run', '--candidates=2', '--decoding=beam'],
    2,
    ['--decoding', 'predictions'],
  ),
  'unknown decoding': (
    ['infer', '--workdir={0}/run', '--decoding=beams'],
    2,
    ['--decoding', 'got beams', 'did you mean beam?'],
  ),
  'unknown penalty': (
    ['infer', '--workdir={0}/run', '--decoding=beam', '--penalty=gnmt'],
    2,
    ['Beam.penalty', "'gnmt'", "'t5' or 'hf'"],
  ),
  'more results than beams': (
    ['infer', '--workdir={0}/run', '--decoding=beam', '--return=5'],
    2,
    ['Beam.returned', '5 of 4'],
  ),
  'more beams than tokens': (
    [
      'infer',
      '--workdir={0}/run',
      '--input={0}/one.txt',
      '--decoding=beam',
      '--beams=9999',
    ],
    2,
    ['Beam.beams', '9999', 'vocabulary', 'at most'],
  ),
  'more to draw from than tokens': (
    [
      'infer',
      '--workdir={0}/run',
      '--input={0}/one.txt',
      '--decoding=sample',
      '--top_k=9999',
    ],
    2,
    ['Sample.top_k', '9999', 'vocabulary', 'at most'],
  ),
  'negative temperature': (
    ['infer', '--workdir={0}/run', '--decoding=sample', '--temperature=-1'],
    2,
    ['Sample.temperature', '-1', '>= 0'],
  ),
  'no share to draw from': (
    ['infer', '--workdir={0}/run', '--decoding=sample', '--top_p=0'],
    2,
    ['Sample.top_p', '> 0 and <= 1'],
  ),
  'share above one': (
    ['evaluate', '--workdir={0}/run', '--decoding=sample', '--top_p=2'],
    2,
    ['Sample.top_p', '2', '<= 1'],
  ),
  'several samples for a task': (
    ['evaluate', '--workdir={0}/run', '--samples=2'],
    2,
    ['no such option', '--samples'],
  ),
  'share of standard output': (
    ['infer', '--workdir={0}/run', '--shard=0/2'],
    2,
    ['--shard', '--output'],
  ),
  'share that is none': (
    ['infer', '--workdir={0}/run', '--shard=2/2'],
    2,
    ['0/2 to 1/2'],
  ),
  'output over the input': (
    [
      'infer',
      '--workdir={0}/run',
      '--input={0}/one.txt',
      '--output={0}/texts/../one.txt',
    ],
    2,
    ['the output is the input'],
  ),
  'output that is a folder': (
    ['infer', '--workdir={0}/run', '--output={0}/texts'],
    7,
    ['texts', 'a folder'],
  ),
  'line too long for the model': (
    ['infer', '--workdir={0}/run', '--input={0}/long.txt'],
    3,
    ['long.txt:2', 'tokens', 'cut the line'],
  ),
  'output nowhere': (
    ['infer', '--workdir={0}/run', '--output={0}/no/out.jsonl'],
    7,
    ['out.jsonl'],
  ),
  'no such step': (
    ['evaluate', '--workdir={0}/run', '--step=7'],
    4,
    ['7', '[1]'],
  ),
  'checkpoint of another model': (
    resume(Transformer__embed_dim=64),
    2,
    ['model.embed_dim: 32 -> 64', '--workdir'],
  ),
  'checkpoint of another objective': (
    resume(SpanCorruption__density=0.5, Data__lengths="{'inputs': 32}"),
    2,
    ['objective.density: 0.15 -> 0.5'],
  ),
  'checkpoint of another optimizer': (
    resume(Adafactor__factored=False),
    2,
    ['optimizer.factored: True -> False'],
  ),
  'checkpoint of another seed': (resume(Run__seed=1), 2, ['seed: 0 -> 1']),
}
BEST = '--gin.Checkpoints.best=@Best()'
EVALUATION = {
  'task that is not registered': (
    train_with('--gin.Evaluation.tasks=my_tsak'),
    2,
    ['my_tsak', '--task_module'],
  ),
  'task of evaluate that is not registered': (
    ['evaluate', '--workdir={0}/run', '--tasks=my_tsak'],
    2,
    ['my_tsak', '--task_module'],
  ),
  'task that is a number': (
    train_with('--gin.Evaluation.tasks=[3]'),
    2,
    ['Evaluation.tasks', 'list of str'],
  ),
  'module that is not there': (
    train_with('--task_module=no_such.module'),
    2,
    ['no such module', 'no_such.module'],
  ),
  'module of evaluate that is not there': (
    ['evaluate', '--workdir={0}/run', '--task_module=no_such'],
    2,
    ['no such module', 'no_such'],
  ),
  'best without a goal': (train_with(BEST), 2, ['Best.goal']),
  'best of an unknown goal': (
    train_with(BEST, '--gin.Best.goal=maxi'),
    2,
    ['Best.goal', 'did you mean max?'],
  ),
  'best of half a name': (
    train_with(BEST, '--gin.Best.goal=min', '--gin.Best.metric=loss'),
    2,
    ['Best.metric', 'validation/text_loss'],
  ),
  'best by what nothing measures': (
    train_with(BEST, '--gin.Best.goal=min', '--gin.Best.metric=my_task/bleu'),
    2,
    ['my_task/bleu', 'validation/loss'],
  ),
  'best where nothing is held out': (
    train_with(BEST, '--gin.Best.goal=min', Data__held_out=0),
    2,
    ['Best.metric', 'documents held out'],
  ),
  'best that was not followed': (
    ['infer', '--workdir={0}/run', '--step=best'],
    2,
    ['Checkpoints.best', 'run'],
  ),
  'word that is no step': (
    ['evaluate', '--workdir={0}/run', '--step=lastest'],
    2,
    ['--step', 'lastest'],
  ),
  'no patience': (
    train_with(BEST, '--gin.Best.goal=min', '--gin.Best.patience=0'),
    2,
    ['Best.patience', '>= 1'],
  ),
}
TOPICS = '--task_module=tests.topic_tasks', '--gin.Evaluation.tasks=topics'
OPTIONS = {
  'profile from step 0': (
    train_with('--profile=0:1'),
    2,
    ['--profile', "'0:1'", 'START:COUNT'],
  ),
  'profile of no steps': (
    train_with('--profile=5:0'),
    2,
    ['--profile', "'5:0'", 'START:COUNT'],
  ),
  'profile without a count': (
    train_with('--profile=5'),
    2,
    ['--profile', "'5'", 'START:COUNT'],
  ),
  'profile past the end': (
    train_with('--profile=6:2'),
    2,
    ['--profile', '6:2', 'Run.steps, 6'],
  ),
  'no time for a step': (
    train_with('--step_timeout=0'),
    2,
    ['--step_timeout', '>= 1'],
  ),
  'evaluation in batches of none': (
    ['evaluate', '--workdir={0}/run', '--batch_size=0'],
    2,
    ['--batch_size', '>= 1'],
  ),
  'evaluation of no examples': (
    ['evaluate', '--workdir={0}/run', '--examples=0'],
    2,
    ['--examples', '>= 1'],
  ),
  'all steps of inference': (
    ['infer', '--workdir={0}/run', '--step=all'],
    2,
    ['--step', "'all'", 'latest or best'],
  ),
  'step below 0': (
    ['infer', '--workdir={0}/run', '--step=-1'],
    2,
    ['--step', "'-1'", '>= 0'],
  ),
  'share without a count': (
    ['infer', '--workdir={0}/run', '--shard=1', '--output={0}/out'],
    2,
    ['--shard', "'1'", 'I/N'],
  ),
  'share of nothing': (
    ['infer', '--workdir={0}/run', '--shard=0/0', '--output={0}/out'],
    2,
    ['--shard', "'0/0'", 'I/N'],
  ),
  'mode that is none': (
    ['infer', '--workdir={0}/run', '--mode=generate'],
    2,
    ['--mode', 'generate', 'predict'],
  ),
  'format that is none': (
    ['infer', '--workdir={0}/run', '--format=csv'],
    2,
    ['--format', 'csv', 'jsonl'],
  ),
}
TWO = '--process_count=2'
PROCESSES = {
  'process without a coordinator': (
    train_with(TWO, '--process_index=0'),
    2,
    ['--process_count, --process_index', '--coordinator_address'],
  ),
  'process of infer without a count': (
    ['infer', '--workdir={0}/run', '--process_index=1'],
    2,
    ['got --process_index', '--process_count'],
  ),
  'coordinator without a port': (
    train_with(TWO, '--process_index=0', '--coordinator_address=here'),
    2,
    ['--coordinator_address', 'here', 'HOST:PORT'],
  ),
  'port that is none': (
    train_with(TWO, '--process_index=0', '--coordinator_address=here:70000'),
    2,
    ['--coordinator_address', '70000', 'HOST:PORT'],
  ),
  'process beyond the count': (
    train_with(TWO, '--process_index=2', '--coordinator_address=here:9'),
    2,
    ['--process_index', 'got 2', '0 to 1'],
  ),
  'coordinator on another machine': (  # of RFC 5737: it is nobody's
    train_with(TWO, '--process_index=0', '--coordinator_address=192.0.2.1:99'),
    6,
    ['process 0 cannot listen', '192.0.2.1:99', '--coordinator_address'],
  ),
  'coordinator that does not answer': (
    train_with(
      TWO,
      '--process_index=1',
      '--coordinator_address=localhost:1',
      '--initialization_timeout=1',
    ),
    6,
    ['process 0 did not answer', 'localhost:1'],
  ),
  'no cluster': (
    train_with('--multiprocess'),
    6,
    ['--multiprocess', 'SLURM', '--coordinator_address'],
  ),
}
LAYOUT = {
  'axis that does not divide the devices': (
    train_with(Mesh__tensor=3),
    2,
    ['8 devices', 'tensor 3', 'fix: --gin.Mesh.tensor=4, or --gin'],
  ),
  'axis below 0': (train_with(Mesh__fsdp=-2), 2, ['Mesh.fsdp', '-2']),
  'axis that is no whole number': (
    train_with(Mesh__tensor=2.0),
    2,
    ['Mesh.tensor', '2.0 (float)'],
  ),
  'batch of none': (train_with(Run__batch_size=0), 2, ['Run.batch_size', '0']),
  'more microbatches than rows': (
    train_with(Run__microbatches=16),
    2,
    ['Run.microbatches', '16', '1, 2, 4, 8'],
  ),
  'microbatches too small for the mesh': (
    train_with(Run__microbatches=2),
    2,
    ['2 microbatch', 'multiple of 16'],
  ),
}
NEWER = 'version of t5x_lite that wrote it'
CHECKPOINT = {
  'setting of a newer version': (
    ['infer', '--workdir={0}/new_setting'],
    2,
    ["'experts'", 'new_setting/checkpoints/1', NEWER],
  ),
  'model of a newer version': (
    ['evaluate', '--workdir={0}/new_model'],
    2,
    ["'Mamba'", 'new_model/checkpoints/1', NEWER],
  ),
  'choice of a newer version': (
    resume('new_choice', Run__steps=2),
    2,
    ["'relu_squared'", 'new_choice/checkpoints/1'],
  ),
  'checkpoint without a record': (
    resume('no_record', Run__steps=2),
    4,
    ['no_record/checkpoints/1/record', 'damaged', 'no file'],
  ),
  'checkpoint without a manifest': (
    ['evaluate', '--workdir={0}/no_manifest'],
    4,
    ['no_manifest/checkpoints/1/manifest.json', 'no file'],
  ),
  'checkpoint without its arrays': (
    ['infer', '--workdir={0}/no_arrays'],
    4,
    ['no_arrays/checkpoints/1/state', 'no file'],
  ),
  'manifest that is none': (
    ['infer', '--workdir={0}/no_list'],
    4,
    ['no_list/checkpoints/1/manifest.json', 'expected a manifest'],
  ),
  'step that was deleted': (
    ['infer', '--workdir={0}/run', '--step=0'],
    4,
    ['no such step', 'got 0', '[1]'],
  ),
  'checkpoints as a workdir': (
    ['infer', '--workdir={0}/run/checkpoints'],
    4,
    ['run/checkpoints', 'checkpoints/STEP in it'],
  ),
  'step as a workdir': (
    ['evaluate', '--workdir={0}/run/checkpoints/1'],
    4,
    ['run/checkpoints/1', 'checkpoints/STEP in it'],
  ),
  'file as the workdir of evaluate': (
    ['evaluate', '--workdir={0}/file'],
    4,
    ['file', 'checkpoints/STEP in it'],
  ),
  'checkpoint of a deeper model': (
    resume(Transformer__encoder_layers=3),
    2,
    ['model.encoder_layers: 2 -> 3', '--workdir'],
  ),
  'checkpoint of a smaller vocabulary': (
    resume(Transformer__vocab_size=512),
    2,
    ['model.vocab_size: 384 -> 512'],
  ),
  'checkpoint without a first moment': (
    resume(Adafactor__beta1=0.9),
    2,
    ['optimizer.beta1: None -> 0.9'],
  ),
  'checkpoint of another split': (
    resume(Data__held_out=0.1),
    2,
    ['data.held_out: 0.05 -> 0.1'],
  ),
}
PLACES = {
  'workdir that cannot be made': (
    train_with('--workdir=/proc/nowhere'),
    7,
    ['cannot write folder', '/proc/nowhere'],
  ),
  'workdir below a device': (
    train_with('--workdir=/dev/null/run'),
    7,
    ['/dev/null/run', 'Not a directory'],
  ),
  'workdir of no known storage': (
    train_with('--workdir=s3://bucket/run'),
    2,
    ['s3://bucket/run', 'gs://BUCKET'],
  ),
  'input of no known storage': (
    ['infer', '--workdir={0}/run', '--input=s3://bucket/in'],
    2,
    ['s3://bucket/in', 'gs://BUCKET'],
  ),
  'file for checkpoints': (
    resume('no_folder', Run__steps=2),
    7,
    ['cannot write folder', 'no_folder/checkpoints'],
  ),
  'file for TensorBoard': (
    resume('board_file', Run__steps=2),
    7,
    ['cannot write folder', 'board_file/tensorboard'],
  ),
  'file for a profile': (
    resume('profile_file', '--profile=2:1', Run__steps=2),
    7,
    ['cannot write folder', 'profile_file/profile'],
  ),
  'file for results': (
    ['evaluate', '--workdir={0}/results_file'],
    7,
    ['results_file/evaluation', 'Not a directory'],
  ),
  'metrics that are none': (
    resume('no_metrics', Run__steps=2),
    3,
    ['no_metrics/metrics.jsonl:1', 'not a line of metrics'],
  ),
  'folder for metrics': (
    resume('metrics_folder', Run__steps=2),
    7,
    ['metrics_folder/metrics.jsonl', 'Is a directory'],
  ),
  'folder for the lock': (
    resume('lock_folder', Run__steps=2),
    7,
    ['lock_folder/lock', 'Is a directory'],
  ),
  'folder for the record': (
    resume('config_folder', Run__steps=2),
    7,
    ['config_folder/config.json', 'what is no file'],
  ),
  'file for the tokenised corpus': (
    train_with(Data__store='{0}/file'),
    7,
    ['{0}/file', '--gin.Data.store'],
  ),
  'tokenised corpus that cannot be made': (
    train_with(Data__store='/proc/nowhere'),
    7,
    ['/proc/nowhere', '--gin.Data.store'],
  ),
  'output below a file': (
    ['infer', '--workdir={0}/run', '--output={0}/file/out'],
    7,
    ['file/out', 'a folder that is there'],
  ),
  'output that cannot be made': (
    ['infer', '--workdir={0}/run', '--output=/proc/nowhere/out'],
    7,
    ['/proc/nowhere/out', 'a folder that is there'],
  ),
  'text that is an object': (
    ['infer', '--workdir={0}/run', '--input={0}/object.jsonl'],
    3,
    ['object.jsonl:1', "'inputs'", 'dict'],
  ),
  'target that is a number': (
    ['infer', '--workdir={0}/run', '--input={0}/pair.jsonl', '--mode=score'],
    3,
    ['pair.jsonl:1', "'targets'", 'int'],
  ),
}
TASKS = {
  'task that is misspelt': (
    ['evaluate', '--workdir={0}/run', '--tasks=topcs', TOPICS[0]],
    2,
    ['topcs', 'did you mean topics?'],
  ),
  'split that a task lacks': (
    train_with(*TOPICS, '--gin.Evaluation.split=dev'),
    2,
    ['topics', 'got dev', 'test, validation'],
  ),
  'lengths of what a task lacks': (
    train_with(*TOPICS, "--gin.Evaluation.lengths={'labels': 5}"),
    2,
    ['Evaluation.lengths', 'labels', 'inputs, targets'],
  ),
  'tasks without lengths of inputs': (
    train_with(
      *TOPICS,
      Run__objective='@CausalLM()',
      Data__lengths="{'targets': 32}",
      **DECODER,
    ),
    2,
    ['Evaluation.lengths', 'inputs', "'inputs': 128"],
  ),
  'file for a module': (
    ['evaluate', '--workdir={0}/run', '--task_module=tests/topic_tasks.py'],
    2,
    ['--task_module', 'topic_tasks.py', 'dots between'],
  ),
  'module that fails': (
    ['evaluate', '--workdir={0}/run', '--task_module=fails_at_import'],
    2,
    ['fails_at_import', 'ZeroDivisionError', '--debug'],
  ),
  'period below 0': (
    train_with(Evaluation__every=-1),
    2,
    ['Evaluation.every', '-1'],
  ),
  'no examples': (
    train_with(Evaluation__examples=0),
    2,
    ['Evaluation.examples', '>= 1'],
  ),
  'no checkpoint kept': (
    train_with(Checkpoints__keep=0),
    2,
    ['Checkpoints.keep', '>= 1'],
  ),
  'no best checkpoint kept': (
    train_with(BEST, '--gin.Best.goal=min', '--gin.Best.keep=0'),
    2,
    ['Best.keep', '>= 1'],
  ),
  'patience without evaluations': (
    train_with(
      BEST,
      '--gin.Best.goal=min',
      '--gin.Best.patience=2',
      Evaluation__every=0,
    ),
    2,
    ['patience 2', 'Evaluation.every 0'],
  ),
}
CASES = (
  EVALUATION
  | OPTIONS
  | PROCESSES
  | LAYOUT
  | CHECKPOINT
  | PLACES
  | TASKS
  | COMMAND_LINE
  | CONFIGURATION
  | CORPUS
  | VOCABULARY
  | MESH
  | WORKDIR
)


@pytest.mark.parametrize('case', CASES)
def test_wrong_input(folder, case, capsys, monkeypatch):
  arguments, code, words = CASES[case]
  arguments, words = (
    [text.replace('{0}', str(folder)) for text in texts]
    for texts in (arguments, words)
  )
  monkeypatch.syspath_prepend(folder)
  for method in ('compile_step', 'init'):
    monkeypatch.setattr(
      train.Program, method, lambda *_: pytest.fail('compiled something')
    )
  monkeypatch.setattr(
    'sys.stdin', types.SimpleNamespace(buffer=io.BytesIO(b'a line\n'))
  )
  assert cli.main(arguments) == code
  message = capsys.readouterr().err
  assert message.startswith('t5x_lite: ')
  for word in words:
    assert word in message
  assert len(message.splitlines()) <= 12
  assert len(message) <= 2000
  assert 'Traceback' not in message
  assert not (folder / 'ran').exists()
  assert not (folder / 'new' / 'checkpoints' / '1').exists()


def test_the_wrong_inputs_are_many():
  assert len(CASES) >= 180


def test_debug_shows_the_traceback():
  with pytest.raises(Exception, match='no recipe'):
    cli.main(['train', '--debug'])
