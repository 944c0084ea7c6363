"""Products of arrays, and the gradients that their kernels are to have."""

import functools
import math

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from t5x_lite import partitioning

_FEW_COLUMNS = 32  # of a table, from which on a device looks up its own alone
_FEW_ROWS = 32  # up to which it pays to turn what a table makes of them


def gather(kernel, axes):
  """A kernel with all that fsdp shares out of it, for one product.

  Left to itself XLA multiplies each share as it comes around, where the shares
  are of what is summed: it adds up as many products in the narrow type of the
  result, and reads and writes all of that for each.

  Args:
    kernel: an array.
    axes: the names of its axes, or None if it is none.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if axes is None or mesh.empty or mesh.shape.get('fsdp', 1) == 1:
    return kernel
  rules = partitioning.RULES
  return partitioning.constrain(
    kernel, ['whole' if 'fsdp' in rules[axis] else axis for axis in axes]
  )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 3, 4))
def einsum(equation, x, y, dtype=None, axes=None):
  """jnp.einsum of two arrays, with gradients that are einsums themselves.

  The gradient that JAX derives for a kernel comes out transposed, and XLA's CPU
  backend computes what it is made of element by element while it turns it
  around: backward then takes six times forward, and so twice to four times.

  Args:
    equation: each letter stands in two of the three terms or in all.
    x: an array.
    y: an array of the same dtype.
    dtype: of the sums and the result; default: that of `x`. The gradient that
      comes in is rounded to the dtype of `x`, as its factors are.
    axes: the names of the axes of `y` if that is a kernel, which is then
      brought together before each product, and its gradient shared out again.
  """
  whole = gather(y, axes)
  return jnp.einsum(equation, x, whole, preferred_element_type=dtype)


def _einsum_forward(equation, x, y, dtype, axes):
  return einsum(equation, x, y, dtype, axes), (x, y)


def _einsum_backward(equation, dtype, axes, operands, gradient):
  del dtype
  (x, y), (inputs, out) = operands, equation.split('->')
  of_x, of_y = inputs.split(',')
  gradient = gradient.astype(x.dtype)
  whole = gather(y, axes)
  of_gradient = jnp.einsum(f'{out},{of_y}->{of_x}', gradient, whole)

  def of_kernel(x, gradient):
    if partitioning.platform() == 'cpu':
      return _smaller_first(of_x, x, out, gradient, of_y)
    return jnp.einsum(f'{of_x},{out}->{of_y}', x, gradient)

  return of_gradient, scatter(of_kernel, x, gradient, y.shape, axes)


def scatter(product, x, gradient, shape, axes):
  """A sum over the rows of a batch, of which fsdp shares out the result.

  Each device adds up its own rows and keeps its share of the sum. Left to
  itself XLA may give the whole sum to all: twice the traffic, and room for it.

  Args:
    product: of two arrays whose first axis is the batch, summed over it.
    x: an array.
    gradient: an array.
    shape: of the result.
    axes: the names of its axes, or None if it is not shared out.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if axes is None or mesh.empty:
    return product(x, gradient)
  placed = [*partitioning.partition_spec(shape, axes, mesh)]
  rows = partitioning.RULES['batch']
  # On CPUs XLA aborts where sums of bfloat16 are scattered.
  known = x.dtype != jnp.bfloat16 or partitioning.platform() != 'cpu'
  if 'fsdp' not in placed or not (known and _rows_alone(mesh, len(x))):
    return partitioning.constrain(product(x, gradient), axes)
  axis = placed.index('fsdp')
  copies = [name for name in rows if name != 'fsdp' and mesh.shape[name] > 1]

  def own(x, gradient):
    share = jax.lax.psum_scatter(
      product(x, gradient), 'fsdp', scatter_dimension=axis, tiled=True
    )
    return jax.lax.psum(share, copies) if copies else share

  spread = jax.shard_map(
    own,
    in_specs=(PartitionSpec(rows), PartitionSpec(rows)),
    out_specs=PartitionSpec(*[None] * axis, 'fsdp'),
    axis_names=set(rows),
    check_vma=False,
  )
  return partitioning.constrain(spread(x, gradient), axes)


def _rows_alone(mesh, rows):
  """Whether a mesh shares out so many rows and nothing besides.

  Within a map over the rows XLA forgets what else is shared out.
  """
  shards = partitioning.batch_shards(mesh.shape)
  return shards == mesh.size and rows % shards == 0


