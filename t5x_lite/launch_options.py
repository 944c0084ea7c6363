"""Options of `launch`: where to start a command, and what became of it."""

from t5x_lite import errors
from t5x_lite import parsing
from t5x_lite import values

COMMANDS = 'train', 'evaluate', 'infer', 'export'  # that it starts
BACKENDS = {
  'tpu_vm': 'on TPU VMs of Google Cloud, by gcloud',
  'gke': 'on TPUs of a Kubernetes cluster, by kubectl',
  'slurm': 'on GPU nodes of a SLURM cluster, by sbatch',
}
VERBS = {
  'status': 'how a job is, or all that were launched here',
  'logs': 'what its processes printed',
  'watch': 'follow it to its end, and start it again where it must',
  'stop': 'let it save and end; what it ran on stays',
  'delete': 'delete what it ran on, so that it costs nothing',
}
EXAMPLES = {
  'local': """t5x_lite launch local --processes=2 --devices=4 \\
    train --corpus=my.txt --workdir=runs/mine""",
  'tpu_vm': """t5x_lite launch tpu_vm --config=v5e_256 \\
    --config.zone=us-west4-a -- \\
    train --gin_file=t5/1_1_xl --workdir=gs://bucket/runs/xl
The same command goes on with the job if this machine was lost.""",
  'gke': """t5x_lite launch gke --config=v5e_256 --config.gke.image=IMAGE \\
    -- train --gin_file=t5/1_1_xl --workdir=gs://bucket/runs/xl""",
  'slurm': """t5x_lite launch slurm --config=gpu_8 \\
    --config.slurm.partition=gpus -- \\
    train --gin_file=t5/1_1_large --workdir=/shared/runs/large""",
}


def make_parser():
  """(the parser of what comes before the command, {WHERE: its own})."""
  top = parsing.Parser(
    prog='t5x_lite launch',
    description='Starts a command in several processes, here or elsewhere.',
    epilog='t5x_lite launch WHERE --help shows its options.',
    allow_abbrev=False,
    formatter_class=parsing.Overview,
  )
  places = top.add_subparsers(dest='where', metavar='WHERE')

  def place(name, text, usage):
    usage = f't5x_lite launch {name} {usage}'
    made = parsing.add_command(places, name, text, usage, EXAMPLES.get(name))
    return made.add_argument

  add = place('local', 'on this machine, with CPU devices', '[options] COMMAND')
  number = dict(type=values.positive, metavar='N')
  add('--processes', **number, default=2, help='default: 2')
  add('--devices', **number, default=1, help='of each; default: 1')
  for name, text in BACKENDS.items():
    add = place(name, text, '--config=NAME [options] -- COMMAND')
    _add_config(add, required=True)
    add('--name', help="of the job; default: its workdir's")
    add('--dry_run', action='store_true', help='print what would be done only')
    add('--detach', action='store_true', help='leave once it is started')
  for name, text in VERBS.items():
    add = place(name, text, 'NAME [options]')
    add('name', metavar='NAME', nargs='?' if name == 'status' else None)
    add(
      '--backend',
      choices=BACKENDS,
      metavar='WHERE',
      help='of a job that another machine launched',
    )
    _add_config(add)
    if name == 'delete':
      add('--force', action='store_true', help='even while it runs')
  return top, places.choices


def _add_config(add, required=False):
  add(
    '--config',
    required=required,
    metavar='NAME',
    help='job spec, installed or a path; --config.FIELD=VALUE changes it',
  )


def no_command(where, got):
  return errors.ConfigError(
    'launch has no command to start',
    got=got,
    expected=f'one of {", ".join(COMMANDS)}',
    choices=COMMANDS,
    fix=f't5x_lite launch {where} --help',
  )


def parse(argv):
  """The options between `launch` and the command that it starts."""
  top, places = make_parser()
  bindings = [a for a in argv if a.startswith('--config.')]
  rest = [a for a in argv if not a.startswith('--config.')]
  for binding in bindings:
    if '=' not in binding:  # what follows would be taken for a command
      raise errors.ConfigError(
        'option has no value', got=binding, expected=f'{binding}=VALUE'
      )
  if not rest:
    top.print_help()
    raise SystemExit(0)
  if rest[0] not in places and not rest[0].startswith('-'):
    raise errors.ConfigError(
      'no such place to launch, and nothing to ask of a job',
      got=rest[0],
      expected=f'one of {", ".join(places)}',
      choices=places,
    )
  options, unknown = top.parse_known_args(rest)
  if options.where is None:
    top.error('no place before the options')
  if unknown and options.where in VERBS and not unknown[0].startswith('-'):
    raise errors.ConfigError(
      f'launch {options.where} takes one NAME', got=' '.join(unknown)
    )
  if unknown and not unknown[0].startswith('-'):
    raise no_command(options.where, unknown[0])
  if unknown:
    raise parsing.no_such_option(
      f'launch {options.where}', unknown[0], places[options.where]
    )
  if bindings and not hasattr(options, 'config'):
    raise errors.ConfigError(
      'launch local takes no job spec', got=bindings[0].split('=')[0]
    )
  options.command = 'launch'
  options.config_bindings = [a[len('--config.') :] for a in bindings]
  return options
