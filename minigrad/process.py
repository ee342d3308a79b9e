"""Settings of the process: what the C library does with freed memory, and how many threads BLAS takes.

They are made here and nowhere else, but for one: `train.py` puts OMP_NUM_THREADS into its own environment, which BLAS
reads while NumPy is imported, before anything of minigrad can run.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

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

    It is called when minigrad is imported, and reaches the OpenBLAS that NumPy brings or was built with on Linux and
    macOS. Any other BLAS is left alone, and so is OpenBLAS with MINIGRAD_SET_BLAS_THREADS=0 in the environment;
    products are then not divided.
    """
    if _openblas is not None and _sets_blas:
        _openblas[1](1)


def have_blas_wait_briefly() -> bool:
    """Have the threads of OpenBLAS wait for the next product by spinning for 0.2 ms at most, not 26; whether they do.

    In that time they slow whatever other threads do. OpenBLAS reads it while NumPy is loaded: so it takes effect if
    minigrad is imported before NumPy, or if OPENBLAS_THREAD_TIMEOUT=19 (2¹⁹ ticks) is in the environment already.
    """
    given = os.environ.get(_TIMEOUT)
    if given is None and "numpy" not in sys.modules and _sets_blas:
        os.environ[_TIMEOUT] = "19"
        import_module("numpy")
        del os.environ[_TIMEOUT]  # what this process starts is not concerned
        return True
    import_module("numpy")  # whose BLAS is looked for next
    return given is not None and given.isdecimal() and int(given) <= 20


def multiply_by_blas(x: Any, y: Any, out: Any, threads: int) -> None:
    """Writes x @ y, of NumPy's matrices, with so many threads of OpenBLAS, which takes one before and after."""
    set_number = _openblas[1]  # type: ignore[index]
    set_number(threads)
    try:
        sys.modules["numpy"].matmul(x, y, out=out)
    finally:
        set_number(1)


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


_TIMEOUT = "OPENBLAS_THREAD_TIMEOUT"
_sets_blas = os.environ.get("MINIGRAD_SET_BLAS_THREADS") != "0"

keep_freed_memory()
_waits_briefly = have_blas_wait_briefly()
_openblas = _find_openblas()
put_blas_on_one_thread()
BLAS_TAKES_ONE_THREAD = blas_threads() == 1
BLAS_WAITS_BRIEFLY = BLAS_TAKES_ONE_THREAD and _waits_briefly
