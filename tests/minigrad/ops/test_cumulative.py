"""Running sums and products: against finite differences, NumPy and PyTorch; then zeros, long rows and other dtypes."""

import numpy as np
import pytest

from minigrad import Tensor, ops
from tests.minigrad.ops.factory import Case, integers, make_tests, with_axes, with_zeros
from tests.support import assert_close, leaf, torch_or_skip


def along(name, axis, always=(), **more):
    return Case(name, lambda lib, x: getattr(lib, name)(x, axis), with_axes(2 if axis == -2 else 1), always, **more)


EMPTY = (((0,),), ((2, 0),), ((0, 2),))

CASES = [
    along("cumsum", -1, EMPTY),
    along("cumsum", 0, EMPTY),
    along("cumsum", -2),
    along("cumsum", -1, values=integers, differentiable=False),
    along("cumprod", -1, EMPTY, values=with_zeros),
    along("cumprod", 0, EMPTY, values=with_zeros),
    along("cumprod", -2),
    along("cumprod", -1, values=integers, differentiable=False),
]

test_gradients, test_against_numpy, test_against_pytorch, test_device = make_tests(CASES)


@pytest.mark.parametrize("length", range(9))
@pytest.mark.parametrize("zeros", [(), (0,), (1, 4), (2, 3)])
def test_cumprod_of_rows_of_any_length_with_zeros_anywhere(length, zeros):
    """The gradient's sum reaches in steps of 1, 2, 4 ...; each length ends them differently."""
    torch = torch_or_skip()
    rng = np.random.default_rng(length)
    values, weights = rng.uniform(0.5, 2.0, (2, length))
    values[[place for place in zeros if place < length]] = 0.0
    x, other = leaf(values), torch.tensor(values, requires_grad=True)
    x.cumprod(0).backward(weights)
    torch.cumprod(other, 0).backward(torch.tensor(weights))
    assert_close(x.grad, other.grad, 1e-14)


def test_cumprod_behind_a_zero():
    x = leaf([2, 0, 3])
    x.cumprod(0).sum().backward()
    assert x.grad.tolist() == [1, 2 + 2 * 3, 0]


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
@pytest.mark.parametrize("axis", [0, -1])
def test_a_single_number_is_its_own_sum_and_product(name, axis):
    x = leaf(3.0)
    y = getattr(ops, name)(x, axis=axis)
    assert (y.shape, y.item()) == ((), 3)
    y.backward(2.0)
    assert (x.grad.shape, x.grad.item()) == ((), 2)


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_dtypes_and_errors(name):
    running = getattr(ops, name)
    assert running(Tensor([1.0, 2.0]), axis=0).dtype == np.float32
    assert running(Tensor([1.0, 2.0], dtype=np.float16), axis=0).dtype == np.float16
    assert running(Tensor([True, True]), axis=0).dtype == np.int64
    with pytest.raises(IndexError, match=rf"{name}: axis 2 is out of bounds"):
        running(Tensor(np.ones((2, 3))), axis=2)


def test_float16_is_added_up_in_float32():
    assert ops.cumsum(Tensor(np.ones(4096, np.float16)), axis=0)[-1].item() == 4096


def test_products_of_float16_are_reckoned_in_float32():
    x = Tensor([300.0, 300.0, 1e-3], requires_grad=True, dtype=np.float16)  # the second product float16 lacks
    y = x.cumprod(0)
    assert y.dtype == np.float16 and abs(y[2].item() - 90.06) < 0.1 and np.isinf(y[1].item())
    y[2].backward()
    assert x.grad.dtype == np.float16 and np.isfinite(x.grad.tolist()[:2]).all()
