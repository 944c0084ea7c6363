"""Decoding on CPUs: ours and Hugging Face's `generate` by turns.

float32, the same shapes, no sequence ends before its full length. A turn
decodes one batch, its inputs read anew. Needs the extra `oracle`.
"""

import argparse
import pathlib
import statistics
import sys

import numpy as np
import turns

MODEL = dict(
  vocab_size=8192,
  decoder_layers=6,
  embed_dim=256,
  mlp_dim=1024,
  num_heads=4,
  head_dim=64,
)
SHAPES = {
  't5': MODEL | dict(encoder_layers=4, decoder_layers=4),
  'gpt': MODEL,
}
BATCH, INPUTS = 8, 128
WARM_UP = 2


def ours(shape, kind, length, inputs):
  """A function that decodes a batch with t5x_lite."""
  from t5x_lite import allocator

  allocator.keep_freed_memory()
  import jax

  from t5x_lite import decoding
  from t5x_lite import models
  from t5x_lite import specs

  choices = dict(gated=False, activation='relu')
  if shape == 'gpt':
    choices = dict(
      position=specs.Learned(length=INPUTS + length + 1),
      norm=specs.LayerNorm(),
      bias=True,
      activation='gelu',
      gated=False,
      scale_attention=True,
      scale_logits=False,
    )
  model = models.build(
    specs.Transformer(tie_embeddings=True, **SHAPES[shape] | choices)
  )
  spec = {
    'greedy': specs.Greedy(),
    'beam': specs.Beam(beams=4),
    'sample': specs.Sample(),
    'top_k': specs.Sample(top_k=50),
    'top_p': specs.Sample(top_p=0.9),
  }[kind]
  params = jax.jit(model.init)(jax.random.key(0))
  # Prompts as generate has them: with no start token before those of a GPT.
  width = INPUTS if shape == 't5' else INPUTS - 1
  batch = decoding.prompts.batch(
    model.spec, list(inputs[:, -width:]), width, start_id=0
  )

  @jax.jit
  def run(params, batch):
    return decoding.decode(
      model, params, batch, spec, length, model.spec.vocab_size, eos_id=-1
    )

  return lambda: int(run(params, batch)[0][0, 0, -1])


def theirs(shape, kind, length, inputs):
  """A function that decodes a batch with transformers."""
  import torch
  import transformers

  sizes = SHAPES[shape]
  if shape == 't5':
    config = transformers.T5Config(
      vocab_size=sizes['vocab_size'],
      num_layers=sizes['encoder_layers'],
      num_decoder_layers=sizes['decoder_layers'],
      d_model=sizes['embed_dim'],
      d_ff=sizes['mlp_dim'],
      num_heads=sizes['num_heads'],
      d_kv=sizes['head_dim'],
      decoder_start_token_id=0,
    )
    model = transformers.T5ForConditionalGeneration(config).eval()
  else:
    config = transformers.GPT2Config(
      vocab_size=sizes['vocab_size'],
      n_layer=sizes['decoder_layers'],
      n_embd=sizes['embed_dim'],
      n_inner=sizes['mlp_dim'],
      n_head=sizes['num_heads'],
      n_positions=INPUTS + length,
    )
    model = transformers.GPT2LMHeadModel(config).eval()
  settings = transformers.GenerationConfig(
    max_new_tokens=length,
    num_beams=4 if kind == 'beam' else 1,
    do_sample=kind in ('sample', 'top_k', 'top_p'),
    top_k=50 if kind == 'top_k' else 0,
    top_p=0.9 if kind == 'top_p' else 1.0,
    length_penalty=0.6,
    early_stopping='never' if kind == 'beam' else False,
    eos_token_id=None,
    pad_token_id=0,
    decoder_start_token_id=0,
  )
  model.generation_config = settings
  ids = torch.from_numpy(inputs.astype(np.int64))

  def run():
    with torch.inference_mode():
      found = model.generate(
        ids, attention_mask=torch.ones_like(ids), generation_config=settings
      )
    assert found.shape == (BATCH, length + (1 if shape == 't5' else INPUTS))
    return int(found[0, -1])

  return run


def main():
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--shapes', nargs='+', default=list(SHAPES))
  parser.add_argument('--kinds', nargs='+', default=['greedy', 'beam'])
  parser.add_argument('--length', type=int, default=64, help='tokens decoded')
  parser.add_argument('--cores', default='0', help='processors, such as 0,1')
  parser.add_argument('--rounds', type=int, default=10)
  parser.add_argument('--serve', help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.serve:
    inputs = np.random.default_rng(0).integers(
      2, MODEL['vocab_size'], (BATCH, INPUTS), dtype=np.int32
    )
    maker = {'ours': ours, 'transformers': theirs}[args.serve]
    step = maker(args.shapes[0], args.kinds[0], args.length, inputs)
    for _ in range(WARM_UP):
      step()
    return turns.serve(step, {})
  cores = [int(core) for core in args.cores.split(',')]
  print(
    f'{BATCH} rows, {INPUTS} tokens of inputs, {args.length} decoded; '
    f'{len(cores)} core(s); median of {args.rounds} rounds (least to most)\n'
    f'{"":12} {"ours ms":>8} {"theirs":>8}   {"wall":18} CPU time'
  )
  for shape in args.shapes:
    for kind in args.kinds:
      one = [sys.executable, str(pathlib.Path(__file__).resolve())]
      one += ['--shapes', shape, '--kinds', kind, '--length', str(args.length)]
      contenders = []
      try:
        for name in ('ours', 'transformers'):
          contenders.append(
            turns.Contender(name, [*one, '--serve', name], cores)
          )
        turns.play(contenders, args.rounds, 1)
      finally:
        for contender in contenders:
          contender.stop()
      wall = [
        statistics.median(turns.seconds(contender, 'wall', 1)) * 1e3
        for contender in contenders
      ]
      ratios = [
        '{:5.2f} ({:.2f}-{:.2f})'.format(
          *turns.ratios(*contenders[::-1], clock)
        )
        for clock in ('wall', 'cpu')
      ]
      print(
        f'{shape:4} {kind:7} {wall[0]:8.1f} {wall[1]:8.1f}   '
        + '   '.join(ratios),
        flush=True,
      )
  return None


if __name__ == '__main__':
  main()
