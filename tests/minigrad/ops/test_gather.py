"""gather, scatter and their like: against finite differences, loops and PyTorch; indices that are refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minigrad as mg
from minigrad import DeviceError, Tensor, ops
from tests.cupy_standin import installed
from tests.minigrad.ops.factory import SEEDS, Case, booleans, broadcastable, make_tests, normal
from tests.support import assert_close, leaf, torch_or_skip

SOURCE = (3, 4)


def fixed(*shapes):
    return st.just(shapes)


def below(n):
    """Draws integers from 0 to n - 1, with duplicates."""
    return lambda rng, shape: np.asarray(rng.integers(0, n, shape))


def by_loop(value, indices, axis, use):
    """`use(place of the value, place of the index)` for each index, as PyTorch documents gather and scatter."""
    for place in np.ndindex(indices.shape):
        at = list(place) or [0]
        at[axis] = indices[place]
        use(tuple(at[: value.ndim]), place)


def gathered(n, x, indices, axis):
    value = np.zeros(indices.shape, x.dtype)

    def use(at, place):
        value[place] = x[at]

    by_loop(x, indices, axis, use)
    return value


def scattered(n, x, indices, src, axis, add=False):
    value = x.copy()

    def use(at, place):
        number = src if np.isscalar(src) else src[place]
        value[at] = value[at] + number if add else number

    by_loop(x, indices, axis, use)
    return value


def cropped(src, shape):
    """As much of src as PyTorch's gradient wants: no more than there are indices."""
    fits = len(src.shape) == len(shape) and all(n <= m for n, m in zip(shape, src.shape, strict=True))
    return src[tuple(map(slice, shape))] if fits else src


def gather(axis, shape, index):
    return Case(
        "gather", lambda lib, x, i: ops.gather(x, i, axis), fixed(shape, index),
        values=(normal, below((*shape, 1)[axis] if shape else 1)), numpy=lambda n, x, i: gathered(n, x, i, axis),
        torch=lambda t, x, i: t.gather(x, axis, i),
    )  # fmt: skip


def scatter_add(axis, shape, index, src):
    return Case(
        "scatter_add", lambda lib, x, i, src: ops.scatter_add(x, i, src, axis), fixed(shape, index, src),
        values=(normal, below((*shape, 1)[axis] if shape else 1), normal),
        numpy=lambda n, x, i, src: scattered(n, x, i, src, axis, add=True),
        torch=lambda t, x, i, src: t.scatter_add(x, axis, i, cropped(src, i.shape)),
    )  # fmt: skip


def scatter(axis, shape, index, src):
    """Without duplicates, for which PyTorch's gradient is another."""

    def distinct(rng, shape_of_index):
        count = shape[axis] if shape else 1
        if not shape_of_index:
            return np.asarray(0)
        return np.argsort(rng.random((*shape_of_index[:-1], count)), -1)[..., : shape_of_index[-1]]

    return Case(
        "scatter", lambda lib, x, i, src: ops.scatter(x, i, src, axis), fixed(shape, index, src),
        values=(normal, distinct, normal), numpy=lambda n, x, i, src: scattered(n, x, i, src, axis),
        torch=lambda t, x, i, src: t.scatter(x, axis, i, cropped(src, i.shape)),
    )  # fmt: skip


def take(axis, shape, index):
    length = np.zeros(shape).size if axis is None else shape[axis]

    def by_torch(t, x, indices):
        if axis is not None and x.ndim == indices.ndim and (indices.abs() >= x.shape[axis]).any():
            raise RuntimeError("PyTorch takes the remainder")
        return t.take_along_dim(x, indices, axis)

    return Case(
        "take_along_axis", lambda lib, x, indices: lib.take_along_axis(x, indices, axis), fixed(shape, index),
        values=(normal, below(length)), torch=by_torch,
        numpy=(lambda n, x, indices: x.reshape(-1)[indices.reshape(-1)]) if axis is None else None,
    )  # fmt: skip


