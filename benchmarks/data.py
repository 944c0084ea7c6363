"""Tokens of text that one core makes ready for training, by turns.

Ours from the store and from text, SeqIO's span corruption from its cache and
from text, the algorithm of Hugging Face's T5 collator, and the tokenizer alone:
the same documents and vocabulary for each, in a folder that they share.
"""

import argparse
import functools
import itertools
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

import turns

HERE = pathlib.Path(__file__).resolve().parent
LENGTH = 512  # tokens of a row
CHARACTERS = 2000  # of a document, at least: about C4's mean
VOCABULARY, SENTINELS = 8192, 100
PART = 2 << 20  # characters, of the part that is tokenised again and again
CHIPS, CHIP_SPEED = 4, 20_000  # tokens/s
TURN = 0.5  # CPU seconds
BATCHES = {  # name: (objective, batch size)
  'ours, 8': ('SpanCorruption', 8),
  'ours, 32': ('SpanCorruption', 32),
  'ours, 128': ('SpanCorruption', 128),
  'ours, prefix LM, 128': ('PrefixLM', 128),
  'ours, causal LM, 128': ('CausalLM', 128),
}
SEQIO = {'SeqIO cached, 32': 'cached', 'SeqIO from text, 32': 'text'}
COLLATOR, TEXT, TOKENIZER = 'collator, 32', 'ours from text', 'tokenizer alone'
CONTENDERS = [*BATCHES, *SEQIO, COLLATOR, TEXT, TOKENIZER]
AGAINST = 'SeqIO cached, 32'


def spec(corpus, **changes):
  """specs.Data of a corpus."""
  from t5x_lite import specs

  fields = dict(corpus=str(corpus), lengths={'inputs': LENGTH}, held_out=0.0)
  return specs.Data(**fields | changes)


