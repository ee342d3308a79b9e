"""Making tensors: shapes, values, dtypes and refusals, held against PyTorch where it can be."""

import math

import numpy as np
import pytest

import minigrad as mg
from minigrad import Tensor
from minigrad.backend import is_array
from tests.cupy_standin import installed
from tests.support import torch_or_skip

# ---- shapes and options ----------------------------------------------------------------------------------------------

OF_SIZES = [mg.zeros, mg.ones, mg.rand, mg.randn]


@pytest.mark.parametrize("make", OF_SIZES)
@pytest.mark.parametrize("shape", [(2, 3), (), (0,), (2, 0, 3)])
def test_sizes_are_numbers_or_one_tuple(make, shape):
    for x in (make(*shape), make(shape), make(list(shape)), make(*map(np.int64, shape)), make(*map(Tensor, shape))):
        assert (x.shape, x.dtype, x.requires_grad, x.device) == (shape, np.float32, False, mg.get_default_device())
        assert is_array(x.data)


@pytest.mark.parametrize(
    "make",
    [
        *[lambda make=make, **options: make(2, 2, **options) for make in OF_SIZES],
        lambda **options: mg.full((2, 2), 1.0, **options),
        lambda **options: mg.eye(2, **options),
        lambda **options: mg.arange(2.0, **options),
        lambda **options: mg.linspace(0, 1, 3, **options),
        *[
            lambda make=make, **options: make(mg.zeros(2, 2), **options)
            for make in (mg.zeros_like, mg.ones_like, mg.rand_like, mg.randn_like)
        ],
        lambda **options: mg.full_like(mg.zeros(2), 1.0, **options),
    ],
)
def test_options(make):
    assert (make().dtype, make().requires_grad, make(device=None).device) == (
        np.float32,
        False,
        mg.get_default_device(),
    )
    for dtype in (np.float16, "float64", mg.float32):
        x = make(dtype=dtype, requires_grad=True)
        assert (x.dtype, x.requires_grad, x.is_leaf) == (np.dtype(dtype), True, True)
        with mg.no_grad():
            x += 1  # its memory is its own
    with installed(devices=2):
        mg.manual_seed(0)
        x = make(device="cuda:1", requires_grad=True)
        mg.manual_seed(0)
        assert (x.device, x.is_leaf, x.tolist()) == ("cuda:1", True, make().tolist())
    with pytest.raises(TypeError, match=r"a tensor holds floats, integers or booleans, not complex128|draws fractions"):
        make(dtype=complex)


def test_integers_require_no_gradients():
    for make in (lambda: mg.arange(3, requires_grad=True), lambda: mg.randint(3, (2,), requires_grad=True)):
        with pytest.raises(RuntimeError, match="only floating-point tensors can require gradients"):
            make()


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: mg.zeros(-1), ValueError, r"zeros: sizes must be 0 or more, got \(-1,\)"),
        (lambda: mg.ones((2, -3)), ValueError, r"ones: sizes must be 0 or more, got \(2, -3\)"),
        (lambda: mg.full((-1,), 0), ValueError, "full: sizes must be 0 or more"),
        (lambda: mg.rand(2, -1), ValueError, "rand: sizes must be 0 or more"),
        (lambda: mg.randn(-1), ValueError, "randn: sizes must be 0 or more"),
        (lambda: mg.randint(3, (-1,)), ValueError, "randint: sizes must be 0 or more"),
        (lambda: mg.randperm(-1), ValueError, "randperm: sizes must be 0 or more"),
        (lambda: mg.eye(-1), ValueError, "eye: sizes must be 0 or more"),
        (lambda: mg.eye(2, -1), ValueError, "eye: sizes must be 0 or more"),
        (lambda: mg.linspace(0, 1, -1), ValueError, "linspace: sizes must be 0 or more"),
        (lambda: mg.zeros(2.0), TypeError, r"zeros: sizes must be integers, got \(2\.0,\)"),
        (lambda: mg.zeros(2, np.float64), TypeError, "zeros: sizes must be integers, got"),
        (lambda: mg.randn("ab"), TypeError, "randn: sizes must be integers"),
        (lambda: mg.linspace(0, 1, 2.5), TypeError, "linspace: sizes must be integers"),
        (lambda: mg.full((2,), [1, 2]), TypeError, "full: fill_value must be a number, got list"),
        (lambda: mg.full((2,), 1j), TypeError, "full: fill_value must be a number, got complex"),
        (lambda: mg.full((2,), mg.ones(1)), TypeError, "full: fill_value must be a number, got Tensor"),
        (lambda: mg.full((2,), 1e9, dtype="float16"), ValueError, "full: 1000000000.0 is no value of float16"),
        (
            lambda: mg.full((2,), 1e39),
            ValueError,
            r"full: 1e\+39 is no value of float32, which are from -3.*; write math.inf",
        ),
        (
            lambda: mg.full((2,), 256, dtype="uint8"),
            ValueError,
            "full: 256 is no value of uint8, which are from 0 to 255",
        ),
        (lambda: mg.full_like(mg.zeros(2, dtype="int8"), math.nan), ValueError, "full: nan is no value of int8"),
        (lambda: mg.randperm(257, dtype="uint8"), ValueError, "uint8 cannot hold the integers from 0 to below 257"),
        (lambda: mg.randperm(2050, dtype="float16"), ValueError, "randperm: float16 cannot hold the integers"),
        (lambda: mg.randint(2051, (2,), dtype="float16"), ValueError, "randint: float16 cannot hold the integers"),
        (lambda: mg.zeros(2, device=0), mg.DeviceError, 'unknown device 0: write "cpu", "cuda"'),
        (lambda: mg.arange("a"), TypeError, "arange: each bound must be a number, got str"),
        (lambda: mg.rand(2, dtype=np.int64), TypeError, "rand: draws fractions, which int64 cannot hold"),
        (lambda: mg.randn_like(mg.arange(3)), TypeError, "randn: draws fractions, which int64 cannot hold"),
    ],
)
def test_refusals(make, error, text):
    with pytest.raises(error, match=text):
        make()