def index_select(axis, shape, index):
    return Case(
        "index_select", lambda lib, x, i: ops.index_select(x, i, axis), fixed(shape, index),
        values=(normal, below(shape[axis] if shape else 1)),
        numpy=lambda n, x, i: n.take(x, i.reshape(-1), axis) if shape else x,
        torch=lambda t, x, i: t.index_select(x, axis, i),
    )  # fmt: skip


def pick(axis, keepdims):
    def ours(lib, x):
        return ops.pick(x, ops.argmax(x, axis=axis), axis, keepdims)

    def by_numpy(n, x):
        return n.max(x, axis, keepdims=keepdims), n.argmax(x, axis, keepdims=keepdims)

    return Case(
        "pick", ours, fixed(SOURCE), [((),)] if axis != 1 else (), numpy=by_numpy,
        torch=lambda t, x: t.max(x, axis, keepdims),
    )  # fmt: skip


def one_hot(num_classes, shape):
    def by_numpy(n, x):
        count = x.max() + 1 if num_classes == -1 else num_classes
        return n.eye(count, dtype=np.int64)[x]

    return Case(
        "one_hot", lambda lib, x: ops.one_hot(x, num_classes), fixed(shape), values=below(5), numpy=by_numpy,
        torch=lambda t, x: t.nn.functional.one_hot(x, num_classes), differentiable=False,
    )  # fmt: skip


CASES = [
    gather(0, SOURCE, (5, 4)),
    gather(1, SOURCE, (3, 2)),
    gather(-1, SOURCE, (2, 5)),
    gather(0, SOURCE, (2, 1)),
    gather(1, SOURCE, (3, 0)),
    gather(0, (2, 3, 4), (3, 2, 3)),
    gather(1, (2, 3, 4), (1, 5, 4)),
    gather(0, (4,), (6,)),
    gather(0, (4,), ()),
    gather(0, (), ()),
    gather(-1, (), (3,)),
    gather(1, (0, 3), (0, 2)),
    scatter_add(0, SOURCE, (5, 4), (5, 4)),
    scatter_add(1, SOURCE, (3, 2), (3, 2)),
    scatter_add(-1, SOURCE, (2, 6), (4, 7)),
    scatter_add(0, SOURCE, (0, 2), (1, 3)),
    scatter_add(1, (2, 3, 4), (1, 5, 4), (2, 5, 4)),
    scatter_add(0, (4,), (), ()),
    scatter_add(0, (), (3,), (4,)),
    scatter_add(0, (), (), ()),
    scatter(1, SOURCE, (3, 2), (3, 2)),
    scatter(-1, SOURCE, (2, 4), (4, 5)),
    scatter(2, (2, 3, 4), (1, 3, 2), (2, 3, 2)),
    scatter(0, (4,), (3,), (3,)),
    scatter(0, (), (1,), (1,)),
    scatter(1, SOURCE, (2, 0), (3, 4)),
    Case(
        "scatter", lambda lib, x, i: ops.scatter(x, i, 2.5, 1), fixed(SOURCE, (2, 6)), values=(normal, below(4)),
        numpy=lambda n, x, i: scattered(n, x, i, 2.5, 1), torch=lambda t, x, i: t.scatter(x, 1, i, 2.5),
    ),
    take(0, SOURCE, (2, 4)),
    take(-1, SOURCE, (3, 5)),
    take(1, SOURCE, (3, 0)),
    take(1, SOURCE, (1, 2)),
    take(0, SOURCE, (5, 1)),
    take(1, (2, 1, 3), (1, 2, 1)),
    take(0, (2, 1, 3), (4, 3, 1)),
    take(None, SOURCE, (2, 3)),
    take(None, (), ()),
    index_select(0, SOURCE, (5,)),
    index_select(-1, SOURCE, (2,)),
    index_select(1, (2, 3, 4), (4,)),
    index_select(1, SOURCE, ()),
    index_select(1, SOURCE, (0,)),
    index_select(0, (), (1,)),
    index_select(-1, (), ()),
    Case(
        "masked_select", lambda lib, x, mask: ops.masked_select(x, mask), broadcastable(2),
        [((), ()), (SOURCE, ()), ((), SOURCE), (SOURCE, (4,)), ((3, 1), (2, 1, 4)), ((0, 2), (2,))],
        values=(normal, booleans), numpy=lambda n, x, mask: n.broadcast_arrays(x, mask)[0][n.broadcast_to(
            mask, n.broadcast_shapes(x.shape, mask.shape))], torch=lambda t, x, mask: t.masked_select(x, mask),
    ),
    pick(0, False),
    pick(-1, True),
    pick(1, False),
    one_hot(5, (4,)),
    one_hot(7, (2, 3)),
    one_hot(5, ()),
    one_hot(5, (0, 2)),
    one_hot(-1, (2, 3)),
]  # fmt: skip

