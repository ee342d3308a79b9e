"""Operations on each element: against finite differences, NumPy and PyTorch; then their corners."""

import math

import numpy as np
import pytest

import minigrad as mg
from minigrad import Tensor, grad, ops
from tests.minigrad.ops.factory import (
    ANY_THREE,
    ANY_TWO,
    THREE,
    TWO,
    Case,
    binary,
    booleans,
    make_tests,
    nonzero,
    normal,
    of_numbers,
    positive,
    unary,
)
from tests.support import assert_close, leaf, torch_or_skip

CASES = [
    # arithmetic
    binary("add"),
    binary("subtract"),
    binary("multiply"),
    binary("divide", values=(normal, nonzero)),
    binary("floor_divide", values=(normal, nonzero), torch=lambda t, x, y: (x // y).detach(), differentiable=False),
    binary("remainder", values=(normal, nonzero)),
    binary("power", values=(positive, normal), torch=lambda t, x, y: t.pow(x, y), unlike=["integers"]),
    unary("power", lambda _, x: x**3),
    unary("power", lambda _, x: x**-0.5, values=positive),
    unary("power", lambda _, x: 2.0**x),
    unary("negative"),
    unary("square"),
    unary("reciprocal", values=nonzero),
    Case(
        "lerp", lambda lib, x, y, w: lib.lerp(x, y, w), THREE, ANY_THREE, numpy=lambda n, x, y, w: x + w * (y - x),
    ),
    Case("lerp", lambda lib, x, y: lib.lerp(x, y, 0.75), TWO, ANY_TWO, numpy=lambda n, x, y: x + 0.75 * (y - x)),
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
    *[unary(name) for name in ("exp2", "expm1", "sin", "cos", "sinh", "cosh", "tanh")],
    *[unary(name, values=positive) for name in ("log2", "log1p")],
    unary("rsqrt", values=positive, numpy=lambda n, x: 1 / n.sqrt(x)),
    binary("arctan2", values=(normal, nonzero)),
    unary("abs", values=nonzero),
    unary("erf", numpy=of_numbers(math.erf)),
    unary("erfc", numpy=of_numbers(math.erfc)),
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


def test_abs_has_slope_zero_at_nan_and_for_an_infinite_gradient_at_zero():
    x = leaf([math.nan, 0.0, -2.0])
    x.abs().backward([1.0, math.inf, math.inf])
    assert_close(x.grad, [0, 0, -math.inf], 0)


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


def test_divide_by_a_large_number_does_not_overflow_in_the_gradient():
    x, y = leaf(1e30, np.float32), leaf(1e25, np.float32)
    with np.errstate(over="raise"):
        (x / y).backward()
    assert_close(y.grad, -1e-20, 1e-6)


@pytest.mark.parametrize(
    "name",
    [
        *["exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "sin", "cos", "sinh", "cosh", "tanh"],
        *["erf", "erfc", "abs", "square", "reciprocal", "divide", "arctan2"],
    ],
)
def test_integers_give_the_dtype_that_pytorch_gives(name):
    torch = torch_or_skip()
    operands = [[1, 2], [2, 4]][: 2 if name in ("divide", "arctan2") else 1]
    found, expected = getattr(ops, name)(*map(Tensor, operands)), getattr(torch, name)(*map(torch.tensor, operands))
    assert str(found.dtype) == str(expected.dtype).removeprefix("torch.")
    assert_close(found, expected, 1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["expm1", "log1p"])
def test_expm1_and_log1p_are_exact_near_zero(name, dtype):
    x = np.array([-1e-3, -1e-12, 0.0, 1e-30, 1e-7, 1e-4], dtype)
    expected = [getattr(math, name)(v) for v in map(float, x)]
    y = getattr(Tensor(x), name)()
    assert y.dtype == dtype
    np.testing.assert_allclose(y.numpy(), expected, rtol=2 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_erfc_is_good_to_the_relative_precision_of_its_dtype_far_out_too(dtype):
    x = np.concatenate(
        [np.linspace(-7, 30, 8001), [0.46875, 4.0, 1e-300, 1e-8, -0.0], np.logspace(-12, 1, 200)]
    ).astype(dtype)
    expected = np.array([math.erfc(v) for v in x.astype(float)])
    found = ops.erfc(x)
    assert found.dtype == dtype
    error = np.abs(found.astype(float) - expected)
    assert np.all(error <= 8 * np.finfo(dtype).eps * expected + 8 * float(np.finfo(dtype).smallest_subnormal))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_erfc_at_the_ends_and_of_nan(dtype):
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        found = ops.erfc(np.array([-math.inf, -1e4, 0.0, -0.0, 1e4, math.inf, math.nan], dtype))
    assert found[:6].tolist() == [2, 2, 1, 1, 0, 0]
    assert np.isnan(found[6])
    assert ops.erfc(np.zeros((2, 0, 3), dtype)).shape == (2, 0, 3)


def test_erfc_keeps_its_precision_and_its_slope_far_out():
    x = leaf([-30.0, 0.0, 10.0, 26.0, 30.0])
    y = x.erfc()
    y.sum().backward()
    np.testing.assert_allclose(y.numpy(), [math.erfc(v) for v in x.tolist()], rtol=1e-14)
    slopes = [-2 / math.sqrt(math.pi) * math.exp(-v * v) for v in x.tolist()]
    np.testing.assert_allclose(x.grad.numpy(), slopes, rtol=1e-14)


# ---- other corners ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_arctan2_has_its_gradient_where_squares_leave_float32(size):
    y, x = leaf(3 * size, np.float32), leaf(4 * size, np.float32)
    slopes = grad(ops.arctan2(y, x), [y, x], create_graph=True)
    assert_close(slopes[0], 4 / (25 * size), 1e-6)
    assert_close(slopes[1], -3 / (25 * size), 1e-6)


def test_arctan2_at_infinity_has_slope_zero():
    y, x = leaf([1.0, math.inf]), leaf([math.inf, 1.0])
    with np.errstate(invalid="ignore"):
        ops.arctan2(y, x).sum().backward()
    assert_close(x.grad[0], 0, 0)
    assert_close(y.grad[1], 0, 0)


def test_arctan2_at_the_origin_and_on_the_axes_as_pytorch():
    torch = torch_or_skip()
    y, x = [0.0, 0.0, -0.0, 0.0, 1.0, -math.inf], [0.0, -0.0, -1.0, 2.0, 0.0, math.inf]
    ours, theirs = (leaf(y), leaf(x)), [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (y, x)]
    with np.errstate(invalid="ignore"):
        found = mg.atan2(*ours)
        found.sum().backward()
    expected = torch.atan2(*theirs)
    expected.sum().backward()
    assert_close(found, expected, 1e-15)
    for mine, other in zip(ours, theirs, strict=True):
        assert_close(mine.grad, other.grad, 1e-15)
    assert [v.grad[0].item() for v in ours] == [0, 0]


def test_lerp_meets_both_ends_exactly():
    x, y = np.float32(0.1), np.float32(1e8)
    for make in (float, Tensor):
        assert mg.lerp(Tensor(x), Tensor(y), make(0.0)).item() == x
        assert mg.lerp(Tensor(x), Tensor(y), make(1.0)).item() == y


@pytest.mark.parametrize("name", ["reciprocal", "rsqrt"])
def test_reciprocal_and_rsqrt_at_zero_and_infinity(name):
    x = leaf([0.0, math.inf])
    with np.errstate(divide="ignore"):
        y = getattr(x, name)()
    y.sum().backward()
    assert_close(y, [math.inf, 0], 0)
    assert_close(x.grad, [-math.inf, 0], 0)


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


@pytest.mark.parametrize(("name", "divide"), [("floor_divide", lambda x, y: x // y), ("remainder", lambda x, y: x % y)])
def test_an_integer_divided_by_zero_is_an_error_a_float_is_not(name, divide):
    whole = mg.Tensor([5, -5])
    for zero in (0, mg.Tensor([1, 0])):
        with pytest.raises(ZeroDivisionError, match=f"{name}: an integer is divided by 0; make one of them floating"):
            divide(whole, zero)
    with np.errstate(all="ignore"):
        assert not np.isfinite(divide(whole.float(), 0).numpy()).any()
        assert not np.isfinite(divide(whole, 0.0).numpy()).any()


def test_booleans_count_as_integers_where_the_result_is_a_number():
    x = Tensor([True, False])
    for y in (x.square(), x**x, x // Tensor([True, True]), x % Tensor([True, True])):
        assert y.dtype == np.int64
    assert (x.square().tolist(), (x**x).tolist()) == ([1, 0], [1, 1])


def test_masked_fill_keeps_the_dtype_and_takes_one_value():
    mask, x = Tensor([True, False]), Tensor([1, 2])
    assert (x.masked_fill(mask, 2.7).dtype, x.masked_fill(mask, 2.7).tolist()) == (np.int64, [2, 2])
    assert Tensor([False, False]).masked_fill(mask, 10).tolist() == [True, False]
    for value in (math.inf, math.nan):
        with pytest.raises(ValueError, match=f"masked_fill: {value} is no value of int64, .* floating first"):
            x.masked_fill(mask, value)
    for dtype, number in (("float16", -1e9), ("float32", np.float64(1e39)), ("int32", 2**31), ("uint8", -1)):
        with pytest.raises(ValueError, match=rf"masked_fill: .* is no value of {dtype}, which are from "):
            x.to(dtype).masked_fill(mask, number)
    assert x.half().masked_fill(mask, -math.inf).tolist() == [-math.inf, 2]
    with pytest.raises(
        ValueError, match=r"masked_fill takes a number or a 0-d tensor as value, got one of shape \(1,\)"
    ):
        x.masked_fill(mask, Tensor([1]))
    with pytest.raises(TypeError, match="masked_fill: value must be a number, got NoneType"):
        x.masked_fill(mask, None)


def test_numbers_that_an_integer_dtype_lacks_are_not_chosen():
    x = Tensor(np.ones(2, np.int8))
    with pytest.raises(ValueError, match="where: 300 is no value of int8"):
        mg.where(x > 5, x, 300)
    with pytest.raises(ValueError, match="masked_fill: nan is no value of int8"):
        x.masked_fill(x > 5, Tensor(np.nan))
