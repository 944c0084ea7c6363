"""The command line: what it takes, what it says, and what it need not load."""

import json
import signal
import subprocess
import sys

import pytest

import t5x_lite
from t5x_lite import cli
from t5x_lite import decoding_options
from t5x_lite import errors
from t5x_lite import launch_options
from t5x_lite import recipes
from t5x_lite import specs

COMMANDS = cli.make_parser()[1]
LAUNCH, PLACES = launch_options.make_parser()
# What is asked for help, by its words: the parser that answers.
HELPED = (
  {(): None}
  | {(name,): parser for name, parser in COMMANDS.items()}
  | {('launch',): LAUNCH}
  | {('launch', name): parser for name, parser in PLACES.items()}
)
REQUIRED = {
  'plan': ['--topology=v5e-4'],
  'evaluate': ['--workdir=x'],
  'infer': ['--workdir=x'],
  'vocab': ['--output=x'],
  'import': ['x', '--workdir=x'],
  'export': ['--workdir=x', '--output=x'],
}


def parse(name, *options):
  return cli.parse([name, *REQUIRED.get(name, []), *options])


def child(code):
  """What a new Python prints, for what must not have been imported before."""
  done = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  assert not done.stderr
  return done.stdout


# -- help ---------------------------------------------------------------------


@pytest.mark.parametrize('words', HELPED, ids=' '.join)
def test_help_fits_a_screen_and_says_all(words, capsys, monkeypatch):
  monkeypatch.setenv('COLUMNS', '80')
  with pytest.raises(SystemExit) as e:
    cli.main([*words, '--help'])
  assert e.value.code == 0
  said = capsys.readouterr().out
  lines = said.splitlines()
  assert len(lines) <= 24
  assert max(map(len, lines)) <= 80
  if not words:
    assert all(f'\n    {command}' in said for command in COMMANDS)
    return
  for action in HELPED[words]._actions:
    assert action.help or action.dest in ('where', 'name'), action.dest
    assert all(option in said for option in action.option_strings)
  takes = words[0] in cli.TAKES_RECIPE
  assert ('--gin.NAME.FIELD=VALUE' in said) == takes


@pytest.mark.parametrize('name', COMMANDS)
def test_examples_of_help_are_right(name):
  text = cli.EXAMPLES[name].replace('\\\n', ' ')
  commands = [
    words.split()[1:]
    for line in text.splitlines()
    for words in line.split('|')
    if words.split()[0] == 't5x_lite'
  ]
  assert commands
  for arguments in commands:
    assert cli.parse(arguments).command in COMMANDS
  assert commands[0][0] == name


def test_nothing_said_is_help(capsys):
  with pytest.raises(SystemExit) as e:
    cli.main([])
  assert e.value.code == 0
  assert 'COMMAND' in capsys.readouterr().out


# -- options ------------------------------------------------------------------


def test_values():
  found = parse('infer', '--step=0', '--candidates', '3')
  assert (found.workdir, found.step, found.candidates) == ('x', 0, 3)
  assert (found.length, found.batch_size, found.input) == (None, 32, '-')
  assert parse('infer', '--shard=2/3').shard == [2, 3]
  assert parse('train', '--profile=10:5').profile == (10, 5)
  found = parse('train', '--gin_file=a', '--gin_file', 'b', '--dry_run')
  assert (found.gin_file, found.dry_run, found.bindings) == (
    ['a', 'b'],
    True,
    [],
  )


def test_decoding():
  def spec(*options, command='infer'):
    return decoding_options.spec(parse(command, *options))

  assert spec() is None  # the default, or what the run says
  assert spec('--decoding=greedy') == specs.Greedy()
  beam = ['--beams=3', '--length_penalty=-1', '--penalty=hf', '--return=2']
  assert spec('--decoding=beam', *beam) == specs.Beam(
    beams=3, length_penalty=-1.0, penalty='hf', returned=2
  )
  sample = ['--temperature=0.5', '--top_k=3', '--top_p=0.9', '--samples=2']
  assert spec('--decoding=sample', *sample, '--seed=7') == specs.Sample(
    temperature=0.5, top_k=3, top_p=0.9, samples=2, seed=7
  )
  assert spec('--decoding=beam', command='evaluate') == specs.Beam()


def test_defaults_of_decoding_are_as_help_says():
  for kind, own in decoding_options._OPTIONS.items():
    found = specs.SPECS[kind.title()]()
    for shown in own:
      name, value = shown.removeprefix('--').split('=')
      name = 'returned' if name == 'return' else name
      default = value.split('|')[0]
      assert str(getattr(found, name)).removesuffix('.0') == default


def test_words_of_evaluation():
  found = parse('evaluate', '--tasks=a, b', '--task_module=m', '--step=all')
  assert (found.tasks, found.task_module) == (('a', 'b'), ['m'])
  assert (found.step, found.force, found.examples) == ('all', False, None)
  assert parse('evaluate', '--tasks=').tasks == ()  # none; else the run's own
  assert parse('evaluate').tasks is None
  for step in ('best', 'latest'):
    assert parse('infer', f'--step={step}').step == step


