"""Functions that NumPy lacks."""

from __future__ import annotations

import importlib

import numpy as np

from minigrad.backend import Array, array_module

# W. J. Cody, "Rational Chebyshev approximations for the error function", Math. Comp. 23 (1969): for |x| <= 0.46875
# erf x = x P(x²) / Q(x²); up to 4, erfc x = e^(-x²) P(x) / Q(x), which serves past 4 as well, erfc being below 2e-8
# there. The highest power comes first.
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


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    value = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        value *= x
        value += coefficient
    return value
