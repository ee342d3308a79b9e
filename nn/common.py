"""What several functions of nn share: the arrays of Tensors, dtypes, probabilities, and the masks of dropout."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigrad import Tensor, ops
from minigrad.backend import device_of, next_generator, to_device


def array_of(x: Any) -> Any:
    """The array of a Tensor; an array itself."""
    return x.data if isinstance(x, Tensor) else x


def as_dtype(x: Any, dtype: Any) -> Any:
    """x in this dtype, itself if it has it already; None for None."""
    return x if x is None or x.dtype == dtype else ops.astype(x, dtype=dtype)


def widened(x: Any) -> Any:
    """float16 as float32: sums of many float16 numbers are neither exact nor fast."""
    return as_dtype(x, np.float32) if x.dtype == np.float16 else x


def narrowed(x: Any, dtype: np.dtype) -> Any:
    """What was computed from `widened` values, in float16 again if that is what they were."""
    return as_dtype(x, dtype) if dtype == np.float16 else x


def check_probability(name: str, p: float) -> None:
    """Raises ValueError that names what is outside 0 ... 1, or NaN."""
    if not 0 <= p <= 1:
        raise ValueError(f"{name} is a probability, from 0 to 1, got {p}")


def dropout_mask(x: Any, shape: tuple[int, ...], p: float) -> Any:
    """0 with probability p, else 1 / (1 - p): of this shape, in x's dtype and on x's device, a Tensor if x is one.

    As a Tensor it is not copied by the operation that multiplies by it: nobody else has this array.
    """
    kept = (next_generator().random(shape, np.float32) >= p).astype(x.dtype)
    kept *= 1.0 / (1.0 - p) if p < 1 else 0.0
    kept = to_device(kept, device_of(array_of(x)))
    return Tensor._of(kept) if isinstance(x, Tensor) else kept