def brings_table(table, shape, axes):
  """Whether `take` is for a table: where fsdp leaves little of its width.

  Else a device looks up its share of the width for all rows, and they exchange
  what they found. With few numbers of a row to each, TPUs read and write tiles
  that are empty but for them, and chips far apart exchange them slowly. Not for
  fewer tokens than the table has rows, as in a step of decoding.

  Args:
    table: [rows, width].
    shape: of the tokens that are looked up: [batch, length].
    axes: the names of the table's axes.
  """
  mesh = jax.sharding.get_abstract_mesh()
  fsdp = 1 if mesh.empty else mesh.shape.get('fsdp', 1)
  if fsdp == 1 or not _rows_alone(mesh, shape[0]):
    return False
  shards = partitioning.batch_shards(mesh.shape) // fsdp
  if math.prod(shape) // shards < table.shape[0]:
    return False
  placed = partitioning.partition_spec(table.shape, axes, mesh)
  return placed[-1] == 'fsdp' and table.shape[-1] // fsdp < _FEW_COLUMNS


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def take(table, ids, dtype, axes):
  """Rows of a table that is brought together before, and shared out again.

  Args:
    table: [rows, width], float32.
    ids: of rows, int32.
    dtype: of what is looked up.
    axes: the names of the table's axes.
  """
  return jnp.take(gather(table.astype(dtype), axes), ids, axis=0)


def _take_forward(table, ids, dtype, axes):
  return take(table, ids, dtype, axes), (table, ids)


def _take_backward(dtype, axes, kept, gradient):
  del dtype
  table, ids = kept

  def of_table(ids, gradient):
    zeros = jnp.zeros(table.shape, table.dtype)
    return zeros.at[ids].add(gradient.astype(zeros.dtype))

  return scatter(of_table, ids, gradient, table.shape, axes), None


take.defvjp(_take_forward, _take_backward)


def _smaller_first(of_x, x, of_y, y, out):
  """jnp.einsum(f'{of_x},{of_y}->{out}', x, y), summed over rows.

  XLA's CPU backend takes twice as long where the larger one is on the left, and
  puts it there to spare itself a transposition of the result.
  """
  if x.size > y.size:
    of_x, x, of_y, y = of_y, y, of_x, x
  both = [letter for letter in of_x if letter in of_y and letter in out]
  free = [n for of in (of_x, of_y) for n in of if n in out and n not in both]
  found = ''.join(both + free)
  z = jnp.einsum(f'{of_x},{of_y}->{found}', x, y)
  if found == out:
    return z
  return jnp.einsum(f'{found}->{out}', jax.lax.optimization_barrier(z))


einsum.defvjp(_einsum_forward, _einsum_backward)


def linear(equation, x, kernel, axes=None):
  """The einsum of a kernel, on one device as a product of two matrices.

  XLA's CPU backend turns what it sums over two axes around first, and whatever
  that is made of is then computed at a hundredth of memory's speed.

  Args:
    equation: such as 'BLE,EHD->BLHD': the last axes of `x` are the first or the
      last of the kernel.
    x: an array.
    kernel: an array of the same dtype.
    axes: as of `einsum`.
  """
  if not partitioning.is_one_device():
    return einsum(equation, x, kernel, None, axes)
  inputs, out = equation.split('->')
  of_x, of_kernel = inputs.split(',')
  left = [letter for letter in of_x if letter in out]
  summed = math.prod(x.shape[len(left) :])
  if of_kernel[0] in of_x:
    y = einsum('RK,KN->RN', x.reshape(-1, summed), kernel.reshape(summed, -1))
  else:
    x_RK, kernel_NK = x.reshape(-1, summed), kernel.reshape(-1, summed)
    if partitioning.platform() == 'cpu' and len(x_RK) <= _FEW_ROWS:
      # Else it turns all of the kernel around first: half the speed.
      y_NR = einsum('NK,RK->NR', kernel_NK, x_RK)
      y = jax.lax.optimization_barrier(y_NR).T
    else:
      y = einsum('RK,NK->RN', x_RK, kernel_NK)
  sizes = dict(zip(of_x, x.shape)) | dict(zip(of_kernel, kernel.shape))
  return y.reshape([sizes[letter] for letter in out])
