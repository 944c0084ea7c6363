"""Debian's lists of packages: synopses, long descriptions and sections."""

import re

from t5x_lite.tasks import readers

_WORDS = 30  # that a description has, at least, to be summarised


def summaries(texts):
  """Long descriptions as inputs, the synopsis above them as targets."""
  for source, _, synopsis, long in packages(texts):
    if len(long.split()) >= _WORDS:
      yield readers.Row(source, long, synopsis)


def sections(texts):
  """Descriptions as inputs, the section of the archive as targets."""
  for source, section, synopsis, long in packages(texts):
    yield readers.Row(source, f'{synopsis}. {long}', section)


def packages(texts):
  """(source, section, synopsis, long description) by name of package.

  The source is told without its version: gcc-11 and gcc-12 are one document.
  """
  described = {}
  for entry in stanzas(texts.read('descriptions.txt').decode()):
    synopsis, *rest = entry['Description-en'].split('\n')
    paragraphs = [x.strip() for x in rest]
    long = ' '.join(x for x in paragraphs if x != '.')
    described[entry['Description-md5']] = synopsis, readers.plain(long)
  found = {}
  for entry in stanzas(texts.read('packages.txt').decode()):
    name = entry['Package']
    source = entry.get('Source', name).split(' ')[0]
    text = described.get(entry.get('Description-md5'))
    if text and 'Section' in entry:
      found.setdefault(name, (family(source), entry['Section'], *text))
  for name in sorted(found):
    yield found[name]


def family(source):
  """A name of a source package to its first number: what versions share."""
  name = re.sub(r'-signed-\w+$', '', source)
  return re.match(r'[^\d]*', name)[0].rstrip('-.') or name


def stanzas(text):
  """Each paragraph of a control file, {field: value}."""
  for block in text.split('\n\n'):
    fields = re.findall(r'^([\w-]+): ?(.*(?:\n[ \t].*)*)$', block, re.M)
    if fields:
      yield dict(fields)
