"""Operations that take elements by place, and their opposites, which put or add them there."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigrad.backend import Array, array_module, is_array
from minigrad.operation import namespace, op
from minigrad.ops.shape import reshape
from minigrad.tensor import Tensor


def plain_key(key: Any) -> Any:
    """An index as arrays take it: Tensors within it as arrays; arrays are copied, so that they stay as they were."""
    return tuple(_plain_part(part) for part in key) if isinstance(key, tuple) else _plain_part(key)


def _plain_part(part: Any) -> Any:
    if isinstance(part, Tensor):
        return part.data.copy()
    if is_array(part):
        return part.copy()
    if isinstance(part, (list, tuple)):
        return np.array(part, dtype=None if part else np.int64)  # NumPy takes an empty list for floats
    return part


@op(linear=True)
def getitem(x: Any, *, key: Any) -> Any:
    """x[key], by NumPy's rules; an element taken twice gets both gradients."""
    shape = x.shape
    value = x[key]
    if isinstance(value, np.generic):  # NumPy copies a single element out; with an ellipsis it is a view like any other
        value = x[(*key, ...) if isinstance(key, tuple) else (key, ...)]
    return value, lambda g: scatter_add(g, key=key, shape=shape)


@op(linear=True)
def scatter_add(x: Any, *, key: Any, shape: tuple[int, ...]) -> Any:
    """Zeros of `shape` with x added at `key`: the opposite of getitem."""
    return _scattered(x, key, shape), lambda g: g[key]


def _scattered(x: Array, key: Any, shape: tuple[int, ...]) -> Array:
    library = array_module(x)
    value = library.zeros(shape, x.dtype)
    parts = key if isinstance(key, tuple) else (key,)
    if any(is_array(part) and part.dtype != np.bool_ for part in parts):
        library.add.at(value, key, x)
    else:  # slices, integers and masks name each element once
        value[key] = x
    return value


@op(linear=True, exempt=["indices"])
def take_along_axis(x: Any, indices: Any, *, axis: int) -> Any:
    """Along `axis` the elements that `indices` (integers, of x's shape but for that axis) name."""
    shape = x.shape
    value = namespace(x).take_along_axis(x, indices, axis)
    return value, (lambda g: add_along_axis(g, indices, axis=axis, shape=shape), None)


@op(linear=True, exempt=["indices"])
def add_along_axis(x: Any, indices: Any, *, axis: int, shape: tuple[int, ...]) -> Any:
    """Zeros of `shape` with x added at `indices` along `axis`: the opposite of take_along_axis."""
    library = array_module(x)
    places = list(library.ix_(*[library.arange(n) for n in indices.shape]))
    places[axis] = indices
    return _scattered(x, tuple(places), shape), (lambda g: take_along_axis(g, indices, axis=axis), None)


def pick(x: Any, indices: Any, axis: int, keepdims: bool) -> tuple[Any, Any]:
    """(values, indices): the one element along `axis` that each of `indices` names, and the indices themselves."""
    if x.ndim == 0:  # its only element, whichever axis is asked for
        return reshape(x, ()), indices
    places = namespace(indices).expand_dims(indices, axis)
    values = take_along_axis(x, places, axis=axis)
    return (values, places) if keepdims else (namespace(values).squeeze(values, axis), indices)
