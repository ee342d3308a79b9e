"""A setting of the process, made when minigrad is imported: what the C library does with freed memory."""

from __future__ import annotations

import ctypes
import os
import sys


def keep_freed_memory() -> None:
    """Have glibc keep the memory of freed arrays for the next ones, instead of giving it back to the system each time.

    Otherwise every array of 128 KiB or more is mapped, cleared page by page and unmapped again: a training step of a
    small model then spends up to half of its time there. The process keeps its peak memory. MINIGRAD_KEEP_MEMORY=0 in
    the environment leaves the allocator alone; without glibc nothing is changed.
    """
    if sys.platform != "linux" or os.environ.get("MINIGRAD_KEEP_MEMORY") == "0":
        return
    libc = ctypes.CDLL(None)
    mallopt = getattr(libc, "mallopt", lambda parameter, value: 0)
    size = 1 << 30  # bytes
    mmap_threshold, trim_threshold = -3, -1  # arrays below it are not mapped apart; less than it is not given back
    if mallopt(mmap_threshold, size) or mallopt(mmap_threshold, 32 << 20):  # older versions take no more than 32 MiB
        mallopt(trim_threshold, size)


keep_freed_memory()
