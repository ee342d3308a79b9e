"""Functions that NumPy lacks."""

from __future__ import annotations

import importlib
import math

import numpy as np

from minigrad.backend import Array, array_module

# W. J. Cody, "Rational Chebyshev approximations for the error function", Math. Comp. 23 (1969): for |x| <= 0.46875
# erf x = x P(x²) / Q(x²); up to 4, erfc x = e^(-x²) P(x) / Q(x), which serves erf past 4 as well, erfc being below
# 2e-8 there; past 4, erfc x = e^(-x²) / x (1/√π - P(1/x²) / (x² Q(1/x²))). The highest power comes first.
_SMALL_P = (
    1.85777706184603153e-1,
    3.16112374387056560e0,
    1.13864154151050156e2,
    3.77485237685302021e2,
    3.20937758913846947e3,
)
_SMALL_Q = (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3)
_LARGE_P = (
    2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594e0, 6.61191906371416295e1, 2.98635138197400131e2,
    8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3, 1.23033935479799725e3,
)  # fmt: skip
_LARGE_Q = (
    1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
    3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3,
)  # fmt: skip
_FAR_P = (
    1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1,
    1.60837851487422766e-2, 6.58749161529837803e-4,
)  # fmt: skip
_FAR_Q = (
    1.0, 2.56852019228982242e0, 1.87295284992346725e0, 5.27905102951428412e-1, 6.05183413124413191e-2,
    2.33520497626869185e-3,
)  # fmt: skip
_ONE_OVER_SQRT_PI = 1.0 / math.sqrt(math.pi)


def erf(x: Array) -> Array:
    """The error function of a floating-point array, to the precision of its dtype."""
    if array_module(x) is not np:
        return importlib.import_module("cupyx.scipy.special").erf(x)
    if x.dtype == np.float16:  # whose range the polynomials leave
        return erf(x.astype(np.float32)).astype(x.dtype)
    size = np.minimum(np.abs(x), x.dtype.type(6.0))  # erf 6 = 1 in double precision
    square = size * size
    small = size * _polynomial(_SMALL_P, square) / _polynomial(_SMALL_Q, square)
    large = 1.0 - np.exp(-square) * _polynomial(_LARGE_P, size) / _polynomial(_LARGE_Q, size)
    return np.copysign(np.where(size <= 0.46875, small, large), x)


def erfc(x: Array) -> Array:
    """1 - erf x of a floating-point array, to the relative precision of its dtype for large x too."""
    library = array_module(x)
    if x.dtype == np.float16:  # whose range the polynomials leave
        return erfc(x.astype(np.float32)).astype(x.dtype)
    size = library.minimum(library.abs(x), x.dtype.type(28.0))  # erfc 28 = 0 in double precision
    near = _polynomial(_LARGE_P, size) / _polynomial(_LARGE_Q, size)
    distant = library.maximum(size, x.dtype.type(4.0))
    inverse = 1.0 / (distant * distant)
    far = (_ONE_OVER_SQRT_PI - inverse * _polynomial(_FAR_P, inverse) / _polynomial(_FAR_Q, inverse)) / distant
    # x² is rounded, which e^(-x²) magnifies; so x² = c² + (x - c)(x + c), where c has few digits and c² is exact.
    coarse = library.floor(size * 16.0) / 16.0
    exponential = library.exp(-coarse * coarse) * library.exp(-(size - coarse) * (size + coarse))
    tail = exponential * library.where(size <= 4.0, near, far)
    return library.where(library.abs(x) <= 0.46875, 1.0 - erf(x), library.where(x < 0, 2.0 - tail, tail))


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    value = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        value *= x
        value += coefficient
    return value
