"""Plans of small models, from programs that libtpu compiled beforehand."""

import dataclasses
import gzip
import json
import subprocess
import sys

import pytest

from t5x_lite import accelerators
from t5x_lite import chips
from t5x_lite import cli
from t5x_lite import config
from t5x_lite import errors
from t5x_lite import partitioning
from t5x_lite import specs
from t5x_lite.planning import compiling
from t5x_lite.planning import families
from t5x_lite.planning import figures
from t5x_lite.planning import memory
from t5x_lite.planning import picture
from t5x_lite.planning import report
from t5x_lite.planning import search
from tests.golden import make_programs

# What a plan said when the programs were made.
GOLDEN = {
  't5_fsdp': dict(ratio=1.000, seconds=2.498e-3, hbm_bytes=31_562_816),
  'llama_tensor': dict(ratio=1.261, seconds=2.094e-3, hbm_bytes=9_111_040),
}
PLANS = pytest.mark.plans


def compiled(name, change=lambda text: text):
  facts, text = make_programs.stored(name)
  return compiling.read(facts, change(text))


@pytest.fixture(scope='module', params=GOLDEN)
def planned(request):
  run, accelerator = make_programs.case(request.param)
  found = figures.of(run, accelerator, compiled(request.param))
  return request.param, run, found


def test_plans_stay_as_they_were(planned):
  name, _, found = planned
  golden = GOLDEN[name]
  assert found['flops']['ratio'] == pytest.approx(golden['ratio'], abs=5e-4)
  assert found['flops']['hbm_bytes'] == golden['hbm_bytes']
  assert found['seconds'] == pytest.approx(golden['seconds'], rel=0.01)
  assert found['fits'] and not found['unknown_loops']


def test_arguments_are_told_to_the_byte(planned):
  _, _, found = planned
  told = found['memory']['families']
  arguments = sum(
    told[k] for k in (families.PARAMETERS, families.OPTIMIZER, families.BATCH)
  )
  assert arguments == found['memory']['compiler']['argument_size']


def test_families_add_up_to_the_peak(planned):
  _, _, found = planned
  memory_ = found['memory']
  assert sum(memory_['families'].values()) == pytest.approx(memory_['peak'])


def test_gpus_without_their_compiler_are_estimated(capsys, monkeypatch):
  monkeypatch.setattr(compiling, 'has_compiler', lambda platform: False)
  argv = ['plan', '--gin_file=t5/1_1_base', '--topology=h100-8']
  assert cli.main([*argv, '--gin.Run.batch_size=256']) == 0
  said = capsys.readouterr().out
  assert 'by estimate' in said and 'not compiled, as' in said


def test_parts_of_a_step_add_up(planned):
  _, _, found = planned
  parts = sum(found['times'][name] for name in report.PARTS)
  assert parts == pytest.approx(found['seconds'])


def test_nothing_is_exchanged_that_the_design_does_not_call_for(planned):
  _, _, found = planned
  assert not any(e['unexpected_bytes'] for e in found['collectives'])


def test_gradients_of_shared_parameters_are_scattered():
  run, accelerator = make_programs.case('t5_fsdp')
  found = figures.of(run, accelerator, compiled('t5_fsdp'))
  kinds = {(e['kind'], *e['axes']): e['bytes'] for e in found['collectives']}
  assert kinds['all-gather', 'fsdp'] > kinds['reduce-scatter', 'fsdp'] > 0


def test_a_bad_rule_shows_by_name(monkeypatch, planned):
  """Of the same program, as if the design gathered nothing over fsdp."""
  name, run, _ = planned
  monkeypatch.setattr(figures, '_SMALL', 1)
  monkeypatch.setitem(figures._DESIGN, 'all-gather', {'tensor'})
  _, accelerator = make_programs.case(name)
  lines = []
  report.tell(figures.of(run, accelerator, compiled(name)), lines.append)
  assert 'NOT IN THE DESIGN' in '\n'.join(lines)
  assert 'GB, t5x_lite/' in '\n'.join(lines)


