"""Raw mail as text: subject and body, and the thread that it is of."""

import email
import email.errors
import email.header
import html
import re

from t5x_lite.tasks import readers

_HTML = re.compile(r'<(style|script)\b.*?</\1\s*>|<!--.*?-->|<[^>]*>', re.S)
_REPLY = re.compile(r'^(\s*(re|fwd?|aw|sv)\s*(\[\d+\])?\s*:|\s*\[[^\]]*\])+')


def spam(texts):
  """Rows of a collection of folders spam-* and *ham-*.

  Headers but the subject are left out: they tell the way of a mail through the
  collector's machines. A thread is a document: replies cite each other. Of
  mails of the same body the first is kept, whatever their subjects.
  """
  bodies = set()
  for name in sorted(texts.namelist()):
    subject, body = parse(texts.read(name))
    key = readers.folded(body)
    if key in bodies:
      continue
    bodies.add(key)
    thread = _REPLY.sub('', subject.lower())
    thread = re.sub(r'[\W\d_]+', ' ', thread).strip() or body[:200]
    label = 'spam' if name.startswith('spam') else 'ham'
    yield readers.Row(thread, f'subject: {subject} body: {body}', label)


def parse(data):
  """(subject, body) of a mail, each as one line of text."""
  mail = email.message_from_bytes(data)
  parts = {'text/plain': [], 'text/html': []}
  for part in mail.walk():
    kind = part.get_content_type()
    if kind in parts and part.get_content_disposition() != 'attachment':
      parts[kind].append(_decode(part))
  body = ' '.join(parts['text/plain'])
  if not body.strip():
    body = html.unescape(_HTML.sub(' ', ' '.join(parts['text/html'])))
  return _subject(mail), readers.plain(body.replace('\0', ''))


def _decode(part):
  data = part.get_payload(decode=True) or b''
  try:
    return data.decode(part.get_content_charset() or 'latin-1')
  except (LookupError, UnicodeError):  # no such charset, or not in it
    return data.decode('latin-1')


def _subject(mail):
  raw = str(mail['subject'] or '')
  try:
    found = str(email.header.make_header(email.header.decode_header(raw)))
  except (LookupError, UnicodeError, email.errors.MessageError, ValueError):
    found = raw
  found = found.encode(errors='replace').decode()  # lone surrogates
  return readers.plain(found.replace('\0', ''))
