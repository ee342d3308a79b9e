"""x[key] by NumPy's rules, and its opposites, which add or put values at a key. All else that takes by place is in
`minigrad.ops.gather`."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from minigrad.backend import array_module, is_array, on_device_of, refuse_places_outside
from minigrad.bfloat import takes_bfloat16
from minigrad.dtypes import is_16_bit
from minigrad.operation import op
from minigrad.ops.elementwise import constant, where
from minigrad.tensor import Tensor


def plain_key(key: Any) -> Any:
    """A key as arrays take it, without Tensors; arrays in it are copied, so that they stay as they were."""
    return tuple([_plain_part(part) for part in key]) if isinstance(key, tuple) else _plain_part(key)


def _plain_part(part: Any) -> Any:
    if part is None or part is Ellipsis or type(part) is int:
        return part
    if isinstance(part, slice):
        return slice(*[None if end is None else operator.index(end) for end in (part.start, part.stop, part.step)])
    if isinstance(part, Tensor):
        part = constant(part).data  # read by an operation, which watchers are told of
    if is_array(part):
        with on_device_of(part):
            return part.copy()
    if isinstance(part, (list, tuple)):
        return _array_of(part)
    return part


def _array_of(part: Any) -> np.ndarray:
    """The array that a list within a key stands for. IndexError if it is none."""
    try:
        return np.array(part, dtype=None if len(part) else np.int64)  # NumPy takes an empty list for floats
    except (TypeError, ValueError) as error:
        raise IndexError(f"{part} in an index is no array of integers or of booleans: {error}") from error


@takes_bfloat16
@op(linear=True)
def getitem(x: Any, *, key: Any) -> Any:
    """x[key], by NumPy's rules; an element taken twice gets both gradients."""
    shape = x.shape
    refuse_places_outside(x, key)
    value = x[key]
    if isinstance(value, np.generic):  # NumPy copies a single element out; with an ellipsis it is a view like any other
        value = x[(*key, ...) if isinstance(key, tuple) else (key, ...)]
    return value, lambda g: add_at(g, key=key, shape=shape)


@takes_bfloat16
@op(linear=True)
def add_at(x: Any, *, key: Any, shape: tuple[int, ...]) -> Any:
    """Zeros of `shape` with x added at `key`, as by `np.add.at`: the opposite of getitem. Of 16 bits in float32.

    Integers are added up in uint64, one of the few dtypes that CuPy's `at` has, modulo 2^64 as in their own.
    """
    library = array_module(x)
    parts = key if isinstance(key, tuple) else (key,)
    if any(is_array(part) and part.dtype != np.bool_ for part in parts):
        wide = np.float32 if is_16_bit(x.dtype) else x.dtype if x.dtype.kind == "f" else np.uint64
        total = library.zeros(shape, wide)
        library.add.at(total, key, x.astype(wide, copy=False))
        value = total.astype(x.dtype, copy=False)
    else:  # slices, integers and masks name each element once
        value = library.zeros(shape, x.dtype)
        value[key] = x
    return value, lambda g: getitem(g, key=key)


@takes_bfloat16
@op(linear=True, exempt=["values"])
def put_at(x: Any, values: Any, *, key: Any) -> Any:
    """x with `values`, broadcast and cast to its dtype, at `key`; each element's gradient goes to what stands there.

    Where the key names an element twice, the last value stays.
    """
    refuse_places_outside(x, key)
    library = array_module(x)
    last = library.zeros(x.shape, np.uint64)  # which value stands where, from 1; CuPy's `at` has no int64
    shape = last[key].shape
    numbers = library.arange(1, math.prod(shape) + 1, dtype=np.uint64).reshape(shape)
    library.maximum.at(last, key, numbers)
    put = last > 0
    value = x.copy()
    value[put] = library.broadcast_to(library.asarray(values), shape).reshape(-1)[last[put] - 1]
    return value, (
        lambda g: where(put, 0.0, g),
        lambda g: where(last[key] == numbers, getitem(g, key=key), 0.0),
    )
