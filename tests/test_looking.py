"""Figures of data, exact on small data, and how they are shown."""

import io
import json

import numpy as np
import pytest
from rich import console as rich_console

from t5x_lite import data
from t5x_lite import errors
from t5x_lite import fit
from t5x_lite import looking
from t5x_lite import portrait
from t5x_lite import specs
from t5x_lite.data import store as stores_lib
from t5x_lite.data import vocabularies
from tests import tiny

VOCABULARY = vocabularies.Bytes(20)
# Lengths with EOS: inputs 4 4 4 9 2, targets 2 2 3 2 2.
PAIRS = [
  ('abc', 'x'),
  ('abc', 'x'),
  ('abc', 'yy'),
  ('abcdefgh', 'x'),
  ('q', 'z'),
]


def write_pairs(file, pairs):
  file.write_text(
    '\n'.join(json.dumps({'inputs': x, 'targets': y}) for x, y in pairs)
  )
  return str(file)


def a_run(lone=False, objective=None, **fields):
  layers = {'encoder_layers': 0, 'mask': 'prefix'} if lone else {}
  return tiny.run(
    model=tiny.transformer(vocab_size=384, **layers),
    objective=objective or specs.Supervised(),
    data=specs.Data(**{'held_out': 0.0, 'extra_ids': 20} | fields),
  )


def look(run, split='train', position=0, wanted=10_000):
  stores = fit.open_stores(run, VOCABULARY, lambda line: None)
  batches = data.Batches(run, stores, VOCABULARY, split)
  found = looking.of_run(
    run, stores, batches, VOCABULARY, split, position, wanted
  )
  json.dumps(found)  # nothing that is no JSON
  return found, batches, stores


def shown(figures):
  out = io.StringIO()
  console = rich_console.Console(
    file=out, width=80, highlight=False, soft_wrap=True
  )
  portrait.tell(figures, console)
  return out.getvalue()


@pytest.mark.parametrize('count, wanted', [(5, 10), (1000, 256), (301, 300)])
def test_a_sample_is_spread_and_without_overlap(count, wanted):
  blocks = list(looking.sample(count, wanted))
  found = [n for first, last in blocks for n in range(first, last)]
  assert len(found) == len(set(found)) == min(count, wanted)
  assert sorted(found) == found and 0 <= found[0] <= found[-1] < count
  if count > 2 * wanted:
    assert (
      np.diff([first for first, _ in blocks]).min() > count / len(blocks) / 2
    )


def test_a_sample_of_very_many_costs_no_more():
  blocks = list(looking.sample(10**15, 1000))
  assert len(blocks) == 8 and blocks[-1][0] > 8 * 10**14


def test_histogram():
  lengths = np.array([0, 1, 1, 5, 9])
  found = looking.histogram(lengths)
  assert found == {
    'starts': list(range(10)),
    'counts': [1, 2, 0, 0, 0, 1, 0, 0, 0, 1],
  }
  lengths = np.append(np.arange(1000), 10**9)
  found = looking.histogram(lengths)
  assert found['starts'] == list(range(0, 1001, 100))
  assert found['counts'] == [100] * 10 + [1]
  assert portrait.names(found)[0] == '0-99'
  assert portrait.names(found)[-1] == 'from 1,000'


