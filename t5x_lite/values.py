"""Values of command-line options, from their text."""

import argparse
import re


def positive(text, least=1, words=()):
  """A whole number of at least 1, or one of some words."""
  if text in words:
    return text
  try:
    value = int(text)
  except ValueError:
    value = -1
  if not least <= value < 2**62:
    raise argparse.ArgumentTypeError(
      f'got {text!r}, expected an int >= {least}'
      + (' and < 2^62' if value > 0 else '')
      + ''.join(f' or {word}' for word in words)
    )
  return value


def natural(text):
  """A whole number of at least 0."""
  return positive(text, least=0)


def share(text):
  """A number above 0, 1 at most."""
  try:
    value = float(text)
  except ValueError:
    value = -1.0
  if not 0 < value <= 1:
    raise argparse.ArgumentTypeError(
      f'got {text!r}, expected a number > 0 and <= 1'
    )
  return value


def png(text):
  """The name of a picture."""
  if not text.endswith('.png'):
    raise argparse.ArgumentTypeError(
      f'got {text!r}, expected a name that ends with .png'
    )
  return text


def step(text):
  """A step, or a word for one."""
  return positive(text, 0, ('latest', 'best'))


def steps(text):
  """A step, or a word for one or all."""
  return positive(text, 0, ('latest', 'best', 'all'))


def size(text):
  """A count of bytes, such as 500MB."""
  units = {'': 1, 'KB': 10**3, 'MB': 10**6, 'GB': 10**9, 'TB': 10**12}
  found = re.fullmatch(r'(\d{1,15})\s*([KMGT]?B)?', text.strip().upper())
  if not found or not int(found[1]):
    raise argparse.ArgumentTypeError(
      f'got {text!r}, expected a size such as 500MB or 5GB'
    )
  return int(found[1]) * units.get(found[2] or '', 1)


def names(text):
  """Words with commas between them."""
  return tuple(word.strip() for word in text.split(',') if word.strip())


def special_token(text):
  """(role, token) of ROLE=TOKEN."""
  role, _, token = text.partition('=')
  roles = 'pad', 'eos', 'bos', 'start'
  if role not in roles or not token:
    raise argparse.ArgumentTypeError(
      f'got {text!r}, expected ROLE=TOKEN, ROLE one of {", ".join(roles)}'
    )
  return role, token


def shard(text):
  """I/N, of N shares the one after I others, as [I, N]."""
  found = _pair(text, '/', 'I/N, such as 0/4', least=0)
  if found[0] >= found[1]:
    raise argparse.ArgumentTypeError(
      f'got {text!r}, expected 0/{found[1]} to {found[1] - 1}/{found[1]}'
    )
  return found


def window(text):
  """(first step, how many) of `START:COUNT`."""
  return tuple(_pair(text, ':', 'START:COUNT from 1 on, such as 10:5', least=1))


def _pair(text, mark, expected, least):
  """[A, B] of numbers with a mark between, A from `least` on and B from 1."""
  first, _, second = text.partition(mark)
  try:
    return [positive(first, least), positive(second)]
  except argparse.ArgumentTypeError:
    raise argparse.ArgumentTypeError(
      f'got {text!r}, expected {expected}'
    ) from None
