"""Sums, means and extremes: against finite differences, NumPy and PyTorch; then axes, ties and empty arrays."""

import math

import numpy as np
import pytest

import minigrad as mg
from minigrad import Tensor, ops
from tests.minigrad.ops.factory import (
    ANY_ONE,
    ONE,
    Case,
    booleans,
    integers,
    make_tests,
    nonzero,
    normal,
    with_axes,
    with_zeros,
)
from tests.support import assert_close, leaf, torch_or_skip


def of_all(name, **more):
    """A case that reduces all axes, with no axis named."""
    return Case(name, lambda lib, x: getattr(lib, name)(x), ONE, ANY_ONE, **more)


def along(name, axis, keepdims=False, shapes=with_axes(2, min_side=1), **more):  # noqa: B008
    """A case that reduces some axes; of elements that are there, unless other shapes are given."""
    return Case(name, lambda lib, x: getattr(lib, name)(x, axis=axis, keepdims=keepdims), shapes, **more)


def spread(name, correction, **axes):
    """A case of a variance or standard deviation."""

    def torchs(t, x):
        return getattr(t, name)(x, axes.get("axis"), correction=correction, keepdim=axes.get("keepdims", False))

    def call(lib, x):
        return getattr(lib, name)(x, correction=correction, **axes)

    return Case(name, call, with_axes(2, min_side=2), torch=torchs)


def norm(ord, axis=None, keepdims=False, least=2, **more):
    options = {"ord": ord, "axis": axis, "keepdims": keepdims}
    return Case(
        "vector_norm", lambda lib, x: lib.vector_norm(x, **options), with_axes(least, min_side=1),
        numpy=lambda n, x: n.linalg.vector_norm(x, **options), torch=lambda t, x: t.norm(x, ord, axis, keepdims),
        **more,
    )  # fmt: skip


def prod(axis, keepdims=False, **more):
    return along("prod", axis, keepdims, torch=lambda t, x: t.prod(x, axis, keepdims), values=with_zeros, **more)


def amax(axis, keepdims=False):
    return along("max", axis, keepdims, torch=lambda t, x: t.amax(x, () if axis is None else axis, keepdims))


def amin(axis, keepdims=False):
    return along("min", axis, keepdims, torch=lambda t, x: t.amin(x, () if axis is None else axis, keepdims))


CASES = [
    of_all("sum"),
    along("sum", (0, -1), shapes=with_axes(2)),
    along("sum", -1, keepdims=True, shapes=with_axes(1)),
    Case("sum", lambda lib, x: lib.sum(x, axis=0), with_axes(1), values=booleans, differentiable=False),
    along("mean", None, shapes=with_axes(0, min_side=1)),
    along("mean", (0, -1)),
    along("mean", -2, keepdims=True),
    *[spread(name, 0) for name in ("var", "std")],
    *[spread(name, 0, axis=-1, keepdims=True) for name in ("var", "std")],
    *[spread(name, 1, axis=(0, -1)) for name in ("var", "std")],
    of_all("prod", values=with_zeros),
    prod(-1, shapes=with_axes(1)),
    prod(0, keepdims=True, shapes=with_axes(2)),
    along(
        "prod", (0, -1), values=with_zeros, shapes=with_axes(2), torch=lambda t, x: x.prod(-1).prod(0),
        unlike=["shapes"],
    ),
    Case("prod", lambda lib, x: lib.prod(x, axis=0), with_axes(1), values=integers, differentiable=False),
    norm(2, least=0, values=nonzero),
    norm(2, (0, -1), values=nonzero),
    norm(2, -1, keepdims=True, values=nonzero),
    norm(1, least=0, values=nonzero),
    norm(1, (-1, 0), keepdims=True, values=nonzero),
    norm(math.inf, least=0, values=normal),
    norm(math.inf, -1, values=normal),
    norm(-math.inf, -1, keepdims=True, values=normal),
    norm(3, -1, values=nonzero),
    norm(0.5, (0, -1), keepdims=True, values=nonzero),
    norm(-1.5, least=0, values=nonzero),
    amax(None),
    amax((0, -1)),
    amax(-1, keepdims=True),
    amin(None),
    amin((0, -1)),
    amin(-1, keepdims=True),
    along("argmax", None, differentiable=False),
    along("argmax", -1, keepdims=True, differentiable=False),
    along("argmin", None, differentiable=False),
    along("argmin", 0, differentiable=False),
    of_all("any", values=booleans, differentiable=False),
    along("any", -1, values=booleans, shapes=with_axes(1), differentiable=False),
    of_all("all", values=booleans, differentiable=False),
    along("all", (0, 1), keepdims=True, values=booleans, shapes=with_axes(2), differentiable=False),
]  # fmt: skip

test_gradients, test_against_numpy, test_against_pytorch, test_device = make_tests(CASES)


