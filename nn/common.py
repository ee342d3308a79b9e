"""What several functions of nn share: the arrays of Tensors, dtypes, their checks, and the masks of dropout."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigrad import Tensor, ops
from minigrad.backend import device_of, is_floating, to_device
from minigrad.promotion import result_type
from minigrad.random import next_generator
from minigrad.scalars import number


def array_of(x: Any) -> Any:
    """The array of a Tensor; an array itself."""
    return x.data if isinstance(x, Tensor) else x


def as_dtype(x: Any, dtype: Any) -> Any:
    """x in this dtype, itself if it has it already; None for None."""
    return x if x is None or x.dtype == dtype else ops.astype(x, dtype=dtype)


def floating_pair(name: str, x: Any, y: Any) -> tuple[Any, Any, np.dtype]:
    """Both in their common dtype, float32 for float16, and that dtype itself, which the result shall have.

    Raises TypeError for what is no tensor, or if neither is floating.
    """
    for value in (x, y):
        if not hasattr(value, "dtype"):
            raise TypeError(f"{name} takes tensors, got {type(value).__name__}: make one of it with mg.Tensor(...)")
    dtype = result_type([x, y])
    check_floating(f"{name}: one of its tensors", dtype)
    wide = np.dtype(np.float32) if dtype == np.float16 else dtype
    return as_dtype(x, wide), as_dtype(y, wide), dtype


def as_integers(name: str, values: Any) -> Any:
    """The values, of which lists and numbers become arrays. Raises TypeError that names what is not of integers."""
    values = values if hasattr(values, "dtype") else np.asarray(values)
    if values.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, got {values.dtype}")
    return values


def check_floating(name: str, dtype: np.dtype) -> None:
    """Raises TypeError that names what is not floating."""
    if not is_floating(dtype):
        raise TypeError(f"{name} must be floating, got {dtype}; write .float()")


def probability(name: str, p: Any) -> float:
    """p as a Python number. TypeError that names what is no number, ValueError for one outside 0 ... 1, or NaN."""
    p = number(name, p)
    if not 0 <= p <= 1:
        raise ValueError(f"{name} is a probability, from 0 to 1, got {p}")
    return p


def dropout_mask(x: Any, shape: tuple[int, ...], p: float) -> Any:
    """0 with probability p, else 1 / (1 - p): of this shape, in x's dtype and on x's device, a Tensor if x is one.

    As a Tensor it is not copied by the operation that multiplies by it: nobody else has this array.
    """
    kept = (next_generator().random(shape, np.float32) >= p).astype(x.dtype)
    kept *= 1.0 / (1.0 - p) if p < 1 else 0.0
    kept = to_device(kept, device_of(array_of(x)))
    return Tensor._of(kept) if isinstance(x, Tensor) else kept
