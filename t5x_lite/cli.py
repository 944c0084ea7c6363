"""The command line: `t5x_lite` and `python -m t5x_lite`.

Each command parses its options here and calls one function of `commands`,
whose modules load only then, so that `--help` and wrong options cost nothing.
"""

import argparse
import os
import sys

import t5x_lite
from t5x_lite import allocator
from t5x_lite import errors
from t5x_lite import objects

TAKES_RECIPE = ('train', 'vocab', 'inspect')

EXAMPLES = {
  'quickstart': 't5x_lite quickstart --workdir=runs/quickstart',
  'train': """t5x_lite train --corpus=my.txt --workdir=runs/mine
  t5x_lite train --gin_file=t5/bytes --corpus='books/*.txt' --workdir=runs/b \\
    --gin.Run.steps=5000
  t5x_lite train --gin_file=t5/1_1_base --dry_run
The same command goes on where a stopped run left off.""",
  'evaluate': 't5x_lite evaluate --workdir=runs/mine',
  'infer': """echo 'To be <extra_id_0>' | t5x_lite infer --workdir=runs/mine
  t5x_lite infer --workdir=runs/mine --input=in.txt --output=out.jsonl""",
  'recipes': 't5x_lite recipes --json',
  'vocab': """t5x_lite vocab --corpus=my.txt --size=8000 --output=my.model
  t5x_lite train --corpus=my.txt --workdir=runs/mine \\
    --gin.Data.vocabulary=my.model --gin.Transformer.vocab_size=8064""",
  'inspect': 't5x_lite inspect --gin_file=t5/bytes --corpus=my.txt --rows=2',
}


class Parser(argparse.ArgumentParser):
  """Says what is wrong in one line."""

  def error(self, message):
    raise errors.ConfigError(message, fix=f'{self.prog} --help')


def positive(text, least=1):
  """A whole number of at least 1."""
  try:
    value = int(text)
  except ValueError:
    value = -1
  if not least <= value < 2**62:
    raise argparse.ArgumentTypeError(
      f'got {text!r}, expected an int >= {least}'
      + (' and < 2^62' if value > 0 else '')
    )
  return value


def natural(text):
  """A whole number of at least 0."""
  return positive(text, least=0)


def window(text):
  """(first step, how many) of `START:COUNT`."""
  start, colon, count = text.partition(':')
  if not colon:
    raise argparse.ArgumentTypeError(
      f'got {text!r}, expected START:COUNT, such as 10:5'
    )
  return positive(start), positive(count)


def make_parser():
  """(the parser, {command: its own parser})."""
  top = Parser(
    prog='t5x_lite',
    description='Pretrains text Transformers with JAX.',
    epilog='t5x_lite COMMAND --help shows the options of a command.',
    allow_abbrev=False,
  )
  top.add_argument('--version', action='version', version=t5x_lite.__version__)
  commands = top.add_subparsers(dest='command', metavar='COMMAND')

  def command(name, text):
    recipe = name in TAKES_RECIPE
    made = commands.add_parser(
      name,
      help=text,
      description=text[0].upper() + text[1:] + '.',
      epilog='for example:\n  ' + EXAMPLES[name],
      formatter_class=argparse.RawDescriptionHelpFormatter,
      allow_abbrev=False,
      usage=f't5x_lite {name} [options]'
      + (' [--gin.NAME.FIELD=VALUE ...]' if recipe else ''),
    )
    add = made.add_argument
    add('--debug', action='store_true', help='show the traceback of errors')
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
  add(
    '--dry_run',
    action='store_true',
    help='print the resolved recipe and the parameters only',
  )

  add(
    '--profile',
    type=window,
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

  add = command('evaluate', 'measures a model on held-out documents')
  add('--workdir', required=True, help='of the training run')
  add('--step', type=natural, help='checkpoint; default: the latest')

  add = command('infer', 'predicts a text for each line, greedily')
  add('--workdir', required=True, help='of the training run')
  add('--step', type=natural, help='checkpoint; default: the latest')
  add('--input', default='-', help='text file; default: stdin')
  add('--output', default='-', help='JSON lines; default: stdout')
  add('--length', type=positive, default=64, help='most tokens to predict')
  add('--batch_size', type=positive, default=32, help='lines at a time')
  add(
    '--candidates',
    type=positive,
    metavar='N',
    help='give the N likeliest fillings of each blank <extra_id_0>, ...',
  )

  add = command('recipes', 'lists the installed recipes')
  add('--json', action='store_true', help='as a JSON list')

  add = command('vocab', 'trains a SentencePiece vocabulary on a corpus')
  add('--output', required=True, help='the .model file to write')
  add('--size', type=positive, default=8000, help='pieces, sentinels included')
  add('--extra_ids', type=natural, default=100, help='sentinels among them')
  add('--kind', choices=('unigram', 'bpe'), default='unigram', help='algorithm')

  add = command('inspect', 'shows a batch as a person would read it')
  add('--rows', type=positive, default=2, help='how many examples')
  add('--position', type=natural, default=0, help='the first example')
  add('--split', choices=('train', 'validation'), default='train', help='split')
  return top, commands.choices


def parse(argv):
  """Options of a command line, with `bindings` from `--gin.X=value`."""
  top, commands = make_parser()
  bindings = [a[len('--gin.') :] for a in argv if a.startswith('--gin.')]
  rest = [a for a in argv if not a.startswith('--gin.')]
  if not rest:
    top.print_help()
    raise SystemExit(0)
  if rest[0] not in commands and not rest[0].startswith('-'):
    raise errors.ConfigError(
      'no such command',
      got=rest[0],
      expected=f'one of {", ".join(commands)}',
      choices=commands,
    )
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
  if unknown:
    raise errors.ConfigError(
      f'{options.command} has no such option',
      got=unknown[0].split('=')[0],
      choices=[
        name
        for action in commands[options.command]._actions  # pylint: disable=protected-access
        for name in action.option_strings
      ],
      fix=f't5x_lite {options.command} --help',
    )
  if bindings and options.command not in TAKES_RECIPE:
    raise errors.ConfigError(
      f'{options.command} takes no recipe: it reads the one in the workdir',
      got=f'--gin.{bindings[0]}',
    )
  options.bindings = bindings
  return options


def main(argv=None):
  """Runs a command and returns the exit code."""
  argv = sys.argv[1:] if argv is None else argv
  try:
    options = parse(argv)
    allocator.keep_freed_memory()
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')  # TensorFlow's chatter
    from t5x_lite import commands  # loads JAX

    code = getattr(commands, options.command)(options) or 0
    sys.stdout.flush()
    return code
  except Exception as e:
    # What reaches gs://, or reads TensorFlow datasets, has its own errors.
    remote = objects.is_fault(e) or type(e).__module__.startswith('tensorflow.')
    if not (remote or isinstance(e, (errors.UserError, OSError))):
      raise
    if isinstance(e, OSError) and sys.stdout is sys.__stdout__:
      # It may be the output that failed. Python would complain again at exit.
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(e, BrokenPipeError):
      return errors.NOT_READ
    if '--debug' in argv:
      raise
    notes = getattr(e, '__notes__', ())  # what else went wrong
    if remote or isinstance(e, OSError):
      e = errors.StorageError(
        'cannot read or write',
        where=getattr(e, 'filename', None),
        got=getattr(e, 'strerror', None) or ' '.join(str(e).split()),
      )
    print(f't5x_lite: {e}', *notes, sep='\n', file=sys.stderr)
    return e.exit_code
  except KeyboardInterrupt:
    print('t5x_lite: interrupted', file=sys.stderr)
    return errors.INTERRUPTED
