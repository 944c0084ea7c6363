"""Trees of parameters by path, and arithmetic in float64, to compare with."""

import contextlib

import jax

from t5x_lite import partitioning

nest = partitioning.nest


def flatten(tree):
  leaves = jax.tree_util.tree_leaves_with_path(
    tree, is_leaf=lambda x: isinstance(x, tuple)
  )
  path_name = jax.tree_util.keystr
  return {path_name(p, simple=True, separator='/'): v for p, v in leaves}


def run(fn):
  """Compiles for the test of numbers, not of speed."""
  options = {'xla_backend_optimization_level': 0}  # half the time to compile
  return jax.jit(fn, compiler_options=options)


@contextlib.contextmanager
def float64():
  # jax makes int64 of what is int32 elsewhere: mixtures are no fault here
  with jax.enable_x64(True), jax.numpy_dtype_promotion('standard'):
    yield