@pytest.mark.parametrize('lone', [False, True])
def test_figures_of_pairs_are_exact(tmp_path, lone):
  path = write_pairs(tmp_path / 'p.jsonl', PAIRS)
  run = a_run(lone, corpus=path, lengths={'inputs': 6, 'targets': 3})
  found, _, _ = look(run)
  part = found['parts'][path]
  assert part['kind'] == 'pairs'
  assert part['count'] == part['looked_at'] == 5
  assert part['tokens'] == 23 + 11 and part['unknown'] == 0
  # The second is the first again; two more have inputs that were there.
  assert part['copies'] == {
    'pairs': pytest.approx(1 / 5),
    'inputs': pytest.approx(2 / 5),
  }
  inputs, targets = part['lengths'].values()
  assert (inputs['shortest'], inputs['longest']) == (2, 9)
  assert inputs['mean'] == pytest.approx(23 / 5)
  assert (inputs['limit'], inputs['longer']) == (6, pytest.approx(1 / 5))
  assert (targets['limit'], targets['longer']) == (3, 0)
  rows = part['rows']
  assert rows == found['rows'] and rows['rows'] == 5
  assert rows['examples_per_row'] == 1
  kept = 4 + 4 + 4 + 6 + 2
  if lone:
    padding = {'decoder': pytest.approx(1 - (kept + 11) / 45)}
    fuller = (kept + 11) / 45
  else:
    padding = {
      'encoder': pytest.approx(1 - kept / 30),
      'decoder': pytest.approx(1 - 11 / 15),
    }
    fuller = (2 / 3 + 2 / 3 + 1 + 1 + 2 / 3) / 5
  assert rows['padding'] == padding
  assert rows['padding_of_fuller_stack'] == pytest.approx(1 - fuller)


@pytest.mark.parametrize('lone', [False, True])
def test_packed_rows_are_counted_as_they_are(tmp_path, lone):
  pairs = [(f'{n:03d}' * (1 + n % 3), 'y' * (1 + n % 5)) for n in range(200)]
  path = write_pairs(tmp_path / 'p.jsonl', pairs)
  lengths = {'inputs': 24, 'targets': 16}
  run = a_run(lone, corpus=path, lengths=lengths, pack=True)
  found, batches, _ = look(run)
  rows, [part] = found['rows'], batches.parts.values()
  assert rows['rows'] == part.count
  assert rows['examples_per_row'] == pytest.approx(200 / part.count)
  tokens = [sum(len(pair[n]) + 1 for pair in pairs) for n in (0, 1)]
  widths = [24, 16]
  if lone:
    tokens, widths = [sum(tokens)], [40]
  for padding, real, width in zip(
    rows['padding'].values(), tokens, widths, strict=True
  ):
    assert padding == pytest.approx(1 - real / (part.count * width))
  assert rows['padding_of_fuller_stack'] <= 1e-9 + min(rows['padding'].values())


def test_figures_of_documents(tmp_path):
  lines = ['aaaa', 'bbbbbbbb', 'aaaa', 'cc', 'aaaa']
  file = tmp_path / 'a.txt'
  file.write_text('\n'.join([*lines, '']) + '\n \n')
  run = a_run(
    objective=specs.SpanCorruption(),
    corpus=str(file),
    document='line',
    lengths={'inputs': 7},
    documents=specs.Isolated(),
  )
  found, _, _ = look(run)
  [part] = found['parts'].values()
  assert part['count'] == part['looked_at'] == 5 and part['tokens'] == 22
  assert part['copies'] == {'documents': pytest.approx(2 / 5)}
  assert part['read']['blank'] == 2
  assert part['lengths']['documents']['longest'] == 8
  assert part['lengths']['documents']['longer'] == pytest.approx(1 / 5)
  said = shown(found)
  assert f'{file}  documents' in said and '40.00% documents' in said
  assert '█' in said


def mixture(folder, sizes, **fields):
  names = [
    write_pairs(
      folder / f'{n}.jsonl', [(f'{n} {k}', 'ab') for k in range(size)]
    )
    for n, size in enumerate(sizes)
  ]
  parts = dict(zip(names, (3.0, 1.0), strict=True))
  return names, a_run(
    mixture=specs.Mixture(parts=parts),
    lengths={'inputs': 8, 'targets': 4},
    **fields,
  )


