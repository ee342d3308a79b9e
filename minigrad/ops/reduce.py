"""Operations that make one element of many: sums, products, norms, extremes. `axis`: an int, a tuple, None for all."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigrad.autocast import in_float32
from minigrad.backend import Array
from minigrad.dtypes import is_16_bit
from minigrad.operation import namespace, op
from minigrad.ops.cumulative import cumprod
from minigrad.ops.elementwise import abs, astype, constant, narrowed, sqrt, where, widened
from minigrad.ops.logic import isnan
from minigrad.ops.rounding import sign
from minigrad.ops.shape import broadcast_to, concatenate, reshape, transpose
from minigrad.scalars import number

Axis = int | tuple[int, ...] | None


def kept_shape(shape: tuple[int, ...], axis: Axis) -> tuple[int, ...]:
    """The shape that a reduction with `keepdims=True` has."""
    reduced = reduced_axes(shape, axis)
    return tuple(1 if a in reduced else n for a, n in enumerate(shape))


def reduced_axes(shape: tuple[int, ...], axis: Axis) -> set[int]:
    """The axes that a reduction makes go away, counted from the front."""
    axes = range(len(shape)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return {a % len(shape) for a in axes} if shape else set()


def count(shape: tuple[int, ...], axis: Axis) -> int:
    """How many elements a reduction makes one of."""
    return math.prod(n for n, kept in zip(shape, kept_shape(shape, axis), strict=True) if kept == 1)


@in_float32
@op(linear=True)
def sum(x: Any, *, axis: Axis = None, keepdims: bool = False) -> Any:
    """Σ x along `axis`; of 16 bits in float32, as in PyTorch."""
    shape, kept = x.shape, kept_shape(x.shape, axis)
    return narrowed(_wide_sum(x, axis, keepdims), x.dtype), lambda g: broadcast_to(reshape(g, kept), shape)


@in_float32
@op(linear=True, floating=True)
def mean(x: Any, *, axis: Axis = None, keepdims: bool = False) -> Any:
    """Σ x / n along `axis`; NaN for n = 0."""
    shape, kept = x.shape, kept_shape(x.shape, axis)
    factor = 1.0 / (count(shape, axis) or math.nan)
    value = narrowed(_wide_sum(x, axis, keepdims) * factor, x.dtype)
    return value, lambda g: broadcast_to(reshape(g * factor, kept), shape)


def _wide_sum(x: Array, axis: Axis, keepdims: bool) -> Array:
    return x.sum(axis=axis, keepdims=keepdims, dtype=np.float32 if is_16_bit(x.dtype) else None)


@in_float32
def var(x: Any, *, axis: Axis = None, correction: int = 0, keepdims: bool = False) -> Any:
    """Σ (x - mean x)² / (n - correction) along `axis`; NaN or infinite for n <= correction, as in NumPy.

    16 bits are reckoned in float32, as in PyTorch.
    """
    _check_axes("var", x, axis)
    return narrowed(_wide_var(x, axis, correction, keepdims), x.dtype)


def _wide_var(x: Any, axis: Axis, correction: int, keepdims: bool) -> Any:
    wide = widened(x)
    away = wide - mean(wide, axis=axis, keepdims=True)
    degrees = count(x.shape, axis) - correction
    return sum(away * away, axis=axis, keepdims=keepdims) * (1.0 / degrees if degrees > 0 else math.inf)


@in_float32
def std(x: Any, *, axis: Axis = None, correction: int = 0, keepdims: bool = False) -> Any:
    """√var along `axis`, as `var` takes its options; where it is 0 so is the gradient, as in PyTorch."""
    _check_axes("std", x, axis)
    return narrowed(_root(_wide_var(x, axis, correction, keepdims)), x.dtype)


def _check_axes(name: str, x: Any, axis: Axis) -> None:
    """IndexError for an axis that is not there: the operations that `name` is made of would speak of themselves."""
    for a in () if axis is None else axis if isinstance(axis, tuple) else (axis,):
        if not -x.ndim <= a < x.ndim:
            raise IndexError(f"{name}: axis {a} is out of bounds for the shape {x.shape}")


def _root(x: Any) -> Any:
    """√x, whose gradient is 0 where x = 0."""
    zero = x == 0
    return where(zero, 0.0, sqrt(where(zero, 1.0, x)))


@in_float32
@op
def prod(x: Any, *, axis: Axis = None, keepdims: bool = False) -> Any:
    """Π x along `axis`; ∂x_k = g Π_{j≠k} x_j, by no division, so exact with zeros among them."""
    shape, kept = x.shape, kept_shape(x.shape, axis)
    value = namespace(x).prod(x, axis=axis, keepdims=keepdims)

    def pullback(g: Any) -> Any:
        reduced = reduced_axes(shape, axis)
        order = sorted(range(len(shape)), key=lambda a: (a in reduced, a))  # the reduced axes last, then as one
        moved = tuple(shape[a] for a in order)
        rows = reshape(transpose(x, tuple(order)), (*moved[: len(shape) - len(reduced)], count(shape, tuple(reduced))))
        back = tuple(sorted(range(len(shape)), key=order.__getitem__))
        return reshape(g, kept) * transpose(reshape(_product_of_others(rows), moved), back)

    return value, pullback


def _product_of_others(x: Any) -> Any:
    """For each element the product of those before it and those behind it along the last axis."""
    one = constant(x[..., :1]) ** 0  # 1 whatever x is, in its dtype; none where there is no element
    before = cumprod(concatenate([one, x[..., :-1]], -1), axis=-1)
    behind = cumprod(concatenate([one, x[..., :0:-1]], -1), axis=-1)
    return before * behind[..., ::-1]


@in_float32
@op(floating=True)
def vector_norm(x: Any, *, ord: float = 2, axis: Axis = None, keepdims: bool = False) -> Any:
    """y = (Σ |x|^p)^(1/p) along `axis`, p = `ord`; ∂x = g sign(x) (|x| / y)^(p-1), 0 where x = 0.

    √(Σ x²) for 2, Σ |x| for 1, how many are not 0 for 0, max |x| for ∞, min |x| for -∞, whose gradient tied elements
    share equally. 16 bits are reckoned in float32, as in PyTorch.
    """
    ord = number("vector_norm: ord", ord)
    shape, kept = x.shape, kept_shape(x.shape, axis)
    wide = widened(x)
    size = abs(wide)
    if ord == 2:
        y = _root(sum(wide * wide, axis=axis, keepdims=keepdims))

        def pullback(g: Any) -> Any:
            length = reshape(y, kept)
            zero = length == 0
            return where(zero, 0.0, reshape(g, kept) / where(zero, 1.0, length)) * wide

    elif ord in (math.inf, -math.inf):
        y = (max if ord > 0 else min)(size, axis=axis, keepdims=keepdims)

        def pullback(g: Any) -> Any:
            return _shared(g, size, y, axis) * sign(wide)

    elif ord == 0:
        y = sum(astype(wide != 0, dtype=wide.dtype), axis=axis, keepdims=keepdims)

        def pullback(g: Any) -> Any:
            return broadcast_to(reshape(0.0 * g, kept), shape)

    else:
        p = float(ord)
        y = sum(size if p == 1 else size**p, axis=axis, keepdims=keepdims) ** (1 / p)

        def pullback(g: Any) -> Any:
            length = reshape(y, kept)
            still = (size == 0) | (length == 0)
            part = where(still, 1.0, size) / where(length == 0, 1.0, length)
            return reshape(g, kept) * where(still, 0.0, sign(wide) * part ** (p - 1))

    return narrowed(y, x.dtype), pullback


@op
def max(x: Any, *, axis: Axis = None, keepdims: bool = False) -> Any:
    """The largest along `axis`, NaN if one is; tied elements share the gradient equally."""
    _refuse_empty("max", x.shape, axis)
    y = namespace(x).max(x, axis=axis, keepdims=keepdims)
    return y, lambda g: _shared(g, x, y, axis)


@op
def min(x: Any, *, axis: Axis = None, keepdims: bool = False) -> Any:
    """The smallest along `axis`, NaN if one is; tied elements share the gradient equally."""
    _refuse_empty("min", x.shape, axis)
    y = namespace(x).min(x, axis=axis, keepdims=keepdims)
    return y, lambda g: _shared(g, x, y, axis)


def _refuse_empty(name: str, shape: tuple[int, ...], axis: Axis) -> None:
    """IndexError for an axis without elements, as in PyTorch: none of them is an extreme."""
    for a in () if axis is None else axis if isinstance(axis, tuple) else (axis,):
        if -len(shape) <= a < len(shape) and shape[a] == 0:
            raise IndexError(f"{name}: axis {a} of shape {shape} has no elements, so none is the {name}")


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
    _refuse_empty("argmax", x.shape, tuple(range(x.ndim)) if axis is None else axis)
    return namespace(x).argmax(x, axis=axis, keepdims=keepdims), None


@op
def argmin(x: Any, *, axis: int | None = None, keepdims: bool = False) -> Any:
    """The place of the first smallest along `axis`, or in the flattened array."""
    _refuse_empty("argmin", x.shape, tuple(range(x.ndim)) if axis is None else axis)
    return namespace(x).argmin(x, axis=axis, keepdims=keepdims), None


@op
def any(x: Any, *, axis: Axis = None, keepdims: bool = False) -> Any:
    """Whether an element along `axis` is not zero."""
    return namespace(x).any(x, axis=axis, keepdims=keepdims), None


@op
def all(x: Any, *, axis: Axis = None, keepdims: bool = False) -> Any:
    """Whether no element along `axis` is zero."""
    return namespace(x).all(x, axis=axis, keepdims=keepdims), None
