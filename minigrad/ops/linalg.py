"""Products of vectors and matrices, and diagonals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigrad.autocast import in_16_bits
from minigrad.bfloat import takes_bfloat16
from minigrad.dividing import CORES, divide, parts_at_most
from minigrad.dtypes import is_16_bit, is_bfloat16
from minigrad.operation import namespace, op
from minigrad.ops.elementwise import astype
from minigrad.ops.index import add_at
from minigrad.ops.reduce import sum
from minigrad.ops.shape import expand_dims, moveaxis, reshape, swapaxes
from minigrad.process import BLAS_TAKES_ONE_THREAD, BLAS_WAITS_BRIEFLY, multiply_by_blas
from minigrad.sums import sum_of_rows


@in_16_bits
@takes_bfloat16
@op
def matmul(x: Any, y: Any) -> Any:
    """x @ y of vectors, matrices and batches of matrices, by NumPy's rules; ∂x = g yᵀ, ∂y = xᵀ g."""
    if not (hasattr(x, "ndim") and hasattr(y, "ndim")):
        raise TypeError("matmul: a number has no axes; multiply by it with *")
    if x.ndim == 0 or y.ndim == 0 or x.shape[-1] != y.shape[-min(2, y.ndim)]:
        raise ValueError(
            f"matmul: shapes {x.shape} and {y.shape} do not fit; the last axis of the first must have the length of "
            "the second's last but one"
        )
    x_vector, y_vector = x.ndim == 1, y.ndim == 1
    y_matrix = y.ndim == 2

    def of_x(g: Any) -> Any:
        if y_vector:
            return expand_dims(g, -1) * y  # (..., n, 1) * (k,)
        g = expand_dims(g, -2) if x_vector else g  # (..., n, m)
        d_x = product(g, swapaxes(y, -1, -2))  # (..., n, k)
        return reshape(d_x, (*d_x.shape[:-2], d_x.shape[-1])) if x_vector else d_x

    def of_y(g: Any) -> Any:
        if x_vector:
            return g * x if y_vector else expand_dims(x, -1) * expand_dims(g, -2)  # (k, 1) * (..., 1, m)
        if y_vector:
            return times(swapaxes(as_rows(x), -1, -2), reshape(g, (math.prod(g.shape),)))
        if y_matrix:
            return times(swapaxes(as_rows(x), -1, -2), as_rows(g))
        return times(swapaxes(x, -1, -2), g)

    return product(x, y), (of_x, of_y)


@in_16_bits
@takes_bfloat16
@op(optional=["bias"])
def linear(x: Any, weight: Any, bias: Any) -> Any:
    """x Wᵀ + b for rows x (..., in), weight (out, in) and bias (out,) or None."""
    if weight.ndim != 2 or x.ndim == 0 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"linear: x of shape {x.shape} and weight of shape {weight.shape} do not fit; "
            "x is (..., in), weight (out, in)"
        )
    if bias is not None and bias.shape != weight.shape[:1] and bias.shape not in ((1,), ()):
        raise ValueError(
            f"linear: bias of shape {bias.shape} does not fit weight of shape {weight.shape}, which is (out, in); "
            "it must be (out,)"
        )
    return affine(x, weight, bias), (
        lambda g: product(g, weight),
        lambda g: times(as_rows(g).T, as_rows(x)),
        lambda g: sum_of_all_rows(as_rows(g)),
    )


def affine(x: Any, weight: Any, bias: Any) -> Any:
    """The value of `linear`, of arrays that fit."""
    rows = as_rows(x)
    alike = bias is None or (type(bias) is np.ndarray and bias.dtype is x.dtype)
    if not alike or not _are_for_blas(rows, weight):
        value = product(x, swapaxes(weight, 0, 1))
        return value if bias is None else value + bias
    value = multiplied(rows, weight.T, bias)
    return value if rows is x else value.reshape(*x.shape[:-1], value.shape[-1])


def sum_of_all_rows(rows: Any) -> Any:
    """(n, m) to (m,): `sum_of_rows` where BLAS can, else the operation."""
    return sum_of_rows(rows) if type(rows) is np.ndarray and not is_16_bit(rows.dtype) else sum(rows, axis=0)


def outer(x: Any, y: Any) -> Any:
    """x_i y_j of the elements of x and y in order: the matrix x yᵀ."""
    return reshape(x, (math.prod(x.shape), 1)) * reshape(y, (1, math.prod(y.shape)))


