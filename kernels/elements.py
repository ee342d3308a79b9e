"""What `kernels.fused` and `kernels.parameters` share, as their sources share elements.cuh: dtypes, sizes, launches.

Kernels read and write float32, float16 or bfloat16, and compute in float32. Arrays of NumPy are run by
`kernels.emulator`, arrays of CuPy by `cupy.RawModule`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.devices import check_computes, computes
from kernels.modules import kernel
from minigrad.backend import Array, array_module, device_of

DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2}  # as elements.cuh numbers them
SOURCES = ("ptx.cuh", "elements.cuh", "philox.cuh", "rows.cu", "elementwise.cu", "parameters.cu")
THREADS, WARP, CHUNK = 256, 32, 1024  # of elements.cuh: threads of a block, and of a warp; elements of a chunk
LONG_ROW = 1024  # from so many elements on a row has a block, not a warp
MOST_BLOCKS = 2**31 - 1

# ---- which arrays ----------------------------------------------------------------------------------------------------


def are_taken(first: Array, *others: Array | None) -> bool:
    """Whether these arrays, of which others may be None, are better given to kernels than to the array library.

    They are if they lie on a GPU and are all of one dtype that the kernels compute in. On a CPU NumPy is much faster
    than the emulator, which runs for whoever calls it.
    """
    if type(first) is np.ndarray or array_module(first) is np or first.dtype.name not in DTYPES:
        return False
    same = all(array is None or array.dtype == first.dtype for array in others)
    return same and computes(first.dtype.name, device_of(first))


def check_dtype(name: str, x: Array) -> None:
    """TypeError for a dtype that the kernels do not compute in, or not on the array's device."""
    if x.dtype.name not in DTYPES:
        raise TypeError(f"{name}: the kernels compute in {', '.join(DTYPES)}, got {x.dtype}")
    check_computes(name, x.dtype.name, device_of(x))


# ---- launches: on the current GPU, so within `on_device_of` their arrays ---------------------------------------------


def launch(name: str, like: Array, grid: tuple[int, ...], block: tuple[int, ...], *arguments: Any) -> None:
    """Run a kernel, built for the dtype of `like`."""
    options = (f"-DDTYPE={DTYPES[like.dtype.name]}",)
    kernel(array_module(like), device_of(like), SOURCES, options, name)(grid, block, arguments)


def launch_rows(name: str, x: Array, *arguments: Any) -> None:
    """A warp for each row of x (M, n), or a block for each long one."""
    rows, columns = x.shape
    threads = WARP if columns < LONG_ROW else THREADS
    at_once = min(THREADS // threads, rows)  # rows of a block
    grid = min(-(-rows // at_once), MOST_BLOCKS)
    launch(name, x, (grid,), (threads, at_once), *arguments)


def launch_elements(name: str, x: Array, *arguments: Any) -> None:
    """A block for each chunk of x's elements."""
    launch(name, x, (min(-(-x.size // CHUNK), MOST_BLOCKS),), (THREADS,), *arguments)
