"""Activation functions: against finite differences, NumPy and PyTorch; then their corners."""

import math

import numpy as np
import pytest

import minigrad as mg
from minigrad import Tensor, grad, ops
from minigrad.ops.elementwise import cleared
from tests.minigrad.ops.factory import make_tests, nonzero, of_numbers, unary
from tests.support import assert_close, leaf, torch_or_skip


def gelu_tanh(_, x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def functional(name, **options):
    """The call of PyTorch's function of layers."""
    return lambda torch, x: getattr(torch.nn.functional, name)(x, **options)


CASES = [
    unary("sigmoid", numpy=lambda n, x: 1 / (1 + n.exp(-x))),
    unary("relu", values=nonzero, numpy=lambda n, x: n.maximum(x, 0)),
    unary("leaky_relu", values=nonzero, numpy=lambda n, x: n.where(x > 0, x, 0.01 * x), torch=functional("leaky_relu")),
    unary(
        "leaky_relu", lambda _, x: ops.leaky_relu(x, negative_slope=-0.5), values=nonzero,
        numpy=lambda n, x: n.where(x > 0, x, -0.5 * x), torch=functional("leaky_relu", negative_slope=-0.5),
    ),
    unary("elu", values=nonzero, numpy=lambda n, x: n.where(x > 0, x, n.exp(x) - 1), torch=functional("elu")),
    unary(
        "elu", lambda _, x: ops.elu(x, alpha=2.5), values=nonzero,
        numpy=lambda n, x: n.where(x > 0, x, 2.5 * (n.exp(x) - 1)), torch=functional("elu", alpha=2.5),
    ),
    unary("softplus", numpy=lambda n, x: n.log(1 + n.exp(x)), torch=functional("softplus")),
    unary(
        "softplus", lambda _, x: ops.softplus(x, beta=2.0, threshold=0.5),
        numpy=lambda n, x: n.where(2 * x > 0.5, x, n.log(1 + n.exp(2 * x)) / 2),
        torch=functional("softplus", beta=2.0, threshold=0.5),
    ),
    unary("silu", numpy=lambda n, x: x / (1 + n.exp(-x)), torch=functional("silu")),
    unary(
        "gelu", numpy=lambda n, x: 0.5 * x * (1 + of_numbers(math.erf)(n, x / math.sqrt(2))),
        torch=functional("gelu"),
    ),
    unary(
        "gelu", lambda lib, x: ops.gelu(x, approximate="tanh"), numpy=gelu_tanh,
        torch=functional("gelu", approximate="tanh"),
    ),
]  # fmt: skip

test_gradients, test_against_numpy, test_against_pytorch, test_device = make_tests(CASES)


def test_relu_at_its_kink_and_of_nan_and_infinities():
    x = leaf([0.0, -0.0, math.nan, -math.inf, math.inf])
    y = x.relu()
    y.sum().backward()
    assert_close(y, [0, 0, math.nan, 0, math.inf], 0)
    assert_close(x.grad[[0, 1, 3, 4]], [0, 0, 0, 1], 0)


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


def test_gelu_in_both_forms():
    assert_close(ops.gelu(Tensor(1.0)), 0.8413447, 1e-6)
    assert_close(ops.gelu(Tensor(1.0), approximate="tanh"), 0.8411920, 1e-6)
    with pytest.raises(ValueError, match="gelu: approximate must be 'none' or 'tanh', got 'erf'"):
        ops.gelu(Tensor(1.0), approximate="erf")


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_of_large_float16_numbers_has_a_gradient(approximate):
    x = leaf([300.0, -300.0], np.float16)
    y = ops.gelu(x, approximate=approximate)
    (slope,) = grad(y.sum(), x, create_graph=True)
    assert (y.dtype, slope.dtype) == (np.float16, np.float16)
    assert (y.tolist(), slope.tolist()) == ([300, 0], [1, 0])
    (curvature,) = grad(slope.sum(), x)
    assert curvature.tolist() == [0, 0]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", mg.bfloat16])
def test_cleared_is_zero_where_a_mask_holds_whatever_stands_there(dtype):
    x = Tensor(np.array([[np.nan, 1.5], [-np.inf, -0.0]]), dtype=dtype)
    mask = np.array([[True, False], [True, False]])
    for values, its_mask in ((x, mask), (x.T, mask.T), (x[::-1], mask[::-1])):
        found = cleared(values, Tensor(its_mask))
        assert found.dtype == x.dtype and found.shape == values.shape
        assert found.float().tolist() == np.where(its_mask, 0, values.float().numpy()).tolist()
    assert cleared(x[0, 0], Tensor(True)).item() == 0
    assert cleared(Tensor(np.zeros((0, 2)), dtype=dtype), mg.zeros(0, 2) > 0).shape == (0, 2)


def test_gradients_of_cleared_of_any_order_are_zero_where_the_mask_holds():
    """Of Σ (c + 1)³ for c = x or 0: 3 (x + 1)² and 6 (x + 1) where the mask is open; 0 where it hides an infinity."""
    x, mask = leaf([[2.0, np.inf], [-3.0, 0.5]]), Tensor([[False, True], [False, True]])
    (slope,) = grad(((cleared(x, mask) + 1) ** 3).sum(), x, create_graph=True)
    assert slope.tolist() == [[27, 0], [12, 0]]
    (curvature,) = grad(slope.sum(), x)
    assert curvature.tolist() == [[18, 0], [-12, 0]]


def test_what_cannot_clear_is_refused():
    for mask, got in (
        (mg.ones(2), "float32 of shape (2,)"),
        (mg.tensor([0, 1]), "int64 of shape (2,)"),
        (mg.tensor([True]), "bool of shape (1,)"),
        (mg.tensor([[True, False]]), "bool of shape (1, 2)"),
    ):
        with pytest.raises(ValueError) as raised:
            cleared(mg.ones(2), mask)
        assert str(raised.value) == f"cleared: takes a boolean mask of shape (2,), got {got}"


@pytest.mark.parametrize("name", ["leaky_relu", "elu", "softplus", "silu"])
def test_corners_are_pytorchs_without_overflow(name):
    torch = torch_or_skip()
    values = [-1000.0, -1e-8, 0.0, -0.0, 1e-8, 19.9, 20.0, 20.1, 1000.0]
    x = leaf(values, np.float32)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        y = getattr(mg, name)(x)
        (slope,) = grad(y.sum(), x)
    theirs = torch.tensor(values, requires_grad=True)
    expected = getattr(torch.nn.functional, name)(theirs)
    (their_slope,) = torch.autograd.grad(expected.sum(), theirs)
    np.testing.assert_allclose(y.numpy(), expected.detach().numpy(), rtol=1e-6)
    np.testing.assert_allclose(slope.numpy(), their_slope.numpy(), rtol=1e-6)


@pytest.mark.parametrize(("name", "at_zero"), [("elu", 1.0), ("softplus", 0.25), ("silu", 0.5), ("sigmoid", 0.0)])
def test_second_derivatives_far_out_are_zero_without_overflow(name, at_zero):
    x = leaf([-1000.0, 0.0, 1000.0])
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        (slope,) = grad(getattr(mg, name)(x).sum(), x, create_graph=True)
        (curvature,) = grad(slope.sum(), x)
    assert_close(curvature, [0, at_zero, 0], 1e-15)


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "elu", "softplus", "silu"])
def test_nan_stays_nan(name):
    assert math.isnan(getattr(mg, name)(Tensor(math.nan)).item())


