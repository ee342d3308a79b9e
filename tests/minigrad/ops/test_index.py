"""x[key] and its opposites: against finite differences, NumPy and PyTorch; then duplicates, and keys that change."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import minigrad as mg
from minigrad import Tensor, ops
from tests.minigrad.ops.factory import SEEDS, Case, make_tests
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
    False,
    (True, 1),
    (0, False),
    (MASK[:, 0], None, True),
    np.array(True),
    np.int64(1),
    np.array(1),
    (np.array(1), [0, 0]),
    (np.array(1), np.array(2)),
    [[0, 1], [2, 0]],
    [(0, 1), (2, 0)],
    ([(0, 1), (2, 0)], 1),
    ([[0], [2]], ..., [1, 1, 3]),
    (slice(-2, None), [-1, 0]),
    (np.uint8(1), np.array([3, 0], np.int32)),
    (),
]
REVERSED = [(slice(None, None, -1), slice(None)), (slice(None, None, -2), slice(2, 0, -1))]  # PyTorch has none of these


def fixed(*shapes):
    return st.just(shapes)


def getitem(key):
    """PyTorch is given an array instead of a list, which it may take for a tuple."""
    for_torch = np.array(key, None if key else np.int64) if isinstance(key, list) else key
    return Case("getitem", lambda lib, x: x[key], fixed(SOURCE), torch=lambda t, x: x[for_torch])


def reversed_getitem(key):
    """PyTorch is given the places instead of the negative step."""

    def by_torch(t, x):
        if x.ndim < 2:
            raise IndexError("too many indices")
        return x[np.ix_(*[np.arange(n)[k].copy() for n, k in zip(x.shape, key, strict=False)])]

    return Case("getitem", lambda lib, x: x[key], fixed(SOURCE), torch=by_torch)


def separated_getitem():
    """An integer counts as an index of NumPy's, so that a slice between two puts their axis first."""
    return Case(
        "getitem",
        lambda lib, x: x[0, :, [1, 1, 0]],
        fixed((2, 3, 2)),
        torch=lambda t, x: x[0, :, [1, 1, 0]].swapaxes(0, 1),
    )


def opposite(name, key):
    """A case of `add_at` or `put_at` with values for each element that the key takes of SOURCE."""
    shape = np.zeros(SOURCE)[key].shape
    places = np.arange(12).reshape(SOURCE)[key].reshape(-1)

    def added(n, x):
        value = np.zeros(SOURCE, x.dtype)
        np.add.at(value, key, x)
        return value

    def put(n, x, values):
        value = x.copy()
        value[key] = values
        return value

    def put_by_torch(t, x, values):
        """The gradient of an element that is overwritten in turn is 0: PyTorch gives it that of the last."""
        taken = np.arange(x.numel()).reshape(x.shape)[key]
        last = {place: number for number, place in enumerate(taken.reshape(-1))}
        numbers = t.tensor(list(last.values()), dtype=t.int64)
        flat = t.broadcast_to(values, taken.shape).reshape(-1)[numbers]
        return x.reshape(-1).index_put((t.tensor(list(last), dtype=t.int64),), flat).reshape(x.shape)

    def added_by_torch(t, x):
        flat = t.broadcast_to(x, shape).reshape(-1)
        return t.zeros(12, dtype=x.dtype).index_add(0, t.tensor(places), flat).reshape(SOURCE)

    if name == "add_at":
        return Case(
            name, lambda lib, x: ops.add_at(x, key=ops.plain_key(key), shape=SOURCE), fixed(shape), numpy=added,
            torch=added_by_torch,
        )  # fmt: skip
    wide = tuple(1 if a == 0 else n for a, n in enumerate(shape))  # broadcasts
    return Case(
        name, lambda lib, x, values: ops.put_at(x, values, key=ops.plain_key(key)),
        st.sampled_from([(SOURCE, shape), (SOURCE, wide), (SOURCE, ())]), numpy=put, torch=put_by_torch,
    )  # fmt: skip


OPPOSITE = [
    0,
    slice(1, None),
    (..., None, 1),
    [0, 0, 1],
    ([0, 0], [1, 1]),
    ((0, 0), slice(None)),
    [],
    MASK,
    (MASK[:, 0], [1, 1]),
    True,
    False,
]

