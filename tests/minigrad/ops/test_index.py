"""Taking elements by place: against finite differences, NumPy and PyTorch; then duplicates, and keys that change."""

import numpy as np
import pytest
from hypothesis import strategies as st

import minigrad as mg
from minigrad import Tensor, ops
from tests.minigrad.ops.factory import Case, make_tests, normal
from tests.support import assert_close, leaf

SOURCE = (3, 4)
MASK = np.array([[True, False, True, False], [False] * 4, [True] * 4])

KEYS = [
    0,
    -1,
    (1, 2),
    (-1, -4),
    slice(1, None),
    slice(1, 1),
    slice(None, None, 2),
    (slice(None), slice(-1, None)),
    ...,
    (..., 0),
    None,
    (slice(None), None, 1),
    (..., None),
    [2, 0],
    [0, 0, 1],
    [],
    np.array([[0, 0], [2, 0]]),
    ([0, 0], [1, 1]),
    (slice(None), [0, 0], None),
    ([[0], [2]], [1, 1, 3]),
    (1, [0, 0, 3]),
    ([0, 2], slice(1, 3)),
    ((0, 0), slice(None)),
    MASK,
    MASK[:, 0],
    [True, False, True],
    (MASK[:, 0], [1, 1]),
    (slice(None), MASK[0]),
    True,
    np.int64(1),
    (np.array(1), [0, 0]),
]
REVERSED = [(slice(None, None, -1), slice(None)), (slice(None, None, -2), slice(2, 0, -1))]  # PyTorch has none of these


def fixed(*shapes):
    return st.just(shapes)


def getitem(key):
    return Case("getitem", lambda lib, x: x[key], fixed(SOURCE))


def reversed_getitem(key):
    """PyTorch is given the places instead of the negative step."""
    places = [np.arange(n)[k].copy() for n, k in zip(SOURCE, key, strict=True)]
    return Case("getitem", lambda lib, x: x[key], fixed(SOURCE), torch=lambda t, x: x[np.ix_(*places)])


def scatter_add(key):
    shape = np.zeros(SOURCE)[key].shape

    def by_numpy(n, x):
        value = np.zeros(SOURCE, x.dtype)
        np.add.at(value, key, x)
        return value

    def by_torch(t, x):
        places = t.arange(12).reshape(SOURCE)[key]
        return t.zeros(12, dtype=x.dtype).index_add(0, places.reshape(-1), x.reshape(-1)).reshape(SOURCE)

    return Case(
        "scatter_add", lambda lib, x: ops.scatter_add(x, key=ops.plain_key(key), shape=SOURCE), fixed(shape),
        numpy=by_numpy, torch=by_torch,
    )  # fmt: skip


def places_along(axis):
    """Draws indices of elements of SOURCE along an axis, with duplicates."""
    return lambda rng, shape: rng.integers(0, SOURCE[axis], shape)


def take(axis, shape):
    return Case(
        "take_along_axis", lambda lib, x, indices: lib.take_along_axis(x, indices, axis), fixed(SOURCE, shape),
        values=(normal, places_along(axis)), torch=lambda t, x, indices: t.take_along_dim(x, indices, axis),
    )  # fmt: skip


def put(axis, shape):
    def by_numpy(n, x, indices):
        value = np.zeros(SOURCE, x.dtype)
        for place in np.ndindex(*shape):
            value[(indices[place], place[1]) if axis == 0 else (place[0], indices[place])] += x[place]
        return value

    return Case(
        "add_along_axis", lambda lib, x, i: ops.add_along_axis(x, i, axis=axis, shape=SOURCE), fixed(shape, shape),
        values=(normal, places_along(axis)), numpy=by_numpy,
        torch=lambda t, x, indices: t.zeros(SOURCE, dtype=x.dtype).scatter_add(axis, indices, x),
    )  # fmt: skip


