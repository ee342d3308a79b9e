"""sort, argsort, topk: against finite differences, NumPy and PyTorch; NaN, ties, and a k that is too large."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minigrad as mg
from minigrad import Tensor, ops
from tests.minigrad.ops.factory import SEEDS, Case, integers, make_tests, with_axes
from tests.support import assert_close, leaf, torch_or_skip


def distinct(rng, shape):
    """Numbers that are far enough from one another for finite differences."""
    count = int(np.prod(shape))
    return (rng.permutation(count) + rng.uniform(-0.3, 0.3, count)).reshape(shape)


def in_order(x, axis, descending=False):
    """NumPy's (values, indices), of descending order by the negative, which has the same ties."""
    order = np.argsort(-x if descending else x, axis=axis, kind="stable")
    return np.take_along_axis(x, order, axis), order


def first(k, pair, axis):
    return tuple(np.take(part, range(k), axis) for part in pair)


def sort(axis, descending, values=distinct):
    return Case(
        "sort", lambda lib, x: ops.sort(x, axis, descending), with_axes(max(1, axis + 1)), values=values,
        numpy=lambda n, x: in_order(x, axis, descending),
        torch=lambda t, x: t.sort(x, dim=axis, descending=descending, stable=True), differentiable=values is distinct,
    )  # fmt: skip


def topk(k, axis, largest):
    return Case(
        "topk", lambda lib, x: ops.topk(x, k, axis, largest), with_axes(max(1, axis + 1), min_side=2), values=distinct,
        numpy=lambda n, x: first(k, in_order(x, axis, largest), axis), torch=lambda t, x: t.topk(x, k, axis, largest),
    )  # fmt: skip


CASES = [
    Case("argsort", lambda lib, x: lib.argsort(x), with_axes(1), values=distinct, differentiable=False),
    Case(
        "argsort", lambda lib, x: ops.argsort(x, axis=0, descending=True), with_axes(1), values=integers,
        numpy=lambda n, x: in_order(x, 0, True)[1], differentiable=False,
        torch=lambda t, x: t.argsort(x, dim=0, descending=True, stable=True),
    ),
    *[sort(axis, descending) for axis in (-1, 0, 1) for descending in (False, True)],
    *[sort(-1, descending, integers) for descending in (False, True)],
    *[topk(k, axis, largest) for k, axis in ((0, -1), (1, 0), (2, 1)) for largest in (False, True)],
    *[
        Case(name, call, st.just(((),)), numpy=lambda n, x: (x, np.int64(0)), torch=by_torch, values=distinct)
        for name, call, by_torch in (
            ("sort", lambda lib, x: ops.sort(x), lambda t, x: x.sort()),
            ("sort", lambda lib, x: ops.sort(x, 0, True), lambda t, x: x.sort(0, True)),
            ("topk", lambda lib, x: ops.topk(x, 1), lambda t, x: x.topk(1)),
        )
    ],
]  # fmt: skip

test_gradients, test_against_numpy, test_against_pytorch, test_device = make_tests(CASES)

FEW = [0.0, -0.0, 1.0, 2.0, np.inf, -np.inf, np.nan]  # many ties among a few of these
DTYPES = [np.float16, np.float32, np.float64, np.int32, np.int64, np.uint8, np.bool_]


@given(st.sampled_from(DTYPES), st.lists(st.sampled_from(FEW), max_size=40), st.booleans(), SEEDS)
def test_ties_and_nan_are_pytorchs(dtype, values, descending, seed):
    torch = torch_or_skip()
    rng = np.random.default_rng(seed)
    x = np.array(values, dtype) if np.dtype(dtype).kind == "f" else rng.integers(0, 2, len(values)).astype(dtype)
    found = Tensor(x).sort(descending=descending)
    wanted = torch.sort(torch.tensor(x), descending=descending, stable=True)
    assert (found.values.dtype, found.indices.dtype) == (dtype, np.int64)
    assert found.indices.tolist() == wanted.indices.tolist()
    np.testing.assert_array_equal(found.values.numpy(), wanted.values.numpy())
    k = int(rng.integers(0, len(values) + 1))
    best = Tensor(x).topk(k, largest=descending)
    np.testing.assert_array_equal(best.values.numpy(), found.values.numpy()[:k])
    assert best.indices.tolist() == found.indices.tolist()[:k]
    if dtype is not np.bool_:  # which PyTorch's topk refuses
        np.testing.assert_array_equal(best.values.numpy(), torch.topk(torch.tensor(x), k, largest=descending).values)


def test_gradients_return_to_where_the_elements_stood():
    x = leaf([3.0, 1.0, 1.0, 2.0])
    values, indices = x.sort(descending=True)
    assert (values.tolist(), indices.tolist(), indices.requires_grad) == ([3, 2, 1, 1], [0, 3, 1, 2], False)
    values.backward([1.0, 2.0, 3.0, 4.0])
    assert x.grad.tolist() == [1, 3, 4, 2]
    (top,) = mg.grad(x.topk(2).values.sum(), [x])
    assert top.tolist() == [1, 0, 0, 1]


def test_extremes_of_integers_keep_their_order():
    limits = np.iinfo(np.int64)
    x = Tensor([0, limits.min, limits.max, limits.min])
    assert x.sort(descending=True).indices.tolist() == [2, 0, 1, 3]
    assert x.topk(1, largest=False).values.tolist() == [limits.min]


def test_the_pair_has_names():
    pair = mg.sort(Tensor([2.0, 1.0]))
    assert pair.values is pair[0]
    assert pair.indices is pair[1]
    assert_close(mg.topk(Tensor([2.0, 1.0]), 1).values, [2], 0)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: x.topk(5), ValueError, r"topk: k 5 is out of range for an axis of length 4, shape \(3, 4\)"),
        (lambda x: x.topk(4, 0), ValueError, "topk: k 4 is out of range for an axis of length 3"),
        (lambda x: x.topk(-1), ValueError, "topk: k -1 is out of range"),
        (lambda x: x[0, 0].topk(2), ValueError, r"topk: k 2 is out of range for an axis of length 1, shape \(\)"),
        (lambda x: x[:0].topk(1, 0), ValueError, "topk: k 1 is out of range for an axis of length 0"),
        (lambda x: x.topk(1, 2), IndexError, "topk: dimension 2 of a tensor with 2 dimensions"),
        (lambda x: x.sort(-3), IndexError, "sort: dimension -3 of a tensor with 2 dimensions"),
        (lambda x: x.argsort(2), IndexError, "argsort: .*axis 2 is out of bounds"),
        (lambda x: x[0, 0].sort(1), IndexError, "sort: dimension 1 of a tensor with 0 dimensions"),
    ],
)
def test_dimensions_and_numbers_that_are_not_there(call, error, text):
    with pytest.raises(error, match=text):
        call(Tensor(np.zeros((3, 4))))
