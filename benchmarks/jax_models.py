"""Our own training step, as `t5x_lite train` compiles it."""

from t5x_lite import allocator

allocator.keep_freed_memory()  # before JAX is imported, as the commands do

import jax  # noqa: E402
import numpy as np  # noqa: E402

from t5x_lite import partitioning  # noqa: E402
from t5x_lite import specs  # noqa: E402
from t5x_lite import train  # noqa: E402


def transformer(shape, **changes):
  """specs.Transformer of a shape: T5 1.1, or GPT-2 without tied logits."""
  same = 'vocab_size decoder_layers embed_dim mlp_dim num_heads head_dim'
  fields = {name: shape[name] for name in same.split()}
  fields['unroll'] = shape['decoder_layers']  # what suits a CPU
  if shape['t5']:
    fields['encoder_layers'] = shape['encoder_layers']
  else:
    fields |= dict(
      position=specs.Learned(length=shape['targets']),
      norm=specs.LayerNorm(),
      gated=False,
      bias=True,
      scale_attention=True,
      init=specs.Normal(),
    )
  return specs.Transformer(**fields | changes)


def features(tokens, targets):
  """The batch of a model: full rows, each one example."""
  sides = ('encoder', 'decoder')[-len(tokens) :]
  found = {
    'decoder_target_tokens': targets,
    'decoder_loss_weights': np.ones(targets.shape, np.float32),
  }
  for side, x in zip(sides, tokens):
    found[f'{side}_input_tokens'] = x
    found[f'{side}_segment_ids'] = np.ones_like(x)
    found[f'{side}_positions'] = np.zeros_like(x) + np.arange(
      x.shape[1], dtype=np.int32
    )
  return found


def products(jaxpr):
  """Operations of all matrix products of a program, loops multiplied out."""
  total = 0
  for eqn in jaxpr.eqns:
    if eqn.primitive.name == 'dot_general':
      (contracted, _), _ = eqn.params['dimension_numbers']
      summed = [eqn.invars[0].aval.shape[n] for n in contracted]
      total += 2 * int(np.prod(summed)) * eqn.outvars[0].aval.size
    times = eqn.params.get('length', 1) if eqn.primitive.name == 'scan' else 1
    for inner in jax.core.jaxprs_in_params(eqn.params):
      total += times * products(inner)
  return total


def train_step(shape, tokens, targets, **changes):
  """A function that makes one AdamW step, and its products' operations."""
  run = specs.Run(
    model=transformer(shape, **changes),
    objective=specs.SpanCorruption() if shape['t5'] else specs.CausalLM(),
    data=specs.Data(
      corpus='none',
      lengths={
        name: shape[name] for name in ('inputs', 'targets') if name in shape
      },
    ),
    optimizer=specs.AdamW(
      schedule=specs.Schedule(peak=1e-3, decay='constant'), weight_decay=0.01
    ),
    steps=10_000,
    batch_size=shape['batch'],
    loss_normalizer='NUM_REAL_TARGET_TOKENS',
  )
  program = train.Program.build(run, partitioning.make_mesh(run.mesh))
  batch = features(tokens, targets)
  step = train.make_train_step(run, program.model, program.optimizer)
  traced = jax.make_jaxpr(step)(program.abstract_state, batch)
  compiled = program.compile_step(batch)
  batch = partitioning.put_batch(batch, program.mesh, run.batch_size)
  state = program.init()

  def one():
    nonlocal state
    state, metrics = compiled(state, batch)
    return float(metrics['loss'])

  return one, products(traced.jaxpr)
