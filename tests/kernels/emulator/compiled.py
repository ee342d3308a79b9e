"""What tests of the emulator share: compiling once, and skipping where there is no compiler."""

from functools import cache

import pytest

from kernels.emulator import EmulatedModule, EmulatorError
from kernels.emulator.build import compiler


def why_nothing_compiles() -> str | None:
    """What the emulator says is missing on this machine; None if it can compile kernels."""
    try:
        compiler()
    except EmulatorError as error:
        return str(error)
    return None


needs_compiler = pytest.mark.skipif(why_nothing_compiles() is not None, reason=str(why_nothing_compiles()))

# Orders of threads and copies under which a correct kernel gives the same.
WAYS = [("fifo", 0, "late"), ("lifo", 0, "early"), ("random", 1, "late"), ("random", 2, "early")]


@cache
def compiled(code: str, *options: str) -> EmulatedModule:
    """The module of a source, one for each source."""
    return EmulatedModule(code, options)