def test_logits_are_told_as_such():
  module = compiled('t5_fsdp').module
  kinds = families.Families(module, 512, 256, 1)
  told = {
    str(op.array): kinds.of(memory.Buffer(1, op, op.array))
    for computation in module.computations.values()
    for op in computation.ops.values()
    if op.kind == 'fusion' and 'BLE,EV->BLV' in op.op_name
  }
  assert told['f32[4,128,512]'] == families.LOGITS


def test_what_does_not_fit_is_told_with_both_sizes():
  run, accelerator = make_programs.case('t5_fsdp')
  facts, _ = make_programs.stored('t5_fsdp')
  gib = 2**30
  facts['too_much'] = {'needed': 27 * gib, 'available': 16 * gib}
  found = figures.of(run, accelerator, compiling.read(facts, None))
  lines = []
  report.tell(found, lines.append)
  assert lines[1] == (
    'does not fit: needs 27.00 GiB of a chip that gives 16.00 GiB: over by '
    '11.00 GiB; by estimate'
  )
  assert 'parameters' in lines[2] and 'nearest change' in lines[3]


def test_a_search_sums_gradients_along_all_sides_of_their_axis():
  run, _ = make_programs.case('t5_fsdp')
  run = dataclasses.replace(run, batch_size=64)
  square = accelerators.parse('v5e-64')
  sizes = dict.fromkeys(partitioning.AXES, 1)
  alone, one, two = (
    search._seconds(run, square, sizes | {'data': n}) for n in (1, 8, 64)
  )
  assert one - alone == pytest.approx(2 * (two - alone)) and two > alone


def gpu_case():
  """The program of four chips, as if it were of a node of GPUs."""
  run, _ = make_programs.case('t5_fsdp')
  return run, accelerators.parse('h100-4')


def test_what_jax_takes_of_a_gpu_is_what_there_is(monkeypatch):
  run, gpus = gpu_case()
  monkeypatch.delenv(chips.SHARE[1], raising=False)
  whole = chips.CHIPS['h100'].hbm_usable
  lines = []
  for share, fits in (('0.75', True), ('0.00001', False)):
    monkeypatch.setenv(chips.SHARE[0], share)
    for found in (
      figures.of(run, gpus, compiled('t5_fsdp')),
      figures.without(
        run,
        gpus,
        {'replica': 1, 'data': 1, 'fsdp': 4} | {'tensor': 1, 'sequence': 1},
      ),
    ):
      assert found['fits'] == fits
      assert found['hbm'] == int(float(share) * whole)
      report.tell(found, lines.append)
  said = [line for line in lines if ' that JAX takes of 79.11 GiB' in line]
  assert len(said) == 4
  assert 'of 59.33 GiB that JAX takes' in said[0]
  assert 'does not fit: needs' in said[2]
  assert 'does not fit by estimate' in said[3]


def test_gpus_exchange_by_other_names():
  run, gpus = gpu_case()
  found = figures.of(run, gpus, compiled('t5_fsdp'))
  assert {e['network'] for e in found['collectives']} == {'nvlink'}
  assert found['times']['nvlink'] > 0 and 'ici' not in found['times']
  run, tpus = make_programs.case('t5_fsdp')
  found = figures.of(run, tpus, compiled('t5_fsdp'))
  assert {e['network'] for e in found['collectives']} == {'ici'}
  assert 'nvlink' not in found['times']


def test_what_lies_whole_is_told(capsys):
  argv = ['plan', '--gin_file=gpt3/small', '--topology=v5e-8', '--analytic']
  argv += ['--gin.Mesh.data=1', '--gin.Mesh.tensor=4', '--gin.Mesh.fsdp=2']
  assert cli.main(argv) == 0
  told = 'not sharded over vocab, as the mesh does not divide it'
  assert capsys.readouterr().out.count(told) == 1
  assert cli.main([*argv, '--json']) == 0
  [line] = json.loads(capsys.readouterr().out)['unsharded']
  assert line.startswith(told) and '50257' in line
  run, tpus = make_programs.case('t5_fsdp')
  odd = dataclasses.replace(
    run, model=dataclasses.replace(run.model, mlp_dim=3 * 5)
  )
  mesh = {'replica': 1, 'data': 1, 'fsdp': 1, 'tensor': 4, 'sequence': 1}
  said = figures.unsharded(odd, tpus, mesh)
  assert said and all('over mlp' in line for line in said)
  assert not figures.of(run, tpus, compiled('t5_fsdp'))['unsharded']


