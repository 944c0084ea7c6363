"""Folders of Hugging Face: read, written, and refused.

The folders were saved by transformers (golden/make_huggingface.py); the live
comparison is in test_oracle_huggingface.py.
"""

import dataclasses
import json
import pathlib
import shutil

import ml_dtypes
import numpy as np
import pytest

from t5x_lite import config
from t5x_lite import errors
from t5x_lite import models
from t5x_lite import recipes
from t5x_lite import specs
from t5x_lite import storage
from t5x_lite.interop import families
from t5x_lite.interop import huggingface
from t5x_lite.interop import names
from t5x_lite.interop import safetensors
from t5x_lite.interop import tensors
from tests import exact
from tests import hugging
from tests import systems

GOLDEN = pathlib.Path(__file__).parent / 'golden' / 'huggingface'
IDS = {'pad_token_id': 0, 'eos_token_id': 1, 'decoder_start_token_id': 0}


def logits(spec, params, seed):
  with exact.float64():
    model = models.build(dataclasses.replace(spec, dtype='float64'))
    tree = {path: x.astype(np.float64) for path, x in params.items()}
    batch = systems.make_batch(spec, seed)
    return np.asarray(exact.run(model.apply)(exact.nest(tree), batch)), batch


def write(folder, spec, params, dtype='float32', shard_size=10**9):
  folder.mkdir()
  huggingface.write(folder, spec, params.get, dtype, shard_size, IDS)


def arrays(folder):
  return {name: x.read() for name, x in safetensors.read(folder).items()}


# -- both ways ----------------------------------------------------------------


@pytest.mark.parametrize('seed, name', [*enumerate(hugging.MODELS)])
def test_t5x_198_hf_16853_20801_maxtext_551_easylm_7_megatron_178_both_ways(
  tmp_path, seed, name
):
  """Conversion that was asked for there, and in these.

  transformers#20907 (`t5_encoder`), #21650, #22573; Megatron#139;
  accelerate#1252.
  """
  _, spec, params = huggingface.read(GOLDEN / name)
  found_BLV, batch = logits(spec, params, seed)
  valid_BL = batch[f'{models.build(spec).side}_segment_ids'] > 0
  wanted_BLV = np.load(GOLDEN / name / 'logits.npy', allow_pickle=False)
  np.testing.assert_allclose(
    found_BLV[valid_BL], wanted_BLV[valid_BL], rtol=0, atol=1e-9
  )
  write(storage.path(tmp_path) / 'out', spec, params)
  theirs, ours = arrays(GOLDEN / name), arrays(tmp_path / 'out')
  for path, array in theirs.items():
    np.testing.assert_array_equal(ours[path], array, path)
  if name != 't5_shared':  # whose encoder transformers leaves out
    assert theirs.keys() == ours.keys()
  _, again, read = huggingface.read(tmp_path / 'out')
  assert again == spec
  for path, array in params.items():
    np.testing.assert_array_equal(read[path], array, path)
  before = json.loads((GOLDEN / name / 'config.json').read_text())
  after = json.loads((tmp_path / 'out' / 'config.json').read_text())
  for key in ('architectures', 'model_type'):
    assert before[key] == after[key]


@pytest.mark.parametrize('name', ['t5_1_1', 'gpt2', 'llama', 'marian_bias'])
def test_shards_and_bfloat16(tmp_path, name):
  _, spec, params = huggingface.read(GOLDEN / name)
  write(tmp_path / 'out', spec, params, 'bfloat16', shard_size=2000)
  assert len(list((tmp_path / 'out').glob('model-*-of-*.safetensors'))) > 2
  assert {x.dtype for x in arrays(tmp_path / 'out').values()} == {
    np.dtype(ml_dtypes.bfloat16)
  }
  _, _, read = huggingface.read(tmp_path / 'out')
  narrow = {path: x.astype(ml_dtypes.bfloat16) for path, x in params.items()}
  for path, array in narrow.items():
    np.testing.assert_array_equal(read[path], array.astype(np.float32), path)
  # What is narrow stays as it is.
  write(tmp_path / 'again', spec, read, 'bfloat16')
  for path, array in arrays(tmp_path / 'out').items():
    np.testing.assert_array_equal(arrays(tmp_path / 'again')[path], array)


@pytest.mark.parametrize('name', [r.name for r in recipes.table()])
def test_a_recipe_has_all_its_tensors_or_is_refused(name):
  spec = config.load([name]).model
  try:
    family, said = families.of_spec(spec)
  except errors.ConfigError as e:
    assert 'no model of Hugging Face computes' in str(e)
    refused = 'gpt3/', 't5/lm_', 't5/prefix_lm_', 'gpt/finetune'
    assert name.startswith(refused)
    return
  wanted = names.pieces(family, spec)
  count = sum(np.prod(piece.shape, dtype=int) for piece in wanted)
  assert count == models.build(spec).num_params
  every = [x for piece in wanted for x in (piece.name, *piece.copies)]
  assert len(every) == len(set(every))
  assert said['architectures'] == [family.classes[said['model_type']]]


