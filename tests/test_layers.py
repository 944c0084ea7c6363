"""Who may import whom, and what nobody may do, read off the source."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
# A module imports only from the lines above its own; a folder also from itself.
LEVELS = """
errors allocator noise values numbers
specs processes objects looking_options transfer_options parsing
accelerators chips
storage record watching installation
recipes manifest best lines parts decoding_options vocabulary_options
launch_options
config partitioning flops metrics profiling
preflight
nn
models
losses optimizers corruptions stored
decoding checkpoints reporting data
evaluate tasks
measures results
infer train show scores
loop pretrained looking portrait planning
fit bulk outline
interop
assess caching
quickstart launch
commands
cli
__main__ __init__
""".strip().splitlines()
LEVEL = {name: n for n, line in enumerate(LEVELS) for name in line.split()}
HOMES = {  # who alone may import what
  'gin': ['config'],
  'flax': ['nn', 'models'],
  'tensorflow': ['data.sources'],
  'seqio': ['data.sources', 'tasks'],
  'orbax': ['checkpoints', 'stored'],
  'apache_beam': ['data.beam'],
  'pyarrow': ['data.formats', 'interop.zarr'],
  'msgpack': ['interop.messages'],
  'tensorstore': ['interop.ocdbt'],
}
UNSAFE_MODULES = {'pickle', 'marshal', 'shelve', 'dill', 'cloudpickle'}
UNSAFE_BUILTINS = {'eval', 'exec', 'compile', '__import__'}
UNSAFE_METHODS = {'system', 'popen', 'deserialize_and_load'}
UNSAFE_OPTIONS = {'shell', 'allow_pickle'}


def modules():
  """Every source file, by its name in the package."""
  for folder, prefix in (
    ('t5x_lite', ''),
    ('tasks', 'tasks.'),
    ('launch', 'launch.'),
  ):
    for file in sorted((ROOT / folder).rglob('*.py')):
      parts = file.relative_to(ROOT / folder).with_suffix('').parts
      name = prefix + '.'.join(parts)
      yield pytest.param(name.removesuffix('.__init__'), file, id=name)


MODULES = list(modules())


def imports(tree):
  """The dotted names that a module imports."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, 'relative import'
      yield from (f'{node.module}.{alias.name}' for alias in node.names)


@pytest.mark.parametrize('name, file', MODULES)
def test_imports_from_above_only(name, file):
  home = name.split('.')[0]
  for found in imports(ast.parse(file.read_text())):
    package, _, rest = found.partition('.')
    target = rest.split('.')[0]
    if package == 't5x_lite' and target not in (home, ''):
      assert LEVEL[target] < LEVEL[home], f'{name} imports {target}'
    homes = HOMES.get(package)
    assert not homes or name in homes or home in homes, f'{name}: {found}'
    assert package not in UNSAFE_MODULES, f'{name}: {found}'


@pytest.mark.parametrize('name, file', MODULES)
def test_runs_no_code_from_data(name, file):
  for node in ast.walk(ast.parse(file.read_text())):
    if isinstance(node, ast.Call):
      where = f'{name}:{node.lineno}'
      assert getattr(node.func, 'id', None) not in UNSAFE_BUILTINS, where
      assert getattr(node.func, 'attr', None) not in UNSAFE_METHODS, where
      assert not UNSAFE_OPTIONS & {k.arg for k in node.keywords}, where


@pytest.mark.parametrize('name, file', MODULES)
def test_is_short_and_named_for_what_it_does(name, file):
  lines = len(file.read_text().splitlines())
  assert lines <= 400, name
  assert file.stem not in ('utils', 'util', 'helpers', 'misc', 'common')