@pytest.mark.parametrize(
  'message, expected',
  [
    (
      'RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory: '
      'Used 27.41G of 15.75G hbm.',
      {'needed': int(27.41 * 2**30), 'available': int(15.75 * 2**30)},
    ),
    ('INTERNAL: something else', None),
  ],
)
def test_errors_of_the_compiler_are_read(message, expected):
  from t5x_lite.planning import compiler

  assert compiler.too_much(message) == expected


def test_a_plan_is_drawn(planned, tmp_path):
  _, _, found = planned
  file = tmp_path / 'plan.png'
  picture.draw(found, str(file))
  assert file.read_bytes().startswith(b'\x89PNG')


def test_the_command_prints_json_of_what_needs_no_compiler(capsys):
  argv = ['plan', '--gin_file=t5/1_1_xxl', '--topology=v5e-256', '--analytic']
  assert cli.main([*argv, '--json']) == 0
  found = json.loads(capsys.readouterr().out)
  assert found['fits'] and found['level'] == 'analytic'
  assert found['mesh']['fsdp'] == 256 or found['mesh']['data'] == 256
  assert cli.main(argv) == 0
  assert 'by estimate' in capsys.readouterr().out


@pytest.mark.parametrize(
  'options, said',
  [
    (['--topology=v5e-65'], 'no slice of v5e has 65 chips'),
    (['--topology=v5e-64', '--analytic', '--fast'], '--analytic compiles'),
    (
      ['--topology=v5e-64', '--picture=x.jpg'],
      'expected a name that ends with .png',
    ),
    (['--topology=v2-8', '--analytic'], 'no figures of this kind of chip'),
    (['--topology=l4-8'], 'no figures of this kind of chip'),
    (['--topology=h200-16'], 'a node has 8 of these GPUs'),
    (['--topology=h100-8', '--fast'], '--fast is of TPUs'),
    (['--topology=v5e-64', '--gin.Mesh.fsdp=7'], 'Mesh does not fit'),
    (['--topology=v5e-64', '--compare', 'a', 'b'], '--compare names'),
    ([], '--topology'),
  ],
)
def test_wrong_options_are_told(options, said, capsys):
  code = cli.main(['plan', '--gin_file=t5/1_1_small', *options])
  assert code == 2
  assert said in capsys.readouterr().err


def test_a_search_ranks_what_fits_and_names_its_flags(monkeypatch):
  run, accelerator = make_programs.case('t5_fsdp')
  found = search.candidates(run, accelerator)
  meshes = {tuple(c.sizes.values()) for c in found}
  assert (1, 4, 1, 1, 1) in meshes and (1, 1, 4, 1, 1) in meshes
  assert all(c.run.batch_size % c.run.microbatches == 0 for c in found)
  assert found == sorted(found, key=lambda c: (c.seconds, c.run.microbatches))
  # Recomputing costs time, so the first does not, as all of these fit.
  assert found[0].run.model.remat == 'none'
  asked, lines = [], []

  def plan(own):
    asked.append(own)
    return {'seconds': 1 / len(asked), 'fits': True}

  ranked = search.run(run, accelerator, 3, plan, lines.append)
  assert len(asked) == len(ranked) == 3
  assert len({(own.mesh, own.model.remat) for own in asked}) == 3
  assert [x['seconds'] for _, x in ranked] == [1 / 3, 1 / 2, 1]
  assert '--gin.Mesh.fsdp=' in ranked[0][0].flags

  def interrupted(own):
    if len(asked) == 4:
      raise KeyboardInterrupt
    return plan(own)

  assert len(search.run(run, accelerator, 3, interrupted, lines.append)) == 1
  assert 'interrupted' in lines[-1]


