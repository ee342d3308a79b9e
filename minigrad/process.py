"""Settings of the process: what the C library does with freed memory, and how many threads BLAS takes.

They are made here and nowhere else, but for one: `train.py` puts OMP_NUM_THREADS into its own environment, which BLAS
reads while NumPy is imported, before anything of minigrad can run.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable

# ---- memory ----------------------------------------------------------------------------------------------------------


def keep_freed_memory() -> None:
    """Have glibc keep the memory of freed arrays for the next ones, instead of giving it back to the system each time.

    Otherwise every array of 128 KiB or more is mapped, cleared page by page and unmapped again: a training step of a
    small model then spends up to half of its time there. The process keeps its peak memory. Threads that start later
    take their memory from the one heap that this holds for: heaps of their own are given back whatever is set.
    It is called when minigrad is imported. MINIGRAD_KEEP_MEMORY=0 in the environment leaves the allocator alone;
    without glibc nothing is changed.
    """
    if sys.platform != "linux" or os.environ.get("MINIGRAD_KEEP_MEMORY") == "0":
        return
    libc = ctypes.CDLL(None)
    mallopt = getattr(libc, "mallopt", lambda parameter, value: 0)
    size = 1 << 30  # bytes
    mmap_threshold, trim_threshold, arena_max = -3, -1, -8
    # Arrays below the first are not mapped apart; less than the second is not given back; there is one heap.
    if mallopt(mmap_threshold, size) or mallopt(mmap_threshold, 32 << 20):  # older versions take no more than 32 MiB
        mallopt(trim_threshold, size)
        mallopt(arena_max, 1)


# ---- BLAS ------------------------------------------------------------------------------------------------------------


def blas_threads() -> int | None:
    """How many threads NumPy's BLAS takes for a product; None if it is not an OpenBLAS that can be asked."""
    return None if _openblas is None else _openblas[0]()


def put_blas_on_one_thread() -> None:
    """Have each product of NumPy's BLAS take one thread: large ones of matrices are divided by `minigrad.dividing`.

    BLAS's own threads wait for the next product by spinning, for 20 milliseconds and more: in that time they slow
    whatever other threads do. It is called when minigrad is imported, and reaches the OpenBLAS that NumPy brings or was
    built with on Linux and macOS. Any other BLAS is left alone, and so is OpenBLAS with MINIGRAD_SET_BLAS_THREADS=0 in
    the environment; products are then not divided.
    """
    if _openblas is not None and os.environ.get("MINIGRAD_SET_BLAS_THREADS") != "0":
        _openblas[1](1)


def _find_openblas() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """OpenBLAS's functions that get and set its number of threads; None if NumPy uses no OpenBLAS, or it is not seen.

    A name is looked for in the library that NumPy is compiled into, and so in those that this was linked with:
    whichever BLAS NumPy multiplies with is found, no matter where it lies or which others are loaded.
    """
    module = sys.modules.get("numpy._core._multiarray_umath")
    path = getattr(module, "__file__", None)
    if path is None or sys.platform == "win32":  # Windows looks into the one library only
        return None
    library = ctypes.CDLL(path)
    for name in ("scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads64_", "openblas_{}_num_threads"):
        if hasattr(library, name.format("get")) and hasattr(library, name.format("set")):
            set_number = library[name.format("set")]
            set_number.restype = None
            return library[name.format("get")], set_number
    return None


keep_freed_memory()
_openblas = _find_openblas()
put_blas_on_one_thread()
BLAS_TAKES_ONE_THREAD = blas_threads() == 1
