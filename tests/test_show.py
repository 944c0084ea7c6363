"""A batch as a person reads it."""

import io

import numpy as np
from rich import console as rich_console

from t5x_lite import show
from t5x_lite.data import vocabularies

VOCABULARY = vocabularies.Bytes(extra_ids=20)


def encode(text, length):
  """(tokens of a text and its end, padded; how many they are)."""
  ids = [*VOCABULARY.encode(text, sentinels=True), VOCABULARY.eos_id]
  return np.array(ids + [0] * (length - len(ids)), np.int32), len(ids)


def make_batch(examples, inputs=40, targets=24):
  """The batch contract of (input, target) texts."""
  rows = {}
  for side, length, texts in zip(
    ('encoder', 'decoder'),
    (inputs, targets),
    zip(*examples, strict=True),
    strict=True,
  ):
    tokens, counts = zip(*(encode(t, length) for t in texts), strict=True)
    places = np.arange(length)[None]
    valid = places < np.array(counts)[:, None]
    name = 'input' if side == 'encoder' else 'target'
    rows[f'{side}_{name}_tokens'] = np.stack(tokens)
    rows[f'{side}_segment_ids'] = valid.astype(np.int32)
    rows[f'{side}_positions'] = (places * valid).astype(np.int32)
  rows['decoder_loss_weights'] = rows['decoder_segment_ids'].astype(np.float32)
  return rows


def shown(batch, **options):
  out = io.StringIO()
  console = rich_console.Console(
    file=out, width=80, highlight=False, soft_wrap=True, **options
  )
  show.batch(batch, VOCABULARY, console)
  return out.getvalue()


EXAMPLES = [
  ('Thank you <extra_id_0> me [bold]x', '<extra_id_0> for inviting'),
  ('déjà vu', '<extra_id_0>x<extra_id_1>y'),
]


def test_texts_sentinels_segments_and_padding():
  said = shown(make_batch(EXAMPLES))
  first, second = said.split('example 1')
  lines = [' '.join(line.split()) for line in first.splitlines()]
  # Text that looks like markup stays as it is.
  assert 'Thank you <extra_id_0> me [bold]x </s>' in lines
  assert '<extra_id_0> for inviting </s>' in lines
  assert 'encoder_input_tokens int32[40]' in lines
  tokens, count = encode(EXAMPLES[0][0], 40)
  assert f'and {40 - count} of padding' in lines
  assert f'1 x {count} 0 x {40 - count}' in lines
  assert f'0 to {count - 1}' in lines
  assert 'decoder_loss_weights float32[24]' in lines
  lines = [' '.join(line.split()) for line in second.splitlines()]
  assert 'déjà vu </s>' in lines
  assert '<extra_id_0> x <extra_id_1> y </s>' in lines


def test_every_feature_is_shown_and_a_full_row_has_no_padding():
  batch = make_batch([('a' * 39, 'b' * 23)])
  said = shown(batch)
  assert all(name in said for name in batch)
  assert 'padding' not in said


def test_colours_tell_sentinels_and_what_costs_no_loss():
  batch = make_batch([('seen', '<extra_id_0>hidden<extra_id_1>open')])
  batch['decoder_loss_weights'][0, :7] = 0
  said = shown(batch, force_terminal=True, color_system='standard')
  assert '\x1b[1;31m <extra_id_0> \x1b[0m' in said
  assert '\x1b[2mhidden\x1b[0m' in said
  assert '\x1b[2mopen' not in said
  assert 'open' in said


def test_text_can_not_command_the_terminal():
  said = shown(make_batch([('a\x1b[2Jb\x07\tc\nd', 'e')]))
  assert '\x1b' not in said and '\x07' not in said
  assert 'c\nd </s>' in said


def test_spans():
  assert show.spans([1, 1, 2, 0, 0, 0]) == '1 x 2  2 x 1  0 x 3'
  assert show.spans(np.array([], np.int32)) == ''


def test_table(capsys):
  show.table([('name', 'count'), ('a', '1,000'), ('longer', '7')])
  assert capsys.readouterr().out.splitlines() == [
    'name    count',
    'a       1,000',
    'longer      7',
  ]