# ---- axes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), (-1, 0), (1, -3, 2), ()])
@pytest.mark.parametrize("name", ["sum", "mean", "var", "std", "prod", "max", "min"])
def test_reduction_over_any_axes(name, axis, keepdims):
    """NumPy's meaning; no axes at all, `()`, reduces nothing (PyTorch reduces all)."""
    values = np.random.default_rng(0).standard_normal((2, 3, 4))
    x = leaf(values)
    y = getattr(ops, name)(x, axis=axis, keepdims=keepdims)
    assert_close(y, getattr(np, name)(values, axis=axis, keepdims=keepdims), 1e-13)
    y.sum().backward()
    assert x.grad.shape == (2, 3, 4)


def test_gradients_of_sum_and_mean_over_several_axes():
    x = leaf(np.ones((2, 3, 4)))
    x.sum(dim=(0, -1)).sum().backward()
    assert_close(x.grad, np.ones((2, 3, 4)), 0)
    x.grad = None
    x.mean(dim=(0, 2)).sum().backward()
    assert_close(x.grad, np.full((2, 3, 4), 0.125), 0)


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "max", "min", "any", "all"])
@pytest.mark.parametrize(
    ("axis", "error"), [((1, 1), ValueError), ((0, -3), ValueError), (3, IndexError), (-4, IndexError)]
)
def test_axis_given_twice_or_not_there_is_an_error(name, axis, error):
    with pytest.raises(error, match="axis"):
        getattr(ops, name)(Tensor(np.ones((2, 3, 4))), axis=axis)


# ---- ties ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [1, -1])
def test_tied_extremes_share_the_gradient(sign):
    extreme = ops.max if sign == 1 else ops.min
    x = leaf([1, 3, 3])
    extreme(sign * x).backward()
    assert_close(sign * x.grad, [0, 0.5, 0.5], 0)
    rows = leaf([[0, 0, 0], [1, 3, 3]])
    extreme(sign * rows, axis=1).backward([6.0, 6.0])
    assert_close(sign * rows.grad, [[2, 2, 2], [0, 3, 3]], 1e-15)


def test_max_along_a_dimension_gives_one_winner_all_of_the_gradient():
    x = leaf([[1, 3, 3], [0, 0, 0]])
    values, indices = x.max(dim=1)
    values.backward([1.0, 1.0])
    assert indices.numpy().tolist() == [1, 0]
    assert_close(x.grad, [[0, 1, 0], [1, 0, 0]], 0)


def test_away_from_the_maximum_on_ties():
    x = leaf([2, 2, 1])
    (x - x.amax(dim=0, keepdim=True)).sum().backward()
    assert_close(x.grad, [1 - 1.5, 1 - 1.5, 1], 0)


def test_a_nan_is_the_extreme_and_gets_its_gradient():
    x = leaf([1, math.nan, 3])
    y = x.amax()
    y.backward()
    assert np.isnan(y.item())
    assert_close(x.grad, [0, 1, 0], 0)


# ---- zeros -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "gradient"), [([0, 2, 3], [6, 0, 0]), ([0, 0, 3], [0, 0, 0]), ([2, 3, 4], [12, 8, 6]), ([0], [1])]
)
def test_the_gradient_of_a_product_is_exact_with_zeros(values, gradient):
    x = leaf(values)
    x.prod().backward()
    assert x.grad.tolist() == gradient


def test_a_product_of_nothing_is_one():
    x = leaf(np.ones((2, 0)))
    y = x.prod(1)
    y.sum().backward()
    assert (y.tolist(), x.grad.shape) == ([1, 1], (2, 0))


def test_products_keep_their_dtype():
    assert Tensor([2.0, 3.0]).prod().dtype == np.float32
    assert (Tensor([2, 3]).prod().dtype, Tensor([2, 3]).prod().item()) == (np.int64, 6)
    assert Tensor([True, True]).prod().dtype == np.int64


@pytest.mark.parametrize("p", [1, 2, math.inf])
@pytest.mark.parametrize("values", [[0, 0, 0], [[0, -3], [3, 0]], [[-2, 2], [2, 1]]])
def test_gradients_of_norms_at_zero_and_of_ties_are_pytorchs(p, values):
    torch = torch_or_skip()
    x, other = leaf(values), torch.tensor(values, dtype=torch.float64, requires_grad=True)
    x.norm(p).backward()
    torch.norm(other, p).backward()
    assert_close(x.grad, other.grad, 1e-15)


def test_the_gradient_of_a_norm_at_zero_has_a_gradient():
    x = leaf([0.0, 0.0])
    (slope,) = mg.grad(x.norm(), x, create_graph=True)
    slope.sum().backward()
    assert x.grad.tolist() == [0, 0]


def test_norms_of_integers_and_float16():
    assert (Tensor([3, 4]).norm().dtype, Tensor([3, 4]).norm().item()) == (np.float32, 5)
    x = Tensor([300.0, 400.0], dtype=np.float16, requires_grad=True)
    y = x.norm()  # its square is more than float16 holds
    y.backward()
    assert (y.dtype, y.item(), x.grad.dtype) == (np.float16, 500, np.float16)
    np.testing.assert_allclose(x.grad.numpy(), [0.6, 0.8], rtol=1e-3)


