"""Softmax and its logarithm: against finite differences, NumPy, PyTorch and the plain compositions they equal."""

import math

import numpy as np
import pytest

import minigrad as mg
from minigrad import Tensor, grad, gradcheck, ops
from minigrad.ops.softmax import plain_log_softmax, plain_softmax
from tests.minigrad.ops.factory import Case, make_tests, with_axes
from tests.support import assert_close, leaf, torch_or_skip


def softmax_of_numpy(x, axis):
    e = np.exp(x)
    return e / e.sum(axis=axis, keepdims=True)


CASES = [
    Case(
        name, lambda lib, x, name=name, axis=axis: getattr(lib, name)(x, axis), with_axes(1),
        [((),), ((0,),), ((2, 0),), ((0, 2),)],
        numpy=lambda n, x, axis=axis, outer=outer: outer(softmax_of_numpy(x, axis)),
    )
    for name, outer in (("softmax", np.array), ("log_softmax", np.log))
    for axis in (-1, 0)
] + [
    Case(
        "logsumexp", lambda lib, x, axis=axis, keep=keep: lib.logsumexp(x, axis=axis, keepdims=keep),
        with_axes(least, min_side=1), always, torch=lambda t, x, axis=axis, keep=keep: t.logsumexp(x, axis, keep),
        numpy=lambda n, x, axis=axis, keep=keep: n.log(n.exp(x).sum(axis=axis, keepdims=keep)),
    )
    for axis, keep, least, always in [
        (-1, False, 1, [((0, 2),)]), (0, True, 1, [((2, 0),)]), ((0, -1), False, 2, [])
    ]
]  # fmt: skip

test_gradients, test_against_numpy, test_against_pytorch, test_device = make_tests(CASES)

BOTH = pytest.mark.parametrize(
    ("fused", "plain"),
    [(ops.softmax, plain_softmax), (ops.log_softmax, plain_log_softmax)],
    ids=["softmax", "log_softmax"],
)


@BOTH
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_fused_equals_its_plain_composition(fused, plain, axis):
    rng = np.random.default_rng(0)
    x, weights = leaf(rng.standard_normal((3, 4, 2))), Tensor(rng.standard_normal((3, 4, 2)))
    for one, other in zip(
        _with_derivatives(fused, x, axis, weights), _with_derivatives(plain, x, axis, weights), strict=True
    ):
        assert_close(one, other, 1e-13)


def _with_derivatives(function, x, axis, weights):
    """The value, and the first and second derivatives of a random combination of it."""
    value = function(x, axis=axis)
    (first,) = grad((value * weights).sum(), x, create_graph=True)
    (second,) = grad((first * weights[::-1]).sum(), x)
    return value, first, second


@BOTH
def test_large_numbers_do_not_overflow(fused, plain):
    x = Tensor([[1e4, 0.0, -1e4], [88.0, 89.0, -1e30]])
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        y = fused(x, axis=-1)
    assert_close((y if fused is ops.softmax else y.exp()).sum(dim=-1), [1, 1], 1e-6)


def test_masked_scores_have_probability_zero_and_no_gradient():
    x = leaf([[1.0, -math.inf, 2.0]])
    y = ops.softmax(x, axis=-1)
    (y * Tensor([1.0, 5.0, 7.0])).sum().backward()
    assert y.numpy()[0, 1] == 0
    assert x.grad.numpy()[0, 1] == 0
    assert np.isfinite(x.grad.numpy()).all()


@BOTH
def test_a_row_of_minus_infinity_alone_is_nan_as_in_pytorch(fused, plain):
    with np.errstate(invalid="ignore"):
        y = fused(Tensor([[-math.inf, -math.inf], [0.0, 0.0]]), axis=-1).numpy()
    assert np.isnan(y[0]).all()
    assert np.isfinite(y[1]).all()


def test_the_gradient_of_a_softmax_sum_is_zero_and_of_one_element_is_not():
    x = leaf([0.5, -1.0, 2.0])
    ops.softmax(x, axis=0).sum().backward()
    assert np.abs(x.grad.numpy()).max() < 1e-16
    y = ops.softmax(x, axis=0)
    (slope,) = grad(y[0], x)
    assert_close(slope, y.numpy()[0] * (np.eye(3)[0] - y.numpy()), 1e-14)


@BOTH
def test_used_twice_and_within_itself(fused, plain):
    x = np.random.default_rng(0).standard_normal((2, 3))
    assert gradcheck(lambda x: fused(x, axis=-1) * fused(x, axis=0) + fused(fused(x, axis=-1), axis=-1), [x], order=2)


def test_softmax_leaves_its_input_as_it_was():
    values = np.random.default_rng(0).standard_normal((2, 3))
    x = leaf(values)
    upstream = np.ones((2, 3))
    for fused in (ops.softmax, ops.log_softmax):
        fused(x, axis=-1).backward(upstream)
        assert np.array_equal(x.numpy(), values)
        assert np.array_equal(upstream, np.ones((2, 3)))


def test_softmax_of_integers_is_float32():
    assert ops.softmax(Tensor([1, 1]), axis=0).dtype == np.float32
    assert ops.log_softmax(Tensor([1, 1]), axis=0).dtype == np.float32


def test_softmax_of_float16_adds_up_in_float32():
    x = mg.zeros(8192, 2, dtype=np.float16)
    assert x.softmax(0).dtype == np.float16
    np.testing.assert_allclose(x.softmax(0).numpy(), 1 / 8192, rtol=1e-3)
    np.testing.assert_allclose(x.log_softmax(0).numpy(), -np.log(8192), rtol=1e-3)


# ---- logsumexp -------------------------------------------------------------------------------------------------------


def test_logsumexp_of_large_and_infinite_rows_is_pytorchs():
    torch = torch_or_skip()
    inf = math.inf
    rows = [[1000, 1000, 999], [-1000, -1001, -1000], [-inf, 0, 1], [inf, 0, 1], [math.nan, 0, 1]]
    x, other = leaf(rows), torch.tensor(rows, dtype=torch.float64, requires_grad=True)
    with np.errstate(invalid="ignore"):  # 0 · inf in the gradient of the infinite row
        y, wanted = x.logsumexp(1), torch.logsumexp(other, 1)
        y.sum().backward()
        wanted.sum().backward()
    assert_close(y, wanted, 1e-14)
    assert_close(x.grad, other.grad, 1e-12)  # PyTorch's e^(x - y) has the rounding of y, which is 1000


def test_logsumexp_of_no_probability_at_all():
    """log 0 without a warning; its gradient, and the gradient of that, are 0."""
    x = leaf([[-math.inf, -math.inf], [0, 0]])
    y = x.logsumexp(1)
    assert y[0].item() == ops.logsumexp(Tensor([]), axis=0).item() == -math.inf
    (slope,) = grad(y.sum(), x, create_graph=True)
    assert_close(slope, [[0, 0], [0.5, 0.5]], 0)
    slope.backward([[1.0, 2.0], [1.0, 2.0]])
    assert_close(x.grad, [[0, 0], [-0.25, 0.25]], 1e-15)


def test_logsumexp_of_numbers_of_other_kinds():
    assert ops.logsumexp(Tensor([1, 1]), axis=0).dtype == np.float32
    assert ops.logsumexp(Tensor([0.0, 0.0]), axis=0).dtype == np.float32
    x = leaf(2.0)
    y = x.logsumexp(0)
    y.backward()
    assert (y.shape, y.item(), x.grad.item()) == ((), 2, 1)
    with pytest.raises(IndexError, match="axis 1 is out of bounds"):
        ops.logsumexp(Tensor([0.0]), axis=1)