def test_rates_are_those_that_are_drawn(tmp_path):
  names, run = mixture(tmp_path, (700, 600))
  found, batches, _ = look(run)
  rates = [found['parts'][name]['rate'] for name in names]
  assert [x['wanted'] for x in rates] == pytest.approx([0.75, 0.25])
  assert [x['schedule'] for x in rates] == pytest.approx([0.75, 0.25])
  assert found['rows']['rows'] == 1300
  part_B = batches.sources(0, 1300)
  drawn = np.bincount(part_B) / 1300
  assert [x['drawn'] for x in rates] == pytest.approx(drawn.tolist())
  # A block of 1,024 rows has them exactly.
  found, _, _ = look(run, wanted=1024, position=1024)
  assert found['parts'][names[0]]['rate']['drawn'] == 0.75
  said = shown(found)
  assert '75.000%' in said and 'all of it' in said


def test_held_out_rows_of_a_mixture_are_each_there_once(tmp_path):
  names, run = mixture(tmp_path, (60, 90), held_out=0.4)
  found, batches, stores = look(run, 'validation')
  counts = [stores[name].split('validation').num_pairs for name in names]
  assert batches.num_rows == found['rows']['rows'] == sum(counts)
  for epoch in range(2):
    batch = batches.at(epoch * sum(counts), sum(counts))
    assert len(np.unique(batch['encoder_input_tokens'], axis=0)) == sum(counts)
  for name, count in zip(names, counts, strict=True):
    assert found['parts'][name]['rate']['drawn'] == count / sum(counts)


@pytest.mark.parametrize('pairs', [False, True])
def test_a_stream_is_read_from_its_start(tmp_path, pairs):
  if pairs:
    corpus = write_pairs(tmp_path / 'p.jsonl', PAIRS)
    run = a_run(corpus=corpus, stream=True, lengths={'inputs': 6, 'targets': 4})
  else:
    (tmp_path / 'a.txt').write_text('aaaa\nbbbbbbbb\naaaa\ncc')
    run = a_run(
      objective=specs.SpanCorruption(),
      corpus=str(tmp_path / 'a.txt'),
      stream=True,
      lengths={'inputs': 7},
    )
  found, _, _ = look(run, wanted=3)
  [part] = found['parts'].values()
  assert part['count'] is None and part['looked_at'] == 3
  first = ('inputs', 4, 4) if pairs else ('documents', 4, 8)
  lengths = part['lengths'][first[0]]
  assert (lengths['shortest'], lengths['longest']) == first[1:]
  assert part['copies'][first[0]] == pytest.approx(2 / 3 if pairs else 1 / 3)
  assert found['rows']['rows'] == 3
  assert 'a stream' in shown(found)


# -- the command --------------------------------------------------------------


@pytest.fixture
def corpus(tmp_path):
  file = tmp_path / 'my.txt'
  lines = [f'line {n} of a text that says so' for n in range(80)]
  file.write_text('\n'.join([*lines, 'bell \x07 and \x1b[2J', 'same', 'same']))
  return file


def test_the_command_and_its_picture(command, corpus, tmp_path):
  picture = tmp_path / 'a.png'
  said = command(
    'inspect',
    f'--corpus={corpus}',
    '--gin.Data.document=line',
    '--gin.Data.documents=@Isolated()',
    '--gin.Data.pack=True',
    f'--picture={picture}',
    '--rows=1',
  )
  assert picture.read_bytes()[1:4] == b'PNG' and f'drawn: {picture}' in said
  assert '\n1  ' in said and '\n2  ' in said  # segments, apart
  for word in ('longer than', 'padding of the encoder', 'copies'):
    assert word in said
  assert '\x1b' not in said and '\x07' not in said


def test_json_alone(corpus, capsys):
  from t5x_lite import cli

  capsys.readouterr()
  assert cli.main(['inspect', f'--corpus={corpus}', '--json']) == 0
  found = json.loads(capsys.readouterr().out)
  [part] = found['parts'].values()
  assert part['kind'] == 'documents' and found['rows']['rows'] > 0


