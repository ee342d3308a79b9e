"""Which dtype an operation computes in: PyTorch's promotion rules, for NumPy and CuPy arrays.

A dtype has a category: bool < integer < floating. The highest category among arrays with axes decides; 0-d arrays,
and then Python numbers, count only if theirs is higher. So float32 stays float32 beside int64 arrays and any scalar.
(PyTorch documents this under "tensor attributes: torch.dtype".)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from minigrad.backend import DEFAULT_DTYPE, is_floating

_PYTHON = {bool: np.dtype(bool), int: np.dtype(np.int64), float: DEFAULT_DTYPE}


def promoted(operands: Sequence[Any], floating: bool = False, exempt: frozenset[int] = frozenset()) -> Sequence[Any]:
    """The operands with their arrays cast to the common dtype; Python numbers stay, being of any dtype.

    Args:
        operands: arrays, Python numbers, None.
        floating: integers and booleans become the default float dtype.
        exempt: positions that are left as they are.
    """
    counted = [x for place, x in enumerate(operands) if place not in exempt and x is not None]
    if not counted:
        return operands
    dtype = result_type(counted)
    if floating and not is_floating(dtype):
        dtype = DEFAULT_DTYPE
    only_numbers = not any(hasattr(x, "dtype") for x in counted)

    def cast(operand: Any) -> Any:
        if hasattr(operand, "dtype"):
            return operand if operand.dtype == dtype else operand.astype(dtype)
        return dtype.type(operand) if only_numbers and operand is not None else operand

    return [x if place in exempt else cast(x) for place, x in enumerate(operands)]


def is_uniform(operands: Sequence[Any]) -> bool:
    """Whether nothing is left to do: NumPy arrays of one floating dtype, and numbers, which never widen it."""
    dtype = None
    for operand in operands:
        kind = type(operand)
        if kind is np.ndarray and (dtype is None or operand.dtype is dtype):
            dtype = operand.dtype
        elif kind is not float and kind is not int and operand is not None:
            return False
    return dtype is not None and is_floating(dtype)


def result_type(operands: Iterable[Any]) -> np.dtype:
    """The common dtype of arrays and Python numbers, by PyTorch's rules."""
    with_axes: list[np.dtype] = []
    zero_d: list[np.dtype] = []
    numbers: list[np.dtype] = []
    for operand in operands:
        if not hasattr(operand, "dtype"):
            numbers.append(_PYTHON[type(operand)])
        else:
            (with_axes if operand.ndim else zero_d).append(operand.dtype)
    groups = [reduce(_common, group) for group in (with_axes, zero_d, numbers) if group]
    return reduce(lambda kept, other: other if _category(other) > _category(kept) else kept, groups)


def _category(dtype: np.dtype) -> int:
    return 2 if is_floating(dtype) else 0 if dtype.kind == "b" else 1


def _common(a: np.dtype, b: np.dtype) -> np.dtype:
    if _category(a) != _category(b):
        return a if _category(a) > _category(b) else b
    return np.promote_types(a, b)
