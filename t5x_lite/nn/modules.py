"""Parameters, dense layers, norms, embeddings, dropout, and their stacking."""

import dataclasses
import functools
import math

from flax import nnx
import jax
from jax import ad_checkpoint
import jax.numpy as jnp

from t5x_lite import partitioning
from t5x_lite import specs
from t5x_lite.nn import initializers
from t5x_lite.nn import products

PRODUCT = 'product'  # what remat knows the results of dense layers by


def at_least_float32(dtype):
  """float32 for narrower types; float64 stays."""
  return dtype if jnp.finfo(dtype).bits >= 32 else jnp.dtype(jnp.float32)


def param(rngs, shape, axes, init):
  """A float32 parameter that knows the logical name of each of its axes.

  Args:
    rngs: nnx.Rngs, or None for a shape without values, which costs nothing.
    shape: its shape.
    axes: as many names.
    init: as of jax.nn.initializers.
  """
  if rngs is None:
    return nnx.Param(jax.ShapeDtypeStruct(shape, jnp.float32), axes=axes)
  return nnx.Param(init(rngs.params(), shape, jnp.float32), axes=axes)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def softmax(x, dtype):
  """jax.nn.softmax in a type that may be narrower, with a gradient by that.

  JAX's own divides by the sum of exponentials once more: two passes over all
  logits, and two more arrays of their size kept until then.
  """
  return jax.nn.softmax(x).astype(dtype)


def _softmax_forward(x, dtype):
  y = softmax(x, dtype)
  return y, y


def _softmax_backward(dtype, y, gradient):
  wide = at_least_float32(dtype)
  y, gradient = y.astype(wide), gradient.astype(wide)
  return (y * (gradient - jnp.sum(y * gradient, axis=-1, keepdims=True)),)


softmax.defvjp(_softmax_forward, _softmax_backward)


class Dense(nnx.Module):
  """A linear map written as an einsum, such as 'BLE,EHD->BLHD'."""

  def __init__(self, rngs, spec, role, equation, sizes, depth=1, bias=None):
    """Makes a kernel, and a bias where the spec has them.

    Args:
      rngs: where the key comes from.
      spec: specs.Transformer.
      role: and `depth`, as of initializers.weights.
      equation: of input, kernel and output.
      sizes: of the kernel's axes by their logical names, in its order.
      depth: see `role`.
      bias: whether there is one; None for what the spec says.
    """
    self.equation, self.axes = equation, tuple(sizes)
    read, kernel = equation.split('->')[0].split(',')
    summed = [letter in read for letter in kernel]
    inputs = math.prod(n for n, s in zip(sizes.values(), summed) if s)
    left = {name: n for (name, n), s in zip(sizes.items(), summed) if not s}
    init = initializers.weights(
      spec, role, inputs, math.prod(left.values()), depth
    )
    self.kernel = param(rngs, tuple(sizes.values()), tuple(sizes), init)
    self.has_bias = spec.bias if bias is None else bias
    if self.has_bias:
      shape = tuple(left.values())
      self.bias = param(rngs, shape, tuple(left), initializers.zeros)

  def __call__(self, x):
    y = products.linear(
      self.equation, x, self.kernel[...].astype(x.dtype), self.axes
    )
    y = ad_checkpoint.checkpoint_name(y, PRODUCT)
    if self.has_bias:
      y += jnp.expand_dims(self.bias[...].astype(y.dtype), (0, 1))
    return y


class Bias(nnx.Module):
  """A vector that is added, of the logits that an embedding makes."""

  def __init__(self, rngs, size, axis):
    self.bias = param(rngs, (size,), (axis,), initializers.zeros)

  def __call__(self, x_BLV):
    return x_BLV + self.bias[None, None].astype(x_BLV.dtype)


