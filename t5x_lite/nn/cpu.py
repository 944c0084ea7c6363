"""What only CPUs need to be fast; programs for other platforms hold none of it.

XLA's CPU backend fuses what is computed element by element into the transposed
copy that a matrix product reads, and then computes it in the order of the copy,
many times slower. Where TPUs and GPUs fuse, it is to their good.
"""

import jax


def apart(*arrays):
  """The same arrays; on CPUs they are complete before anything reads them."""
  return jax.lax.platform_dependent(
    *arrays,
    cpu=lambda *xs: jax.lax.optimization_barrier(xs),
    default=lambda *xs: xs,
  )