@takes_bfloat16
@op(linear=True)
def diagonal(x: Any, *, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The elements x[i, i + offset] of two axes, along a new last axis; a view, as in NumPy."""
    if x.ndim < 2:
        raise IndexError(f"diagonal: takes tensors of two dimensions or more, got shape {x.shape}")
    value = namespace(x).diagonal(x, offset, axis1, axis2)
    shape = namespace(x).moveaxis(x, (axis1, axis2), (-2, -1)).shape
    rows = np.arange(value.shape[-1]) + max(-offset, 0)
    key = (..., rows, rows + offset)
    return value, lambda g: moveaxis(add_at(g, key=key, shape=shape), (-2, -1), (axis1, axis2))


def trace(x: Any, *, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The sum of a diagonal."""
    return sum(diagonal(x, offset=offset, axis1=axis1, axis2=axis2), axis=-1)


def product(x: Any, y: Any) -> Any:
    """x @ y; a batch times one matrix as a single product of matrices."""
    if y.ndim == 2 and x.ndim > 2:
        return times(as_rows(x), y).reshape(*x.shape[:-1], y.shape[-1])
    return times(x, y)


def times(x: Any, y: Any) -> Any:
    """x @ y. NumPy's 16 bits go by way of float32: it would add them up without BLAS, 40 times slower, bfloat16 in
    bfloat16. So do batches of bfloat16 on a GPU, which CuPy 14 has no product for.
    """
    if _are_for_blas(x, y):
        if x.ndim == 2:
            return multiplied(x, y)
        return _multiplied_in_parts(x, y, None, NS_OF_A_PRODUCT * x.itemsize * x.size * y.shape[-1])
    if (type(x) is np.ndarray and is_16_bit(x.dtype)) or (is_bfloat16(x.dtype) and max(x.ndim, y.ndim) > 2):
        return astype(times(astype(x, dtype=np.float32), astype(y, dtype=np.float32)), dtype=x.dtype)
    return x @ y


def _are_for_blas(x: Any, y: Any) -> bool:
    """Whether they are two matrices of NumPy's, or as many, of one dtype that BLAS multiplies."""
    alike = type(x) is type(y) is np.ndarray and x.dtype is y.dtype and x.ndim == y.ndim and x.dtype.char in "fd"
    return alike and (x.ndim == 2 or (x.ndim > 2 and x.shape[:-2] == y.shape[:-2]))


# For each byte of the numbers: 50 billion multiplications of float32 a second and core. BLAS's own threads do it all.
NS_OF_A_PRODUCT = 0.005 if BLAS_TAKES_ONE_THREAD else 0.0
# Products of fewer nanoseconds are divided by BLAS's own threads, where these do not spin for long: handing work over
# takes them 2 µs, ours 50. Each has so many nanoseconds to do at least.
BLAS_DIVIDES_BELOW = 1.2e6 if BLAS_WAITS_BRIEFLY else 0.0
NS_OF_A_BLAS_THREAD = 20e3
LEAST_DIVIDED = 2 * NS_OF_A_BLAS_THREAD  # nanoseconds: a product of fewer is never divided
SMALL_RESULT = 1 << 15  # numbers: `dot` begins in a third of the time of `matmul`, but writes zeros first


def multiplied(x: np.ndarray, y: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    """x @ y + bias of (n, k), (k, m) and (m,) or None, of a dtype that BLAS multiplies; if large, in parts at once."""
    rows, columns = x.shape[0], y.shape[1]
    nanoseconds = NS_OF_A_PRODUCT * x.itemsize * x.size * columns
    if nanoseconds < LEAST_DIVIDED and rows * columns <= SMALL_RESULT and x.size > 1 and y.size > 1:
        value = x.dot(y)  # of a single number it would make 0 · inf = 0
    elif (threads := _threads_of_blas(nanoseconds)) > 1:
        value = np.empty((rows, columns), x.dtype)
        multiply_by_blas(x, y, value, threads)
    else:
        return _multiplied_in_parts(x, y, bias, nanoseconds)
    if bias is not None:
        value += bias
    return value


def _threads_of_blas(nanoseconds: float) -> int:
    """How many threads of BLAS are to divide a product that takes so long in one; 1 for none."""
    if not LEAST_DIVIDED <= nanoseconds < BLAS_DIVIDES_BELOW:
        return 1
    return min(parts_at_most(), CORES, int(nanoseconds / NS_OF_A_BLAS_THREAD))


def _multiplied_in_parts(x: np.ndarray, y: np.ndarray, bias: np.ndarray | None, nanoseconds: float) -> np.ndarray:
    """x @ y + bias of (..., n, k) and (..., k, m), as many matrices, and (m,) or None: rows, or matrices, in parts at
    once if it takes so many nanoseconds that this is worth it."""
    value = np.empty((*x.shape[:-1], y.shape[-1]), x.dtype)

    def work(start: int, stop: int) -> None:
        part = np.matmul(x[start:stop], y if y.ndim == 2 else y[start:stop], out=value[start:stop])
        if bias is not None:
            part += bias

    divide(x, x.shape[0], nanoseconds / max(1, x.shape[0]), work)
    return value


def as_rows(x: Any) -> Any:
    """All axes but the last as one."""
    return x if x.ndim == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
