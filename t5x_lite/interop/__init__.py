"""Weights in and out: other libraries' files, names and programs.

A source of tensors is a dict {name: Tensor}, in whose order they are read.
"""

from t5x_lite.interop.tensors import Tensor

__all__ = ['Tensor']