def pick(axis, keepdims):
    def ours(lib, x):
        return ops.pick(x, ops.argmax(x, axis=axis), axis, keepdims)

    def by_numpy(n, x):
        return n.max(x, axis, keepdims=keepdims), n.argmax(x, axis, keepdims=keepdims)

    return Case(
        "pick",
        ours,
        fixed(SOURCE),
        [((),)] if axis != 1 else (),
        numpy=by_numpy,
        torch=lambda t, x: t.max(x, axis, keepdims),
    )


CASES = [
    *map(getitem, KEYS),
    *map(reversed_getitem, REVERSED),
    *map(scatter_add, [0, slice(1, None), (..., None, 1), [0, 0, 1], ([0, 0], [1, 1]), ((0, 0), slice(None))]),
    *map(scatter_add, [MASK, (MASK[:, 0], [1, 1])]),
    take(0, (2, 4)),
    take(-1, (3, 5)),
    take(1, (3, 0)),
    put(0, (5, 4)),
    put(1, (3, 2)),
    pick(0, False),
    pick(-1, True),
    pick(1, False),
]  # fmt: skip

test_gradients, test_against_numpy, test_against_pytorch, test_device = make_tests(CASES)


# ---- duplicates ------------------------------------------------------------------------------------------------------


def test_an_element_taken_twice_gets_both_gradients():
    x = leaf([1, 2, 3])
    x[[0, 0, 1]].sum().backward()
    assert_close(x.grad, [2, 1, 0], 0)


def test_an_element_of_a_matrix_taken_twice_gets_both_gradients():
    x = leaf(np.zeros((2, 2)))
    x[[0, 0], [1, 1]].sum().backward()
    assert_close(x.grad, [[0, 2], [0, 0]], 0)


@pytest.mark.parametrize("key", [[2, 0], ((2, 0),), np.array([2, 0]), Tensor([2, 0]), (Tensor([2, 0]),), ([2, 0],)])
def test_gradients_go_to_the_places_taken(key):
    x = leaf([1, 2, 3])
    x[key].backward([10.0, 20.0])
    assert_close(x.grad, [20, 0, 10], 0)


def test_a_boolean_mask_takes_and_gives_back():
    x = leaf([1, 2, 3])
    x[Tensor([True, False, True])].sum().backward()
    assert_close(x.grad, [1, 0, 1], 0)
    y = leaf([[1, 2], [3, 4]])
    (y[y > 2] * 3).sum().backward()
    assert_close(y.grad, [[0, 0], [3, 3]], 0)


def test_last_element_twice_over():
    x = leaf([1, 2, 3])
    (x[-1] * 2).backward()
    assert_close(x.grad, [0, 0, 2], 0)


# ---- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [np.array, Tensor])
def test_a_key_that_is_changed_afterwards_does_not_change_the_gradient(make):
    x, key = leaf([1, 2, 3]), make([0, 0])
    y = x[key].sum()
    key[...] = 2
    y.backward()
    assert_close(x.grad, [2, 0, 0], 0)


def test_tensors_of_several_integers_within_a_tuple():
    x = leaf(np.arange(12).reshape(3, 4))
    assert x[:, Tensor([3, 0])].tolist() == x.data[:, [3, 0]].tolist()
    assert x[Tensor(1), Tensor(2)].item() == 6


@pytest.mark.parametrize("key", [3, -4, (0, 4), [0, 3], Tensor([-4]), np.array([5])])
def test_a_place_that_is_not_there_is_an_error(key):
    with pytest.raises(IndexError, match="out of bounds"):
        Tensor(np.zeros((3, 4)))[key]


@pytest.mark.parametrize("key", [1.0, "a", Tensor([1.0]), np.array([0.5])])
def test_a_key_that_is_no_index_is_an_error(key):
    with pytest.raises(IndexError):
        Tensor([1.0, 2.0])[key]


def test_a_single_element_is_a_view_like_any_other():
    x = mg.Tensor([1.0, 2.0, 3.0])
    x[0][...] = 9.0
    assert x.tolist() == [9, 2, 3]
