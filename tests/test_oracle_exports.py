"""Exports of trained runs by AutoModel and AutoTokenizer. `make oracle`."""

import pytest

from t5x_lite import cli
from t5x_lite import infer
from tests import runs

torch = pytest.importorskip('torch', reason='needs torch; run `make oracle`')
transformers = pytest.importorskip(
  'transformers', reason='needs transformers; run `make oracle`'
)

pytestmark = pytest.mark.oracle

LM = {
  'Data.document': 'paragraph',
  'Data.lengths': "{'targets': 32}",
  'Run.batch_size': 8,
  'Run.steps': 30,
  'Evaluation.examples': 16,
  'Transformer.decoder_layers': 2,
  'Transformer.embed_dim': 32,
  'Transformer.mlp_dim': 48,
  'Transformer.num_heads': 2,
  'Transformer.head_dim': 16,
}
T5 = runs.SMALL | {'Run.steps': 30}
LLAMA = LM | {
  'Transformer.position': '@Rope()',
  'Transformer.norm': '@RMSNorm()',
  'Transformer.bias': 'False',
  'Transformer.gated': 'True',
  'Transformer.activation': 'silu',
}
# Name: recipe, kind of vocabulary, settings.
RUNS = {
  't5 of bytes': ('t5/bytes', None, T5),
  't5 of pieces': ('t5/bytes', 'unigram', T5),
  'gpt2 of bytes': ('gpt2/bytes', None, LM),
  'gpt2 of merges': ('gpt2/bytes', 'byte_bpe', LM),
  'llama of pieces': ('gpt2/bytes', 'bpe', LLAMA),
}
TEXTS = [
  'The statement is a list of names.',
  ' two spaces  and\ttabs, Größe 天 \U0001f680',
  'a',
]


def train(folder, recipe, kind, settings):
  corpus = runs.write_corpus(folder)
  if kind:
    file = folder / ('v/tokenizer.json' if kind == 'byte_bpe' else 'v.model')
    options = [f'--corpus={corpus}', f'--output={file}', f'--kind={kind}']
    assert cli.main(['vocab', '--size=600', *options]) == 0
    settings = settings | {
      'Data.vocabulary': file,
      'Transformer.vocab_size': 640,
    }
  options = [f'--gin.{name}={value}' for name, value in settings.items()]
  options += [f'--gin_file={recipe}', f'--corpus={corpus}']
  assert cli.main(['train', *options, f'--workdir={folder}/run']) == 0


@pytest.mark.parametrize('name', RUNS)
def test_generate_gives_what_infer_gives(tmp_path, name):
  train(tmp_path, *RUNS[name])
  out = tmp_path / 'out'
  options = [f'--workdir={tmp_path}/run', f'--output={out}']
  assert cli.main(['export', *options]) == 0
  tokenizer = transformers.AutoTokenizer.from_pretrained(out)
  kind = 'Seq2SeqLM' if name.startswith('t5') else 'CausalLM'
  auto = getattr(transformers, f'AutoModelFor{kind}')
  model, told = auto.from_pretrained(out, output_loading_info=True)
  assert not any(told[key] for key in told), told
  inputs = tokenizer(TEXTS, return_tensors='pt', padding=True)
  found = model.eval().generate(
    **inputs, max_new_tokens=16, do_sample=False, num_beams=1
  )
  if kind == 'CausalLM':
    found = found[:, inputs['input_ids'].shape[1] :]
  predictor = infer.Predictor(tmp_path / 'run')
  wanted = predictor.predict(TEXTS, 16)
  keep = predictor.vocabulary.sentinels > 0 and kind == 'Seq2SeqLM'
  for row, option in zip(found.tolist(), wanted, strict=True):
    eos = predictor.vocabulary.eos_id
    row = row[1:] if kind == 'Seq2SeqLM' else row  # the start token
    row = row[: row.index(eos)] if eos in row else row
    assert predictor.vocabulary.decode(row) == option['prediction']
    theirs = tokenizer.decode(row, clean_up_tokenization_spaces=False)
    if not keep:
      assert theirs == option['prediction']