@pytest.mark.parametrize("name", ["sigmoid", "leaky_relu", "elu", "softplus", "silu", "gelu"])
def test_integers_become_float32(name):
    found, expected = getattr(ops, name)(Tensor([-1, 2])), getattr(ops, name)(Tensor([-1.0, 2.0]))
    assert found.dtype == np.float32
    assert_close(found, expected, 0)
    assert ops.relu(Tensor([-1, 2])).dtype == np.int64


def test_options_by_position_and_by_name_are_one():
    x = Tensor([-2.0, 3.0])
    assert_close(mg.softplus(x, 2.0, 1.0), mg.softplus(x, beta=2.0, threshold=1.0), 0)
    assert_close(mg.leaky_relu(x, 0.5), [-1, 3], 0)
    assert_close(mg.elu(x, 2.0), mg.elu(x, alpha=2.0), 0)


@pytest.mark.parametrize(
    ("name", "option"),
    [("leaky_relu", "negative_slope"), ("elu", "alpha"), ("softplus", "beta"), ("softplus", "threshold")],
)
def test_options_are_numbers_and_widen_nothing(name, option):
    x = Tensor([-2.0, 3.0])
    assert getattr(mg, name)(x, **{option: np.float64(0.5)}).dtype == np.float32
    with pytest.raises(TypeError, match=f"{name}: {option} must be a number, got a tensor that requires grad"):
        getattr(mg, name)(x, **{option: leaf(0.5)})
