"""A tensor that is somewhere else until it is read."""

from collections.abc import Callable
import math
from typing import NamedTuple

import numpy as np


class Tensor(NamedTuple):
  """What is known of a tensor before it is read.

  Attributes:
    dtype: numpy's, or ml_dtypes' for bfloat16 and the float8 types.
    shape: a tuple of ints.
    read: gives the array, of just that dtype and shape; reads it anew when it
      is called again, so that whoever holds Tensors holds no arrays.
  """

  dtype: np.dtype
  shape: tuple[int, ...]
  read: Callable[[], np.ndarray]

  @property
  def count(self):
    """Numbers in it."""
    return math.prod(self.shape)

  @property
  def size(self):
    """Bytes of these."""
    return self.count * self.dtype.itemsize


def held(array):
  """The Tensor of an array that is in memory."""
  array = np.asarray(array)
  return Tensor(array.dtype, array.shape, lambda: array)
