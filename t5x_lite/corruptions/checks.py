"""What any objective asks of Data.lengths and of the vocabulary."""

from t5x_lite import errors


def names(objective, lengths, needed, known):
  """Refuses lengths that lack a feature, or have one too many.

  Args:
    objective: its spec.
    lengths: tokens of each feature, as `Data.lengths`.
    needed: features that must have a length.
    known: features that may have one.
  """
  kind = type(objective).__name__
  example = '{' + ', '.join(f"'{name}': n" for name in needed) + '}'
  for name in needed:
    if name not in lengths:
      raise errors.ConfigError(
        f"Data.lengths has no '{name}', which {kind} needs",
        got=f'{lengths}',
        expected=example,
      )
  for name in lengths:
    if name not in known:
      raise errors.ConfigError(
        f'Data.lengths names a feature that {kind} does not have',
        got=name,
        choices=known,
        fix=f'--gin.Data.lengths="{example}"' if len(known) == 1 else None,
      )


def inputs(objective, lengths, text, least):
  """Refuses inputs that hold too little text.

  Args:
    objective: its spec.
    lengths: tokens of each feature.
    text: tokens of text that fill them.
    least: of which an example can be made.
  """
  if text < least:
    raise errors.ConfigError(
      f"Data.lengths['inputs'] is too short for {type(objective).__name__}",
      got=lengths['inputs'],
      expected='3 or more',
    )


def targets(objective, lengths, needed):
  """Refuses targets that some example would not fit in."""
  if lengths['targets'] < needed:
    raise errors.ConfigError(
      f"Data.lengths['targets'] is too short for {type(objective).__name__}",
      got=lengths['targets'],
      expected=f'{needed} or more for {lengths["inputs"]} inputs',
      fix='leave it out: it is then as long as it has to be',
    )


def end(vocabulary):
  """Refuses a vocabulary that can't say that a text ends."""
  if vocabulary.eos_id < 0:
    raise errors.ConfigError(
      'the vocabulary has no end-of-sequence piece',
      where='Data.vocabulary',
      fix='train one with `t5x_lite vocab`',
    )