def changed(folder, tmp_path, **changes):
  """A copy of a golden folder with other settings; None takes one away."""
  out = tmp_path / 'changed'
  shutil.copytree(GOLDEN / folder, out)
  said = json.loads((out / 'config.json').read_text())
  for key, value in changes.items():
    said.pop(key, None)
    if value is not None:
      said[key] = value
  (out / 'config.json').write_text(json.dumps(said))
  return out


def replaced(folder, change):
  """Changes the tensors of a folder by a function of {name: array}."""
  found = arrays(folder)
  change(found)
  (folder / 'model.safetensors').unlink()
  safetensors.write(
    storage.path(folder), {k: tensors.held(x) for k, x in found.items()}
  )


def test_maxtext_2914_t5x_1213_a_padded_vocabulary_goes_through(tmp_path):
  _, spec, params = huggingface.read(GOLDEN / 'llama_tied')
  table = params['token_embedder/embedding']
  padded = np.pad(table, ((0, 128 - len(table)), (0, 0)))
  params['token_embedder/embedding'] = padded
  spec = dataclasses.replace(spec, vocab_size=128)
  write(tmp_path / 'out', spec, params)
  said, again, read = huggingface.read(tmp_path / 'out')
  assert said['vocab_size'] == again.vocab_size == 128
  np.testing.assert_array_equal(read['token_embedder/embedding'], padded)


@pytest.mark.parametrize('name', ['gpt2', 'gpt', 'gpt_neo', 'llama', 'marian'])
def test_a_file_of_the_bare_model_lacks_the_prefix(tmp_path, name):
  folder = changed(name, tmp_path)
  prefix = families.of_config(huggingface.read_config(folder), folder).prefix

  def strip(found):
    for key in list(found):
      found[key.removeprefix(prefix)] = found.pop(key)

  replaced(folder, strip)
  _, spec, params = huggingface.read(folder)
  _, same, wanted = huggingface.read(GOLDEN / name)
  assert spec == same
  for path, array in wanted.items():
    np.testing.assert_array_equal(params[path], array)


def test_what_old_files_say_twice_must_be_the_same(tmp_path):
  folder = changed('t5_1_0', tmp_path)
  name = 'encoder.embed_tokens.weight'
  replaced(folder, lambda x: x.update({name: x['shared.weight']}))
  huggingface.read(folder)
  replaced(folder, lambda x: x.update({name: x['shared.weight'] + 1}))
  with pytest.raises(errors.CheckpointError, match='one and the same'):
    huggingface.read(folder)


def test_sinusoids_in_a_file_are_the_models(tmp_path):
  folder = changed('marian', tmp_path)
  name = 'model.encoder.embed_positions.weight'
  rates = 10_000 ** -(np.arange(0, 12, 2) / 12)
  angles = np.arange(64)[:, None] * rates
  table = np.concatenate([np.sin(angles), np.cos(angles)], 1)
  replaced(folder, lambda x: x.update({name: table.astype(np.float32)}))
  huggingface.read(folder)
  replaced(folder, lambda x: x.update({name: table[::-1].copy()}))
  with pytest.raises(errors.CheckpointError, match='other values'):
    huggingface.read(folder)


def test_gpt_has_no_inner_width_of_its_own(tmp_path):
  """Its class looks at no n_inner, whatever config.json says."""
  folder = changed('gpt', tmp_path, n_inner=20)
  assert huggingface.read(folder)[1].mlp_dim == 48


def test_an_activation_by_itself_counts(tmp_path):
  folder = changed('t5_1_1', tmp_path, dense_act_fn='relu')
  assert huggingface.read(folder)[1].activation == 'relu'


def test_buffers_of_old_versions_are_no_parameters(tmp_path):
  folder = changed('gpt2', tmp_path)
  mask = np.tri(16, dtype=np.uint8)[None, None]
  replaced(
    folder,
    lambda x: x.update(
      {'transformer.h.0.attn.bias': mask, 'transformer.h.1.attn.bias': mask}
    ),
  )
  huggingface.read(folder)


# -- what is refused ----------------------------------------------------------

