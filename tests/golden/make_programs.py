"""Programs that libtpu compiled, for tests of plans where it is not.

`python -m tests.golden.make_programs` makes them anew, by an environment that
has libtpu; `make plans` checks that they would come out alike.
"""

import gzip
import json
import pathlib
import re

from t5x_lite import accelerators
from t5x_lite import specs
from t5x_lite.planning import compiling
from tests import tiny

HOME = pathlib.Path(__file__).parent / 'plans'
SMALL = dict(
  vocab_size=512, embed_dim=256, mlp_dim=512, num_heads=4, head_dim=64
)
LLAMA = dict(
  encoder_layers=0,
  decoder_layers=4,
  position=specs.Rope(),
  scale_attention=True,
  dtype='bfloat16',
)
T5 = dict(encoder_layers=4, decoder_layers=4, dtype='bfloat16')
LENGTHS = {'inputs': 256, 'targets': 128}
SPANS = dict(objective=specs.SpanCorruption())
CAUSAL = dict(objective=specs.CausalLM())
CASES = {  # name: (model, the rest of the run, accelerator)
  't5_fsdp': (T5, SPANS | dict(mesh=specs.Mesh(data=1, fsdp=4)), 'v5e-4'),
  'llama_tensor': (
    LLAMA | dict(remat='full'),
    CAUSAL | dict(mesh=specs.Mesh(data=1, fsdp=2, tensor=2), microbatches=2),
    'v5e-4',
  ),
}


def case(name):
  """(specs.Run, accelerators.Accelerator) of a case."""
  model, rest, accelerator = CASES[name]
  lengths = dict(LENGTHS)
  if not model['encoder_layers']:
    del lengths['inputs']
  run = tiny.run(
    tiny.transformer(**SMALL | model),
    batch_size=16,
    data=specs.Data(corpus='none', lengths=lengths, extra_ids=20),
    **rest,
  )
  return run, accelerators.parse(accelerator)


def stored(name):
  """(facts, text of the program) of a case."""
  facts = json.loads((HOME / f'{name}.json').read_text())
  text = gzip.decompress((HOME / f'{name}.hlo.gz').read_bytes()).decode()
  return facts, text


def plain(text):
  """A program without the paths of the machine that compiled it."""
  ours = r'"/[^"]*/((?:t5x_lite|site-packages)/[^"]*)"'
  return re.sub(ours, r'"/at/\1"', text)


def main():
  HOME.mkdir(exist_ok=True)
  for name in CASES:
    home = compiling.home(*case(name))
    compiling.compile(*case(name))
    facts = json.loads((home / 'facts.json').read_text())
    text = gzip.decompress((home / 'program.hlo.gz').read_bytes()).decode()
    (HOME / f'{name}.json').write_text(json.dumps(facts) + '\n')
    packed = gzip.compress(plain(text).encode(), 9, mtime=0)
    (HOME / f'{name}.hlo.gz').write_bytes(packed)
    print(name, len(packed), 'bytes')


if __name__ == '__main__':
  main()