def test_a_search_says_all_that_makes_its_mesh():
  run, _ = make_programs.case('t5_fsdp')
  accelerator = accelerators.parse('2xv5e-4')
  for candidate in search.candidates(run, accelerator):
    given = dict(
      flag.removeprefix('--gin.').split('=') for flag in candidate.flags.split()
    )
    sizes = {
      k.removeprefix('Mesh.'): int(n)
      for k, n in given.items()
      if k.startswith('Mesh.')
    }
    found = partitioning.check_mesh(specs.Mesh(**sizes), 8, 2)
    assert found == candidate.sizes


def test_a_search_that_finds_nothing_says_what_the_least_needs():
  run = config.load(['t5/1_1_xxl'], ['Run.batch_size=2048'])
  with pytest.raises(errors.ConfigError, match='no way to train it fits') as e:
    search.run(run, accelerators.parse('v5e-4'), 1, None, print)
  assert 'GiB a chip: --gin.Mesh' in str(e.value)


def test_a_program_is_kept_by_all_that_it_hangs_on(monkeypatch, tmp_path):
  monkeypatch.setenv('T5X_LITE_CACHE', str(tmp_path))
  run, accelerator = make_programs.case('t5_fsdp')
  home = compiling.home(run, accelerator)
  more = dataclasses.replace(run, steps=run.steps + 1)
  assert compiling.home(more, accelerator) == home
  wider = dataclasses.replace(run, batch_size=2 * run.batch_size)
  assert compiling.home(wider, accelerator) != home
  assert compiling.home(run, accelerator, fast=True) != home
  keep(home)
  assert compiling.compile(run, accelerator).cached
  monkeypatch.setenv('XLA_FLAGS', '--xla_other')
  assert compiling.home(run, accelerator) != home


def keep(home):
  """A program as it is kept, which was compiled before."""
  home.mkdir(parents=True)
  facts, text = make_programs.stored('t5_fsdp')
  (home / 'facts.json').write_text(json.dumps(facts))
  (home / 'program.hlo.gz').write_bytes(gzip.compress(text.encode()))


@pytest.mark.parametrize('name', ['facts.json', 'program.hlo.gz'])
@pytest.mark.parametrize('damage', ['gone', 'short', 'turned'])
def test_a_damaged_program_is_compiled_again(
  name, damage, monkeypatch, tmp_path
):
  monkeypatch.setenv('T5X_LITE_CACHE', str(tmp_path))
  run, accelerator = make_programs.case('t5_fsdp')
  home = compiling.home(run, accelerator)
  keep(home)
  content = (home / name).read_bytes()
  if damage == 'gone':
    (home / name).unlink()
  else:
    middle = len(content) // 2
    turned = content[:middle] + b'\x00\xff' + content[middle + 2 :]
    (home / name).write_bytes(content[:99] if damage == 'short' else turned)
  monkeypatch.setattr(compiling, '_check_compiler', lambda platform: None)
  monkeypatch.setattr(compiling, '_compile', lambda asked, home: keep(home))
  found = compiling.compile(run, accelerator)
  assert not found.cached and found.module.entry


def test_a_compiler_that_fails_is_told_by_its_last_words(monkeypatch, tmp_path):
  monkeypatch.setenv('T5X_LITE_CACHE', str(tmp_path))
  monkeypatch.setattr(compiling, '_check_compiler', lambda platform: None)
  run, accelerator = make_programs.case('t5_fsdp')
  wrong = dataclasses.replace(run, mesh=specs.Mesh(fsdp=3))
  with pytest.raises(errors.DeviceError, match='the compiler failed') as e:
    compiling.compile(wrong, accelerator)
  assert 'Mesh does not fit 4 devices' in str(e.value) or e.value.__notes__
  assert not list(compiling.folder().glob('[!.]*'))  # nothing is kept of it