class Norm(nnx.Module):
  """RMSNorm or LayerNorm, as the spec says; moments are taken in float32."""

  def __init__(self, rngs, spec):
    self.spec, shape, axes = spec.norm, (spec.embed_dim,), ('embed',)
    if self.spec.scale:
      self.scale = param(rngs, shape, axes, initializers.ones)
    if self.spec.bias:
      self.bias = param(rngs, shape, axes, initializers.zeros)

  def __call__(self, x_BLE):
    wide = at_least_float32(x_BLE.dtype)
    norm = self._norm
    if x_BLE.dtype != wide:  # backward makes it wide again: less is kept for it
      norm = jax.checkpoint(norm, prevent_cse=False)
    return norm(x_BLE)

  def _norm(self, x_BLE):
    wide = x_BLE.astype(at_least_float32(x_BLE.dtype))
    if isinstance(self.spec, specs.LayerNorm):
      wide -= jnp.mean(wide, axis=-1, keepdims=True)
    mean_square = jnp.mean(wide * wide, axis=-1, keepdims=True)
    y_BLE = wide * jax.lax.rsqrt(mean_square + self.spec.epsilon)
    y_BLE = y_BLE.astype(x_BLE.dtype)
    if self.spec.scale:
      y_BLE *= self.scale[None, None].astype(x_BLE.dtype)
    if self.spec.bias:
      y_BLE += self.bias[None, None].astype(x_BLE.dtype)
    return y_BLE


class Embed(nnx.Module):
  """A table of token vectors, which may also make the logits."""

  def __init__(self, rngs, spec, rows, axis='vocab'):
    self.spec, self.axes = spec, (axis, 'embed')
    self.embedding = param(
      rngs,
      (rows, spec.embed_dim),
      self.axes,
      initializers.weights(spec, 'embedding', rows, spec.embed_dim),
    )

  def __call__(self, ids_BL):
    table_VE, dtype = self.embedding[...], jnp.dtype(self.spec.dtype)
    if products.brings_table(table_VE, ids_BL.shape, self.axes):
      x_BLE = products.take(table_VE, ids_BL, dtype, self.axes)
    else:
      # Each device looks up its share of the width: else XLA gathers the table.
      ids_BL = partitioning.constrain(ids_BL, ('rows', 'length'))
      x_BLE = jnp.take(table_VE, ids_BL, axis=0).astype(dtype)
      x_BLE = partitioning.constrain(x_BLE, ('rows', 'length', 'embed'))
    return partitioning.constrain(x_BLE, ('batch', 'length', 'embed'))

  def logits(self, x_BLE):
    """Tied logits, divided by sqrt(E) in T5's released code."""
    x_BLE = x_BLE.astype(at_least_float32(x_BLE.dtype))
    if self.spec.scale_logits:
      x_BLE = x_BLE / math.sqrt(x_BLE.shape[-1])
    table_VE = self.embedding[...].astype(x_BLE.dtype)
    return products.linear('BLE,VE->BLV', x_BLE, table_VE)


ACTIVATIONS = {
  'relu': jax.nn.relu,
  'gelu': lambda x: jax.nn.gelu(x, approximate=True),
  'gelu_exact': lambda x: jax.nn.gelu(x, approximate=False),
  'silu': jax.nn.silu,
}


class Mlp(nnx.Module):
  """Feed-forward layer, gated or plain, arXiv:2002.05202."""

  def __init__(self, rngs, spec, depth):
    """Makes the parameters; `depth` as of initializers.weights."""
    self.spec = spec
    e, f = {'embed': spec.embed_dim}, {'mlp': spec.mlp_dim}

    def up():
      return Dense(rngs, spec, 'mlp', 'BLE,EF->BLF', e | f)

    if spec.gated:
      self.wi_0 = up()
      self.wi_1 = up()
    else:
      self.wi = up()
    self.wo = Dense(rngs, spec, 'mlp', 'BLF,FE->BLE', f | e, depth)

  def __call__(self, x_BLE, keys_B):
    # Backward computes it again: quicker than to keep its parts for it.
    @functools.partial(jax.checkpoint, prevent_cse=False)
    def activate(h_BLF, gated_BLF=None):
      h_BLF = ACTIVATIONS[self.spec.activation](h_BLF)
      return h_BLF if gated_BLF is None else h_BLF * gated_BLF

    if self.spec.gated:
      h_BLF = activate(self.wi_0(x_BLE), self.wi_1(x_BLE))
    else:
      h_BLF = activate(self.wi(x_BLE))
    if self.spec.dropout_kind == 't5':
      h_BLF = dropout(h_BLF, self.spec.dropout, keys_B, site=0)
    return self.wo(h_BLF)


