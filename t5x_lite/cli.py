"""The command line: `t5x_lite` and `python -m t5x_lite`.

Each command parses its options here and calls one function of `commands`,
whose modules load only then, so that `--help` and wrong options cost nothing.
"""

import gc
import os
import sys

import t5x_lite
from t5x_lite import allocator
from t5x_lite import decoding_options
from t5x_lite import errors
from t5x_lite import launch_options
from t5x_lite import looking_options
from t5x_lite import objects
from t5x_lite import parsing
from t5x_lite import plan_options
from t5x_lite import processes
from t5x_lite import transfer_options
from t5x_lite import values
from t5x_lite import vocabulary_options

TAKES_RECIPE = ('train', 'plan', 'vocab', 'cache', 'inspect')
TAKES_PROCESSES = launch_options.COMMANDS

TASK_MODULE = {
  'action': 'append',
  'default': [],
  'metavar': 'NAME',
  'help': 'module to run, which registers SeqIO tasks',
}
EXAMPLES = transfer_options.EXAMPLES | {
  'quickstart': 't5x_lite quickstart --workdir=runs/quickstart',
  'train': """t5x_lite train --corpus=my.txt --workdir=runs/mine
  t5x_lite train --gin_file=t5/bytes --corpus='books/*.txt' --workdir=runs/b \\
    --gin.Run.steps=5000
  t5x_lite train --gin_file=t5/1_1_base --dry_run
The same command goes on where a stopped run left off.""",
  'plan': plan_options.EXAMPLES,
  'evaluate': """t5x_lite evaluate --workdir=runs/mine --step=all
  t5x_lite evaluate --workdir=runs/mine --tasks=glue --task_module=my_tasks""",
  'infer': 't5x_lite infer --workdir=runs/mine --input=in.txt '
  '--output=out.jsonl',
  'recipes': 't5x_lite recipes --json',
  'vocab': """t5x_lite vocab --corpus=my.txt --size=8000 --output=my.model
  t5x_lite vocab --convert=other.model --output=with_sentinels.model""",
  'cache': """t5x_lite cache --gin_file=t5/bytes --corpus='books/*.txt'
  t5x_lite cache --gin_file=my.gin --beam_runner=DirectRunner \\
    --direct_running_mode=multi_processing --direct_num_workers=4
Stopped, the same command goes on. Training does it, too, when it must.""",
  'inspect': """t5x_lite inspect --gin_file=t5/bytes --corpus=my.txt --rows=2
  t5x_lite inspect --gin_file=my.gin --picture=data.png
  t5x_lite inspect --store=stores/my-0123456789abcdef""",
  'launch': launch_options.EXAMPLES['local'],
}


