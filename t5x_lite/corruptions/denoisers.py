"""UL2's mixture of denoisers: each example by one of several objectives.

All members share the shape of a row, and all take texts of one length, the most
that fits whichever member is drawn: what an example reads does not depend on
its draw. So a member that leaves room in the row leaves padding. A member's
mode is text, as it is in the published checkpoints, and its tokens stand before
the inputs.
"""

import functools

import numpy as np

from t5x_lite import errors
from t5x_lite import specs
from t5x_lite.corruptions import checks
from t5x_lite.corruptions import prefix
from t5x_lite.corruptions import random_bits
from t5x_lite.corruptions import spans

MEMBERS = {specs.SpanCorruption: spans, specs.PrefixLM: prefix}
MIN_LENGTH = max(module.MIN_LENGTH for module in MEMBERS.values())
ENDS_DOCUMENTS = False


@functools.lru_cache(maxsize=64)  # asked for with each batch
def _mode(text, vocabulary):
  return tuple(vocabulary.encode(text))


def _members(objective, lengths, vocabulary):
  """(module, spec, mode ids, lengths that are left) of each member."""
  for member in objective.members:
    mode = _mode(member.mode, vocabulary)
    left = lengths | {'inputs': lengths['inputs'] - len(mode)}
    module = MEMBERS[type(member.objective)]
    yield module, member.objective, mode, left


def check(objective, lengths, vocabulary):
  """Refuses what can't be trained."""
  both = ['inputs', 'targets']
  checks.names(objective, lengths, both, both)
  members = list(_members(objective, lengths, vocabulary))
  longest = max(len(mode) for _, _, mode, _ in members)
  length = raw_length(objective, lengths, vocabulary)
  if length < MIN_LENGTH:
    raise errors.ConfigError(
      "Data.lengths['inputs'] is too short for Denoisers",
      got=lengths['inputs'],
      expected=f'{longest + 3} or more, {longest} of them a mode',
    )
  needed = max(
    module.targets_length(spec, length) for module, spec, _, _ in members
  )
  if lengths['targets'] < needed:
    raise errors.ConfigError(
      "Data.lengths['targets'] is too short for Denoisers",
      got=lengths['targets'],
      expected=f'{needed} or more for {lengths["inputs"]} inputs',
      fix=f'--gin.Data.lengths="{lengths | {"targets": needed}}"',
    )
  for n, (module, spec, _, left) in enumerate(members):
    try:
      module.check(spec, left, vocabulary, length)
    except errors.ConfigError as e:
      raise e.at(f'Denoisers.members[{n}]') from None


def raw_length(objective, lengths, vocabulary):
  """Tokens of text that make one example, whichever member is drawn."""
  return min(
    module.raw_length(spec, left, vocabulary)
    for module, spec, _, left in _members(objective, lengths, vocabulary)
  )


def feature_lengths(objective, lengths):
  """The lengths of inputs and targets, both of which are given."""
  del objective
  return dict(lengths)


def sizes(objective, lengths_J, vocabulary):
  """Most tokens that texts become, whichever member is drawn."""
  found = []
  for member in objective.members:
    module = MEMBERS[type(member.objective)]
    size_J3 = module.sizes(member.objective, lengths_J, vocabulary)
    mode = len(_mode(member.mode, vocabulary))
    found.append(size_J3 + np.array([mode, 0, mode]))
  return np.max(found, axis=0)


def joint_length(objective, lengths):
  """Most tokens of inputs and targets together."""
  del objective
  return lengths['inputs'] + lengths['targets']


def choose(objective, draw):
  """Which member each row gets, int [B], with probabilities by the rates."""
  ends = np.cumsum([member.rate for member in objective.members])
  share_B = random_bits.uniform(draw(2), 1 << 53) * 2.0**-53  # in [0, 1)
  return np.searchsorted(ends / ends[-1], share_B, side='right')


def examples(objective, tokens_BL, lengths_B, draw, vocabulary, lengths):
  """Rows of each member in its places; see `corruptions`."""
  rows = len(tokens_BL)
  inputs_BL, targets_BK = (
    np.full((rows, lengths[name]), vocabulary.pad_id, np.int32)
    for name in ('inputs', 'targets')
  )
  inputs_B, targets_B = np.zeros((2, rows), int)
  member_B = choose(objective, draw)
  members = _members(objective, lengths, vocabulary)
  for n, (module, spec, mode, left) in enumerate(members):
    [own] = np.nonzero(member_B == n)
    if len(own):
      inputs, inputs_B[own], targets_BK[own], targets_B[own] = module.examples(
        spec,
        tokens_BL[own],
        lengths_B[own],
        draw.rows(own, 'member'),
        vocabulary,
        left,
      )
      inputs_BL[own, : len(mode)] = mode
      inputs_BL[own, len(mode) :] = inputs
      inputs_B[own] += len(mode)
  return inputs_BL, inputs_B, targets_BK, targets_B