@pytest.mark.parametrize('name', sorted(COMMANDS.keys() - {'launch'}))
def test_bindings_only_where_a_recipe_is_taken(name):
  binding = '--gin.Run.steps=3', "--gin.Data.corpus='a = b'"
  if name in cli.TAKES_RECIPE:
    assert parse(name, *binding).bindings == [
      'Run.steps=3',
      "Data.corpus='a = b'",
    ]
  else:
    with pytest.raises(errors.ConfigError, match='takes no recipe.*Run.steps'):
      parse(name, *binding)


@pytest.mark.parametrize('name', sorted(COMMANDS.keys() - {'launch'}))
def test_the_nearest_option_is_offered(name):
  options = [x.option_strings for x in COMMANDS[name]._actions]
  for *_, option in filter(None, options):
    wrong = option[:3] + 'q' + option[3:]
    with pytest.raises(errors.ConfigError) as e:
      parse(name, f'{wrong}=1')
    assert f'got {wrong},' in str(e.value) or f'got {wrong};' in str(e.value)
    assert f'did you mean {option}?' in str(e.value)
    assert f't5x_lite {name} --help' in str(e.value)


def test_launch_takes_a_command_and_checks_it():
  found = cli.parse(
    ['launch', 'local', '--processes=3', 'train', '--gin.Run.steps=3']
  )
  assert (found.command, found.processes, found.devices) == ('launch', 3, 1)
  assert found.start == ['train', '--gin.Run.steps=3']


@pytest.mark.parametrize(
  'arguments, said',
  [
    (['local'], 'no command to start; expected one of train'),
    (['local', 'recipes'], 'no command to start'),
    (['here', 'train'], 'no such place to launch'),
    (['local', '--proceses=2', 'train'], 'did you mean --processes?'),
    (['local', '--processes=0', 'train'], "got '0', expected an int >= 1"),
    (['local', 'train', '--corpsu=x'], 'did you mean --corpus?'),
    (['local', 'train', '--process_count=3'], 'itself; got --process_count'),
    (['local', '--multiprocess', 'train'], 'no such option; got --multi'),
    (['tpu_vn', 'train'], 'did you mean tpu_vm?'),
    (['gke', '--', 'train'], 'required: --config'),
    (['local', '--', 'trian'], 'did you mean train?'),
    (['local', '--config.zone=x', 'train'], 'takes no job spec'),
    (['status', 'x', '--', 'train'], 'launch status starts nothing'),
  ],
  ids=str,
)
def test_wrong_launches(arguments, said):
  with pytest.raises(errors.ConfigError) as e:
    cli.parse(['launch', *arguments])
  assert said in str(e.value)


def test_the_place_of_a_process():
  place = parse('train', '--process_index=1', '--process_count=2').place
  assert (place.process_index, place.process_count) == (1, 2)
  with pytest.raises(errors.ConfigError, match='mean --process_index?'):
    parse('train', '--process_indx=1')


@pytest.mark.parametrize('arguments', [['--cor=x'], ['--work=x'], ['x']])
def test_options_are_not_abbreviated(arguments):
  with pytest.raises(errors.ConfigError, match='no such option'):
    parse('train', *arguments)


@pytest.mark.parametrize(
  'name, option',
  [
    ('infer', '--length=0'),
    ('infer', '--candidates=1.5'),
    ('infer', '--batch_size=-1'),
    ('infer', '--mode=guess'),
    ('infer', '--shard=3/3'),
    ('infer', '--shard=1'),
    ('infer', '--step=last'),
    ('evaluate', '--step=-1'),
    ('infer', '--step=all'),
    ('evaluate', '--examples=0'),
    ('inspect', '--rows=many'),
    ('inspect', '--position='),
    ('inspect', '--split=test'),
    ('vocab', '--kind=word'),
    ('train', '--profile=10'),
    ('train', '--profile=10:'),
    ('train', '--profile=0:5'),
    ('train', '--profile=5:0'),
    ('train', '--profile=a:b'),
    ('train', '--profile=1:2:3'),
  ],
)
def test_wrong_values_are_refused_by_name(name, option, capsys):
  assert cli.main([name, *REQUIRED.get(name, []), option]) == 2
  said = capsys.readouterr()
  assert said.err.startswith('t5x_lite: argument ' + option.split('=')[0])
  assert said.err.count('\n') == 1
  assert not said.out


def test_errors_are_one_line_and_a_code(capsys):
  assert cli.main(['trian']) == 2
  assert 'did you mean train?' in capsys.readouterr().err
  assert cli.main(['--verbose', 'train']) == 2
  with pytest.raises(errors.ConfigError):
    cli.main(['train', '--debug'])  # no recipe; with a traceback


