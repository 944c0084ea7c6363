"""The model card of an export: what it is, and how to load it."""

import t5x_lite
from t5x_lite import evaluate
from t5x_lite import models
from t5x_lite import record as records
from t5x_lite import specs

NAME = 'README.md'
_GENERATE = 'print(tokenizer.batch_decode(model.generate(**inputs)))'
_ENCODE = 'print(model(**inputs).last_hidden_state)'


def text(run, step, fingerprint, metrics, dtype, class_name, notes):
  """A model card in Markdown.

  Args:
    run: specs.Run.
    step: of the checkpoint.
    fingerprint: of the data, or '' where it is not known.
    metrics: {name: metrics} that were measured of the step.
    dtype: of the weights.
    class_name: of transformers that loads it; None for StableHLO.
    notes: sentences about the vocabulary.
  """
  count = models.build(run.model).num_params
  parts = [
    '---\nlibrary_name: '
    + ('transformers' if class_name else 't5x_lite')
    + '\n---\n\n# A Transformer pretrained with t5x_lite',
    f'{count:,} parameters in {dtype}, after {step:,} steps of '
    f'{type(run.objective).__name__}.',
    '## Load it',
    _loading(run, class_name),
    *(
      ['## Vocabulary', '\n'.join(f'- {note}.' for note in notes)] * bool(notes)
    ),
    '## Measured',
    _measured(metrics),
    '## Data',
    f'Learned from: {_source(run.data)}. Fingerprint of corpus, vocabulary and '
    f'preprocessing: `{fingerprint or "not known"}`.',
    '## Recipe',
    'All settings, as t5x_lite '
    f'{t5x_lite.__version__} recorded them:\n\n```json\n'
    + records.to_json(records.record(run))
    + '```',
  ]
  return '\n\n'.join(parts) + '\n'


def _source(data):
  if data.corpus == specs.IMPORTED:
    return 'weights that were imported'
  if isinstance(data.mixture, specs.Mixture):
    return ', '.join(f'`{name}`' for name in data.mixture.parts)
  return f'`{data.corpus or data.task or data.mixture}`'


def _measured(metrics):
  rows = [
    f'| {name} | {metric} | {value:.4g} |'
    for name, found in metrics.items()
    for metric, value in found.items()
    if evaluate.is_number(value)
  ]
  if not rows:
    return 'Nothing was measured at this step.'
  return '\n'.join(['| on | metric | value |', '| --- | --- | --- |', *rows])


def _code(*lines):
  return '```python\n' + '\n'.join(lines) + '\n```'


def _loading(run, class_name):
  """Three lines for each way there is."""
  prompt = 'a text' if run.model.encoder_layers else 'A text that'
  if class_name is None:
    return (
      'With jax, numpy and safetensors alone; `stablehlo.json` says what the '
      'programs take.\n\n'
    ) + _code(
      'import serve  # from this folder',
      "model = serve.Model('.')",
      'print(model.greedy([[7, 8, 9]], length=32))  # token ids',
    )
  auto, last = 'AutoModelForSeq2SeqLM', _GENERATE
  if not run.model.encoder_layers:
    auto = 'AutoModelForCausalLM'
  if not run.model.decoder_layers:
    auto, last = 'AutoModelForTextEncoding', _ENCODE
  return '\n\n'.join(
    [
      f'With transformers (`{class_name}`):',
      _code(
        f'from transformers import AutoTokenizer, {auto}',
        "tokenizer = AutoTokenizer.from_pretrained('.')",
        f"model = {auto}.from_pretrained('.')",
        f"inputs = tokenizer(['{prompt}'], return_tensors='pt')",
        last,
      ),
      'With JAX, by t5x_lite:',
      '```sh\n'
      't5x_lite import . --workdir=../imported\n'
      f"echo '{prompt}' | t5x_lite infer --workdir=../imported\n"
      '```',
      'As StableHLO, for servers that have JAX alone: import it as above, then '
      '`t5x_lite export --workdir=../imported --format=stablehlo '
      '--output=../served`.',
    ]
  )