CASES = [
    *map(getitem, KEYS),
    *map(reversed_getitem, REVERSED),
    separated_getitem(),
    *[opposite(name, key) for name in ("add_at", "put_at") for key in OPPOSITE],
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


# ---- any key ---------------------------------------------------------------------------------------------------------

LENGTHS = (3, 4, 2)


@st.composite
def keys(draw):
    """What may stand between the brackets for LENGTHS: parts of every kind, some of which do not fit."""
    parts = []
    for n in draw(st.permutations(LENGTHS))[: draw(st.integers(0, 3))]:
        part = st.one_of(
            st.integers(-n, n - 1),
            st.slices(n),
            st.slices(n),
            st.lists(st.integers(-n, n - 1), max_size=3),
            npst.arrays(np.int64, st.sampled_from([(), (2,), (2, 1)]), elements=st.integers(-n, n - 1)),
            npst.arrays(np.bool_, n),
            st.booleans(),
            st.just(np.True_),
            st.none(),
            st.just(...),
        )
        parts.append(draw(part))
    return tuple(parts) if len(parts) != 1 or draw(st.booleans()) else parts[0]


def with_tensors(key):
    """Tensors instead of arrays and slices' ends."""
    if isinstance(key, tuple):
        return tuple(map(with_tensors, key))
    if isinstance(key, slice):
        return slice(None if key.start is None else Tensor(key.start), key.stop, key.step)
    return Tensor(key) if isinstance(key, np.ndarray) else key


@settings(max_examples=200)
@given(keys(), SEEDS)
def test_any_key_is_numpys(key, seed):
    """Taking, its gradient, writing, broadcast or not, and the kind of error."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(LENGTHS)
    x, ours = leaf(values), Tensor(values)
    try:
        wanted = values[key]
    except IndexError:
        with pytest.raises(IndexError, match="getitem: "):
            x[key]
        with pytest.raises(IndexError, match=r"x\[i\] = v: "):
            ours[key] = 0.0
        return
    y, weights = x[with_tensors(key)], np.asarray(rng.standard_normal(wanted.shape))
    assert_close(y, wanted, 0)
    y.backward(weights)
    gradient = np.zeros(LENGTHS)
    np.add.at(gradient, key, weights)
    assert_close(x.grad, gradient, 1e-14)
    ours[with_tensors(key)] = Tensor(weights)
    values[key] = weights
    assert_close(ours, values, 0)
    ours[key] = 7
    values[key] = 7
    assert_close(ours, values, 0)


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
    assert x[[Tensor(2), Tensor(0)]].tolist() == x.data[[2, 0]].tolist()


def test_the_ends_of_a_slice_are_taken_when_it_is_used():
    x, end = leaf([1, 2, 3]), Tensor(2)
    y = x[:end]
    end[...] = 3
    y.backward([1.0, 1.0])
    assert x.grad.tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (3, "index 3 is out of bounds for axis 0 with size 3"),
        (-4, "index -4 is out of bounds for axis 0 with size 3"),
        ((0, 4), "index 4 is out of bounds for axis 1 with size 4"),
        ([0, 3], "index 3 is out of bounds"),
        (Tensor([-4]), "index -4 is out of bounds"),
        (np.array([5]), "index 5 is out of bounds"),
        (MASK.T, "boolean index did not match"),
        (Tensor([True, False]), "boolean index did not match"),
        (([0, 1], [0, 1, 2]), "shape mismatch"),
        ((0, 0, 0), "too many indices"),
        ((..., ...), "an index can only have a single ellipsis"),
        (1.0, "only integers, slices"),
        ("a", "only integers, slices"),
        (Tensor([1.0]), "arrays used as indices must be of integer"),
        (np.array([0.5]), "arrays used as indices must be of integer"),
        ([0, "a"], "arrays used as indices must be of integer"),
    ],
)
def test_a_key_that_does_not_fit_is_an_error(key, text):
    x = Tensor(np.zeros((3, 4)))
    with pytest.raises(IndexError, match=rf"getitem: .*{text}.* \(called with \(3, 4\)\)"):
        x[key]
    with pytest.raises(IndexError, match=rf"x\[i\] = v: .*{text}.* \(this tensor has shape \(3, 4\)\)"):
        x[key] = 0.0


def test_a_list_that_is_no_array_and_ends_of_slices_that_are_no_integers_are_errors():
    x = Tensor([1.0, 2.0])
    with pytest.raises(IndexError, match=r"\[0, \[1\]\] in an index is no array of integers or of booleans: "):
        x[[0, [1]]]
    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        x[1.0:]


def test_a_single_element_is_a_view_like_any_other():
    x = mg.Tensor([1.0, 2.0, 3.0])
    x[0][...] = 9.0
    assert x.tolist() == [9, 2, 3]


@pytest.mark.parametrize("take", ["gather", "getitem"])
def test_gradients_of_many_float16_duplicates_are_added_up_in_float32(take):
    """In float16 2048 + 1 is 2048."""
    x, places = leaf([1.0, 2.0]).half().detach().requires_grad_(), mg.zeros(3000, dtype=np.int64)
    y = x.gather(0, places) if take == "gather" else x[places]
    (first,) = mg.grad((y * y * 0.5).sum(), [x], create_graph=True)
    assert (first.dtype, first.tolist()) == (np.float16, [3000, 0])
    (second,) = mg.grad(first.sum(), [x])
    assert (second.dtype, second.tolist()) == (np.float16, [3000, 0])


def test_many_float16_duplicates_are_scattered_in_float32():
    ones = mg.ones(3000, dtype="float16")
    assert mg.zeros(2, dtype="float16").scatter_add(0, mg.zeros(3000, dtype=np.int64), ones).tolist() == [3000, 0]
