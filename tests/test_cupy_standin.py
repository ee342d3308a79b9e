"""The stand-in for CuPy refuses what CuPy refuses: else a test under it would show nothing."""

import copy
import operator
import pickle

import numpy as np
import pytest

import minigrad as mg
from kernels.emulator import EmulatorError
from minigrad import backend
from tests.cupy_standin import Array, installed
from tests.cupy_standin.cuda import counting_launches, counting_waits
from tests.kernels.emulator.compiled import needs_compiler


@pytest.fixture
def cupy():
    with installed(devices=2) as module:
        yield module


# ---- a NumPy array in the wrong place --------------------------------------------------------------------------------

MIXED = {
    "a + n": operator.add,
    "n + a": lambda a, n: n + a,
    "a @ n": lambda a, n: a @ n,
    "a < n": operator.lt,
    "a += n": operator.iadd,
    "n += a": lambda a, n: operator.iadd(n, a),
    "a[...] = n": lambda a, n: operator.setitem(a, ..., n),
    "n[...] = a": lambda a, n: operator.setitem(n, ..., a),
    "np.add": np.add,
    "np.exp(out=)": lambda a, n: np.exp(a, out=n),
    "np.where": lambda a, n: np.where(a > 0, a, n),
    "np.concatenate": lambda a, n: np.concatenate([a, n]),
    "np.array": lambda a, n: np.array([a, n]),
    "np.asarray": lambda a, n: np.asarray(a),
    "a list": lambda a, n: np.array(list(a)),
}


@pytest.mark.parametrize("use", MIXED.values(), ids=MIXED)
def test_a_numpy_array_in_the_wrong_place_fails(cupy, use):
    with pytest.raises((TypeError, ValueError)):
        use(cupy.asarray(np.ones(2)), np.ones(2))


def test_cupys_functions_take_no_numpy_array(cupy):
    a, n = cupy.ones(2), np.ones(2)
    for use in (
        lambda: cupy.exp(n), lambda: cupy.sum(n), lambda: cupy.reshape(n, (2, 1)), lambda: cupy.matmul(a, n),
        lambda: cupy.maximum(a, a, out=n), lambda: cupy.where(n, a, a), lambda: cupy.stack([a, n]),
        lambda: cupy.einsum("i,i->", a, n), lambda: cupy.add.reduceat(a, n.astype(int)), lambda: cupy.all(True),
    ):  # fmt: skip
        with pytest.raises((TypeError, AttributeError)):
            use()


def test_an_operation_that_mixes_libraries_fails_under_it():
    @mg.op
    def careless(x):
        return x * np.ones(x.shape, x.dtype), lambda g: g

    @mg.op
    def careless_going_back(x):
        return x * 1.0, lambda g: g * np.ones(g.shape, g.dtype)

    assert careless(mg.ones(2, device="cpu")).tolist() == [1, 1]
    with installed():
        x = mg.ones(2, device="cuda", requires_grad=True)
        with pytest.raises(TypeError, match=r"careless: Unsupported type <class 'numpy\.ndarray'>"):
            careless(x)
        with pytest.raises(TypeError, match=r"Unsupported type <class 'numpy\.ndarray'>"):
            careless_going_back(x).sum().backward()


# ---- what CuPy has, and what it has not ------------------------------------------------------------------------------


def test_numpys_functions_of_its_arrays_stay_on_the_device(cupy):
    a = cupy.asarray([1.0, 2.0])
    for result in (np.exp(a), np.concatenate([a, a]), np.sum(a), 2 * a, np.float64(2) * a, a[0], a.max(), a == a):
        assert type(result) is Array


def test_results_without_axes_are_arrays_and_their_numbers_must_be_asked_for(cupy):
    a = cupy.arange(3)
    assert (a.sum().shape, a[1].shape, float(a.sum()), int(a[1]), bool(a[1]), a[1].item()) == ((), (), 3.0, 1, True, 1)
    for wrong in (lambda: [0, 1][a[1]], lambda: range(a[1]), lambda: f"{a[1]:.2f}", lambda: len(a[1]), lambda: {a: 1}):
        with pytest.raises(TypeError):
            wrong()
    first = a[0]
    first += 5
    assert a.tolist() == [5, 1, 2]  # a view, unlike NumPy's number


def test_what_cupy_lacks_is_missing(cupy):
    a = cupy.ones(3)
    for name in ("busday_count", "erf", "errstate", "no_such_thing"):
        with pytest.raises(AttributeError, match=f"module 'cupy' has no attribute '{name}'"):
            getattr(cupy, name)
    with pytest.raises(AttributeError):
        a.flags.writeable  # noqa: B018
    with pytest.raises(NotImplementedError):
        cupy.multiply.at(a, [0], 2.0)
    for use in (lambda: a.sum(where=a > 0), lambda: cupy.sum(a, initial=1.0), lambda: a.item(0)):
        with pytest.raises(TypeError):
            use()