def make_parser():
  """(the parser, {command: its own parser})."""
  top = parsing.Parser(
    prog='t5x_lite',
    description='Pretrains text Transformers with JAX.',
    epilog='t5x_lite COMMAND --help shows the options of a command.',
    allow_abbrev=False,
    formatter_class=parsing.Overview,
  )
  top.add_argument('--version', action='version', version=t5x_lite.__version__)
  commands = top.add_subparsers(dest='command', metavar='COMMAND')

  def command(name, text):
    recipe = name in TAKES_RECIPE
    usage = f't5x_lite {name} [options]'
    if recipe:
      usage += ' [--gin.NAME.FIELD=VALUE ...]'
    made = parsing.add_command(commands, name, text, usage, EXAMPLES[name])
    add = made.add_argument
    if recipe:
      add(
        '--gin_file',
        action='append',
        default=[],
        metavar='NAME',
        help='recipe, installed or a path; repeatable, the last wins',
      )
      add('--corpus', metavar='FILES', help='path, glob or registered name')
    return add

  add = command(
    'quickstart', 'pretrains a small T5 on Shakespeare, and shows it'
  )
  add('--workdir', help='folder of the run; default: runs/ and its name')
  add('--gin_file', default='t5/quickstart', metavar='NAME', help='recipe')

  add = command('train', 'trains a model, or goes on with it')
  add('--workdir', help='folder of checkpoints and metrics')
  add('--task_module', **TASK_MODULE)
  add(
    '--dry_run',
    action='store_true',
    help='print the resolved recipe and the parameters only',
  )
  add(
    '--step_timeout',
    type=values.positive,
    default=3600,
    metavar='SECONDS',
    help='a step that takes longer ends the run; default: 3600',
  )
  add(
    '--profile',
    type=values.window,
    metavar='START:COUNT',
    help='trace so many steps, for TensorBoard',
  )
  add(
    '--no_tensorboard',
    action='store_true',
    help='write no metrics for TensorBoard',
  )
  add(
    '--wandb_project',
    metavar='NAME',
    help='log metrics to Weights & Biases, too',
  )

  add = command('plan', 'predicts memory and time on chips that are not there')
  plan_options.add(add)

  add = command('evaluate', 'measures a model on held-out documents and tasks')
  add('--workdir', required=True, help='of the training run')
  add(
    '--step',
    type=values.steps,
    help='checkpoint, latest, best or all; default: latest',
  )
  add(
    '--tasks',
    type=values.names,
    metavar='A,B',
    help="SeqIO's; default: the run's",
  )
  add('--task_module', **TASK_MODULE)
  add('--examples', type=values.positive, help='at most so many; default: all')
  add('--batch_size', type=values.positive, help="at once; default: the run's")
  add('--force', action='store_true', help='measure again what is measured')
  decoding_options.add(add)

  add = command('infer', 'predicts a text for each line, or scores given ones')
  add('--workdir', required=True, help='of the training run')
  add('--step', type=values.step, help='checkpoint, or best; default: latest')
  add(
    '--mode',
    choices=('predict', 'score'),
    default='predict',
    metavar='MODE',
    help='predict, or score the targets that are given',
  )
  add('--input', default='-', metavar='FILE', help='default: stdin')
  add(
    '--output',
    default='-',
    metavar='FILE',
    help='default: stdout; stopped, the same command goes on',
  )
  add(
    '--format',
    choices=('text', 'jsonl'),
    metavar='FORMAT',
    help='of the input, text or jsonl; default: by its name',
  )
  add('--field', default='inputs', metavar='NAME', help='of JSON, the text')
  number = dict(type=values.positive, metavar='N')
  add('--length', **number, help='most tokens: of a prediction 64, a blank 16')
  add('--batch_size', **number, default=32, help='lines at once; default: 32')
  add('--candidates', **number, help='N likeliest fillings of each blank')
  add(
    '--shard',
    type=values.shard,
    default=[0, 1],
    metavar='I/N',
    help='make the I-th of N shares of the output, from 0',
  )
  decoding_options.add(add, several=True)

  add = command('recipes', 'lists the installed recipes')
  add('--json', action='store_true', help='as a JSON list')

  add = command('vocab', 'trains a vocabulary on a corpus, or converts one')
  vocabulary_options.add(add)

  add = command('cache', 'tokenises what a run learns from, once')
  add('--task_module', **TASK_MODULE)
  add('--workers', **number, help='processes; default: a core each')
  add(
    '--beam_runner',
    metavar='NAME',
    help='make it on Apache Beam; further options are passed on to it',
  )

  add = command('inspect', 'shows data as a person would read it, and figures')
  add('--task_module', **TASK_MODULE)
  looking_options.add(add)

  add = command('import', 'reads weights of Hugging Face or T5X into a workdir')
  transfer_options.add_import(add)

  add = command('export', 'writes a model for transformers, or for serving')
  transfer_options.add_export(add)

  add = command('weights', 'lists tensors, or how those of two places differ')
  transfer_options.add_weights(add)

  # Its own parser has the rest.
  command('launch', 'starts a command on TPUs, GPUs or several processes here')
  return top, commands.choices


def add_place(add):
  """Adds the options by which each process of a run knows its place."""
  add('--coordinator_address', metavar='HOST:PORT', help='of process 0')
  add('--process_count', type=values.positive, metavar='N', help='of all')
  add(
    '--process_index',
    type=values.natural,
    metavar='I',
    help='of this one, from 0',
  )
  add('--multiprocess', action='store_true', help='ask the cluster for these')
  wait = dict(type=values.positive, metavar='SECONDS')
  add('--initialization_timeout', **wait, default=300, help='to meet: 300')
  add('--heartbeat_timeout', **wait, default=30, help='of silence: 30')
  add(
    '--device_count',
    type=values.positive,
    metavar='N',
    help='that all must have together; default: any',
  )


def parse_launch(argv):
  """As `parse`, of `launch` and the command that it starts."""
  at = [n for n, word in enumerate(argv) if word in ('--', *TAKES_PROCESSES)]
  split = at[0] if at else len(argv)
  options = launch_options.parse(argv[1:split])
  start = argv[split:]
  options.start = start[1:] if start[:1] == ['--'] else start
  if options.where in launch_options.VERBS:
    if options.start:
      raise errors.ConfigError(
        f'launch {options.where} starts nothing', got=' '.join(start)
      )
    return options
  if not options.start or options.start[0] not in TAKES_PROCESSES:
    got = options.start[0] if options.start else None
    raise launch_options.no_command(options.where, got)
  options.started = parse(options.start)  # what is wrong with it is told once
  for name in ('multiprocess', 'coordinator_address', 'process_count'):
    if getattr(options.started.place, name):
      raise errors.ConfigError(
        'launch gives each process its place itself', got=f'--{name}'
      )
  return options


