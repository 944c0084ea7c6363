"""The C library's allocator, told to keep what a step frees for the next one.

XLA on a CPU frees its scratch memory after each step; glibc then gives it back
to the system, and the next step pays for a page fault on each page of it (a
tenth to a quarter of a step). Memory stays at its high-water mark instead.
"""

import ctypes
import sys

# From glibc's malloc.h. One arena, or the others would go on as before.
_ARENA_MAX, _MMAP_MAX, _TRIM_THRESHOLD, _TOP_PAD = -8, -4, -1, -2


def keep_freed_memory():
  """Call before JAX is imported; does nothing where there is no glibc."""
  if sys.platform != 'linux':
    return
  mallopt = getattr(ctypes.CDLL(None), 'mallopt', None)
  if mallopt:
    mallopt(_ARENA_MAX, 1)
    mallopt(_MMAP_MAX, 0)
    mallopt(_TRIM_THRESHOLD, -1)
    mallopt(_TOP_PAD, 64 << 20)
