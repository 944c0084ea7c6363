import dataclasses
import json
import re
import subprocess
import sys

import pytest

from t5x_lite import config
from t5x_lite import errors
from t5x_lite import record as records
from t5x_lite import specs

COMPLETE = """\
Run.model = @Transformer()
Run.objective = @SpanCorruption()
Run.data = @Data()
Run.optimizer = @Adafactor()
Run.steps = 1_000
Run.batch_size = 8
Transformer.vocab_size = 64
Transformer.encoder_layers = 1
Transformer.decoder_layers = 1
Transformer.embed_dim = 8
Transformer.mlp_dim = 16
Transformer.num_heads = 2
Transformer.head_dim = 4
Data.corpus = 'a.txt'
Data.lengths = {'inputs': 8}
Adafactor.schedule = @Schedule()
Schedule.peak = 1e-2
"""
NEXT = COMPLETE.count('\n') + 1  # the line after it


@pytest.fixture
def write(tmp_path, monkeypatch):
  """Writes recipes into an empty current folder."""
  monkeypatch.chdir(tmp_path)

  def write(text, name='run.gin'):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return name

  return write


@pytest.fixture
def load(write):
  """Loads the complete recipe, more lines after it, and options."""

  def load(more='', *bindings):
    return config.load([write(COMPLETE + more)], bindings)

  return load


def refusal(call, *args):
  """The one message of a ConfigError."""
  with pytest.raises(errors.ConfigError) as e:
    call(*args)
  message = str(e.value)
  assert e.value.exit_code == 2
  assert len(message) < 1000 and message.count('\n') == 0
  assert ' object at 0x' not in message
  return message


# -- what a recipe can say ----------------------------------------------------


def test_values(load):
  run = load("""
    Run.z_loss = 1e-4
    Run.seed = 7  # a comment
    Run.label_smoothing = -0
    Transformer.gated = False
    Transformer.position = None
    Data.store = ('a '
                  'b')
    Data.lengths = {
        'inputs': 512,  # over several lines
        'targets': 114,
    }
    """)
  assert run.steps == 1000 and run.optimizer.schedule.peak == 0.01
  assert run.z_loss == 1e-4 and run.seed == 7
  assert run.model.gated is False and run.model.position is None
  assert run.data.store == 'a b'
  assert run.data.lengths == {'inputs': 512, 'targets': 114}


def test_later_bindings_override_earlier_ones(load, write):
  run = load('Run.seed = 1\nRun.seed = 2\n')
  assert run.seed == 2
  more = write('Run.seed = 3\n', 'more.gin')
  assert config.load(['run.gin', more]).seed == 3
  assert config.load([more, 'run.gin']).seed == 2
  assert config.load(['run.gin', more], ['Run.seed=4', 'Run.seed=5']).seed == 5


def test_blocks(load):
  run = load('Data:\n  field = "body"\n  held_out = 0.5\nRun.seed = 1\n')
  assert (run.data.field, run.data.held_out, run.seed) == ('body', 0.5, 1)


def test_macros(load):
  more = """
LENGTH = 32
Data.lengths = {'inputs': %LENGTH}
optimizer/RATE = 0.5
Schedule.peak = %optimizer/RATE
SCHEDULE = @Schedule()
Adafactor.schedule = %SCHEDULE
"""
  run = load(more)
  assert run.data.lengths == {'inputs': 32}
  assert run.optimizer.schedule.peak == 0.5
  assert load(more, 'LENGTH=64').data.lengths == {'inputs': 64}


def test_scopes_inherit_and_replace(load):
  run = load("""
Transformer.position = @T5Bias()
Run.model = @small/student/Transformer()
small/student/Transformer.mlp_dim = 3
small/Transformer.embed_dim = 2
small/Transformer.mlp_dim = 99
small/T5Bias.buckets = 8
Transformer.embed_dim = 88
T5Bias.buckets = 64
""")
  assert run.model.embed_dim == 2  # of the nearest scope, whatever the order
  assert run.model.mlp_dim == 3
  assert run.model.vocab_size == 64  # of no scope
  assert run.model.position.buckets == 8  # a reference keeps the scope


MIXTURE = """
Run.objective = @Denoisers()
Denoisers.members = [@short/Denoiser(), @long/Denoiser(), @on/Denoiser()]
Denoiser.objective = @SpanCorruption()
short/Denoiser.mode = '[NLU]'
long/Denoiser.rate = 2.0
long/SpanCorruption.mean_span = 32.0
on/Denoiser.objective = @PrefixLM()
Data.lengths = {'inputs': 8, 'targets': 8}
"""


