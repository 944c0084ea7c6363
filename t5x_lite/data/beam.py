"""Makes parts of a store on Apache Beam, where one machine is not enough.

Each element is a part of the corpus, made as a process of one machine makes it.
What makes them must see the corpus and the folder of the store by the same
paths.
"""

from t5x_lite import errors
from t5x_lite.data import making


def runner(name, options):
  """What makes parts, as `workers.here`.

  Args:
    name: of a runner of Beam: DirectRunner, FlinkRunner, ...
    options: further words of the command line, for Beam.

  Raises:
    errors.ConfigError: Beam is not installed, or does not know the runner.
  """
  try:
    import apache_beam as beam
    from apache_beam.options import pipeline_options
  except ImportError as e:
    raise errors.ConfigError(
      '--beam_runner needs Apache Beam',
      got=str(e),
      fix="pip install 't5x_lite[beam]'",
    ) from e
  settings = pipeline_options.PipelineOptions([*options, f'--runner={name}'])
  known = settings.get_all_options(drop_default=True)
  wrong = [
    x for x in options if x[:2] == '--' and x[2:].split('=')[0] not in known
  ]
  if wrong:
    raise errors.ConfigError(
      'no such option, of t5x_lite or of Beam', got=wrong[0]
    )

  def run(job, todo, told):
    with beam.Pipeline(options=settings) as pipeline:
      _ = (
        pipeline
        | beam.Create(todo, reshuffle=True)
        | beam.MapTuple(lambda number, part: making.make(job, number, part))
      )
    for number, part in todo:
      told(number, 0, part.bytes, True)

  return run