def fold_in(keys_B, n):
  """Keys for one more purpose; None stays None."""
  if keys_B is None:
    return None
  return jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys_B, n)


def draw(rate, keys, site, shape):
  """Booleans [*keys.shape, *shape], true with a probability of 1 - rate.

  Args:
    rate: of false.
    keys: random keys, each for its own part.
    site: tells the places of one layer apart.
    shape: of a part.
  """
  one = lambda key: jax.random.bernoulli(
    jax.random.fold_in(key, site), 1 - rate, shape
  )
  return functools.reduce(lambda f, _: jax.vmap(f), keys.shape, one)(keys)


def dropout(x, rate, keys_B, site, share_length=True):
  """Zeroes a share of x, by a key for each row and a number for each place.

  A row's mask depends on its key alone, so the way a batch is cut into
  microbatches and over devices can't change it.

  Args:
    x: [B, ..., L, features].
    rate: probability of zero.
    keys_B: a random key for each row, or None for no dropout.
    site: tells the places of one layer apart.
    share_length: one mask for all of the last axis but one, as T5 has it.
  """
  if keys_B is None or not rate:
    return x
  shape = list(x.shape[1:])
  if share_length:
    shape[-2] = 1
  keep = draw(rate, keys_B, site, shape)
  return jnp.where(keep, x / (1 - rate), 0).astype(x.dtype)


@dataclasses.dataclass(frozen=True)
class WeightDropout:
  """Dropout of attention's weights.

  A query's weights are drawn by its own number, so that they are the same
  whichever queries and keys are computed together.

  Attributes:
    rate: probability of zero.
    keys_B: a random key for each row.
    shared: one draw for all queries, as T5 has it.
  """

  rate: float
  keys_B: jax.Array
  shared: bool

  def __call__(self, weights_BHQK, query=0, key=0, keys=None):
    """The weights of a part, with zeros.

    Args:
      weights_BHQK: of some queries on some keys.
      query: number of the first of the queries.
      key: number of the first of the keys.
      keys: how many there are in all; default: these.
    """
    _, heads, queries, width = weights_BHQK.shape
    shape = heads, keys or width
    if self.shared:
      keep_BHQK = draw(self.rate, self.keys_B, 0, shape)[:, :, None]
    else:
      keys_BQ = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))(
        self.keys_B, query + jnp.arange(queries)
      )
      keep_BHQK = draw(self.rate, keys_BQ, 0, shape).swapaxes(1, 2)
    keep_BHQK = jax.lax.dynamic_slice_in_dim(keep_BHQK, key, width, 3)
    scaled_BHQK = weights_BHQK / (1 - self.rate)
    return jnp.where(keep_BHQK, scaled_BHQK, 0).astype(weights_BHQK.dtype)


def stack(make, n, rngs):
  """n modules in one: each parameter has a leading axis of layers.

  Args:
    make: builds one module from nnx.Rngs, or one of shapes alone from None.
    n: how many.
    rngs: where the n keys come from, or None for shapes alone.
  """
  graphdef, params = nnx.split(make(None))
  if rngs is not None:
    params = jax.vmap(lambda key: nnx.split(make(nnx.Rngs(params=key)))[1])(
      jax.random.split(rngs.params(), n)
    )

  def name_layers(p):
    value = p.get_value()
    if rngs is None:
      value = jax.ShapeDtypeStruct((n, *value.shape), value.dtype)
    return p.replace(value, axes=('layers', *p.axes))

  is_param = lambda x: isinstance(x, nnx.Param)
  params = jax.tree.map(name_layers, params, is_leaf=is_param)
  return nnx.merge(graphdef, params)
