"""The families of models at Hugging Face that are read and written."""

from t5x_lite import errors
from t5x_lite.interop.families import gpt
from t5x_lite.interop.families import llama
from t5x_lite.interop.families import marian
from t5x_lite.interop.families import t5

FAMILIES = (
  t5.T5,
  t5.ENCODER,
  gpt.GPT,
  gpt.GPT2,
  gpt.GPT_NEO,
  llama.LLAMA,
  marian.MARIAN,
)


def of_config(config, where):
  """The Family of a config.json: of its architectures, or of its model_type.

  Raises:
    CheckpointError: it is of none.
  """
  kinds = {kind for family in FAMILIES for kind in family.classes}
  kind, named = config.get('model_type'), config.get('architectures')
  if not isinstance(kind, str) or kind not in kinds:
    raise errors.CheckpointError(
      'kind of model is not supported',
      where=where,
      got=repr(kind),
      expected=f'a model_type of {", ".join(sorted(kinds))}',
      choices=kinds,
    )
  found = [family for family in FAMILIES if kind in family.classes]
  named = named if isinstance(named, list) else []
  return next((x for x in found if x.classes[kind] in named), found[0])


def of_spec(spec):
  """(Family, config.json) of a specs.Transformer.

  Raises:
    ConfigError: no family computes what it does.
  """
  found = []
  for family in FAMILIES:
    config, differing = family.config(spec)
    if not differing:
      return family, config
    other = not isinstance(spec.position, family.position)
    far = other, config is None, len(differing)
    found.append((far, family.title, differing))
  _, title, differing = min(found)
  raise errors.ConfigError(
    'no model of Hugging Face computes what this one does',
    got=f'nearest is {title}, which has other {", ".join(differing)}',
    fix='--format=stablehlo exports any model',
  )