def test_a_list_of_specs(load):
  run = load(MIXTURE)
  short, long, on = run.objective.members
  assert short == specs.Denoiser(objective=specs.SpanCorruption(), mode='[NLU]')
  assert long == specs.Denoiser(
    objective=specs.SpanCorruption(mean_span=32.0), rate=2.0
  )
  assert on == specs.Denoiser(objective=specs.PrefixLM())
  assert 'list of Denoiser' in refusal(load, MIXTURE, "Denoisers.members=['a']")
  again = refusal(load, MIXTURE, 'long/Denoiser.rate=0')
  assert 'Denoiser.rate' in again and '--gin.long/Denoiser.rate' in again
  dead = refusal(load, MIXTURE, 'lang/Denoiser.rate=3.0')
  assert 'nothing uses lang/Denoiser.rate' in dead


def test_a_default_spec_can_be_set_without_a_reference(load):
  run = load('T5Bias.per_layer = True\n', 'Mesh.fsdp=4', 'Checkpoints.every=5')
  assert run.model.position == specs.T5Bias(per_layer=True)
  assert run.mesh == specs.Mesh(fsdp=4)
  assert run.checkpoints == specs.Checkpoints(every=5)
  assert run.evaluation == specs.Evaluation()


def test_includes_are_relative_to_the_file_then_to_the_recipes(write):
  write(COMPLETE, 'sub/base.gin')
  write("include 'base.gin'\nRun.seed = 1\n", 'sub/run.gin')
  write("include 'sub/run'\nRun.steps = 2\n", 'top.gin')
  run = config.load(['top.gin'])
  assert (run.seed, run.steps, run.batch_size) == (1, 2, 8)
  assert config.load(['top']) == run
  write("include 't5/1_1_base.gin'\nRun.steps = 5\n", 'mine.gin')
  run = config.load(['mine.gin'])
  assert (run.steps, run.model.vocab_size) == (5, 32128)


def test_a_file_may_be_included_twice(write):
  write(COMPLETE, 'base.gin')
  write("include 'base.gin'\nRun.seed = 1\n", 'a.gin')
  write("include 'base.gin'\nRun.steps = 2\n", 'b.gin')
  assert config.load(['a.gin', 'b.gin']).seed == 1


def test_paths_may_be_path_objects_and_have_a_byte_order_mark(write, tmp_path):
  write('\ufeff' + COMPLETE)
  assert config.load([tmp_path / 'run.gin']).steps == 1000


@pytest.mark.parametrize(
  ('option', 'value'),
  [
    ('Data.corpus=books/*.txt', 'books/*.txt'),
    ('Data.corpus = [ab]*.txt ', '[ab]*.txt'),
    ('Data.corpus=gs://bucket/a b=c:d', 'gs://bucket/a b=c:d'),
    ('Data.corpus=C4', 'C4'),
    ('Data.corpus=007.txt', '007.txt'),
    ('Data.corpus=@home/#1.txt', '@home/#1.txt'),
    ("Data.corpus='quoted text'", 'quoted text'),
    ('Data.corpus=bücher/ß.txt', 'bücher/ß.txt'),
    ('Data.store=runs/store', 'runs/store'),
    ('Data.store=None', None),
    ('Data.document=line', 'line'),
    ('Transformer.dtype=bfloat16', 'bfloat16'),
    ('Run.z_loss=1e-4', 1e-4),
    ('Run.steps=1_0', 10),
    ("Data.lengths={'inputs': 256}", {'inputs': 256}),
    ('Transformer.position=None', None),
    ('Adafactor.factored=False', False),
    ('Evaluation.tasks=glue', ('glue',)),
    ('Evaluation.tasks=glue,super_glue', ('glue', 'super_glue')),
    ("Evaluation.tasks=['glue', 'a:b']", ('glue', 'a:b')),
    ('Evaluation.tasks=()', ()),
  ],
)
def test_options(load, option, value):
  name = option.partition('=')[0].strip()
  spec, field = name.split('.')
  run = load('', option)
  owners = [run, run.model, run.data, run.optimizer, run.evaluation]
  (owner,) = [o for o in owners if type(o).__name__ == spec]
  assert getattr(owner, field) == value


def test_replacing_a_spec_leaves_its_settings_behind(load):
  bias = 'Transformer.position = @T5Bias()\nT5Bias.buckets = 16\n'
  assert load(bias, 'Transformer.position=None').model.position is None
  macro = 'P = @T5Bias()\nTransformer.position = %P\nT5Bias.buckets = 16\n'
  assert load(macro, 'Transformer.position=None').model.position is None


