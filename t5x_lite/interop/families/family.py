"""What a family of models at Hugging Face is told by."""

import dataclasses
import types
import typing

from t5x_lite import errors
from t5x_lite import specs

# Their names of activations, and those of specs.Transformer.
ACTIVATIONS = {
  'gelu_new': 'gelu',  # the first is what we write
  'gelu_pytorch_tanh': 'gelu',
  'gelu_fast': 'gelu',
  'gelu': 'gelu_exact',
  'relu': 'relu',
  'silu': 'silu',
  'swish': 'silu',
}
# Settings that change no result of a trained model.
_FREE = (
  'dtype',
  'remat',
  'unroll',
  'attention',
  'init',
  'dropout',
  'dropout_kind',
)


def activation(name, where):
  """Our name of theirs."""
  if name not in ACTIVATIONS:
    raise errors.CheckpointError(
      'activation is not supported',
      where=where,
      got=repr(name),
      expected=f'one of {", ".join(ACTIVATIONS)}',
    )
  return ACTIVATIONS[name]


def their_activation(name):
  """Their name of ours."""
  return next(theirs for theirs, ours in ACTIVATIONS.items() if ours == name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
  """Models of one kind, as config.json and as specs.Transformer has them.

  Attributes:
    title: for messages.
    classes: {model_type: the class that loads it}.
    position: the class of specs.Transformer.position.
    norm: the class of specs.Transformer.norm.
    sizes: {field of specs.Transformer: key of config.json} of the same value.
    defaults: of keys that a config.json may lack.
    fixed: fields of specs.Transformer that they all have alike.
    only: {key of config.json: the value that is supported}.
    same: {key of config.json: the key that it is another name of}.
    read: (config, where) -> further fields of specs.Transformer.
    write: (spec) -> further keys, with model_type.
    modules: (spec) -> {our module's path: theirs}; several of ours, joined by
      '+', are side by side in one of theirs; `{}` stands for the layer.
    prefix: of their names, which the file of a bare model lacks.
    turned: whether a kernel is [out, in], as torch.nn.Linear has it.
    copies: (spec) -> {our module: more names of the same, all of them written}.
    aliases: (spec) -> {our module: more names, where a file has them}.
    ignored: regular expressions of names that hold no parameter.
    constants: {regular expression: (shape) -> array}, of names that hold no
      parameter, and must hold this.
    lacked: {field of specs.Transformer: name}, of a row [1, V] that is zero
      where ours is without.
  """

  title: str
  classes: dict[str, str]
  position: type
  norm: type
  sizes: dict[str, str]
  defaults: dict = dataclasses.field(default_factory=dict)
  fixed: dict = dataclasses.field(default_factory=dict)
  only: dict = dataclasses.field(default_factory=dict)
  same: dict = dataclasses.field(default_factory=dict)
  read: typing.Callable
  write: typing.Callable
  modules: typing.Callable
  prefix: str = ''
  turned: bool = True
  copies: typing.Callable = lambda spec: {}
  aliases: typing.Callable = lambda spec: {}
  ignored: tuple[str, ...] = ()
  constants: dict = dataclasses.field(default_factory=dict)
  lacked: dict = dataclasses.field(default_factory=dict)

  def spec(self, config, where):
    """The specs.Transformer of a config.json.

    Args:
      config: its content.
      where: it is, for errors.

    Raises:
      CheckpointError: it lacks something, or asks for what is not supported.
    """
    config = types.MappingProxyType(self.defaults | config)
    for key, value in self.only.items():
      if config.get(key, value) != value:
        raise errors.CheckpointError(
          f'this {self.title} has what is not supported: {key}',
          where=where,
          got=repr(config[key]),
          expected=repr(value),
        )
    for key, other in self.same.items():
      if key in config and config[key] != config.get(other):
        raise errors.CheckpointError(
          f'config of {self.title} says two things of the same',
          where=where,
          got=f'{other} {config.get(other)!r}, {key} {config[key]!r}',
          fix=f'delete {key}, or make them equal',
        )
    try:
      fields = {ours: config[theirs] for ours, theirs in self.sizes.items()}
      return specs.Transformer(**fields | self.fixed | self.read(config, where))
    except KeyError as e:
      raise errors.CheckpointError(
        f'config of {self.title} lacks a setting', where=where, got=e.args[0]
      ) from None
    except errors.ConfigError as e:
      raise errors.CheckpointError(
        f'config of {self.title} makes no model', where=where, got=e
      ) from None
    except (ArithmeticError, AttributeError, TypeError, ValueError) as e:
      raise errors.CheckpointError(
        f'config of {self.title} is broken', where=where, got=e
      ) from None

  def config(self, spec):
    """(config.json of a spec, the fields of which it would say otherwise)."""
    kinds = {'position': self.position, 'norm': self.norm}
    differing = [
      f'Transformer.{name}'
      for name, kind in kinds.items()
      if not isinstance(getattr(spec, name), kind)
    ]
    if differing:
      return None, differing
    config = self.defaults | self.only
    config |= {theirs: getattr(spec, x) for x, theirs in self.sizes.items()}
    config |= self.write(spec)
    config['architectures'] = [self.classes[config['model_type']]]
    try:
      said = self.spec(config, 'config')
    except errors.CheckpointError as e:
      return None, [f'settings: {e.what}, {e.got}']
    said, meant = _meaning(said), _meaning(spec)
    return config, [
      f'Transformer.{field.name}'
      for field in dataclasses.fields(meant)
      if getattr(said, field.name) != getattr(meant, field.name)
      and not (field.name in self.lacked and not getattr(meant, field.name))
    ]


def _meaning(spec):
  """A spec that is the same where what models compute, untrained, is."""
  plain = {
    field.name: field.default
    for field in dataclasses.fields(spec)
    if field.name in _FREE
  }
  if not spec.tie_embeddings:
    plain['scale_logits'] = True
  if not any(spec.windows):
    plain['windows'] = ()
  if spec.qkv_bias == spec.bias:
    plain['qkv_bias'] = None
  if spec.num_kv_heads == spec.num_heads:
    plain['num_kv_heads'] = None
  return dataclasses.replace(spec, **plain)