test_gradients, test_against_numpy, test_against_pytorch, test_device = make_tests(CASES)


# ---- duplicates, and indices that change -----------------------------------------------------------------------------


@given(SEEDS)
def test_of_several_values_for_one_place_the_last_stays_and_gets_the_gradient(seed):
    rng = np.random.default_rng(seed)
    index = rng.integers(0, 4, (3, 6))
    x, src = rng.standard_normal(SOURCE), rng.standard_normal((3, 6))
    assert_close(mg.Tensor(x).scatter(1, Tensor(index), Tensor(src)), scattered(np, x, index, src, 1), 0)
    assert mg.gradcheck(lambda x, src: x.scatter(1, Tensor(index), src), [x, src], order=2)


def test_gradients_of_duplicates_are_counted():
    x, src = leaf([1.0, 2.0]), leaf([3.0, 4.0, 5.0])
    x.gather(0, Tensor([0, 0, 1])).sum().backward()
    assert x.grad.tolist() == [2, 1]
    y = x.scatter_add(0, Tensor([0, 0, 0]), src)
    assert y.tolist() == [13, 2]
    y.backward([7.0, 8.0])
    assert (x.grad.tolist(), src.grad.tolist()) == ([9, 9], [7, 7, 7])


@pytest.mark.parametrize(
    "make", [pytest.param(np.array, marks=pytest.mark.cpu_only(reason="the index is an array of NumPy")), Tensor]
)
def test_an_index_that_is_changed_afterwards_does_not_change_the_gradient(make):
    x, index, src = leaf([1.0, 2.0]), make([0, 0]), leaf([3.0, 4.0])
    values = [
        x.gather(0, index), x.take_along_dim(index, 0), x.index_select(0, index), x.scatter_add(0, index, src),
        x.scatter(0, index, src), x.masked_select(mask := make([True, False])),
    ]  # fmt: skip
    index[...] = 1
    mask[...] = True
    sum(y.sum() for y in values).backward()
    assert (x.grad.tolist(), src.grad.tolist()) == ([2 + 2 + 2 + 1 + 0 + 1, 0 + 0 + 0 + 1 + 1], [1, 2])


def test_indices_of_a_sort_that_are_written_over_do_not_change_the_gradient():
    x = leaf([3.0, 1.0, 2.0])
    values, indices = x.sort()
    indices[...] = 0
    values.backward([10.0, 20.0, 30.0])
    assert x.grad.tolist() == [30, 10, 20]


# ---- dtypes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int32, np.int64, np.float16, np.float32])
def test_the_dtype_stays(dtype):
    torch = torch_or_skip()
    x, index, src = np.array([[1, 0], [1, 1]], dtype), np.array([[1, 1]]), np.array([[0, 1]], dtype)
    x_, index_, src_ = map(torch.tensor, (x, index, src))
    for call, arguments, others in (
        (lambda x, i, src: x.gather(1, i), (x, index, src), (x_, index_, src_)),
        (lambda x, i, src: x.scatter(1, i[:, :1], src), (x, index, src), (x_, index_, src_)),
        (lambda x, i, src: x.scatter(1, i, True), (x, index, src), (x_, index_, src_)),
        (lambda x, i, src: x.scatter_add(1, i, src), (x, index, src), (x_, index_, src_)),
        (lambda x, i, src: x.index_select(1, i[0]), (x, index, src), (x_, index_, src_)),
    ):
        y, wanted = call(*map(Tensor, arguments)), call(*others)
        assert y.dtype == dtype
        assert y.tolist() == wanted.tolist()