# -- what it can't ------------------------------------------------------------

# Lines after a complete recipe; what the message says; on which of the lines.
WRONG = {
  'unknown spec': ('Trnsformer.x = 1', "'Trnsformer'.*mean Transformer", 0),
  'unknown field': ('Run.stps = 3', "'Run.stps'.*did you mean Run.steps", 0),
  'field of another spec': (
    'Run.embed_dim = 3',
    "'Run.embed_dim'.*fix: write Transformer.embed_dim",
    0,
  ),
  'module before the spec': ('specs.Run.steps = 3', "'specs.Run'", 0),
  'text for a number': ("Run.steps = '10k'", r"Run.steps.*'10k' \(str\)", 0),
  'float for an integer': ('Run.steps = 1e6', r'1000000.0 \(float\)', 0),
  'negative steps': ('Run.steps = -5', 'Run.steps.*-5.*expected int >= 1', 0),
  'period of zero': ('Checkpoints.every = 0', 'Checkpoints.every.*>= 1', 0),
  'infinite': ('Run.z_loss = 1e999', 'Run.z_loss.*inf', 0),
  'enormous': ('Run.z_loss = ' + '9' * 400, 'Run.z_loss.*999', 0),
  'unprintable': ('Run.z_loss = ' + '9' * 5000, '999', 0),
  'not an alternative': (
    "Transformer.dtype = 'bf16'",
    "dtype.*'bf16'.*did you mean bfloat16",
    0,
  ),
  'wrong element': (
    "Data.lengths = {\n'inputs': -1}",
    'Data.lengths.*inputs.*expected dict of str to int >= 1',
    0,
  ),
  'wrong spec': ('Run.model = @Data()', 'Run.model.*expected Transformer', 0),
  'list for a spec': ('Run.mesh = [@Mesh()]', 'Run.mesh.*expected Mesh', 0),
  'no parentheses': (
    'Run.model = @Transformer',
    r'@Transformer; fix: write @Transformer\(\)',
    0,
  ),
  'no at sign': (
    'Run.model = Transformer()',
    r"'Transformer'.*did you mean @Transformer\(\)",
    0,
  ),
  'arguments': ("Run.model = @Transformer('x')", r"Expected '\)'", 0),
  'lower-case true': ('Transformer.gated = true', "'true'.*mean True", 0),
  'bare word': ('Data.corpus = books', "'books'.*put it in quotes", 0),
  'undefined macro': (
    'BATCH = 8\nRun.batch_size = %BACH',
    '%BACH.*did you mean %BATCH.*--gin.BACH=',
    1,
  ),
  'unused macro': ('run.steps = 1\nSTEPS = 5', "'run'.*did you mean Run", 0),
  'macro for a setting': (
    'TRAIN_STEPS = 5',
    '%TRAIN_STEPS.*did you mean Run.steps',
    0,
  ),
  'circle of macros': ('A = %B\nB = %A\nRun.seed = %A', '%A -> %B -> %A', 2),
  'circle of specs': (
    'Transformer.position = @Transformer()',
    'Transformer -> Transformer',
    0,
  ),
  'long circle': (
    'Transformer.position = @a/T5Bias()\na/T5Bias.buckets = @Run()',
    'a/T5Bias -> a/Run -> a/Transformer -> a/T5Bias',
    0,
  ),
  'dead scope': (
    'Run.seed = 1\ngenerator/Transformer.embed_dim = 5',
    r'generator/Transformer.embed_dim.*refer to @generator/Transformer\(\)',
    1,
  ),
  'dead spec': (
    'Transformer.position = None\nT5Bias.buckets = 16',
    'nothing uses T5Bias.buckets',
    1,
  ),
  'one bad of several': ('Run.seed = 1\nRun.seed = -1', 'Run.seed.*-1', 1),
  'microbatches': (
    'Run.microbatches = 2\nRun.seed = 1\nRun.batch_size = 9',
    '2 for a batch of 9',
    2,
  ),
  'missing settings': (
    'Run.seed = 1\nRun.model = @b/Transformer()\n'
    'b/Transformer.position = @T5Bias()\nRun.data = @Data()\n'
    'Run.optimizer = @a/Adafactor()\na/Adafactor.schedule = None',
    'Adafactor.schedule.*None.*expected Schedule',
    5,
  ),
  'unclosed brace': (
    "Data.lengths = {'inputs': 8\nRun.seed = 1",
    "'{' is never closed",
    0,
  ),
  'unclosed list': ('Run.seed = [1, (2)', r"'\[' is never closed", 0),
  'unclosed text': ("Data.corpus = 'a.txt", 'a.txt', 0),
  'wrong bracket': ('Run.seed = (1]', r'\(', 0),
  'no value': ('Run.seed =', 'cannot parse.*Run.seed =', 0),
  'no equals sign': ('Run.seed 1', "cannot parse.*'Run.seed 1'", 0),
  'colon': ('Run.seed: 1', "cannot parse.*'Run.seed: 1'", 0),
  'two values': ('Run.seed = 1 2', "cannot parse.*'Run.seed = 1 2'", 0),
  'odd character': ('Run.seed = $', 'Run.seed = ', 0),
  'zero byte': ('Run.seed = \0', '', 0),
  'unhashable key': ('Data.lengths = {[1]: 2}', '', 0),
  'deep nesting': ('Run.seed = ' + '(' * 5000, '', 0),
  'missing include': (
    "include 't5/1_1_bass.gin'",
    "'t5/1_1_bass.gin'.*searched .*t5/1_1_bass.gin, .*gin/t5/1_1_bass.gin.*"
    'did you mean t5/1_1_base',
    0,
  ),
  'include of a folder': ("include '.'", 'folder', 0),
  'include of itself': ("include 'run.gin'", 'run.gin -> .*run.gin', 0),
  'include of a device': ("include '/dev/zero'", '/dev/zero', 0),
  'include of no text': ('include 5', 'cannot parse.*include 5', 0),
  'include of a long name': (f"include '{'a' * 5000}'", 'aaa', 0),
  'include with a zero byte': (r"include 'a\0b'", 'a', 0),
}