# ---- values, beside PyTorch's ----------------------------------------------------------------------------------------

SAME_CALL = [
    lambda t: t.zeros(2, 3),
    lambda t: t.ones((2, 0)),
    lambda t: t.ones(2, dtype=t.bool_ if t is mg else t.bool),
    lambda t: t.full((2,), 2.5),
    lambda t: t.full((), 2),
    lambda t: t.full((2,), True),
    lambda t: t.full([0], False),
    lambda t: t.full((2,), 2.5, dtype=t.int64),
    lambda t: t.full((2,), math.nan),
    lambda t: t.full((2,), t.tensor(3)),
    lambda t: t.full((2,), np.float64(3)),
    lambda t: t.eye(3),
    lambda t: t.eye(2, 4),
    lambda t: t.eye(3, 2, dtype=t.int64),
    lambda t: t.eye(0),
    lambda t: t.eye(0, 3),
    lambda t: t.zeros_like(t.tensor([1, 2])),
    lambda t: t.ones_like(t.tensor([[True], [False]])),
    lambda t: t.zeros_like(t.tensor([1, 2]), dtype=t.float64),
    lambda t: t.full_like(t.tensor([1, 2]), 2.5),
    lambda t: t.full_like(t.tensor([[1.0]]), 2),
    lambda t: t.full_like(t.tensor([0.0, 1.0]), 7, dtype=t.int32),
    lambda t: t.arange(3),
    lambda t: t.arange(0),
    lambda t: t.arange(1, 4),
    lambda t: t.arange(1, 6, 2),
    lambda t: t.arange(3, 0, -1),
    lambda t: t.arange(5, 0, -2),
    lambda t: t.arange(-3, 3),
    lambda t: t.arange(2.0),
    lambda t: t.arange(0, 1, 0.1),
    lambda t: t.arange(1, 2, 0.3),
    lambda t: t.arange(1.0, 0.0, -0.25),
    lambda t: t.arange(0, 3.5),
    lambda t: t.arange(0.1, 0.7, 0.2, dtype=t.float64),
    lambda t: t.arange(5, dtype=t.float32),
    lambda t: t.arange(5, dtype=t.int32),
    lambda t: t.arange(3, 3),
    lambda t: t.arange(0, 10, 20),
    lambda t: t.arange(True),
    lambda t: t.arange(np.int64(3)),
    lambda t: t.arange(t.tensor(3)),
    lambda t: t.arange(start=1, end=3),
    lambda t: t.arange(2**40, 2**40 + 2),
    lambda t: t.linspace(0, 1, 5),
    lambda t: t.linspace(0, 1, 0),
    lambda t: t.linspace(3, 7, 1),
    lambda t: t.linspace(3, 3, 4),
    lambda t: t.linspace(10, -10, 5),
    lambda t: t.linspace(0, 10, 5, dtype=t.int64),
    lambda t: t.linspace(-3, 3, 4, dtype=t.int32),
    lambda t: t.linspace(1, 10, steps=4),
    lambda t: t.linspace(0.5, 2.5, 3, dtype=t.float64),
]


