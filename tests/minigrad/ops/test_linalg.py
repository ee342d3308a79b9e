"""Matrix products: against finite differences, NumPy and PyTorch for each mix of vectors, matrices and batches."""

import numpy as np
import pytest
from hypothesis import strategies as st

from minigrad import Tensor, grad, ops
from minigrad.ops import linalg
from tests.minigrad.ops.factory import Case, make_tests, with_axes
from tests.support import leaf

PRODUCTS = [
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3, 4)),
    ((5, 2, 3), (3,)),
    ((3,), (5, 3, 4)),
    ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)),
    ((5, 2, 3), (5, 3, 4)),
    ((1, 2, 3), (5, 3, 4)),
    ((5, 1, 2, 3), (7, 3, 4)),
    ((0, 3), (3, 4)),
    ((2, 0), (0, 4)),
    ((0,), (0,)),
    ((5, 0, 3), (3, 4)),
    ((0, 2, 3), (3,)),
    ((3,), (0, 3, 4)),
]


@st.composite
def batched(draw):
    """Shapes of two batches of matrices, of which the batch axes broadcast and any length may be 0 or 1."""
    n, k, m = (draw(st.integers(0, 3)) for _ in "nkm")
    batch = draw(st.lists(st.integers(0, 3), max_size=2))
    left, right = (tuple(draw(st.sampled_from([1, b])) for b in batch) for _ in range(2))
    return (*left[draw(st.integers(0, len(left))) :], n, k), (*right[draw(st.integers(0, len(right))) :], k, m)


def linear_of_numpy(n, x, weight, bias=0.0):
    return x @ weight.T + bias


AS_NUMPY = ("shapes",)  # which shapes are refused is NumPy's choice

CASES = [
    Case("matmul", lambda lib, x, y: lib.matmul(x, y), batched(), PRODUCTS),
    Case(
        "linear", lambda lib, x, w, b: ops.linear(x, w, b),
        st.sampled_from([(rows, (4, 3), (4,)) for rows in ((2, 3), (3,), (5, 2, 3), (0, 3))]),
        numpy=linear_of_numpy, torch=lambda t, x, w, b: t.nn.functional.linear(x, w, b),
    ),
    Case(
        "linear", lambda lib, x, w: ops.linear(x, w, None), st.just(((2, 5, 3), (4, 3))),
        numpy=linear_of_numpy, torch=lambda t, x, w: t.nn.functional.linear(x, w), unlike=["shapes"],
    ),
    Case(
        "outer", lambda lib, x, y: lib.outer(x, y), st.sampled_from([((2,), (3,)), ((0,), (3,)), ((1,), (0,))]),
        unlike=("shapes", "text"),
    ),
    Case("diagonal", lambda lib, x: lib.diagonal(x), with_axes(2)),
    Case("diagonal", lambda lib, x: lib.diagonal(x, 1, -1, 0), with_axes(2, min_side=2)),
    Case("diagonal", lambda lib, x: lib.diagonal(x, -1, 1, 2), with_axes(3, min_side=1)),
    Case("trace", lambda lib, x: lib.trace(x), with_axes(2, 2), unlike=AS_NUMPY),
    Case(
        "trace", lambda lib, x: lib.trace(x, offset=1, axis1=-1, axis2=0), with_axes(3, min_side=2),
        torch=lambda t, x: x.diagonal(1, -1, 0).sum(-1),
    ),
]  # fmt: skip

test_gradients, test_against_numpy, test_against_pytorch, test_device = make_tests(CASES)


@pytest.mark.parametrize(("left", "right"), PRODUCTS)
def test_matmul_gradients_have_their_operands_shapes(left, right):
    x, y = leaf(np.ones(left)), leaf(np.ones(right))
    (x @ y).sum().backward()
    assert (x.grad.shape, y.grad.shape) == (left, right)


@pytest.mark.parametrize(
    ("left", "right"), [((2, 3), (4, 3)), ((3,), (4,)), ((5, 2, 3), (2, 4)), ((), (3,)), ((3,), ())]
)
def test_matmul_of_shapes_that_do_not_fit(left, right):
    with pytest.raises(ValueError) as error:
        Tensor(np.ones(left)) @ Tensor(np.ones(right))
    assert f"matmul: shapes {left} and {right} do not fit" in str(error.value)


@pytest.mark.parametrize(("x", "weight"), [((2, 3), (3, 4)), ((), (4, 3)), ((2, 3), (3,))])
def test_linear_of_shapes_that_do_not_fit(x, weight):
    with pytest.raises(ValueError) as error:
        ops.linear(Tensor(np.ones(x)), Tensor(np.ones(weight)), None)
    assert f"linear: x of shape {x} and weight of shape {weight} do not fit" in str(error.value)


