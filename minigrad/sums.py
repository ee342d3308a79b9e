"""Sums along the axes of matrices, by the fastest ways that the array libraries have: products with ones, dot products.

They know arrays only, and are for operations that are fused; `minigrad.ops.reduce` has the operations.
"""

from __future__ import annotations

import functools

import numpy as np

from minigrad.backend import Array, array_module

LONGEST_KEPT = 1 << 14  # of longer ones, making them is a small part of the work


def ones_like_row(x: Array, length: int) -> Array:
    """(length,) ones of x's dtype, only to be read: of NumPy's the same array again."""
    return _row(x, length, 1)


def zeros_like_row(x: Array, length: int) -> Array:
    """As `ones_like_row`, of zeros."""
    return _row(x, length, 0)


def _row(x: Array, length: int, number: int) -> Array:
    if type(x) is not np.ndarray:
        return array_module(x).full(length, number, x.dtype)
    return _kept_row(length, x.dtype, number) if length <= LONGEST_KEPT else np.full(length, number, x.dtype)


@functools.lru_cache(maxsize=128)
def _kept_row(length: int, dtype: np.dtype, number: int) -> np.ndarray:
    row = np.full(length, number, dtype)
    row.flags.writeable = False
    return row


def row_means(x: Array) -> Array:
    """(m, n) to (m,); of no numbers 0."""
    n = x.shape[1]
    means = x.dot(ones_like_row(x, n))
    means /= n or 1
    return means


def row_dots(x: Array, y: Array) -> Array:
    """The dot products of rows, (..., n) and (..., n) to (...)."""
    return np.vecdot(x, y) if type(x) is np.ndarray else array_module(x).einsum("...n,...n->...", x, y)


def sum_of_rows(x: Array) -> Array:
    """(..., n, m) to (..., m)."""
    ones = ones_like_row(x, x.shape[-2])
    return ones.dot(x) if x.ndim == 2 else ones @ x  # of matrices the same, and `dot` begins sooner
