"""Which dtype an operation computes in: PyTorch's rules, over all pairs of dtypes, 0-d arrays and Python numbers."""

import itertools

import numpy as np
import pytest

import minigrad as mg
from minigrad import Tensor
from minigrad.promotion import promoted, result_type
from tests.support import leaf, torch_or_skip

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
NUMBERS = [True, 2, 2.5]
OPERANDS = [np.ones(shape, dtype) for dtype in DTYPES for shape in ((2,), ())] + NUMBERS


def name(operand):
    return f"{operand.dtype}{list(operand.shape)}" if isinstance(operand, np.ndarray) else type(operand).__name__


@pytest.mark.parametrize("first", OPERANDS, ids=name)
def test_pairs_give_the_dtype_that_pytorch_gives(first):
    torch = torch_or_skip()
    for second in OPERANDS:
        if not isinstance(first, np.ndarray) and not isinstance(second, np.ndarray):
            continue
        ours = [Tensor(x) if isinstance(x, np.ndarray) else x for x in (first, second)]
        theirs = [torch.tensor(x) if isinstance(x, np.ndarray) else x for x in (first, second)]
        expected = str(torch.result_type(*theirs)).removeprefix("torch.")
        assert str(result_type([first, second])) == expected, (name(first), name(second))
        assert str((ours[0] * ours[1]).dtype) == expected, (name(first), name(second))
        assert (ours[0] < ours[1]).dtype == np.bool_


def test_of_three_kinds_the_highest_category_decides():
    """Arrays with axes, then 0-d arrays, then numbers, in whatever order they stand."""
    kinds = itertools.product(DTYPES, DTYPES, NUMBERS)
    for with_axes, zero_d, number in kinds:
        operands = [np.ones(2, with_axes), np.ones((), zero_d), number]
        first = result_type(operands[:2])
        whole = result_type([np.ones(2 if first == with_axes else (), first), number])
        for order in itertools.permutations(operands):
            assert result_type(order) == whole


@pytest.mark.parametrize(
    ("operands", "expected"),
    [
        ([np.ones(2, np.float32), 2.5], np.float32),
        ([np.ones(2, np.float32), np.ones(2, np.int64)], np.float32),
        ([np.ones(2, np.float32), np.ones((), np.float64)], np.float32),
        ([np.ones(2, np.float32), np.ones(2, np.float64)], np.float64),
        ([np.ones(2, np.float16), 2.5], np.float16),
        ([np.ones(2, np.int64), 2.5], np.float32),
        ([np.ones(2, np.int32), 2], np.int32),
        ([np.ones(2, bool), 2], np.int64),
        ([np.ones(2, bool), True], bool),
    ],
)
def test_known_pairs_without_pytorch(operands, expected):
    assert result_type(operands) == expected
    assert result_type(operands[::-1]) == expected


# ---- nothing creeps to float64 ---------------------------------------------------------------------------------------

FLOAT32 = np.ones(3, np.float32)


@pytest.mark.parametrize(
    "other",
    [2, 2.0, True, np.float64(2), np.float32(2), np.int64(2), np.bool_(True), np.sqrt(64), 1 / np.sqrt(64),
     Tensor(np.arange(1, 4)), Tensor(np.array(2.0)), Tensor([1, 2, 3])],
    ids=repr,
)  # fmt: skip
def test_float32_stays_float32_beside_anything_but_float64_arrays(other):
    x = leaf(FLOAT32, np.float32)
    results = [
        x + other, other + x, x - other, other - x, x * other, other * x, x / other, other / x, x**other, other**x,
        mg.where(x > 0, x, other), mg.maximum(x, other),
    ]  # fmt: skip
    for y in results:
        assert y.dtype == np.float32
    for y in (x * other, other / x, x**other):
        (gradient,) = mg.grad(y.sum(), x)
        assert gradient.dtype == np.float32


def test_a_scalar_of_numpys_widens_nothing_but_counts_by_its_kind():
    integers, halves = Tensor([1, 2]), Tensor([1.0, 2.0], dtype=np.float16)
    two = np.float64(2)
    for y in (integers * two, two * integers, integers / two, mg.maximum(integers, two)):
        assert y.dtype == np.float32
    assert (integers * np.int32(2)).dtype == np.int64
    assert (halves * np.float64(2)).dtype == (halves + np.int64(2)).dtype == np.float16
    assert (Tensor([True]) * np.int32(2)).dtype == np.int64


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_functions_keep_the_dtype_and_gradients_have_it(dtype):
    x = leaf([[0.5, 1.5]], dtype)
    functions = [
        mg.exp, mg.log, mg.sqrt, mg.tanh, mg.sigmoid, mg.erf, mg.relu, mg.abs, mg.sum, mg.mean, mg.var, mg.max,
        lambda x: x.softmax(-1), lambda x: x.log_softmax(-1), lambda x: x @ x.T, lambda x: x**2, lambda x: 2**x,
        lambda x: x[0, :1], lambda x: mg.cat([x, x]), lambda x: x.masked_fill(x > 1, 0.0), lambda x: x.clone(),
        lambda x: mg.where(x > 1, x, 0.5), lambda x: x.max(dim=1)[0], lambda x: x.expand(3, 2),
    ]  # fmt: skip
    for function in functions:
        y = function(x)
        assert y.dtype == dtype
        (gradient,) = mg.grad(y.sum(), x, create_graph=True)
        assert gradient.dtype == dtype


def test_each_gradient_has_its_operands_dtype():
    x, y = leaf([1.0, 2.0], np.float32), leaf([3.0, 4.0], np.float64)
    z = x * y
    assert z.dtype == np.float64
    z.sum().backward()
    assert (x.grad.dtype, y.grad.dtype) == (np.float32, np.float64)


def test_conditions_and_indices_are_not_promoted():
    condition = Tensor([True, False])
    assert mg.where(condition, 1, 2).dtype == np.int64
    assert mg.where(condition, 1.0, 2).dtype == np.float32
    assert mg.where(condition, Tensor([1, 2]), 0.5).dtype == np.float32
    assert Tensor([1.0, 2.0], dtype=np.float16)[Tensor([0, 1])].dtype == np.float16


def test_division_of_integers_is_float32_and_other_arithmetic_stays_integer():
    x = Tensor([1, 2])
    assert (x / 2).dtype == (x / x).dtype == (1 / x).dtype == np.float32
    assert (x + 1).dtype == (x * x).dtype == (-x).dtype == (x**2).dtype == np.int64


def test_operands_are_handed_on_as_they_are_where_nothing_is_to_do():
    x, y = np.ones(2, np.float32), np.ones((), np.float32)
    assert all(a is b for a, b in zip(promoted([x, y, 2.0, None], floating=True), [x, y, 2.0, None], strict=True))
    indices = np.ones(2, np.int64)
    found = promoted([indices, x, np.ones(2, np.int32)], exempt=frozenset({0}))
    assert found[0] is indices
    assert found[2].dtype == np.float32
