"""Recipes: from gin text to a checked `specs.Run`.

Gin serves as a parser alone. What a recipe can name are the classes and fields
of specs.SPECS; it can neither import nor call nor read anything else.
"""

import dataclasses
import io
import os
import re
import tokenize
import typing

from gin import config_parser
from t5x_lite import errors
from t5x_lite import recipes
from t5x_lite import specs
from t5x_lite import storage

_LIMIT = 10_000  # statements and values; more is a bomb, not a recipe
_VALUES = "a number, 'text', True, None, [list], {dict}, @Spec() or %MACRO"


@dataclasses.dataclass(frozen=True)
class _Reference:
  scope: str
  name: str
  called: bool

  def __repr__(self):
    return '@' + f'{self.scope}/{self.name}'.lstrip('/') + '()' * self.called


@dataclasses.dataclass(frozen=True)
class _Macro:
  name: str

  def __repr__(self):
    return f'%{self.name}'


class _Binding(typing.NamedTuple):
  value: object
  where: str
  order: int


class _Delegate(config_parser.ParserDelegate):
  """Turns references into inert marks."""

  def configurable_reference(self, scoped_configurable_name, evaluate):
    scope, _, name = scoped_configurable_name.rpartition('/')
    return _Reference(scope, name, evaluate)

  def macro(self, macro_name):
    return _Macro(macro_name)


# -- text ---------------------------------------------------------------------


def _parse(text, place):
  """The statements of gin text; `place(line)` names a line of it."""
  statements, line = [], 1
  try:
    parser = config_parser.ConfigParser(text, _Delegate())
    while statement := parser.parse_statement():
      statements.append(statement)
      line = parser.current_token.start[0]
    return statements
  except tokenize.TokenError as e:
    message, (line, _) = e.args
  except SyntaxError as e:
    message, line = e.msg, e.lineno or line
  except (TypeError, ValueError, RecursionError, StopIteration) as e:
    message = str(e)
  token = re.search(r"Failed to parse token '(.*)'", message, re.S)
  bracket, opened = _unclosed_bracket(text)
  if bracket and opened <= line:
    raise errors.ConfigError(
      f"'{bracket}' is never closed", where=place(opened)
    )
  if token:
    raise errors.ConfigError(
      'cannot read a value',
      where=place(line),
      got=repr(token[1]),
      expected=_VALUES,
      choices=['True', 'False', 'None', *map('@{}()'.format, specs.SPECS)],
      fix='put it in quotes if it is text',
    )
  lines = text.split('\n')
  raise errors.ConfigError(
    'cannot parse this line',
    where=place(line),
    got=repr(lines[line - 1].strip()) if line <= len(lines) else None,
    expected='NAME = VALUE; ' + message.strip().rstrip('.'),
  )


def _unclosed_bracket(text):
  """The innermost bracket that stays open, and its line."""
  opened = []
  try:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
      if token.type == tokenize.OP and token.string in '([{':
        opened.append((token.string, token.start[0]))
      elif opened and opened[-1][0] + token.string in ('()', '[]', '{}'):
        opened.pop()
  except (tokenize.TokenError, SyntaxError):
    pass
  return opened[-1] if opened else (None, 0)


def _leaves(value):
  """A value, or the values inside a container."""
  if isinstance(value, dict):
    value = [*value, *value.values()]
  if isinstance(value, (list, tuple)):
    for item in value:
      yield from _leaves(item)
  else:
    yield value


# -- bindings -----------------------------------------------------------------


def _field_rule(name, field, where):
  """The rule of a spec's field; refuses names that specs doesn't know."""
  if name not in specs.SPECS:
    raise errors.ConfigError(
      'unknown spec',
      where=where,
      got=repr(name),
      choices=specs.SPECS,
      expected='one of ' + ', '.join(specs.SPECS),
    )
  rules = {f.name: f.type for f in dataclasses.fields(specs.SPECS[name])}
  if field not in rules:
    owners = [
      f'{owner}.{field}'
      for owner, cls in specs.SPECS.items()
      if field in cls.__dataclass_fields__
    ]
    raise errors.ConfigError(
      'unknown setting',
      where=where,
      got=repr(f'{name}.{field}'),
      expected=f'a field of {name}: ' + ', '.join(rules),
      choices=() if owners else [f'{name}.{rule}' for rule in rules],
      fix=f'write {" or ".join(owners)}' if owners else None,
    )
  return rules[field]