def parse(argv):
  """Options of a command line, with `bindings` from `--gin.X=value`."""
  if argv[:1] == ['launch']:
    return parse_launch(argv)
  top, commands = make_parser()
  bindings = [a[len('--gin.') :] for a in argv if a.startswith('--gin.')]
  rest = [a for a in argv if not a.startswith('--gin.')]
  if not rest:
    top.print_help()
    raise SystemExit(0)
  words = [word.partition('=')[0] for word in rest[1:]]
  if rest[0] == 'inspect' and (
    '--workdir' in words or not (words + ['-'])[0].startswith('-')
  ):
    rest = ['weights', *rest[1:]]
  if rest[0] not in commands and not rest[0].startswith('-'):
    raise errors.ConfigError(
      'no such command',
      got=rest[0],
      expected=f'one of {", ".join(commands)}',
      choices=commands,
    )
  placing = parsing.Parser(prog=f't5x_lite {rest[0]}', add_help=False)
  if rest[0] in TAKES_PROCESSES:
    add_place(placing.add_argument)
  place, rest = placing.parse_known_args(rest)
  options, unknown = top.parse_known_args(rest)
  if options.command is None:
    top.error('no command before the options')
  for binding in bindings:
    if '=' not in binding:  # its value, after a space, would be blamed instead
      raise errors.ConfigError(
        'option has no value',
        got=f'--gin.{binding}',
        expected='--gin.NAME=VALUE',
      )
  if unknown and getattr(options, 'beam_runner', None):
    options.beam, unknown = unknown, []
  if unknown:
    raise parsing.no_such_option(
      options.command, unknown[0], commands[options.command], placing
    )
  if bindings and options.command not in TAKES_RECIPE:
    raise errors.ConfigError(
      f'{options.command} takes no recipe: it reads the one in the workdir',
      got=f'--gin.{bindings[0]}',
    )
  options.bindings, options.place = bindings, place
  return options


def _bucket(argv):
  """What of gs:// a command line names; its errors do not say."""
  found = [word[word.index('gs://') :] for word in argv if 'gs://' in word]
  return ', '.join(found) or None


def _load_commands():
  """The module of commands, which loads JAX."""
  # What modules make stays: to look for garbage in it again and again while it
  # grows takes a quarter of the time.
  collecting = gc.isenabled()
  gc.disable()
  try:
    from t5x_lite import commands
  finally:
    if collecting:
      gc.enable()
  return commands


def main(argv=None):
  """Runs a command and returns the exit code."""
  argv = sys.argv[1:] if argv is None else argv
  try:
    options = parse(argv)
    allocator.keep_freed_memory()
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')  # TensorFlow's chatter
    commands = _load_commands()
    name = {'import': 'import_'}.get(options.command, options.command)
    code = getattr(commands, name)(options) or 0
    sys.stdout.flush()
    processes.leave()
    return code
  except Exception as e:
    # What reaches gs://, or reads TensorFlow datasets, has its own errors.
    remote = objects.is_fault(e) or type(e).__module__.startswith('tensorflow.')
    if not (remote or isinstance(e, (errors.UserError, OSError))):
      processes.crash(e)
      raise
    if isinstance(e, OSError) and sys.stdout is sys.__stdout__:
      # It may be the output that failed. Python would complain again at exit.
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(e, BrokenPipeError):
      processes.end(errors.NOT_READ)
      return errors.NOT_READ
    if '--debug' in argv:
      processes.crash(e)
      raise
    notes = getattr(e, '__notes__', ())  # what else went wrong
    if remote or isinstance(e, OSError):
      e = errors.StorageError(
        'cannot read or write',
        where=getattr(e, 'filename', None) or _bucket(argv),
        got=getattr(e, 'strerror', None) or ' '.join(str(e).split()),
      )
    text = '\n'.join([str(e), *notes])
    processes.fail(e, text)  # returns in a run of one process
    if not getattr(e, 'told', False):
      print(f't5x_lite: {text}', file=sys.stderr)
    return e.exit_code
  except KeyboardInterrupt:
    processes.end(errors.INTERRUPTED, 'interrupted')
    print('t5x_lite: interrupted', file=sys.stderr)
    return errors.INTERRUPTED
