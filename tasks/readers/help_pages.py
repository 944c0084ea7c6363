"""The help of LibreOffice, aligned by file and id of the paragraph."""

import html
import re

from t5x_lite.tasks import readers

_PARAGRAPH = re.compile(
  r'<(p|h[1-6])\s+id="((?:par|hd|tit)[^"]*)"[^>]*>(.*?)</\1>', re.S
)
# What is said to users of macOS stands before what is said to all others.
_MAC = re.compile(
  r'<span hidden="true" id="MAC.*?(?=<span hidden="true" id="d)', re.S
)
_BREAK = re.compile(r'<br\s*/?>|</?(?:p|div|li|ul|ol|td|tr|table)\b[^>]*>')


def pairs(texts, language):
  """English paragraphs as inputs, those of another language as targets.

  A file is a document. A paragraph that was not translated is left out.
  """
  names = set(texts.namelist())
  for name in sorted(names):
    if not name.startswith('en-US/'):
      continue
    file = name.removeprefix('en-US/')
    if f'{language}/{file}' not in names:
      continue
    ours = paragraphs(texts.read(name).decode())
    theirs = paragraphs(texts.read(f'{language}/{file}').decode())
    for key, text in ours.items():
      if theirs.get(key, text) != text:
        yield readers.Row(file, text, theirs[key])


def paragraphs(page):
  """{id: text} of a page."""
  found = {}
  for _, key, inner in _PARAGRAPH.findall(page):
    inner = _MAC.sub('', inner)
    if ' id="MAC' in inner:
      continue  # alternatives in a place of their own: no sentence
    text = re.sub(r'<[^>]*>', '', _BREAK.sub(' ', inner))
    found.setdefault(key, readers.plain(html.unescape(text)))
  return found
