"""What tests of the fused kernels share: dtypes, numbers, orders of threads, faults planted in a source."""

import numpy as np
import pytest

from kernels import fused
from kernels.emulator import EmulatedModule, EmulatorError, running
from tests.kernels.support import FULL, built_by

DTYPES = tuple(fused.DTYPES)  # names; NumPy knows that of bfloat16 from ml_dtypes, which minigrad imports
each_dtype = pytest.mark.parametrize("dtype", DTYPES if FULL else ["float32", "float16"])
ORDERS = [("fifo", 0), ("lifo", 0), ("random", 1)]

# Parts of the sources that are sources themselves.
OF_ROWS, OF_PARAMETERS = [("ptx.cuh", "elements.cuh", name) for name in ("rows.cu", "parameters.cu")]
OF_GELU = ("ptx.cuh", "elements.cuh", "elementwise.cu")


def tolerance(dtype):
    """float32 computes to rounding; what has 16 bits is computed so too, and rounded once."""
    return 1e-6 + {"float32": 0, "float16": 2**-11, "bfloat16": 2**-8}[dtype]


def draw(*shapes, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    return [np.array(rng.standard_normal(shape), dtype) for shape in shapes]


def in_every_order(function):
    """The results, which are the same to the bit in any order of threads."""
    results = function()
    for order, seed in ORDERS[1:]:
        with running(order, seed):
            for found, first in zip(function(), results, strict=True):
                np.testing.assert_array_equal(found, first)
    return results


def assert_fault_is_found(sources, line, error_of_results):
    """Without this line of these sources the results are wrong, in one order of threads at least, or there are none."""

    def without_it(code, flags):
        assert code.count(line) == 1
        return EmulatedModule(code.replace(line, ""), flags)

    def is_found(order, seed):
        try:
            with running(order, seed):
                return not error_of_results() <= 1e-6
        except EmulatorError:
            return True

    assert error_of_results() <= 1e-6
    with pytest.MonkeyPatch.context() as patch, built_by(without_it):
        patch.setattr(fused, "SOURCES", sources)  # no more than is used is compiled
        assert any([is_found(order, seed) for order, seed in ORDERS])
