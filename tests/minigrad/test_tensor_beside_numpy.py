"""Tensors and NumPy's arrays in one expression: the operation is the Tensor's, and nothing leaves the graph."""

import operator

import numpy as np
import pytest

import minigrad as mg
from minigrad import Tensor
from tests.support import assert_close, leaf

LEFTS = [
    np.float64(2),
    np.float32(2),
    np.int64(2),
    np.array(2.0),
    np.array([2.0, 3.0]),
    np.array([2, 3]),
    np.bool_(True),
    2,
    2.0,
]


@pytest.mark.cpu_only(reason="NumPy's arrays stand beside tensors, and devices do not mix")
@pytest.mark.parametrize("left", LEFTS, ids=repr)
@pytest.mark.parametrize(
    ("operate", "slope"),
    [
        (lambda a, x: a + x, lambda a, x: 1 + 0 * x),
        (lambda a, x: a - x, lambda a, x: -1 + 0 * x),
        (lambda a, x: a * x, lambda a, x: a + 0 * x),
        (lambda a, x: a / x, lambda a, x: -a / x**2),
        (lambda a, x: a**x, lambda a, x: np.log(a) * a**x),
        (lambda a, x: a % x, lambda a, x: -np.floor(a / x)),
        (lambda a, x: a // x, None),
    ],
    ids=["+", "-", "*", "/", "**", "%", "//"],
)
def test_numpy_on_the_left_leaves_the_operation_to_the_tensor(left, operate, slope):
    x = leaf([1.0, 2.0], np.float32)
    y = operate(left, x)
    assert type(y) is Tensor
    values = np.asarray(left, np.float64)
    assert y.dtype == (np.float64 if np.ndim(left) and left.dtype == np.float64 else np.float32)
    assert_close(y, operate(values, x.data.astype(np.float64)), 1e-6)
    if slope is None:
        assert not y.requires_grad
        return
    y.sum().backward()
    assert x.grad.dtype == np.float32
    assert_close(x.grad, slope(values, x.data.astype(np.float64)), 1e-6)


@pytest.mark.cpu_only(reason="NumPy's arrays stand beside tensors, and devices do not mix")
@pytest.mark.parametrize("left", LEFTS, ids=repr)
def test_comparisons_with_numpy_on_the_left(left):
    x = Tensor([1.0, 3.0])
    for y, expected in (
        (left < x, left < x.data), (left <= x, left <= x.data), (left > x, left > x.data), (left >= x, left >= x.data),
        (left == x, left == x.data), (left != x, left != x.data),
    ):  # fmt: skip
        assert type(y) is Tensor
        assert np.array_equal(y.numpy(), expected)


@pytest.mark.cpu_only(reason="NumPy's arrays stand beside tensors, and devices do not mix")
@pytest.mark.parametrize("left", [np.array([2.0, 3.0]), np.array([[2.0, 3.0], [4.0, 5.0]]), np.array([[2, 3]])])
@pytest.mark.parametrize("right", [[1.0, 2.0], [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]])
def test_matmul_with_numpy_on_the_left(left, right):
    x = leaf(right, np.float32)
    y = left @ x
    assert (type(y), y.dtype) == (Tensor, np.float64 if left.dtype == np.float64 else np.float32)
    assert_close(y, left @ x.data, 1e-6)
    y.sum().backward()
    assert x.grad.dtype == np.float32
    rows = np.atleast_2d(left).sum(axis=0)
    assert_close(x.grad, rows if x.ndim == 1 else np.outer(rows, np.ones(3)), 1e-6)


@pytest.mark.cpu_only(reason="NumPy's arrays stand beside tensors, and devices do not mix")
def test_numbers_on_the_left_are_no_matrices():
    for number in (np.float64(2), np.array(2.0), 2.0):
        with pytest.raises((TypeError, ValueError), match="matmul: "):
            number @ leaf([1.0, 2.0])


@pytest.mark.cpu_only(reason="NumPy's arrays stand beside tensors, and devices do not mix")
@pytest.mark.parametrize("operate", [operator.and_, operator.or_, operator.xor])
@pytest.mark.parametrize(
    ("left", "right"),
    [
        (np.array([True, True, False]), [True, False, False]),
        (np.bool_(True), [True, False]),
        (np.array(False), [True, False]),
        (True, [True, False]),
        (np.array([6, 5]), [3, 4]),
        (np.int64(6), [3, 4]),
        (6, [3, 4]),
    ],
)
def test_logic_with_numpy_on_the_left(operate, left, right):
    x = Tensor(right)
    y = operate(left, x)
    assert (type(y), y.dtype) == (Tensor, x.dtype)
    assert y.tolist() == operate(left, np.array(right)).tolist() == operate(x, left).tolist()


def test_numpy_functions_do_not_leave_the_graph_silently():
    x = leaf([1.0, 2.0])
    for function in (
        np.exp,
        np.sum,
        np.maximum.reduce,
        lambda x: np.maximum(x, 0),
        lambda x: np.where([True, False], x, 0),
    ):
        with pytest.raises((TypeError, RuntimeError)):
            function(x)
    for convert in (np.asarray, np.array, lambda x: np.stack([x, x])):
        with pytest.raises(RuntimeError, match=r"a tensor that requires grad is not made a NumPy array silently"):
            convert(x)
    with pytest.raises(TypeError, match="__array_ufunc__"):
        array = np.ones(2)
        array += x
    assert np.asarray(x.detach()).tolist() == x.numpy().tolist() == [1, 2]


@pytest.mark.cpu_only(reason="NumPy's arrays stand beside tensors, and devices do not mix")
def test_subclasses_of_numpy_arrays_lose_their_own_arithmetic():
    matrix = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32).view(np.matrix)
    x = mg.Tensor([[1.0, 2.0], [3.0, 4.0]])
    assert (x * matrix).tolist() == (x * mg.Tensor(matrix)).tolist() == [[1, 4], [9, 16]]
    with pytest.raises(TypeError, match="a masked array would lose its mask; fill it first"):
        mg.Tensor(np.ma.array([1.0, 2.0], mask=[True, False]))


@pytest.mark.parametrize("values", [[1j, 2], [1, None], ["1", "2"]])
def test_arrays_of_other_things_than_numbers_are_refused_as_operands(values):
    with pytest.raises(TypeError, match="multiply: a tensor holds floats, integers or booleans, not "):
        mg.Tensor([1.0, 2.0]) * np.array(values)