def test_a_number_is_cast_to_the_tensors_dtype():
    assert Tensor([1, 2]).scatter(0, Tensor([0]), 7.5).tolist() == [7, 2]


@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
def test_indices_of_any_integer_dtype(dtype):
    x, index = Tensor([1.0, 2.0]), Tensor([1, 0], dtype=dtype)
    for y in (x.gather(0, index), x.take_along_dim(index, 0), x.index_select(0, index), x.scatter(0, index, x)):
        assert y.tolist() == [2, 1]
    assert (mg.one_hot(index).tolist(), mg.one_hot(index).dtype) == ([[0, 1], [1, 0]], np.int64)


# ---- errors ----------------------------------------------------------------------------------------------------------

CALLS = {
    "gather": lambda x, dim, index: x.gather(dim, index),
    "scatter": lambda x, dim, index: x.scatter(dim, index, 1.0),
    "scatter_add": lambda x, dim, index: x.scatter_add(dim, index, Tensor(np.zeros(index.shape, np.float32))),
    "index_select": lambda x, dim, index: x.index_select(dim, index[0]),
    "take_along_axis": lambda x, dim, index: x.take_along_dim(index, dim),
}


@pytest.mark.parametrize("name", CALLS)
def test_indices_that_are_not_there(name):
    call, x = CALLS[name], mg.zeros(3, 4)
    with pytest.raises(IndexError, match=rf"^{name}: index 4 is out of range for an axis of length 4, -?\d to 3$"):
        call(x, 1, Tensor([[0, 4, 0]] * 3))
    with pytest.raises(IndexError, match=rf"^{name}: index -5 is out of range for an axis of length 4"):
        call(x, 1, Tensor([[0, 9, -5]] * 3))
    with pytest.raises(IndexError, match=rf"^{name}: index 0 is out of range for an axis of length 0"):
        call(mg.zeros(3, 0), 1, Tensor([[0]] * 3))
    with pytest.raises(IndexError, match=rf"^{name}: dimension 2 of a tensor with 2 dimensions, shape \(3, 4\)"):
        call(x, 2, Tensor([[0]] * 3))
    if name == "take_along_axis":
        assert x.take_along_dim(Tensor([[-1]]), 1).shape == (3, 1)
    else:
        with pytest.raises(IndexError, match=rf"^{name}: index -1 is out of range for an axis of length 4, 0 to 3"):
            call(x, 1, Tensor([[0, -1]] * 3))


@pytest.mark.parametrize("name", CALLS)
def test_indices_that_are_no_integers(name):
    for index, kind in ((Tensor([[1.0]]), "float32"), (np.array([[True]]), "bool")):
        with pytest.raises(TypeError, match=f"^{name}: indices must be a tensor or an array of integers, got {kind}$"):
            CALLS[name](mg.zeros(3, 4), 1, index)


