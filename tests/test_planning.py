"""Plans: what is read off compiled programs, on programs known by hand."""

import dataclasses
import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite import chips
from t5x_lite import partitioning
from t5x_lite import specs
from t5x_lite import train
from t5x_lite.data import shapes
from t5x_lite.planning import collectives
from t5x_lite.planning import counting
from t5x_lite.planning import figures
from t5x_lite.planning import hlo
from t5x_lite.planning import loops
from t5x_lite.planning import memory
from t5x_lite.planning import network
from t5x_lite.planning import timing
from tests import tiny

PLANS = pathlib.Path(__file__).parent / 'golden' / 'plans'
# A loop of 3 turns by steps of 2, a product in it, and an update in place.
LOOP = (PLANS / 'loop.hlo').read_text()
MIB4 = 256 * 256 * 4


@pytest.fixture(scope='module')
def loop():
  return hlo.parse(LOOP)


@pytest.mark.parametrize(
  'text, bytes_, space',
  [
    ('f32[256,128]{1,0:T(8,128)}', 256 * 128 * 4, 0),
    ('bf16[3,100]{1,0:T(8,128)(2,1)}', 8 * 128 * 2, 0),
    ('bf16[3,100]{0,1:T(8,128)(2,1)S(1)}', 104 * 128 * 2, 1),
    ('f32[5]{0:T(256)}', 256 * 4, 0),
    ('s32[]{:T(128)}', 128 * 4, 0),
    ('pred[32,128]{1,0:T(32,128)(4,1)}', 32 * 128, 0),
    ('f32[7,5]{1,0}', 7 * 5 * 4, 0),
    ('s4[7,5]', 18, 0),
  ],
)
def test_arrays_are_as_large_as_their_tiles(text, bytes_, space):
  [array] = hlo._arrays(text)
  assert (array.bytes, array.space) == (bytes_, space)


def test_a_loop_is_counted_by_its_turns(loop):
  runs, turns, unknown = loops.count(loop)
  assert turns == {'w': 3}
  assert runs == {'main': 1, 'body': 3, 'condition': 4}
  assert not unknown


def test_a_loop_without_a_number_is_told():
  text = LOOP.replace('constant(5)', 'custom-call()')
  assert loops.count(hlo.parse(text))[2] == ['w']


def test_the_number_that_gpus_note_is_taken():
  text = LOOP.replace(
    'body=%body', 'body=%body, backend_config={"known_trip_count":{"n":"24"}}'
  )
  assert loops.count(hlo.parse(text))[1] == {'w': 24}


def test_the_source_is_the_innermost_line_of_this_package(loop):
  op = loop.computations['body'].ops['y']
  assert loop.source(op) == 't5x_lite/nn/modules.py:52'


def test_work_of_a_product_and_of_an_update_in_place(loop):
  body = loop.computations['body']
  product = counting.work(loop, body, body.ops['y'])
  assert product.flops == 2 * 256**3
  assert product.bytes == 3 * MIB4
  update = counting.work(loop, body, body.ops['new'])
  assert update.bytes == 2 * MIB4 and not update.flops


def test_memory_follows_a_loop_in_place(loop):
  found = memory.peak(loop)
  # Both arguments, the copy that the loop carries, a turn's scalars; what the
  # turn makes goes where the loop carries it.
  scalars = 128 * 4
  least = MIB4 + 6 * MIB4 + MIB4
  assert least <= found.bytes <= least + 8 * scalars


def test_arguments_that_are_donated_are_not_counted_twice(loop):
  assert loop.aliases == {1: 1}
  kept = hlo.parse(LOOP.replace(' {1}: (1, {}, may-alias) ', ''))
  assert memory.peak(kept).bytes >= memory.peak(loop).bytes


@pytest.mark.parametrize('seed', range(40))
def test_taps_that_fall_on_padding_are_not_counted(seed):
  rng = np.random.default_rng(seed)
  size, taps, outputs = (int(n) for n in rng.integers(1, 9, 3))
  low, stride, spread, apart = (
    int(rng.integers(-2, 5)),
    *(int(n) for n in rng.integers(1, 4, 3)),
  )
  brute = 0
  for o in range(outputs):
    for t in range(taps):
      place = o * stride + t * apart - low
      brute += place % spread == 0 and 0 <= place // spread < size
  found = counting._pairs(outputs, taps, size, (low, stride, spread, apart))
  assert found == brute


