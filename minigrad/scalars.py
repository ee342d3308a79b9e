"""Numbers beside tensors: what is taken for one where no gradient flows, and whether a dtype can hold it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigrad.dtypes import finfo, is_floating


def number(what: str, value: Any) -> Any:
    """The Python number that a number, a NumPy scalar, or a 0-d array or tensor is.

    `what` begins the message, such as "elu: alpha". Raises TypeError for all else, and for a tensor that requires grad:
    an option gets no gradient, and nothing would say so.
    """
    if type(value) in (float, int, bool):
        return value
    if getattr(value, "requires_grad", False):
        raise TypeError(
            f"{what} must be a number, got a tensor that requires grad, to which no gradient would flow; "
            "give its .item() if none is meant to"
        )
    held = value.item() if getattr(value, "ndim", None) == 0 else value
    if not isinstance(held, (int, float)):
        raise TypeError(f"{what} must be a number, got {type(value).__name__}")
    return held


def in_short(value: Any) -> str:
    """A number for a message; of an integer with hundreds of digits only how long it is."""
    return f"an integer of {value.bit_length()} bits" if type(value) is int and value.bit_length() > 128 else str(value)


def check_held(operation: str, value: float, dtype: np.dtype) -> None:
    """ValueError for a number beyond those of the dtype, which would become infinite or another number silently."""
    if dtype.kind == "b" or (is_floating(dtype) and isinstance(value, float) and not math.isfinite(value)):
        return
    limits: Any = finfo(dtype) if is_floating(dtype) else np.iinfo(dtype)
    low, high = limits.min, limits.max
    hint = "make the tensor floating first"
    if is_floating(dtype):
        low, high, hint = float(low), float(high), "write math.inf if that is meant"
    if not low <= value <= high:
        shown = in_short(value)
        raise ValueError(f"{operation}: {shown} is no value of {dtype}, which are from {low} to {high}; {hint}")
