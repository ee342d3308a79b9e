"""Operations that make one element of many: sums, means, extremes. `axis` is an int, a tuple, or None for all."""

from __future__ import annotations

import math
from typing import Any

from minigrad.operation import namespace, op
from minigrad.ops.elementwise import astype, isnan, where
from minigrad.ops.shape import broadcast_to, reshape

Axis = int | tuple[int, ...] | None


def kept_shape(shape: tuple[int, ...], axis: Axis) -> tuple[int, ...]:
    """The shape that a reduction with `keepdims=True` has."""
    axes = range(len(shape)) if axis is None else (axis,) if isinstance(axis, int) else axis
    reduced = {a % len(shape) for a in axes} if shape else set()
    return tuple(1 if a in reduced else n for a, n in enumerate(shape))


@op(linear=True)
def sum(x: Any, *, axis: Axis = None, keepdims: bool = False) -> Any:
    """Σ x along `axis`."""
    shape, kept = x.shape, kept_shape(x.shape, axis)
    return namespace(x).sum(x, axis=axis, keepdims=keepdims), lambda g: broadcast_to(reshape(g, kept), shape)


@op(linear=True, floating=True)
def mean(x: Any, *, axis: Axis = None, keepdims: bool = False) -> Any:
    """Σ x / n along `axis`; NaN for n = 0."""
    shape, kept = x.shape, kept_shape(x.shape, axis)
    total = namespace(x).sum(x, axis=axis, keepdims=keepdims)
    count = math.prod(n for n, k in zip(shape, kept, strict=True) if k == 1)
    factor = 1.0 / count if count else math.nan
    return total * factor, lambda g: broadcast_to(reshape(g * factor, kept), shape)


def var(x: Any, *, axis: Axis = None, correction: int = 0, keepdims: bool = False) -> Any:
    """Σ (x - mean x)² / (n - correction) along `axis`; NaN or infinite for n <= correction, as in NumPy."""
    away = x - mean(x, axis=axis, keepdims=True)
    squares = away * away
    kept = kept_shape(x.shape, axis)
    count = math.prod(n for n, k in zip(x.shape, kept, strict=True) if k == 1)
    degrees = count - correction
    total = sum(squares, axis=axis, keepdims=keepdims)
    return total * (1.0 / degrees if degrees > 0 else math.inf)


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
    count = sum(astype(best, dtype=g.dtype), axis=axis, keepdims=True)
    return where(best, reshape(g, kept) / count, 0.0)


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
