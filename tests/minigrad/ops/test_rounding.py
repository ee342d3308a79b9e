"""Rounding and limits: against finite differences, NumPy and PyTorch; then their corners."""

import math

import numpy as np
import pytest

import minigrad as mg
from minigrad import Tensor, ops
from tests.minigrad.ops.factory import (
    ANY_THREE,
    THREE,
    Case,
    binary,
    integers,
    make_tests,
    nonzero,
    unary,
)
from tests.support import assert_close, leaf, torch_or_skip


def clamp_of_one_shape(torch, x, low, high):
    """PyTorch's gradient of clamp is an error for some shapes that broadcast."""
    return torch.clamp(*torch.broadcast_tensors(x, low, high))


CASES = [
    unary("sign", values=nonzero),
    unary("floor"),
    unary("ceil"),
    unary("rint", torch=lambda t, x: t.round(x)),
    unary("round"),
    unary("round", lambda lib, x: lib.round(x, decimals=1), values=lambda rng, shape: integers(rng, shape) / 10 + 0.03),
    unary("round", lambda lib, x: lib.round(x, decimals=-1), values=lambda rng, shape: integers(rng, shape) * 10.0 + 3),
    Case(
        "clip",
        lambda lib, x, low, high: lib.clip(x, low, high),
        THREE,
        ANY_THREE,
        torch=clamp_of_one_shape,
        unlike=["None"],
    ),
    unary("clip", lambda lib, x: lib.clip(x, -0.5, 1)),
    unary("clip", lambda lib, x: lib.clip(x, -1, 2), values=integers, differentiable=False),
    binary("clip", lambda lib, x, low: lib.clip(x, low, None)),
    binary("clip", lambda lib, x, high: lib.clip(x, None, high)),
    unary("nan_to_num"),
    unary("nan_to_num", lambda lib, x: lib.nan_to_num(x, nan=1.0, posinf=2.0), values=integers, differentiable=False),
]

test_gradients, test_against_numpy, test_against_pytorch, test_device = make_tests(CASES)


# ---- steps -----------------------------------------------------------------------------------------------------------


def test_halves_are_rounded_to_even():
    assert Tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5]).round().tolist() == [-2, -2, 0, 0, 2, 2]


def test_sign_of_nan_is_0_and_of_a_boolean_itself_as_in_pytorch():
    x = leaf([math.nan, -math.inf, -0.0])
    assert x.sign().tolist() == [0, -1, 0]
    assert (Tensor([True, False]).sign().dtype, Tensor([True, False]).sign().tolist()) == (np.bool_, [True, False])
    x.sign().backward([1.0, 1.0, 1.0])
    assert x.grad.tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", ["sign", "floor", "ceil", "round"])
def test_steps_have_gradient_zero_whatever_comes(name):
    x = leaf([-1.5, 0.0, 2.0, math.inf, math.nan], np.float32)
    getattr(x, name)().backward([1.0, math.inf, math.nan, -3.0, 1.0])
    assert x.grad.dtype == np.float32
    assert x.grad.tolist() == [0, 0, 0, 0, 0]


@pytest.mark.parametrize("name", ["floor", "ceil", "round"])
def test_integers_are_rounded_to_a_copy_of_themselves(name):
    x = Tensor([1, -2])
    y = getattr(x, name)()
    assert (y.dtype, y.tolist()) == (np.int64, [1, -2])
    y[0] = 5
    assert x.tolist() == [1, -2]


# ---- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("low", "high"), [(-1, 1), (-1.0, None), (None, 1.0), (1.0, -1.0)])
def test_clamp_with_numbers_at_its_corners_as_pytorch(low, high):
    torch = torch_or_skip()
    values = [-math.inf, -2.0, -1.0, 0.0, 1.0, 2.0, math.inf, math.nan]
    x, theirs = leaf(values, np.float32), torch.tensor(values, requires_grad=True)
    found, expected = x.clamp(low, high), theirs.clamp(low, high)
    found.sum().backward()
    expected.sum().backward()
    assert found.dtype == np.float32
    assert_close(found, expected, 0)
    assert_close(x.grad, theirs.grad, 0)


def test_clamp_passes_the_gradient_at_its_bounds():
    x = leaf([-1.0, 1.0])
    x.clamp(min=-1, max=1).sum().backward()
    assert x.grad.tolist() == [1, 1]


def test_clamp_with_tensors_at_its_corners_as_pytorch():
    torch = torch_or_skip()
    nan = math.nan
    operands = [
        [-2.0, -1.0, 0.0, 1.0, 2.0, 2.0, -2.0, nan, 0.0, 0.0, 3.0],
        [-1.0, -1.0, 1.0, -1.0, -1.0, 1.0, 1.0, 0.0, nan, 0.0, nan],
        [1.0, 1.0, -1.0, 1.0, 1.0, -1.0, -1.0, 1.0, 1.0, nan, 1.0],
    ]
    ours = [leaf(values) for values in operands]
    theirs = [torch.tensor(values, dtype=torch.float64, requires_grad=True) for values in operands]
    found, expected = mg.clamp(*ours), torch.clamp(*theirs)
    found.sum().backward()
    expected.sum().backward()
    assert_close(found, expected, 0)
    for x, other in zip(ours, theirs, strict=True):
        assert_close(x.grad, other.grad, 0)


def test_clamp_of_integers_by_a_float_is_float32():
    y = Tensor([0, 3]).clamp(0.5)
    assert (y.dtype, y.tolist()) == (np.float32, [0.5, 3])


def test_clamp_without_bounds_is_an_error():
    with pytest.raises(ValueError, match="clip: give a lower bound, an upper bound or both, got neither"):
        Tensor([1.0]).clamp()


@pytest.mark.parametrize("options", [{}, {"nan": 0.5, "posinf": 3.0, "neginf": -4.0}])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nan_to_num_as_pytorch(dtype, options):
    torch = torch_or_skip()
    values = [-math.inf, math.inf, math.nan, 0.0, -1.0]
    x, theirs = leaf(values, dtype), torch.tensor(values, dtype=getattr(torch, dtype), requires_grad=True)
    found, expected = x.nan_to_num(**options), theirs.nan_to_num(**options)
    found.backward(np.arange(1.0, 6.0, dtype=dtype))
    expected.backward(torch.arange(1.0, 6.0, dtype=theirs.dtype))
    assert found.dtype == dtype
    assert found.tolist() == expected.tolist()
    assert_close(x.grad, theirs.grad, 0)


def test_nan_to_num_gives_no_gradient_to_what_it_replaces_however_large():
    x = leaf([math.nan, 1.0])
    ops.nan_to_num(x).backward([math.inf, 2.0])
    assert x.grad.tolist() == [0, 2]