@pytest.mark.parametrize("name", CALLS)
def test_indices_on_another_device(name):
    with installed(), pytest.raises(DeviceError, match=f"^{name}: indices on cpu, the tensor on cuda:0"):
        CALLS[name](mg.zeros(3, 4, device="cuda"), 1, Tensor([[0]], device="cpu"))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: x.gather(0, [[0]]), TypeError, "gather: indices must be a tensor or an array of integers, got list"),
        (lambda x: x.gather(1, Tensor([0])), ValueError, r"gather: index of shape \(1,\) for a .* \(3, 4\)"),
        (lambda x: x.gather(1, Tensor([[0]] * 4)), ValueError, r"gather: index of shape \(4, 1\) .* dimension 1"),
        (lambda x: x.scatter(1, Tensor([[0]] * 4), 0), ValueError, r"scatter: index of shape \(4, 1\)"),
        (lambda x: x.scatter(0, Tensor([[0, 0]]), x[:, :1]), IndexError, r"scatter: src of shape \(3, 1\)"),
        (lambda x: x.scatter(0, Tensor([[0, 0]]), x[0]), IndexError, r"scatter: src of shape \(4,\) for an index"),
        (lambda x: x.scatter(0, Tensor([[0]]), x.double()), TypeError, "scatter: src is float64, the tensor float32"),
        (lambda x: x.scatter_add(0, Tensor([[0]]), 1.0), TypeError, "scatter_add: src is float, the tensor float32"),
        (lambda x: x.scatter_add(0, Tensor([[0]]), x.long()), TypeError, "scatter_add: src is int64, the tensor"),
        (lambda x: x.take_along_dim(Tensor([0]), 1), ValueError, r"take_along_axis: x of shape \(3, 4\) and .* \(1,\)"),
        (lambda x: x.take_along_dim(Tensor([[0]] * 2), 1), ValueError, r"\(3, 4\) and \(2, 1\) do not broadcast"),
        (lambda x: x.sum().take_along_dim(Tensor(0), 0), IndexError, "take_along_axis: a 0-d tensor has no axis 0"),
        (lambda x: x.take_along_dim(Tensor([12])), IndexError, "take_along_axis: index 12 is out of range"),
        (lambda x: x.index_select(0, Tensor([[0]])), IndexError, r"index_select: takes a vector .* got shape \(1, 1\)"),
        (lambda x: x[0, 0].index_select(0, Tensor([0, 0])), IndexError, r"index_select: .* got shape \(2,\)"),
        (lambda x: x.masked_select(x), TypeError, "masked_select: takes a boolean mask, got float32"),
        (lambda x: x.masked_select(True), TypeError, "masked_select: takes a boolean mask, got bool"),
        (lambda x: x.masked_select(x[:2] > 0), ValueError, r"masked_select: shapes \(3, 4\) and \(2, 4\)"),
        (lambda x: mg.one_hot(x), TypeError, "one_hot: indices must be a tensor or an array of integers, got float32"),
        (lambda x: mg.one_hot(x > 0), TypeError, "one_hot: indices must be .* got bool"),
        (lambda x: mg.one_hot(Tensor([-1, 2])), IndexError, "one_hot: class -1 is negative; classes count from 0"),
        (lambda x: mg.one_hot(Tensor([-1])), IndexError, "one_hot: class -1 is negative"),
        (lambda x: mg.one_hot(Tensor([-1]), 3), IndexError, "one_hot: class -1 is negative"),
        (lambda x: x.scatter(0, Tensor([[0]]), x, value=5), TypeError, "scatter: give src or value, got both"),
        (lambda x: x.scatter(0, Tensor([[0]])), TypeError, "scatter: give src or value, got neither"),
        (lambda x: mg.one_hot(Tensor([1, 2]), 2), IndexError, "one_hot: index 2 is out of range .* 0 to 1"),
        (lambda x: mg.one_hot(Tensor([0]), 0), IndexError, "one_hot: index 0 is out of range"),
        (lambda x: mg.one_hot(x[:0].long()), ValueError, r"one_hot: num_classes -1 for classes of shape \(0, 4\)"),
        (lambda x: mg.one_hot(x[:0].long(), 0), ValueError, r"one_hot: num_classes 0 for classes of shape \(0, 4\)"),
        (lambda x: mg.one_hot(Tensor([1]), -2), ValueError, r"one_hot: num_classes -2 for classes of shape \(1,\)"),
    ],
)  # fmt: skip
def test_what_does_not_fit(call, error, text):
    with pytest.raises(error, match=text):
        call(mg.zeros(3, 4))


def test_a_number_of_numpys_is_a_number_to_scatter():
    x = mg.zeros(3)
    assert x.scatter(0, Tensor([1]), value=np.float64(2)).tolist() == [0, 2, 0]
    assert x.scatter(0, Tensor([1]), value=np.float64(2)).dtype == np.float32


def test_a_number_that_the_dtype_does_not_hold_is_not_scattered():
    for dtype, value in (("float16", -1e9), ("int32", 2**31), ("int32", np.float64(2**31))):
        with pytest.raises(ValueError, match=f"scatter: .* is no value of {dtype}, which are from"):
            mg.zeros(3, dtype=dtype).scatter(0, Tensor([1]), value=value)
    assert mg.zeros(1, dtype="float16").scatter(0, Tensor([0]), value=np.inf).tolist() == [np.inf]
    with pytest.raises(TypeError, match="scatter: value must be a number, got list"):
        mg.zeros(3).scatter(0, Tensor([1]), value=[2.0])