@pytest.mark.parametrize(
  'text, expected',
  [
    ('replica_groups={{0,1},{2,3}}', [[0, 1], [2, 3]]),
    ('replica_groups=[2,2]<=[4]', [[0, 1], [2, 3]]),
    ('replica_groups=[2,2]<=[2,2]T(1,0)', [[0, 2], [1, 3]]),
    ("replica_groups=mesh['a'=2,'b'=2] {'b'}", [[0, 1], [2, 3]]),
    ("replica_groups=mesh['a'=2,'b'=2] {'a'}", [[0, 2], [1, 3]]),
    ("replica_groups=mesh['a'=2,'b'=2] {'a','b'}", [[0, 1, 2, 3]]),
    ("replica_groups=mesh['a'=4] {'a':(1)2}", [[0, 2], [1, 3]]),
    ("replica_groups=mesh['a'=4] {'a':(2)2}", [[0, 1], [2, 3]]),
    (
      "replica_groups=mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'b'}",
      [[0, 2], [1, 3]],
    ),
    ('source_target_pairs={{0,1},{1,0}}', [[0, 1], [1, 0]]),
    ('replica_groups={}, use_global_device_ids=true', [[0, 1, 2, 3]]),
    ('', [[0, 1, 2, 3]]),
  ],
)
def test_groups_are_read_in_each_way_of_writing(text, expected):
  assert collectives.members(text, 4).tolist() == expected


def test_groups_in_another_way_of_writing_are_no_guess():
  with pytest.raises(ValueError, match='unknown kind'):
    collectives.members('replica_groups=all_of(4)', 4)


def test_axes_are_those_along_which_members_differ():
  mesh = {'data': 2, 'fsdp': 2, 'tensor': 2}
  along = lambda groups: collectives.axes(np.array(groups), mesh)
  assert along([[0, 1], [2, 3]]) == ('tensor',)
  assert along([[0, 2], [1, 3]]) == ('fsdp',)
  assert along([[0, 1, 2, 3], [4, 5, 6, 7]]) == ('fsdp', 'tensor')


EXCHANGE = (PLANS / 'exchange.hlo').read_text()


def square():
  """A v5e-16: 4 x 4, its rows the axis fsdp, its columns tensor."""
  coords = [(x, y, 0) for x in range(4) for y in range(4)]
  return network.Network.of(chips.CHIPS['v5e'], np.zeros(16, int), coords)


def test_what_is_exchanged_meanwhile_is_hidden():
  module = hlo.parse(EXCHANGE)
  exchanges = collectives.find(module, {'main': 1}, np.zeros(16, int))
  [x] = exchanges['main']
  whole = 4096 * 4096 * 2
  assert (x.kind, x.payload, x.start, x.done) == ('all-gather', whole, 's', 'd')
  assert x.sent == whole * 3 / 4
  assert collectives.overlapped(module, module.entry, x)
  mesh = {'fsdp': 4, 'tensor': 4}
  assert collectives.axes(x.groups, mesh) == ('fsdp',)
  rates = timing.Rates(flops=1.0, bandwidth=1.0, overhead=0.0)
  net = square()
  times = timing.Clock(module, {}, exchanges, net, rates).step()
  product = 2 * 4096**3 / 197e12
  exchange = x.sent / (50e9 * chips.LINK_REACHED) + 4e-6
  assert times.ici == pytest.approx(exchange)
  assert times.compute == pytest.approx(2 * product)
  # The first product hides all of it that is no longer than it.
  assert times.exposed == pytest.approx(max(0, exchange - product))
  assert times.total == pytest.approx(max(product, exchange) + product)
  at_once = EXCHANGE.replace('all-gather-start', 'all-gather').replace(
    '(bf16[1024,4096]{1,0:T(8,128)(2,1)}, bf16[4096,4096]{1,0:T(8,128)(2,1)})'
    ' all-gather',
    'bf16[4096,4096]{1,0:T(8,128)(2,1)} all-gather',
  )
  at_once = at_once.replace('all-gather-done(%s)', 'copy(%s)')
  module = hlo.parse(at_once)
  exchanges = collectives.find(module, {'main': 1}, np.zeros(16, int))
  times = timing.Clock(module, {}, exchanges, net, rates).step()
  assert times.exposed == pytest.approx(exchange)


