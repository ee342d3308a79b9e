"""Which dtype an operation computes in: the default one, and PyTorch's promotion rules for NumPy and CuPy arrays.

A dtype has a category: bool < integer < floating. The highest category among arrays with axes decides; 0-d arrays,
and then Python numbers, count only if theirs is higher. So float32 stays float32 beside int64 arrays and any scalar.
(PyTorch documents this under "tensor attributes: torch.dtype".)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from minigrad.dtypes import is_16_bit, is_floating

_default = np.dtype(np.float32)


def get_default_dtype() -> np.dtype:
    """The dtype of Python floats, of what is made without a dtype, and of functions of integers: float32 at first."""
    return _default


def set_default_dtype(dtype: Any) -> None:
    """Make float16, float32 or float64 the default dtype of the whole process. TypeError for another one."""
    global _default
    name = None if dtype is None else np.dtype(dtype).name  # NumPy takes None for float64
    if name not in ("float16", "float32", "float64"):
        raise TypeError(f"set_default_dtype: the default is float16, float32 or float64, not {name}")
    _default = np.dtype(name)


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
        dtype = _default
    only_numbers = not any(hasattr(x, "dtype") for x in counted)

    def cast(operand: Any) -> Any:
        if hasattr(operand, "dtype"):
            return operand if operand.dtype == dtype else operand.astype(dtype)
        return dtype.type(operand) if only_numbers and operand is not None else operand

    return [x if place in exempt else cast(x) for place, x in enumerate(operands)]


def result_type(operands: Iterable[Any]) -> np.dtype:
    """The common dtype of arrays and Python numbers, by PyTorch's rules."""
    with_axes: list[np.dtype] = []
    zero_d: list[np.dtype] = []
    numbers: list[np.dtype] = []
    for operand in operands:
        if not hasattr(operand, "dtype"):
            numbers.append(_default if type(operand) is float else np.dtype(type(operand)))
        else:
            (with_axes if operand.ndim else zero_d).append(operand.dtype)
    groups = [reduce(_common, group) for group in (with_axes, zero_d, numbers) if group]
    return reduce(lambda kept, other: other if category(other) > category(kept) else kept, groups)


def category(dtype: np.dtype) -> int:
    """0 for booleans, 1 for integers, 2 for floating dtypes: a value can be cast to one as high or higher."""
    return 2 if is_floating(dtype) else 0 if dtype.kind == "b" else 1


def _common(a: np.dtype, b: np.dtype) -> np.dtype:
    if category(a) != category(b):
        return a if category(a) > category(b) else b
    if is_16_bit(a) and is_16_bit(b) and a != b:
        return np.dtype(np.float32)  # float16 and bfloat16, of which neither holds the other
    return np.promote_types(a, b)
