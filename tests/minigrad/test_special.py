"""erf against the C library's, element by element, and far out."""

import math

import numpy as np
import pytest

from minigrad import special

POINTS = np.concatenate([np.linspace(-7, 7, 4001), [0.46875, 4.0, 1e-300, 1e-8, -0.0], np.logspace(-12, 1, 200)])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_erf_is_good_to_the_precision_of_its_dtype(dtype):
    x = POINTS.astype(dtype)
    expected = np.array([math.erf(v) for v in x.astype(float)])
    found = special.erf(x)
    assert found.dtype == dtype
    error = np.abs(found.astype(float) - expected)
    assert np.all(error <= 4 * np.finfo(dtype).eps * np.abs(expected) + np.finfo(dtype).smallest_subnormal)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_erf_far_out_and_of_nan(dtype):
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        found = special.erf(np.array([-math.inf, -1e4, 0.0, -0.0, 1e4, math.inf, math.nan], dtype))
    assert found[:6].tolist() == [-1, -1, 0, 0, 1, 1]
    assert np.signbit(found[3])
    assert np.isnan(found[6])


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (2, 3)])
def test_erf_of_any_shape(shape):
    x = np.full(shape, 0.5)
    assert special.erf(x).shape == shape
    assert np.array_equal(x, np.full(shape, 0.5))
