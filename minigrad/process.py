"""Settings of the process: what the C library does with freed memory, how many threads BLAS takes, how they wait.

They are made here and nowhere else, but for one: `train.py` puts OMP_NUM_THREADS into its own environment, which BLAS
reads while NumPy is imported, before anything of minigrad can run.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
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

_TIMEOUT = "OPENBLAS_THREAD_TIMEOUT"
_sets_blas = os.environ.get("MINIGRAD_SET_BLAS_THREADS") != "0"
_using_blas = threading.RLock()  # with several threads; OpenBLAS ends them at a fork, and would wait for ever meanwhile
if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(
        before=_using_blas.acquire, after_in_parent=_using_blas.release, after_in_child=_using_blas.release
    )


def blas_threads() -> int | None:
    """How many threads NumPy's BLAS takes for a product; None if it is not an OpenBLAS that can be asked."""
    return None if _openblas is None else _openblas[0]()


def put_blas_on_one_thread() -> None:
    """Have each product of NumPy's BLAS take one thread: operations say which of theirs are to take more.

    It is called when minigrad is imported, and reaches the OpenBLAS that NumPy brings or was built with on Linux and
    macOS. Any other BLAS is left alone, and so is OpenBLAS with MINIGRAD_SET_BLAS_THREADS=0 in the environment;
    products are then not divided.
    """
    if _openblas is not None and _sets_blas:
        _openblas[1](1)


def have_blas_wait_briefly() -> bool:
    """Whether OpenBLAS's threads wait for the next product by spinning for 0.2 ms at most; they are told so if need be.

    Otherwise it is 26 ms, in which they slow whatever other threads do. OpenBLAS reads it while NumPy is loaded: so
    minigrad must be imported before NumPy, or OPENBLAS_THREAD_TIMEOUT=19 (2¹⁹ ticks) be in the environment already.
    """
    given = os.environ.get(_TIMEOUT)
    if given is None and "numpy" not in sys.modules and _sets_blas:
        os.environ[_TIMEOUT] = "19"
        import_module("numpy")
        del os.environ[_TIMEOUT]  # what this process starts is not concerned
        return True
    import_module("numpy")  # whose BLAS is looked for next
    return given is not None and given.isdecimal() and 0 < int(given) <= 20  # OpenBLAS takes 0 for not set


def multiply_by_blas(x: Any, y: Any, out: Any, threads: int) -> None:
    """Writes x @ y, of NumPy's matrices, with so many threads of OpenBLAS, which takes one before and after.

    Meanwhile it takes as many in every other thread of the process.
    """
    matmul = sys.modules["numpy"].matmul  # imported here, NumPy would be loaded too early
    set_number = _openblas[1]  # type: ignore[index]
    with _using_blas:
        try:
            set_number(threads)
            matmul(x, y, out=out)
        finally:
            set_number(1)


def _has_threads_of_its_own() -> bool:
    """Whether OpenBLAS was built with them; those of OpenMP wait as that likes."""
    library = _numpys_library()
    names = ("scipy_openblas_get_parallel64_", "openblas_get_parallel64_", "openblas_get_parallel")
    return library is not None and any(hasattr(library, name) and library[name]() == 1 for name in names)


def _numpys_library() -> ctypes.CDLL | None:
    module = sys.modules.get("numpy._core._multiarray_umath")
    path = getattr(module, "__file__", None)
    return None if path is None or sys.platform == "win32" else ctypes.CDLL(path)  # Windows looks into one library only


def _find_openblas() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """OpenBLAS's functions that get and set its number of threads; None if NumPy uses no OpenBLAS, or it is not seen.

    A name is looked for in the library that NumPy is compiled into, and so in those that this was linked with:
    whichever BLAS NumPy multiplies with is found, no matter where it lies or which others are loaded.
    """
    library = _numpys_library()
    for name in ("scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads64_", "openblas_{}_num_threads"):
        if library is not None and hasattr(library, name.format("get")) and hasattr(library, name.format("set")):
            set_number = library[name.format("set")]
            set_number.restype = None
            return library[name.format("get")], set_number
    return None


keep_freed_memory()
_waits_briefly = have_blas_wait_briefly()
_openblas = _find_openblas()
put_blas_on_one_thread()
BLAS_TAKES_ONE_THREAD = blas_threads() == 1
BLAS_WAITS_BRIEFLY = BLAS_TAKES_ONE_THREAD and _waits_briefly and _has_threads_of_its_own()
