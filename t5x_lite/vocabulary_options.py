"""The options by which the command line asks for a vocabulary."""

from t5x_lite import values

KINDS = ('unigram', 'bpe', 'byte_bpe', 'wordpiece')


def add(add):
  """Adds them to a command.

  Args:
    add: its `add_argument`.
  """
  add('--output', required=True, help='.model, tokenizer.json, or its folder')
  add('--convert', metavar='FILE', help='take this vocabulary; no corpus')
  number = dict(type=values.positive, metavar='N')
  natural = dict(type=values.natural, metavar='N')
  add('--size', **number, default=8000, help='pieces, sentinels included')
  add('--extra_ids', **natural, default=100, help='sentinels among them')
  add(
    '--kind',
    choices=KINDS,
    default='unigram',
    metavar='KIND',
    help=', '.join(KINDS),
  )
  add('--max_sentences', **number, default=1_000_000, help='a sample of lines')
  add('--seed', **natural, default=0, help='of that sample')
  add(
    '--no_byte_fallback',
    action='store_true',
    help='unigram, bpe: rare letters are unknown',
  )
  add(
    '--character_coverage',
    type=values.share,
    default=0.9995,
    metavar='SHARE',
    help='unigram, bpe: letters with pieces',
  )
  add(
    '--lowercase',
    action='store_true',
    help='wordpiece: no capitals or accents',
  )