def test_transposes_of_more_than_two_axes():
    x = Tensor(np.zeros((2, 3, 4)))
    assert x.T.shape == (4, 3, 2)  # NumPy's: all axes reversed
    assert x.mT.shape == (2, 4, 3)  # each matrix of the batch


def test_a_diagonal_beyond_the_matrix_is_empty_and_one_within_is_a_view():
    x = leaf(np.ones((2, 3)))
    y = ops.diagonal(x, offset=4)
    y.sum().backward()
    assert (y.shape, x.grad.tolist()) == ((0,), [[0, 0, 0], [0, 0, 0]])
    assert np.may_share_memory(ops.diagonal(x).data, x.data)
    for axes in ((0, 0), (0, -2)):
        with pytest.raises(ValueError, match="diagonal: axis1 and axis2 cannot be the same"):
            ops.diagonal(x, 0, *axes)


@pytest.mark.parametrize("sizes", [(1, 1, 2), (2, 1, 1), (1, 1, 1)])
def test_nothing_times_infinity_is_no_number(sizes):
    """Also where an operand is a single number, which NumPy's `dot` takes for a factor."""
    n, k, m = sizes
    with np.errstate(invalid="ignore"):
        for x, y in ((0.0, np.inf), (np.inf, 0.0)):
            assert np.isnan((Tensor(np.full((n, k), x)) @ Tensor(np.full((k, m), y))).numpy()).all()


@pytest.mark.cpu_only(reason="CuPy has a way of its own")
@pytest.mark.parametrize("sizes", [(3, 4, 5), (0, 4, 5), (3, 0, 5), (3, 4, 0), (1, 1, 1), (1, 1, 7), (30, 1, 20)])
@pytest.mark.parametrize("result", [0, 1 << 15])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_product_is_the_same_by_each_of_numpys_functions(sizes, result, has_bias, monkeypatch):
    """Of matrices as they are, turned round and repeated; and always in a new array."""
    monkeypatch.setattr(linalg, "SMALL_RESULT", result)
    n, k, m = sizes
    rng = np.random.default_rng(0)
    bias = rng.standard_normal(m) if has_bias else None
    for x in (rng.standard_normal((n, k)), rng.standard_normal((k, n)).T, np.broadcast_to(1.5, (n, k))):
        for y in (rng.standard_normal((k, m)), rng.standard_normal((m, k)).T, np.broadcast_to(-0.5, (k, m))):
            found = linalg.multiplied(x, y, bias)
            np.testing.assert_allclose(found, np.einsum("nk,km->nm", x, y) + (bias if has_bias else 0), atol=1e-13)
            assert found.base is None and found.flags.c_contiguous and found.flags.writeable


class Noted(np.ndarray):
    """An array that says whether `dot` was called."""

    dots = 0

    def dot(self, y):
        Noted.dots += 1
        return np.ndarray.dot(self, y)


@pytest.mark.parametrize(("sizes", "expected"), [((128, 8, 256), 1), ((129, 8, 256), 0), ((128, 256, 128), 0)])
def test_small_products_of_small_results_are_made_by_dot(sizes, expected, monkeypatch):
    monkeypatch.setattr(linalg, "NS_OF_A_PRODUCT", 0.005)
    monkeypatch.setattr(linalg, "BLAS_DIVIDES_BELOW", 0.0)
    monkeypatch.setattr(Noted, "dots", 0)
    n, k, m = sizes
    linalg.multiplied(np.ones((n, k), np.float32).view(Noted), np.ones((k, m), np.float32))
    assert Noted.dots == expected


def test_gradients_of_gradients_beside_an_array_that_is_no_tensor():
    rows, weight = Tensor(np.ones((2, 3), np.float32)).data, Tensor(np.ones((3, 4), np.float32), requires_grad=True)
    for y in (rows @ weight, ops.linear(rows, weight.T, None)):
        (gradient,) = grad((y * y).sum(), weight, create_graph=True)
        (second,) = grad(gradient.sum(), weight)
        assert second.tolist() == [[12.0] * 4] * 3
    bias = Tensor(np.ones(2, np.float32), requires_grad=True)
    (gradient,) = grad((ops.linear(rows, rows, bias) ** 2).sum(), bias, create_graph=True)
    assert grad(gradient.sum(), bias)[0].tolist() == [4.0] * 2