@pytest.mark.parametrize('fault', WRONG)
def test_wrong_lines_are_named(load, fault):
  lines, said, line = WRONG[fault]
  message = refusal(load, lines + '\n')
  assert re.search(said, message), message
  where = re.search(r'run\.gin:(\d+)', message)
  assert where and int(where[1]) == NEXT + line, message


@pytest.mark.parametrize(
  ('option', 'said'),
  [
    ('Run.stps=3', 'at --gin.Run.stps=3; .*did you mean Run.steps'),
    ('Data.corpos=books/*.txt', 'did you mean Data.corpus'),
    ('Transfomer.dtype=bfloat16', 'did you mean Transformer'),
    ('Transformer.dtype=bf16', 'did you mean bfloat16'),
    ('Run.steps=ten', "'ten'"),
    ('Run.steps=10 20', 'cannot parse'),
    ('Run.steps=', 'no value'),
    ('Run.steps', 'no value'),
    ('=5', 'cannot parse'),
    ('', 'no value'),
    ('%X.value=3', 'cannot parse'),
    ('Data.corpus="a', 'Data.corpus'),
    ('Data.corpus=5', r'5 \(int\), expected str'),
    ('Data.lengths={"inputs": 5', "'{' is never closed"),
    ('Run.model=@os.getenv()', "'os.getenv'"),
    ('Run.seed=%SEED', '%SEED'),
    ('SEED=5', '%SEED'),
    ('Mesh.tnsor=5', 'did you mean Mesh.tensor'),
    ('import os', 'no value'),
    ('import os\nRun.steps=1', 'one setting'),
    ('Run.steps=1\nRun.seed=2', 'one setting'),
    ("Run.steps=1\ninclude 'run.gin'", 'one setting'),
  ],
)
def test_wrong_options_are_named(load, option, said):
  message = refusal(load, '', option)
  assert re.search(said, message), message
  assert ' '.join(f'at --gin.{option}'.split()) in message


def test_a_file_is_to_blame_when_an_option_is_not(load):
  message = refusal(load, 'Run.seed = -1\n', 'Run.steps=5')
  assert f'run.gin:{NEXT}' in message
  message = refusal(load, 'Run.seed = -1\n', 'Run.seed=-2')
  assert 'at --gin.Run.seed=-2' in message


def test_missing_settings_are_told_at_once(write):
  message = refusal(config.load, [write('Run.steps = 1\n')])
  assert 'Run lacks settings at run.gin' in message
  for name in ('model', 'objective', 'data', 'optimizer', 'batch_size'):
    assert f'Run.{name}' in message
  assert 'Run.steps' not in message
  text = COMPLETE.replace('Transformer.head_dim = 4\n', '').replace(
    'Transformer.vocab_size = 64\n', ''
  )
  message = refusal(config.load, [write(text)])
  assert 'Transformer lacks settings at run.gin:1' in message
  assert 'Transformer.vocab_size' in message
  assert 'Transformer.head_dim' in message
  assert refusal(config.load).startswith('Run lacks settings')