WRONG = {
  'another kind': ('llama', {'model_type': 'llamo'}, 'did you mean llama'),
  'no kind': ('llama', {'model_type': None}, 'got None'),
  'size that is missing': ('llama', {'hidden_size': None}, 'hidden_size'),
  'size of text': ('llama', {'hidden_size': 'many'}, 'embed_dim'),
  'other vocabulary': ('t5_1_1', {'vocab_size': 24}, 'another shape'),
  'more layers': ('t5_1_1', {'num_layers': 4}, 'missing'),
  'fewer layers': ('t5_1_1', {'num_layers': 2}, 'left over'),
  't5x_1196 tied': (
    't5_1_1',
    {'tie_word_embeddings': True},
    'one and the same',
  ),
  't5x_1196 untied': ('t5_1_0', {'tie_word_embeddings': False}, 'lm_head'),
  'scaled positions': (
    'llama',
    {'rope_scaling': {'rope_type': 'llama3', 'factor': 8.0}},
    "'llama3'",
  ),
  'scaled positions of 5.0': (
    'llama',
    {'rope_parameters': {'rope_type': 'yarn', 'rope_theta': 500.0}},
    "'yarn'",
  ),
  'biases in one place': ('llama', {'attention_bias': True}, 'one place alone'),
  'heads that do not divide': ('gpt2', {'n_head': 5}, 'does not divide'),
  'rates of dropout': ('gpt2', {'attn_pdrop': 0.5}, 'rates of dropout differ'),
  'scaling by layer': (
    'gpt2',
    {'scale_attn_by_inverse_layer_idx': True},
    'scale_attn_by_inverse_layer_idx',
  ),
  'activation': ('gpt2', {'activation_function': 'mish'}, "'mish'"),
  'gate': ('t5_1_1', {'feed_forward_proj': 'double-gelu'}, 'double-gelu'),
  'norms before': ('marian', {'normalize_before': True}, 'normalize_before'),
  'uneven stacks': ('marian', {'decoder_ffn_dim': 7}, 'decoder_ffn_dim 7'),
  'kind of attention': (
    'gpt_neo',
    {'attention_types': [[['global', 'sparse'], 2]], 'attention_layers': None},
    'sparse',
  ),
  'attention types that are none': (
    'gpt_neo',
    {'attention_types': 7},
    'config of GPT-Neo is broken',
  ),
  'no encoder': ('t5_1_1', {'num_layers': 0}, 'has no encoder'),
  'no decoder': ('t5_1_1', {'num_decoder_layers': 0}, "'T5EncoderModel'"),
  'only the encoder of both': (
    't5_1_0',
    {'architectures': ['T5EncoderModel']},
    'left over',
  ),
  'kind that is a list': ('llama', {'model_type': []}, 'got []'),
  'no heads': ('gpt2', {'n_head': 0}, 'is broken'),
  'no heads of Marian': (
    'marian',
    {'encoder_attention_heads': 0, 'decoder_attention_heads': 0},
    'is broken',
  ),
  'angle of many digits': ('llama', {'rope_theta': 10**400}, 'is broken'),
  'no types of attention': ('gpt_neo', {'attention_types': []}, 'got 0 for 4'),
  'types of too many layers': (
    'gpt_neo',
    {'attention_types': [[['global'], 10**9]]},
    'for 4',
  ),
  'layers that differ': (
    'gpt_neo',
    {'attention_layers': ['local'] * 4},
    'attention_layers',
  ),
  'no window': ('gpt_neo', {'window_size': 0}, 'window_size'),
  'very many layers': ('gpt2', {'n_layer': 10**7}, 'more layers than'),
  'heads by another name': (
    'gpt2',
    {'num_attention_heads': 4},
    'n_head 3, num_attention_heads 4',
  ),
  'activation by itself': ('t5_1_1', {'dense_act_fn': 'mish'}, "'mish'"),
  'gate by itself': ('t5_1_1', {'is_gated_act': False}, 'left over'),
  'stacks that are one': ('marian', {'tie_encoder_decoder': True}, 'tie_enc'),
  'Marian without an encoder': ('marian', {'encoder_layers': 0}, '0 layers'),
  'scale of T5 by itself': (
    't5_1_0',
    {'scale_decoder_outputs': False},
    'scale_decoder_outputs',
  ),
  'untied GPT-2': ('gpt2', {'tie_word_embeddings': False}, 'tie_word_embed'),
}


@pytest.mark.parametrize('name', WRONG)
def test_configs_that_are_wrong(tmp_path, name):
  base, changes, said = WRONG[name]
  with pytest.raises(errors.CheckpointError) as e:
    huggingface.read(changed(base, tmp_path, **changes))
  assert said in str(e.value)
  assert len(str(e.value).splitlines()) <= 12


