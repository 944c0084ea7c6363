"""How the command line says its help and its faults."""

import argparse
import functools
import itertools

from t5x_lite import errors


class Parser(argparse.ArgumentParser):
  """Says what is wrong in one line."""

  def error(self, message):
    raise errors.ConfigError(message, fix=f'{self.prog} --help')

  def _check_value(self, action, value):
    """As argparse's own, with the nearest of the choices."""
    if action.choices is not None and value not in action.choices:
      name = '/'.join(action.option_strings) or action.dest
      raise errors.ConfigError(
        f'argument {name}: no such choice',
        got=value,
        expected='one of ' + ', '.join(map(str, action.choices)),
        choices=action.choices,
        fix=f'{self.prog} --help',
      )


def no_such_option(command, word, *parsers):
  """The error of an option that none of these parsers has."""
  return errors.ConfigError(
    f'{command} has no such option',
    got=word.split('=')[0],
    choices=[
      name
      for parser in parsers
      for action in parser._actions  # pylint: disable=protected-access
      for name in action.option_strings
    ],
    fix=f't5x_lite {command} --help',
  )


def add_command(commands, name, text, usage, examples=None):
  """Adds a command, which can show tracebacks, to subparsers; its parser."""
  made = commands.add_parser(
    name,
    help=text,
    description=text[0].upper() + text[1:] + '.',
    usage=usage,
    epilog=f'for example:\n  {examples}' if examples else None,
    allow_abbrev=False,
    formatter_class=functools.partial(Formatter, max_help_position=36),
  )
  made.add_argument(
    '--debug', action='store_true', help='show the traceback of errors'
  )
  return made


class Formatter(argparse.RawDescriptionHelpFormatter):
  """Keeps line breaks in the help of an option."""

  def _split_lines(self, text, width):
    lines = map(
      super()._split_lines, text.splitlines(), itertools.repeat(width)
    )
    return [*itertools.chain(*lines)]


class Overview(argparse.HelpFormatter):
  """Lists the commands without a line for what they are together."""

  def __init__(self, *args, **kwargs):
    super().__init__(*args, **kwargs)
    self._action_max_length = 14  # the longest command, with its indentation

  def _format_action(self, action):
    text = super()._format_action(action)
    return text.partition('\n')[2] if action.dest == 'command' else text