def test_files_that_are_none(write, tmp_path):
  message = refusal(config.load, ['t5/quikstart'])
  assert "'t5/quikstart'" in message and 'did you mean t5/quickstart' in message
  assert 'searched t5/quikstart, t5/quikstart.gin, ' in message
  assert 'folder' in refusal(config.load, [str(tmp_path)])
  assert 'such as t5/1_0_11b' in refusal(config.load, ['t5'])
  write(COMPLETE.encode() + b'Data.corpus = "\xff.txt"\n', 'latin.gin')
  message = refusal(config.load, ['latin.gin'])
  assert f'latin.gin:{NEXT}' in message and '0xff' in message


def test_includes_in_a_circle(write):
  write("include 'b.gin'\n", 'a.gin')
  write("\ninclude 'sub/../a.gin'\n", 'b.gin')
  write('', 'sub/c.gin')
  message = refusal(config.load, ['a.gin'])
  assert 'b.gin:2' in message
  assert re.search('a.gin -> .*b.gin -> .*a.gin', message)


# -- hostile recipes ----------------------------------------------------------

HOSTILE = [
  'import evil',
  'import evil as specs',
  'from evil import payload',
  'import os.path',
  'from __gin__ import dynamic_registration\nimport evil',
  'import __main__ as train_script',
  'Run.seed = @evil.payload()',
  'Run.seed = @evil.payload',
  'Run.seed = @os.system()',
  "Data.corpus = @os.getenv('SECRET')",
  'Data.corpus = @os.getenv()',
  'Run.seed = @builtins/eval()',
  'Run.seed = @__import__()',
  "Run.seed = __import__('evil')",
  'Run.seed = eval(\'__import__("evil")\')',
  "Run.seed = (lambda: __import__('evil'))()",
  'Run.seed = [__import__("evil") for x in [1]]',
  'Run.seed = f"{__import__(\'evil\')}"',
  'Run.__class__ = 5',
  'Run.__post_init__ = @Run()',
  'Spec.__init__ = 5',
  'Run.seed = @gin.singleton()',
  'gin.register.module = "evil"',
  'a/gin.singleton.constructor = @evil.payload',
  'macro.value = @evil.payload()',
  'Run.seed = %gin.REQUIRED',
  'Run.seed = %__builtins__',
  "include 'evil.py'",
  'evil:\n  payload = 1',
  '\\\nimport evil',
  '  import evil',
  "Run.seed = 1; __import__('evil')",
]


@pytest.mark.parametrize('text', HOSTILE)
def test_a_recipe_runs_no_code(load, write, tmp_path, monkeypatch, text):
  write(
    'import pathlib\npathlib.Path("ran").touch()\npayload = print\n', 'evil.py'
  )
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setenv('SECRET', 'do not tell')
  before = dict(sys.modules)
  assert 'do not tell' not in refusal(load, text + '\n')
  if not text.startswith('Data.corpus'):  # where a bare word is text
    assert 'do not tell' not in refusal(load, '', text)
  assert not (tmp_path / 'ran').exists()
  assert set(sys.modules) == set(before) and 'evil' not in sys.modules


def test_the_hostile_file_would_run(write, tmp_path):
  """The proof above means something: imported, the payload leaves its mark."""
  write('import pathlib\npathlib.Path("ran").touch()\n', 'evil.py')
  subprocess.run(
    [sys.executable, '-c', 'import evil'], cwd=tmp_path, check=True
  )
  assert (tmp_path / 'ran').exists()


def test_a_bomb_is_refused(load, write, monkeypatch):
  assert 'too large' in refusal(load, '#' * 2**20)
  chain = ['Run.seed = %C0', *(f'C{n} = %C{n + 1}' for n in range(2000))]
  assert 'deep' in refusal(load, '\n'.join(chain))
  monkeypatch.setattr(config, '_LIMIT', 500)
  bomb = ['M0 = [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]']
  bomb += [f'M{n} = [{f"%M{n - 1}, " * 10}]' for n in range(1, 20)]
  bomb += ['Run.seed = %M19']
  assert 'too large' in refusal(load, '\n'.join(bomb) + '\n')
  for n in range(20):
    write(f"include 'i{n + 1}.gin'\n" * 10, f'i{n}.gin')
  write('', 'i20.gin')
  assert 'too large' in refusal(config.load, ['i0.gin'])