def test_interrupts_and_codes_of_commands(monkeypatch, capsys):
  from t5x_lite import commands

  def interrupted(options):
    raise KeyboardInterrupt

  monkeypatch.setattr(commands, 'recipes', interrupted)
  assert cli.main(['recipes']) == 130
  assert capsys.readouterr().err == 't5x_lite: interrupted\n'
  monkeypatch.setattr(commands, 'recipes', lambda options: 143)
  assert cli.main(['recipes']) == 143


def test_a_reader_that_leaves_is_told_by_the_code_alone():
  code = """
import sys, types, t5x_lite
say_much = lambda options: [print('x' * 1000) for _ in range(1000)]
t5x_lite.commands = types.SimpleNamespace(recipes=say_much)
from t5x_lite import cli
from t5x_lite import decoding_options
sys.exit(cli.main(['recipes']))
"""
  with subprocess.Popen(
    [sys.executable, '-c', code],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
  ) as process:
    process.stdout.read(1)
    process.stdout.close()
    assert process.stderr.read() == b''
  assert process.returncode == 128 + signal.SIGPIPE


# -- what is loaded -----------------------------------------------------------

HEAVY = ('jax', 'tensorflow', 'seqio', 'gin', 'numpy', 'rich', 'flax', 'orbax')


def test_help_version_and_errors_load_nothing_heavy():
  said = child(f"""
import sys
from t5x_lite import cli
from t5x_lite import decoding_options
for arguments in (['--help'], ['train', '--help'], ['--version']):
  try:
    cli.main(arguments)
  except SystemExit as e:
    assert not e.code
sys.stderr = sys.stdout
assert cli.main(['trian']) == 2
print([name for name in {HEAVY} if name in sys.modules])
""")
  *_, version, error, loaded = said.splitlines()
  assert version == t5x_lite.__version__
  assert 'trian' in error
  assert loaded == '[]'


def test_t5x_1512_the_package_loads_at_once():
  said = child(f"""
import sys, time
start = time.perf_counter()
import t5x_lite
print(time.perf_counter() - start)
print([name for name in {HEAVY} if name in sys.modules])
print(t5x_lite.specs.Mesh().data, hasattr(t5x_lite, 'no_such_module'))
""")
  seconds, loaded, used = said.splitlines()
  assert float(seconds) < 1
  assert (loaded, used) == ('[]', '-1 False')


def test_seqio_396_commands_load_no_tensorflow():
  said = child("""
import sys
from t5x_lite import commands, quickstart
heavy = 'tensorflow', 'seqio', 'torch'
print([name for name in heavy if name in sys.modules])
""")
  assert said == '[]\n'


# -- recipes ------------------------------------------------------------------

PUBLISHED = {
  't5/1_0_small': 60_506_624,
  't5/1_0_base': 222_903_552,
  't5/1_0_large': 737_668_096,
  't5/1_0_3b': 2_851_598_336,
  't5/1_0_11b': 11_307_321_344,
  't5/1_1_small': 76_961_152,
  't5/1_1_base': 247_577_856,
  't5/1_1_large': 783_150_080,
  't5/1_1_xl': 2_849_757_184,
  't5/1_1_xxl': 11_135_332_352,
  'mt5/small': 300_176_768,
  'mt5/base': 582_401_280,
  'mt5/large': 1_229_581_312,
  'mt5/xl': 3_742_619_648,
  'mt5/xxl': 12_921_057_280,
  'byt5/small': 299_637_760,
  'byt5/base': 581_653_248,
  'byt5/large': 1_228_183_552,
  'byt5/xl': 3_737_801_728,
  'byt5/xxl': 12_906_899_328,
  'umt5/small': 306_601_984,
  'umt5/base': 592_043_520,
}


def test_recipes_have_the_published_parameters(capsys):
  assert not cli.main(['recipes', '--json'])
  found = json.loads(capsys.readouterr().out)
  counts = {entry['name']: entry['parameters'] for entry in found}
  assert list(counts) == recipes.names()
  assert counts.items() >= PUBLISHED.items()
  # The header is prose; the command counts the shapes of the model.
  assert counts == {n: recipes.info(n).parameters for n in recipes.names()}
  for entry in found:
    assert type(entry['parameters']) is int
    for key in ('name', 'system', 'family', 'paper'):
      assert entry[key] and isinstance(entry[key], str)


def test_what_the_command_line_learns_from_replaces_the_recipes(tmp_path):
  (tmp_path / 'my.gin').write_text("include 't5/bytes.gin'\n")
  options = cli.parse(
    ['train', f'--gin_file={tmp_path}/my.gin', '--gin.Data.task=glue_rte_v002']
  )
  from t5x_lite import commands

  spec = commands.load(options).data
  assert (spec.corpus, spec.task) == (None, 'glue_rte_v002')
  options.bindings = ["Data.mixture='a'"]
  assert commands.load(options).data.mixture == 'a'
  options.bindings += ["Data.task='b'"]
  with pytest.raises(errors.ConfigError, match='Data.task and Data.mixture'):
    commands.load(options)
