"""Softmax and its logarithm, fused, each beside the plain composition that it equals; and the log of a sum of e^x."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from minigrad.autocast import in_float32
from minigrad.backend import Array
from minigrad.dtypes import is_16_bit
from minigrad.operation import namespace, op
from minigrad.ops.elementwise import constant, exp, log, where
from minigrad.ops.logic import isfinite
from minigrad.ops.reduce import Axis, max, sum
from minigrad.ops.shape import squeeze


def plain_softmax(x: Any, *, axis: int) -> Any:
    """e^x / Σ e^x along `axis`; the row's maximum, a constant, keeps e^x within bounds."""
    e = exp(x - _row_maximum(x, axis))
    return e / sum(e, axis=axis, keepdims=True)


@in_float32
@op(reference=plain_softmax, floating=True)
def softmax(x: Any, *, axis: int) -> Any:
    """e^x / Σ e^x along `axis`; ∂x = y (g - Σ g y). A row of -inf alone is NaN."""
    library, axis = namespace(x), operator.index(axis)
    y = _below_maximum(x, axis)
    library.exp(y, out=y)
    y /= y.sum(axis=axis, keepdims=True)

    def pullback(g: Any) -> Any:
        product = g * y
        product -= y * product.sum(axis=axis, keepdims=True)
        return product

    return y.astype(x.dtype, copy=False), pullback


def plain_log_softmax(x: Any, *, axis: int) -> Any:
    """x - log Σ e^x along `axis`."""
    away = x - _row_maximum(x, axis)
    return away - log(sum(exp(away), axis=axis, keepdims=True))


@in_float32
@op(reference=plain_log_softmax, floating=True)
def log_softmax(x: Any, *, axis: int) -> Any:
    """x - log Σ e^x along `axis`; ∂x = g - e^y Σ g."""
    library, axis = namespace(x), operator.index(axis)
    y = _below_maximum(x, axis)
    y -= library.log(library.exp(y).sum(axis=axis, keepdims=True))

    def pullback(g: Any) -> Any:
        product = library.exp(y, out=library.empty_like(y))
        product *= g.sum(axis=axis, keepdims=True)
        return library.subtract(g, product, out=product)

    return y.astype(x.dtype, copy=False), pullback


@in_float32
def logsumexp(x: Any, *, axis: Axis, keepdims: bool = False) -> Any:
    """log Σ e^x along `axis`; ∂x = g e^(x - y).

    Of -inf alone, or of nothing, it is -inf, with gradient 0 (PyTorch: NaN).
    """
    peak = _row_maximum(x, axis)
    peak = where(isfinite(peak), peak, 0.0) if hasattr(peak, "shape") else peak  # inf - inf would be NaN
    total = sum(exp(x - peak), axis=axis, keepdims=True)
    nothing = total == 0
    y = where(nothing, -math.inf, log(where(nothing, 1.0, total))) + peak
    return y if keepdims else squeeze(y, axis=axis)


def _below_maximum(x: Array, axis: int) -> Array:
    """A new array of x less its maximum along `axis`; 16 bits become float32, in which alone long sums are exact."""
    library = namespace(x)
    y = library.empty_like(x, dtype=np.float32 if is_16_bit(x.dtype) else x.dtype)  # an array, though x be 0-d
    return library.subtract(x, _row_maximum(x, axis), out=y)


def _row_maximum(x: Any, axis: Axis) -> Any:
    """The maximum along `axis`, without gradient: softmax does not depend on what is subtracted. 0 if x is empty."""
    if 0 in x.shape:
        return 0.0
    return max(constant(x), axis=axis, keepdims=True)