def prepare(folder, corpus):
  """Writes documents, a line each, and a vocabulary, unless they are there."""
  from t5x_lite import data
  from t5x_lite.data import vocabulary_training

  if (folder / 'vocabulary.model').exists():
    return
  documents, held, size = [], [], 0
  for _, text in data.documents(spec(corpus)):
    held.append(' '.join(text.split()))
    size += len(held[-1])
    if size >= CHARACTERS:
      documents.append(' '.join(held) + '\n')
      held, size = [], 0
  part = PART // (sum(map(len, documents)) // len(documents))
  for name, lines in (
    ('documents.txt', documents),
    ('part.txt', documents[:part]),
  ):
    (folder / name).write_text(''.join(lines), encoding='utf-8')
  print('training a vocabulary', file=sys.stderr)
  vocabulary_training.train(
    documents[:: -(-len(documents) // part)],
    VOCABULARY,
    folder / 'vocabulary.model',
    extra_ids=SENTINELS,
  )
  print(
    f'{len(documents):,} documents, {sum(map(len, documents)):,} characters'
  )


# -- contenders ---------------------------------------------------------------


def make_run(folder, corpus, store, objective='SpanCorruption'):
  """A specs.Run of a stack that suits the objective, and its vocabulary."""
  from t5x_lite import data
  from t5x_lite import specs

  causal = objective == 'CausalLM'
  run = specs.Run(
    model=specs.Transformer(
      vocab_size=VOCABULARY,
      encoder_layers=0 if causal else 1,
      decoder_layers=1,
      embed_dim=64,
      mlp_dim=64,
      num_heads=1,
      head_dim=64,
    ),
    objective=getattr(specs, objective)(),
    data=spec(
      folder / corpus,
      lengths={'targets' if causal else 'inputs': LENGTH},
      document='line',
      vocabulary=str(folder / 'vocabulary.model'),
      store=str(folder / store),
    ),
    optimizer=specs.AdamW(schedule=specs.Schedule(peak=1e-3)),
    steps=1,
    batch_size=1,
  )
  return run, data.load_vocabulary(run.data)


def from_store(folder, objective, size):
  """Serves batches as `train` reads them."""
  from t5x_lite import data

  run, vocabulary = make_run(folder, 'documents.txt', 'store', objective)
  store = data.open_or_build(run.data, vocabulary)
  batches = data.Batches(
    run, dict.fromkeys(data.parts(run), store), vocabulary, 'train'
  )
  turns.serve_batches(
    (batches.at(position, size) for position in itertools.count(0, size)),
    functools.partial(turns.text_tokens, VOCABULARY - SENTINELS),
  )


def from_text(folder):
  """Serves epochs: a store made of text, and each of its examples once."""
  from t5x_lite import data

  def epochs():
    run, vocabulary = make_run(folder, 'part.txt', 'again')
    while True:
      shutil.rmtree(folder / 'again', ignore_errors=True)
      store = data.open_or_build(run.data, vocabulary)
      batches = data.Batches(
        run, dict.fromkeys(data.parts(run), store), vocabulary, 'train'
      )
      for position in range(0, batches.num_rows, 128):
        batches.at(position, min(128, batches.num_rows - position))
      yield store.split('train').num_tokens

  turns.serve_batches(epochs(), int, 'tokenised, stored, and read once', 1)


def tokenizer(folder):
  """Serves rows of tokens of 100 documents."""
  _, vocabulary = make_run(folder, 'part.txt', 'again')
  with open(folder / 'part.txt', encoding='utf-8') as f:
    documents = list(f)
  parts = [documents[at : at + 100] for at in range(0, len(documents), 100)]
  turns.serve_batches(
    map(vocabulary.encode_batch, itertools.cycle(parts)),
    lambda rows: sum(map(len, rows)),
    'SentencePiece',
    len(parts),
  )


def collator(folder, size=32):
  """Serves batches of the collator, of rows that lie in memory."""
  import collator as lib
  import numpy as np

  from t5x_lite import data
  from t5x_lite import specs
  from t5x_lite.corruptions import spans

  run, vocabulary = make_run(folder, 'documents.txt', 'store')
  tokens = data.open_or_build(run.data, vocabulary).split('train')
  width = spans.raw_length(specs.SpanCorruption(), {'inputs': LENGTH})
  text = tokens.rows([0], tokens.num_tokens // width * width)
  rows = text.reshape(-1, width)
  rng = np.random.default_rng(0)

  def batches():
    while True:
      order = rng.permutation(len(rows))
      for at in range(0, len(order) - size + 1, size):
        yield lib.collate(
          rng,
          [{'input_ids': rows[i]} for i in order[at : at + size]],
          density=0.15,
          mean_span=3.0,
          size=VOCABULARY,
          pad_id=vocabulary.pad_id,
          eos_id=vocabulary.eos_id,
        )

  note = 'algorithm of FlaxDataCollatorForT5MLM, rows in memory'
  turns.serve_batches(batches(), lambda _: size * width, note)


def serve(folder, name):
  """What a contender's process of ours does."""
  if name in BATCHES:
    from_store(folder, *BATCHES[name])
  else:
    {COLLATOR: collator, TEXT: from_text, TOKENIZER: tokenizer}[name](folder)


# -- the table ----------------------------------------------------------------


def command(name, folder, python):
  """How to start a contender; None if its library is not there."""
  if name not in SEQIO:
    return [sys.executable, __file__, '--scratch', folder, '--serve', name]
  found = subprocess.run(
    [python, '-c', 'import seqio'], stderr=subprocess.DEVNULL
  )
  if found.returncode:
    print(f'{name}: left out, {python} has no seqio (--python names another)')
    return None
  return [python, HERE / 'seqio_spans.py', folder, SEQIO[name], '32']


def show(contenders):
  """Prints speeds, ratios within a round, and what chips need."""
  speeds = {c.name: turns.speeds(c) for c in contenders}
  base = speeds.get(AGAINST)
  print(f'{"":22} {"Mtok/CPU-s":>10} {"least-most":>13}   / {AGAINST}')
  for contender in contenders:
    own = speeds[contender.name]
    ratio = ''
    if base:
      each = [a / b for a, b in zip(own, base)]
      middle = statistics.median(each)
      ratio = f'{middle:6.2f} ({min(each):.2f}-{max(each):.2f})'
    print(
      f'{contender.name:22} {statistics.median(own) / 1e6:10.2f}'
      f' {min(own) / 1e6:6.2f}-{max(own) / 1e6:6.2f}   {ratio:20}'
      f' {contender.about["note"]}'
    )
  need = CHIPS * CHIP_SPEED
  for name in BATCHES:
    if name in speeds:
      share = need / statistics.median(speeds[name])
      print(
        f'{CHIPS} chips of {CHIP_SPEED:,} tokens/s take {share:.2%} of a core'
        f' ({name})'
      )


def main():
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument(
    '--corpus', default='shakespeare', help='as Data.corpus; 30 MB is better'
  )
  parser.add_argument(
    '--scratch', help='folder to keep what is made; default: a temporary one'
  )
  parser.add_argument('--cores', default='0', help='processors, such as 0')
  parser.add_argument('--rounds', type=int, default=7)
  parser.add_argument(
    '--python', default=sys.executable, help='that has seqio, and t5'
  )
  parser.add_argument(
    '--contenders', nargs='+', choices=CONTENDERS, default=CONTENDERS
  )
  parser.add_argument('--serve', choices=CONTENDERS, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.serve:
    return serve(pathlib.Path(args.scratch), args.serve)
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(args.scratch or temporary).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    prepare(folder, args.corpus)
    cores = [int(core) for core in args.cores.split(',')]
    contenders = []
    try:
      for name in args.contenders:
        if words := command(name, folder, args.python):
          words = list(map(str, words))
          contenders.append(turns.Contender(name, words, cores))
          print(f'{name} is ready', file=sys.stderr)
      for n in range(args.rounds):
        first = n % len(contenders)
        for contender in contenders[first:] + contenders[:first]:
          contender.turn(max(1, round(TURN / contender.about['took'])))
    finally:
      for contender in contenders:
        contender.stop()
    return show(contenders)


if __name__ == '__main__':
  main()