def test_a_store_by_itself(command, corpus, tmp_path):
  where = f'--gin.Data.store={tmp_path}/stores'
  said = command('cache', f'--corpus={corpus}', where)
  [folder] = (tmp_path / 'stores').iterdir()
  said = command('inspect', f'--store={folder}', '--rows=80')
  assert 'that says so' in said and 'my    documents' in said
  assert '\x1b' not in said and '\x07' not in said
  assert 'padding' not in said
  said = command(
    'inspect', f'--store={folder}', '--gin.Data.extra_ids=7', '--rows=1'
  )
  assert 'shown as ids' in said and 'that says so' not in said
  said = command('inspect', f'--store={folder}', '--split=validation', '--json')
  assert json.loads(said)['split'] == 'validation'
  assert list(tmp_path.glob('stores/*')) == [folder]  # nothing is made


def test_a_store_of_pairs(command, tmp_path):
  corpus = write_pairs(tmp_path / 'p.jsonl', PAIRS)
  run = a_run(
    corpus=corpus,
    lengths={'inputs': 6, 'targets': 4},
    store=str(tmp_path / 'stores'),
  )
  look(run)
  [folder] = (tmp_path / 'stores').iterdir()
  store = stores_lib.Store(folder)
  [first] = looking.stored_examples(store, 'train', 4, 9)
  assert {k: VOCABULARY.decode(x) for k, x in first.items()} == {
    'inputs': 'q',
    'targets': 'z',
  }
  said = command(
    'inspect', f'--store={folder}', '--rows=1', '--gin.Data.extra_ids=20'
  )
  assert 'abc' in said and '20.00% pairs, 40.00% inputs' in said


@pytest.mark.parametrize(
  'options, code, words',
  [
    (['--store=nowhere'], 3, ['no tokenised corpus', 'nowhere']),
    (['--store={0}'], 3, ['no tokenised corpus', '/bad']),
    (['--store={0}/bad'], 3, ['damaged', 'bad/manifest.json']),
    (['--store={0}/b*'], 3, ['damaged', 'bad/manifest.json']),
    (['--store={0}/[bz]a*'], 3, ['damaged', 'bad/manifest.json']),
    (['--store={0}/*'], 3, ['several', '/bad or ', '/bas']),
    (['--store={0}/x*'], 3, ['no tokenised corpus', 'x*']),
    (['--store={0}', '--corpus=a.txt'], 2, ['--corpus and --store']),
    (['--store=gs://bucket/x'], 2, ['--store', 'copy']),
    (['--corpus={0}/my.txt', '--picture=a.jpg'], 2, ['a.jpg', '.png']),
    (['--corpus={0}/my.txt', '--picture={0}/my.txt/a.png'], 7, ['a.png']),
    (['--corpus={0}/my.txt', '--examples=0'], 2, ['--examples', "'0'"]),
    (['--corpus={0}/my.txt', '--examples=x'], 2, ['--examples', "'x'"]),
    (
      [
        '--corpus={0}/my.txt',
        '--split=validation',
        '--gin.Data.held_out=0',
        '--json',
      ],
      3,
      ['validation', 'held_out'],
    ),
  ],
)
def test_what_is_wrong_is_one_message(
  command, corpus, tmp_path, options, code, words
):
  for name in ('bad', 'bas') if '{0}/*' in options[0] else ('bad',):
    (tmp_path / name).mkdir()
    (tmp_path / name / 'manifest.json').write_text('{}')
  filled = [option.format(tmp_path) for option in options]
  said = command('inspect', *filled, code=code)
  for word in words:
    assert word in said
  assert 'Traceback' not in said


def test_a_position_beyond_the_store_is_told(command, corpus, tmp_path):
  command('cache', f'--corpus={corpus}', f'--gin.Data.store={tmp_path}/s')
  [folder] = (tmp_path / 's').iterdir()
  said = command('inspect', f'--store={folder}', '--position=999', code=3)
  assert '--position' in said and '0 to ' in said
  with pytest.raises(errors.DataError, match='no such split'):
    looking.of_store(stores_lib.Store(folder), 'test', 5)
