"""What tests of the emulator share: compiling once, and skipping where there is no compiler."""

import shutil
from functools import cache

import pytest

from kernels.emulator import EmulatedModule

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles kernels, is not installed")

# Orders of threads and copies under which a correct kernel gives the same.
WAYS = [("fifo", 0, "late"), ("lifo", 0, "early"), ("random", 1, "late"), ("random", 2, "early")]


@cache
def compiled(code: str, *options: str) -> EmulatedModule:
    """The module of a source, one for each source."""
    return EmulatedModule(code, options)
