"""The plan of what attention takes of memory, held against what the launcher asks of the library for arrays."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from kernels import attention_backward, attention_forward, call, devices
from kernels.memory import memory_plan
from tests.kernels.support import forget_modules


class Counting:
    """A library like CuPy that notes the arrays it makes, and whose kernels do nothing: so N may be large."""

    def __init__(self):
        self.made = []
        gpu = SimpleNamespace(compute_capability="90", attributes={"MaxSharedMemoryPerBlockOptin": 227 << 10})
        self.cuda = SimpleNamespace(Device=lambda index: gpu)

    def __getattr__(self, name):
        theirs = getattr(np, name)

        def noted(*arguments, **options):
            result = theirs(*arguments, **options)
            if isinstance(result, np.ndarray) and not any(result is x or result.base is x for x in arguments):
                self.made.append((result.shape, str(result.dtype)))
            return result

        return theirs if isinstance(theirs, type) else noted

    def RawModule(self, **source):
        return SimpleNamespace(get_function=lambda name: IdleKernel())


class IdleKernel:
    max_dynamic_shared_size_bytes = 0

    def __call__(self, grid, block, args, *, shared_mem):
        pass


@pytest.fixture
def library(monkeypatch):
    counting = Counting()
    monkeypatch.setattr(call, "array_module", lambda *arrays: counting)
    monkeypatch.setattr(call, "device_of", lambda array: "cuda:0")
    monkeypatch.setattr(devices, "cuda_device", lambda device: (counting, 0))
    forget_modules()
    yield counting
    forget_modules()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    "query_shape, key_shape", [((1, 16, 16384, 64), (1, 16, 16384, 64)), ((2, 8, 300, 128), (2, 2, 16384, 128))]
)
@pytest.mark.parametrize(
    "options", [{}, {"tensor_cores": True}, {"is_causal": True, "dropout_p": 0.1, "dropout_key": (1, 2, 3)}]
)
def test_the_plan_has_every_array_that_is_made(library, dtype, query_shape, key_shape, options):
    query, key, value = (np.empty(shape, dtype) for shape in (query_shape, key_shape, key_shape))
    output, lse = attention_forward(query, key, value, **options)
    plan = memory_plan(query_shape, key_shape, dtype)
    assert library.made == [(array.shape, array.dtype) for array in plan if array.made_by == "forward"]
    library.made.clear()
    attention_backward(query, query, key, value, output, lse, **options)
    assert sorted(library.made) == sorted((array.shape, array.dtype) for array in plan if array.made_by == "backward")
    given = [(array.shape, array.dtype) for array in plan if array.made_by == "caller"]
    assert sorted(given) == sorted([(query_shape, dtype)] * 2 + [(key_shape, dtype)] * 2)


def test_a_plan_of_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"memory_plan: dtype must be one of float32, .*, got 'float64'"):
        memory_plan((1, 1, 4, 8), (1, 1, 4, 8), "float64")
    for query, key in (((1, 4, 8), (1, 4, 8)), ((3, 1, 4, 8), (1, 1, 4, 8)), ((1, 1, 4, 8), (1, 1, 4, 16))):
        with pytest.raises(ValueError, match=r"memory_plan: query .* and key .* do not fit"):
            memory_plan(query, key, "float32")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_memory_is_proportional_to_n(dtype):
    def total(n):
        return sum(array.bytes for array in memory_plan((1, 16, n, 64), (1, 16, n, 64), dtype))

    assert total(16384) == 16 * total(1024)
    itemsize = 4 if dtype == "float32" else 2
    assert total(16384) < math.prod((16, 16384, 16384)) * itemsize / 20  # the scores, which are nowhere
    arrays, rows = 8 * 16 * 16384 * 64 * itemsize, 3 * 16 * 16384 * 4
    assert total(16384) == arrays + rows
