"""The training step on CPUs: ours, PyTorch's and Hugging Face's by turns.

float32, AdamW, no dropout, full rows, the same matrix products for each (their
operations are counted in each one's own program and printed). Needs the extra
`oracle`, and a C++ compiler for torch.compile.
"""

import argparse
import pathlib
import statistics
import sys

import numpy as np
import turns

SHAPES = {
  't5': dict(
    t5=True,
    vocab_size=8192,
    encoder_layers=4,
    decoder_layers=4,
    embed_dim=256,
    mlp_dim=1024,
    num_heads=4,
    head_dim=64,
    batch=16,
    inputs=256,
    targets=64,
  ),
  'gpt': dict(
    t5=False,
    vocab_size=8192,
    decoder_layers=6,
    embed_dim=256,
    mlp_dim=1024,
    num_heads=4,
    head_dim=64,
    batch=4,
    targets=512,
  ),
}
CONTENDERS = {  # name: (library, compiled)
  'ours': None,
  'torch': ('torch', False),
  'torch.compile': ('torch', True),
  'transformers': ('transformers', False),
  'transformers.compile': ('transformers', True),
}
WARM_UP = 3


def batch(shape):
  """(inputs and decoder inputs, or decoder inputs alone), and targets."""
  rng = np.random.default_rng(0)
  rows = lambda length: rng.integers(
    1, shape['vocab_size'], (shape['batch'], length), dtype=np.int32
  )
  tokens = [rows(shape['inputs'])] if shape['t5'] else []
  return [*tokens, rows(shape['targets'])], rows(shape['targets'])


def serve(name, shape):
  """What a contender's process does."""
  tokens, targets = batch(shape)
  if name == 'ours':
    import jax_models as maker

    step, flops = maker.train_step(shape, tokens, targets)
  else:
    import torch_models as maker

    step, flops = maker.train_step(shape, tokens, targets, *CONTENDERS[name])
  losses = [step() for _ in range(WARM_UP)]
  turns.serve(step, {'flops': flops, 'losses': losses})


def show(contenders, steps, cores):
  """Prints the table: seconds a step, operations, and ratios to ours."""
  print(
    f'{"":20} {"wall ms":>8} {"CPU ms":>8} {"GFLOP":>7} {"GFLOP/s":>8}'
    f'   {"wall / ours":18} {"CPU / ours":18} losses'
  )
  for contender in contenders:
    wall, cpu = (
      statistics.median(turns.seconds(contender, clock, steps))
      for clock in ('wall', 'cpu')
    )
    flops = contender.about['flops']
    against = ' '.join(
      '{:5.2f} ({:.2f}-{:.2f}) '.format(
        *turns.ratios(contender, contenders[0], clock)
      )
      for clock in ('wall', 'cpu')
    )
    losses = contender.about['losses'][0], contender.turns[-1]['losses'][-1]
    print(
      f'{contender.name:20} {wall * 1e3:8.1f} {cpu * 1e3:8.1f}'
      f' {flops / 1e9:7.1f} {flops / wall / 1e9:8.1f}   {against}'
      ' {:.4f} .. {:.4f}'.format(*losses)
    )


def main():
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--shape', choices=SHAPES, default='t5')
  parser.add_argument('--cores', default='0', help='processors, such as 0,1')
  parser.add_argument('--rounds', type=int, default=10)
  parser.add_argument('--steps', type=int, default=2, help='in each turn')
  parser.add_argument(
    '--contenders', nargs='+', choices=CONTENDERS, default=list(CONTENDERS)
  )
  parser.add_argument('--serve', choices=CONTENDERS, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.serve:
    return serve(args.serve, SHAPES[args.shape])
  cores = [int(core) for core in args.cores.split(',')]
  me = [sys.executable, str(pathlib.Path(__file__).resolve())]
  contenders = []
  try:
    for name in args.contenders:
      command = [*me, '--shape', args.shape, '--serve', name]
      contenders.append(turns.Contender(name, command, cores))
    turns.play(contenders, args.rounds, args.steps)
  finally:
    for contender in contenders:
      contender.stop()
  return show(contenders, args.steps, cores)


if __name__ == '__main__':
  main()