@pytest.mark.parametrize(
  'sides, members, links',
  [
    ((4, 4), [0, 1, 2, 3], 1),  # a line of a small slice
    ((16, 16), list(range(16)), 2),  # a closed ring
    ((16, 16), list(range(256)), 4),  # both rings
    ((16, 16), [0, 4, 8, 12], 0.5),  # each fourth: three others pass through
    ((16, 16), [0, 1, 2, 3], 1),  # a part of a ring
  ],
)
def test_rings_have_as_many_links_as_the_torus_gives(sides, members, links):
  coords = [(x, y, 0) for x in range(sides[0]) for y in range(sides[1])]
  slices = np.zeros(math.prod(sides), int)
  net = network.Network.of(chips.CHIPS['v5e'], slices, coords)
  bandwidth, _, _ = net._ring(np.array(members))
  assert bandwidth == pytest.approx(links * 50e9 * chips.LINK_REACHED)


def test_slices_exchange_by_the_data_centre_network():
  coords = [(x, y, 0) for _ in range(2) for x in range(4) for y in range(4)]
  slices = np.repeat([0, 1], 16)
  net = network.Network.of(chips.CHIPS['v5e'], slices, coords)
  groups = np.arange(32).reshape(2, 16).T
  assert net.crosses(groups)
  x = collectives.Collective('all-reduce', groups, 10**9, 10**9, 's', 's', None)
  ici, dcn, sides = net.seconds(x)
  assert (ici, sides) == (0, ())
  assert dcn == pytest.approx(10**9 / chips.CHIPS['v5e'].dcn_bandwidth)


def test_a_compiled_scan_counts_what_it_does():
  """A program of XLA itself, of this machine."""
  layers, rows, width = 5, 64, 128

  def f(w_NEE, x_BE):
    def turn(x_BE, w_EE):
      return jnp.tanh(x_BE @ w_EE), None

    return jax.lax.scan(turn, x_BE, w_NEE)[0].sum()

  shapes = (
    jax.ShapeDtypeStruct((layers, width, width), jnp.float32),
    jax.ShapeDtypeStruct((rows, width), jnp.float32),
  )
  text = jax.jit(jax.grad(f)).lower(*shapes).compile().as_text()
  module = hlo.parse(text)
  runs, _, unknown = loops.count(module)
  total = sum(
    times * counting.flops(module, module.computations[name], op)
    for name, times in runs.items()
    for op in module.computations[name].ops.values()
  )
  assert not unknown
  # Forward, and of each factor's gradient as much; the first has none of x.
  assert total == 2 * rows * width * width * 3 * layers


def test_what_is_updated_in_place_is_read_though_nothing_else_uses_it():
  """Aliases alone do not say that a fusion makes a piece of an exchange."""
  array = 'f32[256,128]{1,0:T(8,128)}'
  row = 'f32[8,128]{1,0:T(8,128)}'
  module = hlo.parse(f"""HloModule m, is_scheduled=true

%f (a: f32[256,128], b: f32[8,128], i: s32[]) -> f32[256,128] {{
  %a = {array} parameter(0)
  %b = {row} parameter(1)
  %i = s32[]{{:T(128)}} parameter(2)
  ROOT %u = {array} dynamic-update-slice(%a, %b, %i, %i)
}}

ENTRY %main (x: f32[256,128], y: f32[8,128], z: s32[]) -> f32[256,128] {{
  %x = {array} parameter(0)
  %y = {row} parameter(1)
  %z = s32[]{{:T(128)}} parameter(2)
  ROOT %g = {array} fusion(%x, %y, %z), kind=kLoop, calls=%f, \
output_to_operand_aliasing={{{{}}: (0, {{}})}}
}}
""")
  fused = module.entry.root
  plain = dataclasses.replace(fused, attributes='calls=%f')
  found = counting.moved(module, module.entry, fused)
  assert found == counting.moved(module, module.entry, plain)
  assert found >= 2 * 8 * 128 * 4


