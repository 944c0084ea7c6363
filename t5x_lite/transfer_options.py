"""Options of `import`, `export` and `weights`."""

from t5x_lite import values

EXAMPLES = {
  'import': """t5x_lite import downloads/t5-v1_1-small --workdir=runs/t5
  t5x_lite import gs://bucket/t5x/checkpoint_1000000 --vocabulary=my.model \\
    --workdir=runs/t5x""",
  'export': """t5x_lite export --workdir=runs/mine --output=exports/mine
  t5x_lite export --workdir=runs/mine --step=best --format=stablehlo \\
    --dtype=bfloat16 --output=exports/served""",
  'weights': """t5x_lite weights downloads/t5-small --values
  t5x_lite weights --workdir=runs/mine --diff=runs/imported
The same is `t5x_lite inspect PATH`.""",
}


def add_import(add):
  """Adds those of `import`, by an argparse `add_argument`."""
  add('source', metavar='FOLDER', help='of Hugging Face or T5X, not a hub name')
  add('--workdir', required=True, help='a new folder')
  add(
    '--vocabulary',
    metavar='FILE',
    help="bytes, a .model or a tokenizer.json; default: the folder's own",
  )
  add(
    '--extra_ids',
    type=values.natural,
    metavar='N',
    help='sentinels to add; default: as it was trained',
  )
  add(
    '--special_token',
    action='append',
    type=values.special_token,
    default=[],
    metavar='ROLE=TOKEN',
    help='pad, eos, bos or start, if its files lack it',
  )
  add(
    '--step',
    type=values.natural,
    metavar='N',
    help='of several of T5X; default: latest',
  )
  add(
    '--torch_files',
    action='store_true',
    help='read pytorch_model.bin, too: its numbers alone, nothing in it is run',
  )


def add_weights(add):
  """Adds those of `weights`, by an argparse `add_argument`."""
  add('path', nargs='?', help='of weights, whoever wrote them')
  add('--workdir', metavar='FOLDER', help='of a run, instead')
  add('--step', type=values.step, help='of the run; default: latest')
  add('--diff', metavar='PATH', help='compare them with these')
  add('--values', action='store_true', help='read them: least, most, mean, rms')
  add(
    '--torch_files',
    action='store_true',
    help='open pytorch_model.bin, too; nothing in it is run',
  )


def add_export(add):
  """Adds those of `export`, by an argparse `add_argument`."""
  add('--workdir', required=True, help='of the run')
  add('--output', required=True, metavar='FOLDER', help='a new folder')
  add(
    '--format',
    choices=('huggingface', 'stablehlo'),
    default='huggingface',
    metavar='FORMAT',
    help='huggingface (the default) or stablehlo',
  )
  add('--step', type=values.step, help='checkpoint, or best; default: latest')
  add(
    '--dtype',
    choices=('float32', 'bfloat16'),
    default='float32',
    metavar='DTYPE',
    help='of the weights, float32 (the default) or bfloat16',
  )
  add(
    '--shard_size',
    type=values.size,
    default=5_000_000_000,
    metavar='BYTES',
    help='most of a file of weights, such as 500MB; default: 5GB',
  )
