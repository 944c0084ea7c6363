"""Wrong inputs: one message each, the right exit code, nothing compiled."""

import io
import os
import random
import types

import pytest

from t5x_lite import cli
from t5x_lite import train
from tests import runs


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Good and bad files, and a workdir `run` with one step."""
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
    'file': b'a file where a folder should be',
  }
  for name, content in contents.items():
    (folder / name).write_bytes(content)
  (folder / 'texts').mkdir()
  (folder / 'texts' / 'a.txt').write_text('inside')
  os.mkfifo(folder / 'pipe.txt')
  arguments = ['train', f'--corpus={folder}/my.txt', f'--workdir={folder}/run']
  assert cli.main(arguments + runs.options(Run__steps=1)) == 0
  return folder


def train_on(corpus, **settings):
  return [
    'train',
    f'--corpus={{0}}/{corpus}',
    '--workdir={0}/new',
    *runs.options(**settings),
  ]


def train_with(*options, **settings):
  return train_on('my.txt', **settings) + list(options)


def resume(**settings):
  return [
    'train',
    '--corpus={0}/my.txt',
    '--workdir={0}/run',
    *runs.options(**{'Run__steps': 1} | settings),
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
CASES = (
  EVALUATION
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
  arguments = [argument.replace('{0}', str(folder)) for argument in arguments]
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
  assert len(CASES) >= 80


def test_debug_shows_the_traceback():
  with pytest.raises(Exception, match='no recipe'):
    cli.main(['train', '--debug'])