def test_text_that_is_no_program_is_refused():
  with pytest.raises(ValueError, match='no entry'):
    hlo.parse('HloModule x\n')


def test_what_hosts_send_between_slices_is_an_exchange():
  """As libtpu writes it, each device with its like of the other slices."""
  told = (
    'is_host_transfer=true, frontend_attributes={'
    '_xla_host_transfer_rendezvous="all-reduce.1_0",'
    '_xla_megascale_target="{1,2}x{0:3}",'
    '_xla_megascale_transfer_type="ALL_REDUCE"}'
  )
  state = '(f32[8,128]{1,0}, u32[], token[])'
  text = f"""HloModule jit_h, is_scheduled=true

ENTRY %main (a: f32[8,128]) -> f32[8,128] {{
  %a = f32[8,128]{{1,0}} parameter(0)
  %t = token[] after-all()
  %s = {state} send(%a, %t), channel_id=2, {told}
  %u = token[] send-done(%s), channel_id=2
  %r = {state} recv(%t), channel_id=1, {told}
  %d = (f32[8,128]{{1,0}}, token[]) recv-done(%r), channel_id=1
  ROOT %g = f32[8,128]{{1,0}} get-tuple-element(%d), index=0
}}
"""
  module = hlo.parse(text)
  slices = np.repeat([0, 1], 4)
  [x] = collectives.find(module, {'main': 1}, slices)['main']
  assert (x.kind, x.start, x.done) == ('all-reduce', 's', 'd')
  assert x.groups.tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
  assert x.sent == x.payload == 8 * 128 * 4
  coords = [(i % 2, i // 2, 0) for i in range(4)] * 2
  net = network.Network.of(chips.CHIPS['v5e'], slices, coords)
  times = timing.Clock(
    module, {}, {'main': [x]}, net, timing.Rates(overhead=0.0)
  ).step()
  wait = x.sent / chips.CHIPS['v5e'].dcn_bandwidth
  assert times.dcn == times.total == times.exposed == pytest.approx(wait)


def unexpected(rules, monkeypatch):
  """What a step exchanges beside the design under other rules: {(kind, axes)}.

  Compiled for the devices here, with their places in the program.
  """
  run = tiny.run(mesh=specs.Mesh(data=2, fsdp=4))
  mesh = partitioning.make_mesh(run.mesh)
  with monkeypatch.context() as patch:
    patch.setattr(figures, '_SMALL', 1)
    for axis, places in rules.items():
      patch.setitem(partitioning.RULES, axis, places)
    with jax.set_mesh(mesh):
      program = train.Program.build(run, mesh)
      text = program.compile_step(shapes.batch(run)).as_text()
    module = hlo.parse(text)
    runs, _, _ = loops.count(module)
    found = {}
    for exchanges in collectives.find(
      module, runs, np.zeros(mesh.size, int)
    ).values():
      for x in exchanges:
        axes = collectives.axes(x.groups, dict(mesh.shape))
        if not figures.expected(x, axes):
          found.setdefault((x.kind, axes), []).append(x.op.op_name)
  return found


def test_a_bad_rule_shows_by_its_axis_and_product(monkeypatch):
  """Feed-forward shared out over what shares the batch: weights come around."""
  good = unexpected({}, monkeypatch)
  bad = unexpected({'mlp': ('data',)}, monkeypatch)
  new = bad.keys() - good.keys()
  assert ('all-gather', ('data',)) in new
  names = ' '.join(bad['all-gather', ('data',)])
  # Of the feed-forward layer; JAX 0.12 gathers where its result is laid out.
  newer = jax.__version_info__ >= (0, 12)
  assert (
    'while/body/eval_jaxpr/sharding_constraint' if newer else 'BLF'
  ) in names