def test_values_are_not_interpreted_twice(load):
  run = load("Data.corpus = '@os.getenv()'\nData.store = '%X'\n")
  assert (run.data.corpus, run.data.store) == ('@os.getenv()', '%X')


# -- the record ---------------------------------------------------------------


def test_a_record_is_plain_complete_and_in_order(load):
  record = records.record(load())
  assert record['type'] == 'Run'
  assert list(record)[1:] == [f.name for f in dataclasses.fields(specs.Run)]
  assert record['model']['position'] == {
    'type': 'T5Bias',
    'buckets': 32,
    'max_distance': 128,
    'per_layer': False,
  }
  assert json.loads(records.to_json(record)) == record
  assert records.to_json(record).endswith('}\n')


def test_a_record_rebuilds_the_run(load):
  run = load(
    'Transformer.position = None\nData.corpus = "bücher \\n"\n'
    "Evaluation.tasks = ['a', 'b']\nEvaluation.lengths = {'inputs': 8}\n"
    "Checkpoints.best = @Best()\nBest.goal = 'max'\n"
  )
  assert run.evaluation.tasks == ('a', 'b') and run.checkpoints.best.keep == 1
  record = records.record(run)
  text = records.to_json(record)
  for recorded in (record, text, text.encode()):
    again = records.from_record(recorded)
    assert again == run
    assert records.to_json(records.record(again)) == text
  # Runs and records share nothing that can be written to.
  again = records.from_record(record)
  again.data.lengths['inputs'] = 99
  assert record['data']['lengths'] == {'inputs': 8}
  record['data']['lengths']['inputs'] = 98
  assert run.data.lengths == {'inputs': 8}


def test_a_record_holds_a_list_of_specs(load):
  run = load(MIXTURE)
  record = records.record(run)
  member = record['objective']['members'][1]
  assert member['type'] == 'Denoiser' and member['rate'] == 2.0
  assert member['objective'] == {
    'type': 'SpanCorruption',
    'density': 0.15,
    'mean_span': 32.0,
  }
  assert records.from_record(records.to_json(record)) == run
  flat = records.flatten(record)
  assert flat['objective.members.1.objective.mean_span'] == 32.0
  short, long = (
    records.record(load(MIXTURE + line))
    for line in (
      'on/PrefixLM.density = 0.5',
      'Denoisers.members = [@short/Denoiser(), @long/Denoiser()]',
    )
  )
  assert records.compare(record, short).refused == (
    'objective.members.2.objective.density: None -> 0.5',
  )
  assert records.compare(record, long).refused == (
    'objective.members.2: Denoiser -> None',
  )
  for wrong in ('text', {'type': 'Mesh'}, {'no': 'type'}, None, [{}]):
    record['objective']['members'][1] = wrong
    assert 'at x' in refusal(records.from_record, record, 'x')


def test_a_record_older_than_a_setting_takes_its_default(load):
  record = records.record(load())
  del record['seed'], record['model']['unroll'], record['mesh']
  assert records.from_record(record) == load()


def edit(*path_and_value):
  *path, last, value = path_and_value

  def apply(record):
    for key in path:
      record = record[key]
    record[last] = value

  return apply


@pytest.mark.parametrize(
  ('change', 'said'),
  [
    (edit('sead', 1), "Run.*'sead'.*did you mean seed"),
    (edit('model', 'type', 'Transfomer'), 'did you mean Transformer'),
    (edit('model', 'type', 'os.system'), "'os.system'"),
    (edit('model', 'type', ['Run']), "unknown spec.*'Run'"),
    (edit('model', 'type', 'Mesh'), "'vocab_size'"),
    (edit('model', {'a': 1}), 'not a record'),
    (edit('model', 5), 'Run.model.*5'),
    (edit('model', '__class__', 5), "'__class__'"),
    (edit('mesh', {'type': 'Evaluation'}), 'Run.mesh.*expected Mesh'),
    (edit('steps', '10'), r"Run.steps.*'10' \(str\)"),
    (edit('steps', [10]), 'Run.steps'),
    (edit('z_loss', float('nan')), 'Run.z_loss.*nan'),
    (edit('data', 'lengths', {'type': 'Mesh'}), 'Data.lengths'),
    (edit('type', 'Transformer'), 'unknown setting of Transformer'),
    (edit(5, 6), 'unknown setting of Run.*5'),
  ],
)
def test_a_wrong_record_is_refused(load, change, said):
  record = records.record(load())
  change(record)
  message = refusal(records.from_record, record, 'ckpt/config.json')
  assert re.search(said, message), message
  assert 'at ckpt/config.json' in message