@pytest.mark.parametrize("make", SAME_CALL)
def test_values_and_dtypes_are_pytorchs(make):
    ours, theirs = make(mg), make(torch_or_skip())
    assert str(ours.dtype) == str(theirs.dtype).removeprefix("torch.")
    assert ours.shape == tuple(theirs.shape)
    np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_known_values_without_pytorch():
    assert mg.arange(1, 6, 2).tolist() == [1, 3, 5]
    assert mg.arange(0, 1, 0.25).tolist() == [0, 0.25, 0.5, 0.75]
    assert mg.linspace(0, 1, 5).tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert (mg.linspace(2, 5, 1).tolist(), mg.linspace(2, 5, 0).tolist()) == ([2], [])
    assert mg.eye(2, 3).tolist() == [[1, 0, 0], [0, 1, 0]]
    assert (mg.full((2,), True).dtype, mg.full((2,), 1).dtype, mg.full((2,), 1.0).dtype) == (bool, "int64", "float32")


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ((0, 3, 0), "arange: steps of 0 do not lead from 0 to 3"),
        ((0, 1, 0.0), "arange: steps of 0.0 do not lead"),
        ((0, 3, -1), "arange: steps of -1 do not lead from 0 to 3"),
        ((-3,), "arange: steps of 1 do not lead from 0 to -3"),
        ((1.0, 0.0), "arange: steps of 1 do not lead from 1.0 to 0.0"),
        ((0, math.inf), "arange: the bounds and the step must be finite, got 0, inf and 1"),
        ((math.nan,), "arange: the bounds and the step must be finite, got 0, nan and 1"),
        ((0, 5, math.nan), "arange: the bounds and the step must be finite, got 0, 5 and nan"),
        ((2**63,), "arange: 9223372036854775808 is no value of int64"),
    ],
)
def test_arange_that_leads_nowhere(bounds, text):
    torch = torch_or_skip()
    with pytest.raises(ValueError, match=text):
        mg.arange(*bounds)
    with pytest.raises((RuntimeError, ValueError)):
        torch.arange(*bounds)


# ---- at random -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_uniform_numbers_are_in_their_interval_in_every_dtype(dtype):
    mg.manual_seed(0)
    x = mg.rand(100, 1000, dtype=dtype).numpy()
    assert x.dtype == dtype
    assert x.min() >= 0 and x.max() < 1  # of 100,000 numbers about 24 would be rounded up to 1 in float16
    assert x.astype(np.float64).mean() == pytest.approx(0.5, abs=0.005)
    assert x.astype(np.float64).std() == pytest.approx(12**-0.5, abs=0.005)


def test_a_seed_gives_the_same_numbers_in_every_dtype():
    for make, steps in ((mg.rand, 1), (mg.randn, 4)):
        mg.manual_seed(3)
        exact = make(50, dtype=np.float64).numpy()
        for dtype in (np.float16, np.float32):
            mg.manual_seed(3)
            np.testing.assert_allclose(make(50, dtype=dtype).numpy(), exact, rtol=0, atol=steps * np.finfo(dtype).eps)


def test_just_below_1_is_not_rounded_up(monkeypatch):
    class Largest:
        def random(self, shape):
            return np.full(shape, 1 - 2.0**-53)

    monkeypatch.setattr("minigrad.factories.next_generator", lambda generator: Largest())
    for dtype in (np.float16, np.float32, np.float64):
        assert 1 - 2 * np.finfo(dtype).eps < mg.rand(1, dtype=dtype).item() < 1


