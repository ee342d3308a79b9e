"""The memory that attention takes, computed from shapes: no array is made here."""

from __future__ import annotations

import math
from typing import NamedTuple

from kernels.call import DTYPES


class Planned(NamedTuple):
    """One array of a call of attention, forward and backward."""

    name: str
    made_by: str  # "caller", "forward" or "backward"
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * (4 if self.dtype == "float32" else 2)


def memory_plan(query_shape: tuple[int, ...], key_shape: tuple[int, ...], dtype: str) -> list[Planned]:
    """Every array of `attention_forward` and `attention_backward`: each has N_q or N_k rows, none N_q N_k numbers.

    Args:
        query_shape, key_shape: (B, H, N_q, d) and (B, H_kv, N_k, d), the second of the value too.
        dtype: "float32", "float16" or "bfloat16".

    Not in it are masks, biases and their gradients, which have the sizes that their maker gave them; the copies of
    inputs that the kernels cannot read as they are: last axis not contiguous, on tensor cores also rows whose d numbers
    are no multiple of 16 bytes; and those as float32 of which a bias's gradient is made in 16 bits.

    Raises ValueError for another dtype, and for shapes that do not fit.
    """
    if dtype not in DTYPES:
        raise ValueError(f"memory_plan: dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    if not len(query_shape) == len(key_shape) == 4 or query_shape[::3] != key_shape[::3]:
        raise ValueError(
            f"memory_plan: query {query_shape} and key {key_shape} do not fit: they are (B, H, N_q, d) and "
            "(B, H_kv, N_k, d)"
        )
    rows = query_shape[:3]
    return [
        Planned("query", "caller", query_shape, dtype),
        Planned("key", "caller", key_shape, dtype),
        Planned("value", "caller", key_shape, dtype),
        Planned("output", "forward", query_shape, dtype),
        Planned("lse", "forward", rows, "float32"),  # the logarithm of each row's sum of exponentials
        Planned("grad_output", "caller", query_shape, dtype),
        Planned("d_query", "backward", query_shape, dtype),
        Planned("d_key", "backward", key_shape, dtype),
        Planned("d_value", "backward", key_shape, dtype),
        Planned("delta", "backward", rows, "float32"),  # rowsum(dO ∘ O)
        Planned("share", "backward", rows, "float32"),  # 1 / the sum of a row's weights, which is nearly 1
    ]