@pytest.mark.parametrize(
  'text',
  [
    '',
    '{',
    'null',
    '[]',
    '5',
    '"Run"',
    '{"type": "Run"}',
    '{"type": "Mesh"}',
    '[' * 100_000,
    '9' * 5000,
    b'\xff\xfe{',
    '{"a": ' * 100_000,
  ],
)
def test_text_that_is_no_record_is_refused(text):
  assert 'at ckpt/config.json' in refusal(
    records.from_record, text, 'ckpt/config.json'
  )


# -- changes on resume --------------------------------------------------------

REFUSED = [
  'seed',
  'model.vocab_size',
  'model.encoder_layers',
  'model.decoder_layers',
  'model.embed_dim',
  'model.mlp_dim',
  'model.num_heads',
  'model.num_kv_heads',
  'model.head_dim',
  'model.mask',
  'model.windows',
  'model.norm.scale',
  'model.norm.bias',
  'model.norm.epsilon',
  'model.norm_place',
  'model.embedding_norm',
  'model.position.buckets',
  'model.position.max_distance',
  'model.position.per_layer',
  'model.activation',
  'model.gated',
  'model.bias',
  'model.qkv_bias',
  'model.logits_bias',
  'model.tie_embeddings',
  'model.scale_embeddings',
  'model.scale_logits',
  'model.scale_attention',
  'model.share_stacks',
  'model.segments',
  'model.classes',
  'objective.density',
  'objective.mean_span',
  'data.lengths.inputs',
  'data.extra_ids',
  'data.document',
  'data.field',
  'data.held_out',
  'data.mixture',
  'data.pack',
  'data.pair',
  'data.prefix',
  'data.stream',
  'data.task',
  'start_from',
  'optimizer.factored',
  'optimizer.beta1',
]
TOLD = [
  'steps',
  'batch_size',
  'microbatches',
  'log_every',
  'z_loss',
  'label_smoothing',
  'loss_normalizer',
  'model.dropout',
  'model.dropout_kind',
  'model.attention',
  'model.dtype',
  'model.remat',
  'model.unroll',
  'data.store',
  'data.corpus',
  'data.vocabulary',
  'data.special_tokens',
  'data.prompt_start',
  'optimizer.schedule.peak',
  'optimizer.schedule.warmup',
  'optimizer.schedule.hold',
  'optimizer.schedule.decay',
  'optimizer.schedule.end',
  'optimizer.schedule.until',
  'optimizer.weight_decay',
  'optimizer.no_decay',
  'optimizer.groups',
  'optimizer.skip_nonfinite',
  'optimizer.decay_rate',
  'optimizer.clip_threshold',
  'optimizer.parameter_scale',
  'optimizer.min_scale',
  'optimizer.max_scale',
  'optimizer.weight_decay_power',
  'optimizer.clip_norm',
  'mesh.replica',
  'mesh.data',
  'mesh.fsdp',
  'mesh.tensor',
  'mesh.sequence',
  'evaluation.every',
  'evaluation.examples',
  'evaluation.tasks',
  'evaluation.split',
  'evaluation.lengths',
  'checkpoints.every',
  'checkpoints.keep',
  'checkpoints.keep_every',
  'checkpoints.best',
]


def leaves(record, path=''):
  for key, value in record.items():
    if isinstance(value, dict):
      yield from leaves(value, f'{path}{key}.')
    elif key != 'type':
      yield path + key


def another(value, rule):
  """Some other value that a field admits."""
  candidates = [
    *(
      choice
      for member in specs.alternatives(rule)
      for choice in getattr(member, '__args__', ())
    ),
    *([value * 2] if value else []),
    *(not value, 'other', 2, 0.5, None, ('other', 'one'), {'inputs': 3}),
    {'eos': 'other'},
    (0,),
    specs.Best(goal='min'),
    (specs.Group(pattern='.*'),),
    specs.Pretrained(path='runs/a'),
  ]
  return next(c for c in candidates if c != value and specs.obeys(c, rule))


def changed(run, path):
  """The run with another value at a path."""
  head, _, rest = path.partition('.')
  value = getattr(run, head)
  if isinstance(value, dict):
    return dataclasses.replace(run, **{head: {**value, rest: value[rest] + 1}})
  if rest:
    return dataclasses.replace(run, **{head: changed(value, rest)})
  (field,) = [f for f in dataclasses.fields(run) if f.name == head]
  # What goes with it: one of two sources, a decoder alone.
  others = {
    'task': {'corpus': None},
    'mixture': {'corpus': None},
    'mask': {'encoder_layers': 0},
  }.get(head, {})
  return dataclasses.replace(run, **{head: another(value, field.type)} | others)