@pytest.mark.parametrize(
  'content, said',
  [
    (None, 'config.json'),
    (b'', 'not a JSON'),
    (b'[1]', 'JSON list'),
    (b'{"a": 1, "a": 2}', 'twice'),
    (b' ' * (2 << 20), 'too large'),
    (b'\xff\xfe', 'UTF-8'),
  ],
)
def test_config_files_that_are_none(tmp_path, content, said):
  folder = changed('llama', tmp_path)
  (folder / 'config.json').unlink()
  if content is not None:
    (folder / 'config.json').write_bytes(content)
  with pytest.raises(errors.CheckpointError, match=said):
    huggingface.read(folder)


def test_a_config_as_windows_writes_it(tmp_path):
  """A byte order mark of UTF-8 says nothing; of UTF-16 it is refused above."""
  folder = changed('llama', tmp_path)
  wanted = huggingface.read_config(folder)
  file = folder / 'config.json'
  file.write_bytes(b'\xef\xbb\xbf' + file.read_bytes())
  assert huggingface.read_config(folder) == wanted


def test_weights_of_torch_need_an_option(tmp_path):
  folder = changed('llama', tmp_path)
  (folder / 'model.safetensors').rename(folder / 'pytorch_model.bin')
  with pytest.raises(errors.CheckpointError, match='--torch_files'):
    huggingface.read(folder)
  (folder / 'pytorch_model.bin').unlink()
  with pytest.raises(errors.CheckpointError, match='no weights'):
    huggingface.read(folder)


def test_integers_are_no_weights(tmp_path):
  folder = changed('llama', tmp_path)
  name = 'model.norm.weight'
  replaced(folder, lambda x: x.update({name: x[name].astype(np.int32)}))
  with pytest.raises(errors.CheckpointError, match='int32.*floating point'):
    huggingface.read(folder)


@pytest.mark.parametrize(
  'name, changes, said',
  [
    ('gpt2', dict(norm=specs.RMSNorm()), 'norm'),
    ('gpt2', dict(norm_place='both'), 'norm_place'),
    ('gpt2', dict(position=None), 'position'),
    ('gpt2', dict(qkv_bias=False), 'qkv_bias'),
    ('llama', dict(windows=(0, 4)), 'windows'),
    ('llama', dict(position=specs.Rope(pairs='neighbours')), 'position'),
    ('llama', dict(embedding_norm=True), 'embedding_norm'),
    ('t5_1_1', dict(scale_logits=False, tie_embeddings=True), 'scale_logits'),
    ('t5_1_1', dict(encoder_layers=0), None),
    ('t5_1_1', dict(num_kv_heads=1), 'num_kv_heads'),
    ('marian', dict(classes=3), 'classes'),
    ('marian', dict(encoder_layers=0), None),
    ('t5_1_1', dict(decoder_layers=0), 'tie_embeddings'),
    ('gpt', dict(mlp_dim=20), 'mlp_dim'),
  ],
)
def test_models_that_no_class_computes(name, changes, said):
  spec = hugging.make(name, **changes)
  with pytest.raises(errors.ConfigError) as e:
    families.of_spec(spec)
  assert (f'Transformer.{said}' if said else 'no encoder') in str(e.value)


@pytest.mark.parametrize(
  'changes',
  [
    dict(dtype='bfloat16', remat='full', unroll=2, attention='chunked'),
    dict(dropout=0.3, dropout_kind='t5', init=specs.Glorot()),
    dict(windows=(0,), num_kv_heads=4, qkv_bias=False, scale_logits=False),
  ],
)
def test_what_changes_no_result_is_no_hindrance(changes):
  spec = hugging.make('llama_tied', tie_embeddings=False, **changes)
  family, _ = families.of_spec(spec)
  assert family.title == 'LLaMA'


def test_megatron_178_139_hf_21650_absolute_positions_are_no_t5():
  """Megatron's T5 has them: no T5 of Hugging Face computes what it does."""
  spec = hugging.make('t5_1_1', position=specs.Learned(length=16))
  with pytest.raises(errors.ConfigError) as e:
    families.of_spec(spec)
  assert 'no model of Hugging Face' in str(e.value)
  family, _ = families.of_spec(hugging.make('t5_1_1'))
  assert family.title == 'T5'


def test_easylm_15_easydel_5_86_pairs_of_positions_are_not_mixed_up(tmp_path):
  """EasyLM#15, EasyDeL#5, #86: another layout of pairs gave garbage.

  LLaMA turns halves; a model of neighbours is refused, and not written as one.
  """
  _, spec, params = huggingface.read(GOLDEN / 'llama')
  assert spec.position.pairs == 'halves'
  other = dataclasses.replace(spec.position, pairs='neighbours')
  spec = dataclasses.replace(spec, position=other)
  with pytest.raises(errors.ConfigError, match='Transformer.position'):
    write(tmp_path / 'out', spec, params)
