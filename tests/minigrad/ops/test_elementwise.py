"""Operations on each element: against finite differences, NumPy and PyTorch; then their corners."""

import math

import numpy as np
import pytest

import minigrad as mg
from minigrad import Tensor, grad, ops
from tests.minigrad.ops.factory import (
    ANY_ONE,
    ANY_THREE,
    ANY_TWO,
    ONE,
    THREE,
    TWO,
    Case,
    booleans,
    integers,
    make_tests,
    nonzero,
    normal,
    positive,
)
from tests.support import assert_close, leaf, torch_or_skip


def unary(name, call=None, **more):
    """A case of one operand of any shape, by default called by the name that all libraries share."""
    return Case(name, call or (lambda lib, x: getattr(lib, name)(x)), ONE, ANY_ONE, **more)


def binary(name, call=None, **more):
    """A case of two operands that broadcast."""
    return Case(name, call or (lambda lib, x, y: getattr(lib, name)(x, y)), TWO, ANY_TWO, **more)


def erf_of_numpy(_, x):
    return np.vectorize(math.erf, otypes=[x.dtype])(x)


def gelu_tanh(_, x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


CASES = [
    # arithmetic
    binary("add"),
    binary("subtract"),
    binary("multiply"),
    binary("divide", values=(normal, nonzero)),
    binary("floor_divide", values=(normal, nonzero), torch=lambda t, x, y: (x // y).detach(), differentiable=False),
    binary("remainder", values=(normal, nonzero)),
    binary("power", values=(positive, normal), torch=lambda t, x, y: t.pow(x, y)),
    unary("power", lambda _, x: x**3),
    unary("power", lambda _, x: x**-0.5, values=positive),
    unary("power", lambda _, x: 2.0**x),
    unary("negative"),
    # comparison and logic
    binary("equal", values=integers, torch=lambda t, x, y: x == y, differentiable=False),
    binary("not_equal", differentiable=False),
    binary("less", differentiable=False),
    binary("less_equal", differentiable=False),
    binary("greater", differentiable=False),
    binary("greater_equal", differentiable=False),
    binary("bitwise_and", values=integers, differentiable=False),
    binary("bitwise_and", values=booleans, differentiable=False),
    binary("bitwise_or", values=integers, differentiable=False),
    binary("bitwise_or", values=booleans, differentiable=False),
    unary("invert", values=integers, torch=lambda t, x: ~x, differentiable=False),
    unary("invert", values=booleans, torch=lambda t, x: ~x, differentiable=False),
    unary("isnan", differentiable=False),
    unary("sign", values=nonzero),
    # choice
    Case("where", lambda lib, c, x, y: lib.where(c, x, y), THREE, ANY_THREE, values=(booleans, normal, normal)),
    Case(
        "masked_fill", lambda lib, x, m: ops.masked_fill(x, m, 0.25), TWO, ANY_TWO, values=(normal, booleans),
        numpy=lambda n, x, m: n.where(m, 0.25, x), torch=lambda t, x, m: x.masked_fill(m, 0.25),
    ),
    binary("maximum"),
    binary("minimum"),
    # functions of one variable
    unary("exp"),
    unary("log", values=positive),
    unary("sqrt", values=positive),
    unary("tanh"),
    unary("sigmoid", numpy=lambda n, x: 1 / (1 + n.exp(-x))),
    unary("abs", values=nonzero),
    unary("relu", values=nonzero, numpy=lambda n, x: n.maximum(x, 0)),
    unary("erf", numpy=erf_of_numpy),
    unary(
        "gelu", numpy=lambda n, x: 0.5 * x * (1 + erf_of_numpy(n, x / math.sqrt(2))),
        torch=lambda t, x: t.nn.functional.gelu(x),
    ),
    unary(
        "gelu", lambda lib, x: ops.gelu(x, approximate="tanh"), numpy=gelu_tanh,
        torch=lambda t, x: t.nn.functional.gelu(x, approximate="tanh"),
    ),
    # form
    unary("constant", numpy=lambda n, x: x, torch=lambda t, x: x.detach(), differentiable=False),
    unary("alias", numpy=lambda n, x: x, torch=lambda t, x: x.view_as(x)),
    unary("copy", torch=lambda t, x: x.clone()),
    unary(
        "astype", lambda lib, x: ops.astype(x, dtype=np.float64),
        numpy=lambda n, x: x.astype(float), torch=lambda t, x: x.double(),
    ),
    unary(
        "to_device", lambda lib, x: ops.to_device(x, device=x.device),
        numpy=lambda n, x: x, torch=lambda t, x: x.cpu(),
    ),
]  # fmt: skip

test_gradients, test_against_numpy, test_against_pytorch, test_device = make_tests(CASES)


# ---- power -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "exponent", "value", "slope"),
    [
        ([0.0, 1.0], 0, [1, 1], [0, 0]),
        ([0.0, 1.0], 0.0, [1, 1], [0, 0]),
        ([-2.0], 2, [4], [-4]),
        ([-2.0], 3, [-8], [12]),
        ([0.0], 1, [0], [1]),
        ([0.0], 2, [0], [0]),
        ([0.0], 0.5, [0], [math.inf]),
        ([4.0], -0.5, [0.5], [-0.0625]),
    ],
)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_power_with_a_constant_exponent_at_its_corners(base, exponent, value, slope, as_tensor):
    x = leaf(base)
    with np.errstate(divide="ignore"):
        y = x ** (Tensor(np.full(x.shape, exponent, float)) if as_tensor else exponent)
        y.sum().backward()
    assert_close(y, value, 1e-15)
    assert_close(x.grad, slope, 1e-15)


def test_power_gradients_of_base_and_exponent_at_their_corners():
    base, exponent = leaf([0, 2, -2, 0]), leaf([2, 3, 2, 0])
    with np.errstate(invalid="ignore"):
        (base**exponent).sum().backward()
    assert_close(base.grad, [0, 12, -4, 0], 1e-15)
    assert_close(exponent.grad, [0, 8 * math.log(2), math.nan, 0], 1e-15)


@pytest.mark.parametrize(
    ("base", "exponent", "slope"),
    [(2.0, 3.0, 8 * math.log(2)), (0.0, 2.0, 0), (0.0, 0.0, 0), (0.0, -1.0, -math.inf), (-2.0, 2.0, math.nan)],
)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_power_with_a_constant_base_at_its_corners(base, exponent, slope, as_tensor):
    x = leaf(exponent)
    with np.errstate(divide="ignore", invalid="ignore"):
        ((Tensor(base, dtype=np.float64) if as_tensor else base) ** x).backward()
    assert_close(x.grad, slope, 1e-15)


def test_power_corners_have_right_second_derivatives():
    x = leaf([0.0, 0.0, 0.0, -2.0])
    (slope,) = grad((x ** Tensor([0.0, 1.0, 2.0, 3.0])).sum(), x, create_graph=True)
    (curvature,) = grad(slope.sum(), x)
    assert_close(slope, [0, 1, 0, 12], 1e-15)
    assert_close(curvature, [0, 0, 2, -12], 1e-15)


def test_power_of_integers_with_a_negative_exponent_is_an_error_not_zero():
    with pytest.raises(ValueError, match="negative integer power"):
        Tensor([1, 2]) ** -1
    assert_close(Tensor([1.0, 2.0]) ** -1, [1, 0.5], 0)


# ---- kinks and ties --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", [ops.maximum, ops.minimum])
def test_maximum_and_minimum_of_equal_elements_share_the_gradient(operation):
    x, y = leaf([2, 1, 3]), leaf([2, 3, 1])
    operation(x, y).sum().backward()
    assert_close(x.grad[0], 0.5, 0)
    assert_close(x.grad + y.grad, [1, 1, 1], 0)
    z = leaf(2.0)
    operation(z, 2).backward()
    assert_close(z.grad, 0.5, 0)


@pytest.mark.parametrize("operation", [ops.maximum, ops.minimum])
def test_maximum_and_minimum_show_nan(operation):
    assert np.isnan(operation(Tensor([math.nan, 1.0]), Tensor([1.0, math.nan])).numpy()).all()


def test_relu_at_its_kink_and_of_nan_and_infinities():
    x = leaf([0.0, -0.0, math.nan, -math.inf, math.inf])
    y = x.relu()
    y.sum().backward()
    assert_close(y, [0, 0, math.nan, 0, math.inf], 0)
    assert_close(x.grad[[0, 1, 3, 4]], [0, 0, 0, 1], 0)


def test_abs_has_slope_zero_at_zero():
    x = leaf([0.0, -2.0, 3.0])
    x.abs().sum().backward()
    assert_close(x.grad, [0, -1, 1], 0)


def test_where_gives_no_gradient_to_what_was_not_chosen():
    x, y = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    ops.where(Tensor([True, False]), x, y).backward([math.inf, 5.0])
    assert_close(x.grad, [math.inf, 0], 0)
    assert_close(y.grad, [0, 5], 0)


# ---- range and precision ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sigmoid_keeps_its_precision_far_from_zero(dtype):
    x = np.array([-700.0, -80.0, -20.0, 0.0, 20.0, 800.0], dtype)
    x = x[x > -100] if dtype == np.float32 else x
    with np.errstate(over="raise", invalid="raise"):
        y = Tensor(x).sigmoid().numpy()
    expected = [math.exp(v) / (1 + math.exp(v)) if v < 0 else 1 / (1 + math.exp(-v)) for v in map(float, x)]
    np.testing.assert_allclose(y, expected, rtol=4 * np.finfo(dtype).eps)


def test_sigmoid_has_its_derivatives_at_zero_of_all_orders():
    x = leaf(0.0)
    value, found = x.sigmoid(), []
    for _ in range(3):
        (value,) = grad(value, x, create_graph=True)
        found.append(value.item())
    assert_close(found, [1 / 4, 0, -1 / 8], 1e-15)


def test_divide_by_a_large_number_does_not_overflow_in_the_gradient():
    x, y = leaf(1e30, np.float32), leaf(1e25, np.float32)
    with np.errstate(over="raise"):
        (x / y).backward()
    assert_close(y.grad, -1e-20, 1e-6)


def test_gelu_in_both_forms():
    assert_close(ops.gelu(Tensor(1.0)), 0.8413447, 1e-6)
    assert_close(ops.gelu(Tensor(1.0), approximate="tanh"), 0.8411920, 1e-6)
    with pytest.raises(ValueError, match="gelu: approximate must be 'none' or 'tanh', got 'erf'"):
        ops.gelu(Tensor(1.0), approximate="erf")


@pytest.mark.parametrize("name", ["exp", "log", "sqrt", "tanh", "sigmoid", "erf", "relu", "abs", "divide"])
def test_integers_give_the_dtype_that_pytorch_gives(name):
    torch = torch_or_skip()
    operands = [[1, 2], [2, 4]][: 2 if name == "divide" else 1]
    found, expected = getattr(ops, name)(*map(Tensor, operands)), getattr(torch, name)(*map(torch.tensor, operands))
    assert str(found.dtype) == str(expected.dtype).removeprefix("torch.")
    assert_close(found, expected, 1e-6)


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [Tensor([1, 0]), Tensor([1.0, 0.0]), np.array([1, 0]), [True, False]])
def test_masked_fill_refuses_a_mask_that_is_not_boolean(mask):
    with pytest.raises(TypeError, match=r"masked_fill takes a boolean mask, got (int64|float32|list); write mask == 0"):
        Tensor([1.0, 2.0]).masked_fill(mask, 0.0)


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_the_gradient_beside_a_nan_adds_up_to_the_whole(name):
    x, y = mg.Tensor([np.nan], requires_grad=True), mg.Tensor([1.0], requires_grad=True)
    getattr(mg, name)(x, y).sum().backward()
    assert x.grad.item() + y.grad.item() == 1