def test_every_setting_is_either_refused_or_told(load):
  """A new setting belongs in one of the lists above, and in record.py's."""
  assert sorted(leaves(records.record(load()))) == sorted(REFUSED + TOLD)


@pytest.mark.parametrize('path', REFUSED + TOLD)
def test_what_a_resumed_run_may_change(load, path):
  run = load("Schedule.decay = 'cosine'")
  old, new = records.record(run), records.record(changed(run, path))
  assert old != new
  changes = records.compare(old, new)
  found, other = changes.refused, changes.told
  if path in TOLD:
    found, other = other, found
  if path in ('data.task', 'data.mixture'):
    other = other[1:]  # the corpus is gone
  if path == 'model.mask':
    found = found[1:]  # so is the encoder
  assert other == () and len(found) == 1
  assert re.fullmatch(re.escape(path) + r': .+ -> .+', found[0])


def test_changes_read_well(load):
  old = records.record(load())
  new = records.record(
    load(
      "Data.lengths = {'inputs': 4, 'targets': 2}\nData.corpus = 'b.txt'\n"
      'Transformer.position = None\nRun.steps = 7\nAdafactor.clip_norm = 1.0'
    )
  )
  changes = records.compare(old, new)
  assert changes.refused == (
    'model.position: T5Bias -> None',
    'data.lengths.inputs: 8 -> 4',
    'data.lengths.targets: None -> 2',
  )
  assert changes.told == (
    "data.corpus: 'a.txt' -> 'b.txt'",
    'optimizer.clip_norm: None -> 1.0',
    'steps: 1000 -> 7',
  )
  same = records.compare(records.to_json(old), old)
  assert not same.refused and not same.told


@pytest.mark.parametrize(
  'kind, path, values',
  [
    ('Sgd', 'momentum', [None, 0.5, 0.9]),
    ('Adafactor', 'beta1', [None, 0.5, 0.9]),
  ],
)
def test_a_sum_of_gradients_may_change_its_decay_but_not_come_or_go(
  load, kind, path, values
):
  runs = [
    records.record(
      load(
        f'Run.optimizer = @{kind}()\n{kind}.schedule = @Schedule()\n'
        f'{kind}.{path} = {value}'
      )
    )
    for value in values
  ]
  assert records.compare(*runs[1:]).told == (f'optimizer.{path}: 0.5 -> 0.9',)
  for old, new in [(0, 1), (1, 0)]:
    changes = records.compare(runs[old], runs[new])
    assert changes.told == () and len(changes.refused) == 1


A, B = "Group.pattern = 'a/.*'\n", "Group.pattern = 'b/.*'\n"
ONE = 'Adafactor.groups = [@Group()]\n'
TWO = 'Adafactor.groups = [@x/Group(), @y/Group()]\n'
FROZEN = 'Group.rate = 0\n'


@pytest.mark.parametrize(
  'old, new, fits',
  [
    (ONE + A, ONE + B, True),
    (ONE + A, '', True),
    (ONE + A + FROZEN, ONE + A + FROZEN + 'Group.weight_decay = 0.1', True),
    (TWO + f'x/{A}x/{FROZEN}y/{B}', ONE + A + FROZEN, True),
    (ONE + A, ONE + A + FROZEN, False),
    (ONE + A + FROZEN, '', False),
    (ONE + A + FROZEN, ONE + B + FROZEN, False),
    (TWO + f'x/{A}y/{B}y/{FROZEN}', ONE + B + FROZEN, False),
  ],
)
def test_what_is_frozen_may_not_change(load, old, new, fits):
  changes = records.compare(
    records.record(load(old)), records.record(load(new))
  )
  found = changes.told if fits else changes.refused
  [line] = found
  assert changes.told + changes.refused == found
  assert line.startswith('optimizer.groups: [')
  assert "Group(pattern='" in line


def test_groups_survive_their_record(load):
  run = load(TWO + f'x/{A}y/{B}x/{FROZEN}')
  groups = (
    specs.Group(pattern='a/.*', rate=0),
    specs.Group(pattern='b/.*'),
  )
  assert run.optimizer.groups == groups
  assert records.from_record(records.to_json(records.record(run))) == run


def test_a_record_that_lacks_a_default_has_not_changed(load):
  old, new = records.record(load()), records.record(load())
  del old['mesh'], old['model']['dtype']
  changes = records.compare(old, new)
  assert not changes.refused and not changes.told
