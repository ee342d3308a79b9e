"""Sums along the axes of matrices, against float64; and the vectors of ones that they are products with."""

import warnings

import numpy as np
import pytest

from minigrad import sums
from minigrad.sums import LONGEST_KEPT, ones_like_row, row_dots, row_means, sum_of_rows
from tests.cupy_standin import installed
from tests.support import assert_close

DTYPES = [("float16", 4e-3), ("float32", 1e-6), ("float64", 1e-14)]
SHAPES = [(3, 5), (1, 7), (6, 1), (40, 300), (0, 5), (3, 0), (0, 0)]


def draw(*shape):
    return np.random.default_rng(0).standard_normal(shape)


@pytest.fixture(autouse=True)
def warnings_are_errors():
    """None divides by 0."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


# ---- sums ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_sums_of_matrices(shape, dtype, tolerance):
    x, y = draw(2, *shape).astype(dtype)
    wide_x, wide_y = x.astype(np.float64), y.astype(np.float64)
    means = wide_x.sum(1) / max(1, shape[1])
    for found, expected in (
        (row_means(x), means),
        (row_dots(x, y), (wide_x * wide_y).sum(1)),
        (sum_of_rows(x), wide_x.sum(0)),
    ):
        assert found.dtype == dtype
        assert_close(found, expected, tolerance, least=1.0)


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 4, 3, 5), (2, 0, 5), (0, 3, 5), (2, 3, 0)])
def test_sums_of_many_matrices(shape):
    x, y = draw(2, *shape).astype(np.float32)
    assert_close(row_dots(x, y), (x.astype(np.float64) * y).sum(-1), 1e-6)
    assert_close(sum_of_rows(x), x.astype(np.float64).sum(-2), 1e-6)


def test_sums_of_matrices_of_any_strides():
    x = draw(8, 6)
    for part in (x.T, x[::2], x[:, ::-2], np.broadcast_to(x[0], (3, 6)), np.broadcast_to(x[:, :1], (8, 4))):
        assert_close(row_means(part), part.mean(1), 1e-14)
        assert_close(row_dots(part, part), (part**2).sum(1), 1e-14)
        assert_close(sum_of_rows(part), part.sum(0), 1e-14)


def test_the_mean_of_equal_numbers_is_the_number():
    """If their sum is exact: so they are at no distance from it. A product with 1 / 61 would be rounded."""
    assert row_means(np.full((4, 61), 3.0, np.float32)).tolist() == [3.0] * 4


def test_on_a_gpu():
    with installed() as cupy:
        x, y = (cupy.asarray(values) for values in draw(2, 3, 5))
        for found, expected in (
            (ones_like_row(x, 4), np.ones(4)),
            (row_means(x), cupy.asnumpy(x).mean(1)),
            (row_dots(x, y), (cupy.asnumpy(x) * cupy.asnumpy(y)).sum(1)),
            (sum_of_rows(x), cupy.asnumpy(x).sum(0)),
        ):
            assert isinstance(found, cupy.ndarray) and found.dtype == np.float64
            assert_close(cupy.asnumpy(found), expected, 1e-14)


# ---- ones ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [dtype for dtype, _ in DTYPES])
@pytest.mark.parametrize("length", [0, 1, 5, LONGEST_KEPT - 1, LONGEST_KEPT, LONGEST_KEPT + 1])
def test_ones_of_the_arrays_dtype(length, dtype):
    ones = ones_like_row(np.zeros(2, dtype), length)
    assert ones.shape == (length,) and ones.dtype == dtype and (ones == 1).all()


def test_ones_that_are_kept_are_the_same_again_and_cannot_be_written():
    for length in (0, 7, LONGEST_KEPT):
        x = np.zeros(3, np.float32)
        ones = ones_like_row(x, length)
        assert ones_like_row(x, length) is ones
        assert ones_like_row(x.astype(np.float64), length) is not ones
        with pytest.raises(ValueError, match="read-only"):
            ones[...] = 2.0


def test_long_ones_are_not_kept():
    x = np.zeros(3, np.float32)
    ones = ones_like_row(x, LONGEST_KEPT + 1)
    assert ones_like_row(x, LONGEST_KEPT + 1) is not ones


def test_not_more_than_so_many_are_kept():
    """Each number of rows has ones of its own."""
    for length in range(300):
        ones_like_row(np.zeros(1), length)
    assert sums._kept_row.cache_info().currsize <= 128
