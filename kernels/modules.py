"""From sources of this folder to kernels that can be launched: by CuPy on a GPU, by the emulator on NumPy arrays.

Nothing here knows what a kernel computes; that its launchers know, `kernels.launch` and those beside it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from kernels.emulator import EmulatedModule


@functools.cache
def kernel(
    library: ModuleType, device: str, sources: tuple[str, ...], options: tuple[str, ...], name: str, shared: int = 0
) -> Any:
    """A kernel of these files, compiled when it is first asked for, with so many bytes of dynamic shared memory."""
    found = module(library, device, sources, options).get_function(name)
    found.max_dynamic_shared_size_bytes = shared
    return found


@functools.cache
def module(library: ModuleType, device: str, sources: tuple[str, ...], options: tuple[str, ...]) -> Any:
    """The module of these files; `device` is there for the cache alone."""
    code = source_text(sources)
    return EmulatedModule(code, options) if library is np else library.RawModule(code=code, options=options)


def source_text(sources: Sequence[str]) -> str:
    """These files of this folder as one text: CuPy's cache of compiled kernels knows no #include."""
    return "\n".join((Path(__file__).parent / name).read_text(encoding="utf-8") for name in sources)
