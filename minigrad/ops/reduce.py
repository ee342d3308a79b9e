"""Operations that make one element of many: sums, means, extremes. `axis` is an int, a tuple, or None for all."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigrad.backend import Array
from minigrad.operation import namespace, op
from minigrad.ops.elementwise import astype, isnan, where
from minigrad.ops.shape import broadcast_to, reshape

Axis = int | tuple[int, ...] | None


def kept_shape(shape: tuple[int, ...], axis: Axis) -> tuple[int, ...]:
    """The shape that a reduction with `keepdims=True` has."""
    axes = range(len(shape)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    reduced = {a % len(shape) for a in axes} if shape else set()
    return tuple(1 if a in reduced else n for a, n in enumerate(shape))


def count(shape: tuple[int, ...], axis: Axis) -> int:
    """How many elements a reduction makes one of."""
    return math.prod(n for n, kept in zip(shape, kept_shape(shape, axis), strict=True) if kept == 1)


@op(linear=True)
def sum(x: Any, *, axis: Axis = None, keepdims: bool = False) -> Any:
    """Σ x along `axis`; of float16 in float32, as in PyTorch."""
    shape, kept = x.shape, kept_shape(x.shape, axis)
    return _narrowed(_wide_sum(x, axis, keepdims), x), lambda g: broadcast_to(reshape(g, kept), shape)


@op(linear=True, floating=True)
def mean(x: Any, *, axis: Axis = None, keepdims: bool = False) -> Any:
    """Σ x / n along `axis`; NaN for n = 0."""
    shape, kept = x.shape, kept_shape(x.shape, axis)
    factor = 1.0 / (count(shape, axis) or math.nan)
    value = _narrowed(_wide_sum(x, axis, keepdims) * factor, x)
    return value, lambda g: broadcast_to(reshape(g * factor, kept), shape)


def _wide_sum(x: Array, axis: Axis, keepdims: bool) -> Array:
    return x.sum(axis=axis, keepdims=keepdims, dtype=np.float32 if x.dtype == np.float16 else None)


def _narrowed(total: Array, x: Array) -> Array:
    return total.astype(x.dtype) if x.dtype == np.float16 else total


def var(x: Any, *, axis: Axis = None, correction: int = 0, keepdims: bool = False) -> Any:
    """Σ (x - mean x)² / (n - correction) along `axis`; NaN or infinite for n <= correction, as in NumPy."""
    away = x - mean(x, axis=axis, keepdims=True)
    degrees = count(x.shape, axis) - correction
    return sum(away * away, axis=axis, keepdims=keepdims) * (1.0 / degrees if degrees > 0 else math.inf)


@op
def max(x: Any, *, axis: Axis = None, keepdims: bool = False) -> Any:
    """The largest along `axis`, NaN if one is; tied elements share the gradient equally."""
    y = namespace(x).max(x, axis=axis, keepdims=keepdims)
    return y, lambda g: _shared(g, x, y, axis)


@op
def min(x: Any, *, axis: Axis = None, keepdims: bool = False) -> Any:
    """The smallest along `axis`, NaN if one is; tied elements share the gradient equally."""
    y = namespace(x).min(x, axis=axis, keepdims=keepdims)
    return y, lambda g: _shared(g, x, y, axis)


def _shared(g: Any, x: Any, y: Any, axis: Axis) -> Any:
    """The gradient of an extreme y of x, in equal parts to the elements that are it."""
    kept = kept_shape(x.shape, axis)
    y = reshape(y, kept)
    best = (x == y) | isnan(x)  # a NaN is an extreme, though not equal to itself
    winners = sum(astype(best, dtype=np.float32), axis=axis, keepdims=True)
    return where(best, reshape(g, kept) / winners, 0.0)


@op
def argmax(x: Any, *, axis: int | None = None, keepdims: bool = False) -> Any:
    """The place of the first largest along `axis`, or in the flattened array."""
    return namespace(x).argmax(x, axis=axis, keepdims=keepdims), None


@op
def argmin(x: Any, *, axis: int | None = None, keepdims: bool = False) -> Any:
    """The place of the first smallest along `axis`, or in the flattened array."""
    return namespace(x).argmin(x, axis=axis, keepdims=keepdims), None


@op
def any(x: Any, *, axis: Axis = None, keepdims: bool = False) -> Any:
    """Whether an element along `axis` is not zero."""
    return namespace(x).any(x, axis=axis, keepdims=keepdims), None


@op
def all(x: Any, *, axis: Axis = None, keepdims: bool = False) -> Any:
    """Whether no element along `axis` is zero."""
    return namespace(x).all(x, axis=axis, keepdims=keepdims), None
