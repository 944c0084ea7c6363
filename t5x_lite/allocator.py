"""The C library's allocator, told to keep memory, and to take it in huge pages.

XLA on a CPU frees its scratch memory after each step; glibc then gives it back
to the system, and the next step pays for a page fault on each page of it (a
tenth to a quarter of a step). Memory stays at its high-water mark instead.

Where the system gives huge pages only to those that ask (Linux's `madvise`, the
default of most), a step walks through small ones, and another tenth to a
quarter goes into looking up where they are.
"""

import ctypes
import mmap
import os
import pathlib
import resource
import sys

# From glibc's malloc.h. One arena, or the others would go on as before.
_ARENA_MAX, _MMAP_MAX, _TRIM_THRESHOLD, _TOP_PAD = -8, -4, -1, -2


def keep_freed_memory():
  """Call before JAX is imported; does nothing where there is no glibc."""
  if sys.platform != 'linux':
    return
  libc = ctypes.CDLL(None)
  if not hasattr(libc, 'mallopt'):
    return
  libc.mallopt(_ARENA_MAX, 1)
  libc.mallopt(_MMAP_MAX, 0)
  libc.mallopt(_TRIM_THRESHOLD, -1)
  libc.mallopt(_TOP_PAD, 64 << 20)
  _ask_for_huge_pages(libc)


def _ask_for_huge_pages(libc):
  """For half of the machine's memory: for addresses; none of it is taken yet.

  Advice is for addresses that there are, so the heap grows by so much at once.
  """
  strict = pathlib.Path('/proc/sys/vm/overcommit_memory')
  if strict.exists() and strict.read_text().strip() == '2':
    return  # addresses count as memory that is taken
  if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
    return  # they are all that there are
  size = os.sysconf('SC_PHYS_PAGES') * mmap.PAGESIZE // 2
  libc.malloc.restype = ctypes.c_void_p
  libc.malloc.argtypes = [ctypes.c_size_t]
  libc.free.argtypes = [ctypes.c_void_p]
  libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
  heap = libc.malloc(size)
  if heap:
    start = -(-heap // mmap.PAGESIZE) * mmap.PAGESIZE
    libc.madvise(start, size - mmap.PAGESIZE, mmap.MADV_HUGEPAGE)
    libc.free(heap)
