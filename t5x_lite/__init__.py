"""Pretrains text Transformers with JAX.

A submodule loads when it is first named, so that importing the package costs
milliseconds and loads neither JAX nor TensorFlow.
"""

import importlib.util

__version__ = '0.1.0'


def __getattr__(name):
  """Imports a submodule on first use, PEP 562."""
  full_name = f'{__name__}.{name}'
  if importlib.util.find_spec(full_name) is None:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  return importlib.import_module(full_name)
