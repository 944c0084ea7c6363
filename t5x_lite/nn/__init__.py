"""The trunk: every layer of every model, and all the Flax there is.

Tensor names carry their shape, one letter an axis:

  B batch      L length     Q query length   K key length
  E embed      H heads      D head size      F feed-forward   V vocabulary
  N layers of a stack

A module holds parameters and nothing else: caches and dropout keys go in and
come out as arrays, so that a call is a pure function.
"""