@pytest.mark.parametrize("order", [0, 0.5, 1, 1.5, 2, 3, -1, -2, math.inf, -math.inf])
@pytest.mark.parametrize("values", [[[3.0, 0.0, -4.0], [0.0, 0.0, 0.0]], [[2.0, -2.0, 2.0], [1.0, 2.0, 0.0]]])
def test_norms_at_zeros_and_ties_are_pytorchs(order, values):
    torch = torch_or_skip()
    x, other = leaf(values), torch.tensor(values, dtype=torch.float64, requires_grad=True)
    with np.errstate(divide="ignore"):
        y, wanted = x.norm(order, dim=1), torch.norm(other, order, dim=1)
        assert_close(y, wanted, 1e-15)
        y.backward([1.0, 2.0])
    wanted.backward(torch.tensor([1.0, 2.0]))
    assert_close(x.grad, torch.zeros(2, 3) if order == 0 else other.grad, 1e-14)  # of order 0 PyTorch says None


def test_a_norm_of_an_unknown_name():
    x = Tensor([3.0, 4.0])
    assert x.norm("fro").item() == 5
    with pytest.raises(ValueError, match="norm: p is a number or 'fro', got 'nuc'"):
        x.norm("nuc")


def test_the_gradient_of_a_standard_deviation_of_equal_values_is_zero():
    x = leaf([[2, 2, 2], [1, 2, 3]])
    y = x.std(1)
    y.backward([1.0, 1.0])
    assert y.tolist() == [0, 1]
    assert_close(x.grad, [[0, 0, 0], [-0.5, 0, 0.5]], 1e-15)


# ---- few elements, none, integers ------------------------------------------------------------------------------------


def test_extremes_of_nothing_are_an_error_and_sums_are_zero():
    empty = Tensor(np.ones((2, 0)))
    for name in ("max", "min", "argmax", "argmin"):
        for axis in (1, -1, (0, 1) if name in ("max", "min") else 1):
            with pytest.raises(
                IndexError, match=rf"{name}: axis -?1 of shape \(2, 0\) has no elements, so none is the"
            ):
                getattr(ops, name)(empty, axis=axis)
    for name, error in (("max", ValueError), ("min", ValueError), ("argmax", IndexError), ("argmin", IndexError)):
        with pytest.raises(error, match=rf"{name}: .*(zero-size|has no elements)"):
            getattr(ops, name)(empty)
    assert_close(empty.sum(dim=1), [0, 0], 0)
    assert np.isnan(empty.mean(dim=1).numpy()).all()
    assert ops.max(Tensor(np.ones((0, 2))), axis=1).shape == (0,)


def test_variance_with_too_few_elements_is_what_pytorch_says():
    with np.errstate(invalid="ignore"):  # 0 / 0
        assert np.isnan(Tensor([1.0]).var().item())
        assert np.isnan(Tensor([]).var().item())
    assert Tensor([1.0, 2.0]).var(correction=2).item() == math.inf
    assert Tensor([1.0, 2.0]).var().item() == 0.5


def test_integers_sum_to_integers_and_have_a_float32_mean():
    x = Tensor([[1, 2], [3, 5]])
    assert (x.sum().dtype, x.sum().item()) == (np.int64, 11)
    assert (x.mean().dtype, x.mean().item()) == (np.float32, 2.75)
    assert x.var(dim=0).dtype == np.float32
    assert Tensor([True, True]).sum().item() == 2


def test_float16_is_added_up_in_float32():
    ones = mg.ones(4096, 3, dtype=np.float16)
    assert ones.sum(0).tolist() == [4096] * 3 and ones.sum(0).dtype == np.float16
    assert mg.ones(70000, dtype=np.float16).mean().item() == 1
    x = mg.ones(70000, dtype=np.float16, requires_grad=True)
    x.amax().backward()
    assert x.grad.numpy().sum(dtype=np.float64) == pytest.approx(1, rel=1e-2)


def test_var_and_std_of_float16_are_reckoned_in_float32():
    for size in (300.0, 3e-4):  # whose squares float16 lacks
        x = Tensor([size, -size, size, -size], requires_grad=True, dtype=np.float16)
        y = x.std(correction=0)
        y.backward()
        assert y.item() == x[0].item() and (y.dtype, x.grad.dtype) == (np.float16, np.float16)
        assert x.grad.tolist() == [0.25, -0.25, 0.25, -0.25]


def test_the_order_of_a_norm_may_be_a_number_of_numpys():
    y = Tensor([1.0, 2.0]).norm(np.float64(3))
    assert y.dtype == np.float32 and abs(y.item() - 9 ** (1 / 3)) < 1e-6