def test_a_full_disk_is_told_in_one_message(monkeypatch, tmp_path):
  """The compiler's process may write less than a program takes."""
  monkeypatch.setenv('T5X_LITE_CACHE', str(tmp_path))
  monkeypatch.setattr(compiling, '_check_compiler', lambda platform: None)
  code = (
    'import pathlib, resource, sys; from t5x_lite import storage; '
    'from t5x_lite.planning import compiler; '
    'resource.setrlimit(resource.RLIMIT_FSIZE, (999, 999)); '
    'compiler.compile_to = lambda request, folder: '
    "storage.write_text(folder / 'facts.json', 'x' * 9999); "
    'sys.exit(compiler.main(sys.argv[3:]))'
  )
  start = subprocess.Popen
  monkeypatch.setattr(
    compiling.subprocess,
    'Popen',
    lambda command, **options: start(
      [sys.executable, '-c', code, *command[1:]], **options
    ),
  )
  run, accelerator = make_programs.case('t5_fsdp')
  monkeypatch.setattr(compiling, 'request', lambda *_: {'platform': 'tpu'})
  with pytest.raises(errors.StorageError, match='cannot keep') as e:
    compiling.compile(run, accelerator)
  assert str(tmp_path / 'plans') in str(e.value)
  assert 'XDG_CACHE_HOME' in e.value.fix and e.value.exit_code == 7
  assert not list(compiling.folder().glob('*'))


def test_a_folder_that_takes_nothing_is_told_in_one_message(
  monkeypatch, tmp_path
):
  monkeypatch.setenv('T5X_LITE_CACHE', str(tmp_path))
  monkeypatch.setattr(compiling, '_check_compiler', lambda platform: None)

  def full(**_):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(compiling.tempfile, 'mkdtemp', full)
  with pytest.raises(errors.StorageError, match='No space left') as e:
    compiling.compile(*make_programs.case('t5_fsdp'))
  assert str(tmp_path / 'plans') in str(e.value)


def test_a_compiler_ends_with_whoever_asked(tmp_path):
  """Else it would go on for minutes, for nobody."""
  (tmp_path / 'request.json').write_text('{"record": {}}')

  def start(seconds):
    code = (
      'import sys, time; from t5x_lite.planning import compiler; '
      f'compiler.compile_to = lambda *_: time.sleep({seconds}); '
      f'sys.exit(compiler.main(["{tmp_path}/request.json", "{tmp_path}"]))'
    )
    return subprocess.Popen([sys.executable, '-c', code], stdin=subprocess.PIPE)

  with start(seconds=0) as child:  # while somebody still asks
    assert child.wait(30) == 0
  with start(seconds=60) as child:
    assert child.poll() is None
    child.stdin.close()
    assert child.wait(30) == 1


def test_no_compiler_is_told_with_what_to_install(monkeypatch, tmp_path):
  monkeypatch.setenv('T5X_LITE_CACHE', str(tmp_path))
  monkeypatch.setattr(compiling.importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(errors.ConfigError, match='no compiler for tpu'):
    compiling.compile(*make_programs.case('t5_fsdp'))


@PLANS
@pytest.mark.parametrize('name', GOLDEN)
def test_programs_come_out_as_those_that_are_kept(name, monkeypatch, tmp_path):
  pytest.importorskip('libtpu', reason='needs libtpu; run `make plans`')
  monkeypatch.setenv('T5X_LITE_CACHE', str(tmp_path))
  run, accelerator = make_programs.case(name)
  found = figures.of(run, accelerator, compiling.compile(run, accelerator))
  kept = figures.of(run, accelerator, compiled(name))
  assert found['flops']['ratio'] == pytest.approx(kept['flops']['ratio'], 0.01)
  assert found['seconds'] == pytest.approx(kept['seconds'], rel=0.1)
  assert found['memory']['peak'] == pytest.approx(
    kept['memory']['peak'], rel=0.1
  )
