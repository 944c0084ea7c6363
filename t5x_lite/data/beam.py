"""Makes parts of a store on Apache Beam, where one machine is not enough.

Each element is a part of the corpus, made as a process of one machine makes it.
Who makes them must see the corpus and the folder of the store by the same paths
as who started it.
"""

from t5x_lite import errors
from t5x_lite.data import making


def runner(name, options):
  """What makes parts, as `workers.here`.

  Args:
    name: of a runner of Beam: DirectRunner, FlinkRunner, ...
    options: further words of the command line, for Beam.

  Raises:
    errors.ConfigError: Beam is not installed, or does not know one of them.
  """
  try:
    import apache_beam as beam
    from apache_beam.options import pipeline_options
    from apache_beam.runners import create_runner
  except ImportError as e:
    raise errors.ConfigError(
      '--beam_runner needs Apache Beam',
      got=str(e),
      fix="pip install apache-beam && pip install 'protobuf>=7.36' (Beam asks "
      'for an older one, and runs with this)',
    ) from e
  try:
    create_runner(name)
  except (ValueError, ImportError) as e:
    raise errors.ConfigError(
      'Beam has no such runner',
      where='--beam_runner',
      got=f'{name} ({e})',
    ) from e
  settings = pipeline_options.PipelineOptions([f'--runner={name}', *options])
  _, unknown = _parser(pipeline_options).parse_known_args([*options])
  if unknown:
    raise errors.ConfigError(
      'no such option, of t5x_lite or of Beam', got=unknown[0]
    )

  def run(job, todo, told):
    try:
      with beam.Pipeline(options=settings) as pipeline:
        _ = (
          pipeline
          | beam.Create(todo, reshuffle=True)
          | beam.MapTuple(lambda number, part: making.make(job, number, part))
        )
    except Exception as e:  # Beam wraps what a part raises
      raise _own(e) from e
    for number, part in todo:
      told(number, 0, part.bytes, True)

  return run


def _parser(pipeline_options):
  """A parser of all that Beam's options are."""
  parser = pipeline_options._BeamArgumentParser(allow_abbrev=False)  # pylint: disable=protected-access
  for kind in pipeline_options.PipelineOptions.__subclasses__():
    if add := kind.__dict__.get('_add_argparse_args'):
      add.__func__(kind, parser)
  return parser


def _own(error):
  """What an error of Beam stands for, which may be of another machine."""
  cause = error
  while cause is not None and not isinstance(cause, errors.UserError):
    cause = cause.__cause__
  if cause is not None:
    return cause
  lines = [line.strip() for line in str(error).splitlines() if line.strip()]
  told = [line for line in lines if line.startswith('t5x_lite.errors.')]
  return errors.DeviceError(
    'a part was not made on Beam',
    got=(told or lines or [type(error).__name__])[-1],
  )
