"""The options by which the command line asks for a vocabulary."""

from t5x_lite import values

KINDS = ('unigram', 'bpe', 'byte_bpe', 'wordpiece')


def add(add):
  """Adds them to a command.

  Args:
    add: its `add_argument`.
  """
  add('--output', required=True, help='the .model or .json file to write')
  add(
    '--size',
    type=values.positive,
    default=8000,
    help='pieces, sentinels included',
  )
  add(
    '--extra_ids', type=values.natural, default=100, help='sentinels among them'
  )
  add(
    '--kind',
    choices=KINDS,
    default='unigram',
    metavar='KIND',
    help="unigram or bpe, SentencePiece's; or byte_bpe, GPT-2's, or wordpiece, "
    "BERT's, in a tokenizer.json; default: unigram",
  )
  add(
    '--max_sentences',
    type=values.positive,
    default=1_000_000,
    metavar='N',
    help='train on a sample of so many lines; default: a million',
  )
  add('--seed', type=values.natural, default=0, help='of that sample')
  add(
    '--no_byte_fallback',
    action='store_true',
    help='SentencePiece: characters without a piece are unknown, not bytes',
  )
  add(
    '--character_coverage',
    type=values.share,
    default=0.9995,
    metavar='SHARE',
    help='SentencePiece: of the characters that have pieces; default: 0.9995',
  )
  add(
    '--lowercase',
    action='store_true',
    help='WordPiece: small letters without accents only',
  )