def _check_reference(reference, where):
  """Refuses references to anything but a spec."""
  if reference.name not in specs.SPECS:
    raise errors.ConfigError(
      'a recipe refers to nothing but specs',
      where=where,
      got=repr(reference.name),
      expected='one of ' + ', '.join(specs.SPECS),
      choices=specs.SPECS,
    )
  if not reference.called:
    raise errors.ConfigError(
      'reference lacks its parentheses',
      where=where,
      got=repr(reference),
      fix=f'write {reference}()',
    )


def _enter(name, within, where):
  """Adds a name to those being worked on; refuses to go in a circle."""
  if name in within:
    raise errors.ConfigError(
      'recipe goes in a circle',
      where=where,
      got=' -> '.join([*within[within.index(name) :], name]),
    )
  return (*within, name)


def _is_text(rule):
  """Whether a field takes text."""
  kinds = [typing.get_origin(m) or m for m in specs.alternatives(rule)]
  return not {str, tuple, typing.Literal}.isdisjoint(kinds)


def _outward(scope):
  """A scope and the scopes around it, outermost first."""
  parts = scope.split('/')
  return ['', *('/'.join(parts[: n + 1]) for n in range(len(parts)))]


class _Recipe:
  """The bindings of files and of a command line, and the specs they make."""

  def __init__(self):
    self.macros = {}  # name -> _Binding
    self.bindings = {}  # (scope, spec, field) -> _Binding
    self.overridden = []  # (scope, value)
    self.spent = 0

  def spend(self, where):
    """Counts work, so that no recipe of a few lines can fill the memory."""
    self.spent += 1
    if self.spent > _LIMIT:
      raise errors.ConfigError(
        'recipe is too large', where=where, expected=f'{_LIMIT} values at most'
      )

  def read(self, name, folder, where=None, within=()):
    """Takes in a file and what it includes."""
    path = recipes.find(name, folder, where)
    key = os.path.realpath(path) if storage.is_local(path) else str(path)
    within = _enter(key, within, where)
    for statement in _parse(recipes.read(path), lambda line: f'{path}:{line}'):
      here = f'{path}:{statement.location.line_num}'
      self.spend(here)
      if isinstance(statement, config_parser.ImportStatement):
        raise errors.ConfigError(
          'a recipe imports nothing',
          where=here,
          got=repr(statement.format()),
          fix='delete the line; every spec is known by its name',
        )
      if isinstance(statement, config_parser.IncludeStatement):
        self.read(statement.filename, path.parent, here, within)
      elif isinstance(statement, config_parser.BindingStatement):
        self.bind(*statement[:4], here)

  def read_option(self, text):
    """Takes in one `Run.steps=10` of a command line.

    A bare word is text where the field takes text.
    """
    where = '--gin.' + ' '.join(text[:100].split())
    key, _, value = (part.strip() for part in text.partition('='))
    if not value:
      raise errors.ConfigError(
        'option has no value', where=where, expected='--gin.NAME=VALUE'
      )
    try:
      statements = _parse(f'{key} = {value}', lambda line: where)
    except errors.ConfigError:
      parts = re.fullmatch(r'(?:([\w/]+)/)?(\w+)\.(\w+)', key)
      rule = _field_rule(parts[2], parts[3], where) if parts else None
      if not _is_text(rule) or value[0] in '"\'':
        raise
      self.bind(parts[1] or '', parts[2], parts[3], value, where)
      return
    if [type(x) for x in statements] != [config_parser.BindingStatement]:
      raise errors.ConfigError(
        'option is not one setting', where=where, expected='--gin.NAME=VALUE'
      )
    self.bind(*statements[0][:4], where)

  def bind(self, scope, name, field, value, where):
    """Takes in one binding, which replaces an earlier one of the same name."""
    for leaf in _leaves(value):
      if isinstance(leaf, _Reference):
        _check_reference(leaf, where)
    if field:
      _field_rule(name, field, where)
      table, key = self.bindings, (scope, name, field)
    else:
      table, key = self.macros, repr(_Macro(f'{scope}/{name}'.lstrip('/')))
    if key in table:
      self.overridden.append((scope, table.pop(key).value))
    self.spend(where)
    table[key] = _Binding(value, where, self.spent)

  def bound(self, name, scope):
    """{field: binding} of a spec; inner scopes add to and replace outer."""
    found = {}
    for field in dataclasses.fields(specs.SPECS[name]):
      if isinstance(field.default, specs.Spec):  # as good as a reference
        implied = _Reference('', type(field.default).__name__, True)
        found[field.name] = _Binding(implied, None, 0)
      for outer in _outward(scope):
        key = outer, name, field.name
        if key in self.bindings:
          found[field.name] = self.bindings[key]
    return found

  def build(self, name, scope, where, within=()):
    """The spec that a reference stands for."""
    label = f'{scope}/{name}'.lstrip('/')
    within = _enter(label, within, where)
    cls, bound = specs.SPECS[name], self.bound(name, scope)
    specs.check_missing(cls, bound, label, where)
    settings = {
      field: self.resolve(value, scope, place or where, within)
      for field, (value, place, _) in bound.items()
    }
    try:
      return cls(**settings)
    except errors.ConfigError as e:
      named = re.findall(rf'\b{name}\.(\w+)', e.what)
      blamed = [bound[field] for field in named if field in bound]
      last = max(blamed, key=lambda binding: binding.order, default=None)
      raise e.at(last.where if last else where) from None

  def resolve(self, value, scope, where, within):
    """A value with its references and macros replaced."""
    self.spend(where)
    if isinstance(value, _Reference):
      return self.build(value.name, value.scope or scope, where, within)
    if isinstance(value, _Macro):
      if repr(value) not in self.macros:
        raise errors.ConfigError(
          'macro is never set',
          where=where,
          got=repr(value),
          choices=self.macros,
          fix=f'pass --gin.{value.name}=VALUE',
        )
      within = _enter(repr(value), within, where)
      value = self.macros[repr(value)].value
      return self.resolve(value, scope, where, within)
    if isinstance(value, dict):
      return {
        k: self.resolve(v, scope, where, within) for k, v in value.items()
      }
    if isinstance(value, (list, tuple)):
      return type(value)(self.resolve(v, scope, where, within) for v in value)
    return value

  def reach(self, value, scope, reached):
    """Collects the (macro or spec, scope) that a value leads to."""
    for leaf in _leaves(value):
      if isinstance(leaf, _Macro):
        key = repr(leaf), scope
        inner = [b for b in [self.macros.get(repr(leaf))] if b]
      elif isinstance(leaf, _Reference):
        key = leaf.name, leaf.scope or scope
        inner = self.bound(*key).values()
      else:
        continue
      if key not in reached:
        reached.add(key)
        for binding in inner:
          self.reach(binding.value, key[1], reached)

  def check_dead(self):
    """Refuses bindings that nothing uses.

    What an overridden binding referred to may stay: a recipe that includes
    another and replaces its optimizer leaves the old one's settings behind.
    """
    reached = set()
    for scope, value in [('', _Reference('', 'Run', True)), *self.overridden]:
      self.reach(value, scope, reached)
    for (scope, name, field), binding in self.bindings.items():
      if not any(n == name and scope in _outward(s) for n, s in reached):
        label = f'{scope}/{name}'.lstrip('/')
        raise errors.ConfigError(
          f'nothing uses {label}.{field}',
          where=binding.where,
          fix=f'refer to @{label}(), or delete this setting',
        )
    for name, binding in self.macros.items():
      if not any(n == name for n, _ in reached):
        raise errors.ConfigError(
          f'nothing uses the macro {name}',
          where=binding.where,
          got=repr(name.lstrip('%')),
          expected='a setting such as Run.steps, or a macro in use',
          choices=[f'Run.{f.name}' for f in dataclasses.fields(specs.Run)],
        )


def load(gin_files=(), bindings=()):
  """The run that recipes describe.

  Args:
    gin_files: names of installed recipes or paths; later ones override.
    bindings: 'Run.steps=10' and the like, which override the files.

  Raises:
    ConfigError: anything that is wrong, with its file and line.
  """
  recipe = _Recipe()
  try:
    for name in gin_files:
      recipe.read(name, storage.path(''))
    for text in bindings:
      recipe.read_option(text)
    run = recipe.build('Run', '', gin_files[-1] if gin_files else None)
    recipe.check_dead()
  except RecursionError:
    raise errors.ConfigError(
      'recipe is nested too deeply', where=', '.join(map(str, gin_files))
    ) from None
  return run
