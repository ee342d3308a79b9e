"""What several functions of nn share: the arrays of Tensors, dtypes, checks of options, shared heads, dropout masks."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from minigrad import Tensor, ops
from minigrad.backend import device_of, is_array, on_device_of, to_device
from minigrad.dtypes import is_16_bit, is_floating
from minigrad.promotion import result_type
from minigrad.random import next_generator
from minigrad.scalars import in_short, number

Function = TypeVar("Function", bound=Callable[..., Any])

FLOAT32 = np.dtype(np.float32)


def array_of(x: Any) -> Any:
    """The array of a Tensor; an array itself."""
    return x.data if isinstance(x, Tensor) else x


def on_its_device(function: Function) -> Function:
    """Decorates a function that works on arrays beside operations: with tensors on a GPU it runs on that GPU."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if args and type(array_of(args[0])) is np.ndarray:  # the usual case
            return function(*args, **kwargs)
        arrays = [array_of(x) for x in (*args, *kwargs.values())]
        with on_device_of(next((x for x in arrays if type(x) is not np.ndarray and is_array(x)), None)):
            return function(*args, **kwargs)

    return call  # type: ignore[return-value]


def as_dtype(x: Any, dtype: Any) -> Any:
    """x in this dtype, itself if it has it already; None for None."""
    return x if x is None or x.dtype == dtype else ops.astype(x, dtype=dtype)


def wide(dtype: np.dtype) -> np.dtype:
    """What numbers of this dtype are computed in: float32 for 16 bits, else itself."""
    return FLOAT32 if is_16_bit(dtype) else dtype


def floating_pair(name: str, x: Any, y: Any) -> tuple[Any, Any, np.dtype]:
    """Both in their common dtype, float32 for 16 bits, and that dtype itself, which the result shall have.

    Raises TypeError for what is no tensor, or if neither is floating.
    """
    for value in (x, y):
        if not hasattr(value, "dtype"):
            raise TypeError(f"{name} takes tensors, got {type(value).__name__}: make one of it with mg.Tensor(...)")
    dtype = result_type([x, y])
    check_floating(f"{name}: one of its tensors", dtype)
    return as_dtype(x, wide(dtype)), as_dtype(y, wide(dtype)), dtype


def as_integers(name: str, values: Any, like: Any) -> Any:
    """The values, of which lists and numbers become arrays on the device of `like`.

    Raises TypeError that names what is not of integers.
    """
    array = values if hasattr(values, "dtype") else np.asarray(values)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, got {array.dtype}")
    return array if array is values else to_device(array, device_of(array_of(like)))


def check_floating(name: str, dtype: np.dtype) -> None:
    """Raises TypeError that names what is not floating."""
    if not is_floating(dtype):
        raise TypeError(f"{name} must be floating, got {dtype}; write .float()")


def lengths(normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    """The lengths of the last axes; one integer is the length of the last one."""
    given = normalized_shape if isinstance(normalized_shape, Sequence) else (normalized_shape,)
    return tuple(map(operator.index, given))


def probability(name: str, p: Any) -> float:
    """p as a Python float. TypeError that names what is no number, ValueError for one outside 0 ... 1, or NaN."""
    p = p if type(p) is float else number(name, p)
    if not 0 <= p <= 1:
        raise ValueError(f"{name} is a probability, from 0 to 1, got {in_short(p)}")
    return float(p)


def repeated_heads(x: Any, heads: int) -> Any:
    """x (..., H_kv, N, d) with each head as often, side by side, as gives so many heads."""
    *batch, own, length, width = x.shape
    if own == heads:
        return x
    times = heads // own
    repeated = ops.broadcast_to(ops.expand_dims(x, -3), (*batch, own, times, length, width))
    return ops.reshape(repeated, (*batch, heads, length, width))


def dropout_mask(x: Any, shape: tuple[int, ...], p: float) -> Any:
    """0 with probability p, else 1 / (1 - p): of this shape, in x's dtype and on x's device, a Tensor if x is one.

    As a Tensor it is not copied by the operation that multiplies by it: nobody else has this array. It is drawn on the
    CPU, for a GPU too: where that takes time, kernels draw masks of their own (`kernels.dropout`).
    """
    kept = (next_generator().random(shape, np.float32) >= p).astype(x.dtype)
    kept *= 1.0 / (1.0 - p) if p < 1 else 0.0
    kept = to_device(kept, device_of(array_of(x)))
    return Tensor._of(kept) if isinstance(x, Tensor) else kept