@pytest.mark.parametrize(
    ("call", "low", "high"),
    [
        (lambda: mg.randint(5, (1000,)), 0, 5),
        (lambda: mg.randint(-3, 4, (10, 100)), -3, 4),
        (lambda: mg.randint(high=3, size=(1000,)), 0, 3),
        (lambda: mg.randint(3, size=[1000]), 0, 3),
        (lambda: mg.randint(low=2, high=4, size=(1000,)), 2, 4),
        (lambda: mg.randint(7, 8, (5,)), 7, 8),
        (lambda: mg.randint_like(mg.zeros(1000, dtype=np.int64), 5), 0, 5),
        (lambda: mg.randint_like(mg.zeros(1000, dtype=np.int64), 2, 5), 2, 5),
        (lambda: mg.randint_like(mg.zeros(1000, dtype=np.int64), high=5), 0, 5),
    ],
)
def test_integers_take_every_value_and_no_other(call, low, high):
    mg.manual_seed(0)
    x = call()
    assert x.dtype == np.int64
    assert sorted(set(x.flatten().tolist())) == list(range(low, high))


def test_dtypes_of_random_integers():
    assert mg.randint(2, (5,), dtype=np.bool_).dtype == np.bool_
    assert mg.randint(256, (5,), dtype=np.uint8).dtype == np.uint8
    like = mg.randint_like(mg.zeros(2, 3), 10)
    assert (like.dtype, like.shape) == (np.float32, (2, 3))
    assert mg.randint(5, ()).shape == ()
    assert mg.randint(5, (0, 2)).shape == (0, 2)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: mg.randint(3, 3, (2,)), ValueError, "randint: there is no integer from 3 to below 3"),
        (lambda: mg.randint(0, (2,)), ValueError, "randint: there is no integer from 0 to below 0"),
        (
            lambda: mg.randint(0, 257, (2,), dtype=np.uint8),
            ValueError,
            "randint: uint8 cannot hold the integers from 0",
        ),
        (lambda: mg.randint(-1, 5, (2,), dtype=np.uint8), ValueError, "randint: uint8 cannot hold"),
        (lambda: mg.randint(0, 10**6, (2,), dtype=np.float16), ValueError, "randint: float16 cannot hold"),
        (lambda: mg.randint(3, (2,), dtype=np.bool_), ValueError, "randint: bool cannot hold"),
        (lambda: mg.randint(3), TypeError, r"randint: give a size, such as \(2, 3\)"),
        (lambda: mg.randint(0.5, 3, (2,)), TypeError, "float"),
    ],
)
def test_random_integers_that_there_are_not(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_permutations():
    mg.manual_seed(0)
    x = mg.randperm(100)
    assert x.dtype == np.int64
    assert x.tolist() != list(range(100)) == sorted(x.tolist())
    assert mg.randperm(100).tolist() != x.tolist()
    assert mg.randperm(3, dtype=np.int32).dtype == np.int32
    assert (mg.randperm(0).tolist(), mg.randperm(1).tolist()) == ([], [0])
    orders = {tuple(mg.randperm(3).tolist()) for _ in range(200)}
    assert len(orders) == 6


def test_normal_numbers_of_no_axes():
    for make in (mg.rand, mg.randn):
        x = make(())
        assert (is_array(x.data), x.shape, x.dtype) == (True, (), np.float32)


def test_a_number_that_requires_grad_would_lose_it():
    x = Tensor(2.0, requires_grad=True)
    for call in (
        lambda: mg.full((2,), x),
        lambda: mg.full_like(mg.ones(2), x),
        lambda: mg.linspace(0, x, 3),
        lambda: mg.linspace(x, 0, 3),
        lambda: mg.arange(0, x),
    ):
        with pytest.raises(TypeError, match="must be a number, got a tensor that requires grad, to which no gradient"):
            call()
    assert mg.full((2,), x.detach()).tolist() == [2, 2]


def test_an_infinite_step_is_refused():
    """PyTorch answers with nothing, and so without the start."""
    with pytest.raises(ValueError, match="arange: the bounds and the step must be finite, got 0, 5 and inf"):
        mg.arange(0, 5, math.inf)


def test_the_largest_permutations_of_a_dtype():
    assert sorted(mg.randperm(256, dtype="uint8").tolist()) == list(range(256))
    assert sorted(mg.randperm(2049, dtype="float16").tolist()) == list(range(2049))
    assert mg.randperm(0, dtype="uint8").tolist() == []


def test_an_integer_beyond_all_floats_is_refused():
    with pytest.raises(ValueError, match="full: an integer of 1329 bits is no value of float32"):
        mg.full((2,), 10**400, dtype="float32")
    with pytest.raises(ValueError, match="full: 9223372036854775808 is no value of int64"):
        mg.full((2,), 2**63)
