"""Each command of docs/data.md does what it says."""

import importlib.util
import os
import pathlib
import re
import shlex

import pytest

from tests import records

PAGE = pathlib.Path(__file__).parents[1] / 'docs' / 'data.md'
LINES = [
  line
  for block in re.findall(r'```sh\n(.*?)```', PAGE.read_text(), re.S)
  for line in block.replace('\\\n', ' ').splitlines()
]
SAYS = {
  'one.txt': ['documents', 'MB/s', 'tokens/s', '1 blank documents'],
  'mixed/*': ['3 documents'],
  'tfds:': ['60 documents', 'validation'],
  'words.parquet': ['pairs'],
  'workers': ['shards'],
  'beam': ['documents'],
  'pack': ['2 x'],
  'Mixture': ['example 1', 'of the schedule', '75.000%'],
  'stream': ['example 1'],
  '--picture': ['drawn: data.png', 'copies', 'padding of the encoder'],
  '--json': ['"split": "validation"'],
  '--store': ['example 2', 'line '],
}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """What the commands read."""
  folder = tmp_path_factory.mktemp('docs')
  for name in ('books', 'mixed', 'pairs'):
    (folder / name).mkdir()
  text = ''.join(f'line {n}\n' for n in range(99))
  (folder / 'books/one.txt').write_text(text + '\n')
  (folder / 'books/two.txt').write_text(text.upper())
  (folder / 'mixed/a.txt').write_text('one\ntwo\n')
  (folder / 'mixed/b.jsonl').write_text('{"body": "three"}\n{"body": "two"}\n')
  records.table(
    folder / 'pairs/words.parquet',
    {'english': ['one', 'two', 'three'], 'german': ['eins', 'zwei', 'drei']},
  )

  class Fables(records.Leaflets):
    """Another name of it."""

  Fables(data_dir=str(folder / 'tfds')).download_and_prepare()
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('TFDS_DATA_DIR', str(folder / 'tfds'))
    patch.setenv('T5X_LITE_CACHE', str(folder / 'cache'))
    yield folder


@pytest.mark.slow
@pytest.mark.parametrize('line', LINES)
def test_a_command(command, folder, monkeypatch, line):
  if 'beam' in line and not importlib.util.find_spec('apache_beam'):
    pytest.skip('needs Apache Beam; run `make beam`')
  monkeypatch.chdir(folder)
  said = command(*shlex.split(line)[1:])
  for word, wanted in SAYS.items():
    if word in line:
      for text in wanted:
        assert text in said
  assert os.listdir(folder / 'cache' / 'stores')


def test_every_claim_has_a_command():
  assert all(any(word in line for line in LINES) for word in SAYS)