def test_sums_at_places_have_few_dtypes(cupy):
    a = cupy.zeros(3, np.float32)
    cupy.add.at(a, (np.array([0, 0, 2]),), 1.0)
    assert a.tolist() == [2, 0, 1]
    for function, dtype in ((cupy.add, np.int64), (cupy.maximum, np.float16), (cupy.add, np.bool_)):
        with pytest.raises(TypeError, match="only supports int32"):
            function.at(cupy.zeros(3, dtype), cupy.asarray([0]), 1)


def test_where_cupy_answers_and_numpy_refuses(cupy):
    a = cupy.arange(3)
    assert a[cupy.asarray([3, -1])].tolist() == [0, 2] and cupy.take(a, cupy.asarray([4])).tolist() == [1]
    assert cupy.power(cupy.asarray([2, 1]), -1).tolist() == [0, 1]
    with pytest.raises(IndexError):
        a[3]


def test_what_is_written_must_not_overlap_what_is_read(cupy):
    a = cupy.arange(4)
    a[...] = a  # the same
    with pytest.raises(AssertionError, match="overlaps"):
        a[1:] = a[:-1]
    with pytest.raises(AssertionError, match="overlaps"):
        a += a[::-1]


# ---- devices ---------------------------------------------------------------------------------------------------------


def test_an_array_of_another_device_is_out_of_reach(cupy):
    with cupy.cuda.Device(1):
        a = cupy.ones(2)
        assert (a + 1).device.id == cupy.cuda.Device().id == 1
    assert cupy.cuda.Device().id == cupy.ones(1).device.id == 0
    for use in (lambda: a + 1, lambda: a + cupy.ones(2), lambda: a.sum(), lambda: operator.setitem(a, 0, 1.0)):
        with pytest.raises(ValueError, match=r"resides \(1\) is different from the current device \(0\)"):
            use()
    assert a.reshape(2, 1)[0].device.id == 1  # a view needs no kernel
    assert a.get().tolist() == a.tolist() == [1, 1] and a.copy().device.id == cupy.asarray(a).device.id == 0
    with backend.on_device_of(a):
        assert (a * 2).device.id == 1


def test_copies_and_pickles(cupy):
    a = cupy.asarray([1.0, 2.0])
    for other in (copy.copy(a), copy.deepcopy(a), pickle.loads(pickle.dumps(a))):
        assert type(other) is Array and other is not a and other.tolist() == [1, 2]
    assert type(cupy.asnumpy(a)) is np.ndarray and cupy.asarray(a) is a


# ---- kernels ---------------------------------------------------------------------------------------------------------

DOUBLED = """
extern "C" __global__ void doubled(float* x, int n, float factor) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= factor;
}
"""


@needs_compiler
def test_kernels_are_run_on_its_arrays(cupy):
    kernel = cupy.RawModule(code=DOUBLED).get_function("doubled")
    x = cupy.arange(5, dtype=np.float32)
    kernel((2,), (4,), (x, np.int32(5), np.float32(2)))
    assert x.tolist() == [0, 2, 4, 6, 8]
    with pytest.raises(TypeError, match="Unsupported type"):
        kernel((2,), (4,), (np.ones(5, np.float32), np.int32(5), np.float32(2)))
    with pytest.raises(EmulatorError, match="float"):
        kernel((2,), (4,), (x, np.int32(5), 2.0))


@needs_compiler
def test_launches_are_counted_but_views_and_empty_arrays_are_none(cupy):
    kernel = cupy.RawModule(code=DOUBLED).get_function("doubled")
    with counting_launches() as launches:
        x = cupy.empty(4, np.float32)
        x[1:] = 1.0
        x[:1] += x.reshape(2, 2)[1, 1:].sum()
        kernel((1,), (4,), (x, np.int32(4), np.float32(2)))
        x[cupy.asarray([0])].copy().astype(np.float64)
    assert launches == {"setitem": 2, "sum": 1, "add": 1, "doubled": 1, "getitem": 1, "copy": 1, "astype": 1}
    cupy.ones(3)
    assert launches.total() == 8


def test_waits_are_counted(cupy):
    a = cupy.arange(4)
    with counting_waits() as waits:
        a[1:] + a[cupy.asarray([0])]
        a.sum().reshape(1).copy()
        a[0] = 5
    assert not waits
    with counting_waits() as waits:
        a[a > 1]
        a[a > 1] = 0
        cupy.flatnonzero(a)
        a.nonzero()
    assert waits == {"mask": 2, "flatnonzero": 1, "nonzero": 1}  # how long the result is, a GPU must have counted
    with counting_waits() as waits:
        for read in (a.get, a.tolist, a[0].item, cupy.asnumpy):
            read(*[a] * (read is cupy.asnumpy))
        bool(a.any()), int(a[1]), float(a[2]), str(a)
    assert waits == {"get": 8}
