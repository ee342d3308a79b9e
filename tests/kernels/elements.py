"""What tests of the fused kernels share: dtypes, numbers, orders of threads, which sources."""

from contextlib import contextmanager

import numpy as np
import pytest

from kernels import elements
from kernels.emulator import running
from tests.kernels import faults
from tests.kernels.support import FULL

DTYPES = tuple(elements.DTYPES)  # names; NumPy knows that of bfloat16 from ml_dtypes, which minigrad imports
each_dtype = pytest.mark.parametrize("dtype", DTYPES if FULL else ["float32", "float16"])
ORDERS = [("fifo", 0), ("lifo", 0), ("random", 1)]

# Parts of the sources that are sources themselves.
OF_ROWS, OF_PARAMETERS = [("ptx.cuh", "elements.cuh", name) for name in ("rows.cu", "parameters.cu")]
OF_ELEMENTWISE = ("ptx.cuh", "elements.cuh", "philox.cuh", "elementwise.cu")


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


@contextmanager
def of_sources(sources):
    """In it no more than these of the fused kernels' sources is compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elements, "SOURCES", sources)
        yield


def assert_fault_is_found(sources, line, error_of_results):
    """Without this line of these sources the results are wrong, in one order of threads at least, or there are none."""
    with of_sources(sources):
        assert faults.shows((line, ""), error_of_results, lambda error: error <= 1e-6)
